/* Fused attention against its reference, odd sizes included.
 *
 * Tolerance: f32 differs by the order of sums.  In bf16 the fast path rounds the
 * probabilities (and in the backward the score gradients) to bf16 before they multiply,
 * which is 2^-9 relative per term and averages out over T; the output itself is rounded
 * to bf16.  0.02 of the typical size bounds both. */
#include "tests/unit/kernels/guard.h"

struct shape {
    int B, T, H, D;
};

static const struct shape shapes[] = {
    {1, 1, 1, 1},   {2, 3, 2, 5},   {1, 64, 2, 64},   {2, 16, 3, 32}, {1, 65, 2, 40},
    {1, 130, 1, 8}, {1, 33, 2, 72}, {1, 200, 1, 128}, {2, 7, 1, 127}, {1, 257, 1, 64},
};

static float tolerance(enum dtype dt)
{
    return dt == DT_BF16 ? 0.02f : 2e-5f;
}

static void compare(struct devices *d, const struct shape *s, enum dtype dt)
{
    size_t n = (size_t)(s->B * s->T * s->H * s->D), es = dtype_bytes(dt);
    size_t rows = (size_t)(s->B * s->H * s->T);
    struct attention_fwd f = {.B = s->B, .T = s->T, .H = s->H, .D = s->D, .dt = dt};
    f.qkv = guard_randn(3 * n, dt, 1.5f);
    void *o0 = f.o = guard_new(n * es);
    float *lse0 = f.lse = guard_new(rows * 4);
    assert_int_equal(d->ref->ops->attention_fwd(d->ref, &f, NULL), 0);
    void *o1 = f.o = guard_new(n * es);
    float *lse1 = f.lse = guard_new(rows * 4);
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);
    guard_close("o", o1, o0, n, dt, tolerance(dt), 0.01f);
    guard_close("lse", lse1, lse0, rows, DT_F32, 1e-4f, 1e-5f);
    f.lse = NULL;
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);

    /* Both backwards start from the same forward. */
    struct attention_bwd b = {.B = s->B, .T = s->T, .H = s->H, .D = s->D, .dt = dt};
    b.d_o = guard_randn(n, dt, 1);
    b.o = o0;
    b.lse = lse0;
    b.qkv = f.qkv;
    void *g0 = b.dqkv = guard_new(3 * n * es);
    assert_int_equal(d->ref->ops->attention_bwd(d->ref, &b, NULL), 0);
    void *g1 = b.dqkv = guard_new(3 * n * es);
    assert_int_equal(d->fast->ops->attention_bwd(d->fast, &b, NULL), 0);
    guard_close("dqkv", g1, g0, 3 * n, dt, 2 * tolerance(dt), 0.02f);
    guard_check_all();
}

static void matches_reference(void **state)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        compare(*state, &shapes[i], DT_F32);
        compare(*state, &shapes[i], DT_BF16);
    }
}

/* Scores of +-1000 neither overflow nor become NaN, as exp sees differences only. */
static void large_scores(void **state)
{
    struct devices *d = *state;
    enum { T = 20, D = 16 };
    float *qkv = guard_randn(T * 3 * D, DT_F32, 60);
    float *o0 = guard_new(T * D * 4), *o1 = guard_new(T * D * 4);
    struct attention_fwd f = {.o = o0, .qkv = qkv, .B = 1, .T = T, .H = 1, .D = D};
    assert_int_equal(d->ref->ops->attention_fwd(d->ref, &f, NULL), 0);
    f.o = o1;
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);
    guard_close("o", o1, o0, T * D, DT_F32, 2e-2f, 1e-3f);
    guard_check_all();
}

/* A neighbour's NaN stays with the neighbour: padding never leaks between heads. */
static void heads_are_separate(void **state)
{
    struct devices *d = *state;
    for (int dt = DT_F32; dt <= DT_BF16; dt++) {
        enum { T = 5, H = 2 };
        for (int D = 7; D <= 8; D++) {
            size_t n = (size_t)(T * H * D);
            void *qkv = guard_randn(3 * n, (enum dtype)dt, 1);
            void *o = guard_new(n * 4);
            for (int t = 0; t < T; t++)
                for (int i = 0; i < 3 * D; i++)
                    dtype_set(qkv, (enum dtype)dt, (size_t)(((t * 3 + i / D) * H + 1) * D + i % D),
                              NAN);
            struct attention_fwd f = {
                .o = o, .qkv = qkv, .B = 1, .T = T, .H = H, .D = D, .dt = (enum dtype)dt};
            assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);
            for (int t = 0; t < T; t++)
                for (int i = 0; i < D; i++)
                    assert_true(isfinite(dtype_get(o, (enum dtype)dt, (size_t)(t * H * D + i))));
            guard_check_all();
        }
    }
}

static void refuses_impossible(void **state)
{
    struct devices *d = *state;
    struct attention_fwd f = {.B = 1, .T = 4, .H = 1, .D = 129};
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), -22);
    f.D = 0;
    assert_int_equal(d->ref->ops->attention_fwd(d->ref, &f, NULL), -22);
    f = (struct attention_fwd){.B = 1, .T = 5000, .H = 1, .D = 8};
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), -22);
    f = (struct attention_fwd){.B = 0, .T = 8, .H = 1, .D = 8};
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_reference),
        cmocka_unit_test(large_scores),
        cmocka_unit_test(heads_are_separate),
        cmocka_unit_test(refuses_impossible),
    };
    return cmocka_run_group_tests(tests, devices_setup, devices_teardown);
}
