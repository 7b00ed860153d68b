/* A decoder's operations besides attention, once per instruction set. */

#include "common/base/base.h"
#include "kernels/cpu/state.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/ref.h"
#include "kernels/cpu/vec.h"

/* Rows of a task; in the backward of RMSNorm also those whose sums are taken together. */
enum { ROWS = 32, SUM_ROWS = 64, SUM_COLS = 64 };

static int blocks_of(int64_t rows, int64_t size)
{
    return (int)((rows + size - 1) / size);
}

static int64_t end_of(int task, int64_t size, int64_t rows)
{
    int64_t end = (int64_t)(task + 1) * size;
    return end < rows ? end : rows;
}

/* ---- RMSNorm ---- */

/* The residual of row r, when there is one; returns the sum of squares. */
static inline float add_residual(const struct rmsnorm_fwd *p, int64_t r, const enum dtype dt)
{
    vf sum = v_zero();
    for (int c = 0; c < p->C; c += VL) {
        vmask m = v_mask(p->C - c);
        vf x = v_load(p->x_in + r * p->C + c, m);
        if (p->y) {
            x = v_add(x, v_load_dt(p->y, dt, r * p->C + c, m));
            v_store(p->x + r * p->C + c, m, x);
        }
        sum = v_fma(x, x, sum);
    }
    return v_sum(sum);
}

static inline void norm_rows(const struct rmsnorm_fwd *p, int task, const enum dtype dt)
{
    for (int64_t r = (int64_t)task * ROWS; r < end_of(task, ROWS, p->rows); r++) {
        float square = add_residual(p, r, dt);
        if (!p->h)
            continue;
        const float *x = (p->y ? p->x : p->x_in) + r * p->C;
        float rstd = 1.0f / sqrtf(square / (float)p->C + p->eps);
        vf rs = v_set(rstd);
        for (int c = 0; c < p->C; c += VL) {
            vmask m = v_mask(p->C - c);
            vf h = v_mul(v_mul(v_load(x + c, m), rs), v_load(p->w + c, m));
            v_store_dt(p->h, dt, r * p->C + c, m, h);
        }
        if (p->rstd)
            p->rstd[r] = rstd;
    }
}

static void norm_task(void *arg, int task, int thread)
{
    const struct rmsnorm_fwd *p = arg;
    if (p->dt == DT_BF16)
        norm_rows(p, task, DT_BF16);
    else
        norm_rows(p, task, DT_F32);
}

static int rmsnorm_fwd(struct device *dev, const struct rmsnorm_fwd *p, struct stream *s)
{
    struct rmsnorm_fwd copy = *p;
    cpu_team_run(cpu_state(dev)->team, norm_task, &copy, blocks_of(p->rows, ROWS));
    return 0;
}

/* Sums of blocks of rows, (blocks,C), that are added to dw (C). */
struct norm_sums {
    float *partial, *dw;
    int blocks, C;
};

/* Adds the blocks' parts of some columns of dw, in order. */
static void norm_dw_task(void *arg, int task, int thread)
{
    const struct norm_sums *n = arg;
    for (int c = task * SUM_COLS; c < end_of(task, SUM_COLS, n->C); c += VL) {
        vmask m = v_mask(n->C - c);
        vf sum = v_zero();
        for (int k = 0; k < n->blocks; k++)
            sum = v_add(sum, v_load(n->partial + (int64_t)k * n->C + c, m));
        v_store(n->dw + c, m, v_add(v_load(n->dw + c, m), sum));
    }
}

/* Room for the sums of blocks of rows; -ENOMEM. */
static int norm_sums_init(struct norm_sums *n, struct cpu_state *st, float *dw, int64_t rows, int C)
{
    *n = (struct norm_sums){.dw = dw, .blocks = blocks_of(rows, SUM_ROWS), .C = C};
    n->partial = cpu_scratch(st, SCRATCH_PACKED, (size_t)n->blocks * (size_t)C * 4);
    return n->partial || !n->blocks || !C ? 0 : -ENOMEM;
}

/* A block's own, which begin as zeros. */
static inline float *norm_sums_of(const struct norm_sums *n, int block)
{
    float *dw = n->partial + (int64_t)block * n->C;
    for (int c = 0; c < n->C; c += VL)
        v_store(dw + c, v_mask(n->C - c), v_zero());
    return dw;
}

struct norm_bwd_job {
    const struct rmsnorm_bwd *p;
    struct norm_sums sums;
};

