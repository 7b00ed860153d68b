/* The inside of a DiT on a device, for its own files: dit.c (memory), dit_forward.c,
 * dit_backward.c.
 *
 * B samples, T tokens, C channels, M hidden width of the MLP, P values of a patch; "(dt)" is
 * bf16 or f32.  One block:
 *
 *   x1 ─LN,mod─► h1 ─► qkv ─► o (attention) ─► y1
 *    └────────────────────── + gate·y1 ──► x2 ─LN,mod─► h2 ─► pre ─gelu─► act ─► y2
 *                                           └────────── + gate·y2 ──► x1 of the next
 *
 * The backward finds x1, qkv, o, y1, pre, act and y2 kept: 32 C bytes per row in bf16 (M = 4C), or
 * 24 C without act (NET_LEAN), which is then made again from pre.  It adds x2 up again, and the
 * backward of each LayerNorm makes h1 or h2 again; the products that read them are queued after it.
 *
 * The addition that ends a block is fused with the LayerNorm that begins the next one, except at
 * the end of a part: there x1 and the conditioning of the blocks cross to the next part, and their
 * gradients come back (dit_crossing).
 *
 * With captions (L tokens) each block attends to them between its self-attention and its MLP.  All
 * blocks then share one modulation, to which each adds a table, and a block's modulations of all
 * samples lie together:
 *
 *    x1 + gate·y1 ──► xc ─► q ──► co (attention to the captions) ─► cy
 *                      └──────────── + cy ──► x2 ─LN,mod─► h2 ...
 *    states ─MLP─► text ─► kv of each block */
#ifndef WORKER_DIT_IMPL_H
#define WORKER_DIT_IMPL_H

#include "worker/net/dit.h"
#include "worker/model/model_index.h"

struct dit_norm {
    float *x;     /* (B,T,C) residual stream at the LayerNorm */
    float *stats; /* (B,T,2) */
    void *h;      /* (B,T,C) (dt); in blocks, unless the backward is split: dh, until the product
                   * that reads it */
};

struct dit_cross {
    void *x;    /* (B,T,C) (dt) */
    void *q;    /* (B,T,C) (dt) */
    void *kv;   /* (B,L,2C) (dt) */
    void *o;    /* (B,T,C) (dt) */
    float *lse; /* (B,H,T); NULL in NET_FORWARD */
    void *y;    /* (B,T,C) (dt) */
};

/* (dt) Gradients of the outputs of a block's products, from which the gradients of its weights are
 * made.  With a split backward they last as long as the slot, in memory that the block above does
 * not need any more (those of the part's last block have memory of their own), and h1 and h2 are
 * kept.  Otherwise all blocks share them. */
struct dit_block_grads {
    void *y2;       /* (B,T,C) */
    void *pre;      /* (B,T,M) */
    void *cy, *q;   /* (B,T,C) each, with captions */
    void *kv;       /* (B,L,2C) with captions */
    void *y1, *qkv; /* (B,T,C), (B,T,3C) */
};

struct dit_block {
    struct dit_norm n1, n2;
    struct dit_cross cross;   /* with captions */
    void *qkv;                /* (B,T,3C) (dt) */
    void *o;                  /* (B,T,C) (dt) */
    float *lse;               /* (B,H,T); NULL in NET_FORWARD */
    void *y1;                 /* (B,T,C) (dt) */
    void *pre;                /* (B,T,M) (dt) before the GELU; NULL in NET_FORWARD */
    void *act;                /* (B,T,M) (dt); except in NET_TRAIN: dwide, until the product */
    void *y2;                 /* (B,T,C) (dt) */
    struct dit_block_grads d; /* backward only */
};

/* Everything that a micro-batch leaves for its backward, and the buffers that cross between parts.
 */
struct dit_slot {
    struct dit_block *blocks; /* (depth) */

    /* Embedders and conditioning. */
    void *patches;            /* (B,T,In) (dt); a router's T without the token */
    float *t1000;             /* (B) */
    void *freq;               /* (B,256) (dt) */
    float *pre0;              /* (B,C) first layer of the time MLP */
    void *act0;               /* (B,C) (dt) */
    float *cond;              /* (B,C) time + label */
    void *scond;              /* (B,C) (dt) silu of it */
    float *mod;               /* (B,mod_ld), or with captions (blocks,B,6C) and then (2,B,C) */
    struct dit_io io;         /* the last call's arguments, */
    int T;                    /* its tokens, */
    struct model_shape shape; /* and its shape */

    /* With captions. */
    float *shared;  /* (B,6C) the modulation that all blocks share */
    void *text_pre; /* (B,L,C) (dt) before the GELU; NULL in NET_FORWARD */
    void *text_act; /* (B,L,C) (dt) */
    void *text;     /* (B,L,C) (dt) */

    struct dit_norm nf; /* final layer */

    /* Backward only. */
    float *dx;      /* (B,T,C) */
    float *dmod;    /* as mod */
    void *dmod16;   /* (B,mod_ld), or with captions (B,6C) (dt), bf16 only */
    float *dscond;  /* (B,C) gradient of scond: summed over blocks, from the last to the first */
    float *dcond;   /* (B,C) */
    float *dshared; /* (B,6C) */
    float *dtext;   /* (B,L,C) */
};

