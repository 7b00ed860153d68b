/* The list of a step: its samples cut into micro-batches, and what its device does in order. */
#include "worker/pipe/fill.h"
#include "worker/train/train_impl.h"

int step_schedule(const struct trainer *t, const struct pipe_plan *plan, unsigned next,
                  struct pipe_schedule *ret, struct err *err)
{
    const struct costs *costs = t->with_peers ? t->peers.costs : NULL;
    const struct fill_options fill = {
        .samples = (int)next, .group = FILL_GROUP, .share = t->fill_share};
    struct fill_report report;
    int rc = schedule_make(costs, plan, ret, err);
    if (rc < 0)
        return rc;
    if (costs && next > 0)
        rc = fill_schedule(costs, plan, &fill, ret, &report, err);
    if (rc < 0)
        schedule_release(ret);
    else if (plan->order == PIPE_SPLIT && plan->variant == SCHEDULE_EARLY)
        schedule_send_early(ret);
    return rc;
}

bool step_has_estimate(const struct trainer *t)
{
    return t->m->spec.self_condition && train_has_estimate(&t->opt, t->step);
}

int step_rank(const struct trainer *t, int chain, int stage)
{
    return t->device - t->plan.cuts[chain].stages[stage].device;
}

int step_rank_in_place(const struct trainer *t)
{
    return t->device - pipe_place(&t->plan, pipe_place_of(&t->plan, t->device)).device;
}

/* Cuts the copy's samples into micro-batches, each of one shape, and takes the trainer's share of
 * each.  Without samples there is one empty micro-batch.  Both of two chains have the same ones:
 * then a stage is one device, whose share is the whole. */
static void cut_samples(struct trainer *t, const struct batch *b)
{
    const unsigned most = (unsigned)train_micro_batch(&t->opt);
    const int rank = step_rank_in_place(t),
              stage = t->plan.chains > 1 ? 0 : pipe_stage_of(&t->plan.cuts[0], t->device);
    struct pipe_cut *cut = &t->plan.cuts[0];
    unsigned from = 0;
    t->count = 0;
    t->sizes[0] = 0;
    cut->sizes = t->sizes;
    cut->micros = 0;
    do {
        int first, count;
        const int i = cut->micros++;
        t->sizes[i] = (int)batch_run(b, from, most);
        pipe_share(cut, stage, rank, i, &first, &count);
        t->micros[i] = (struct net_micro){
            .from = t->count, .count = (unsigned)count, .first = t->count == 0, .backward = true};
        for (int k = 0; k < count; k++)
            t->at[t->count++] = from + (unsigned)(first + k);
        from += (unsigned)t->sizes[i];
    } while (from < b->count);
    for (int i = 1; i < t->plan.chains; i++) {
        t->plan.cuts[i].sizes = cut->sizes;
        t->plan.cuts[i].micros = cut->micros;
    }
}

int step_make_list(struct trainer *t, const struct batch *b, struct err *err)
{
    struct step_lists *l = &t->lists[step_has_estimate(t)];
    cut_samples(t, b);
    const int n = t->plan.cuts[0].micros;
    const size_t bytes = (size_t)n * sizeof *t->sizes;
    t->plan.estimate = step_has_estimate(t);
    if (l->micros == n && l->filled == b->next && memcmp(l->sizes, t->sizes, bytes) == 0)
        return 0;
    schedule_release(&l->schedule);
    l->micros = 0;
    int rc = step_schedule(t, &t->plan, b->next, &l->schedule, err);
    if (rc == 0) {
        l->micros = n;
        l->filled = b->next;
        memcpy(l->sizes, t->sizes, bytes);
    }
    return rc;
}

/* Notes such a micro-batch: its shape and size, whether it adds to the gradients of others before
 * it, and whether the step has an estimate, since each decides which products there are.  False:
 * there was one before. */
static bool note_kind(struct trainer *t, unsigned shape, unsigned count, bool first, bool estimate)
{
    const uint32_t kind =
        shape << 18 | (uint32_t)first << 17 | (uint32_t)estimate << 16 | (count & 0xffff);
    for (unsigned i = 0; i < t->n_kinds && i < STEP_KINDS_MAX; i++)
        if (t->kinds[i] == kind)
            return false;
    t->kinds[t->n_kinds++ % STEP_KINDS_MAX] = kind;
    return true;
}

bool step_is_new(struct trainer *t, const struct batch *b)
{
    bool is_new = t->m->spec.n_shapes == 0;
    for (int i = 0; i < t->plan.cuts[0].micros; i++) {
        const struct net_micro *m = &t->micros[i];
        if (m->count > 0)
            is_new |= note_kind(t, (unsigned)batch_shape(b, m->from), m->count, m->first,
                                t->plan.estimate);
    }
    return is_new;
}
