/* adaLN forward and backward against the reference.
 *
 * Tolerance: sums over C (and over T for the modulation's gradients) in another order,
 * and contracted multiply-adds: 2e-5 of sizes of a few units; bf16 outputs 2^-8. */
#include "tests/unit/kernels/guard.h"

struct shape {
    int B, T, C;
};

static const struct shape shapes[] = {
    {1, 1, 1},    {2, 3, 5},    {3, 7, 33},  {1, 65, 48},
    {2, 130, 17}, {4, 64, 96},  {2, 1, 384}, {5, 117, 24}, /* several rows to a block */
    {2, 5, 1152}, {1, 6, 2568}, /* a card holds long rows in wider pieces */
};

struct data {
    size_t n, rows, mods;
    float *x_in, *mod; /* mod (B, ld): gate, shift, scale */
    int64_t ld;
    void *y, *dh;
};

static struct data make(const struct shape *s, enum dtype dt)
{
    struct data d = {.rows = (size_t)(s->B * s->T), .ld = 3 * s->C + 2};
    d.n = d.rows * (size_t)s->C;
    d.mods = (size_t)s->B * (size_t)d.ld;
    d.x_in = guard_randn(d.n, DT_F32, 2);
    d.mod = guard_randn(d.mods, DT_F32, 1);
    d.y = guard_randn(d.n, dt, 1);
    d.dh = guard_randn(d.n, dt, 1);
    return d;
}

static void run_fwd(struct device *dev, struct adaln_fwd *f, const struct data *d)
{
    f->x = guard_new(d->n * 4);
    f->h = guard_new(d->n * dtype_bytes(f->dt));
    f->stats = guard_new(d->rows * 8);
    assert_int_equal(dev->ops->adaln_fwd(dev, f, NULL), 0);
}

static void forward(struct devices *dv, const struct shape *s, enum dtype dt, bool residual)
{
    struct data d = make(s, dt);
    struct adaln_fwd f = {
        .x_in = d.x_in, .mod_ld = d.ld, .B = s->B, .T = s->T, .C = s->C, .dt = dt};
    f.y = residual ? d.y : NULL;
    f.gate = d.mod;
    f.shift = d.mod + s->C;
    f.scale = d.mod + 2 * s->C;
    struct adaln_fwd ref = f;
    run_fwd(dv->ref, &ref, &d);
    run_fwd(dv->fast, &f, &d);
    float rel = dt == DT_BF16 ? 1.0f / 128 : 2e-5f;
    guard_close("h", f.h, ref.h, d.n, dt, 1e-4f, rel);
    guard_close("stats", f.stats, ref.stats, 2 * d.rows, DT_F32, 1e-5f, 1e-4f);
    if (residual) {
        guard_close("x", f.x, ref.x, d.n, DT_F32, 1e-6f, 1e-6f);
        /* In place, and the residual alone. */
        float *x = guard_copy(d.x_in, d.n * 4);
        f.x_in = f.x = x;
        f.h = NULL;
        assert_int_equal(dv->fast->ops->adaln_fwd(dv->fast, &f, NULL), 0);
        guard_close("x alone", x, ref.x, d.n, DT_F32, 1e-6f, 1e-6f);
    }
    guard_check_all();
}

static void run_bwd(struct device *dev, struct adaln_bwd *b, const struct data *d, const float *dx,
                    float *dmod)
{
    b->dx = guard_copy(dx, d->n * 4);
    b->dy = b->y ? guard_new(d->n * dtype_bytes(b->dt)) : NULL;
    if (b->shift) /* in place */
        b->dh = b->h = guard_copy(b->dh, d->n * dtype_bytes(b->dt));
    b->dshift = dmod;
    b->dscale = dmod + b->C;
    b->dgate = dmod + 2 * b->C;
    assert_int_equal(dev->ops->adaln_bwd(dev, b, NULL), 0);
}

enum { SUM_ALONE = 1, NORM_ALONE, SET, FROM_BEFORE, MODES };

