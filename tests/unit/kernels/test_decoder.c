/* A decoder's operations against the reference: RMSNorm, rotary positions, SwiGLU, cross
 * entropy, rows of a table and means over tokens.
 *
 * Tolerance: f32 differs by the order of sums and by exp, cos and sin of a few ulp; bf16
 * outputs by one rounding, 2^-8 relative. */
#include "tests/unit/kernels/guard.h"

static float rel(enum dtype dt)
{
    return dt == DT_BF16 ? 1.0f / 128 : 2e-5f;
}

struct shape {
    int64_t rows;
    int C;
};

static const struct shape shapes[] = {{1, 1},    {3, 5},     {7, 33},  {65, 48},
                                      {130, 17}, {200, 256}, {5, 2568}};

/* ---- RMSNorm ---- */

static void run_norm(struct device *dev, struct rmsnorm_fwd *f, bool in_place)
{
    size_t n = (size_t)(f->rows * f->C);
    f->x = in_place ? guard_copy(f->x_in, n * 4) : guard_new(n * 4);
    f->x_in = in_place ? f->x : f->x_in;
    f->h = guard_new(n * dtype_bytes(f->dt));
    f->rstd = guard_new((size_t)f->rows * 4);
    assert_int_equal(dev->ops->rmsnorm_fwd(dev, f, NULL), 0);
}

static void norm_forward(struct devices *d, const struct shape *s, enum dtype dt, bool residual)
{
    size_t n = (size_t)(s->rows * s->C);
    struct rmsnorm_fwd f = {.rows = s->rows, .C = s->C, .dt = dt, .eps = 1e-5f};
    f.x_in = guard_randn(n, DT_F32, 2);
    f.y = residual ? guard_randn(n, dt, 1) : NULL;
    f.w = guard_randn((size_t)s->C, DT_F32, 1);
    struct rmsnorm_fwd ref = f;
    run_norm(d->ref, &ref, false);
    run_norm(d->fast, &f, residual);
    guard_close("h", f.h, ref.h, n, dt, 1e-5f, rel(dt));
    guard_close("rstd", f.rstd, ref.rstd, (size_t)s->rows, DT_F32, 0, 1e-5f);
    if (residual)
        guard_close("x", f.x, ref.x, n, DT_F32, 0, 0);
    f.rstd = NULL;
    void *again = f.h = guard_new(n * dtype_bytes(dt));
    f.y = NULL;
    assert_int_equal(d->fast->ops->rmsnorm_fwd(d->fast, &f, NULL), 0);
    if (residual)
        guard_close("h of the same x", again, ref.h, n, dt, 1e-5f, rel(dt));
    guard_check_all();
}

static void run_norm_bwd(struct device *dev, struct rmsnorm_bwd *b, const float *dx,
                         const float *dw)
{
    size_t n = (size_t)(b->rows * b->C);
    b->dx = b->dx_set ? guard_new(n * 4) : guard_copy(dx, n * 4);
    b->dw = guard_copy(dw, (size_t)b->C * 4);
    b->dy = b->dy ? guard_new(n * dtype_bytes(b->dt)) : NULL;
    assert_int_equal(dev->ops->rmsnorm_bwd(dev, b, NULL), 0);
}

static void norm_backward(struct devices *d, const struct shape *s, enum dtype dt, bool set)
{
    size_t n = (size_t)(s->rows * s->C), C = (size_t)s->C;
    struct rmsnorm_bwd b = {.rows = s->rows, .C = s->C, .dt = dt, .dx_set = set};
    float *dx = guard_randn(n, DT_F32, 1), *dw = guard_randn(C, DT_F32, 1);
    float *rstd = guard_randn((size_t)s->rows, DT_F32, 0.2f);
    b.dh = guard_randn(n, dt, 1);
    b.x = guard_randn(n, DT_F32, 2);
    b.w = guard_randn(C, DT_F32, 1);
    b.rstd = rstd;
    b.dy = set ? NULL : dx; /* replaced by run_norm_bwd */
    struct rmsnorm_bwd ref = b;
    run_norm_bwd(d->ref, &ref, dx, dw);
    run_norm_bwd(d->fast, &b, dx, dw);
    guard_close("dx", b.dx, ref.dx, n, DT_F32, 2e-5f, 2e-5f);
    guard_close("dw", b.dw, ref.dw, C, DT_F32, 1e-5f * sqrtf((float)s->rows), 2e-5f);
    if (!set)
        guard_close("dy", b.dy, ref.dy, n, dt, 2e-5f, rel(dt));
    guard_check_all();
}

