/* The inside of a decoder on a device, for its own files: llama.c, and llama_plan.c (memory).
 *
 * R rows of tokens (B texts of T), C channels, H query heads and K key heads of width D, M
 * hidden width of the MLP, V vocabulary; "(dt)" is bf16 or f32.  One block, with the
 * activations kept for its backward:
 *
 *   x1 ─norm─► h1 ─► qkv (normed, turned) ─► o (attention) ─► y
 *    └──────────────────── + y ──► x2 ─norm─► h2 ─► gu ─swiglu─► act ─► y
 *                                   └──────────────── + y ──► x1 of the next
 *
 * Only with qk_norm does each head of q and k pass a norm before it is turned.
 * The addition that ends a half is fused with the norm that begins the next one, except at the end
 * of a part: there x1 crosses to the next part, and dx comes back. */
#ifndef WORKER_LLAMA_IMPL_H
#define WORKER_LLAMA_IMPL_H

#include "worker/model/model_index.h"
#include "worker/net/arena.h"
#include "worker/net/llama.h"

struct llama_norm {
    float *x;    /* (R,C) residual stream at a norm */
    float *rstd; /* (R) */
    void *h;     /* (R,C) (dt) */
};

/* (dt) As dit_block_grads: gradients from which those of a block's weights are made. */
struct llama_block_grads {
    void *down, *o; /* (R,C) gradients of these products' outputs */
    void *gu;       /* (R,2M) */
    void *qkv;      /* (R,(H+2K)D) */
};

struct llama_block {
    struct llama_norm n1, n2;
    void *qkv;                  /* (R,(H+2K)D) (dt) after rope, if the block has it */
    void *qk;                   /* (R,H,D), then (R,K,D) (dt): q and k before their norms; NULL
                                 * without these, or without gradients */
    void *o;                    /* (R,H,D) (dt) */
    float *lse;                 /* (B,H,T); NULL without gradients */
    void *gu;                   /* (R,2M) (dt) gate and up */
    void *act;                  /* (R,M) (dt) */
    struct llama_block_grads d; /* backward only */
};

/* Arrays of rows, without the last column of the batch's tokens. */
struct llama_rows {
    int32_t *tokens, *start, *pos, *target;
    float *weight; /* factor of its gradient */
};

/* A micro-batch, and everything that it keeps for its backward. */
struct llama_slot {
    int B, T;
    int64_t rows;
    struct llama_rows in;
    float *loss;                     /* (R) */
    const struct llama_cache *cache; /* NULL: texts do not continue a cache */

    struct llama_block *blocks; /* (depth) */
    void *y;                    /* (R,C) (dt) end of a half block */
    struct llama_norm nf;       /* final */

    /* Backward only. */
    float *dx; /* (R,C) */
    void *dh;  /* (R,max(C,H*D)) (dt) */
};

struct llama {
    struct net net; /* first: net_ops gets a pointer to it */
    struct weights weights;
    const struct kernel_ops *ops; /* these three as in weights */
    struct device *dev;
    struct stream *stream;
    enum dtype dt;
    struct model_part part; /* the part that it is: it has no memory for other blocks */
    struct llama *next;     /* next part, on another device, for llama_read; or NULL */
    int depth, C, H, K, D, M, V;
    bool qk_norm;
    int64_t slice; /* rows of the head at a time */
    int head;      /* tensor that makes logits */

    struct inputs inputs;
    struct llama_rows host, loaded; /* the loaded batch, on the host and on the device */

    struct arena arena;
    struct llama_slot *slots;
    struct llama_block *blocks; /* (slots,depth) */
    float *logits;              /* (slice,V) */

    /* Backward only. */
    void *dlogits; /* (slice,V) (dt); in f32 the logits themselves */
    void *dy;      /* (R,C) (dt); with a split backward NULL, like dwide */
    void *dwide;   /* (R,max(2M,(H+2K)D)) (dt) */
    void *dact;    /* (R,M) (dt) */
};

/* The keys and values of a text so far: in the blocks of l, and in the next part. */
struct llama_cache {
    struct llama *l;
    struct llama_cache *next;
    void *kv; /* device (blocks,seq,2K,D) (dt) */
    int used, seq;
};

/* Width of a row of qkv. */
static inline int llama_qkv(const struct llama *l)
{
    return (l->H + 2 * l->K) * l->D;
}

/* Sizes and plan, no device memory yet.  -ENOMEM. */
int llama_plan(struct llama *l, const struct model *m, const struct net_options *opt,
               enum dtype dt);
/* Places the gradients of each block's products, after all other memory. */
void llama_place_grads(const struct llama *l, const struct llama_slot *s);

#endif
