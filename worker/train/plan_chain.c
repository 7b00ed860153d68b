#include "worker/train/plan_chain.h"

#include "worker/train/ahead.h"
#include "worker/train/plan.h"

/* Samples from which on bytes grow evenly: no buffer's size is rounded, and no more logits are made
 * at a time. */
#define SAMPLES 1024
/* Most bytes by which the sizes of a stage's buffers are rounded up. */
#define ROUNDING 16384

struct counter {
    const struct model *m;
    int chain;
    struct train_options opt;
    enum dtype dt;
    struct err *err;
    int rc; /* of the first failure; later counts are 0 */
};

/* Micro-batches, and what their network has for them. */
struct counted {
    int samples, load, slots;
    bool split;
};

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* The memory of blocks [from, to). */
static struct plan count(struct counter *c, int from, int to, const struct counted *n)
{
    const struct plan_room any = {0};
    struct model_part parts[MODEL_CHAINS];
    struct model *part = NULL;
    struct train_options opt = c->opt;
    struct plan ret = {0};
    for (int i = 0; i < MODEL_CHAINS; i++)
        parts[i] = i == c->chain ? (struct model_part){from, to} : MODEL_PART_NONE;
    opt.batch = n->load;
    opt.accumulate = n->load / n->samples;
    opt.slots = opt.slots_upscaler = n->slots;
    opt.split = n->split;
    if (c->rc == 0)
        c->rc = model_part_new(c->m, parts, &part, c->err);
    if (c->rc == 0)
        c->rc = plan_train(part, &opt, c->dt, &any, &ret, c->err);
    model_free(part);
    return ret;
}

/* Bytes of a sample in each slot. */
static uint64_t slot_bytes(struct counter *c, int from, int to, bool split)
{
    const struct counted one = {1, 1, 1, split}, two = {1, 1, 2, split};
    return minus(count(c, from, to, &two).activations, count(c, from, to, &one).activations);
}

static uint64_t split_bytes(struct counter *c, int from, int to)
{
    return c->opt.recompute ? 0
                            : minus(slot_bytes(c, from, to, true), slot_bytes(c, from, to, false));
}

/* Bytes that are not in a slot. */
static uint64_t rest_bytes(struct counter *c, int from, int to, int samples, int load)
{
    const struct counted one = {samples, load, 1, false}, two = {samples, load, 2, false};
    const uint64_t all = count(c, from, to, &one).activations;
    return minus(2 * all, count(c, from, to, &two).activations);
}

static struct costs_beside rest(struct counter *c, int from, int to)
{
    const uint64_t few = rest_bytes(c, from, to, SAMPLES, SAMPLES);
    const uint64_t more = rest_bytes(c, from, to, SAMPLES, 2 * SAMPLES);
    const uint64_t most = rest_bytes(c, from, to, 2 * SAMPLES, 2 * SAMPLES);
    struct costs_beside b = {.load_bytes = minus(more, few) / SAMPLES,
                             .sample_bytes = minus(most, more) / SAMPLES};
    b.bytes = minus(few, (b.load_bytes + b.sample_bytes) * SAMPLES);
    return b;
}

static struct costs_beside less(struct costs_beside a, const struct costs_beside *b)
{
    a.bytes = minus(a.bytes, b->bytes);
    a.sample_bytes = minus(a.sample_bytes, b->sample_bytes);
    a.load_bytes = minus(a.load_bytes, b->load_bytes);
    return a;
}

static struct costs_beside plus(struct costs_beside a, const struct costs_beside *b)
{
    a.bytes += b->bytes;
    a.sample_bytes += b->sample_bytes;
    a.load_bytes += b->load_bytes;
    return a;
}

/* What stages have beside their layers.  Of two blocks each is an end, and what both have is what
 * they have more than the two together. */
static void count_stages(struct counter *c, struct costs_chain *ret)
{
    const int n = ret->n;
    const struct costs_beside first = rest(c, 0, 1), last = rest(c, n - 1, n);
    if (n == 1) {
        ret->stage = first;
    } else if (n == 2) {
        const struct costs_beside both = rest(c, 0, 2);
        ret->stage = less(plus(first, &last), &both);
    } else {
        ret->stage = rest(c, 1, 2);
    }
    if (n > 1) {
        ret->first = less(first, &ret->stage);
        ret->last = less(last, &ret->stage);
        ret->stage.slot_bytes = minus(slot_bytes(c, 0, 1, false) + slot_bytes(c, 1, 2, false),
                                      slot_bytes(c, 0, 2, false));
        ret->stage.split_bytes =
            minus(split_bytes(c, 0, 1) + split_bytes(c, 1, 2), split_bytes(c, 0, 2));
    }
    ret->stage.bytes += ROUNDING;
}

static void count_layer(struct counter *c, int i, struct costs_chain *ret)
{
    const int n = ret->n, pair = i + 1 < n ? i : i - 1, other = i + 1 < n ? i + 1 : i - 1;
    const struct plan p = count(c, i, i + 1, &(struct counted){1, 1, 1, false});
    struct costs_layer *l = &ret->layers[i];
    l->gradient_bytes = p.gradients;
    l->state_bytes = p.gradients * 2;
    l->weight_bytes = p.weights + p.gradients + minus(p.optimiser, l->state_bytes);
    if (i > 1 && i + 1 < n) { /* as the block before */
        l->slot_bytes = l[-1].slot_bytes;
        l->split_bytes = l[-1].split_bytes;
        return;
    }
    l->slot_bytes = n == 1 ? slot_bytes(c, 0, 1, false)
                           : minus(slot_bytes(c, pair, pair + 2, false),
                                   slot_bytes(c, other, other + 1, false));
    l->split_bytes = n == 1
                         ? split_bytes(c, 0, 1)
                         : minus(split_bytes(c, pair, pair + 2), split_bytes(c, other, other + 1));
}

int plan_chain(const struct model *m, int chain, const struct train_options *opt, bool apart,
               enum dtype dt, struct costs_chain *ret, struct err *err)
{
    struct counter c = {.m = m, .chain = chain, .opt = *opt, .dt = dt, .err = err};
    struct net_encoders none;
    c.opt.lean = c.opt.accumulate_auto = c.opt.fill = false;
    c.opt.width = c.opt.sharers = c.opt.sharer = 0;
    if (opt->encoders) {
        none = ahead_far(opt->encoders);
        c.opt.encoders = &none;
    }
    count_stages(&c, ret);
    for (int i = 0; i < ret->n && c.rc == 0; i++)
        count_layer(&c, i, ret);
    if (c.rc == 0 && opt->encoders && !apart)
        ret->layers[0].weight_bytes += opt->encoders->bytes;
    return c.rc;
}
