/* Elementwise operations, reductions and the optimiser, once per instruction set. */

#include "common/base/base.h"
#include "kernels/cpu/state.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/ref.h"
#include "kernels/cpu/vec.h"

/* Elements of one task; a multiple of every vector length, 64 KiB of f32. */
enum { CHUNK = 16384 };

typedef void range_fn(const void *arg, int64_t i, int64_t end);

struct range_job {
    range_fn *fn;
    const void *arg;
    int64_t n;
};

static void range_task(void *arg, int task, int thread)
{
    const struct range_job *job = arg;
    int64_t i = (int64_t)task * CHUNK;
    job->fn(job->arg, i, job->n - i < CHUNK ? job->n : i + CHUNK);
}

/* fn over [0, n) in chunks. */
static int for_range(struct device *dev, range_fn *fn, const void *arg, int64_t n)
{
    struct range_job job = {fn, arg, n};
    cpu_team_run(cpu_state(dev)->team, range_task, &job, (int)((n + CHUNK - 1) / CHUNK));
    return 0;
}

/* ---- activations; constant types let the compiler drop the other branch ---- */

struct act {
    void *out;
    const void *dy;
    const void *x;
    enum dtype dt;
    bool accumulate;
    enum activation kind;
};

#define BY_TYPE(name)                                                                              \
    static void name##_f32(const void *arg, int64_t i, int64_t end)                                \
    {                                                                                              \
        name(arg, i, end, DT_F32);                                                                 \
    }                                                                                              \
    static void name##_bf16(const void *arg, int64_t i, int64_t end)                               \
    {                                                                                              \
        name(arg, i, end, DT_BF16);                                                                \
    }

static inline void gelu_range(const struct act *a, int64_t i, int64_t end, const enum dtype dt)
{
    for (; i < end; i += VL) {
        vmask m = v_mask(end - i);
        v_store_dt(a->out, dt, i, m, v_gelu(v_load_dt(a->x, dt, i, m)));
    }
}
BY_TYPE(gelu_range)

static inline void silu_range(const struct act *a, int64_t i, int64_t end, const enum dtype dt)
{
    for (; i < end; i += VL) {
        vmask m = v_mask(end - i);
        vf x = v_load((const float *)a->x + i, m);
        v_store_dt(a->out, dt, i, m, v_mul(x, v_sigmoid(x)));
    }
}
BY_TYPE(silu_range)

static inline void dsilu_range(const struct act *a, int64_t i, int64_t end, const enum dtype dt)
{
    float *dx = a->out;
    for (; i < end; i += VL) {
        vmask m = v_mask(end - i);
        vf x = v_load((const float *)a->x + i, m), s = v_sigmoid(x);
        vf g = v_mul(s, v_fma(x, v_sub(v_set(1), s), v_set(1)));
        vf d = v_mul(v_load_dt(a->dy, dt, i, m), g);
        v_store(dx + i, m, a->accumulate ? v_add(v_load(dx + i, m), d) : d);
    }
}
BY_TYPE(dsilu_range)

static inline vf activated(vf x, enum activation kind)
{
    switch (kind) {
    case ACT_GELU:
        return v_gelu_erf(x);
    case ACT_QUICK_GELU:
        return v_mul(x, v_sigmoid(v_mul(x, v_set(1.702f))));
    case ACT_RELU:
        return v_max(v_zero(), x);
    case ACT_SILU:
        break;
    }
    return v_mul(x, v_sigmoid(x));
}

static inline void activation_range(const struct act *a, int64_t i, int64_t end,
                                    const enum dtype dt)
{
    for (; i < end; i += VL) {
        vmask m = v_mask(end - i);
        v_store_dt(a->out, dt, i, m, activated(v_load_dt(a->x, dt, i, m), a->kind));
    }
}
BY_TYPE(activation_range)

static int activation(struct device *dev, void *y, const void *x, int64_t n, enum activation kind,
                      enum dtype dt, struct stream *s)
{
    struct act a = {.out = y, .x = x, .kind = kind};
    return for_range(dev, dt == DT_BF16 ? activation_range_bf16 : activation_range_f32, &a, n);
}