/* First pass of a row: its part of dw; returns mean(dh * w * xhat). */
static inline float norm_mean(const struct rmsnorm_bwd *p, int64_t r, float *dw,
                              const enum dtype dt)
{
    vf rs = v_set(p->rstd[r]), sum = v_zero();
    for (int c = 0; c < p->C; c += VL) {
        vmask m = v_mask(p->C - c);
        vf dh = v_load_dt(p->dh, dt, r * p->C + c, m);
        vf g = v_mul(dh, v_mul(v_load(p->x + r * p->C + c, m), rs));
        v_store(dw + c, m, v_add(v_load(dw + c, m), g));
        sum = v_fma(g, v_load(p->w + c, m), sum);
    }
    return v_sum(sum) / (float)p->C;
}

static inline void norm_grad(const struct rmsnorm_bwd *p, int64_t r, float mean,
                             const enum dtype dt)
{
    vf rs = v_set(p->rstd[r]), mean_gx = v_set(mean);
    for (int c = 0; c < p->C; c += VL) {
        vmask m = v_mask(p->C - c);
        int64_t at = r * p->C + c;
        vf xhat = v_mul(v_load(p->x + at, m), rs);
        vf g = v_mul(v_load_dt(p->dh, dt, at, m), v_load(p->w + c, m));
        vf old = p->dx_set ? v_zero() : v_load(p->dx + at, m);
        vf dx = v_fma(rs, v_fnma(xhat, mean_gx, g), old);
        v_store(p->dx + at, m, dx);
        if (p->dy)
            v_store_dt(p->dy, dt, at, m, dx);
    }
}

static inline void norm_bwd_rows(const struct norm_bwd_job *j, int task, const enum dtype dt)
{
    const struct rmsnorm_bwd *p = j->p;
    float *dw = norm_sums_of(&j->sums, task);
    for (int64_t r = (int64_t)task * SUM_ROWS; r < end_of(task, SUM_ROWS, p->rows); r++)
        norm_grad(p, r, norm_mean(p, r, dw, dt), dt);
}

static void norm_bwd_task(void *arg, int task, int thread)
{
    const struct norm_bwd_job *j = arg;
    if (j->p->dt == DT_BF16)
        norm_bwd_rows(j, task, DT_BF16);
    else
        norm_bwd_rows(j, task, DT_F32);
}

static int rmsnorm_bwd(struct device *dev, const struct rmsnorm_bwd *p, struct stream *s)
{
    struct cpu_state *st = cpu_state(dev);
    struct norm_bwd_job j = {.p = p};
    int rc = norm_sums_init(&j.sums, st, p->dw, p->rows, p->C);
    if (rc < 0)
        return rc;
    cpu_team_run(st->team, norm_bwd_task, &j, j.sums.blocks);
    cpu_team_run(st->team, norm_dw_task, &j.sums, blocks_of(p->C, SUM_COLS));
    return 0;
}

/* ---- RMSNorm of each head ---- */

struct head_job {
    const struct headnorm *p;
    int64_t ld;
    struct norm_sums sums; /* backward only */
};

static inline void head_norm(const struct head_job *j, int64_t at, int64_t dense,
                             const enum dtype dt)
{
    const struct headnorm *p = j->p;
    vf sum = v_zero();
    for (int d = 0; d < p->D; d += VL) {
        vmask m = v_mask(p->D - d);
        vf x = v_load_dt(p->x, dt, at + d, m);
        if (p->kept)
            v_store_dt(p->kept, dt, dense + d, m, x);
        sum = v_fma(x, x, sum);
    }
    vf rs = v_set(1.0f / sqrtf(v_sum(sum) / (float)p->D + p->eps));
    for (int d = 0; d < p->D; d += VL) {
        vmask m = v_mask(p->D - d);
        vf x = v_mul(v_load_dt(p->x, dt, at + d, m), rs);
        v_store_dt(p->x, dt, at + d, m, v_mul(x, v_load(p->w + d, m)));
    }
}

