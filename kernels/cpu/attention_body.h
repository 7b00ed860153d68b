/* attention.h over vec_*.h; included by attention_<isa>.c, which defines INSTALL. */
#include <errno.h>
#include <math.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/vec_math.h"

enum { MR = GEMM_MR, NR = GEMM_NR, TILE = GEMM_MR * GEMM_NR, BLOCK = 64 };

/* A (rows, D) matrix inside a larger one, or widened into scratch. */
struct mat {
    const void *p;
    int64_t ld; /* elements */
};

/* What a task needs of its shapes; the same for every task. */
struct plan {
    const struct gemm_kernel *kern;
    int B, T, H, D;
    enum dtype dt;   /* of the tensors */
    enum dtype work; /* of the products: dt, or f32 after widening */
    bool widen;
    int64_t key_panels, dim_panels; /* panels of NR over T and over D */
    int64_t dim_units, key_units;   /* units of k over D and over T */
    float inv_sqrt;
    size_t bytes; /* scratch of one thread */
};

/* ---- scratch: carved in the same order with and without memory ---- */

struct carve {
    char *base;
    size_t used;
};

static void *carve(struct carve *c, int64_t count, size_t size)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += ((size_t)count * size + 63) / 64 * 64;
    return p;
}

struct fwd_scratch {
    float *wide[3]; /* q, k, v of the head in f32 when widening */
    float *k_nt;    /* packed: columns are keys, k runs over D */
    float *v_nn;    /* packed: columns are D, k runs over keys */
    float *strip;   /* (key_panels, MR, NR): scores of MR queries */
    void *prob;     /* (MR, key_panels*NR) (work) */
};

static size_t fwd_carve(struct fwd_scratch *s, const struct plan *p, char *base)
{
    struct carve c = {base, 0};
    int64_t keys = p->key_panels * NR, dims = p->dim_panels * NR;
    for (int i = 0; i < 3; i++)
        s->wide[i] = carve(&c, p->widen ? (int64_t)p->T * p->D : 0, sizeof(float));
    s->k_nt = carve(&c, keys * p->dim_units, sizeof(float));
    s->v_nn = carve(&c, dims * p->key_units, sizeof(float));
    s->strip = carve(&c, p->key_panels * TILE, sizeof(float));
    s->prob = carve(&c, MR * keys, dtype_bytes(p->work));
    return c.used;
}

struct bwd_scratch {
    float *wide[5];           /* q, k, v, o, do */
    float *k_nt, *v_nt;       /* packed: columns are keys, k runs over D */
    float *k_nn;              /* packed: columns are D, k runs over keys */
    float *strip, *dstrip;    /* (key_panels, MR, NR): scores, gradient of probabilities */
    void *prob, *dscore;      /* (BLOCK, key_panels*NR) (work) */
    float *left, *right;      /* packed prob or dscore, and do or q, of a block */
    float *dk, *dv;           /* (T, dim_panels*NR): sums over blocks */
};

static size_t bwd_carve(struct bwd_scratch *s, const struct plan *p, char *base)
{
    struct carve c = {base, 0};
    int64_t keys = p->key_panels * NR, dims = p->dim_panels * NR;
    for (int i = 0; i < 5; i++)
        s->wide[i] = carve(&c, p->widen ? (int64_t)p->T * p->D : 0, sizeof(float));
    s->k_nt = carve(&c, keys * p->dim_units, sizeof(float));
    s->v_nt = carve(&c, keys * p->dim_units, sizeof(float));
    s->k_nn = carve(&c, dims * p->key_units, sizeof(float));
    s->strip = carve(&c, p->key_panels * TILE, sizeof(float));
    s->dstrip = carve(&c, p->key_panels * TILE, sizeof(float));
    s->prob = carve(&c, BLOCK * keys, dtype_bytes(p->work));
    s->dscore = carve(&c, BLOCK * keys, dtype_bytes(p->work));
    s->left = carve(&c, (int64_t)(p->T + MR) * BLOCK, sizeof(float));
    s->right = carve(&c, dims * BLOCK, sizeof(float));
    s->dk = carve(&c, p->T * dims, sizeof(float));
    s->dv = carve(&c, p->T * dims, sizeof(float));
    return c.used;
}

