/* The checker: a good schedule passes, each way of breaking one is found and named. */
#include "tests/unit/worker/pipe/pipes.h"

struct bench {
    struct costs p;
    struct pipe_plan plan;
    struct pipe_schedule s;
};

static void make(struct bench *b, enum pipe_order order)
{
    b->p = pipes_profile(1, 3, 3, 8);
    b->plan = pipes_plan(&b->p, order, 3, 4, 8);
    OK(schedule_make(&b->p, &b->plan, &b->s, err));
    OK(schedule_check(&b->p, &b->plan, &b->s, err));
}

static void drop(struct bench *b)
{
    schedule_release(&b->s);
    costs_release(&b->p);
}

static void refused(const struct bench *b, int code, const char *sentence)
{
    struct err err = {0};
    assert_int_equal(schedule_check(&b->p, &b->plan, &b->s, &err), code);
    if (!strstr(err.msg, sentence))
        fail_msg("'%s' does not say '%s'", err.msg, sentence);
}

/* The place of the nth instruction of a kind. */
static int find(const struct bench *b, int d, enum pipe_op op, int nth)
{
    for (int i = 0; i < b->s.lists[d].n; i++)
        if (b->s.lists[d].items[i].op == op && nth-- == 0)
            return i;
    fail();
    return 0;
}

static void erase(struct bench *b, int d, int i)
{
    struct pipe_list *l = &b->s.lists[d];
    memmove(l->items + i, l->items + i + 1, (size_t)(--l->n - i) * sizeof *l->items);
}

static void move(struct bench *b, int d, int from, int to)
{
    const struct pipe_instr in = b->s.lists[d].items[from];
    erase(b, d, from);
    OK(schedule_insert(&b->s, d, to, &in));
}

static void test_computing(void **state)
{
    struct bench b;
    (void)state;
    make(&b, PIPE_1F1B);
    erase(&b, 1, find(&b, 1, PIPE_W, 3));
    refused(&b, -EINVAL, "expected once, behind the last W");
    drop(&b);

    make(&b, PIPE_1F1B);
    b.s.lists[0].items[find(&b, 0, PIPE_F, 2)].micro = 1;
    refused(&b, -EINVAL, "device 0, F of micro-batch 1 in stage 0 of chain 0: expected each once");
    drop(&b);

    make(&b, PIPE_1F1B);
    move(&b, 2, find(&b, 2, PIPE_W, 0), find(&b, 2, PIPE_B, 0));
    refused(&b, -EINVAL, "comes before what it needs");
    drop(&b);

    make(&b, PIPE_1F1B);
    b.s.lists[1].items[find(&b, 1, PIPE_F, 0)].stage = 2;
    refused(&b, -EINVAL, "expected each once");
    drop(&b);

    make(&b, PIPE_1F1B);
    erase(&b, 1, find(&b, 1, PIPE_CLIP, 0));
    refused(&b, -EINVAL, "expected all work, then one CLIP");
    drop(&b);

    make(&b, PIPE_SPLIT);
    b.plan.cuts[0].stages[0].slots = 2;
    refused(&b, -EINVAL, "finds no free slot");
    drop(&b);
}

static void test_transfers(void **state)
{
    struct bench b;
    (void)state;
    make(&b, PIPE_1F1B);
    erase(&b, 0, find(&b, 0, PIPE_SEND, 1));
    refused(&b, -EDEADLK, "device 0 waits before instruction 10, B of micro-batch 0");
    drop(&b);

    make(&b, PIPE_1F1B); /* nobody needs what was sent for nothing */
    OK(schedule_insert(
        &b.s, 0, b.s.lists[0].n - 2,
        &(struct pipe_instr){
            .op = PIPE_SEND, .what = PIPE_STATES, .micro = 9, .peer = 1, .count = 8}));
    refused(&b, -EINVAL, "SEND of micro-batch 9 in stage 0 of chain 0: nobody is at the other end");
    drop(&b);

    make(&b, PIPE_1F1B); /* stage 0 waits for the gradient of what stage 1 does not have yet */
    const int first = find(&b, 0, PIPE_SEND, 0);
    move(&b, 0, first, find(&b, 0, PIPE_B, 0));
    refused(&b, -EDEADLK, "is stuck");
    drop(&b);
}

static void test_memory(void **state)
{
    struct bench b;
    (void)state;
    make(&b, PIPE_1F1B);
    for (int i = 0; i < 3; i++)
        b.p.chains[0].layers[i].weight_bytes = 100;
    /* Weights, slots of 8 samples. */
    assert_int_equal(plan_bytes(&b.p, &b.plan, 0), 100 + 4 * 8000);
    assert_int_equal(plan_bytes(&b.p, &b.plan, 1), 100 + 3 * 8000);
    assert_int_equal(plan_bytes(&b.p, &b.plan, 2), 100 + 1 * 8000);
    b.p.devices[1].memory = 24100;
    OK(schedule_check(&b.p, &b.plan, &b.s, err));
    b.p.devices[1].memory--;
    refused(&b, -ENOMEM, "device 1 (cpu:1) needs 23.5 KiB and has 23.5 KiB");
    drop(&b);
}