static int gelu_fwd(struct device *dev, void *y, const void *x, int64_t n, enum dtype dt,
                    struct stream *s)
{
    struct act a = {.out = y, .x = x};
    return for_range(dev, dt == DT_BF16 ? gelu_range_bf16 : gelu_range_f32, &a, n);
}

static int silu_fwd(struct device *dev, void *y, const float *x, int64_t n, enum dtype dt,
                    struct stream *s)
{
    struct act a = {.out = y, .x = x};
    return for_range(dev, dt == DT_BF16 ? silu_range_bf16 : silu_range_f32, &a, n);
}

static int silu_bwd(struct device *dev, float *dx, const void *dy, const float *x, int64_t n,
                    enum dtype dt, bool accumulate, struct stream *s)
{
    struct act a = {.out = dx, .dy = dy, .x = x, .accumulate = accumulate};
    return for_range(dev, dt == DT_BF16 ? dsilu_range_bf16 : dsilu_range_f32, &a, n);
}

/* ---- optimiser ---- */

struct adamw_job {
    const struct adamw *p;
    struct adamw_now now;
    float gs;
};

/* The same operations in the same order as the reference, without contraction, so that
 * the weights agree to the bit. */
static inline vf adamw_step(const struct adamw_job *j, int64_t i, vmask k)
{
    const struct adamw *p = j->p;
    vf b1 = v_set(p->beta1), b2 = v_set(p->beta2), lr = v_set(j->now.lr);
    vf g = v_mul(v_load(p->grad + i, k), v_set(j->gs)), x = v_load(p->p + i, k);
    vf m = v_add(v_mul(b1, v_load(p->m + i, k)), v_mul(v_set(1.0f - p->beta1), g));
    vf v = v_add(v_mul(b2, v_load(p->v + i, k)), v_mul(v_mul(v_set(1.0f - p->beta2), g), g));
    x = v_sub(x, v_mul(v_set(j->now.lr * p->weight_decay), x));
    vf den = v_add(v_sqrt(v_mul(v, v_set(j->now.correct2))), v_set(p->eps));
    x = v_sub(x, v_div(v_mul(lr, v_mul(m, v_set(j->now.correct1))), den));
    v_store(p->m + i, k, m);
    v_store(p->v + i, k, v);
    v_store(p->p + i, k, x);
    return x;
}

static void adamw_range(const void *arg, int64_t i, int64_t end)
{
    const struct adamw_job *j = arg;
    const struct adamw *p = j->p;
    for (; i < end; i += VL) {
        vmask k = v_mask(end - i);
        vf x = adamw_step(j, i, k);
        if (p->p_bf16)
            v_store_bf16(p->p_bf16 + i, k, x);
    }
}

static int adamw(struct device *dev, const struct adamw *p, struct stream *s)
{
    struct adamw_job job = {
        .p = p,
        .now = *p->now,
        .gs = p->grad_scale ? *p->grad_scale : 1.0f,
    };
    return isfinite(job.gs) ? for_range(dev, adamw_range, &job, p->n) : 0;
}

/* ---- sum of squares: one f64 per block of 4096, added in order ---- */

enum { SUM_BLOCK = 4096, SUM_BATCH = 4096 };

struct sumsq_job {
    const float *x;
    int64_t n;
    double *block; /* per block of this batch */
};

static void sumsq_task(void *arg, int task, int thread)
{
    const struct sumsq_job *j = arg;
    for (int k = task * 16; k < (task + 1) * 16 && (int64_t)k * SUM_BLOCK < j->n; k++) {
        int64_t i = (int64_t)k * SUM_BLOCK;
        j->block[k] = v_sumsq_f64(j->x + i, j->n - i < SUM_BLOCK ? j->n - i : SUM_BLOCK);
    }
}

static void sumsq_span(struct device *dev, double *sum, const float *x, int64_t n)
{
    double block[SUM_BATCH];
    while (n > 0) {
        int64_t take = n < (int64_t)SUM_BATCH * SUM_BLOCK ? n : (int64_t)SUM_BATCH * SUM_BLOCK;
        int blocks = (int)((take + SUM_BLOCK - 1) / SUM_BLOCK);
        struct sumsq_job job = {x, take, block};
        cpu_team_run(cpu_state(dev)->team, sumsq_task, &job, (blocks + 15) / 16);
        for (int k = 0; k < blocks; k++)
            *sum += block[k];
        x += take;
        n -= take;
    }
}