static void rmsnorm(void **state)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int k = 0; k < 4; k++) {
            enum dtype dt = k & 1 ? DT_BF16 : DT_F32;
            norm_forward(*state, &shapes[i], dt, k & 2);
            norm_backward(*state, &shapes[i], dt, k & 2);
        }
    }
}

/* ---- RMSNorm of each head ---- */

/* x and its gradient in rows with `extra` values behind the heads, which nothing touches. */
static void norm_heads(struct devices *d, int64_t rows, int heads, int D, int extra, enum dtype dt)
{
    const int64_t ld = (int64_t)heads * D + extra;
    const size_t n = (size_t)(rows * ld), dense = (size_t)(rows * heads * D), es = dtype_bytes(dt);
    void *x = guard_randn(n, dt, 2), *g = guard_randn(n, dt, 1);
    float *w = guard_randn((size_t)D, DT_F32, 1), *sums = guard_randn((size_t)D, DT_F32, 1);
    struct headnorm p[2];
    void *y[2], *dx[2];
    for (int i = 0; i < 2; i++) {
        struct device *dev = i ? d->fast : d->ref;
        p[i] = (struct headnorm){.w = w, .rows = rows, .heads = heads, .D = D, .eps = 1e-5f};
        p[i].ld = extra ? ld : 0;
        p[i].dt = dt;
        p[i].x = y[i] = guard_copy(x, n * es);
        p[i].kept = guard_new(dense * es);
        assert_int_equal(dev->ops->headnorm_fwd(dev, &p[i], NULL), 0);
        p[i].x = dx[i] = guard_copy(g, n * es);
        p[i].dw = guard_copy(sums, (size_t)D * 4);
        assert_int_equal(dev->ops->headnorm_bwd(dev, &p[i], NULL), 0);
    }
    guard_close("heads", y[1], y[0], n, dt, 1e-5f, rel(dt));
    guard_close("gradient of heads", dx[1], dx[0], n, dt, 2e-5f, rel(dt));
    guard_close("dw of heads", p[1].dw, p[0].dw, (size_t)D, DT_F32,
                1e-5f * sqrtf((float)(rows * heads)), 2e-5f);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t k = 0; k < ld; k++) {
            const size_t at = (size_t)(r * ld + k);
            if (k >= (int64_t)heads * D)
                assert_true(dtype_get(y[1], dt, at) == dtype_get(x, dt, at) &&
                            dtype_get(dx[1], dt, at) == dtype_get(g, dt, at));
            else
                assert_true(dtype_get(p[1].kept, dt, (size_t)(r * heads * D + k)) ==
                            dtype_get(x, dt, at));
        }
    }
    void *again = p[1].x = guard_copy(x, n * es); /* nothing kept */
    p[1].kept = NULL;
    assert_int_equal(d->fast->ops->headnorm_fwd(d->fast, &p[1], NULL), 0);
    assert_memory_equal(again, y[1], n * es);
    guard_check_all();
}

static void head_norms(void **state)
{
    for (int dt = DT_F32; dt <= DT_BF16; dt++) {
        norm_heads(*state, 1, 1, 1, 0, (enum dtype)dt);
        norm_heads(*state, 33, 3, 6, 5, (enum dtype)dt);
        norm_heads(*state, 130, 2, 32, 64, (enum dtype)dt);
        norm_heads(*state, 65, 5, 128, 0, (enum dtype)dt);
        norm_heads(*state, 5, 2, 256, 1, (enum dtype)dt);
    }
}

