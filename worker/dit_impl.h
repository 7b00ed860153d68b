/* Inside of struct dit, shared by dit.c, dit_forward.c and dit_backward.c.
 *
 * B samples, T tokens, C channels, M hidden width of the MLP, P values of a patch;
 * "(dt)" is bf16 or f32.  One block, with what is kept for its backward:
 *
 *   x1 ─LN,mod─► h1 ─► qkv ─► o (attention) ─► y1
 *    └────────────────────── + gate·y1 ──► x2 ─LN,mod─► h2 ─► pre ─gelu─► act ─► y2
 *                                           └────────── + gate·y2 ──► x1 of the next
 *
 * The addition that ends a block is fused with the LayerNorm that begins the next. */
#ifndef WORKER_DIT_IMPL_H
#define WORKER_DIT_IMPL_H

#include "worker/dit.h"
#include "worker/model_index.h"

struct dit_block {
    float *x1;     /* (B,T,C) residual stream at the first LayerNorm */
    float *stats1; /* (B,T,2) */
    void *h1;      /* (B,T,C) (dt) */
    void *qkv;     /* (B,T,3C) (dt) */
    void *o;       /* (B,T,C) (dt) */
    float *lse;    /* (B,H,T); NULL in DIT_FORWARD */
    void *y1;      /* (B,T,C) (dt) */
    float *x2;     /* (B,T,C) */
    float *stats2; /* (B,T,2) */
    void *h2;      /* (B,T,C) (dt) */
    void *pre;     /* (B,T,M) (dt) before the GELU; NULL in DIT_FORWARD */
    void *act;     /* (B,T,M) (dt) */
    void *y2;      /* (B,T,C) (dt) */
};

struct dit {
    struct device *dev;
    const struct kernel_ops *ops;
    struct stream *stream;
    const struct model *m;
    struct dit_options opt;
    enum dtype dt;
    int T, C, M, P;
    int64_t mod_ld; /* 6*C*depth + 2*C: all modulations of a sample in one row */

    float *w;   /* flat */
    bf16 *w16;  /* flat, or NULL in f32 */
    float *g;   /* flat, or NULL in DIT_FORWARD */
    float *pos; /* (T,C) */

    struct arena arena;
    struct dit_block *blocks; /* (depth) */

    /* Embedders and conditioning. */
    void *patches; /* (B,T,P) (dt) */
    float *t1000;  /* (B) */
    void *freq;    /* (B,256) (dt) */
    float *pre0;   /* (B,C) first layer of the time MLP */
    void *act0;    /* (B,C) (dt) */
    float *cond;   /* (B,C) time + label */
    void *scond;   /* (B,C) (dt) silu of it */
    float *mod;    /* (B,mod_ld) */

    /* Final layer. */
    float *xf;      /* (B,T,C) */
    float *stats_f; /* (B,T,2) */
    void *hf;       /* (B,T,C) (dt) */
    float *out;     /* (B,T,P) */

    /* Backward only. */
    void *dout;    /* (B,T,P) (dt) */
    float *dx;     /* (B,T,C) */
    void *dx16;    /* (B,T,C) (dt), bf16 only */
    void *dh;      /* (B,T,C) (dt) */
    void *dy;      /* (B,T,C) (dt) */
    void *dwide;   /* (B,T,max(M,3C)) (dt) */
    float *dmod;   /* (B,mod_ld) */
    void *dmod16;  /* (B,mod_ld) (dt), bf16 only */
    float *dscond; /* (B,C) */
    float *dcond;  /* (B,C) */
    void *dcond16; /* (B,C) (dt), bf16 only */

    /* First failure of a call since the last dit_check. */
    int rc;
    const char *failed;
};

/* Remembers the first failure; the kernels after it run on garbage, harmlessly. */
static inline void dit_op(struct dit *d, int rc, const char *what)
{
    if (rc < 0 && d->rc == 0) {
        d->rc = rc;
        d->failed = what;
    }
}

/* Reports and forgets the first failure; does not wait. */
int dit_check(struct dit *d, struct err *err);

/* Weights by index in the table: as stored, and as matmuls read them. */
static inline uint64_t dit_offset(const struct dit *d, int i)
{
    return d->m->tensors[i].offset;
}
static inline const float *dit_w(const struct dit *d, int i)
{
    return d->w + dit_offset(d, i);
}
static inline const void *dit_wm(const struct dit *d, int i)
{
    return d->w16 ? (const void *)(d->w16 + dit_offset(d, i)) : (const void *)dit_w(d, i);
}
static inline float *dit_g(const struct dit *d, int i)
{
    return d->g + dit_offset(d, i);
}

/* Columns of the modulation matrix: shift, scale, gate of the attention (0..2) and the
 * MLP (3..5) of a block; shift, scale (0..1) of the final layer. */
static inline int64_t dit_mod_at(const struct dit *d, int block, int which)
{
    return (int64_t)block * 6 * d->C + (int64_t)which * d->C;
}

/* Runs block b from x1 up to y2 (with_y2) or up to act. */
void dit_block_forward(struct dit *d, int b, int B, bool with_y2);

/* y (rows,out) (y_dt) = x (rows,in) (dt) Wᵀ + bias, W and bias being the tensors w, w+1. */
struct dit_linear {
    int w;
    int64_t rows, in, out;
};
void dit_linear(struct dit *d, const struct dit_linear *l, void *y, enum dtype y_dt, int64_t ldy,
                const void *x);

#endif
