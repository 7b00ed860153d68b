/* Arithmetic on a device: one table of operations that every device fills.
 *
 *     dev->ops->matmul(dev, &(struct matmul){ ... }, NULL);
 *
 * kernels/device/device.h opens devices.
 *
 * Devices: "cpu" (the fastest code that this CPU can run), "cpu-ref" (plain loops
 * on one thread: the specification with which every other one is compared) and,
 * in a build with CUDA, "cuda:N".
 *
 * Conventions, for every operation
 * - All pointers are to device memory (ops->alloc) unless noted otherwise; on the
 *   CPU any memory will do.  Base addresses are aligned to the element; an
 *   alignment of 64 bytes is faster.  Tensors are dense and row-major unless a
 *   leading dimension (`ld`, in elements) is given.
 * - A shape stands beside each pointer.  B samples, T tokens per sample, C
 *   channels, H heads, D = C/H.  "(dt)" is the tensor type given in the call
 *   (f32 or bf16), anything else is f32.  Arithmetic is in f32 whatever the
 *   storage; results are rounded once, when they are stored.
 * - Each output is marked `=` (overwritten; may hold garbage before) or `+=`
 *   (added to).  Outputs alias no input unless marked "may alias".
 * - Impossible dims return -EINVAL and touch nothing.  Work of size zero returns 0.
 *   Other errors are -ENOMEM (scratch) and -ERR_DEVICE (the backend refused).
 * - Streams order work: operations on one stream run in call order.  The CPU has
 *   one implicit stream, named NULL, and a call returns when it has finished.
 * - A device is used by one thread at a time.  Its other threads sleep between
 *   calls.  Open one device per compute thread.
 * - Results do not depend on the number of threads: work is cut at places fixed
 *   by the shapes, and every reduction has an order fixed by the shapes. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/codec.h"
#include "kernels/dtype.h"
#include "kernels/rope.h"

struct device;
struct err;
struct graph;
struct profile;
struct stream;
struct mark;

/* A run of values in a vector. */
struct vec_span {
    int64_t offset, count;
};

/* ---- matmul: C = epilogue(op(A) op(B) + bias) ------------------------------
 *
 *   y  = x Wᵀ + b   (NT)  x (tokens,in), W (out,in), the layout of torch.nn.Linear
 *   dx = dy W       (NN)
 *   dW = dyᵀ x      (TN)  with a_colsum giving db in the same pass
 *
 * A and B have one type, f32 or bf16; sums are f32; C is f32 or bf16. */
enum mm_layout {
    MM_NN, /* A (m,k), B (k,n) */
    MM_NT, /* A (m,k), B (n,k) */
    MM_TN, /* A (k,m), B (k,n) */
};

enum mm_epilogue {
    MM_PLAIN, /* C  = v, or C += v with accumulate */
    MM_GELU,  /* aux = v if aux is given, and C = gelu_tanh(v), with v before or after rounding
               * to aux: forward of an MLP */
    MM_DGELU, /* C  = v * gelu_tanh'(aux): backward of an MLP through its activation */
};

struct matmul {
    enum mm_layout layout;
    enum mm_epilogue epilogue;
    int64_t m, n, k;
    void *c;               /* (m,n) (c_dt) =, or += with accumulate */
    const void *a;         /* (m,k) or (k,m) (dt) */
    const void *b;         /* (k,n) or (n,k) (dt) */
    const float *bias;     /* (n) added to each row, or NULL */
    const bf16 *bias16;    /* (n) the same rounded, with bias; or NULL.  It saves a device that adds
                            * the bias in C's bf16 from rounding it again */
    void *aux;             /* (m,n) (c_dt), leading dimension ldc: = for GELU, input for DGELU */
    float *a_colsum;       /* (m) +=: sum over k of A, TN only, or NULL */
    int64_t lda, ldb, ldc; /* 0: dense */
    enum dtype dt;         /* type of A and B */
    enum dtype c_dt;       /* type of C and aux */
    bool accumulate;       /* only MM_PLAIN with f32 C */
    bool a_colsum_zero;    /* a_colsum holds zeros, which the sums may overwrite */
};

