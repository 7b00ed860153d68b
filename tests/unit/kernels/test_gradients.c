/* Each backward of the reference against finite differences of its forward.
 *
 * With a random weight per output, L = sum(weight * output) is a scalar; its central
 * difference in a few random inputs must equal what the backward says for the output
 * gradient `weight`.  Outputs are f32, so L carries an error of about 1e-7 * sqrt(n); with
 * steps of 1e-2 the quotient is good to 1e-3, plus the third-order term: 1 % + 2e-3. */
#include "tests/unit/kernels/guard.h"

typedef double loss_fn(void *ctx);

static double weighted(const float *out, const float *w, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)out[i] * (double)w[i];
    return sum;
}

/* Checks grad against differences of loss in up to 24 elements of x. */
static void check(const char *what, loss_fn *loss, void *ctx, float *x, const float *grad, size_t n)
{
    const float step = 1e-2f;
    for (size_t k = 0; k < 24 && k < n; k++) {
        size_t i = n <= 24 ? k : (size_t)(guard_rng() % n);
        float old = x[i];
        x[i] = old + step;
        double up = loss(ctx);
        x[i] = old - step;
        double down = loss(ctx);
        x[i] = old;
        double want = (up - down) / (2 * (double)step), got = (double)grad[i];
        if (!(fabs(got - want) <= 2e-3 + 0.01 * fabs(want)))
            fail_msg("%s: gradient of element %zu is %g, differences say %g", what, i, got, want);
    }
}

static struct device *ref_of(void **state)
{
    return ((struct devices *)*state)->ref;
}

/* ---- adaLN ---- */

enum { B = 2, T = 5, C = 7, MODS = B * 3 * C };

struct adaln_case {
    struct device *dev;
    struct adaln_fwd f;
    float *wx, *wh;
};

static double adaln_loss(void *ctx)
{
    struct adaln_case *c = ctx;
    c->dev->ops->adaln_fwd(c->dev, &c->f, NULL);
    return weighted(c->f.x, c->wx, B * T * C) + weighted(c->f.h, c->wh, B * T * C);
}

static void adaln(void **state)
{
    enum { N = B * T * C };
    struct adaln_case c = {.dev = ref_of(state)};
    float *x_in = guard_randn(N, DT_F32, 1), *y = guard_randn(N, DT_F32, 1);
    float *mod = guard_randn(MODS, DT_F32, 0.7f), *dmod = guard_new(MODS * 4);
    c.wx = guard_randn(N, DT_F32, 1);
    c.wh = guard_randn(N, DT_F32, 1);
    c.f = (struct adaln_fwd){.x = guard_new(N * 4),
                             .h = guard_new(N * 4),
                             .stats = guard_new(B * T * 8),
                             .x_in = x_in,
                             .y = y,
                             .gate = mod,
                             .shift = mod + C,
                             .scale = mod + 2 * C,
                             .mod_ld = 3 * C,
                             .B = B,
                             .T = T,
                             .C = C};
    adaln_loss(&c);
    float *dx = guard_copy(c.wx, N * 4), *dy = guard_new(N * 4);
    struct adaln_bwd b = {.dx = dx,
                          .dshift = dmod + C,
                          .dscale = dmod + 2 * C,
                          .dy = dy,
                          .dgate = dmod,
                          .dh = c.wh,
                          .x = c.f.x,
                          .stats = c.f.stats,
                          .scale = mod + 2 * C,
                          .y = y,
                          .gate = mod,
                          .mod_ld = 3 * C,
                          .B = B,
                          .T = T,
                          .C = C};
    assert_int_equal(c.dev->ops->adaln_bwd(c.dev, &b, NULL), 0);
    check("adaln x", adaln_loss, &c, x_in, dx, N);
    check("adaln y", adaln_loss, &c, y, dy, N);
    check("adaln gate, shift, scale", adaln_loss, &c, mod, dmod, MODS);
    guard_check_all();
}

/* ---- attention ---- */

struct attention_case {
    struct device *dev;
    struct attention_fwd f;
    float *w;
    size_t n;
};

static double attention_loss(void *ctx)
{
    struct attention_case *c = ctx;
    c->dev->ops->attention_fwd(c->dev, &c->f, NULL);
    return weighted(c->f.o, c->w, c->n);
}