static int sumsq(struct device *dev, double *sums, const float *x, const struct vec_span *spans,
                 int n, struct stream *s)
{
    for (int i = 0; i < n; i++)
        sumsq_span(dev, &sums[i], x + spans[i].offset, spans[i].count);
    return 0;
}

/* ---- plain vectors ---- */

struct vec_job {
    float *out;
    const float *x, *y;
    float a, b;
};

static void axpby_range(const void *arg, int64_t i, int64_t end)
{
    const struct vec_job *j = arg;
    for (; i < end; i += VL) {
        vmask m = v_mask(end - i);
        vf ax = v_mul(v_set(j->a), v_load(j->x + i, m));
        v_store(j->out + i, m, v_add(ax, v_mul(v_set(j->b), v_load(j->y + i, m))));
    }
}

static int axpby(struct device *dev, float *out, float a, const float *x, float b, const float *y,
                 int64_t n, struct stream *s)
{
    struct vec_job j = {out, x, y, a, b};
    return for_range(dev, axpby_range, &j, n);
}

static void axpy_range(const void *arg, int64_t i, int64_t end)
{
    const struct vec_job *j = arg;
    for (; i < end; i += VL) {
        vmask m = v_mask(end - i);
        vf ax = v_mul(v_set(j->a), v_load(j->x + i, m));
        v_store(j->out + i, m, v_add(v_load(j->out + i, m), ax));
    }
}

static int axpy(struct device *dev, float *y, float a, const float *x, int64_t n, struct stream *s)
{
    struct vec_job j = {.out = y, .x = x, .a = a};
    return for_range(dev, axpy_range, &j, n);
}

static void fill_range(const void *arg, int64_t i, int64_t end)
{
    const struct vec_job *j = arg;
    for (; i < end; i += VL)
        v_store(j->out + i, v_mask(end - i), v_set(j->a));
}

static int fill(struct device *dev, float *x, float value, int64_t n, struct stream *s)
{
    struct vec_job j = {.out = x, .a = value};
    return for_range(dev, fill_range, &j, n);
}

struct cast_job {
    void *dst;
    const void *src;
    enum dtype dst_dt, src_dt;
};

static void cast_range(const void *arg, int64_t i, int64_t end)
{
    const struct cast_job *j = arg;
    for (; i < end; i += VL) {
        vmask m = v_mask(end - i);
        v_store_dt(j->dst, j->dst_dt, i, m, v_load_dt(j->src, j->src_dt, i, m));
    }
}

static int cast(struct device *dev, void *dst, enum dtype dst_dt, const void *src,
                enum dtype src_dt, int64_t n, struct stream *s)
{
    struct cast_job j = {dst, src, dst_dt, src_dt};
    return for_range(dev, cast_range, &j, n);
}

/* ---- column sums: a task owns 16 vectors of columns and walks all rows ---- */

struct colsum_job {
    float *out;
    const float *x;
    int64_t rows, cols;
};

enum { COL_BLOCK = 4 * VL };

static void colsum_task(void *arg, int task, int thread)
{
    const struct colsum_job *j = arg;
    int64_t c0 = (int64_t)task * COL_BLOCK;
    vf acc[4];
    for (int b = 0; b < 4; b++)
        acc[b] = v_load(j->out + c0 + b * VL, v_mask(j->cols - c0 - b * VL));
    for (int64_t r = 0; r < j->rows; r++)
        for (int b = 0; b < 4; b++)
            acc[b] = v_add(acc[b],
                           v_load(j->x + r * j->cols + c0 + b * VL, v_mask(j->cols - c0 - b * VL)));
    for (int b = 0; b < 4; b++)
        v_store(j->out + c0 + b * VL, v_mask(j->cols - c0 - b * VL), acc[b]);
}