/* ---- adaLN: gated residual, LayerNorm and modulation in one pass -----------
 *
 *   x  = x_in + gate * y          when y is given (else x = x_in)
 *   h  = LN(x) * (1 + scale) + shift,   LN without affine, eps 1e-6
 *
 * gate, scale and shift are per sample (B,C) rows inside a wider matrix of
 * leading dimension mod_ld (DiT computes all six as one (B,6C) matmul). */
struct adaln_fwd {
    float *x;           /* (B,T,C) = ; may alias x_in; not written when y is NULL (may be NULL) */
    void *h;            /* (B,T,C) (dt) = ; NULL: only the residual */
    float *stats;       /* (B,T,2) = mean and 1/std of each row, for the backward; with h */
    const float *x_in;  /* (B,T,C) */
    const void *y;      /* (B,T,C) (dt) or NULL */
    const float *gate;  /* (B,C) ld mod_ld, required with y */
    const float *shift; /* (B,C) ld mod_ld, required with h */
    const float *scale; /* (B,C) ld mod_ld, required with h */
    int64_t mod_ld;
    int B, T, C;
    enum dtype dt;
};

/* Backward of the same.  Inputs are those of the forward and the gradients of
 * both outputs; dx carries the gradient of the residual stream through:
 *
 *   dx    += LN'(dh * (1+scale))           when dh is given
 *   dscale = sum_t dh * xhat, dshift = sum_t dh
 *   then, with y: dy = gate * dx, dgate = sum_t dx * y    (dx after the addition)
 *
 * The forward's results need not be kept: x is added up again from x_in, and h is made again, with
 * the forward's bits, for the products that read it. */
struct adaln_bwd {
    float *dx;          /* (B,T,C) += ; in: gradient of x, out: of x_in (passes 1:1) */
    float *dshift;      /* (B,C) ld mod_ld = ; with dh */
    float *dscale;      /* (B,C) ld mod_ld = ; with dh */
    void *dy;           /* (B,T,C) (dt) = ; with y */
    float *dgate;       /* (B,C) ld mod_ld = ; with y */
    void *h;            /* (B,T,C) (dt) = the forward's h; may alias dh; NULL: not wanted */
    const void *dh;     /* (B,T,C) (dt) or NULL: no LayerNorm part */
    const float *x;     /* (B,T,C) the forward's x (after the residual), with dh; x_in with x_before
                         */
    const float *stats; /* (B,T,2) the forward's, with dh */
    const float *scale; /* (B,C) ld mod_ld, with dh */
    const float *shift; /* (B,C) ld mod_ld, with h */
    const void *y;      /* (B,T,C) (dt) or NULL: no residual branch */
    const float *gate;  /* (B,C) ld mod_ld, with y */
    int64_t mod_ld;
    bool dx_set;   /* dx = instead of += (it holds garbage); needs dh */
    bool x_before; /* x is the forward's x_in, with its y and gate; needs dh and y */
    int B, T, C;
    enum dtype dt;
};

/* ---- RMSNorm with a residual before it (Zhang & Sennrich), a block of Llama ----
 *
 *   x = x_in + y when y is given (else x = x_in)
 *   h = x * rstd * w,   rstd = 1 / sqrt(mean(x²) + eps) */
struct rmsnorm_fwd {
    float *x;          /* (rows,C) = ; may alias x_in; not written when y is NULL (may be NULL) */
    void *h;           /* (rows,C) (dt) = ; NULL: only the residual */
    float *rstd;       /* (rows) = for the backward, or NULL */
    const float *x_in; /* (rows,C) */
    const void *y;     /* (rows,C) (dt) or NULL */
    const float *w;    /* (C), with h */
    float eps;
    int64_t rows;
    int C;
    enum dtype dt;
};

/*   dx += rstd * (dh*w - xhat * mean(dh*w * xhat)),   dw += sum over rows of dh * xhat
 *   dy  = dx after the addition: the gradient of y, rounded for the products */
struct rmsnorm_bwd {
    float *dx;         /* (rows,C) += ; in: gradient of x, out: of x_in */
    void *dy;          /* (rows,C) (dt) = or NULL */
    float *dw;         /* (C) += */
    const void *dh;    /* (rows,C) (dt) */
    const float *x;    /* (rows,C) the forward's x (after the residual) */
    const float *rstd; /* (rows) the forward's */
    const float *w;    /* (C) */
    bool dx_set;       /* dx = instead of += (it holds garbage) */
    int64_t rows;
    int C;
    enum dtype dt;
};

