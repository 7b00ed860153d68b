/* LayerNorm with weights and GroupNorm, once per instruction set. */

#include "common/base/base.h"
#include "kernels/cpu/state.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/vec.h"

enum { ROWS = 32 /* of a task */ };

/* ---- LayerNorm ---- */

/* The residual of row r, when there is one; returns the mean of the row. */
static inline float residual_mean(const struct layernorm_fwd *p, int64_t r, const enum dtype dt)
{
    vf sum = v_zero();
    for (int c = 0; c < p->C; c += VL) {
        vmask m = v_mask(p->C - c);
        vf x = v_load(p->x_in + r * p->C + c, m);
        if (p->y) {
            x = v_add(x, v_load_dt(p->y, dt, r * p->C + c, m));
            v_store(p->x + r * p->C + c, m, x);
        }
        sum = v_add(sum, x);
    }
    return v_sum(sum) / (float)p->C;
}

static inline void layer_rows(const struct layernorm_fwd *p, int task, const enum dtype dt)
{
    const int64_t begin = (int64_t)task * ROWS;
    for (int64_t r = begin; r < p->rows && r < begin + ROWS; r++) {
        const vf mean = v_set(residual_mean(p, r, dt));
        const float *x = (p->y ? p->x : p->x_in) + r * p->C;
        vf var = v_zero();
        if (!p->h)
            continue;
        for (int c = 0; c < p->C; c += VL) {
            vmask m = v_mask(p->C - c);
            vf d = v_select(m, v_sub(v_load(x + c, m), mean), v_zero());
            var = v_fma(d, d, var);
        }
        const vf rstd = v_set(1.0f / sqrtf(v_sum(var) / (float)p->C + p->eps));
        for (int c = 0; c < p->C; c += VL) {
            vmask m = v_mask(p->C - c);
            vf xhat = v_mul(v_sub(v_load(x + c, m), mean), rstd);
            v_store_dt(p->h, dt, r * p->C + c, m,
                       v_fma(xhat, v_load(p->w + c, m), v_load(p->b + c, m)));
        }
    }
}

static void layer_task(void *arg, int task, int thread)
{
    const struct layernorm_fwd *p = arg;
    if (p->dt == DT_BF16)
        layer_rows(p, task, DT_BF16);
    else
        layer_rows(p, task, DT_F32);
}

static int layernorm_fwd(struct device *dev, const struct layernorm_fwd *p, struct stream *s)
{
    struct layernorm_fwd copy = *p;
    cpu_team_run(cpu_state(dev)->team, layer_task, &copy, (int)((p->rows + ROWS - 1) / ROWS));
    return 0;
}

/* ---- GroupNorm ----
 *
 * One pass for the sums of blocks of pixels, channel by channel, of x and of x² after the
 * channel's first value is taken off, which keeps the squares small where the mean is large;
 * these sums are added in f64, in order; then a pass that norms. */

enum { BLOCK = 16384, SIDE_BY_SIDE = 4 }; /* values of a task; vectors of channels */

struct group_job {
    const struct groupnorm_fwd *p;
    int64_t rows; /* pixels of a block */
    int blocks;   /* of a sample */
    float *sums;  /* (B,blocks,2,C) */
    double *all;  /* (B,2,C): the same over all blocks */
    float *coef;  /* (B,2,C): mean of the channel's group, w / std */
};

/* The channels from c on, SIDE_BY_SIDE vectors of them. */
static inline void block_channels(const struct group_job *j, float *out, int64_t first, int64_t at,
                                  int64_t rows, int c, const enum dtype dt)
{
    const int C = j->p->C;
    vf shift[SIDE_BY_SIDE], sum[SIDE_BY_SIDE], square[SIDE_BY_SIDE];
    vmask m[SIDE_BY_SIDE];
    for (int v = 0; v < SIDE_BY_SIDE; v++) {
        const int left = C - c - v * VL;
        m[v] = v_mask(left);
        shift[v] = left > 0 ? v_load_dt(j->p->x, dt, first + c + v * VL, m[v]) : v_zero();
        sum[v] = square[v] = v_zero();
    }
    for (int64_t r = 0; r < rows; r++, at += C)
        for (int v = 0; v < SIDE_BY_SIDE && c + v * VL < C; v++) {
            vf d = v_sub(v_load_dt(j->p->x, dt, at + c + v * VL, m[v]), shift[v]);
            sum[v] = v_add(sum[v], d);
            square[v] = v_fma(d, d, square[v]);
        }
    for (int v = 0; v < SIDE_BY_SIDE && c + v * VL < C; v++) {
        v_store(out + c + v * VL, m[v], sum[v]);
        v_store(out + C + c + v * VL, m[v], square[v]);
    }
}

/* First element and pixels of a block. */
static int64_t block_of(const struct group_job *j, int task, int64_t *ret_rows)
{
    const int64_t begin = task % j->blocks * j->rows, left = j->p->N - begin;
    *ret_rows = left < j->rows ? left : j->rows;
    return (task / j->blocks * j->p->N + begin) * j->p->C;
}