/* ---- rotary positions ---- */

static void turn(struct devices *d, int64_t rows, int heads, int D, int extra, enum dtype dt)
{
    static const struct rope_scaling kinds[] = {{0}, {32, 1, 4, 8192}};
    const struct rope_scaling *scaling = &kinds[rows % 2];
    int64_t ld = (int64_t)heads * D + extra;
    size_t n = (size_t)(rows * ld), es = dtype_bytes(dt);
    int32_t *pos = guard_new((size_t)rows * sizeof *pos);
    for (int64_t r = 0; r < rows; r++)
        pos[r] = r ? (int32_t)(guard_rng() % 4096) : 1 << 20;
    void *x = guard_randn(n, dt, 1), *a = guard_copy(x, n * es), *b = guard_copy(x, n * es);
    struct rope p = {.x = a, .pos = pos, .rows = rows, .ld = extra ? ld : 0};
    p.heads = heads;
    p.D = D;
    p.theta = 10000;
    p.scaling = *scaling;
    p.dt = dt;
    assert_int_equal(d->ref->ops->rope(d->ref, &p, NULL), 0);
    p.x = b;
    assert_int_equal(d->fast->ops->rope(d->fast, &p, NULL), 0);
    guard_close("rope", b, a, n, dt, 2e-6f, rel(dt));
    /* Back again; what lies behind the heads was never touched. */
    p.inverse = true;
    assert_int_equal(d->fast->ops->rope(d->fast, &p, NULL), 0);
    guard_close("turned back", b, x, n, dt, dt == DT_BF16 ? 0.02f : 2e-6f, rel(dt));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = (int64_t)heads * D; k < ld; k++)
            assert_true(dtype_get(b, dt, (size_t)(i * ld + k)) ==
                        dtype_get(x, dt, (size_t)(i * ld + k)));
    guard_check_all();
}

static void rotary(void **state)
{
    for (int dt = DT_F32; dt <= DT_BF16; dt++) {
        turn(*state, 1, 1, 2, 0, (enum dtype)dt);
        turn(*state, 33, 3, 6, 5, (enum dtype)dt);
        turn(*state, 70, 2, 32, 64, (enum dtype)dt);
        turn(*state, 9, 5, 128, 0, (enum dtype)dt);
        turn(*state, 5, 1, 256, 1, (enum dtype)dt);
    }
}

/* Of Llama 3.2 with heads of 64, as the formula of transformers gives them: as they were, mixed,
 * and divided by the factor. */
static void scaled_frequencies(void **state)
{
    (void)state;
    const struct rope_scaling llama = {32, 1, 4, 8192};
    static const struct {
        int i;
        double want;
    } rows[] = {{0, 1},
                {14, 0.0032114459947525913},
                {15, 0.001290547928209264},
                {16, 0.00042955679655936815},
                {17, 9.70828780262767e-05},
                {18, 1.9461638184831125e-05},
                {31, 9.418306725434909e-08}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double got = (double)rope_freq(500000, &llama, rows[i].i, 64);
        if (fabs(got / rows[i].want - 1) > 1e-6)
            fail_msg("%d: %.9g", rows[i].i, got);
    }
}

/* Written out: one head of four at position 1 has the angles 1 and 0.01. */
static void rotary_by_hand(void **state)
{
    struct devices *d = *state;
    const int32_t *pos = guard_of(int32_t, 0, 1);
    float *x = guard_of(float, 1, 2, 3, 4, 1, 2, 3, 4);
    struct rope p = {.x = x, .pos = pos, .rows = 2, .heads = 1, .D = 4, .theta = 10000};
    assert_int_equal(d->fast->ops->rope(d->fast, &p, NULL), 0);
    const float want[8] = {1,
                           2,
                           3,
                           4,
                           cosf(1) - 3 * sinf(1),
                           2 * cosf(0.01f) - 4 * sinf(0.01f),
                           3 * cosf(1) + sinf(1),
                           4 * cosf(0.01f) + 2 * sinf(0.01f)};
    guard_close("x", x, want, 8, DT_F32, 1e-6f, 0);
    guard_check_all();
}