/* ---- RMSNorm of each head, in place: queries and keys of Qwen3 ----------------
 *
 *   x = x * rstd * w,   rstd = 1 / sqrt(mean(x²) + eps), the mean over the D values of a head
 *
 * The first `heads` heads of a row have one weight: in packed qkv (see attention) q is one call
 * and k another, each with ld = (H + 2 Hkv) D.
 * Backward: x holds the gradient of the forward's result and becomes that of its input,
 *
 *   x = rstd * (x*w - xhat * mean(x*w * xhat)),   dw += sum over rows and heads of x * xhat */
struct headnorm {
    void *x;    /* (rows,heads,D) (dt), row stride ld */
    void *kept; /* (rows,heads,D) (dt), dense: the forward's x before the norm; = of the forward,
                 * which may have NULL; the backward reads it */
    float *dw;  /* (D) +=, backward only */
    const float *w;   /* (D) */
    int64_t rows, ld; /* ld in elements, 0: heads*D */
    int heads, D;     /* D up to 256 */
    float eps;        /* the same in both */
    enum dtype dt;
};

/* ---- LayerNorm with weights and a residual before it, a block of CLIP ----------
 *
 *   x = x_in + y when y is given (else x = x_in)
 *   h = (x - mean) / sqrt(var + eps) * w + b,   mean and var over the row */
struct layernorm_fwd {
    float *x;          /* (rows,C) = ; may alias x_in; not written when y is NULL (may be NULL) */
    void *h;           /* (rows,C) (dt) = ; NULL: only the residual */
    const float *x_in; /* (rows,C) */
    const void *y;     /* (rows,C) (dt) or NULL */
    const float *w;    /* (C), with h */
    const float *b;    /* (C), with h */
    float eps;
    int64_t rows;
    int C;
    enum dtype dt;
};

/* ---- rotary positions (Su et al.), in place ---------------------------------
 *
 * Each of the first `heads` heads of a row is turned by the angles pos * rope_freq(i):
 *
 *   x[i] = x[i] cos - x[i+D/2] sin,   x[i+D/2] = x[i+D/2] cos + x[i] sin,   i < D/2
 *
 * the "rotate half" order of Hugging Face.  In packed qkv (see attention) q and k are
 * turned by one call with heads = H + Hkv and ld = (H + 2 Hkv) D.  `inverse` turns
 * back, which is the backward: apply it to the same heads of dqkv. */
struct rope {
    void *x;            /* (rows,heads,D) (dt), row stride ld */
    const int32_t *pos; /* (rows), 0 to 2^20 */
    int64_t rows, ld;   /* ld in elements, 0: heads*D */
    int heads, D;       /* D even, up to 256 */
    float theta;        /* 10000 in Llama 2, 500000 in Llama 3 */
    struct rope_scaling scaling;
    bool inverse;
    enum dtype dt;
};

/* ---- attention: softmax(scale q kᵀ + bias) v over the keys a query may see ---
 *
 * H query heads share Hkv heads of keys and values (grouped-query attention): query
 * head h reads key head h / (H/Hkv).  Hkv 0 means H; H is a multiple of it.
 *
 * Without `causal` every query sees every key.  With it, query i of a sample is at
 * position p = Tk-T+i and sees the keys j with start[i] <= j <= p (start NULL: 0), so
 * that documents packed into one sequence stay apart.  In both cases a sample has klen keys
 * (NULL: Tk); later keys and values are not read, and change no bit.  Blocks of keys that no
 * query sees are skipped.
 *
 * Queries, keys and values may lie in three ways:
 *   self-attention         qkv has all three
 *   a cache                q of qkv, keys and values of kv
 *   cross-attention        q, and keys and values of kv; qkv is not read
 * The k and v of a row of qkv are contiguous, as is a row of kv: one copy per token fills a
 * cache (after rope), and one product of the other sequence gives kv.  T may exceed Tk with
 * kv unless causal.
 *
 * Scores are streamed: no (T,Tk) matrix leaves the cache, the backward recomputes
 * them from the row statistic lse.  A sample's bits do not depend on other samples.
 * Forward: T and Tk up to 16384, D up to 512; backward: 4096 and 128.  Any values. */
