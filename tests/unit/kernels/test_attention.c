/* Fused attention against its reference, odd sizes included.
 *
 * Tolerance: f32 differs by the order of sums.  In bf16 the fast path rounds the
 * probabilities (and in the backward the score gradients) to bf16 before they multiply,
 * which is 2^-9 relative per term and averages out over T; the output itself is rounded
 * to bf16.  0.02 of the typical size bounds both. */
#include "tests/unit/kernels/guard.h"

struct shape {
    int B, T, H, D;
    int Hkv; /* 0: H */
    enum { FULL, CAUSAL, DOCUMENTS } mask;
    int past; /* keys of the cache before the first query; forward only */
};

static const struct shape shapes[] = {
    {1, 1, 1, 1},
    {2, 3, 2, 5},
    {1, 64, 2, 64},
    {2, 16, 3, 32},
    {1, 65, 2, 40},
    {1, 130, 1, 8},
    {1, 33, 2, 72},
    {1, 200, 1, 128},
    {2, 7, 1, 127},
    {1, 257, 1, 64},
    {1, 1, 2, 4, 1, CAUSAL},
    {2, 70, 4, 32, 2, CAUSAL},
    {1, 257, 3, 16, 1, CAUSAL},
    {2, 40, 6, 20, 2, FULL},
    {2, 128, 2, 64}, /* from here on three whose backward cuDNN takes */
    {1, 256, 2, 72},
    {2, 128, 4, 32, 2, CAUSAL},
    {3, 128, 2, 64, 0, DOCUMENTS},
    {2, 203, 4, 33, 2, DOCUMENTS},
    {25, 50, 2, 16, 1, DOCUMENTS}, /* whole samples to a task */
    {1, 1, 4, 32, 2, CAUSAL, 99},
    {2, 5, 4, 24, 1, CAUSAL, 64},
    {3, 37, 2, 7, 2, DOCUMENTS, 30},
    {2, 9, 2, 16, 1, FULL, 50},
};

static float tolerance(enum dtype dt)
{
    return dt == DT_BF16 ? 0.02f : 2e-5f;
}

/* Documents of random lengths, some longer than a block of keys. */
static int32_t *random_starts(const struct shape *s)
{
    int32_t *start = guard_new((size_t)(s->B * s->T) * sizeof *start);
    for (int b = 0; b < s->B; b++) {
        int32_t first = (int32_t)(guard_rng() % (uint64_t)(s->past + 1));
        for (int t = 0; t < s->T; t++) {
            if (guard_rng() % 40 == 0)
                first = s->past + t;
            start[b * s->T + t] = first;
        }
    }
    return start;
}

static struct attention_fwd make_fwd(const struct shape *s, enum dtype dt)
{
    int Hkv = s->Hkv ? s->Hkv : s->H, keys = s->past + s->T;
    size_t es = dtype_bytes(dt), n = (size_t)(s->B * s->T * s->D);
    struct attention_fwd f = {.B = s->B, .T = s->T, .H = s->H, .D = s->D, .Hkv = s->Hkv, .dt = dt};
    f.causal = s->mask != FULL;
    f.start = s->mask == DOCUMENTS ? random_starts(s) : NULL;
    f.qkv = guard_randn(n * (size_t)(s->H + 2 * Hkv), dt, 1.5f);
    f.o = guard_new(n * (size_t)s->H * es);
    f.lse = guard_new((size_t)(s->B * s->H * s->T) * 4);
    if (!s->past)
        return f;
    /* The cache has room for two more keys; what lies there is not read. */
    size_t row = (size_t)(2 * Hkv * s->D), stride = (size_t)(keys + 2) * row;
    void *kv = guard_randn((size_t)s->B * stride, dt, 1.5f);
    for (size_t b = 0; b < (size_t)s->B; b++)
        for (size_t i = (size_t)keys * row; i < stride; i++)
            dtype_set(kv, dt, b * stride + i, NAN);
    f.kv = kv;
    f.kv_stride = (int64_t)stride;
    f.Tk = keys;
    return f;
}

/* Both backwards start from the same forward. */
static void compare_bwd(struct devices *d, const struct attention_fwd *f)
{
    int Hkv = f->Hkv ? f->Hkv : f->H;
    size_t n = (size_t)(f->B * f->T * f->H * f->D), es = dtype_bytes(f->dt);
    size_t all = (size_t)(f->B * f->T * (f->H + 2 * Hkv) * f->D);
    struct attention_bwd b = {.B = f->B, .T = f->T, .H = f->H, .D = f->D, .Hkv = f->Hkv};
    b.dt = f->dt;
    b.causal = f->causal;
    b.start = f->start;
    b.d_o = guard_randn(n, f->dt, 1);
    b.o = f->o;
    b.lse = f->lse;
    b.qkv = f->qkv;
    void *g0 = b.dqkv = guard_new(all * es);
    assert_int_equal(d->ref->ops->attention_bwd(d->ref, &b, NULL), 0);
    void *g1 = b.dqkv = guard_new(all * es);
    assert_int_equal(d->fast->ops->attention_bwd(d->fast, &b, NULL), 0);
    float share = sqrtf((float)(f->H / Hkv));
    guard_close("dqkv", g1, g0, all, f->dt, 2 * tolerance(f->dt) * share, 0.02f);
}