static int sum_rows(struct device *dev, float *row, const float *x, int B, int64_t m,
                    struct stream *s)
{
    struct colsum_job j = {row, x, B, m};
    cpu_team_run(cpu_state(dev)->team, colsum_task, &j, (int)((m + COL_BLOCK - 1) / COL_BLOCK));
    return 0;
}

/* ---- per sample ---- */

struct sample_job {
    float *out, *out2;
    const float *x, *y, *t;
    int64_t n;
};

static void add_row_task(void *arg, int b, int thread)
{
    const struct sample_job *j = arg;
    float *out = j->out + (int64_t)b * j->n;
    for (int64_t i = 0; i < j->n; i += VL) {
        vmask m = v_mask(j->n - i);
        v_store(out + i, m, v_add(v_load(out + i, m), v_load(j->x + i, m)));
    }
}

static int add_row(struct device *dev, float *x, const float *row, int B, int64_t m,
                   struct stream *s)
{
    struct sample_job j = {.out = x, .x = row, .n = m};
    cpu_team_run(cpu_state(dev)->team, add_row_task, &j, B);
    return 0;
}

static void flow_mix_task(void *arg, int b, int thread)
{
    const struct sample_job *j = arg;
    vf t = v_set(j->t[b]), keep = v_set(1.0f - j->t[b]);
    int64_t at = (int64_t)b * j->n;
    for (int64_t i = 0; i < j->n; i += VL) {
        vmask m = v_mask(j->n - i);
        vf x0 = v_load(j->x + at + i, m), eps = v_load(j->y + at + i, m);
        v_store(j->out + at + i, m, v_add(v_mul(keep, x0), v_mul(t, eps)));
        v_store(j->out2 + at + i, m, v_sub(eps, x0));
    }
}

static int flow_mix(struct device *dev, float *xt, float *target, const float *x0, const float *eps,
                    const float *t, int B, int64_t n, struct stream *s)
{
    struct sample_job j = {xt, target, x0, eps, t, n};
    cpu_team_run(cpu_state(dev)->team, flow_mix_task, &j, B);
    return 0;
}

struct posterior_job {
    float *x0;
    const void *moments;
    const float *noise, *shift, *mul;
    int C;
    int64_t n;
    enum dtype dt;
};

/* A channel of a sample. */
static void posterior_task(void *arg, int bc, int thread)
{
    const struct posterior_job *j = arg;
    const int b = bc / j->C, c = bc % j->C;
    const vf shift = v_set(j->shift[c]), mul = v_set(j->mul[c]), half = v_set(0.5f);
    const int64_t n = j->n, at = bc * n, from = (2 * (int64_t)b * j->C + c) * n;
    for (int64_t i = 0; i < n; i += VL) {
        vmask m = v_mask(n - i);
        vf mean = v_load_dt(j->moments, j->dt, from + i, m);
        vf logvar = v_load_dt(j->moments, j->dt, from + j->C * n + i, m);
        vf sd = v_exp(v_mul(half, v_min(v_set(20), v_max(v_set(-30), logvar))));
        vf x = v_fma(sd, v_load(j->noise + at + i, m), mean);
        v_store(j->x0 + at + i, m, v_mul(v_sub(x, shift), mul));
    }
}

static int posterior(struct device *dev, float *x0, const void *moments, const float *noise,
                     const float *shift, const float *mul, int B, int C, int64_t n, enum dtype dt,
                     struct stream *s)
{
    struct posterior_job j = {x0, moments, noise, shift, mul, C, n, dt};
    cpu_team_run(cpu_state(dev)->team, posterior_task, &j, B * C);
    return 0;
}

void FOR_ISA(elem_install)(struct kernel_ops *ops)
{
    ops->activation = activation;
    ops->posterior = posterior;
    ops->gelu_fwd = gelu_fwd;
    ops->silu_fwd = silu_fwd;
    ops->silu_bwd = silu_bwd;
    ops->adamw = adamw;
    ops->sumsq = sumsq;
    ops->axpby = axpby;
    ops->axpy = axpy;
    ops->fill = fill;
    ops->cast = cast;
    ops->sum_rows = sum_rows;
    ops->add_row = add_row;
    ops->flow_mix = flow_mix;
}