struct attention_fwd {
    void *o;              /* (B,T,H,D) (dt) = */
    float *lse;           /* (B,H,T) = log sum exp of each row of scores; NULL: not wanted */
    const void *qkv;      /* (B,T,H+2Hkv,D) (dt): heads of q, then of k, then of v */
    const void *q;        /* (B,T,H,D) (dt), with kv; or NULL: that of qkv */
    const void *kv;       /* (B,Tk,2Hkv,D) (dt): heads of k, then of v; or NULL */
    int64_t kv_stride;    /* elements from one sample's kv to the next; 0: Tk*2*Hkv*D */
    const int32_t *start; /* (B,T) first key that a query sees, 0 <= start <= its position; or
                           * NULL.  Only with causal, without klen */
    const int32_t *klen;  /* (B) keys of each sample, 1 to Tk; or NULL */
    const float *bias;    /* (H,T,Tk) added to the scaled scores of every sample; or NULL */
    float scale;          /* above 0; 0: 1/sqrt(D) */
    int B, T, H, D;
    int Hkv; /* 0: H */
    int Tk;  /* keys, with kv; 0: T */
    bool causal;
    enum dtype dt;
};

/* Backward of the same, without a cache or a bias.  Each key head's gradient sums over its query
 * heads in ascending order.  Keys from klen on have the gradient 0. */
struct attention_bwd {
    void *dqkv;           /* (B,T,H+2Hkv,D) (dt) =, without q */
    void *dq;             /* (B,T,H,D) (dt) =, with q */
    void *dkv;            /* (B,Tk,2Hkv,D) (dt) =, with q */
    const void *d_o;      /* (B,T,H,D) (dt) */
    const void *o;        /* (B,T,H,D) (dt) the forward's, like all fields below */
    const float *lse;     /* (B,H,T) */
    const void *qkv;      /* (B,T,H+2Hkv,D) (dt) */
    const void *q, *kv;   /* (B,T,H,D), (B,Tk,2Hkv,D) (dt), or both NULL */
    const int32_t *start; /* (B,T) without q; or NULL */
    const int32_t *klen;  /* (B) or NULL */
    float scale;
    int B, T, H, D;
    int Hkv; /* 0: H */
    int Tk;  /* keys, with q; 0: T */
    bool causal;
    enum dtype dt;
};

/* ---- cross entropy over rows of logits --------------------------------------
 *
 *   loss    = log(sum exp(logits)) - logits[target]
 *   dlogits = grad_scale * w[row] * (softmax(logits) - onehot(target))
 *
 * A row with target -1 is ignored: loss 0, dlogits 0. */
struct cross_entropy {
    float *loss;           /* (rows) = */
    void *dlogits;         /* (rows,V) (grad_dt) = ; may alias logits of the same type; NULL: not
                            * wanted */
    const void *logits;    /* (rows,V) (dt) */
    const int32_t *target; /* (rows) -1 to V-1 */
    const float *w;        /* (rows) or NULL for 1; weighs only the gradient */
    float grad_scale;
    int64_t rows;
    int V;
    enum dtype dt, grad_dt;
};

/* ---- convolution of images, channels last, forward only ------------------------
 *
 *   y[b,i,j,:] = bias + sum over u, v < k of w[:,u,v,:] x[b, i*stride + u - pad_low,
 *                                                        j*stride + v - pad_low, :] [+ add]
 *
 * with zeros outside x; w is torch's (Cout,Cin,k,k) with its channels moved last.  Ho and
 * Wo are conv2d_side() of H and W.  A sample's result has the same bits in any batch; on a card
 * only if our own kernels compute it (SKERRY_CONV=own). */