/* kv_heads 0: as many as queries.  Documents start at row 0 and at the third. */
static void attention_gradients(struct device *dev, int kv_heads, bool causal)
{
    enum { H = 2, D = 3, N = B * T * H * D };
    static const int32_t start[B * T] = {0, 0, 2, 2, 2, 0, 0, 2, 2, 2};
    const size_t all = (size_t)(B * T * D * (H + 2 * (kv_heads ? kv_heads : H)));
    struct attention_case c = {.dev = dev, .n = N};
    float *qkv = guard_randn(all, DT_F32, 1), *dqkv = guard_new(all * 4);
    c.w = guard_randn(N, DT_F32, 1);
    c.f = (struct attention_fwd){.o = guard_new(N * 4),
                                 .lse = guard_new(B * H * T * 4),
                                 .qkv = qkv,
                                 .start = causal ? start : NULL,
                                 .B = B,
                                 .T = T,
                                 .H = H,
                                 .D = D,
                                 .Hkv = kv_heads,
                                 .causal = causal};
    attention_loss(&c);
    struct attention_bwd b = {.dqkv = dqkv,
                              .d_o = c.w,
                              .o = c.f.o,
                              .lse = c.f.lse,
                              .qkv = qkv,
                              .start = c.f.start,
                              .B = B,
                              .T = T,
                              .H = H,
                              .D = D,
                              .Hkv = kv_heads,
                              .causal = causal};
    assert_int_equal(c.dev->ops->attention_bwd(c.dev, &b, NULL), 0);
    check("attention qkv", attention_loss, &c, qkv, dqkv, all);
    guard_check_all();
}

static void attention(void **state)
{
    attention_gradients(ref_of(state), 0, false);
    attention_gradients(ref_of(state), 1, false);
    attention_gradients(ref_of(state), 0, true);
    attention_gradients(ref_of(state), 1, true);
}

/* Queries apart from 7 keys, of which the first sample has 4. */
static void attention_apart(void **state)
{
    enum { H = 4, HKV = 2, D = 3, TK = 7, N = B * T * H * D, KEYS = B * TK * 2 * HKV * D };
    static const int32_t klen[B] = {4, TK};
    struct attention_case c = {.dev = ref_of(state), .n = N};
    float *q = guard_randn(N, DT_F32, 1), *kv = guard_randn(KEYS, DT_F32, 1);
    c.w = guard_randn(N, DT_F32, 1);
    c.f = (struct attention_fwd){.o = guard_new(N * 4),
                                 .lse = guard_new(B * H * T * 4),
                                 .q = q,
                                 .kv = kv,
                                 .klen = klen,
                                 .scale = 0.8f,
                                 .B = B,
                                 .T = T,
                                 .H = H,
                                 .D = D,
                                 .Hkv = HKV,
                                 .Tk = TK};
    attention_loss(&c);
    struct attention_bwd b = {.dq = guard_new(N * 4),
                              .dkv = guard_new(KEYS * 4),
                              .d_o = c.w,
                              .o = c.f.o,
                              .lse = c.f.lse,
                              .q = q,
                              .kv = kv,
                              .klen = klen,
                              .scale = c.f.scale,
                              .B = B,
                              .T = T,
                              .H = H,
                              .D = D,
                              .Hkv = HKV,
                              .Tk = TK};
    assert_int_equal(c.dev->ops->attention_bwd(c.dev, &b, NULL), 0);
    check("attention q", attention_loss, &c, q, b.dq, N);
    check("attention kv", attention_loss, &c, kv, b.dkv, KEYS);
    guard_check_all();
}

/* ---- what a decoder adds ---- */

struct norm_case {
    struct device *dev;
    struct rmsnorm_fwd f;
    float *wx, *wh;
};

static double norm_loss(void *ctx)
{
    struct norm_case *c = ctx;
    c->dev->ops->rmsnorm_fwd(c->dev, &c->f, NULL);
    return weighted(c->f.x, c->wx, B * T * C) + weighted(c->f.h, c->wh, B * T * C);
}