static struct plan make_plan(const struct cpu_state *st, const int dims[4], enum dtype dt)
{
    struct plan p = {.B = dims[0], .T = dims[1], .H = dims[2], .D = dims[3], .dt = dt};
    /* An odd head of bf16 would need half a unit of its neighbour. */
    p.widen = dt == DT_BF16 && (!st->gemm[DT_BF16] || p.D % 2);
    p.work = p.widen ? DT_F32 : dt;
    p.kern = st->gemm[p.work];
    p.key_panels = (p.T + NR - 1) / NR;
    p.dim_panels = (p.D + NR - 1) / NR;
    p.dim_units = gemm_units(p.work, p.D);
    p.key_units = gemm_units(p.work, p.T);
    p.inv_sqrt = 1.0f / sqrtf((float)p.D);
    return p;
}

/* ---- pieces ---- */

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static const char *mat_row(const struct plan *p, const struct mat *m, int64_t row)
{
    return (const char *)m->p + row * m->ld * (int64_t)dtype_bytes(p->work);
}

/* Rows of one head: as they lie, or widened. */
static struct mat load_head(const struct plan *p, const void *x, int64_t at, int64_t ld,
                            float *wide)
{
    if (!p->widen)
        return (struct mat){(const char *)x + at * (int64_t)dtype_bytes(p->dt), ld};
    for (int t = 0; t < p->T; t++)
        for (int d = 0; d < p->D; d += VL) {
            vmask m = v_mask(p->D - d);
            v_store(wide + (int64_t)t * p->D + d, m, v_load_dt(x, p->dt, at + t * ld + d, m));
        }
    return (struct mat){wide, p->D};
}

/* Packs all rows of m as columns (k over D). */
static void pack_nt(const struct plan *p, float *dst, const struct mat *m)
{
    for (int64_t j = 0; j < p->T; j += NR)
        p->kern->pack_b_nt(dst + j * p->dim_units, 0, mat_row(p, m, j), m->ld,
                           least(NR, p->T - j), p->D);
}

/* Packs `rows` rows of m from `row` on, columns are D (k over rows). */
static void pack_nn(const struct plan *p, float *dst, const struct mat *m, int64_t row,
                    int64_t rows)
{
    p->kern->pack_b_nn(dst, gemm_units(p->work, rows) * NR, mat_row(p, m, row), m->ld, p->D, rows);
}

/* strip = rows of a (in place, k over D) times packed keys. */
static void strip_of(const struct plan *p, float *strip, const struct mat *a, int64_t row,
                     int rows, const float *packed)
{
    int64_t row_bytes = a->ld * (int64_t)dtype_bytes(p->work);
    for (int64_t j = 0; j < p->key_panels; j++)
        p->kern->inplace[rows](strip + j * TILE, mat_row(p, a, row), row_bytes,
                               packed + j * NR * p->dim_units, p->dim_units);
}

/* The first `rows` rows and D columns of a tile times f, to (rows, ld) from element `at`. */
static void store_scaled(void *out, enum dtype dt, int64_t at, int64_t ld, const float *tile,
                         int rows, int cols, const float *factors)
{
    for (int r = 0; r < rows; r++) {
        vf f = v_set(factors[r]);
        for (int c = 0; c < cols; c += VL) {
            vf v = v_mul(v_load(tile + r * NR + c, v_mask(VL)), f);
            v_store_dt(out, dt, at + r * ld + c, v_mask(cols - c), v);
        }
    }
}

/* ---- forward ---- */

struct fwd_job {
    struct plan plan;
    const struct attention_fwd *p;
    char *scratch;
};

/* Row r of the strip becomes exp(s - max) in prob; returns the sum and, in ret_max, the
 * largest scaled score.  Columns from T on become zero. */