struct conv2d {
    void *y;           /* (B,Ho,Wo,Cout) (dt) = */
    const void *x;     /* (B,H,W,Cin) (dt) */
    const void *w;     /* (Cout,k,k,Cin) (dt) */
    const float *bias; /* (Cout) or NULL */
    const void *add;   /* (B,Ho,Wo,Cout) (dt) or NULL; may be y itself */
    int B, H, W, Cin, Cout;
    int k, stride;         /* 1 or 3; 1 or 2 */
    int pad_low, pad_high; /* 0 to k-1 zeros before and after x along both axes */
    bool up2;              /* x is read as if its pixels were repeated 2 x 2; H and W are x's own */
    enum dtype dt;
};

/* The side of the result of an input of side `side`; 0: the kernel does not fit. */
static inline int conv2d_side(const struct conv2d *p, int side)
{
    int room = (p->up2 ? 2 * side : side) + p->pad_low + p->pad_high - p->k;
    return room < 0 ? 0 : room / p->stride + 1;
}

/* ---- GroupNorm (Wu & He), channels last, with the activation after it -----------
 *
 *   y = (x - mean) / sqrt(var + eps) * w + b, then with silu: y * sigmoid(y)
 *
 * mean and var over the N pixels and C/groups channels of each group of a sample. */
struct groupnorm_fwd {
    void *y;            /* (B,N,C) (dt) = ; may alias x */
    const void *x;      /* (B,N,C) (dt) */
    const float *w, *b; /* (C) */
    float eps;
    int64_t N;
    int B, C, groups; /* groups divide C */
    bool silu;
    enum dtype dt;
};

/* Activations of encoders; gelu_tanh has an operation of its own. */
enum activation {
    ACT_GELU,       /* x * (1 + erf(x / sqrt(2))) / 2 */
    ACT_QUICK_GELU, /* x * sigmoid(1.702 x) */
    ACT_RELU,
    ACT_SILU,
};

/* ---- AdamW (Loshchilov & Hutter), decoupled decay -------------------------
 *   g = grad * *grad_scale;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g²
 *   p = p - lr * weight_decay * p - lr * (m * correct1) / (sqrt(v * correct2) + eps)
 *
 * The values that change from step to step lie in device memory. */
struct adamw_now {
    float lr;
    float correct1, correct2; /* 1/(1-b1^step), 1/(1-b2^step) */
};

struct adamw {
    float *p;                    /* (n) master weights, updated */
    bf16 *p_bf16;                /* (n) = rounded copy of the new p, or NULL */
    float *m, *v;                /* (n) moments, updated */
    const float *grad;           /* (n) */
    const float *grad_scale;     /* device scalar (see clip_scale), or NULL for 1; when it is
                                  * not finite nothing is written */
    const struct adamw_now *now; /* device memory */
    float beta1, beta2, eps, weight_decay;
    int64_t n;
};

/* step is 1 for the first. */
static inline struct adamw_now adamw_now(double lr, float beta1, float beta2, int64_t step)
{
    struct adamw_now now;
    now.lr = (float)lr;
    now.correct1 = (float)(1.0 / (1.0 - pow((double)beta1, (double)step)));
    now.correct2 = (float)(1.0 / (1.0 - pow((double)beta2, (double)step)));
    return now;
}

/* ---- codecs of the wire: a phase's contribution, coded on the device --------
 *
 *   u = base - theta, then + residual when given
 *   payload, scales = the code of u;   left = u - the values that these decode to
 *
 * with the bits of common/outer/coding.h, which has the layouts.  f32 sends theta itself,
 * without base, residual or rest.  Element 0 begins a block of 256.  A value that
 * the codec refuses (not finite or above 2^126) makes *refused 1; the outputs of its block
 * are then undefined. */
struct encode {
    enum codec codec;
    void *payload;         /* = 4 n, 2 n, n or (n+1)/2 bytes, aligned to the element */
    uint16_t *scales;      /* (n/256, rounded up) = int8 and e3m0, or NULL */
    float *left;           /* (n) = or NULL; may alias residual */
    uint32_t *refused;     /* device scalar; stays as it is if nothing is refused */
    const float *theta;    /* (n) */
    const float *base;     /* (n) */
    const float *residual; /* (n) or NULL for none */
    int64_t n;
};

/* Order of the values in a patch. */
enum patch_order {
    PATCH_CPP, /* (channel, row, column): the conv weight of PatchEmbed */
    PATCH_PPC, /* (row, column, channel): the final layer's unpatchify */
};