/* ---- SwiGLU ---- */

static void swiglu(void **state)
{
    struct devices *d = *state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int k = DT_F32; k <= DT_BF16; k++) {
            enum dtype dt = (enum dtype)k;
            int64_t rows = shapes[i].rows, M = shapes[i].C;
            size_t n = (size_t)(rows * M), es = dtype_bytes(dt);
            void *gu = guard_randn(2 * n, dt, 3), *dact = guard_randn(n, dt, 1);
            void *a = guard_new(n * es), *b = guard_new(n * es);
            assert_int_equal(d->ref->ops->swiglu_fwd(d->ref, a, gu, rows, M, dt, NULL), 0);
            assert_int_equal(d->fast->ops->swiglu_fwd(d->fast, b, gu, rows, M, dt, NULL), 0);
            guard_close("act", b, a, n, dt, 1e-6f, rel(dt));
            void *g0 = guard_new(2 * n * es), *g1 = guard_copy(gu, 2 * n * es);
            assert_int_equal(d->ref->ops->swiglu_bwd(d->ref, g0, dact, gu, rows, M, dt, NULL), 0);
            assert_int_equal(d->fast->ops->swiglu_bwd(d->fast, g1, dact, g1, rows, M, dt, NULL), 0);
            guard_close("dgu", g1, g0, 2 * n, dt, 1e-5f, rel(dt));
            guard_check_all();
        }
    }
}

/* ---- cross entropy ---- */

static void compare_entropy(struct devices *d, int64_t rows, int V, enum dtype dt,
                            enum dtype grad_dt)
{
    size_t n = (size_t)(rows * V);
    int32_t *target = guard_new((size_t)rows * sizeof *target);
    for (int64_t r = 0; r < rows; r++)
        target[r] = (int32_t)(guard_rng() % (uint64_t)(V + 1)) - 1;
    struct cross_entropy a = {.rows = rows, .V = V, .dt = dt, .grad_dt = grad_dt};
    a.logits = guard_randn(n, dt, 4);
    a.target = target;
    a.w = rows % 2 ? guard_randn((size_t)rows, DT_F32, 1) : NULL;
    a.grad_scale = 0.5f;
    struct cross_entropy b = a;
    a.loss = guard_new((size_t)rows * 4);
    a.dlogits = guard_new(n * dtype_bytes(grad_dt));
    assert_int_equal(d->ref->ops->cross_entropy(d->ref, &a, NULL), 0);
    b.loss = guard_new((size_t)rows * 4);
    b.dlogits = guard_new(n * dtype_bytes(grad_dt));
    if (dt == grad_dt)
        b.logits = b.dlogits = guard_copy(a.logits, n * dtype_bytes(dt));
    assert_int_equal(d->fast->ops->cross_entropy(d->fast, &b, NULL), 0);
    guard_close("loss", b.loss, a.loss, (size_t)rows, DT_F32, 2e-6f, 1e-5f);
    guard_close("dlogits", b.dlogits, a.dlogits, n, grad_dt, 2e-6f, rel(grad_dt));
    float *first = b.loss;
    b.logits = a.logits;
    b.dlogits = NULL;
    b.loss = guard_new((size_t)rows * 4);
    assert_int_equal(d->fast->ops->cross_entropy(d->fast, &b, NULL), 0);
    assert_memory_equal(b.loss, first, (size_t)rows * 4);
    guard_check_all();
}

static void entropy(void **state)
{
    for (int k = 0; k < 4; k++) {
        enum dtype dt = k & 1 ? DT_BF16 : DT_F32, grad_dt = k & 2 ? DT_BF16 : DT_F32;
        compare_entropy(*state, 1, 1, dt, grad_dt);
        compare_entropy(*state, 5, 3, dt, grad_dt);
        compare_entropy(*state, 40, 8, dt, grad_dt);
        compare_entropy(*state, 65, 256, dt, grad_dt);
        compare_entropy(*state, 3, 1037, dt, grad_dt);
    }
}

