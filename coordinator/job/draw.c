#include "coordinator/job/draw.h"

#include "coordinator/state/core.h"
#include "coordinator/work/member.h"
#include "coordinator/work/query.h"
#include "coordinator/work/shards.h"
#include "coordinator/work/tasks.h"

#include "common/job/family.h"

#define EVAL_PLACES 8

/* t, unless no worker here has the memory for it: then it has failed, and NULL. */
static struct task *if_it_fits(struct coordinator *co, struct task *t)
{
    if (!member_none_fits(co, t))
        return t;
    task_end(co, t, TASK_FAILED, "it is too large for every worker here");
    return NULL;
}

/* ---- evaluations --------------------------------------------------------- */

/* The number of a partition's held-out samples in an evaluation.  Each partition gets its
 * share of the job's budget (eval.samples), so that the sum over the paths weighs the
 * data by their size. */
static uint64_t budget(const struct job *j, uint32_t partition, uint64_t there)
{
    uint64_t most = (uint64_t)j->spec.eval.samples;
    uint64_t all = shards_sum(j, PARTITION_ALL, true).samples;
    if (j->comp.n_partitions > 1 && partition != PARTITION_ALL && all > most)
        most = (most * there + all - 1) / all;
    return there < most ? there : most;
}

/* Ranges over the held-out shards, from EVAL_PLACES that lie evenly in data that are not divided,
 * since a worker fetches whole shards, and evenly from all shards of partitions.  What a shard
 * does not have the next one gives. */
static void pick_ranges(const struct job *j, uint32_t partition, struct task *t)
{
    const uint64_t there = shards_sum(j, partition, true).samples;
    const uint64_t want = budget(j, partition, there);
    const bool whole = j->comp.n_partitions == 1 && partition != PARTITION_ALL;
    const uint64_t places = whole && there > EVAL_PLACES ? EVAL_PLACES : there;
    uint64_t seen = 0, taken = 0;
    for (size_t i = 0; i < j->n_shards && taken < want && t->n_ranges < RANGES_TAKEN_MAX; i++) {
        const struct shard_rec *s = &j->shards[i];
        if (!job_shard_evaluates(j, s, partition))
            continue;
        seen += s->samples;
        const uint64_t passed = (places * seen + there - 1) / there; /* or in this shard */
        const uint64_t left = want * passed / places - taken;
        const uint64_t take = s->samples < left ? s->samples : left;
        if (take == 0)
            continue;
        t->ranges = mem_realloc(t->ranges, (t->n_ranges + 1) * sizeof(*t->ranges));
        t->ranges[t->n_ranges++] = (struct ledger_range){0, (uint32_t)i, 0, (uint32_t)take};
        taken += take;
    }
    t->draw.count = (uint32_t)taken;
}

/* How the job mixes experts. */
static void fill_rule(const struct job *j, struct task_draw *d)
{
    const struct job_sample *s = &j->spec.sample;
    d->strategy = (uint32_t)s->strategy;
    d->top = (uint32_t)s->top;
    d->nucleus = (float)s->nucleus;
    d->threshold = (float)s->threshold;
}

static struct task *make_eval(struct coordinator *co, struct job *j, uint32_t path, uint32_t round,
                              bool mixture)
{
    uint32_t partition = mixture ? PARTITION_ALL : j->comp.paths[path].partition;
    if (shards_sum(j, partition, true).samples == 0 || j->spec.eval.samples <= 0 ||
        !query_can(j, "evaluates"))
        return NULL;
    struct task *t = task_make(co, j, TASK_EVAL);
    if (t == NULL)
        return NULL;
    t->path = path;
    t->draw.version = round;
    t->draw.mixture = mixture;
    if (mixture)
        fill_rule(j, &t->draw);
    t->draw.ema = j->spec.outer.ema > 0;
    pick_ranges(j, partition, t);
    return if_it_fits(co, t);
}

struct task *draw_eval(struct coordinator *co, struct job *j, uint32_t path, uint32_t round)
{
    return make_eval(co, j, path, round, false);
}

/* All main paths with the router: it gives the losses of every strategy. */
static struct task *eval_mixture(struct coordinator *co, struct job *j, uint32_t round)
{
    return make_eval(co, j, (uint32_t)j->comp.router_path, round, true);
}

/* ---- samples ------------------------------------------------------------- */

static void fill_draw(const struct job *j, struct task_draw *d)
{
    const struct job_sample *s = &j->spec.sample;
    d->count = (uint32_t)s->count;
    d->steps = (uint32_t)s->steps;
    d->columns = (uint32_t)s->columns;
    d->heun = s->sampler == JOB_SAMPLER_HEUN;
    d->guidance = (float)s->guidance;
    d->seed = s->seed;
    d->ema = j->spec.outer.ema > 0;
    fill_rule(j, d);
    d->remote = s->remote;
    for (size_t i = 0; i < s->prompts.n; i++) { /* one per line */
        char *more = i == 0 ? str_dup(s->prompts.items[0])
                            : str_printf("%s\n%s", d->prompt, s->prompts.items[i]);
        mem_free(d->prompt);
        d->prompt = more;
    }
    if (!job_is_text(&j->spec) && job_has_data(&j->spec))
        return; /* who reads data of its own may write */
    d->prompt = s->prompt ? str_dup(s->prompt) : NULL;
    d->tokens = (uint32_t)s->tokens;
    d->temperature = (float)s->temperature;
    d->top_p = (float)s->top_p;
    d->count = 0; /* no pictures */
}