static void backward(struct devices *dv, const struct shape *s, enum dtype dt, int mode)
{
    struct data d = make(s, dt);
    float *stats = guard_new(d.rows * 8), *dx = guard_randn(d.n, DT_F32, 1);
    struct adaln_fwd f = {.x = guard_new(d.n * 4),
                          .h = guard_new(d.n * dtype_bytes(dt)),
                          .stats = stats,
                          .x_in = d.x_in,
                          .y = mode == FROM_BEFORE ? d.y : NULL,
                          .gate = d.mod,
                          .shift = d.mod + s->C,
                          .scale = d.mod + 2 * s->C,
                          .mod_ld = d.ld,
                          .B = s->B,
                          .T = s->T,
                          .C = s->C,
                          .dt = dt};
    assert_int_equal(dv->ref->ops->adaln_fwd(dv->ref, &f, NULL), 0);
    struct adaln_bwd b = {.x = d.x_in,
                          .stats = stats,
                          .scale = d.mod + 2 * s->C,
                          .gate = d.mod,
                          .mod_ld = d.ld,
                          .B = s->B,
                          .T = s->T,
                          .C = s->C,
                          .dt = dt};
    b.dh = mode != SUM_ALONE ? d.dh : NULL;
    b.y = mode != NORM_ALONE ? d.y : NULL;
    b.dx_set = mode == SET;
    b.x_before = mode == FROM_BEFORE;
    b.shift = mode >= SET ? d.mod + s->C : NULL;
    float *dmod0 = guard_randn(d.mods, DT_F32, 1), *dmod1 = guard_copy(dmod0, d.mods * 4);
    struct adaln_bwd ref = b;
    run_bwd(dv->ref, &ref, &d, dx, dmod0);
    run_bwd(dv->fast, &b, &d, dx, dmod1);
    guard_close("dx", b.dx, ref.dx, d.n, DT_F32, 5e-5f, 5e-5f);
    if (b.y)
        guard_close("dy", b.dy, ref.dy, d.n, dt, 1e-4f, dt == DT_BF16 ? 1.0f / 128 : 1e-4f);
    guard_close("dmod", dmod1, dmod0, d.mods, DT_F32, 2e-5f * (float)s->T + 1e-4f, 1e-4f);
    if (b.h)
        guard_close("h", b.h, ref.h, d.n, dt, 1e-4f, dt == DT_BF16 ? 1.0f / 128 : 2e-5f);
    guard_check_all();
}

static void matches_reference(void **state)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int dt = DT_F32; dt <= DT_BF16; dt++) {
            forward(*state, &shapes[i], (enum dtype)dt, false);
            forward(*state, &shapes[i], (enum dtype)dt, true);
            for (int mode = 0; mode < MODES; mode++)
                backward(*state, &shapes[i], (enum dtype)dt, mode);
        }
    }
}

/* What a backward makes again has the bits that the same device's forward made. */
static void again(struct device *dev, const struct shape *s, enum dtype dt)
{
    struct data d = make(s, dt);
    struct adaln_fwd f = {.x_in = d.x_in,
                          .y = d.y,
                          .gate = d.mod,
                          .shift = d.mod + s->C,
                          .scale = d.mod + 2 * s->C,
                          .mod_ld = d.ld,
                          .B = s->B,
                          .T = s->T,
                          .C = s->C,
                          .dt = dt};
    run_fwd(dev, &f, &d);
    float *dx = guard_randn(d.n, DT_F32, 1), *dmod[2];
    struct adaln_bwd b[2];
    for (int i = 0; i < 2; i++) {
        b[i] = (struct adaln_bwd){.x = i ? d.x_in : f.x,
                                  .x_before = i,
                                  .dh = d.dh,
                                  .stats = f.stats,
                                  .scale = f.scale,
                                  .shift = f.shift,
                                  .y = d.y,
                                  .gate = d.mod,
                                  .mod_ld = d.ld,
                                  .B = s->B,
                                  .T = s->T,
                                  .C = s->C,
                                  .dt = dt};
        dmod[i] = guard_new(d.mods * 4);
        memset(dmod[i], 0, d.mods * 4);
        run_bwd(dev, &b[i], &d, dx, dmod[i]);
        assert_memory_equal(b[i].h, f.h, d.n * dtype_bytes(dt));
    }
    assert_memory_equal(b[0].dx, b[1].dx, d.n * 4);
    assert_memory_equal(b[0].dy, b[1].dy, d.n * dtype_bytes(dt));
    assert_memory_equal(dmod[0], dmod[1], d.mods * 4);
    guard_check_all();
}

static void makes_the_same_bits_again(void **state)
{
    struct devices *dv = *state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int dt = DT_F32; dt <= DT_BF16; dt++) {
            again(dv->ref, &shapes[i], (enum dtype)dt);
            again(dv->fast, &shapes[i], (enum dtype)dt);
        }
}

static void refuses_impossible(void **state)
{
    struct devices *d = *state;
    float x[8] = {0};
    struct adaln_fwd f = {
        .x_in = x, .h = x, .stats = x, .shift = x, .scale = x, .mod_ld = 1, .B = 1, .T = 1, .C = 2};
    assert_int_equal(d->fast->ops->adaln_fwd(d->fast, &f, NULL), -22); /* mod_ld below C */
    f.mod_ld = 2;
    f.stats = NULL;
    assert_int_equal(d->fast->ops->adaln_fwd(d->fast, &f, NULL), -22);
    struct adaln_bwd b = {.dx = x, .mod_ld = 2, .B = 1, .T = 1, .C = 2};
    assert_int_equal(d->ref->ops->adaln_bwd(d->ref, &b, NULL), -22); /* nothing to do */
    b.dh = b.x = b.stats = b.scale = b.dscale = b.dshift = x;
    b.x_before = true;
    assert_int_equal(d->ref->ops->adaln_bwd(d->ref, &b, NULL), -22); /* nothing to add to x */
    b.x_before = false;
    b.h = x;
    assert_int_equal(d->ref->ops->adaln_bwd(d->ref, &b, NULL), -22); /* no shift for h */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_reference),
        cmocka_unit_test(makes_the_same_bits_again),
        cmocka_unit_test(refuses_impossible),
    };
    return cmocka_run_group_tests(tests, devices_setup, devices_teardown);
}
