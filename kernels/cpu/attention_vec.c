/* Fused attention on top of the tiles of gemm.h, once per instruction set: one task per sample
 * and head of keys, with the query heads that share it.
 *
 * Forward: a dozen query rows at a time.  Their scores against the keys they see, in whole
 * panels, are a strip of tiles in the cache; softmax turns the strip into probabilities,
 * which multiply V.  Backward: blocks of 64 query rows; scores and their gradients exist for
 * one block.
 * bf16 probabilities are rounded before they multiply, as the product takes bf16. */

#include "common/base/base.h"
#include "kernels/cpu/state.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/vec.h"

enum { MR = GEMM_MR, NR = GEMM_NR, TILE = GEMM_MR * GEMM_NR, BLOCK = 64 };

/* A (rows, D) matrix inside a larger one, or widened into scratch. */
struct mat {
    const void *p;
    int64_t ld; /* elements */
};

/* Queries, or keys with their values, of all samples: those of head 0 of sample b at
 * p + first + b * stride, rows `ld` apart. */
struct place {
    const void *p;
    int64_t first, stride, ld; /* elements */
};

/* The shapes and layout of a task; all tasks have the same, except `keys` and the values that
 * follow from it. */
struct plan {
    const struct gemm_kernel *kern;
    int B, T, Tk, H, D;
    int Hkv, share; /* heads of keys, and query heads that share one */
    bool causal;
    const int32_t *start, *klen; /* (B,T), (B), or NULL */
    struct place q, kv;
    enum dtype dt;   /* of the tensors */
    enum dtype work; /* of the products: dt, or f32 after widening */
    bool widen;
    int64_t dim_panels, dim_units; /* panels of NR and units of k over D */
    int64_t o_ld;                  /* elements of a row of o */
    float scale;                   /* of scores */
    int group;                     /* heads of keys of a task */
    size_t bytes;                  /* scratch of one thread */
    int keys;                      /* of the sample; of all before there is one */
    int64_t key_panels, key_units; /* panels and units over them */
};

