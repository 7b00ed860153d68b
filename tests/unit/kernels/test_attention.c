/* Fused attention against its reference, odd sizes included.
 *
 * Tolerance: f32 differs by the order of sums.  In bf16 the fast path rounds the
 * probabilities (and in the backward the score gradients) to bf16 before they multiply,
 * which is 2^-9 relative per term and averages out over T; the output itself is rounded
 * to bf16.  0.02 of the typical size bounds both. */
#include "tests/unit/kernels/guard.h"

/* Times four heads: several for each multiprocessor, of which the emulated card has four. */
#ifndef HOPPER_SAMPLES
#define HOPPER_SAMPLES 3
#endif

struct shape {
    int B, T, H, D;
    int Hkv; /* 0: H */
    enum { FULL, CAUSAL, DOCUMENTS } mask;
    int past;  /* keys of the cache before the first query; forward only */
    int cross; /* keys that lie apart, with the queries apart as well */
    bool klen; /* keys of each sample's own number */
    bool bias; /* forward only */
    float scale;
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
    {2, 128, 3, 64}, /* from here on three whose backward cuDNN may take */
    {3, 128, 2, 72},
    {2, 128, 4, 32, 2, CAUSAL},
    {3, 128, 2, 64, 0, DOCUMENTS},
    {2, 203, 4, 33, 2, DOCUMENTS},
    {25, 50, 2, 16, 1, DOCUMENTS}, /* whole samples to a task */
    {1, 1, 4, 32, 2, CAUSAL, 99},
    {2, 5, 4, 24, 1, CAUSAL, 64},
    {3, 37, 2, 7, 2, DOCUMENTS, 30},
    {2, 9, 2, 16, 1, FULL, 50},
};