static float softmax_row(const struct plan *p, float *strip, void *prob, int r, float *ret_max)
{
    vf scale = v_set(p->inv_sqrt), best = v_set(-INFINITY), sum = v_zero();
    for (int64_t t = 0; t < p->T; t += VL) {
        const float *s = strip + t / NR * TILE + r * NR + t % NR;
        best = v_max(best, v_select(v_mask(p->T - t), v_load(s, v_mask(VL)), v_set(-INFINITY)));
    }
    float top = v_hmax(best);
    vf shift = v_set(top * p->inv_sqrt);
    for (int64_t t = 0; t < p->key_panels * NR; t += VL) {
        const float *s = strip + t / NR * TILE + r * NR + t % NR;
        vf e = v_exp(v_sub(v_mul(v_load(s, v_mask(VL)), scale), shift));
        e = v_select(v_mask(p->T - t), e, v_zero());
        sum = v_add(sum, e);
        v_store_dt(prob, p->work, r * p->key_panels * NR + t, v_mask(VL), e);
    }
    *ret_max = top * p->inv_sqrt;
    return v_sum(sum);
}

static void fwd_rows(const struct fwd_job *job, const struct fwd_scratch *s, const struct mat *q,
                     int bh, int row)
{
    const struct plan *p = &job->plan;
    int b = bh / p->H, h = bh % p->H, rows = (int)least(MR, p->T - row);
    float factors[MR], tile[TILE];
    int64_t prob_bytes = p->key_panels * NR * (int64_t)dtype_bytes(p->work);
    strip_of(p, s->strip, q, row, rows, s->k_nt);
    for (int r = 0; r < rows; r++) {
        float max, sum = softmax_row(p, s->strip, s->prob, r, &max);
        factors[r] = 1.0f / sum;
        if (job->p->lse)
            job->p->lse[(int64_t)bh * p->T + row + r] = max + logf(sum);
    }
    for (int64_t j = 0; j < p->dim_panels; j++) {
        int64_t at = (((int64_t)b * p->T + row) * p->H + h) * p->D + j * NR;
        p->kern->inplace[rows](tile, s->prob, prob_bytes, s->v_nn + j * NR * p->key_units,
                               p->key_units);
        store_scaled(job->p->o, p->dt, at, (int64_t)p->H * p->D, tile, rows,
                     (int)least(NR, p->D - j * NR), factors);
    }
}

static void fwd_task(void *arg, int bh, int thread)
{
    const struct fwd_job *job = arg;
    const struct plan *p = &job->plan;
    struct fwd_scratch s;
    fwd_carve(&s, p, job->scratch + (size_t)thread * p->bytes);
    int64_t hd = (int64_t)p->H * p->D, ld = 3 * hd;
    int64_t at = (int64_t)(bh / p->H) * p->T * ld + (int64_t)(bh % p->H) * p->D;
    struct mat q = load_head(p, job->p->qkv, at, ld, s.wide[0]);
    struct mat k = load_head(p, job->p->qkv, at + hd, ld, s.wide[1]);
    struct mat v = load_head(p, job->p->qkv, at + 2 * hd, ld, s.wide[2]);
    pack_nt(p, s.k_nt, &k);
    pack_nn(p, s.v_nn, &v, 0, p->T);
    for (int row = 0; row < p->T; row += MR)
        fwd_rows(job, &s, &q, bh, row);
}

static int fwd(struct device *dev, const struct attention_fwd *p, struct stream *stream)
{
    struct cpu_state *st = cpu_state(dev);
    const int dims[4] = {p->B, p->T, p->H, p->D};
    struct fwd_job job = {.plan = make_plan(st, dims, p->dt), .p = p};
    struct fwd_scratch s;
    job.plan.bytes = fwd_carve(&s, &job.plan, NULL);
    job.scratch = cpu_scratch(st, SCRATCH_PACKED, job.plan.bytes * (size_t)dev->threads);
    if (!job.scratch)
        return -ENOMEM;
    cpu_pool_run(st->pool, fwd_task, &job, p->T ? p->B * p->H : 0);
    return 0;
}