static inline void head_grad(const struct head_job *j, int64_t at, int64_t dense, float *dw,
                             const enum dtype dt)
{
    const struct headnorm *p = j->p;
    vf square = v_zero(), dot = v_zero();
    for (int d = 0; d < p->D; d += VL) {
        vmask m = v_mask(p->D - d);
        vf x = v_load_dt(p->kept, dt, dense + d, m);
        vf g = v_mul(v_load_dt(p->x, dt, at + d, m), v_load(p->w + d, m));
        square = v_fma(x, x, square);
        dot = v_fma(g, x, dot);
    }
    const float rstd = 1.0f / sqrtf(v_sum(square) / (float)p->D + p->eps);
    vf rs = v_set(rstd), mean = v_set(v_sum(dot) * rstd / (float)p->D);
    for (int d = 0; d < p->D; d += VL) {
        vmask m = v_mask(p->D - d);
        vf g = v_load_dt(p->x, dt, at + d, m),
           xhat = v_mul(v_load_dt(p->kept, dt, dense + d, m), rs);
        v_store(dw + d, m, v_fma(g, xhat, v_load(dw + d, m)));
        v_store_dt(p->x, dt, at + d, m,
                   v_mul(rs, v_fnma(xhat, mean, v_mul(g, v_load(p->w + d, m)))));
    }
}

/* Some rows, forward, or backward with dw. */
static inline void head_rows(const struct head_job *j, int64_t from, int64_t to, float *dw,
                             const enum dtype dt)
{
    const struct headnorm *p = j->p;
    for (int64_t r = from; r < to; r++) {
        for (int h = 0; h < p->heads; h++) {
            const int64_t at = r * j->ld + (int64_t)h * p->D, dense = (r * p->heads + h) * p->D;
            if (dw)
                head_grad(j, at, dense, dw, dt);
            else
                head_norm(j, at, dense, dt);
        }
    }
}

static void head_task(void *arg, int task, int thread)
{
    const struct head_job *j = arg;
    const int64_t from = (int64_t)task * ROWS, to = end_of(task, ROWS, j->p->rows);
    if (j->p->dt == DT_BF16)
        head_rows(j, from, to, NULL, DT_BF16);
    else
        head_rows(j, from, to, NULL, DT_F32);
}

static void head_bwd_task(void *arg, int task, int thread)
{
    const struct head_job *j = arg;
    const int64_t from = (int64_t)task * SUM_ROWS, to = end_of(task, SUM_ROWS, j->p->rows);
    float *dw = norm_sums_of(&j->sums, task);
    if (j->p->dt == DT_BF16)
        head_rows(j, from, to, dw, DT_BF16);
    else
        head_rows(j, from, to, dw, DT_F32);
}

static int headnorm_fwd(struct device *dev, const struct headnorm *p, struct stream *s)
{
    struct head_job j = {.p = p, .ld = p->ld ? p->ld : (int64_t)p->heads * p->D};
    cpu_team_run(cpu_state(dev)->team, head_task, &j, blocks_of(p->rows, ROWS));
    return 0;
}

static int headnorm_bwd(struct device *dev, const struct headnorm *p, struct stream *s)
{
    struct cpu_state *st = cpu_state(dev);
    struct head_job j = {.p = p, .ld = p->ld ? p->ld : (int64_t)p->heads * p->D};
    int rc = norm_sums_init(&j.sums, st, p->dw, p->rows, p->D);
    if (rc < 0)
        return rc;
    cpu_team_run(st->team, head_bwd_task, &j, j.sums.blocks);
    cpu_team_run(st->team, norm_dw_task, &j.sums, blocks_of(p->D, SUM_COLS));
    return 0;
}

/* ---- rotary positions ---- */

enum { HALF_MAX = 128 };

struct rope_job {
    const struct rope *p;
    int64_t ld;
    float freq[HALF_MAX + VL];
};

static inline void turn_row(const struct rope_job *j, int64_t r, const float *cosine,
                            const float *sine, const enum dtype dt)
{
    const int half = j->p->D / 2;
    for (int h = 0; h < j->p->heads; h++) {
        int64_t lo = r * j->ld + (int64_t)h * j->p->D, hi = lo + half;
        for (int i = 0; i < half; i += VL) {
            vmask m = v_mask(half - i);
            vf co = v_load(cosine + i, v_mask(VL)), si = v_load(sine + i, v_mask(VL));
            vf a = v_load_dt(j->p->x, dt, lo + i, m), b = v_load_dt(j->p->x, dt, hi + i, m);
            v_store_dt(j->p->x, dt, lo + i, m, v_fnma(b, si, v_mul(a, co)));
            v_store_dt(j->p->x, dt, hi + i, m, v_fma(a, si, v_mul(b, co)));
        }
    }
}