/* What encoders and cross-attention ask for.  D above 128: forward only. */
static const struct shape apart[] = {
    {1, 1, 1, 1, .cross = 1},
    {2, 3, 2, 5, .cross = 7, .klen = true},
    {3, 65, 2, 16, .cross = 77, .klen = true},
    {2, 130, 3, 24, .cross = 33, .klen = true, .scale = 0.5f},
    {5, 64, 6, 64, .cross = 120, .klen = true},
    {2, 40, 4, 8, 2, FULL, .cross = 97, .klen = true},
    {2, 7, 2, 33, .cross = 300, .klen = true},
    {1, 257, 1, 128, .cross = 2},
    {25, 20, 2, 8, .cross = 40, .klen = true}, /* whole samples to a task */
    {2, 20, 4, 16, 2, CAUSAL, .cross = 90, .klen = true},
    {3, 77, 2, 32, 0, CAUSAL, .klen = true},
    {3, 70, 2, 16, .klen = true},
    {2, 128, 2, 64, .scale = 0.3f},
    {2, 45, 3, 16, .bias = true, .scale = 1},
    {3, 130, 2, 64, .bias = true, .klen = true, .scale = 1},
    {2, 50, 4, 12, 2, CAUSAL, .bias = true, .klen = true},
    {2, 30, 2, 7, .cross = 70, .bias = true, .klen = true},
    {1, 9, 2, 16, 1, DOCUMENTS, 50, .bias = true},
    {1, 70, 1, 512, .scale = 0.05f},
    {2, 33, 2, 130, .cross = 45, .klen = true, .bias = true},
    {1, 300, 1, 257},
    {1, 20, 2, 160, 1, CAUSAL, .klen = true},
    {1, 230, 4, 140, 2, CAUSAL, .klen = true},
    {1, 210, 2, 136, 1, DOCUMENTS},
    {2, 3, 1, 8, .cross = 4500, .klen = true, .bias = true},
    {1, 5, 2, 512, .cross = 390},
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

static int keys_of(const struct attention_fwd *f)
{
    return f->kv ? f->Tk : f->T;
}

/* Some keys of each sample, one key of the first; NaN in what lies behind. */
static void cut_keys(struct attention_fwd *f)
{
    const int Hkv = f->Hkv ? f->Hkv : f->H, Tk = keys_of(f), pair = 2 * Hkv * f->D;
    const int ld = f->kv ? pair : f->H * f->D + pair;
    void *rows = (void *)(f->kv ? f->kv : f->qkv);
    int32_t *klen = guard_new((size_t)f->B * sizeof *klen);
    for (int b = 0; b < f->B; b++) {
        klen[b] = b || f->B == 1 ? 1 + (int32_t)(guard_rng() % (uint64_t)Tk) : 1;
        for (int u = klen[b]; u < Tk; u++)
            for (int i = ld - pair; i < ld; i++)
                dtype_set(rows, f->dt,
                          ((size_t)b * (size_t)Tk + (size_t)u) * (size_t)ld + (size_t)i, NAN);
    }
    f->klen = klen;
}

static struct attention_fwd make_fwd(const struct shape *s, enum dtype dt)
{
    int Hkv = s->Hkv ? s->Hkv : s->H, keys = s->cross ? s->cross : s->past + s->T;
    size_t es = dtype_bytes(dt), n = (size_t)(s->B * s->T * s->D);
    struct attention_fwd f = {.B = s->B, .T = s->T, .H = s->H, .D = s->D, .Hkv = s->Hkv, .dt = dt};
    f.causal = s->mask != FULL;
    f.start = s->mask == DOCUMENTS ? random_starts(s) : NULL;
    f.scale = s->scale;
    if (s->cross) {
        f.Tk = s->cross;
        f.q = guard_randn(n * (size_t)s->H, dt, 1.5f);
        f.kv = guard_randn((size_t)(s->B * s->cross * 2 * Hkv * s->D), dt, 1.5f);
    } else {
        f.qkv = guard_randn(n * (size_t)(s->H + 2 * Hkv), dt, 1.5f);
    }
    f.o = guard_new(n * (size_t)s->H * es);
    f.lse = guard_new((size_t)(s->B * s->H * s->T) * 4);
    f.bias = s->bias ? guard_randn((size_t)(s->H * s->T * keys), DT_F32, 2) : NULL;
    if (s->klen)
        cut_keys(&f);
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

/* The backward of a forward, with new outputs: dqkv, or dq with dkv behind it.  Elements. */
static size_t new_grads(const struct attention_fwd *f, struct attention_bwd *b)
{
    const size_t es = dtype_bytes(f->dt), Hkv = (size_t)(f->Hkv ? f->Hkv : f->H);
    const size_t queries = (size_t)(f->B * f->T * f->H * f->D);
    const size_t keys = (size_t)(f->B * keys_of(f)) * 2 * Hkv * (size_t)f->D;
    b->dqkv = guard_new((queries + keys) * es);
    b->dq = f->q ? b->dqkv : NULL;
    b->dkv = f->q ? (char *)b->dqkv + queries * es : NULL;
    if (f->q)
        b->dqkv = NULL;
    return queries + keys;
}

static struct attention_bwd backward_of(const struct attention_fwd *f, const void *d_o)
{
    return (struct attention_bwd){
        .d_o = d_o,
        .o = f->o,
        .lse = f->lse,
        .qkv = f->qkv,
        .q = f->q,
        .kv = f->kv,
        .start = f->start,
        .klen = f->klen,
        .scale = f->scale,
        .B = f->B,
        .T = f->T,
        .H = f->H,
        .D = f->D,
        .Hkv = f->Hkv,
        .Tk = f->Tk,
        .causal = f->causal,
        .dt = f->dt,
    };
}

/* Both backwards start from the same forward. */
static void compare_bwd(struct devices *d, const struct attention_fwd *f)
{
    int Hkv = f->Hkv ? f->Hkv : f->H;
    size_t n = (size_t)(f->B * f->T * f->H * f->D);
    struct attention_bwd b = backward_of(f, guard_randn(n, f->dt, 1));
    size_t all = new_grads(f, &b);
    void *g0 = f->q ? b.dq : b.dqkv;
    assert_int_equal(d->ref->ops->attention_bwd(d->ref, &b, NULL), 0);
    new_grads(f, &b);
    void *g1 = f->q ? b.dq : b.dqkv;
    assert_int_equal(d->fast->ops->attention_bwd(d->fast, &b, NULL), 0);
    /* Sums over the queries of a key; for few keys those are the larger sums. */
    float terms = (float)(f->H / Hkv) * fmaxf(1, (float)f->T / (float)keys_of(f));
    guard_close("gradient", g1, g0, all, f->dt, 2 * tolerance(f->dt) * sqrtf(terms), 0.02f);
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
    if (!s->past && !s->bias && s->D <= 128 && keys_of(&f) <= 4096)
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

/* The shape of our own backward for Hopper; tests/gpu/run.sh sanitises the functions of it. */
static void matches_reference_on_hopper(void **state)
{
    const struct shape s = {2, 256, 3, 72};
    compare(*state, &s, DT_F32);
    compare(*state, &s, DT_BF16);
}

/* The same kernel, of which a block does one head after the other: each sample alone, whose heads
 * are all the first of their blocks, gives the same bits.  The scale keeps cuDNN away. */
static void batches_do_not_matter_on_hopper(void **state)
{
    enum { T = 256, H = 4, D = 72, ROW = T * H * D, N = HOPPER_SAMPLES * ROW, BYTES = ROW * 3 * 2 };
    struct devices *d = *state;
    struct attention_bwd b = {.T = T, .H = H, .D = D, .scale = 0.1f, .dt = DT_BF16};
    const char *qkv = guard_randn(3 * N, DT_BF16, 1), *o = guard_randn(N, DT_BF16, 1);
    const char *d_o = guard_randn(N, DT_BF16, 1);
    const float *lse = guard_randn(HOPPER_SAMPLES * H * T, DT_F32, 1);
    char *all = guard_new((size_t)HOPPER_SAMPLES * BYTES), *alone = guard_new(BYTES);
    for (int i = -1; i < HOPPER_SAMPLES; i++) {
        const size_t at = i < 0 ? 0 : (size_t)i;
        b.B = i < 0 ? HOPPER_SAMPLES : 1;
        b.dqkv = i < 0 ? all : memset(alone, 0xff, BYTES);
        b.qkv = qkv + at * BYTES;
        b.o = o + at * ROW * 2;
        b.d_o = d_o + at * ROW * 2;
        b.lse = lse + at * H * T;
        assert_int_equal(d->fast->ops->attention_bwd(d->fast, &b, NULL), 0);
        if (i >= 0)
            assert_memory_equal(alone, all + at * BYTES, BYTES);
    }
    guard_check_all();
}

static void matches_reference_apart(void **state)
{
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++) {
        compare(*state, &apart[i], DT_F32);
        compare(*state, &apart[i], DT_BF16);
    }
}

/* One element of the output by the definition, in f64. */
static double defined(const struct attention_fwd *f, int b, int t, int h, int d)
{
    const float *q = (const float *)f->q + ((b * f->T + t) * f->H + h) * f->D, *kv = f->kv;
    double sum = 0, out = 0;
    for (int u = 0; u < f->klen[b]; u++) {
        const float *k = kv + ((b * f->Tk + u) * 2 * f->H + h) * f->D;
        double score = 0;
        for (int i = 0; i < f->D; i++)
            score += (double)q[i] * (double)k[i];
        score = exp(score * (double)f->scale + (double)f->bias[(h * f->T + t) * f->Tk + u]);
        sum += score;
        out += score * (double)k[f->H * f->D + d];
    }
    return out / sum;
}

/* The reference itself: separate queries, klen, bias and scale. */
static void reference_is_the_definition(void **state)
{
    struct devices *d = *state;
    const struct shape s = {3, 6, 2, 5, .cross = 9, .klen = true, .bias = true, .scale = 0.4f};
    struct attention_fwd f = make_fwd(&s, DT_F32);
    assert_int_equal(d->ref->ops->attention_fwd(d->ref, &f, NULL), 0);
    for (int i = 0; i < s.B * s.T * s.H * s.D; i++) {
        int h = i / s.D % s.H, t = i / s.D / s.H % s.T;
        double want = defined(&f, i / s.D / s.H / s.T, t, h, i % s.D);
        assert_true(fabs((double)((const float *)f.o)[i] - want) < 1e-5);
    }
    guard_check_all();
}

/* Gradients of the keys that count, by the last sample alone; the others' are 0. */
static void hidden_keys_have_no_gradient(void **state)
{
    struct devices *d = *state;
    const struct shape s = {2, 40, 2, 16, .cross = 70, .klen = true};
    for (int dt = DT_F32; dt <= DT_BF16; dt++)
        for (int fast = 0; fast < 2; fast++) {
            struct device *dev = fast ? d->fast : d->ref;
            struct attention_fwd f = make_fwd(&s, (enum dtype)dt);
            assert_int_equal(dev->ops->attention_fwd(dev, &f, NULL), 0);
            const size_t n = (size_t)(s.B * s.T * s.H * s.D), row = (size_t)(2 * s.H * s.D);
            struct attention_bwd b = backward_of(&f, guard_randn(n, f.dt, 1));
            new_grads(&f, &b);
            assert_int_equal(dev->ops->attention_bwd(dev, &b, NULL), 0);
            for (size_t u = 0; u < (size_t)(s.B * s.cross); u++) {
                bool counts = (int)u % s.cross < f.klen[(int)u / s.cross], zero = true;
                for (size_t i = 0; i < row; i++)
                    zero = zero && dtype_get(b.dkv, f.dt, u * row + i) == 0;
                assert_int_equal(zero, !counts);
            }
            guard_check_all();
        }
}

/* The last sample of a batch, alone, with the keys that count alone, on one thread: same bits. */
static void batches_do_not_matter(void **state)
{
    static const struct shape cases[] = {
        {9, 100, 2, 24, .cross = 77, .klen = true},
        {40, 20, 2, 16, .klen = true},
        {3, 50, 1, 200, .cross = 90, .klen = true},
    };
    struct devices *d = *state;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const struct shape *s = &cases[i / 2];
        struct attention_fwd f = make_fwd(s, i % 2 ? DT_BF16 : DT_F32), one;
        const size_t es = dtype_bytes(f.dt), last = (size_t)s->B - 1, Tk = (size_t)keys_of(&f);
        const size_t q = (size_t)(s->T * s->H * s->D) * es,
                     kv = Tk * (size_t)(2 * s->H * s->D) * es;
        const void *d_o = guard_randn((size_t)s->B * q / es, f.dt, 1);
        struct attention_bwd b = backward_of(&f, d_o), b1;
        struct device *single;
        assert_int_equal(device_open(GUARD_DEVICE, 1, &single, NULL), 0);
        new_grads(&f, &b);
        assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);
        one = f;
        one.B = 1;
        one.klen = f.klen + last;
        one.qkv = f.qkv ? (const char *)f.qkv + last * (q + kv) : NULL;
        one.q = f.q ? (const char *)f.q + last * q : NULL;
        one.kv = f.kv ? (const char *)f.kv + last * kv : NULL;
        one.o = guard_new(q);
        one.lse = guard_new((size_t)(s->H * s->T) * 4);
        single->profile = d->fast->profile;
        assert_int_equal(single->ops->attention_fwd(single, &one, NULL), 0);
        assert_memory_equal(one.o, (char *)f.o + last * q, q);
        assert_memory_equal(one.lse, f.lse + last * (size_t)(s->H * s->T),
                            (size_t)(s->H * s->T) * 4);
        if (s->D <= 128) {
            b1 = backward_of(&one, (const char *)d_o + last * q);
            new_grads(&one, &b1);
            assert_int_equal(d->fast->ops->attention_bwd(d->fast, &b, NULL), 0);
            assert_int_equal(single->ops->attention_bwd(single, &b1, NULL), 0);
            if (f.q) {
                assert_memory_equal(b1.dq, (char *)b.dq + last * q, q);
                assert_memory_equal(b1.dkv, (char *)b.dkv + last * kv, kv);
            } else {
                assert_memory_equal(b1.dqkv, (char *)b.dqkv + last * (q + kv), q + kv);
            }
        }
        device_close(single);
        guard_check_all();
    }
}

