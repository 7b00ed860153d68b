/* adaLN, once per instruction set. */

#include "common/base/base.h"
#include "kernels/cpu/state.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/vec.h"

/* Rows of a task.  In the backward also the rows whose sums are taken together: with more
 * tokens, partial sums are added in order afterwards. */
enum { ROWS = 64, FWD_ROWS = 32 };

/* ---- forward ---- */

/* x of the row, with the residual added; returns its sum. */
static inline vf residual_row(const struct adaln_fwd *p, int64_t r, int64_t mod,
                              const enum dtype dt)
{
    vf sum = v_zero();
    for (int c = 0; c < p->C; c += VL) {
        vmask m = v_mask(p->C - c);
        vf x = v_load(p->x_in + r * p->C + c, m);
        if (p->y) {
            vf y = v_load_dt(p->y, dt, r * p->C + c, m);
            x = v_fma(v_load(p->gate + mod + c, m), y, x);
            v_store(p->x + r * p->C + c, m, x);
        }
        sum = v_add(sum, x);
    }
    return sum;
}

static inline void norm_row(const struct adaln_fwd *p, const float *x, int64_t r, int64_t mod,
                            float mean, const enum dtype dt)
{
    vf var = v_zero(), mu = v_set(mean);
    for (int c = 0; c < p->C; c += VL) {
        vmask m = v_mask(p->C - c);
        vf d = v_select(m, v_sub(v_load(x + c, m), mu), v_zero());
        var = v_fma(d, d, var);
    }
    float rstd = 1.0f / sqrtf(v_sum(var) / (float)p->C + 1e-6f);
    vf rs = v_set(rstd), one = v_set(1);
    for (int c = 0; c < p->C; c += VL) {
        vmask m = v_mask(p->C - c);
        vf xhat = v_mul(v_sub(v_load(x + c, m), mu), rs);
        vf scale = v_add(v_load(p->scale + mod + c, m), one);
        v_store_dt(p->h, dt, r * p->C + c, m, v_fma(xhat, scale, v_load(p->shift + mod + c, m)));
    }
    p->stats[2 * r] = mean;
    p->stats[2 * r + 1] = rstd;
}

static inline void fwd_rows(const struct adaln_fwd *p, int task, const enum dtype dt)
{
    int64_t rows = (int64_t)p->B * p->T, begin = (int64_t)task * FWD_ROWS;
    for (int64_t r = begin; r < rows && r < begin + FWD_ROWS; r++) {
        int64_t mod = r / p->T * p->mod_ld;
        vf sum = residual_row(p, r, mod, dt);
        if (p->h)
            norm_row(p, (p->y ? p->x : p->x_in) + r * p->C, r, mod, v_sum(sum) / (float)p->C, dt);
    }
}

static void fwd_task(void *arg, int task, int thread)
{
    const struct adaln_fwd *p = arg;
    if (p->dt == DT_BF16)
        fwd_rows(p, task, DT_BF16);
    else
        fwd_rows(p, task, DT_F32);
}

static int fwd(struct device *dev, const struct adaln_fwd *p, struct stream *s)
{
    struct adaln_fwd copy = *p;
    int64_t rows = (int64_t)p->B * p->T;
    cpu_team_run(cpu_state(dev)->team, fwd_task, &copy, (int)((rows + FWD_ROWS - 1) / FWD_ROWS));
    return 0;
}

/* ---- backward ---- */

struct bwd_job {
    const struct adaln_bwd *p;
    int blocks;     /* of rows per sample */
    float *partial; /* (B, blocks, 3, C): shift, scale, gate; NULL with one block */
};

/* Where the sums of one block of rows go. */
struct sums {
    float *shift, *scale, *gate;
};

/* The forward's x of a row at column c. */
static inline vf bwd_x(const struct adaln_bwd *p, int64_t r, int64_t mod, int c, vmask m,
                       const enum dtype dt)
{
    vf x = v_load(p->x + r * p->C + c, m);
    if (p->x_before)
        x = v_fma(v_load(p->gate + mod + c, m), v_load_dt(p->y, dt, r * p->C + c, m), x);
    return x;
}

/* First pass of a row: sums over its channels, and its part of dshift and dscale. */
static inline void bwd_sums(const struct adaln_bwd *p, int64_t r, int64_t mod,
                            const struct sums *out, float means[2], const enum dtype dt)
{
    vf mu = v_set(p->stats[2 * r]), rs = v_set(p->stats[2 * r + 1]), one = v_set(1);
    vf sum_g = v_zero(), sum_gx = v_zero();
    for (int c = 0; c < p->C; c += VL) {
        vmask m = v_mask(p->C - c);
        vf dh = v_load_dt(p->dh, dt, r * p->C + c, m);
        vf xhat = v_mul(v_sub(bwd_x(p, r, mod, c, m, dt), mu), rs);
        vf g = v_mul(dh, v_add(v_load(p->scale + mod + c, m), one));
        v_store(out->shift + c, m, v_add(v_load(out->shift + c, m), dh));
        v_store(out->scale + c, m, v_fma(dh, xhat, v_load(out->scale + c, m)));
        sum_g = v_add(sum_g, g);
        sum_gx = v_fma(g, xhat, sum_gx);
    }
    means[0] = v_sum(sum_g) / (float)p->C;
    means[1] = v_sum(sum_gx) / (float)p->C;
}