static void sums_task(void *arg, int task, int thread)
{
    const struct group_job *j = arg;
    const struct groupnorm_fwd *p = j->p;
    int64_t rows, at = block_of(j, task, &rows), first = task / j->blocks * p->N * p->C;
    float *out = j->sums + (int64_t)task * 2 * p->C;
    for (int c = 0; c < p->C; c += SIDE_BY_SIDE * VL)
        if (p->dt == DT_BF16)
            block_channels(j, out, first, at, rows, c, DT_BF16);
        else
            block_channels(j, out, first, at, rows, c, DT_F32);
}

/* The coefficients of a group: channels c0..end-1 of sample b. */
static void group_coef(const struct group_job *j, int b, int c0, int end)
{
    const struct groupnorm_fwd *p = j->p;
    const int C = p->C;
    const double *sum = j->all + (int64_t)b * 2 * C, *square = sum + C;
    const double each = (double)p->N, n = each * (end - c0);
    double mean = 0, var = 0;
    float *out = j->coef + (int64_t)b * 2 * C;
    for (int c = c0; c < end; c++)
        mean += sum[c] + each * (double)dtype_get(p->x, p->dt, (size_t)(b * p->N * C + c));
    mean /= n;
    for (int c = c0; c < end; c++) {
        double d = (double)dtype_get(p->x, p->dt, (size_t)(b * p->N * C + c)) - mean;
        var += square[c] + d * (2 * sum[c] + each * d);
    }
    const double rstd = 1.0 / sqrt((var > 0 ? var : 0) / n + (double)p->eps);
    for (int c = c0; c < end; c++) {
        out[c] = (float)mean;
        out[C + c] = (float)rstd * p->w[c];
    }
}

static void coef_task(void *arg, int b, int thread)
{
    const struct group_job *j = arg;
    const int C = j->p->C, each = C / j->p->groups;
    double *all = j->all + (int64_t)b * 2 * C;
    memset(all, 0, (size_t)(2 * C) * sizeof *all);
    for (int k = 0; k < j->blocks; k++) {
        const float *part = j->sums + ((int64_t)b * j->blocks + k) * 2 * C;
        for (int c = 0; c < 2 * C; c++)
            all[c] += (double)part[c];
    }
    for (int c = 0; c < C; c += each)
        group_coef(j, b, c, c + each);
}

static inline void norm_block(const struct group_job *j, int task, const enum dtype dt,
                              const bool silu)
{
    const struct groupnorm_fwd *p = j->p;
    const float *mean = j->coef + (int64_t)(task / j->blocks) * 2 * p->C, *mul = mean + p->C;
    int64_t rows, at = block_of(j, task, &rows);
    for (int64_t r = 0; r < rows; r++, at += p->C)
        for (int c = 0; c < p->C; c += VL) {
            vmask m = v_mask(p->C - c);
            vf d = v_sub(v_load_dt(p->x, dt, at + c, m), v_load(mean + c, m));
            vf v = v_fma(d, v_load(mul + c, m), v_load(p->b + c, m));
            v_store_dt(p->y, dt, at + c, m, silu ? v_mul(v, v_sigmoid(v)) : v);
        }
}

static void norm_task(void *arg, int task, int thread)
{
    const struct group_job *j = arg;
    const bool half = j->p->dt == DT_BF16;
    if (half && j->p->silu)
        norm_block(j, task, DT_BF16, true);
    else if (half)
        norm_block(j, task, DT_BF16, false);
    else if (j->p->silu)
        norm_block(j, task, DT_F32, true);
    else
        norm_block(j, task, DT_F32, false);
}

static int groupnorm_fwd(struct device *dev, const struct groupnorm_fwd *p, struct stream *s)
{
    struct cpu_state *st = cpu_state(dev);
    struct group_job j = {.p = p, .rows = p->C && p->C < BLOCK / 16 ? BLOCK / p->C : 16};
    if (p->B == 0 || p->N == 0 || p->C == 0)
        return 0;
    j.blocks = (int)((p->N + j.rows - 1) / j.rows);
    const size_t row = (size_t)p->B * 2 * (size_t)p->C;
    j.all = cpu_scratch(st, SCRATCH_PACKED,
                        row * (sizeof *j.all + (1 + (size_t)j.blocks) * sizeof(float)));
    if (!j.all)
        return -ENOMEM;
    j.coef = (float *)(void *)(j.all + row);
    j.sums = j.coef + row;
    cpu_team_run(st->team, sums_task, &j, p->B * j.blocks);
    cpu_team_run(st->team, coef_task, &j, p->B);
    cpu_team_run(st->team, norm_task, &j, p->B * j.blocks);
    return 0;
}

void FOR_ISA(norm_install)(struct kernel_ops *ops)
{
    ops->layernorm_fwd = layernorm_fwd;
    ops->groupnorm_fwd = groupnorm_fwd;
}