/* Logits of thousands neither overflow nor lose the loss; equal ones give log V. */
static void extreme_logits(void **state)
{
    struct devices *d = *state;
    const float *logits =
        guard_of(float, 3000, -3000, 0, 1, -5000, -5000, -5000, -5000, 7, 7, 7, 7);
    const int32_t *target = guard_of(int32_t, 1, 2, -1);
    float *loss = guard_new(3 * sizeof *loss), *dlogits = guard_new(12 * sizeof *dlogits);
    for (int i = 0; i < 2; i++) {
        struct device *dev = i ? d->fast : d->ref;
        struct cross_entropy p = {.loss = loss, .dlogits = dlogits, .logits = logits};
        p.target = target;
        p.grad_scale = 1;
        p.rows = 3;
        p.V = 4;
        assert_int_equal(dev->ops->cross_entropy(dev, &p, NULL), 0);
        const float want[3] = {6000, logf(4), 0};
        const float grad[12] = {1, -1, 0, 0, 0.25f, 0.25f, -0.75f, 0.25f, 0, 0, 0, 0};
        guard_close("loss", loss, want, 3, DT_F32, 1e-6f, 1e-6f);
        guard_close("dlogits", dlogits, grad, 12, DT_F32, 1e-6f, 0);
    }
    guard_check_all();
}

/* ---- tables and features ---- */

static void tables(void **state)
{
    struct devices *d = *state;
    const int dims[][3] = {{1, 1, 1}, {200, 19, 7}, {333, 130, 256}, {300, 9, 1030}};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        int B = dims[i][0], C = dims[i][1], rows = dims[i][2];
        size_t n = (size_t)(B * C), m = (size_t)(rows * C);
        int32_t *ids = guard_new((size_t)B * sizeof *ids);
        for (int b = 0; b < B; b++)
            ids[b] = (int32_t)(guard_rng() % (uint64_t)rows);
        float *table = guard_randn(m, DT_F32, 1), *out = guard_randn(n, DT_F32, 1);
        for (int add = 0; add < 2; add++) {
            float *a = guard_copy(out, n * 4), *b = add ? guard_copy(out, n * 4) : guard_new(n * 4);
            assert_int_equal(d->ref->ops->embed_fwd(d->ref, a, table, ids, B, C, rows, add, NULL),
                             0);
            assert_int_equal(d->fast->ops->embed_fwd(d->fast, b, table, ids, B, C, rows, add, NULL),
                             0);
            assert_memory_equal(a, b, n * 4);
        }
        float *sum = guard_copy(table, m * 4);
        assert_int_equal(d->ref->ops->embed_bwd(d->ref, table, out, ids, B, C, rows, NULL), 0);
        assert_int_equal(d->fast->ops->embed_bwd(d->fast, sum, out, ids, B, C, rows, NULL), 0);
        assert_memory_equal(table, sum, m * 4);
        guard_check_all();
    }
}

static void means(void **state)
{
    struct devices *d = *state;
    const int dims[][5] = {{1, 1, 1, 0, 1}, {3, 9, 37, 2, 7}, {2, 70, 64, 0, 32}};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        for (int dt = DT_F32; dt <= DT_BF16; dt++) {
            int B = dims[i][0], T = dims[i][1], C = dims[i][2];
            void *x = guard_randn((size_t)(B * T * C), (enum dtype)dt, 1);
            const int32_t *len = guard_of(int32_t, 4, 1, 40);
            float *out[2];
            for (int k = 0; k < 2; k++) {
                struct device *dev = k ? d->fast : d->ref;
                out[k] = guard_new((size_t)(B * C) * 4);
                assert_int_equal(dev->ops->mean_tokens(dev, out[k], x, B, T, C, dims[i][3],
                                                       dims[i][4], i ? len : NULL, (enum dtype)dt,
                                                       NULL),
                                 0);
            }
            assert_memory_equal(out[0], out[1], (size_t)(B * C) * 4);
            if (B == 3) /* the second sample has no token from the second on */
                assert_true(out[1][C] == 0 && out[1][0] != 0);
            guard_check_all();
        }
    }
}