static void rmsnorm(void **state)
{
    enum { N = B * T * C };
    struct norm_case c = {.dev = ref_of(state)};
    float *x_in = guard_randn(N, DT_F32, 1), *y = guard_randn(N, DT_F32, 1);
    float *w = guard_randn(C, DT_F32, 1), *dw = guard_new(C * 4);
    c.wx = guard_randn(N, DT_F32, 1);
    c.wh = guard_randn(N, DT_F32, 1);
    c.f = (struct rmsnorm_fwd){.x = guard_new(N * 4),
                               .h = guard_new(N * 4),
                               .rstd = guard_new(B * T * 4),
                               .x_in = x_in,
                               .y = y,
                               .w = w,
                               .eps = 1e-5f,
                               .rows = B * T,
                               .C = C};
    norm_loss(&c);
    memset(dw, 0, C * 4);
    struct rmsnorm_bwd b = {.dx = guard_copy(c.wx, N * 4),
                            .dy = guard_new(N * 4),
                            .dw = dw,
                            .dh = c.wh,
                            .x = c.f.x,
                            .rstd = c.f.rstd,
                            .w = w,
                            .rows = B * T,
                            .C = C};
    assert_int_equal(c.dev->ops->rmsnorm_bwd(c.dev, &b, NULL), 0);
    check("rmsnorm x", norm_loss, &c, x_in, b.dx, N);
    check("rmsnorm y", norm_loss, &c, y, b.dy, N);
    check("rmsnorm w", norm_loss, &c, w, dw, C);
    guard_check_all();
}

struct head_case {
    struct device *dev;
    struct headnorm n;
    const float *x_in, *wx;
};

enum { NORM_HEADS = 2, NORM_LD = NORM_HEADS * C + 3, NORM_N = B * T * NORM_LD };

static double head_loss(void *ctx)
{
    struct head_case *c = ctx;
    memcpy(c->n.x, c->x_in, NORM_N * 4);
    c->dev->ops->headnorm_fwd(c->dev, &c->n, NULL);
    return weighted(c->n.x, c->wx, NORM_N);
}

static void headnorm(void **state)
{
    float *x_in = guard_randn(NORM_N, DT_F32, 1), *wx = guard_randn(NORM_N, DT_F32, 1);
    float *w = guard_randn(C, DT_F32, 1), *dw = guard_new(C * 4);
    struct head_case c = {.dev = ref_of(state), .x_in = x_in, .wx = wx};
    c.n = (struct headnorm){.x = guard_new(NORM_N * 4),
                            .kept = guard_new(B * T * NORM_HEADS * C * 4),
                            .dw = dw,
                            .w = w,
                            .rows = B * T,
                            .ld = NORM_LD,
                            .heads = NORM_HEADS,
                            .D = C,
                            .eps = 1e-5f};
    head_loss(&c);
    memset(dw, 0, C * 4);
    struct headnorm b = c.n;
    b.x = guard_copy(wx, NORM_N * 4);
    assert_int_equal(c.dev->ops->headnorm_bwd(c.dev, &b, NULL), 0);
    check("headnorm x", head_loss, &c, x_in, b.x, NORM_N);
    check("headnorm w", head_loss, &c, w, dw, C);
    guard_check_all();
}

enum { GATES = 9, CLASSES = 11 };

struct decoder_case {
    struct device *dev;
    float *x, *out, *w;
    int32_t *ids; /* positions, or targets */
};

static double swiglu_loss(void *ctx)
{
    struct decoder_case *c = ctx;
    c->dev->ops->swiglu_fwd(c->dev, c->out, c->x, T, GATES, DT_F32, NULL);
    return weighted(c->out, c->w, T * GATES);
}

static double entropy_loss(void *ctx)
{
    struct decoder_case *c = ctx;
    struct cross_entropy p = {.loss = c->out, .logits = c->x, .target = c->ids, .rows = T};
    p.V = CLASSES;
    c->dev->ops->cross_entropy(c->dev, &p, NULL);
    return weighted(c->out, c->w, T) * 3;
}

static struct rope rope_of(const struct decoder_case *c, float *x, bool inverse)
{
    struct rope p = {.x = x, .pos = c->ids, .rows = T, .heads = 2, .D = 4, .theta = 100};
    p.inverse = inverse;
    return p;
}

