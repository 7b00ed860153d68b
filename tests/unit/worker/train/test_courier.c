/* Devices of a pipeline on cards never wait for each other in a circle.  Cards are a model here: a
 * stream is an order of work, a send and its recv end together, calls of one communicator wait for
 * each other.  The courier is the real one, and what it is asked is what a trainer asks. */
#include "tests/unit/worker/pipe/brute.h"

#include "worker/pipe/planner.h"
#include "worker/train/courier.h"

enum { WORK_MAX = 1 << 16, DEVICES = 6, CALLS_MAX = 256 };

/* A piece of work, and what it waits for: by number, -1: nothing. */
struct piece {
    int after, other, mate;
    bool done;
};

struct stream {
    int last;
};
struct mark {
    int at;
};

/* A rank's end of a communicator of two. */
struct end {
    struct comm comm;
    int last, calls[CALLS_MAX], n;
};

static struct {
    struct piece work[WORK_MAX];
    int n;
    struct end ends[DEVICES][DEVICES][COSTS_CHAINS_MAX][ISLAND_WAYS];
} cards;

static int put(struct stream *s, int other)
{
    assert_true(cards.n < WORK_MAX);
    cards.work[cards.n] = (struct piece){.after = s->last, .other = other, .mate = -1};
    return s->last = cards.n++;
}

/* ---- the device ---- */

static int card_stream_new(struct device *dev, struct stream **ret, struct err *err)
{
    *ret = mem_alloc(sizeof **ret);
    (*ret)->last = -1;
    return 0;
}

static void card_stream_free(struct device *dev, struct stream *s)
{
    mem_free(s);
}

static int card_stream_follow(struct device *dev, struct stream *s, struct stream *after)
{
    (void)put(s, after->last);
    return 0;
}

static int card_mark_new(struct device *dev, struct mark **ret, struct err *err)
{
    *ret = mem_alloc(sizeof **ret);
    (*ret)->at = -1;
    return 0;
}

static void card_mark_free(struct device *dev, struct mark *m)
{
    mem_free(m);
}

static int card_mark(struct device *dev, struct mark *m, struct stream *s)
{
    m->at = s->last;
    return 0;
}

static int card_stream_pass(struct device *dev, struct stream *s, struct mark *m)
{
    (void)put(s, m->at);
    return 0;
}

static const struct kernel_ops card_ops = {
    .stream_new = card_stream_new,
    .stream_free = card_stream_free,
    .stream_follow = card_stream_follow,
    .mark_new = card_mark_new,
    .mark_free = card_mark_free,
    .mark = card_mark,
    .stream_pass = card_stream_pass,
};

/* ---- communicators, in place of an island's ---- */

static int call(struct comm *c, const struct comm_piece *pieces, size_t n, int peer,
                struct stream *s)
{
    struct end *e = (struct end *)(void *)c;
    assert_true(e->n < CALLS_MAX && peer == 1 - c->rank);
    e->last = e->calls[e->n++] = put(s, e->last);
    return 0;
}

static const struct comm_ops card_comm = {.send = call, .recv = call};

struct comm *island_link(const struct island *is, int rank, int peer, int chain,
                         enum island_way way)
{
    struct end *e = &cards.ends[rank][peer][chain][way];
    if (!e->comm.ops)
        *e = (struct end){.comm = {.ops = &card_comm, .rank = rank > peer, .size = 2}, .last = -1};
    return &e->comm;
}

struct comm *island_pipe(const struct island *is, int rank)
{
    return NULL;
}

/* The k-th send meets the k-th recv. */
static void meet(int d, int peer, int chain, int way)
{
    const struct end *a = &cards.ends[d][peer][chain][way], *b = &cards.ends[peer][d][chain][way];
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++)
        cards.work[a->calls[i]].mate = b->calls[i];
}

static bool past(int at)
{
    return at < 0 || cards.work[at].done;
}

static bool can_begin(const struct piece *p)
{
    return past(p->after) && past(p->other);
}

/* Does all work come to its end? */
static bool ends(int devices)
{
    bool more = true, all = true;
    for (int i = 0; i < devices * devices * COSTS_CHAINS_MAX * ISLAND_WAYS; i++)
        meet(i / devices % devices, i % devices, i / devices / devices % COSTS_CHAINS_MAX,
             i / devices / devices / COSTS_CHAINS_MAX);
    while (more) {
        more = false;
        for (int i = 0; i < cards.n; i++) {
            struct piece *p = &cards.work[i];
            if (p->done || !can_begin(p) || (p->mate >= 0 && !can_begin(&cards.work[p->mate])))
                continue;
            more = p->done = true;
        }
    }
    for (int i = 0; i < cards.n; i++)
        all &= cards.work[i].done;
    return all;
}

/* ---- a device's list, as a trainer replays it ---- */

struct card {
    struct device dev;
    struct weights w;
    struct net net, chains[COSTS_CHAINS_MAX];
    struct courier courier;
};

static struct net *chain_of(struct net *n, int chain)
{
    struct card *c = (struct card *)((char *)n - offsetof(struct card, net));
    return c->chains[chain].opt.slots > 0 ? &c->chains[chain] : NULL;
}