/* Second pass: dx, h again, and what flows through the gate. */
static inline void bwd_row(const struct adaln_bwd *p, int64_t r, int64_t mod,
                           const struct sums *out, const float means[2], const enum dtype dt)
{
    vf mu = v_zero(), rs = v_zero(), mean_g = v_zero(), mean_gx = v_zero(), one = v_set(1);
    if (p->dh) {
        mu = v_set(p->stats[2 * r]);
        rs = v_set(p->stats[2 * r + 1]);
        mean_g = v_set(means[0]);
        mean_gx = v_set(means[1]);
    }
    for (int c = 0; c < p->C; c += VL) {
        vmask m = v_mask(p->C - c);
        int64_t at = r * p->C + c;
        vf dx = p->dx_set ? v_zero() : v_load(p->dx + at, m);
        if (p->dh) {
            vf xhat = v_mul(v_sub(bwd_x(p, r, mod, c, m, dt), mu), rs);
            vf scale = v_add(v_load(p->scale + mod + c, m), one);
            vf g = v_mul(v_load_dt(p->dh, dt, at, m), scale);
            if (p->h)
                v_store_dt(p->h, dt, at, m, v_fma(xhat, scale, v_load(p->shift + mod + c, m)));
            dx = v_fma(rs, v_fnma(xhat, mean_gx, v_sub(g, mean_g)), dx);
            v_store(p->dx + at, m, dx);
        }
        if (p->y) {
            vf gate = v_load(out->gate + c, m);
            v_store(out->gate + c, m, v_fma(dx, v_load_dt(p->y, dt, at, m), gate));
            v_store_dt(p->dy, dt, at, m, v_mul(v_load(p->gate + mod + c, m), dx));
        }
    }
}

static inline void bwd_rows(const struct bwd_job *j, int task, const enum dtype dt)
{
    const struct adaln_bwd *p = j->p;
    int b = task / j->blocks, block = task % j->blocks;
    int64_t mod = (int64_t)b * p->mod_ld;
    struct sums out = {p->dshift + mod, p->dscale + mod, p->dgate ? p->dgate + mod : NULL};
    if (j->partial) {
        out.shift = j->partial + (int64_t)task * 3 * p->C;
        out.scale = out.shift + p->C;
        out.gate = out.scale + p->C;
    }
    for (int c = 0; c < p->C; c += VL) {
        vmask m = v_mask(p->C - c);
        if (p->dh) {
            v_store(out.shift + c, m, v_zero());
            v_store(out.scale + c, m, v_zero());
        }
        if (p->y)
            v_store(out.gate + c, m, v_zero());
    }
    int end = (block + 1) * ROWS < p->T ? (block + 1) * ROWS : p->T;
    for (int t = block * ROWS; t < end; t++) {
        int64_t r = (int64_t)b * p->T + t;
        float means[2] = {0, 0};
        if (p->dh)
            bwd_sums(p, r, mod, &out, means, dt);
        bwd_row(p, r, mod, &out, means, dt);
    }
}

static void bwd_task(void *arg, int task, int thread)
{
    const struct bwd_job *j = arg;
    if (j->p->dt == DT_BF16)
        bwd_rows(j, task, DT_BF16);
    else
        bwd_rows(j, task, DT_F32);
}

/* Adds the partial sums of one sample, blocks in order. */
static void add_partial(const struct bwd_job *j, float *out, int b, int which)
{
    const struct adaln_bwd *p = j->p;
    for (int c = 0; c < p->C; c += VL) {
        vmask m = v_mask(p->C - c);
        vf sum = v_zero();
        for (int k = 0; k < j->blocks; k++)
            sum = v_add(
                sum, v_load(j->partial + (((int64_t)b * j->blocks + k) * 3 + which) * p->C + c, m));
        v_store(out + (int64_t)b * p->mod_ld + c, m, sum);
    }
}

static int bwd(struct device *dev, const struct adaln_bwd *p, struct stream *s)
{
    struct cpu_state *st = cpu_state(dev);
    struct bwd_job j = {.p = p, .blocks = (p->T + ROWS - 1) / ROWS};
    /* No tokens still means zeroed sums. */
    if (j.blocks == 0)
        j.blocks = 1;
    if (j.blocks > 1) {
        j.partial =
            cpu_scratch(st, SCRATCH_PACKED, (size_t)p->B * (size_t)j.blocks * 3 * (size_t)p->C * 4);
        if (!j.partial)
            return -ENOMEM;
    }
    cpu_team_run(st->team, bwd_task, &j, p->B * j.blocks);
    for (int b = 0; j.partial && b < p->B; b++) {
        if (p->dh) {
            add_partial(&j, p->dshift, b, 0);
            add_partial(&j, p->dscale, b, 1);
        }
        if (p->y)
            add_partial(&j, p->dgate, b, 2);
    }
    return 0;
}

void FOR_ISA(adaln_install)(struct kernel_ops *ops)
{
    ops->adaln_fwd = fwd;
    ops->adaln_bwd = bwd;
}
