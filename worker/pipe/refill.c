#include "worker/pipe/refill.h"

#include "worker/pipe/fill.h"

enum { F, B, W, PASSES };

void refill_read(struct refill_times *t, const struct costs *p, int device,
                 const struct pipe_list *list, const struct trace *trace)
{
    double sums[COSTS_CHAINS_MAX][PASSES] = {0};
    double frozen[COSTS_FROZEN_MAX] = {0}, expected[COSTS_FROZEN_MAX] = {0};
    int n[COSTS_CHAINS_MAX][PASSES] = {0};
    for (int i = 0; i < list->n && i < trace->n; i++) {
        const struct pipe_instr *in = &list->items[i];
        const struct trace_row *row = &trace->rows[i];
        const double took = row->end - row->ready;
        if ((in->op == PIPE_F || in->op == PIPE_B || in->op == PIPE_W) && in->count > 0) {
            sums[in->chain][in->op - PIPE_F] += took;
            n[in->chain][in->op - PIPE_F]++;
        } else if (in->op == PIPE_FROZEN) {
            frozen[in->chain] += took;
            expected[in->chain] +=
                frozen_seconds(p, device, in->chain, in->from, in->to, in->count);
        } else if (in->op == PIPE_STEP) {
            t->pipeline = fmax(t->pipeline, row->end);
        }
    }
    for (int c = 0; c < COSTS_CHAINS_MAX; c++)
        for (int k = 0; k < PASSES; k++)
            if (n[c][k] > 0)
                t->passes[c][device][k] = fmax(t->passes[c][device][k], sums[c][k] / n[c][k]);
    for (int k = 0; k < p->n_frozen; k++)
        if (expected[k] > 0)
            t->frozen[k] = fmax(t->frozen[k], frozen[k] / expected[k]);
}

/* ---- the share ---- */

static void note_least(struct refill_times *t, const struct refill_times *seen, bool first)
{
    if (first) {
        *t = *seen;
        return;
    }
    t->pipeline = fmin(t->pipeline, seen->pipeline);
    for (int c = 0; c < COSTS_CHAINS_MAX; c++)
        for (int d = 0; d < COSTS_DEVICES_MAX; d++)
            for (int k = 0; k < PASSES; k++)
                t->passes[c][d][k] = fmin(t->passes[c][d][k], seen->passes[c][d][k]);
    for (int k = 0; k < COSTS_FROZEN_MAX; k++)
        t->frozen[k] = fmin(t->frozen[k], seen->frozen[k]);
}

static void fill_so(struct refill *r, enum refill_state state, double share)
{
    r->state = state;
    r->share = share;
    r->steps = 0;
    r->least = r->pipeline = INFINITY;
}

/* Judges a share after its steps. */
static void judge(struct refill *r)
{
    const double delay = r->pipeline / r->times.pipeline - 1;
    if (r->state == REFILL_EMPTY)
        r->empty = r->least;
    if (r->state == REFILL_EMPTY || r->least < r->best) {
        r->best = r->least;
        r->best_share = r->share;
        r->delay = delay;
    }
    if (r->state == REFILL_EMPTY)
        fill_so(r, REFILL_TRIES, 1);
    else if (delay <= FILL_DELAY_MAX || ++r->shares == REFILL_SHARES_MAX)
        fill_so(r, REFILL_DONE, r->best_share);
    else
        fill_so(r, REFILL_TRIES, r->share * REFILL_SMALLER);
}

bool refill_step(struct refill *r, const struct refill_times *seen, double seconds)
{
    if (r->state == REFILL_DONE)
        return false;
    r->steps++;
    if (r->state == REFILL_SETTLES) {
        if (r->steps < REFILL_SETTLED)
            return false;
        fill_so(r, REFILL_EMPTY, 0);
        return true;
    }
    if (r->state == REFILL_EMPTY)
        note_least(&r->times, seen, r->steps == 1);
    r->least = fmin(r->least, seconds);
    r->pipeline = fmin(r->pipeline, seen->pipeline);
    if (r->steps < REFILL_STEPS)
        return false;
    judge(r);
    return true;
}

/* ---- costs ---- */

/* The factor from expected to measured seconds. */
static double ratio(double seen, double expected)
{
    return seen > 0 && expected > 0 ? seen / expected : 1;
}

static void scale(struct costs_time *t, const struct costs_points *points, double by)
{
    for (int i = 0; i < points->n; i++)
        t->s[i] *= by;
}

/* The measured times of a stage: those of the slowest of its devices. */
static void stage_seen(const double passes[COSTS_DEVICES_MAX][PASSES], const struct pipe_stage *st,
                       double ret[PASSES], double *ret_both)
{
    for (int d = st->device; d < st->device + st->devices; d++) {
        for (int k = 0; k < PASSES; k++)
            ret[k] = fmax(ret[k], passes[d][k]);
        *ret_both = fmax(*ret_both, passes[d][B] + passes[d][W]);
    }
}

static void correct_stage(const struct refill_times *t, const struct pipe_plan *plan, int chain,
                          int stage, struct costs *p)
{
    const struct pipe_stage *st = &plan->cuts[chain].stages[stage];
    const struct pipe_cost cost = pipe_stage_cost(p, plan, chain, stage);
    const double speed = pipe_speed(p, st->device, st->devices);
    double seen[PASSES] = {0}, seen_both = 0;
    stage_seen(t->passes[chain], st, seen, &seen_both);
    const double both = ratio(seen_both * speed, cost.b + cost.w);
    const bool split = plan->order == PIPE_SPLIT;
    for (int i = st->from; i < st->to; i++) {
        struct costs_layer *l = &p->chains[chain].layers[i];
        scale(&l->f, &p->sizes, ratio(seen[F] * speed, cost.f));
        scale(&l->b, &p->sizes, split ? ratio(seen[B] * speed, cost.b) : both);
        scale(&l->w, &p->sizes, split ? ratio(seen[W] * speed, cost.w) : both);
        l->add *= split ? ratio(seen[W] * speed, cost.w) : both;
    }
}

void refill_correct(const struct refill_times *t, const struct pipe_plan *plan, struct costs *p)
{
    for (int c = 0; c < plan->chains; c++)
        for (int s = 0; s < plan->cuts[c].n; s++)
            correct_stage(t, plan, c, s, p);
    for (int k = 0; k < p->n_frozen; k++)
        for (int i = 0; i < p->frozen[k].n; i++)
            scale(&p->frozen[k].layers[i].t, &p->groups, ratio(t->frozen[k], 1));
}