static double rope_loss(void *ctx)
{
    struct decoder_case *c = ctx;
    memcpy(c->out, c->x, T * 8 * 4);
    struct rope p = rope_of(c, c->out, false);
    c->dev->ops->rope(c->dev, &p, NULL);
    return weighted(c->out, c->w, T * 8);
}

static void decoder(void **state)
{
    struct decoder_case c = {.dev = ref_of(state)};
    enum { N = T * 2 * GATES };
    c.x = guard_randn(N, DT_F32, 1.5f);
    c.out = guard_new(N * 4);
    c.w = guard_randn(N, DT_F32, 1);
    c.ids = guard_new(T * sizeof *c.ids);
    for (int i = 0; i < T; i++)
        c.ids[i] = i == 2 ? -1 : 2 * i;
    float *grad = guard_new(N * 4);
    assert_int_equal(c.dev->ops->swiglu_bwd(c.dev, grad, c.w, c.x, T, GATES, DT_F32, NULL), 0);
    check("swiglu", swiglu_loss, &c, c.x, grad, N);
    struct cross_entropy p = {.loss = c.out, .dlogits = grad, .logits = c.x, .target = c.ids};
    p.w = c.w;
    p.grad_scale = 3;
    p.rows = T;
    p.V = CLASSES;
    assert_int_equal(c.dev->ops->cross_entropy(c.dev, &p, NULL), 0);
    check("cross entropy", entropy_loss, &c, c.x, grad, T * CLASSES);
    c.ids[2] = 3;
    memcpy(grad, c.w, T * 8 * 4);
    struct rope back = rope_of(&c, grad, true);
    assert_int_equal(c.dev->ops->rope(c.dev, &back, NULL), 0);
    check("rope", rope_loss, &c, c.x, grad, T * 8);
    guard_check_all();
}

/* ---- linear layers with GELU between them ---- */

enum { ROWS = 6, IN = 5, HID = 8, OUT = 4 };

struct mlp_case {
    struct device *dev;
    float *x, *w1, *b1, *w2, *b2, *u, *g, *y, *w;
};

static double mlp_loss(void *ctx)
{
    struct mlp_case *c = ctx;
    c->dev->ops->matmul(c->dev,
                        &(struct matmul){.layout = MM_NT,
                                         .epilogue = MM_GELU,
                                         .m = ROWS,
                                         .n = HID,
                                         .k = IN,
                                         .c = c->g,
                                         .aux = c->u,
                                         .a = c->x,
                                         .b = c->w1,
                                         .bias = c->b1},
                        NULL);
    c->dev->ops->matmul(c->dev,
                        &(struct matmul){.layout = MM_NT,
                                         .m = ROWS,
                                         .n = OUT,
                                         .k = HID,
                                         .c = c->y,
                                         .a = c->g,
                                         .b = c->w2,
                                         .bias = c->b2},
                        NULL);
    return weighted(c->y, c->w, ROWS * OUT);
}

static float *zeros(size_t n)
{
    float *p = guard_new(n * 4);
    memset(p, 0, n * 4);
    return p;
}

