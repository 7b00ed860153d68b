/* Inside of struct dit, shared by dit*.c.
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

#include "worker/net/dit.h"
#include "worker/net/model_index.h"

struct dit_block {
    float *x1;     /* (B,T,C) residual stream at the first LayerNorm */
    float *stats1; /* (B,T,2) */
    void *h1;      /* (B,T,C) (dt) */
    void *qkv;     /* (B,T,3C) (dt) */
    void *o;       /* (B,T,C) (dt) */
    float *lse;    /* (B,H,T); NULL in NET_FORWARD */
    void *y1;      /* (B,T,C) (dt) */
    float *x2;     /* (B,T,C) */
    float *stats2; /* (B,T,2) */
    void *h2;      /* (B,T,C) (dt) */
    void *pre;     /* (B,T,M) (dt) before the GELU; NULL in NET_FORWARD */
    void *act;     /* (B,T,M) (dt) */
    void *y2;      /* (B,T,C) (dt) */
};

struct dit {
    struct weights w;
    const struct kernel_ops *ops; /* these four as in w */
    struct device *dev;
    struct stream *stream;
    enum dtype dt;
    const struct model *m;
    struct dit_options opt;
    int T, C, M, P;
    int64_t mod_ld; /* 6*C*depth + 2*C: all modulations of a sample in one row */

    float *pos; /* (T,C) */

    struct arena arena;
    struct dit_block *blocks; /* (depth) */

    /* Embedders and conditioning. */
    void *patches; /* (B,T,P) (dt); a router's T without the token */
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
    float *out;     /* (B,T,P); a router has none */

    /* Backward only. */
    void *dout;    /* (B,T,P) (dt); a router: (B,classes) */
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
};

static inline void dit_op(struct dit *d, int rc, const char *what)
{
    weights_note(&d->w, rc, what);
}

static inline bool dit_is_router(const struct dit *d)
{
    return d->m->spec.kind == MODEL_ROUTER;
}

/* Columns of the modulation matrix: shift, scale, gate of the attention (0..2) and the
 * MLP (3..5) of a block; shift, scale (0..1) of the final layer. */
static inline int64_t dit_mod_at(const struct dit *d, int block, int which)
{
    return (int64_t)block * 6 * d->C + (int64_t)which * d->C;
}

/* Before the first block and after the last, forward and backward (dit_ends.c): from x to
 * x1 of block 0, from hf to pred; from dpred to dh of the final LayerNorm, from dx. */
void dit_embed(struct dit *d, const float *x, int B);
void dit_head(struct dit *d, float *pred, int B);
void dit_head_backward(struct dit *d, const float *dpred, int B, bool first);
void dit_embed_backward(struct dit *d, int B, bool first);

/* Runs block b from x1 up to y2 (with_y2) or up to act. */
void dit_block_forward(struct dit *d, int b, int B, bool with_y2);

#endif
