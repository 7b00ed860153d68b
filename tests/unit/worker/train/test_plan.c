/* The planner against what the trainer says: sums, the fewest micro-batches, refusals. */
#include "tests/unit/worker/tiny.h"

#include <errno.h>
#include <string.h>

#include "kernels/kernels.h"
#include "worker/net/experts.h"
#include "worker/train/plan.h"

#define MIB (UINT64_C(1) << 20)

/* A model whose activations outweigh all that is fixed. */
static struct model *wide(void)
{
    struct model_spec s = tiny_spec();
    struct model *m = NULL;
    s.image = 64;
    s.dim = 96;
    s.mlp = 384;
    OK(model_new(&s, &m, err));
    return m;
}

static struct train_options options(int batch, int accumulate, bool automatic)
{
    struct train_options o = tiny_options();
    o.batch = batch;
    o.accumulate = accumulate;
    o.accumulate_auto = automatic;
    return o;
}

/* A card with so many bytes free after the reserve, or a few more. */
static struct plan_room card(uint64_t bytes)
{
    return (struct plan_room){.free = bytes + bytes / 15 + 16, .known = true, .device = "cuda:7"};
}

static struct plan plan_of(const struct model *m, struct train_options o)
{
    const struct plan_room any = {.device = "cuda:7"};
    struct plan p;
    OK(plan_train(m, &o, DT_BF16, &any, &p, err));
    return p;
}

static void test_need(void **state)
{
    struct model *m = wide();
    struct train_options o = options(8, 2, false);
    const struct plan p = plan_of(m, o);
    const struct plan_room host = {.host = true, .device = "cpu"};
    struct plan on_host;
    assert_int_equal(p.weights, m->flat * 6);
    assert_int_equal(p.gradients, m->flat * 4);
    assert_true(p.optimiser >= m->flat * 8 && p.optimiser < m->flat * 8 + 4096);
    assert_int_equal(p.weights + p.gradients + p.optimiser + p.activations,
                     trainer_bytes(m, &o, DT_BF16));
    assert_int_equal(p.need, trainer_bytes(m, &o, DT_BF16) + p.workspace);
    assert_true(p.workspace > 0);
    OK(plan_train(m, &o, DT_BF16, &host, &on_host, err));
    assert_true(on_host.workspace >= m->flat * 4);
    model_free(m);
}

static int micro(int parts)
{
    return (16 + parts - 1) / parts;
}

/* With room for exactly what k parts need, k parts it is; with one byte less, more, or in the end
 * lean ones. */
static void test_fewest(void **state)
{
    struct model *m = wide();
    const int parts[] = {1, 2, 3, 4, 8, 16};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct train_options o = options(16, 1, true);
        const uint64_t need = plan_of(m, options(16, parts[i], false)).need;
        struct plan_room room = card(need);
        struct plan p;
        OK(plan_train(m, &o, DT_BF16, &room, &p, err));
        assert_int_equal(micro(p.accumulate), micro(parts[i]));
        assert_int_equal(p.need, need);
        while (plan_room_bytes(&room) >= need)
            room.free--;
        OK(plan_train(m, &o, DT_BF16, &room, &p, err));
        assert_true(p.need <= p.room);
        if (parts[i] == 16) /* there are no more */
            assert_true(p.lean && p.accumulate == 16);
        else
            assert_true(micro(p.accumulate) < micro(parts[i]));
    }
    model_free(m);
}

/* A few micro-batches more move less than GELUs made twice; many more do not. */
static void test_lean(void **state)
{
    struct model_spec s = tiny_spec();
    struct model *m = NULL;
    struct plan p;
    int lean = 0, plain = 0;
    s.image = 64;
    s.dim = 384; /* so many parameters that micro-batches are dear */
    s.mlp = 4 * s.dim;
    OK(model_new(&s, &m, err));
    struct train_options o = options(64, 1, true);
    for (int parts = 1; parts <= 64; parts++) {
        struct train_options asked = options(64, parts, false);
        asked.lean = true;
        const struct plan_room room = card(plan_of(m, asked).need);
        OK(plan_train(m, &o, DT_BF16, &room, &p, err));
        assert_true(p.need <= p.room);
        lean += p.lean && p.accumulate > 1;
        plain += !p.lean && p.accumulate > 1;
    }
    assert_true(lean > 0 && plain > 0);
    o.recompute = true; /* keeps less than that anyway */
    struct train_options small = options(64, 64, false);
    small.recompute = true;
    const struct plan_room room = card(plan_of(m, small).need);
    OK(plan_train(m, &o, DT_BF16, &room, &p, err));
    assert_false(p.lean);
    model_free(m);
}

/* What is asked for is taken, however much room there is. */
static void test_asked(void **state)
{
    struct model *m = wide();
    struct train_options o = options(16, 4, false);
    struct plan_room room = card(UINT64_C(1) << 40);
    struct plan p;
    OK(plan_train(m, &o, DT_BF16, &room, &p, err));
    assert_int_equal(p.accumulate, 4);
    o = options(16, 1, true);
    OK(plan_train(m, &o, DT_BF16, &room, &p, err));
    assert_int_equal(p.accumulate, 1);
    model_free(m);
}

static void refused(const struct model *m, struct train_options o, uint64_t bytes,
                    const char *sentence)
{
    struct plan_room room = card(bytes);
    struct plan p;
    struct err err = {0};
    assert_int_equal(plan_train(m, &o, DT_BF16, &room, &p, &err), -ENOMEM);
    if (!strstr(err.msg, sentence))
        fail_msg("\"%s\" lacks \"%s\"", err.msg, sentence);
    assert_non_null(strstr(err.msg, " on cuda:7 ("));
    assert_true(strlen(err.msg) < 256); /* or the coordinator cuts it */
}