/* ---- backward ---- */

struct bwd_job {
    struct plan plan;
    const struct attention_bwd *p;
    char *scratch;
};

struct head {
    struct mat q, k, v, o, d_o;
    const float *lse;
    int64_t qkv_at; /* element of q's first row in dqkv */
};

static float dot_row(const struct plan *p, const struct mat *a, const struct mat *b, int64_t row)
{
    vf sum = v_zero();
    for (int d = 0; d < p->D; d += VL) {
        vmask m = v_mask(p->D - d);
        vf x = v_load_dt(a->p, p->work, row * a->ld + d, m);
        sum = v_fma(x, v_load_dt(b->p, p->work, row * b->ld + d, m), sum);
    }
    return v_sum(sum);
}

/* Row r of the strips to row `out` of prob and dscore = prob * (dprob - delta) / sqrt(D). */
static void grad_row(const struct plan *p, const struct bwd_scratch *s, int r, int out, float lse,
                     float delta)
{
    vf scale = v_set(p->inv_sqrt), shift = v_set(lse), del = v_set(delta);
    for (int64_t t = 0; t < p->key_panels * NR; t += VL) {
        int64_t at = t / NR * TILE + r * NR + t % NR, to = out * p->key_panels * NR + t;
        vmask in = v_mask(p->T - t);
        vf score = v_mul(v_load(s->strip + at, v_mask(VL)), scale);
        vf e = v_select(in, v_exp(v_sub(score, shift)), v_zero());
        vf d = v_mul(v_mul(e, scale), v_sub(v_load(s->dstrip + at, v_mask(VL)), del));
        v_store_dt(s->prob, p->work, to, v_mask(VL), e);
        v_store_dt(s->dscore, p->work, to, v_mask(VL), d);
    }
}

/* sum (T, dims) += left(block rows, keys)ᵀ m(block rows, D). */
static void add_transposed(const struct plan *p, const struct bwd_scratch *s, float *sum,
                           const void *left, const struct mat *m, int64_t row, int rows)
{
    int64_t units = gemm_units(p->work, rows), dims = p->dim_panels * NR;
    float tile[TILE];
    p->kern->pack_a_tn(s->left, units * MR, left, p->key_panels * NR, p->T, rows, NULL);
    pack_nn(p, s->right, m, row, rows);
    for (int64_t j = 0; j < p->dim_panels; j++) {
        for (int64_t i = 0; i < p->T; i += MR) {
            int n = (int)least(MR, p->T - i);
            p->kern->packed[n](tile, s->left + i * units, 0, s->right + j * NR * units, units);
            for (int r = 0; r < n; r++) {
                float *to = sum + (i + r) * dims + j * NR;
                for (int c = 0; c < NR; c += VL) {
                    vf v = v_load(tile + r * NR + c, v_mask(VL));
                    if (row > 0)
                        v = v_add(v, v_load(to + c, v_mask(VL)));
                    v_store(to + c, v_mask(VL), v);
                }
            }
        }
    }
}

/* dq of MR query rows: dscore (rows, keys) times k. */
static void store_dq(const struct bwd_job *job, const struct bwd_scratch *s,
                     const struct head *hd, int64_t row, int in_block, int rows)
{
    const struct plan *p = &job->plan;
    static const float ones[MR] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    float tile[TILE];
    int64_t ld = 3 * (int64_t)p->H * p->D;
    int64_t bytes = p->key_panels * NR * (int64_t)dtype_bytes(p->work);
    for (int64_t j = 0; j < p->dim_panels; j++) {
        p->kern->inplace[rows](tile, (const char *)s->dscore + in_block * bytes, bytes,
                               s->k_nn + j * NR * p->key_units, p->key_units);
        store_scaled(job->p->dqkv, p->dt, hd->qkv_at + row * ld + j * NR, ld, tile, rows,
                     (int)least(NR, p->D - j * NR), ones);
    }
}