static void rope_task(void *arg, int task, int thread)
{
    const struct rope_job *j = arg;
    const struct rope *p = j->p;
    float cosine[HALF_MAX + VL], sine[HALF_MAX + VL];
    for (int64_t r = (int64_t)task * ROWS; r < end_of(task, ROWS, p->rows); r++) {
        vf pos = v_set((float)p->pos[r]);
        for (int i = 0; i < p->D / 2; i += VL) {
            vf si, co = v_cos_sin(v_mul(pos, v_load(j->freq + i, v_mask(VL))), &si);
            v_store(cosine + i, v_mask(VL), co);
            v_store(sine + i, v_mask(VL), p->inverse ? v_sub(v_zero(), si) : si);
        }
        if (p->dt == DT_BF16)
            turn_row(j, r, cosine, sine, DT_BF16);
        else
            turn_row(j, r, cosine, sine, DT_F32);
    }
}

static int rope(struct device *dev, const struct rope *p, struct stream *s)
{
    struct rope_job j = {.p = p, .ld = p->ld ? p->ld : (int64_t)p->heads * p->D};
    for (int i = 0; i < p->D / 2; i++)
        j.freq[i] = rope_freq(p->theta, &p->scaling, i, p->D);
    cpu_team_run(cpu_state(dev)->team, rope_task, &j, blocks_of(p->rows, ROWS));
    return 0;
}

/* ---- SwiGLU, and GELU in SiLU's place ---- */

/* Elements of one task, about. */
enum { SWIGLU_CHUNK = 8192 };

struct swiglu_job {
    void *out;
    const void *dact, *gu;
    int64_t rows, M, block; /* rows of a task */
    enum dtype dt;
    bool gelu;
};

static inline void swiglu_rows(const struct swiglu_job *j, int task, const enum dtype dt)
{
    const int64_t M = j->M;
    for (int64_t r = task * j->block; r < end_of(task, j->block, j->rows); r++) {
        for (int64_t i = 0; i < M; i += VL) {
            vmask m = v_mask(M - i);
            vf gate = v_load_dt(j->gu, dt, 2 * r * M + i, m);
            vf up = v_load_dt(j->gu, dt, (2 * r + 1) * M + i, m);
            vf act = j->gelu ? v_gelu(gate) : v_mul(gate, v_sigmoid(gate));
            v_store_dt(j->out, dt, r * M + i, m, v_mul(act, up));
        }
    }
}

static inline void dswiglu_rows(const struct swiglu_job *j, int task, const enum dtype dt)
{
    const int64_t M = j->M;
    const vf one = v_set(1);
    for (int64_t r = task * j->block; r < end_of(task, j->block, j->rows); r++) {
        for (int64_t i = 0; i < M; i += VL) {
            vmask m = v_mask(M - i);
            vf gate = v_load_dt(j->gu, dt, 2 * r * M + i, m);
            vf up = v_load_dt(j->gu, dt, (2 * r + 1) * M + i, m);
            vf d = v_load_dt(j->dact, dt, r * M + i, m), sig = v_sigmoid(gate);
            vf slope = v_mul(sig, v_fma(gate, v_sub(one, sig), one));
            v_store_dt(j->out, dt, 2 * r * M + i, m, v_mul(v_mul(d, up), slope));
            v_store_dt(j->out, dt, (2 * r + 1) * M + i, m, v_mul(d, v_mul(gate, sig)));
        }
    }
}

static void swiglu_task(void *arg, int task, int thread)
{
    const struct swiglu_job *j = arg;
    if (j->dact && j->dt == DT_BF16)
        dswiglu_rows(j, task, DT_BF16);
    else if (j->dact)
        dswiglu_rows(j, task, DT_F32);
    else if (j->dt == DT_BF16)
        swiglu_rows(j, task, DT_BF16);
    else
        swiglu_rows(j, task, DT_F32);
}

static int run_swiglu(struct device *dev, struct swiglu_job *j)
{
    j->block = j->M && j->M < SWIGLU_CHUNK ? SWIGLU_CHUNK / j->M : 1;
    cpu_team_run(cpu_state(dev)->team, swiglu_task, j, blocks_of(j->rows, j->block));
    return 0;
}

static int swiglu_fwd(struct device *dev, void *act, const void *gu, int64_t rows, int64_t M,
                      enum dtype dt, struct stream *s)
{
    return run_swiglu(dev,
                      &(struct swiglu_job){.out = act, .gu = gu, .rows = rows, .M = M, .dt = dt});
}