/* Zero, except of guidance, and NAN (for which every comparison is false) mean the job's values. */
static void fill_asked(const struct draw_request *ask, struct task_draw *d)
{
    d->asked = true;
    if (d->tokens == 0 && ask->n_labels > 0)
        d->count = (uint32_t)ask->n_labels;
    else if (d->tokens == 0 && ask->count > 0)
        d->count = ask->count;
    if (ask->steps > 0)
        d->steps = ask->steps;
    if (ask->columns > 0)
        d->columns = ask->columns;
    if (ask->guidance >= 0)
        d->guidance = (float)ask->guidance;
    if (ask->has_seed)
        d->seed = ask->seed;
    if (ask->sampler != NULL)
        d->heun = strcmp(ask->sampler, "heun") == 0;
    if (ask->ema >= 0)
        d->ema = ask->ema > 0;
    int strategy = 0;
    if (ask->strategy != NULL && job_strategy_parse(ask->strategy, &strategy) == 0)
        d->strategy = (uint32_t)strategy;
    if (ask->top > 0)
        d->top = ask->top;
    if (ask->nucleus > 0)
        d->nucleus = (float)ask->nucleus;
    if (ask->threshold > 0)
        d->threshold = (float)ask->threshold;
    d->remote |= ask->remote;
    if (ask->prompt != NULL) {
        mem_free(d->prompt);
        d->prompt = str_dup(ask->prompt);
    }
    if (d->tokens == 0)
        return;
    if (ask->tokens > 0)
        d->tokens = ask->tokens;
    if (ask->temperature >= 0)
        d->temperature = (float)ask->temperature;
    if (ask->top_p > 0)
        d->top_p = (float)ask->top_p;
}

/* The number of labels of a grid: captions, or classes. */
static uint32_t drawable(const struct job *j, const struct task_draw *d)
{
    uint32_t n = 1;
    if (!job_has_captions(&j->spec))
        return (uint32_t)j->n_classes;
    for (const char *p = d->prompt; p != NULL && (p = strchr(p, '\n')) != NULL; p++)
        n++;
    return n;
}

struct task *draw_sample(struct coordinator *co, struct job *j, uint32_t path, uint32_t round,
                         const struct draw_request *ask)
{
    bool text = job_is_text(&j->spec);
    if ((!text && !job_has_captions(&j->spec) && j->n_classes == 0 && job_has_data(&j->spec)) ||
        (text && !query_has_text(j)) || !query_can(j, "draws"))
        return NULL;
    struct task *t = task_make(co, j, TASK_SAMPLE);
    if (t == NULL)
        return NULL;
    bool mixture = path == UINT32_MAX && j->comp.mixture;
    t->path = mixture ? (uint32_t)j->comp.router_path : path == UINT32_MAX ? 0 : path;
    t->draw.version = round;
    fill_draw(j, &t->draw);
    if (ask != NULL)
        fill_asked(ask, &t->draw);
    t->draw.mixture = mixture;
    t->draw.remote &= mixture;
    if (t->draw.count > 0)
        t->draw.labels = mem_alloc_array(t->draw.count, sizeof(*t->draw.labels));
    const uint32_t n = drawable(j, &t->draw);
    for (uint32_t i = 0; i < t->draw.count; i++)
        t->draw.labels[i] =
            ask != NULL && ask->n_labels > 0 ? ask->labels[i % ask->n_labels] : i % n;
    return ask != NULL ? t : if_it_fits(co, t);
}

/* ---- versions that are gone ---------------------------------------------- */

void draw_renew(struct job *j, struct task *t)
{
    bool kept = true;
    if (task_drawing(t) == NULL || t->draw.mixture || j->spec.outer.async ||
        j->paths[t->path].hope.task == t->id) /* that has its version with it */
        return;
    for (uint32_t l = 0; l < composition_levels(&j->comp, t->path); l++)
        kept &=
            module_version(&j->modules[j->comp.paths[t->path].modules[l]], t->draw.version) != NULL;
    if (kept)
        return;
    t->draw.version = (uint32_t)query_path_version(j, t->path);
    if (j->paths[t->path].doubt.best_task == t->id) /* the loss that it was to measure again */
        job_edit_path(j, t->path)->doubt.best_task = 0;
}

/* ---- when ---------------------------------------------------------------- */

static bool due(int every, uint32_t done)
{
    return every > 0 && done % (uint32_t)every == 0;
}

/* Have all paths now reached the round? */
static bool all_at(const struct job *j, uint32_t round)
{
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        if (j->paths[p].round < round)
            return false;
    return true;
}

void draw_after_round(struct coordinator *co, struct job *j, uint32_t path)
{
    uint32_t done = j->paths[path].round;
    if (done >= (uint32_t)j->spec.outer.rounds)
        return; /* the end of the job does it */
    bool all = all_at(j, done);
    if (due(j->spec.eval.every, done)) {
        (void)draw_eval(co, j, path, done);
        if (j->comp.mixture && all)
            (void)eval_mixture(co, j, done);
    }
    if (due(j->spec.sample.every, done) && (j->comp.mixture ? all : path == 0))
        (void)draw_sample(co, j, UINT32_MAX, done, NULL);
}

void draw_last(struct coordinator *co, struct job *j)
{
    uint32_t rounds = (uint32_t)j->spec.outer.rounds;
    if (j->comp.mixture) {
        (void)eval_mixture(co, j, rounds);
        (void)draw_sample(co, j, UINT32_MAX, rounds, NULL);
    }
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        if (j->comp.paths[p].network == 0)
            (void)draw_sample(co, j, p, rounds, NULL);
}