/* A bias of -infinity hides a key, be it a whole block of them. */
static void bias_hides_keys(void **state)
{
    struct devices *d = *state;
    enum { T = 5, TK = 300, HIDDEN = 140 };
    for (int D = 16; D <= 160; D += 144) {
        const size_t n = (size_t)(T * D), pair = (size_t)(2 * D);
        float *kv = guard_randn(TK * pair, DT_F32, 1), *bias = guard_new(T * TK * 4);
        float *o0 = guard_new(n * 4), *o1 = guard_new(n * 4);
        for (int i = 0; i < T * TK; i++)
            bias[i] = i % TK < HIDDEN ? -INFINITY : 0;
        struct attention_fwd f = {.o = o0, .q = guard_randn(n, DT_F32, 1), .kv = kv, .bias = bias};
        f.B = f.H = 1;
        f.T = T;
        f.Tk = TK;
        f.D = D;
        assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);
        f.o = o1;
        f.kv = kv + HIDDEN * pair;
        f.Tk = TK - HIDDEN;
        f.bias = NULL;
        assert_int_equal(d->ref->ops->attention_fwd(d->ref, &f, NULL), 0);
        guard_close("o", o0, o1, n, DT_F32, 2e-5f, 1e-5f);
        guard_check_all();
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

static int try_fwd(struct devices *d, struct attention_fwd f)
{
    int rc = d->ref->ops->attention_fwd(d->ref, &f, NULL);
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), rc);
    return rc;
}