static void compare(struct devices *d, const struct shape *s, enum dtype dt)
{
    size_t n = (size_t)(s->B * s->T * s->H * s->D), rows = (size_t)(s->B * s->H * s->T);
    struct attention_fwd f = make_fwd(s, dt);
    assert_int_equal(d->ref->ops->attention_fwd(d->ref, &f, NULL), 0);
    struct attention_fwd g = f;
    g.o = guard_new(n * dtype_bytes(dt));
    g.lse = guard_new(rows * 4);
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &g, NULL), 0);
    guard_close("o", g.o, f.o, n, dt, tolerance(dt), 0.01f);
    guard_close("lse", g.lse, f.lse, rows, DT_F32, 1e-4f, 1e-5f);
    g.lse = NULL;
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &g, NULL), 0);
    if (!s->past)
        compare_bwd(d, &f);
    guard_check_all();
}

static void matches_reference(void **state)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        compare(*state, &shapes[i], DT_F32);
        compare(*state, &shapes[i], DT_BF16);
    }
}

/* What a query may not see changes nothing, to the bit: later keys, and other documents. */
static void masked_keys_do_not_matter(void **state)
{
    struct devices *d = *state;
    enum { T = 150, H = 2, D = 16, CUT = 61, LD = (H + 2) * D, N = T * H * D };
    for (int dt = DT_F32; dt <= DT_BF16; dt++) {
        size_t es = dtype_bytes((enum dtype)dt);
        int32_t *start = guard_new(T * sizeof *start);
        for (int t = 0; t < T; t++)
            start[t] = t < CUT ? 0 : CUT;
        void *qkv = guard_randn(T * LD, (enum dtype)dt, 1);
        char *first = guard_new(N * es), *second = guard_new(N * es);
        struct attention_fwd f = {.o = first, .qkv = qkv, .start = start, .causal = true};
        f.B = f.Hkv = 1;
        f.T = T;
        f.H = H;
        f.D = D;
        f.dt = (enum dtype)dt;
        assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);
        /* Another first document and another last token. */
        for (int i = 0; i < CUT * LD; i++)
            dtype_set(qkv, f.dt, (size_t)i, guard_rand());
        for (int i = (T - 1) * LD; i < T * LD; i++)
            dtype_set(qkv, f.dt, (size_t)i, guard_rand());
        f.o = second;
        assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);
        size_t from = (size_t)(CUT * H * D) * es, to = (size_t)((T - 1) * H * D) * es;
        assert_memory_equal(first + from, second + from, to - from);
        assert_memory_not_equal(first, second, from);
        guard_check_all();
    }
}

/* Token by token through a cache gives what one pass over the sequence gives. */
static void cache_continues(void **state)
{
    struct devices *d = *state;
    enum { T = 40, H = 4, HKV = 2, D = 8, LD = (H + 2 * HKV) * D, KV = 2 * HKV * D, CUT = 33 };
    float *qkv = guard_randn(T * LD, DT_F32, 1), *kv = guard_new(T * KV * 4);
    float *whole = guard_new(T * H * D * 4), *parts = guard_new(T * H * D * 4);
    struct attention_fwd f = {.o = whole, .qkv = qkv, .B = 1, .T = T, .H = H, .D = D};
    f.Hkv = HKV;
    f.causal = true;
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);
    for (int t = 0; t < T; t++)
        memcpy(kv + t * KV, qkv + t * LD + H * D, KV * 4);
    f.kv = kv;
    f.kv_stride = T * KV;
    for (int t = 0; t < T; t += f.T) {
        f.T = t < CUT ? CUT : 1;
        f.Tk = t + f.T;
        f.qkv = qkv + t * LD;
        f.o = parts + t * H * D;
        assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);
    }
    guard_close("o", parts, whole, T * H * D, DT_F32, 1e-5f, 1e-5f);
    guard_check_all();
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
    f = (struct attention_fwd){.B = 1, .T = 4, .H = 3, .D = 8, .Hkv = 2};
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), -22);
    const int32_t *ahead = guard_of(int32_t, 0, 2), *fine = guard_of(int32_t, 0, 1);
    float *x = guard_randn(2 * 3 * 8, DT_F32, 1), *o = guard_new(2 * 8 * sizeof *o);
    f = (struct attention_fwd){.B = 1, .T = 2, .H = 1, .D = 8, .qkv = x, .o = o, .start = ahead};
    f.causal = true;
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), -22);
    f.start = fine;
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);
    f.causal = false;
    assert_int_equal(d->ref->ops->attention_fwd(d->ref, &f, NULL), -22);
    f = (struct attention_fwd){.B = 1, .T = 4, .Tk = 3, .H = 1, .D = 8, .qkv = x, .kv = x};
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), -22);
    f = (struct attention_fwd){.B = 0, .T = 8, .H = 1, .D = 8};
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);
    guard_check_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_reference),  cmocka_unit_test(masked_keys_do_not_matter),
        cmocka_unit_test(cache_continues),    cmocka_unit_test(large_scores),
        cmocka_unit_test(heads_are_separate), cmocka_unit_test(refuses_impossible),
    };
    return cmocka_run_group_tests(tests, devices_setup, devices_teardown);
}