/* all: a micro-batch waits for everything that was sent before. */
static void queue(struct card *c, const struct pipe_plan *plan, const struct pipe_instr *in,
                  bool all)
{
    static int x;
    const struct pipe_cut *cut = &plan->cuts[in->chain];
    const bool again = in->micro >= net_slots(&c->chains[in->chain].opt);
    if (in->op == PIPE_F && in->stage > 0)
        OK(courier_arrive(&c->courier, in->chain, PIPE_STATES, in->micro));
    if (in->op == PIPE_F && again)
        OK(courier_sent(&c->courier, in->chain, all ? -1 : in->micro));
    if (in->op == PIPE_B && in->stage + 1 < cut->n)
        OK(courier_arrive(&c->courier, in->chain, PIPE_GRADIENTS, in->micro));
    if (in->op == PIPE_F || in->op == PIPE_B || in->op == PIPE_W)
        (void)put(c->w.stream, -1);
    if (in->op == PIPE_SEND || in->op == PIPE_RECV)
        OK(courier_cross(&c->courier, in, &(struct net_piece){&x, sizeof x}, 1));
}

static void replay(const struct pipe_plan *plan, const struct pipe_list *list, int d, bool all)
{
    static const struct net_ops ops = {.chain = chain_of};
    struct stream main = {.last = -1};
    struct card *c = mem_alloc(sizeof *c);
    c->dev = (struct device){.ops = &card_ops};
    c->w = (struct weights){.dev = &c->dev, .ops = &card_ops, .stream = &main};
    c->net.weights = &c->w;
    c->net.ops = &ops;
    for (int k = 0; k < plan->chains; k++) {
        const struct pipe_cut *cut = &plan->cuts[k];
        const int stage = pipe_stage_of(cut, d);
        c->chains[k].opt.slots = stage < 0 ? 0 : cut->stages[stage].slots + 1;
        c->net.opt = c->chains[0].opt;
    }
    OK(courier_init(&c->courier, NULL, d, 0, &c->net, plan, err));
    for (int i = 0; i < list->n && list->items[i].op != PIPE_CLIP; i++)
        queue(c, plan, &list->items[i], all);
    courier_release(&c->courier);
    mem_free(c);
}

/* Is a plan's step over at some time on cards? */
static bool passes(const struct costs *p, const struct pipe_plan *plan, bool all)
{
    struct pipe_schedule lists;
    memset(&cards, 0, sizeof cards);
    OK(schedule_make(p, plan, &lists, err));
    if (plan->variant == SCHEDULE_EARLY)
        schedule_send_early(&lists);
    for (int d = 0; d < plan->devices; d++)
        replay(plan, &lists.lists[d], d, all);
    schedule_release(&lists);
    return ends(plan->devices);
}

/* ---- random islands ---- */

static void second_chain(struct costs *p, struct rng *r)
{
    struct costs_chain *c = &p->chains[1];
    p->n_chains = 2;
    *c = p->chains[0];
    c->layers = mem_alloc_array((size_t)c->n, sizeof *c->layers);
    memcpy(c->layers, p->chains[0].layers, (size_t)c->n * sizeof *c->layers);
    for (int i = 0; i < c->n; i++) {
        const double times = 0.1 + 3 * rng_uniform_double(r);
        c->layers[i].f.s[0] *= times;
        c->layers[i].b.s[0] *= times;
        c->layers[i].w.s[0] *= times;
    }
}

struct count {
    int plans, stuck, stuck_all;
};

/* All lists of the plan that the planner finds for an order. */
static void try_lists(const struct costs *p, const struct planner_candidate *found,
                      struct count *count)
{
    struct pipe_plan plan = found->plan;
    const bool sought = plan.order == PIPE_BIDIRECTIONAL || plan.order == PIPE_SPLIT;
    struct costs share;
    costs_share(p, plan.copies, &share);
    for (plan.variant = 0; plan.variant < (sought ? SCHEDULE_VARIANTS : 1); plan.variant++) {
        count->plans++;
        count->stuck += !passes(&share, &plan, false);
        count->stuck_all += !passes(&share, &plan, true);
    }
}

static void try_islands(int chains, struct count of[PIPE_ORDERS])
{
    struct rng r;
    rng_init(&r, 7, (uint64_t)chains);
    for (int i = 0; i < 120; i++) {
        struct costs p = brute_profile(&r, 7, DEVICES);
        struct planner_options o = {.samples = p.n_devices * 16, .n_micros = 1};
        struct planner_result got;
        struct err err = {0};
        o.micros[0] = 1 << rng_below(&r, 5);
        if (chains == 2)
            second_chain(&p, &r);
        const int rc = planner_search(&p, &o, &got, &err);
        for (enum pipe_order k = PIPE_1F1B; rc == 0 && k < PIPE_ORDERS; k++)
            if (got.of[k].possible && pipe_places(&got.of[k].plan) > 1)
                try_lists(&p, &got.of[k], &of[k]);
        if (rc == 0)
            planner_release(&got);
        costs_release(&p);
    }
}

static void test_one_chain(void **state)
{
    struct count of[PIPE_ORDERS] = {0};
    try_islands(1, of);
    for (enum pipe_order k = PIPE_1F1B; k <= PIPE_SPLIT; k++) {
        assert_true(of[k].plans > 40);
        assert_int_equal(of[k].stuck, 0);
    }
}

/* Waiting for all that was sent, some would be stuck: so the model sees circles. */
static void test_two_chains(void **state)
{
    struct count of[PIPE_ORDERS] = {0};
    try_islands(2, of);
    assert_true(of[PIPE_1F1B].plans > 40 && of[PIPE_BIDIRECTIONAL].plans > 240);
    assert_true(of[PIPE_DIVIDED].plans > 40 && of[PIPE_SPLIT].plans > 240);
    assert_int_equal(of[PIPE_SPLIT].stuck, 0);
    assert_int_equal(of[PIPE_1F1B].stuck + of[PIPE_DIVIDED].stuck + of[PIPE_BIDIRECTIONAL].stuck,
                     0);
    assert_true(of[PIPE_BIDIRECTIONAL].stuck_all > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_chain),
        cmocka_unit_test(test_two_chains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