/* ---- the same bits with one, two and five threads ---- */

enum { R = 210, W = 96, HEADS = 3, TOKENS = 70, BATCH = 3, KINDS = 9 };

struct inputs {
    float *x, *w, *rstd;
    bf16 *h, *qkv, *gu;
    int32_t *ids, *start;
};

static struct inputs make_inputs(void)
{
    struct inputs in = {.x = guard_randn((size_t)R * W, DT_F32, 1)};
    in.w = guard_randn(W, DT_F32, 1);
    in.rstd = guard_randn(R, DT_F32, 1);
    in.h = guard_randn((size_t)R * W, DT_BF16, 1);
    in.qkv = guard_randn((size_t)R * 5 * 32, DT_BF16, 1);
    in.gu = guard_randn((size_t)R * 2 * W, DT_BF16, 1);
    in.ids = guard_new(R * sizeof *in.ids);
    in.start = guard_new(R * sizeof *in.start);
    for (int i = 0; i < R; i++) {
        in.ids[i] = (int32_t)(guard_rng() % W);
        in.start[i] = i % TOKENS < 33 ? 0 : 33;
    }
    return in;
}

/* Every operation once; returns one buffer with all outputs. */
static char *run_all(struct device *dev, const struct inputs *in, size_t *ret_bytes)
{
    const size_t part = (size_t)R * 5 * 32 * 4;
    char *out = guard_new(KINDS * part);
    float *dw = (float *)(void *)(out + part), *loss = (float *)(void *)(out + 2 * part);
    memset(out, 0, KINDS * part);
    struct rmsnorm_bwd norm = {.dx = (float *)(void *)out, .dw = dw, .dh = in->h, .x = in->x};
    norm.rstd = in->rstd;
    norm.w = in->w;
    norm.rows = R;
    norm.C = W;
    norm.dt = DT_BF16;
    assert_int_equal(dev->ops->rmsnorm_bwd(dev, &norm, NULL), 0);
    float *heads = (float *)(void *)(out + 8 * part);
    memcpy(heads, in->qkv, (size_t)R * W * 2);
    struct headnorm head = {.x = heads, .kept = in->h, .dw = heads + R * W / 2, .w = in->w};
    head.rows = R;
    head.heads = 1;
    head.D = W;
    head.dt = DT_BF16;
    assert_int_equal(dev->ops->headnorm_bwd(dev, &head, NULL), 0);
    struct cross_entropy ce = {.loss = loss, .logits = in->x, .target = in->ids, .rows = R, .V = W};
    assert_int_equal(dev->ops->cross_entropy(dev, &ce, NULL), 0);
    float *table = (float *)(void *)(out + 3 * part);
    assert_int_equal(dev->ops->embed_bwd(dev, table, in->x, in->ids, R, W, W, NULL), 0);
    assert_int_equal(dev->ops->swiglu_fwd(dev, out + 4 * part, in->gu, R, W, DT_BF16, NULL), 0);
    struct attention_fwd f = {.o = out + 5 * part, .qkv = in->qkv, .start = in->start};
    f.lse = (float *)(void *)(out + 6 * part);
    f.B = BATCH;
    f.T = TOKENS;
    f.H = HEADS;
    f.Hkv = 1;
    f.D = 32;
    f.causal = true;
    f.dt = DT_BF16;
    assert_int_equal(dev->ops->attention_fwd(dev, &f, NULL), 0);
    struct attention_bwd b = {.dqkv = out + 7 * part, .d_o = in->h, .o = f.o, .lse = f.lse};
    b.qkv = in->qkv;
    b.start = in->start;
    b.B = BATCH;
    b.T = TOKENS;
    b.H = HEADS;
    b.Hkv = 1;
    b.D = 32;
    b.causal = true;
    b.dt = DT_BF16;
    assert_int_equal(dev->ops->attention_bwd(dev, &b, NULL), 0);
    *ret_bytes = KINDS * part;
    return out;
}