static void mlp(void **state)
{
    struct mlp_case c = {.dev = ref_of(state)};
    struct device *dev = c.dev;
    c.x = guard_randn(ROWS * IN, DT_F32, 1);
    c.w1 = guard_randn(HID * IN, DT_F32, 0.5f);
    c.b1 = guard_randn(HID, DT_F32, 0.5f);
    c.w2 = guard_randn(OUT * HID, DT_F32, 0.5f);
    c.b2 = guard_randn(OUT, DT_F32, 0.5f);
    c.u = guard_new(ROWS * HID * 4);
    c.g = guard_new(ROWS * HID * 4);
    c.y = guard_new(ROWS * OUT * 4);
    c.w = guard_randn(ROWS * OUT, DT_F32, 1);
    mlp_loss(&c);
    float *dw2 = zeros(OUT * HID), *db2 = zeros(OUT), *du = guard_new(ROWS * HID * 4);
    float *dw1 = zeros(HID * IN), *db1 = zeros(HID), *dx = guard_new(ROWS * IN * 4);
    const struct matmul grads[] = {
        {.layout = MM_TN,
         .m = OUT,
         .n = HID,
         .k = ROWS,
         .c = dw2,
         .a = c.w,
         .b = c.g,
         .a_colsum = db2,
         .accumulate = true},
        {.layout = MM_NN,
         .epilogue = MM_DGELU,
         .m = ROWS,
         .n = HID,
         .k = OUT,
         .c = du,
         .a = c.w,
         .b = c.w2,
         .aux = c.u},
        {.layout = MM_TN,
         .m = HID,
         .n = IN,
         .k = ROWS,
         .c = dw1,
         .a = du,
         .b = c.x,
         .a_colsum = db1},
        {.layout = MM_NN, .m = ROWS, .n = IN, .k = HID, .c = dx, .a = du, .b = c.w1},
    };
    for (int i = 0; i < 4; i++)
        assert_int_equal(dev->ops->matmul(dev, &grads[i], NULL), 0);
    check("x", mlp_loss, &c, c.x, dx, ROWS * IN);
    check("w1", mlp_loss, &c, c.w1, dw1, HID * IN);
    check("b1", mlp_loss, &c, c.b1, db1, HID);
    check("w2", mlp_loss, &c, c.w2, dw2, OUT * HID);
    check("b2", mlp_loss, &c, c.b2, db2, OUT);
    guard_check_all();
}

/* ---- elementwise ---- */

enum { N_ACT = 40 };

struct act_case {
    struct device *dev;
    bool silu;
    float *x, *y, *w;
};

static double act_loss(void *ctx)
{
    struct act_case *c = ctx;
    if (c->silu)
        c->dev->ops->silu_fwd(c->dev, c->y, c->x, N_ACT, DT_F32, NULL);
    else
        c->dev->ops->gelu_fwd(c->dev, c->y, c->x, N_ACT, DT_F32, NULL);
    return weighted(c->y, c->w, N_ACT);
}

static void activations(void **state)
{
    struct act_case c = {.dev = ref_of(state)};
    c.x = guard_randn(N_ACT, DT_F32, 1.5f);
    c.y = guard_new(N_ACT * 4);
    c.w = guard_randn(N_ACT, DT_F32, 1);
    float *dx = guard_new(N_ACT * 4);
    const struct matmul times_gelu_grad = {.epilogue = MM_DGELU,
                                           .m = 1,
                                           .n = N_ACT,
                                           .k = 1,
                                           .c = dx,
                                           .a = guard_of(float, 1),
                                           .b = c.w,
                                           .aux = c.x};
    c.dev->ops->matmul(c.dev, &times_gelu_grad, NULL);
    check("gelu", act_loss, &c, c.x, dx, N_ACT);
    c.silu = true;
    c.dev->ops->silu_bwd(c.dev, dx, c.w, c.x, N_ACT, DT_F32, false, NULL);
    check("silu", act_loss, &c, c.x, dx, N_ACT);
    guard_check_all();
}

enum { PER = 12 };

struct mse_case {
    struct device *dev;
    float *pred, *target, *w, *loss;
};

static double mse_loss(void *ctx)
{
    struct mse_case *c = ctx;
    c->dev->ops->mse(c->dev, c->loss, NULL, c->pred, c->target, NULL, 0, B, PER, NULL);
    return weighted(c->loss, c->w, B) * 3;
}

static void mse(void **state)
{
    struct mse_case c = {.dev = ref_of(state)};
    c.pred = guard_randn(B * PER, DT_F32, 1);
    c.target = guard_randn(B * PER, DT_F32, 1);
    c.w = guard_randn(B, DT_F32, 1);
    c.loss = guard_new(B * 4);
    float *dpred = guard_new(B * PER * 4);
    c.dev->ops->mse(c.dev, c.loss, dpred, c.pred, c.target, c.w, 3, B, PER, NULL);
    check("mse", mse_loss, &c, c.pred, dpred, B * PER);
    guard_check_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adaln),   cmocka_unit_test(attention), cmocka_unit_test(attention_apart),
        cmocka_unit_test(mlp),     cmocka_unit_test(mse),       cmocka_unit_test(activations),
        cmocka_unit_test(rmsnorm), cmocka_unit_test(headnorm),  cmocka_unit_test(decoder),
    };
    return cmocka_run_group_tests(tests, devices_setup, devices_teardown);
}
