#include "cli/job/fragments.h"

#include "common/job/family.h"

/* Fragments are worth it if exchanges take this share of a round, and a delay of at most this share
 * of the steps hides as much: half of the training in the delay is lost (mix). */
#define WORTH 0.05
#define HIDDEN 0.5
#define DELAY_SHARE 8
#define FRAGMENTS_MOST 8
/* A phase in fragments has no snapshots: auto avoids fragments for a phase with more than these. */
#define SNAPSHOTS_MOST 2

struct exchange fragments_exchange(const struct fragments_round *r, int fragments, int delay)
{
    const struct exchange *whole = &r->whole;
    const double way_s =
        (whole->link_s + whole->fold_s) / fragments; /* time of a fragment, both ways */
    const double waits = fragments * fmax(0, way_s - delay * r->step_s);
    const double busy = fmax(0, whole->link_s / 2 - r->train_s);
    return (struct exchange){.link_s = fmax(waits, busy)};
}

/* Why a job of this kind cannot have fragments; NULL: it can. */
static const char *excluded(const struct job_spec *s)
{
    if (job_streams(s) || s->outer.fragments == 1)
        return "the job file says how modules travel";
    if (s->outer.async)
        return "outer.async has no rounds";
    if (s->outer.where == JOB_WHERE_WORKER)
        return "outer.where: worker folds only whole modules";
    if (!s->outer.steps)
        return "they need phases of outer.steps";
    if (s->recipe.replicas == 0)
        return "recipe.replicas is auto, as where it is left out, and works only with whole rounds";
    if (s->outer.steps < DELAY_SHARE || s->model.depth < 2)
        return "its phases or its model are too short for them";
    return NULL;
}

const char *fragments_refused(const struct job_spec *s, const struct composition *c)
{
    const char *why = excluded(s);
    if (why)
        return why;
    if (job_family(s)->external)
        return "trainers are not measured";
    if (!s->model.warm_start)
        return "a fresh model learns less with them in its first rounds";
    if (!composition_shares(c))
        return "each module has one replica";
    return NULL;
}

static bool many_snapshots(const struct job_spec *s, const struct fragments_round *r)
{
    const double least = job_snapshot_s(s, r->parameters);
    return least > 0 && r->train_s > SNAPSHOTS_MOST * least;
}

/* The fewest fragments, and the shortest delay, that leave the least. */
static void find(const struct job_spec *s, const struct fragments_round *r,
                 struct fragments_choice *ret)
{
    const double all = r->whole.link_s + r->whole.fold_s;
    const int most = s->outer.steps / DELAY_SHARE;
    ret->left_s = HIDDEN * all;
    for (int f = 2; f <= FRAGMENTS_MOST && f <= s->model.depth; f *= 2) {
        const double wanted = ceil(all / f / r->step_s);
        const int delay = wanted < most ? (int)wanted : most;
        const struct exchange left = fragments_exchange(r, f, delay);
        if (delay > 0 && left.link_s < ret->left_s) {
            ret->fragments = f;
            ret->delay = delay;
            ret->left_s = left.link_s;
        }
    }
}

void fragments_choose(const struct job_spec *s, const struct composition *c,
                      const struct fragments_round *r, struct fragments_choice *ret)
{
    const double all = r->whole.link_s + r->whole.fold_s;
    *ret = (struct fragments_choice){.why = excluded(s)};
    if (ret->why)
        return;
    if (r->bytes_per_s == 0)
        ret->why = "nothing is known of the links";
    else if (all < WORTH * (all + r->train_s))
        ret->why = "exchanges take less than a twentieth of a round";
    if (ret->why)
        return;
    find(s, r, ret);
    if (!ret->fragments)
        ret->why = "a delay of an eighth of the steps would not hide half of the exchange";
    else if (!(ret->why = fragments_refused(s, c)) && many_snapshots(s, r))
        ret->why = "a worker that is lost would lose more than two snapshots' time";
    ret->taken = !ret->why;
}