/* Where a copy goes. */
enum copy_kind {
    COPY_TO_DEVICE,
    COPY_FROM_DEVICE,
    COPY_DEVICE,
};

struct kernel_ops {
    /* Memory, aligned to at least 64 bytes.  alloc does not clear.  free(NULL) is fine. */
    int (*alloc)(struct device *dev, size_t bytes, void **ret, struct err *err);
    void (*free)(struct device *dev, void *p);
    /* About how many bytes alloc could still give, and the device's total bytes.  On the CPU
     * they are the machine's (Linux's "available"), or those of the tightest control group
     * or limit of this process.  Either may be NULL. */
    int (*memory)(struct device *dev, uint64_t *ret_free, uint64_t *ret_total);

    /* Streams.  The CPU gives NULL.  sync waits for the stream and returns the
     * first error of its work. */
    int (*stream_new)(struct device *dev, struct stream **ret, struct err *err);
    void (*stream_free)(struct device *dev, struct stream *s);
    int (*sync)(struct device *dev, struct stream *s, struct err *err);
    /* Work queued on s from now on starts after the work queued on `after` by now. */
    int (*stream_follow)(struct device *dev, struct stream *s, struct stream *after);
    /* A mark is a place in a stream's work, which may be over when it is waited for.  The CPU gives
     * NULL.  mark: sets m to the work queued on s by now.  stream_pass: work queued on s from now
     * on starts after m, or at once if m was never set. */
    int (*mark_new)(struct device *dev, struct mark **ret, struct err *err);
    void (*mark_free)(struct device *dev, struct mark *m); /* accepts NULL */
    int (*mark)(struct device *dev, struct mark *m, struct stream *s);
    int (*stream_pass)(struct device *dev, struct stream *s, struct mark *m);

    /* Host memory, 64-byte aligned and not cleared, whose copies to and from the device
     * need no staging.  On a device whose memory is the host's (device.unified) it is
     * also device memory.  free_host(NULL) is fine. */
    int (*alloc_host)(struct device *dev, size_t bytes, void **ret, struct err *err);
    void (*free_host)(struct device *dev, void *p);

    /* Graphs: a stream's operations recorded once and started as one.  NULL unless
     * device.graphs.  After graph_begin the operations on the stream are recorded
     * instead of run, with all their arguments by value: values that differ between
     * launches must lie in device memory.  The same operations must have run before on
     * this stream, which allocates their working memory.  While recording: no alloc,
     * free, sync, host memory or profile; an operation that cannot be recorded fails.
     *
     * graph_end always ends the recording.  -EBUSY: something could not be recorded, and
     * *ret is NULL; -ENOMEM: so for a lack of memory, which may pass.  graph_launch: -ESTALE:
     * working memory has moved since; free the graph, run the operations, record again. */
    int (*graph_begin)(struct device *dev, struct stream *s, struct err *err);
    int (*graph_end)(struct device *dev, struct stream *s, struct graph **ret, struct err *err);
    int (*graph_launch)(struct device *dev, struct graph *g, struct stream *s);
    void (*graph_free)(struct device *dev, struct graph *g); /* accepts NULL */

    /* The operations: their manual is ops.inc. */
#define OP_PARAMS(...) __VA_ARGS__
#define OP(name, params, ...) int (*name)(struct device * dev, OP_PARAMS params, struct stream * s);
#include "kernels/ops.inc"
#undef OP

    /* NULL on the CPU: contributions are coded by common/outer there. */
    int (*encode)(struct device *dev, const struct encode *p, struct stream *s);
};

/* An open device: filled by device_open; read-only afterwards, except profile. */
struct device {
    const struct kernel_ops *ops;
    char name[32];  /* "cpu", "cpu-ref", "cuda:0" */
    char about[96]; /* for people: "CPU, 2 threads, AVX-512 with bf16" */
    int threads;    /* CPU: threads that compute, the caller's included */
    bool fast_bf16; /* bf16 matmul is faster than f32's: precision "auto" is then bf16 */
    bool unified;   /* device memory is host memory */
    bool graphs;    /* the graph operations are there */

    /* If not NULL, every operation adds its time to it (kernels/profile.h). */
    struct profile *profile;

    void *impl; /* the backend's own state */
};

#endif