static int try_bwd(struct devices *d, struct attention_bwd b)
{
    int rc = d->ref->ops->attention_bwd(d->ref, &b, NULL);
    assert_int_equal(d->fast->ops->attention_bwd(d->fast, &b, NULL), rc);
    return rc;
}

#define TRY_FWD(d, ...) try_fwd(d, (struct attention_fwd){__VA_ARGS__})
#define TRY_BWD(d, ...) try_bwd(d, (struct attention_bwd){__VA_ARGS__})

static void refuses_impossible(void **state)
{
    struct devices *d = *state;
    float *x = guard_randn(4 * 3 * 8, DT_F32, 1), *o = guard_new(4 * 8 * sizeof *o);
    const int32_t *start = guard_of(int32_t, 0, 1);
    assert_int_equal(TRY_FWD(d, .B = 1, .T = 4, .H = 1, .D = 513), -EINVAL);
    assert_int_equal(TRY_FWD(d, .B = 1, .T = 4, .H = 1), -EINVAL);
    assert_int_equal(TRY_FWD(d, .B = 1, .T = 16385, .H = 1, .D = 8), -EINVAL);
    assert_int_equal(TRY_FWD(d, .B = 1, .T = 4, .H = 3, .D = 8, .Hkv = 2), -EINVAL);
    assert_int_equal(TRY_FWD(d, .B = 1, .T = 4, .Tk = 3, .H = 1, .D = 8, .qkv = x), -EINVAL);
    assert_int_equal(
        TRY_FWD(d, .B = 1, .T = 4, .Tk = 3, .H = 1, .D = 8, .q = x, .kv = x, .causal = true),
        -EINVAL);
    assert_int_equal(TRY_FWD(d, .B = 1, .T = 2, .H = 1, .D = 8, .q = x), -EINVAL);
    assert_int_equal(TRY_FWD(d, .B = 1, .T = 2, .H = 1, .D = 8, .qkv = x, .start = start), -EINVAL);
    assert_int_equal(TRY_FWD(d, .B = 1, .T = 2, .H = 1, .D = 8, .qkv = x, .scale = -1), -EINVAL);
    assert_int_equal(TRY_FWD(d, .B = 1, .T = 2, .H = 1, .D = 8, .qkv = x, .causal = true,
                             .start = start, .klen = start + 1),
                     -EINVAL);
    assert_int_equal(TRY_BWD(d, .B = 1, .T = 4, .H = 1, .D = 129), -EINVAL);
    assert_int_equal(TRY_BWD(d, .B = 1, .T = 4097, .H = 1, .D = 8), -EINVAL);
    assert_int_equal(TRY_BWD(d, .B = 1, .T = 2, .H = 1, .D = 8, .kv = x, .dqkv = o), -EINVAL);
    assert_int_equal(TRY_BWD(d, .B = 1, .T = 2, .H = 1, .D = 8, .q = x, .kv = x, .dqkv = o),
                     -EINVAL);
    assert_int_equal(TRY_FWD(d, .T = 8, .H = 1, .D = 8), 0);
    assert_int_equal(TRY_FWD(d, .B = 1, .T = 2, .H = 1, .D = 8, .qkv = x, .o = o, .start = start,
                             .causal = true),
                     0);
    guard_check_all();
}