static void bwd_block(const struct bwd_job *job, const struct bwd_scratch *s,
                      const struct head *hd, int64_t row)
{
    const struct plan *p = &job->plan;
    int rows = (int)least(BLOCK, p->T - row);
    for (int i = 0; i < rows; i += MR) {
        int n = (int)least(MR, rows - i);
        strip_of(p, s->strip, &hd->q, row + i, n, s->k_nt);
        strip_of(p, s->dstrip, &hd->d_o, row + i, n, s->v_nt);
        for (int r = 0; r < n; r++)
            grad_row(p, s, r, i + r, hd->lse[row + i + r],
                     dot_row(p, &hd->d_o, &hd->o, row + i + r));
        store_dq(job, s, hd, row + i, i, n);
    }
    add_transposed(p, s, s->dv, s->prob, &hd->d_o, row, rows);
    add_transposed(p, s, s->dk, s->dscore, &hd->q, row, rows);
}

static void store_sum(const struct bwd_job *job, const float *sum, int64_t at)
{
    const struct plan *p = &job->plan;
    int64_t dims = p->dim_panels * NR, ld = 3 * (int64_t)p->H * p->D;
    for (int t = 0; t < p->T; t++)
        for (int d = 0; d < p->D; d += VL)
            v_store_dt(job->p->dqkv, p->dt, at + t * ld + d, v_mask(p->D - d),
                       v_load(sum + t * dims + d, v_mask(VL)));
}

static void bwd_task(void *arg, int bh, int thread)
{
    const struct bwd_job *job = arg;
    const struct plan *p = &job->plan;
    struct bwd_scratch s;
    bwd_carve(&s, p, job->scratch + (size_t)thread * p->bytes);
    int64_t hd = (int64_t)p->H * p->D, ld = 3 * hd;
    int64_t at = (int64_t)(bh / p->H) * p->T * ld + (int64_t)(bh % p->H) * p->D;
    int64_t o_at = (int64_t)(bh / p->H) * p->T * hd + (int64_t)(bh % p->H) * p->D;
    struct head head = {
        .q = load_head(p, job->p->qkv, at, ld, s.wide[0]),
        .k = load_head(p, job->p->qkv, at + hd, ld, s.wide[1]),
        .v = load_head(p, job->p->qkv, at + 2 * hd, ld, s.wide[2]),
        .o = load_head(p, job->p->o, o_at, hd, s.wide[3]),
        .d_o = load_head(p, job->p->d_o, o_at, hd, s.wide[4]),
        .lse = job->p->lse + (int64_t)bh * p->T,
        .qkv_at = at,
    };
    pack_nt(p, s.k_nt, &head.k);
    pack_nt(p, s.v_nt, &head.v);
    pack_nn(p, s.k_nn, &head.k, 0, p->T);
    for (int64_t row = 0; row < p->T; row += BLOCK)
        bwd_block(job, &s, &head, row);
    store_sum(job, s.dk, at + hd);
    store_sum(job, s.dv, at + 2 * hd);
}

static int bwd(struct device *dev, const struct attention_bwd *p, struct stream *stream)
{
    struct cpu_state *st = cpu_state(dev);
    const int dims[4] = {p->B, p->T, p->H, p->D};
    struct bwd_job job = {.plan = make_plan(st, dims, p->dt), .p = p};
    struct bwd_scratch s;
    job.plan.bytes = bwd_carve(&s, &job.plan, NULL);
    job.scratch = cpu_scratch(st, SCRATCH_PACKED, job.plan.bytes * (size_t)dev->threads);
    if (!job.scratch)
        return -ENOMEM;
    cpu_pool_run(st->pool, bwd_task, &job, p->T ? p->B * p->H : 0);
    return 0;
}

void INSTALL(struct kernel_ops *ops)
{
    ops->attention_fwd = fwd;
    ops->attention_bwd = bwd;
}
