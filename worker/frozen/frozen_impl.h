/* Between the files of this room.  A part's file plans its layers: buffers of scratch, weights and
 * what is to be read into them; and has the functions that run them. */
#ifndef WORKER_FROZEN_FROZEN_IMPL_H
#define WORKER_FROZEN_FROZEN_IMPL_H

#include "worker/frozen/frozen.h"
#include "worker/net/arena.h"

/* Of scratch: as many as the part with most of them uses. */
enum { FROZEN_BUFFERS = 5 };
/* Those of them that a layer may leave for the next one. */
enum { FROZEN_LEFT = 2 };

/* A matrix (out,in) or a convolution (out,k,k,in) (dt), with a bias (out) or NULL. */
struct frozen_product {
    const void *w;
    const float *b;
    int out, in, k;
};

/* Of a norm, (C) each; b may be NULL. */
struct frozen_norm {
    const float *w, *b;
};

/* A group of samples in f's scratch: everything in device memory unless it says otherwise. */
struct frozen_group {
    const void *in;
    const int32_t *lengths;      /* FROZEN_TEXT: (n) */
    const int32_t *host_lengths; /* FROZEN_TEXT: the same in host memory */
    void *out;
    int n;             /* samples, at most the options' group */
    int height, width; /* as in frozen_io */
};

/* A group in the middle of its way. */
struct frozen_pass {
    const struct frozen *f;
    const struct frozen_group *g;
    struct stream *s;
    void *buf[FROZEN_BUFFERS];
    int rc; /* the first failure; what comes after it runs on garbage, harmlessly */
    const char *failed;
};

struct frozen_layer;
typedef void frozen_layer_fn(struct frozen_pass *p, const struct frozen_layer *l);

struct frozen_layer {
    frozen_layer_fn *run;
    uint64_t cost, bytes;
    int side;    /* VAE: of its input */
    int in, out; /* VAE: channels */
    int x, h, t; /* VAE: buffers of input, and of what is on the way */
    bool first;  /* text: nothing is to be added to x yet */
    struct {
        int buffer;
        uint64_t bytes;  /* of a sample; 0: nothing */
    } left[FROZEN_LEFT]; /* what the next layer reads; of the last one nothing */
    struct frozen_norm norm[2];
    struct frozen_product p[4];
};

/* A run of weights: `count` values that make() gives as f32, stored as (dt) at a place of the
 * weights' arena. */
struct frozen_load;
typedef int frozen_make_fn(const struct frozen *f, const struct frozen_load *l, float *out,
                           struct err *err);
struct frozen_load {
    frozen_make_fn *make;
    const struct component_tensor *t; /* that it is made of; may be NULL */
    uint64_t at, count;
    enum dtype dt;
};

struct frozen {
    struct device *dev;
    const struct component *c; /* while it is opened */
    struct frozen_options opt;
    struct component_vae vae; /* of the component's kind */
    struct component_text text;
    enum component_kind kind;
    struct stream *stream;

    struct frozen_layer *layers; /* (cap): pointers to weights are set within */
    int n_layers, cap;
    struct frozen_load *loads;
    size_t n_loads, loads_cap;
    struct arena weights, scratch;
    uint64_t buffers[FROZEN_BUFFERS];   /* bytes that layers need, of a group */
    void *scratch_base[FROZEN_BUFFERS]; /* their places in f's own scratch */
    void *in;                           /* of a group; NULL: the caller's is on the device */
    int32_t *lengths;                   /* of a group */
    uint64_t in_bytes, out_bytes;       /* of a sample */

    const float *positions;      /* CLIP: (positions,D) */
    const float *table;          /* text: (vocab,D) */
    const float *bias;           /* T5: (H,L,L) */
    struct frozen_norm last;     /* text: the last norm */
    struct frozen_product scale; /* decoder: f32 1x1, undoes shift and scale, and post_quant */
};

/* Plans of the parts: layers, weights, buffers.  -ERR_CONFIG with a sentence. */
int frozen_plan_encode(struct frozen *f, struct err *err);
int frozen_plan_decode(struct frozen *f, struct err *err);
int frozen_plan_text(struct frozen *f, struct err *err);

/* ---- planning ---- */

/* A layer more; stays where it is. */
struct frozen_layer *frozen_layer_add(struct frozen *f, frozen_layer_fn *run);
/* Weights that are to be made and put where *target points; they count as those of the layer that
 * was added last.  t may be NULL where make needs none. */
void frozen_weight(struct frozen *f, void *target, frozen_make_fn *make,
                   const struct component_tensor *t, uint64_t count, enum dtype dt);
/* PREFIX.weight and .bias as f32: a norm.  bias: whether there is one. */
void frozen_add_norm(struct frozen *f, struct frozen_norm *n, const char *prefix, bool bias);
/* Buffer i holds `bytes` for each sample of a group. */
void frozen_need(struct frozen *f, int i, uint64_t bytes);
/* make() of a tensor as it is. */
frozen_make_fn frozen_as_is;

/* The component's tensor PREFIXleaf; NULL: it has none. */
const struct component_tensor *frozen_tensor(const struct frozen *f, const char *prefix,
                                             const char *leaf);

/* ---- running ---- */

/* Samples [first, first+n) of io as a group of f's own scratch; with `inputs` they are queued to be
 * sent there, too. */
int frozen_group_of(struct frozen *f, const struct frozen_io *io, int first, int n, bool inputs,
                    struct stream *s, struct frozen_group *ret, struct err *err);
/* Queues layers from..to-1 of a group.  They run in order, each once. */
int frozen_run_layers(struct frozen *f, const struct frozen_group *g, int from, int to,
                      struct stream *s, struct err *err);
/* -EINVAL: a text of count is too long, or empty. */
int frozen_check(const struct frozen *f, const struct frozen_io *io, int count, struct err *err);
/* The most that a sample takes between two layers; what layer i leaves of it in buffer k, in bytes.
 */
uint64_t frozen_hold(const struct frozen *f);
uint64_t frozen_left(const struct frozen *f, const struct frozen_group *g, int i, int k);

/* Notes the first failure of a pass. */
static inline void frozen_note(struct frozen_pass *p, int rc, const char *what)
{
    if (rc < 0 && p->rc == 0) {
        p->rc = rc;
        p->failed = what;
    }
}

/* dst = src of another type; nothing when both are the same buffer and type. */
void frozen_cast(struct frozen_pass *p, void *dst, enum dtype dst_dt, const void *src,
                 enum dtype src_dt, int64_t n);

#endif