static void refuses_wrong_values(void **state)
{
    struct devices *d = *state;
    float *x = guard_randn(2 * 3 * 8, DT_F32, 1), *o = guard_new(2 * 8 * sizeof *o);
    for (int32_t klen = -1; klen <= 3; klen++)
        assert_int_equal(TRY_FWD(d, .B = 1, .T = 2, .H = 1, .D = 8, .qkv = x, .o = o,
                                 .klen = guard_of(int32_t, klen)),
                         klen < 1 || klen > 2 ? -EINVAL : 0);
    assert_int_equal(TRY_FWD(d, .B = 1, .T = 2, .H = 1, .D = 8, .qkv = x, .o = o,
                             .start = guard_of(int32_t, 0, 2), .causal = true),
                     -EINVAL);
    guard_check_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_reference),
        cmocka_unit_test(matches_reference_on_hopper),
        cmocka_unit_test(batches_do_not_matter_on_hopper),
        cmocka_unit_test(matches_reference_apart),
        cmocka_unit_test(reference_is_the_definition),
        cmocka_unit_test(hidden_keys_have_no_gradient),
        cmocka_unit_test(batches_do_not_matter),
        cmocka_unit_test(bias_hides_keys),
        cmocka_unit_test(masked_keys_do_not_matter),
        cmocka_unit_test(cache_continues),
        cmocka_unit_test(large_scores),
        cmocka_unit_test(heads_are_separate),
        cmocka_unit_test(refuses_impossible),
        cmocka_unit_test(refuses_wrong_values),
    };
    return cmocka_run_group_tests(tests, devices_setup, devices_teardown);
}