struct dit {
    struct weights w;
    bool borrowed;                /* the weights are the caller's */
    const struct kernel_ops *ops; /* these four as in w */
    struct device *dev;
    struct stream *stream;
    enum dtype dt;
    const struct model *m;
    struct net_options opt;
    struct model_part part; /* the part that it is: it has no memory for other blocks */
    int T, C, M, P, L;      /* T: most tokens of a sample; L 0: no captions */
    int In;                 /* values of an input patch: P, or 2P with an estimate */
    int64_t mod_ld; /* 6*C for each block, 2*C for the final layer: a sample's modulations */

    struct arena arena;
    struct dit_slot *slots;
    struct dit_block *blocks; /* (slots,depth) */
    float *pos;               /* (shapes,T,C) positions, at the beginning of each shape's place */
    float *out;               /* (B,T,P) the final layer's result; a router has none */
    float *x2;                /* (B,T,C) of the current block; NULL with captions, in NET_FORWARD */
    void *dh;                 /* (B,T,C) (dt) h of the current block; in its backward first dh */
    void *dwide;              /* (B,T,max(M,3C)) (dt) act, and the backward's dpre and dqkv; NULL,
                               * like dy, if the backward is split */
    float *both;              /* (B,2Ch,S,S) x and the estimate; NULL: no estimate is read */
    float *ones;              /* (B,6C) with captions: the gate of the ungated cross-attention, */
    float *dones;             /* (B,6C) and its gradient */

    /* Backward only. */
    void *dout;    /* (B,T,P) (dt); a router: (B,classes) */
    void *dx16;    /* (B,T,C) (dt), bf16 only */
    void *dy;      /* (B,T,C) (dt) */
    void *dkv;     /* (B,L,2C) (dt) with captions */
    void *dcond16; /* (B,C) (dt), bf16 only */
};

/* Keeps the first failure of an operation. */
static inline void dit_op(struct dit *d, int rc, const char *what)
{
    weights_note(&d->w, rc, what);
}

/* Does it have a classification token, and logits in place of a velocity? */
static inline bool dit_is_router(const struct dit *d)
{
    return d->m->spec.kind == MODEL_ROUTER;
}

/* Does its part have the embedders, or the final layer? */
static inline bool dit_is_first(const struct dit *d)
{
    return d->part.from == 0;
}
static inline bool dit_is_last(const struct dit *d)
{
    return d->part.to == d->m->spec.depth;
}

/* Does it read labels, rather than captions or neither? */
static inline bool dit_has_labels(const struct dit *d)
{
    return !dit_is_router(d) && d->L == 0;
}

/* Offset in mod and dmod of modulation `which`: shift, scale, gate of a block's attention (0..2)
 * and MLP (3..5); shift, scale (0..1) of the final layer. */
static inline int64_t dit_mod_at(const struct dit *d, int block, int which)
{
    const int64_t C = d->C, rows = d->opt.batch;
    const int64_t at = block - d->part.from;
    if (d->L == 0)
        return at * 6 * C + which * C;
    return at * rows * 6 * C + which * (block == d->m->spec.depth ? rows * C : C);
}

/* The distance from one sample's modulations to the next one's. */
static inline int64_t dit_mod_ld(const struct dit *d, int block)
{
    if (d->L == 0)
        return d->mod_ld;
    return block == d->m->spec.depth ? d->C : 6 * (int64_t)d->C;
}

/* A LayerNorm's shift and scale: the first is modulation `which` of the block. */
struct dit_mod {
    int block, which;
};

/* The first LayerNorm of block b, or the final layer's (b == depth). */
static inline const struct dit_norm *dit_norm_of(const struct dit *d, const struct dit_slot *s,
                                                 int b)
{
    return b == d->m->spec.depth ? &s->nf : &s->blocks[b].n1;
}

/* With captions the final layer's modulations are laid out otherwise than the blocks': then the
 * addition before it is not fused. */
static inline bool dit_is_apart(const struct dit *d, int b)
{
    return d->L > 0 && b == d->m->spec.depth;
}

/* The layer that makes the result: a DiT's runs on all tokens, a router's on the first token of
 * each sample, one row in T. */
static inline struct weights_linear dit_head_of(const struct dit *d, const struct dit_slot *s,
                                                int B, int64_t *ret_ld)
{
    const struct model_spec *spec = &d->m->spec;
    const int w = model_final_tensor(spec, T_FINAL_W);
    *ret_ld = dit_is_router(d) ? (int64_t)s->T * d->C : 0;
    if (dit_is_router(d))
        return (struct weights_linear){.w = w, .rows = B, .in = d->C, .out = spec->classes};
    return (struct weights_linear){.w = w, .rows = (int64_t)B * s->T, .in = d->C, .out = d->P};
}

static inline void dit_take_io(const struct dit *d, struct dit_slot *s, const struct dit_io *io)
{
    s->io = *io;
    s->T = model_shape_tokens(&d->m->spec, io->shape);
    s->shape = model_shape(&d->m->spec, io->shape);
}

/* dst (n) = src, both on the device. */
static inline void dit_copy_rows(struct dit *d, float *dst, const float *src, int64_t n)
{
    dit_op(d, d->ops->copy(d->dev, dst, src, (size_t)n * sizeof *dst, COPY_DEVICE, d->stream),
           "copying tokens");
}

/* In dit_forward.c, for the backward too.  Was the DiT made for such a batch? */
int dit_check_batch(const struct dit *d, const struct dit_io *io, struct err *err);
/* NET_RECOMPUTE: computes block b anew from n1.x, up to what its backward needs. */
void dit_block_again(struct dit *d, const struct dit_slot *s, int b, int B);

#endif