static void threads_do_not_matter(void **state)
{
    struct inputs in = make_inputs();
    char *first = NULL;
    size_t bytes = 0;
    for (int threads = 1; threads <= 5; threads += threads == 1 ? 1 : 3) {
        struct device *dev;
        assert_int_equal(device_open("cpu", threads, &dev, NULL), 0);
        char *out = run_all(dev, &in, &bytes);
        if (first)
            assert_memory_equal(out, first, bytes);
        else
            first = out;
        device_close(dev);
    }
    guard_check_all();
}

static void refuses_impossible(void **state)
{
    struct devices *d = *state;
    struct device *dev = d->fast;
    float *x = guard_of(float, 0, 0, 0, 0, 0, 0, 0, 0);
    int32_t *id = guard_of(int32_t, 4);
    struct rmsnorm_fwd f = {.x_in = x, .h = x, .eps = 1e-5f, .rows = 1, .C = 2};
    assert_int_equal(dev->ops->rmsnorm_fwd(dev, &f, NULL), -22); /* no weight */
    struct headnorm h = {.x = x, .kept = x, .rows = 1, .heads = 1, .D = 2, .eps = 1e-5f};
    assert_int_equal(dev->ops->headnorm_fwd(dev, &h, NULL), -22); /* no weight */
    h.w = x;
    assert_int_equal(dev->ops->headnorm_bwd(dev, &h, NULL), -22); /* no dw */
    h.ld = 1;
    assert_int_equal(dev->ops->headnorm_fwd(dev, &h, NULL), -22); /* rows overlap */
    struct rope r = {.x = x, .pos = id, .rows = 1, .heads = 1, .D = 3, .theta = 10};
    assert_int_equal(dev->ops->rope(dev, &r, NULL), -22); /* odd */
    r.D = 4;
    *id = 1;
    r.scaling = (struct rope_scaling){8, 4, 4, 8192};
    assert_int_equal(dev->ops->rope(dev, &r, NULL), -22); /* nothing lies between */
    r.scaling.low = 1;
    assert_int_equal(dev->ops->rope(dev, &r, NULL), 0);
    *id = -1;
    assert_int_equal(dev->ops->rope(dev, &r, NULL), -22);
    struct cross_entropy c = {.loss = x, .logits = x, .target = id, .rows = 1, .V = 4};
    *id = 4;
    assert_int_equal(dev->ops->cross_entropy(dev, &c, NULL), -22);
    *id = -2;
    assert_int_equal(d->ref->ops->cross_entropy(d->ref, &c, NULL), -22);
    *id = 3;
    c.dlogits = x;
    c.grad_dt = DT_BF16; /* in place of another type */
    assert_int_equal(dev->ops->cross_entropy(dev, &c, NULL), -22);
    assert_int_equal(dev->ops->mean_tokens(dev, x, x, 1, 2, 2, 1, 1, NULL, DT_F32, NULL), -22);
    assert_int_equal(dev->ops->mean_tokens(dev, x, x, 1, 2, 2, 1, 3, NULL, DT_F32, NULL), -22);
    assert_int_equal(dev->ops->swiglu_fwd(dev, x, x, 0, 5, DT_F32, NULL), 0);
    guard_check_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm),
        cmocka_unit_test(head_norms),
        cmocka_unit_test(scaled_frequencies),
        cmocka_unit_test(rotary),
        cmocka_unit_test(rotary_by_hand),
        cmocka_unit_test(swiglu),
        cmocka_unit_test(entropy),
        cmocka_unit_test(extreme_logits),
        cmocka_unit_test(tables),
        cmocka_unit_test(means),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(refuses_impossible),
    };
    return cmocka_run_group_tests(tests, devices_setup, devices_teardown);
}