/* What stages have beside their layers, and devices beside their stages. */
static void test_beside(void **state)
{
    struct bench b;
    (void)state;
    make(&b, PIPE_1F1B);
    const uint64_t load = 8 * (uint64_t)b.plan.cuts[0].micros;
    struct costs_chain *c = &b.p.chains[0];
    c->stage = (struct costs_beside){1000, 10, 1, 100, 50};
    c->first = (struct costs_beside){.load_bytes = 2};
    c->last = (struct costs_beside){.bytes = 5000, .slot_bytes = 7};
    for (int i = 0; i < 3; i++) {
        c->layers[i].gradient_bytes = 3;
        c->layers[i].split_bytes = 4;
    }
    assert_int_equal(plan_bytes(&b.p, &b.plan, 0), 4 * 8 * 1100 + 1000 + 80 + 3 * load);
    assert_int_equal(plan_bytes(&b.p, &b.plan, 1), 3 * 8 * 1100 + 1000 + 80 + load);
    assert_int_equal(plan_bytes(&b.p, &b.plan, 2), 8 * 1107 + 6000 + 80 + load);
    /* On the host the flat copy of the weights, too. */
    b.p.devices[0].kind = b.p.devices[1].kind = COSTS_HOST;
    assert_int_equal(plan_bytes(&b.p, &b.plan, 1),
                     3 * 8 * 1100 + 1080 + load + 3 + costs_workspace(COSTS_HOST, 0, 0));
    /* A card has one more slot for what arrives. */
    b.p.devices[1].kind = COSTS_CARD;
    assert_int_equal(plan_bytes(&b.p, &b.plan, 1),
                     4 * 8 * 1100 + 1080 + load +
                         costs_workspace(COSTS_CARD, 4 * 8 * 1100 + 1080 + load, 0));
    /* Where W runs apart, slots keep what it reads. */
    b.p.devices[1].kind = COSTS_ANY;
    b.plan.order = PIPE_SPLIT;
    assert_int_equal(plan_bytes(&b.p, &b.plan, 1), 3 * 8 * (1100 + 54) + 1080 + load);
    /* What frozen networks made waits everywhere. */
    b.p.n_frozen = 1;
    b.p.frozen[0].out_bytes = 9;
    assert_int_equal(plan_trained_bytes(&b.p, &b.plan, 1),
                     3 * 8 * (1100 + 54) + 1080 + load + 9 * (load + 1));
    b.p.n_frozen = 0;
    drop(&b);
}

static struct pipe_instr frozen(int from, int to, int first, int count)
{
    return (struct pipe_instr){
        .op = PIPE_FROZEN, .from = from, .to = to, .first = first, .count = count};
}

static void test_frozen(void **state)
{
    struct bench b;
    (void)state;
    make(&b, PIPE_1F1B);
    pipes_frozen(&b.p, 1);
    for (int l = 0; l < 25; l++)
        b.p.frozen[0].layers[l] = (struct costs_frozen_layer){{{1}}, 10, 3};
    const struct pipe_instr most = frozen(0, 25, 0, 20), half = frozen(0, 9, 20, 12),
                            rest = frozen(9, 25, 20, 12);
    OK(schedule_insert(&b.s, 0, 1, &most));
    refused(&b, -EINVAL, "sample 20 goes through 0 of 25 layers of frozen");
    OK(schedule_insert(&b.s, 2, 1, &half));
    refused(&b, -EINVAL, "sample 20 goes through 9 of 25");
    OK(schedule_insert(&b.s, 2, 4, &rest));
    OK(schedule_check(&b.p, &b.plan, &b.s, err));
    b.plan.bare[1] = true;
    assert_int_equal(plan_bytes(&b.p, &b.plan, 2),
                     plan_trained_bytes(&b.p, &b.plan, 2) + 250 + FILL_UNDERWAY * 3);
    assert_int_equal(plan_bytes(&b.p, &b.plan, 1), plan_trained_bytes(&b.p, &b.plan, 1));
    move(&b, 2, 4, 1);
    refused(&b, -EINVAL, "a sample is not where this begins");
    erase(&b, 2, 1);
    OK(schedule_insert(&b.s, 0, 2, &rest)); /* the samples are on device 2 */
    refused(&b, -EINVAL, "a sample is not where this begins");
    b.s.lists[0].items[2].first = 21;
    refused(&b, -EINVAL, "no such samples");
    drop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_computing), cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_memory),    cmocka_unit_test(test_beside),
        cmocka_unit_test(test_frozen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