static int geglu_fwd(struct device *dev, void *act, const void *gu, int64_t rows, int64_t M,
                     enum dtype dt, struct stream *s)
{
    return run_swiglu(dev, &(struct swiglu_job){
                               .out = act, .gu = gu, .rows = rows, .M = M, .dt = dt, .gelu = true});
}

static int swiglu_bwd(struct device *dev, void *dgu, const void *dact, const void *gu, int64_t rows,
                      int64_t M, enum dtype dt, struct stream *s)
{
    return run_swiglu(dev, &(struct swiglu_job){
                               .out = dgu, .dact = dact, .gu = gu, .rows = rows, .M = M, .dt = dt});
}

/* ---- cross entropy ---- */

/* Sum of exp(logits - max) of the row from element `at`. */
static inline float exp_sum(const struct cross_entropy *p, int64_t at, const enum dtype dt,
                            float *ret_max)
{
    vf best = v_set(-INFINITY), sum = v_zero();
    for (int i = 0; i < p->V; i += VL) {
        vmask m = v_mask(p->V - i);
        best = v_max(best, v_select(m, v_load_dt(p->logits, dt, at + i, m), v_set(-INFINITY)));
    }
    *ret_max = v_hmax(best);
    vf top = v_set(*ret_max);
    for (int i = 0; i < p->V; i += VL) {
        vmask m = v_mask(p->V - i);
        vf e = v_exp(v_sub(v_load_dt(p->logits, dt, at + i, m), top));
        sum = v_add(sum, v_select(m, e, v_zero()));
    }
    return v_sum(sum);
}

static inline void entropy_row(const struct cross_entropy *p, int64_t r, const enum dtype dt,
                               const enum dtype grad_dt)
{
    const int64_t at = r * p->V;
    const int32_t target = p->target[r];
    if (target < 0) {
        p->loss[r] = 0;
        for (int i = 0; p->dlogits && i < p->V; i += VL)
            v_store_dt(p->dlogits, grad_dt, at + i, v_mask(p->V - i), v_zero());
        return;
    }
    float max, sum = exp_sum(p, at, dt, &max);
    float own = dtype_get(p->logits, dt, (size_t)(at + target)) - max;
    float factor = p->grad_scale * (p->w ? p->w[r] : 1.0f);
    vf top = v_set(max), scale = v_set(factor / sum);
    p->loss[r] = logf(sum) - own;
    if (!p->dlogits)
        return;
    for (int i = 0; i < p->V; i += VL) {
        vmask m = v_mask(p->V - i);
        vf e = v_exp(v_sub(v_load_dt(p->logits, dt, at + i, m), top));
        v_store_dt(p->dlogits, grad_dt, at + i, m, v_mul(e, scale));
    }
    dtype_set(p->dlogits, grad_dt, (size_t)(at + target), factor * (expf(own) / sum - 1.0f));
}

static void entropy_task(void *arg, int task, int thread)
{
    const struct cross_entropy *p = arg;
    const bool wide = p->dt == DT_F32, wide_grad = p->grad_dt == DT_F32;
    for (int64_t r = (int64_t)task * ROWS; r < end_of(task, ROWS, p->rows); r++) {
        if (wide && wide_grad)
            entropy_row(p, r, DT_F32, DT_F32);
        else if (wide)
            entropy_row(p, r, DT_F32, DT_BF16);
        else if (wide_grad)
            entropy_row(p, r, DT_BF16, DT_F32);
        else
            entropy_row(p, r, DT_BF16, DT_BF16);
    }
}

static int cross_entropy(struct device *dev, const struct cross_entropy *p, struct stream *s)
{
    struct cross_entropy copy = *p;
    cpu_team_run(cpu_state(dev)->team, entropy_task, &copy, blocks_of(p->rows, ROWS));
    return 0;
}

void FOR_ISA(decoder_install)(struct kernel_ops *ops)
{
    ops->rmsnorm_fwd = rmsnorm_fwd;
    ops->rmsnorm_bwd = rmsnorm_bwd;
    ops->headnorm_fwd = headnorm_fwd;
    ops->headnorm_bwd = headnorm_bwd;
    ops->rope = rope;
    ops->swiglu_fwd = swiglu_fwd;
    ops->geglu_fwd = geglu_fwd;
    ops->swiglu_bwd = swiglu_bwd;
    ops->cross_entropy = cross_entropy;
}
