/* Inside of struct llama, shared by llama*.c.
 *
 * R rows of tokens (B texts of T), C channels, H query heads, K key heads, D = C/H, M
 * hidden width of the MLP, V vocabulary; "(dt)" is bf16 or f32.  One block, with what
 * is kept for its backward:
 *
 *   x1 ─norm─► h1 ─► qkv (turned) ─► o (attention) ─► y
 *    └──────────────────── + y ──► x2 ─norm─► h2 ─► gu ─swiglu─► act ─► y
 *                                   └──────────────── + y ──► x1 of the next
 *
 * The addition that ends a half is fused with the norm that begins the next one. */
#ifndef WORKER_LLAMA_IMPL_H
#define WORKER_LLAMA_IMPL_H

#include "worker/net/inputs.h"
#include "worker/net/llama.h"
#include "worker/net/model_index.h"

struct llama_block {
    float *x1;    /* (R,C) residual stream at the first norm */
    float *rstd1; /* (R) */
    void *h1;     /* (R,C) (dt) */
    void *qkv;    /* (R,(H+2K)D) (dt) after rope */
    void *o;      /* (R,C) (dt) */
    float *lse;   /* (B,H,T); NULL without gradients */
    float *x2;    /* (R,C) */
    float *rstd2; /* (R) */
    void *h2;     /* (R,C) (dt) */
    void *gu;     /* (R,2M) (dt) gate and up */
    void *act;    /* (R,M) (dt) */
};

struct llama {
    struct net net; /* first: net_ops gets a pointer to it */
    struct weights weights;
    const struct kernel_ops *ops; /* these three as in weights */
    struct device *dev;
    struct stream *stream;
    enum dtype dt;
    int C, H, K, D, M, V;
    int64_t slice; /* rows of the head at a time */
    int head;      /* tensor that makes logits */

    /* Of what was loaded, on the host and on the device. */
    struct inputs inputs;
    struct llama_rows {
        int32_t *tokens, *start, *pos, *target; /* (N) without the last column */
        float *weight;                          /* (N) of the gradient */
    } host, loaded, d;                          /* d: the rows in work, inside of loaded */
    float *loss;                                /* (R) theirs */

    struct arena arena;
    struct llama_block *blocks; /* (depth) */
    void *y;                    /* (R,C) (dt) end of a half block */
    float *xf, *rstd_f;         /* (R,C), (R) final norm */
    void *hf;                   /* (R,C) (dt) */
    float *logits;              /* (slice,V) */

    /* Backward only. */
    void *dlogits; /* (slice,V) (dt); in f32 the logits themselves */
    float *dx;     /* (R,C) */
    void *dh, *dy; /* (R,C) (dt) */
    void *dwide;   /* (R,max(2M,(H+2K)D)) (dt) */
    void *dact;    /* (R,M) (dt) */
};

/* One call. */
struct llama_shape {
    int B, T;
    int64_t rows;
    struct llama_cache *cache; /* NULL: the texts stand alone */
};

static inline void llama_op(struct llama *l, int rc, const char *what)
{
    weights_note(&l->weights, rc, what);
}

static inline int llama_qkv_width(const struct llama *l)
{
    return (l->H + 2 * l->K) * l->D;
}

/* The fields that are the same in every call are filled in. */
void llama_norm(struct llama *l, const struct rmsnorm_fwd *norm);
/* Rotary positions of q and k in packed qkv, by d.pos. */
void llama_turn(struct llama *l, void *qkv, int64_t rows, bool inverse);

/* Checks the batch and sends it to the device; grad_scale is every row's weight. */
int llama_load(struct llama *l, const struct batch *b, float grad_scale, struct err *err);
/* Puts the texts [from, from+count) of it in work. */
void llama_take(struct llama *l, unsigned from, unsigned count, unsigned seq,
                struct llama_shape *ret);

/* Embedding, blocks and final norm: from d.tokens to hf. */
void llama_run(struct llama *l, const struct llama_shape *s);
/* Block b from h1 up to act; with_down also its last product, to y. */
void llama_block_run(struct llama *l, int b, const struct llama_shape *s, bool with_down);

/* logits (n,V) = those of rows [from, from+n). */
void llama_head_logits(struct llama *l, int64_t from, int64_t n);
/* Losses into l->loss; with backward also dh = gradient of hf, and the head's own. */
void llama_head(struct llama *l, const struct llama_shape *s, bool backward, bool first);
/* From dh of hf to all gradients. */
void llama_backward(struct llama *l, const struct llama_shape *s, bool first);

/* The cache of block b: (1,seq,2K,D) (dt). */
void *llama_cache_block(const struct llama_cache *c, int b);

#endif