static void test_refusals(void **state)
{
    struct model *m = wide();
    const uint64_t whole = plan_of(m, options(16, 1, false)).need;
    const uint64_t least = plan_of(m, options(16, 16, false)).need;
    struct train_options recompute = options(16, 16, false);
    recompute.recompute = true;
    const uint64_t small = plan_of(m, recompute).need;
    assert_true(small < least && least < whole);
    refused(m, options(16, 1, false), (whole + least) / 2, "; train.accumulate: auto (");
    refused(m, options(16, 1, true), (least + small) / 2, "; train.recompute: true needs ");
    refused(m, options(16, 1, false), (least + small) / 2,
            "; train.recompute: true with train.accumulate: auto needs ");
    refused(m, options(16, 1, true), small / 2, "a smaller model or a larger device");
    model_free(m);
}

/* One memory that four devices share holds the step on two of them. */
static void test_fewer_devices(void **state)
{
    struct model *m = wide();
    const struct train_options one = options(1, 1, true);
    struct plan_room room = {.host = true, .device = "cpu"};
    struct plan p;
    struct err e = {0};
    OK(plan_train(m, &one, DT_BF16, &room, &p, err));
    room = card(2 * p.need + 2 * MIB); /* what is loaded grows with the batch */
    room.host = true;
    room.sharers = 4;
    room.free = room.free / 4 + 1;
    assert_int_equal(plan_train(m, &one, DT_BF16, &room, &p, &e), -ENOMEM);
    if (!strstr(e.msg, "; 2 of the 4 devices would do with "))
        fail_msg("%s", e.msg);
    assert_true(strlen(e.msg) < 256);
    room.free /= 2;
    assert_int_equal(plan_train(m, &one, DT_BF16, &room, &p, &e), -ENOMEM);
    if (!strstr(e.msg, "; 1 of the 4 devices would do with "))
        fail_msg("%s", e.msg);
    room.free /= 2;
    assert_int_equal(plan_train(m, &one, DT_BF16, &room, &p, &e), -ENOMEM);
    assert_null(strstr(e.msg, "of the 4 devices"));
    model_free(m);
}

/* Of distillation: the teachers' network with one of them loaded, for the same rows. */
static void test_teachers(void **state)
{
    struct model *m = wide();
    struct train_options o = options(16, 4, false);
    const struct plan alone = plan_of(m, o);
    o.distill = true;
    const struct plan p = plan_of(m, o);
    assert_int_equal(alone.teachers, 0);
    assert_int_equal(p.teachers, experts_bytes(m, 4, DT_BF16));
    assert_true(p.teachers > m->flat * 6);
    assert_true(p.need >= alone.need + p.teachers);
    refused(m, o, alone.need, " of a teacher), ");
    model_free(m);
}

/* What replicas that are kept hold counts as free. */
static void test_kept(void **state)
{
    struct model *m = wide();
    struct train_options o = options(16, 1, false);
    struct plan p;
    struct plan_room room = card(plan_of(m, o).need);
    struct err e = {0};
    room.kept = room.free / 2;
    room.free -= room.kept;
    OK(plan_train(m, &o, DT_BF16, &room, &p, err));
    room.kept = 0;
    assert_int_equal(plan_train(m, &o, DT_BF16, &room, &p, &e), -ENOMEM);
    model_free(m);
}

static void test_reserve(void **state)
{
    struct plan_room room = {.free = 1600, .known = true};
    assert_int_equal(plan_room_bytes(&room), 1500);
    room.free = UINT64_C(100) << 30;
    assert_int_equal(plan_room_bytes(&room), UINT64_C(99) << 30);
    room.known = false;
    assert_true(plan_room_bytes(&room) == UINT64_MAX);
}

static void test_smaller(void **state)
{
    struct train_options o = options(5, 1, true);
    int next = 0;
    assert_true(plan_smaller(&o, &next) && next == 2);
    o.accumulate = 3;
    assert_true(plan_smaller(&o, &next) && next == 5);
    o.accumulate = 5;
    assert_false(plan_smaller(&o, &next));
    o = options(5, 1, false);
    assert_false(plan_smaller(&o, &next));
}

static int says(struct device *dev, uint64_t *ret_free, uint64_t *ret_total)
{
    *ret_free = (uint64_t)dev->threads * 1000;
    return dev->threads ? 0 : -ERR_DEVICE;
}

/* The tightest card; CPU ranks share one memory; a device that says nothing. */
static void test_room(void **state)
{
    const struct kernel_ops ops = {.memory = says};
    struct device a = {.ops = &ops, .name = "cuda:0", .threads = 9};
    struct device b = {.ops = &ops, .name = "cuda:1", .threads = 4};
    struct plan_room room;
    plan_room((struct device *const[]){&a, &b}, 2, &room);
    assert_true(room.known && !room.host && room.free == 4000);
    assert_string_equal(room.device, "cuda:1");
    a.unified = b.unified = true;
    plan_room((struct device *const[]){&a, &b}, 2, &room);
    assert_true(room.host && room.free == 2000 && room.sharers == 2);
    b.threads = 0;
    plan_room((struct device *const[]){&b}, 1, &room);
    assert_true(!room.known && plan_room_bytes(&room) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_need),          cmocka_unit_test(test_fewest),
        cmocka_unit_test(test_lean),          cmocka_unit_test(test_asked),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_teachers),
        cmocka_unit_test(test_fewer_devices), cmocka_unit_test(test_kept),
        cmocka_unit_test(test_reserve),       cmocka_unit_test(test_smaller),
        cmocka_unit_test(test_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