/* Keys begin <= j < end: those that a row sees, or whole panels with all that a block sees. */
struct span {
    int64_t begin, end;
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

/* Elements of a head that is widened, of keys or of queries. */
static int64_t wide_elements(const struct plan *p, bool keys)
{
    return p->widen ? (int64_t)(keys ? p->Tk : p->T) * p->D : 0;
}

struct fwd_scratch {
    float *wide[3]; /* q, k, v of a head in f32 when widening */
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
        s->wide[i] = carve(&c, wide_elements(p, i == 1 || i == 2), sizeof(float));
    s->k_nt = carve(&c, keys * p->dim_units, sizeof(float));
    s->v_nn = carve(&c, dims * p->key_units, sizeof(float));
    s->strip = carve(&c, p->key_panels * TILE, sizeof(float));
    s->prob = carve(&c, MR * keys, dtype_bytes(p->work));
    return c.used;
}

struct bwd_scratch {
    float *wide[5];        /* q, k, v, o, do */
    float *k_nt, *v_nt;    /* packed: columns are keys, k runs over D */
    float *k_nn;           /* packed: columns are D, k runs over keys */
    float *strip, *dstrip; /* (key_panels, MR, NR): scores, gradient of probabilities */
    void *prob, *dscore;   /* (BLOCK, key_panels*NR) (work) */
    float *left, *right;   /* packed prob or dscore, and do or q, of a block */
    float *dk, *dv;        /* (keys, dim_panels*NR): sums over blocks and query heads */
};

static size_t bwd_carve(struct bwd_scratch *s, const struct plan *p, char *base)
{
    struct carve c = {base, 0};
    int64_t keys = p->key_panels * NR, dims = p->dim_panels * NR;
    for (int i = 0; i < 5; i++)
        s->wide[i] = carve(&c, wide_elements(p, i == 1 || i == 2), sizeof(float));
    s->k_nt = carve(&c, keys * p->dim_units, sizeof(float));
    s->v_nt = carve(&c, keys * p->dim_units, sizeof(float));
    s->k_nn = carve(&c, dims * p->key_units, sizeof(float));
    s->strip = carve(&c, p->key_panels * TILE, sizeof(float));
    s->dstrip = carve(&c, p->key_panels * TILE, sizeof(float));
    s->prob = carve(&c, BLOCK * keys, dtype_bytes(p->work));
    s->dscore = carve(&c, BLOCK * keys, dtype_bytes(p->work));
    s->left = carve(&c, (int64_t)(p->Tk + MR) * BLOCK, sizeof(float));
    s->right = carve(&c, dims * BLOCK, sizeof(float));
    s->dk = carve(&c, p->Tk * dims, sizeof(float));
    s->dv = carve(&c, p->Tk * dims, sizeof(float));
    return c.used;
}

/* Sets the number of keys, and the values that follow from it. */
static void set_keys(struct plan *p, int keys)
{
    p->keys = keys;
    p->key_panels = (keys + NR - 1) / NR;
    p->key_units = gemm_units(p->work, keys);
}

/* The plan for a sample. */
static struct plan plan_of(const struct plan *all, int b)
{
    struct plan p = *all;
    if (p.klen)
        set_keys(&p, p.klen[b]);
    return p;
}

/* Sets the places of queries, keys and values: in qkv, in q and kv, or in both. */
static void set_places(struct plan *p, const void *qkv, const void *q, const void *kv,
                       int64_t kv_stride)
{
    const int64_t width = (int64_t)p->H * p->D, pair = 2 * (int64_t)p->Hkv * p->D;
    const int64_t q_ld = q ? width : width + pair, kv_ld = kv ? pair : width + pair;
    p->q = (struct place){q ? q : qkv, 0, p->T * q_ld, q_ld};
    p->kv =
        (struct place){kv ? kv : qkv, kv ? 0 : width, kv_stride ? kv_stride : p->Tk * kv_ld, kv_ld};
}

/* The derived fields of a plan whose shapes are set. */
static void complete_plan(const struct cpu_state *st, struct plan *p)
{
    /* An odd head of bf16 would need half a unit of its neighbour. */
    p->widen = p->dt == DT_BF16 && (!st->gemm[DT_BF16] || p->D % 2);
    p->work = p->widen ? DT_F32 : p->dt;
    p->kern = st->gemm[p->work];
    p->Hkv = p->Hkv ? p->Hkv : p->H;
    p->share = p->H / (p->Hkv ? p->Hkv : 1);
    p->dim_panels = (p->D + NR - 1) / NR;
    p->dim_units = gemm_units(p->work, p->D);
    set_keys(p, p->Tk);
    p->o_ld = (int64_t)p->H * p->D;
    p->scale = p->scale > 0 ? p->scale : 1.0f / sqrtf((float)p->D);
    /* A whole sample to a task where that leaves enough tasks to even out: its heads share
     * pages and lines. */
    p->group = p->B >= 8 * cpu_team_threads(st->team) && p->Tk <= 256 ? p->Hkv : 1;
}

static int tasks_of(const struct plan *p)
{
    return p->Tk && p->group ? p->B * p->Hkv / p->group : 0;
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

/* Rows of one head, the first at element `at`: in place, or widened. */
static struct mat load_head(const struct plan *p, const void *x, int64_t at, int64_t ld, int rows,
                            float *wide)
{
    if (!p->widen)
        return (struct mat){(const char *)x + at * (int64_t)dtype_bytes(p->dt), ld};
    for (int t = 0; t < rows; t++)
        for (int d = 0; d < p->D; d += VL) {
            vmask m = v_mask(p->D - d);
            v_store(wide + (int64_t)t * p->D + d, m, v_load_dt(x, p->dt, at + t * ld + d, m));
        }
    return (struct mat){wide, p->D};
}

/* Prefetches rows of heads that are needed next: they are too far apart for the hardware to
 * predict. */
static void prefetch_heads(const struct plan *p, const void *x, int64_t at, int64_t ld, int rows,
                           int heads)
{
    const int64_t size = (int64_t)dtype_bytes(p->dt), line = 64;
    for (int64_t t = 0; t < rows; t++) {
        const char *row = (const char *)x + (at + t * ld) * size;
        for (int64_t i = 0; i < (int64_t)heads * p->D * size; i += line)
            __builtin_prefetch(row + i, 0, 2);
    }
}

/* Element of the first key of head hk of sample b, and from there to its value. */
static int64_t key_at(const struct plan *p, int b, int hk)
{
    return p->kv.first + b * p->kv.stride + (int64_t)hk * p->D;
}

static int64_t value_step(const struct plan *p)
{
    return (int64_t)p->Hkv * p->D;
}

/* Prefetches the query heads and keys after those of head hk. */
static void prefetch_next(const struct plan *p, int b, int hk)
{
    const int64_t next = key_at(p, b, hk + 1), width = (int64_t)p->share * p->D;
    prefetch_heads(p, p->q.p, b * p->q.stride + (hk + 1) * width, p->q.ld, p->T, p->share);
    prefetch_heads(p, p->kv.p, next, p->kv.ld, p->keys, 1);
    prefetch_heads(p, p->kv.p, next + value_step(p), p->kv.ld, p->keys, 1);
}

/* The keys that row `i` of sample b sees. */
static struct span row_span(const struct plan *p, int b, int64_t i)
{
    if (!p->causal)
        return (struct span){0, p->keys};
    return (struct span){p->start ? p->start[(int64_t)b * p->T + i] : 0,
                         least(p->Tk - p->T + i + 1, p->keys)};
}

/* Whole panels with all keys that rows from `row` on see. */
static struct span block_span(const struct plan *p, int b, int64_t row, int rows)
{
    struct span all = row_span(p, b, row);
    for (int i = 1; i < rows; i++) {
        struct span one = row_span(p, b, row + i);
        all.begin = least(all.begin, one.begin);
        all.end = one.end; /* never falls */
    }
    return (struct span){all.begin / NR * NR, (all.end + NR - 1) / NR * NR};
}

/* Units of k of a span of panels, from the first unit on. */
static int64_t span_units(const struct plan *p, struct span s, int64_t *ret_first)
{
    *ret_first = gemm_units(p->work, s.begin);
    return least(gemm_units(p->work, s.end), p->key_units) - *ret_first;
}

/* Packs all keys of m as columns (k over D). */
static void pack_nt(const struct plan *p, float *dst, const struct mat *m)
{
    for (int64_t j = 0; j < p->keys; j += NR)
        p->kern->pack_b_nt(dst + j * p->dim_units, 0, mat_row(p, m, j), m->ld,
                           least(NR, p->keys - j), p->D);
}

/* Packs `rows` rows of m from `row` on, columns are D (k over rows). */
static void pack_nn(const struct plan *p, float *dst, const struct mat *m, int64_t row,
                    int64_t rows)
{
    p->kern->pack_b_nn(dst, gemm_units(p->work, rows) * NR, mat_row(p, m, row), m->ld, p->D, rows);
}

/* strip = rows of a (in place, k over D) times packed keys, over a span of panels. */
static void strip_of(const struct plan *p, float *strip, const struct mat *a, int64_t row, int rows,
                     const float *packed, struct span keys)
{
    int64_t row_bytes = a->ld * (int64_t)dtype_bytes(p->work);
    for (int64_t t = keys.begin; t < keys.end; t += NR)
        p->kern->inplace[rows](&(struct gemm_out){.c = strip + t / NR * TILE, .ld = NR},
                               mat_row(p, a, row), row_bytes, packed + t * p->dim_units,
                               p->dim_units);
}

/* x, or `other` in the lanes of vector t that are outside of the span. */
static inline vf only_in(struct span in, int64_t t, vf x, vf other)
{
    if (t < in.begin)
        x = v_select(v_mask(in.begin - t), other, x);
    return t + VL > in.end ? v_select(v_mask(in.end - t), x, other) : x;
}

/* Zeros in elements begin..end of a row of probabilities; both are multiples of VL. */
static inline void zero_prob(const struct plan *p, void *prob, int64_t at, int64_t begin,
                             int64_t end)
{
    for (int64_t t = begin; t < end; t += VL)
        v_store_dt(prob, p->work, at + t, v_mask(VL), v_zero());
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

/* Row r of the strip becomes its scores, with the bias of the row added, where it sees keys. */
static void add_bias(const struct plan *p, float *strip, const float *bias, int r, struct span in)
{
    vf scale = v_set(p->scale);
    for (int64_t t = in.begin / VL * VL; t < in.end; t += VL) {
        float *s = strip + t / NR * TILE + r * NR + t % NR;
        v_store(s, v_mask(VL),
                v_fma(v_load(s, v_mask(VL)), scale, v_load(bias + t, v_mask(in.end - t))));
    }
}

/* Row r of the strip becomes exp(scale s - max) in prob; returns the sum.  io_top is the
 * largest s before the row and with it.  Columns of the panels that the row does not see become
 * zero. */
static float softmax_row(const struct plan *p, float *strip, void *prob, int r, float scale_by,
                         struct span panels, struct span in, float *io_top)
{
    vf scale = v_set(scale_by), low = v_set(*io_top), best = low, sum = v_zero();
    int64_t begin = in.begin / VL * VL, end = (in.end + VL - 1) / VL * VL;
    int64_t at = r * p->key_panels * NR;
    for (int64_t t = begin; t < end; t += VL) {
        const float *s = strip + t / NR * TILE + r * NR + t % NR;
        best = v_max(best, only_in(in, t, v_load(s, v_mask(VL)), low));
    }
    float top = v_hmax(best);
    vf shift = v_set(top * scale_by);
    zero_prob(p, prob, at, panels.begin, begin);
    for (int64_t t = begin; t < end; t += VL) {
        const float *s = strip + t / NR * TILE + r * NR + t % NR;
        vf e = v_exp(v_sub(v_mul(v_load(s, v_mask(VL)), scale), shift));
        e = only_in(in, t, e, v_zero());
        sum = v_add(sum, e);
        v_store_dt(prob, p->work, at + t, v_mask(VL), e);
    }
    zero_prob(p, prob, at, end, panels.end);
    *io_top = top;
    return v_sum(sum);
}

static void fwd_rows(const struct attention_fwd *f, const struct plan *p,
                     const struct fwd_scratch *s, const struct mat *q, int b, int h, int row)
{
    int rows = (int)least(MR, p->T - row);
    struct span panels = block_span(p, b, row, rows);
    float factors[MR], tile[TILE];
    int64_t es = (int64_t)dtype_bytes(p->work), first, units = span_units(p, panels, &first);
    strip_of(p, s->strip, q, row, rows, s->k_nt, panels);
    for (int r = 0; r < rows; r++) {
        struct span in = row_span(p, b, row + r);
        const int64_t at = (int64_t)h * p->T + row + r;
        if (f->bias)
            add_bias(p, s->strip, f->bias + at * p->Tk, r, in);
        float top = -INFINITY, scale = f->bias ? 1 : p->scale;
        float sum = softmax_row(p, s->strip, s->prob, r, scale, panels, in, &top);
        factors[r] = 1.0f / sum;
        if (f->lse)
            f->lse[(int64_t)b * p->H * p->T + at] = top * scale + logf(sum);
    }
    for (int64_t j = 0; j < p->dim_panels; j++) {
        int64_t at = ((int64_t)b * p->T + row) * p->o_ld + (int64_t)h * p->D + j * NR;
        p->kern->inplace[rows](&(struct gemm_out){.c = tile, .ld = NR},
                               (const char *)s->prob + panels.begin * es, p->key_panels * NR * es,
                               s->v_nn + (j * p->key_units + first) * NR, units);
        store_scaled(f->o, p->dt, at, p->o_ld, tile, rows, (int)least(NR, p->D - j * NR), factors);
    }
}

/* The query heads of one head of keys. */
static void fwd_head(const struct fwd_job *job, struct fwd_scratch *s, int bh, bool more)
{
    const int b = bh / job->plan.Hkv, hk = bh % job->plan.Hkv;
    const struct plan sample = plan_of(&job->plan, b), *p = &sample;
    const int64_t at = key_at(p, b, hk);
    struct mat k = load_head(p, p->kv.p, at, p->kv.ld, p->keys, s->wide[1]);
    struct mat v = load_head(p, p->kv.p, at + value_step(p), p->kv.ld, p->keys, s->wide[2]);
    if (more)
        prefetch_next(p, b, hk);
    pack_nt(p, s->k_nt, &k);
    pack_nn(p, s->v_nn, &v, 0, p->keys);
    for (int h = hk * p->share; h < (hk + 1) * p->share; h++) {
        struct mat q =
            load_head(p, p->q.p, b * p->q.stride + (int64_t)h * p->D, p->q.ld, p->T, s->wide[0]);
        for (int row = 0; row < p->T; row += MR)
            fwd_rows(job->p, p, s, &q, b, h, row);
    }
}

static void fwd_task(void *arg, int task, int thread)
{
    const struct fwd_job *job = arg;
    const struct plan *p = &job->plan;
    struct fwd_scratch s;
    fwd_carve(&s, p, job->scratch + (size_t)thread * p->bytes);
    for (int i = 0; i < p->group; i++)
        fwd_head(job, &s, task * p->group + i, i + 1 < p->group);
}

#include "kernels/cpu/attention_long.inc"

static int fwd(struct device *dev, const struct attention_fwd *p, struct stream *stream)
{
    struct cpu_state *st = cpu_state(dev);
    struct fwd_job job = {
        .plan = {.B = p->B,
                 .T = p->T,
                 .Tk = p->kv && p->Tk ? p->Tk : p->T,
                 .H = p->H,
                 .D = p->D,
                 .Hkv = p->Hkv,
                 .causal = p->causal,
                 .start = p->start,
                 .klen = p->klen,
                 .scale = p->scale,
                 .dt = p->dt},
        .p = p,
    };
    struct fwd_scratch s;
    complete_plan(st, &job.plan);
    set_places(&job.plan, p->qkv, p->q, p->kv, p->kv_stride);
    if (!tasks_of(&job.plan))
        return 0;
    if (is_long(&job.plan))
        return fwd_long(dev, &job);
    job.plan.bytes = fwd_carve(&s, &job.plan, NULL);
    job.scratch = cpu_scratch(st, SCRATCH_PACKED, job.plan.bytes * (size_t)dev->threads);
    if (!job.scratch)
        return -ENOMEM;
    cpu_team_run(st->team, fwd_task, &job, tasks_of(&job.plan));
    return 0;
}

/* ---- backward ---- */

struct bwd_job {
    struct plan plan;
    const struct attention_bwd *p;
    void *dq, *dkv; /* as queries and keys lie */
    char *scratch;
};

/* One query head. */
struct head {
    struct mat q, o, d_o;
    const float *lse;
    int64_t q_at; /* element of its first row in dq */
    int b;
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

/* Row r of the strips to row `out` of prob and dscore = scale * prob * (dprob - delta). */
static void grad_row(const struct plan *p, const struct bwd_scratch *s, int r, int out,
                     struct span panels, struct span in, float lse, float delta)
{
    vf scale = v_set(p->scale), shift = v_set(lse), del = v_set(delta);
    int64_t begin = in.begin / VL * VL, end = (in.end + VL - 1) / VL * VL;
    int64_t to = out * p->key_panels * NR;
    zero_prob(p, s->prob, to, panels.begin, begin);
    zero_prob(p, s->dscore, to, panels.begin, begin);
    for (int64_t t = begin; t < end; t += VL) {
        int64_t at = t / NR * TILE + r * NR + t % NR;
        vf score = v_mul(v_load(s->strip + at, v_mask(VL)), scale);
        vf e = only_in(in, t, v_exp(v_sub(score, shift)), v_zero());
        vf d = v_mul(v_mul(e, scale), v_sub(v_load(s->dstrip + at, v_mask(VL)), del));
        v_store_dt(s->prob, p->work, to + t, v_mask(VL), e);
        v_store_dt(s->dscore, p->work, to + t, v_mask(VL), d);
    }
    zero_prob(p, s->prob, to, end, panels.end);
    zero_prob(p, s->dscore, to, end, panels.end);
}

/* Rows of `sum` += left(block rows, keys)ᵀ m(block rows, D); keys from `fresh` on have no sum
 * yet and are set. */
static void add_transposed(const struct plan *p, const struct bwd_scratch *s, float *sum,
                           const void *left, const struct mat *m, int64_t row, int rows,
                           struct span keys, int64_t fresh)
{
    int64_t units = gemm_units(p->work, rows), dims = p->dim_panels * NR;
    int64_t end = least(keys.end, p->keys);
    p->kern->pack_a_tn(s->left, units * MR,
                       (const char *)left + keys.begin * (int64_t)dtype_bytes(p->work),
                       p->key_panels * NR, end - keys.begin, rows, NULL);
    pack_nn(p, s->right, m, row, rows);
    for (int64_t j = 0; j < p->dim_panels; j++) {
        for (int64_t i = keys.begin; i < end; i += MR) {
            int n = (int)least(MR, end - i);
            float *to = sum + i * dims + j * NR;
            for (int64_t r = fresh - i; r > 0 && r < n; r++) /* a tile of both kinds */
                memset(to + r * dims, 0, NR * sizeof(*to));
            p->kern->packed[n](&(struct gemm_out){to, dims, i < fresh ? to : NULL, dims},
                               s->left + (i - keys.begin) * units, 0, s->right + j * NR * units,
                               units);
        }
    }
}

/* dq of MR query rows: dscore (rows, keys) times k. */
static void store_dq(const struct plan *p, void *dq, const struct bwd_scratch *s,
                     const struct head *hd, int64_t row, int in_block, int rows, struct span keys)
{
    static const float ones[MR] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    float tile[TILE];
    int64_t es = (int64_t)dtype_bytes(p->work), bytes = p->key_panels * NR * es;
    int64_t first, units = span_units(p, keys, &first);
    for (int64_t j = 0; j < p->dim_panels; j++) {
        p->kern->inplace[rows](&(struct gemm_out){.c = tile, .ld = NR},
                               (const char *)s->dscore + in_block * bytes + keys.begin * es, bytes,
                               s->k_nn + (j * p->key_units + first) * NR, units);
        store_scaled(dq, p->dt, hd->q_at + row * p->q.ld + j * NR, p->q.ld, tile, rows,
                     (int)least(NR, p->D - j * NR), ones);
    }
}

/* A block of queries.  The sums of keys below `fresh` are there; returns up to where they are
 * then. */
static int64_t bwd_block(const struct plan *p, void *dq, const struct bwd_scratch *s,
                         const struct head *hd, int64_t row, int64_t fresh)
{
    int rows = (int)least(BLOCK, p->T - row);
    struct span panels = block_span(p, hd->b, row, rows);
    for (int i = 0; i < rows; i += MR) {
        int n = (int)least(MR, rows - i);
        struct span own = block_span(p, hd->b, row + i, n);
        strip_of(p, s->strip, &hd->q, row + i, n, s->k_nt, own);
        strip_of(p, s->dstrip, &hd->d_o, row + i, n, s->v_nt, own);
        for (int r = 0; r < n; r++)
            grad_row(p, s, r, i + r, panels, row_span(p, hd->b, row + i + r), hd->lse[row + i + r],
                     dot_row(p, &hd->d_o, &hd->o, row + i + r));
        store_dq(p, dq, s, hd, row + i, i, n, own);
    }
    add_transposed(p, s, s->dv, s->prob, &hd->d_o, row, rows, panels, fresh);
    add_transposed(p, s, s->dk, s->dscore, &hd->q, row, rows, panels, fresh);
    return panels.end > fresh ? panels.end : fresh;
}

/* Rows of all keys: the sums of those below `summed`, and zeros. */
static void store_sum(const struct plan *p, void *dkv, const float *sum, int64_t at, int64_t summed)
{
    int64_t dims = p->dim_panels * NR;
    for (int t = 0; t < p->Tk; t++)
        for (int d = 0; d < p->D; d += VL)
            v_store_dt(dkv, p->dt, at + t * p->kv.ld + d, v_mask(p->D - d),
                       t < summed ? v_load(sum + t * dims + d, v_mask(VL)) : v_zero());
}

/* The query heads of one head of keys. */
static void bwd_head(const struct bwd_job *job, struct bwd_scratch *s, int bh, bool more)
{
    const int b = bh / job->plan.Hkv, hk = bh % job->plan.Hkv;
    const struct plan sample = plan_of(&job->plan, b), *p = &sample;
    const void *o = job->p->o, *d_o = job->p->d_o;
    const int64_t k_at = key_at(p, b, hk), v_at = k_at + value_step(p);
    const int64_t o_at = (int64_t)b * p->T * p->o_ld, next = (int64_t)(hk + 1) * p->share * p->D;
    struct mat k = load_head(p, p->kv.p, k_at, p->kv.ld, p->keys, s->wide[1]);
    struct mat v = load_head(p, p->kv.p, v_at, p->kv.ld, p->keys, s->wide[2]);
    if (more) {
        prefetch_next(p, b, hk);
        prefetch_heads(p, o, o_at + next, p->o_ld, p->T, p->share);
        prefetch_heads(p, d_o, o_at + next, p->o_ld, p->T, p->share);
    }
    pack_nt(p, s->k_nt, &k);
    pack_nt(p, s->v_nt, &v);
    pack_nn(p, s->k_nn, &k, 0, p->keys);
    /* The first head's blocks go through the keys in order, and none leaves a gap. */
    int64_t fresh = 0;
    for (int h = hk * p->share; h < (hk + 1) * p->share; h++) {
        const int64_t q_at = b * p->q.stride + (int64_t)h * p->D, at = o_at + (int64_t)h * p->D;
        const struct head head = {
            .q = load_head(p, p->q.p, q_at, p->q.ld, p->T, s->wide[0]),
            .o = load_head(p, o, at, p->o_ld, p->T, s->wide[3]),
            .d_o = load_head(p, d_o, at, p->o_ld, p->T, s->wide[4]),
            .lse = job->p->lse + ((int64_t)b * p->H + h) * p->T,
            .q_at = q_at,
            .b = b,
        };
        for (int64_t row = 0; row < p->T; row += BLOCK)
            fresh = bwd_block(p, job->dq, s, &head, row, fresh);
    }
    fresh = least(fresh, p->keys);
    store_sum(p, job->dkv, s->dk, k_at, fresh);
    store_sum(p, job->dkv, s->dv, v_at, fresh);
}

static void bwd_task(void *arg, int task, int thread)
{
    const struct bwd_job *job = arg;
    const struct plan *p = &job->plan;
    struct bwd_scratch s;
    bwd_carve(&s, p, job->scratch + (size_t)thread * p->bytes);
    for (int i = 0; i < p->group; i++)
        bwd_head(job, &s, task * p->group + i, i + 1 < p->group);
}

static int bwd(struct device *dev, const struct attention_bwd *p, struct stream *stream)
{
    struct cpu_state *st = cpu_state(dev);
    struct bwd_job job = {
        .plan = {.B = p->B,
                 .T = p->T,
                 .Tk = p->q && p->Tk ? p->Tk : p->T,
                 .H = p->H,
                 .D = p->D,
                 .Hkv = p->Hkv,
                 .causal = p->causal,
                 .start = p->start,
                 .klen = p->klen,
                 .scale = p->scale,
                 .dt = p->dt},
        .p = p,
        .dq = p->q ? p->dq : p->dqkv,
        .dkv = p->q ? p->dkv : p->dqkv,
    };
    struct bwd_scratch s;
    complete_plan(st, &job.plan);
    set_places(&job.plan, p->qkv, p->q, p->kv, 0);
    job.plan.bytes = bwd_carve(&s, &job.plan, NULL);
    job.scratch = cpu_scratch(st, SCRATCH_PACKED, job.plan.bytes * (size_t)dev->threads);
    if (!job.scratch)
        return -ENOMEM;
    cpu_team_run(st->team, bwd_task, &job, tasks_of(&job.plan));
    return 0;
}

void FOR_ISA(attention_install)(struct kernel_ops *ops)
{
    ops->attention_fwd = fwd;
    ops->attention_bwd = bwd;
}
