/* Shared by the files of this room.  A part's file plans its layers (buffers of scratch, weights
 * and how to read them) and has the functions that run them. */
#ifndef WORKER_FROZEN_FROZEN_IMPL_H
#define WORKER_FROZEN_FROZEN_IMPL_H

#include "worker/frozen/frozen.h"
#include "worker/net/arena.h"

/* Buffers of scratch: the most that a part uses. */
enum { FROZEN_BUFFERS = 5 };
/* The most buffers that a layer leaves for the next one. */
enum { FROZEN_LEFT = 2 };

/* A matrix (out,in) or a convolution (out,k,k,in) (dt), with a bias (out) or NULL. */
struct frozen_product {
    const void *w;
    const float *b;
    int out, in, k;
};

/* The weights of a norm, (C) each; b may be NULL. */
struct frozen_norm {
    const float *w, *b;
};

/* A group of samples in f's scratch; device memory except where noted. */
struct frozen_group {
    const void *in;
    const int32_t *lengths;      /* FROZEN_TEXT: (n) */
    const int32_t *host_lengths; /* FROZEN_TEXT: the same in host memory */
    void *out;
    int n;             /* samples, at most the options' group */
    int height, width; /* as in frozen_io */
};

/* A group that is being run. */
struct frozen_pass {
    const struct frozen *f;
    const struct frozen_group *g;
    struct stream *s;
    void *buf[FROZEN_BUFFERS];
    int rc;             /* the first failure; later operations run on garbage, harmlessly */
    const char *failed; /* the operation that failed */
};

struct frozen_layer;
typedef void frozen_layer_fn(struct frozen_pass *p, const struct frozen_layer *l);

struct frozen_layer {
    frozen_layer_fn *run;
    uint64_t cost, bytes;
    uint64_t at, span; /* its weights' run in all weights */
    int side;          /* VAE: side of its input */
    int in, out;       /* VAE: channels */
    int x, h, t;       /* VAE: buffers of the input, and of intermediate results */
    bool first;        /* text: there is nothing to add to x yet */
    struct {
        int buffer;
        uint64_t bytes;  /* per sample; 0: nothing */
    } left[FROZEN_LEFT]; /* buffers that the next layer reads; the last layer leaves none */
    struct frozen_norm norm[2];
    struct frozen_product p[4];
};

/* A run of weights: `count` values that make() gives as f32, stored as (dt), `at` bytes from the
 * beginning of all weights.  *target becomes its place on the device. */
struct frozen_load;
typedef int frozen_make_fn(const struct frozen *f, const struct frozen_load *l, float *out,
                           struct err *err);
struct frozen_load {
    frozen_make_fn *make;
    const struct component_tensor *t; /* the tensor that it is made of; may be NULL */
    void *target;
    uint64_t at, count;
    enum dtype dt;
    int layer; /* -1: of the whole chain */
};

/* All weights, as the list of loads lays them out. */
struct frozen_host {
    struct device *dev;
    void *block;
    uint64_t bytes;
};

/* A place on the device in which the weights of a layer are, or are going to be. */
struct frozen_slot {
    char *place;
    int layer;                 /* -1: none */
    struct mark *ready, *used; /* they are there; the last work that reads them */
};

struct frozen {
    struct device *dev;
    const struct component *c; /* while it is opened */
    struct frozen_options opt;
    struct component_vae vae; /* this or `text`, by the component's kind */
    struct component_text text;
    enum component_kind kind;
    struct stream *stream;
    struct stream *copies; /* of streamed weights */
    struct frozen_slot slots[FROZEN_SLOTS];

    struct frozen_layer *layers; /* (cap) does not move: the arena sets pointers in it */
    int n_layers, cap;
    struct frozen_load *loads;
    size_t n_loads, loads_cap;
    uint64_t common, all; /* bytes of the weights before the first layer's; of all */
    struct arena weights, scratch;
    uint64_t buffers[FROZEN_BUFFERS];   /* bytes of each buffer for a group */
    void *scratch_base[FROZEN_BUFFERS]; /* their places in f's own scratch */
    void *in;                           /* a group's input; NULL: the caller's is on the device */
    int32_t *lengths;                   /* a group's lengths, or a pass's */
    char *hold;                         /* (pass) what layers leave of samples of a pass */
    uint64_t in_bytes, out_bytes;       /* per sample */

    const float *positions;      /* CLIP: (positions,D) */
    const float *table;          /* text: (vocab,D) */
    const float *bias;           /* T5: (H,L,L) */
    struct frozen_norm last;     /* text: the last norm */
    struct frozen_product scale; /* decoder: f32 1x1, undoes shift and scale, then post_quant */
};

/* Plan the layers, weights and buffers of a part.  -ERR_CONFIG: it cannot be made so. */
int frozen_plan_encode(struct frozen *f, struct err *err);
int frozen_plan_decode(struct frozen *f, struct err *err);
int frozen_plan_text(struct frozen *f, struct err *err);

/* ---- planning ---- */

/* Adds a layer; it does not move. */
struct frozen_layer *frozen_layer_add(struct frozen *f, frozen_layer_fn *run);
/* Plans weights that make() fills, sets *target to them, and counts them for the layer that was
 * added last.  Before the first layer: several layers read them, and they always lie on the device;
 * they are counted for the first one.  t may be NULL if make needs none. */
void frozen_weight(struct frozen *f, void *target, frozen_make_fn *make,
                   const struct component_tensor *t, uint64_t count, enum dtype dt);
/* Plans a norm of PREFIX.weight and, with `bias`, PREFIX.bias, as f32. */
void frozen_add_norm(struct frozen *f, struct frozen_norm *n, const char *prefix, bool bias);
/* Plans at least `bytes` in buffer i for each sample of a group. */
void frozen_need(struct frozen *f, int i, uint64_t bytes);
/* A make() that gives the tensor as it is. */
frozen_make_fn frozen_as_is;

/* The component's tensor PREFIXleaf; NULL: it has none. */
const struct component_tensor *frozen_tensor(const struct frozen *f, const char *prefix,
                                             const char *leaf);

/* ---- weights in the host's memory ---- */

/* Gives all planned weights their places on the device: with opt.pass slots for layers. */
void frozen_stream_plan(struct frozen *f);
int frozen_stream_open(struct frozen *f, struct err *err);
void frozen_stream_close(struct frozen *f);
/* Around the work of layer i on s: its weights are there, and the next layer's on the way. */
int frozen_stream_begin(struct frozen *f, int i, struct stream *s);
int frozen_stream_end(struct frozen *f, int i, struct stream *s);

/* ---- running ---- */

/* Makes samples [first, first+n) of io a group in f's own scratch; with `inputs` it also queues the
 * copy of their inputs. */
int frozen_group_of(struct frozen *f, const struct frozen_io *io, int first, int n, bool inputs,
                    struct stream *s, struct frozen_group *ret, struct err *err);
/* Queues layers from..to-1 of a group.  They run in order, each once. */
int frozen_run_layers(struct frozen *f, const struct frozen_group *g, int from, int to,
                      struct stream *s, struct err *err);
/* -EINVAL: one of `count` texts is too long, or empty. */
int frozen_check(const struct frozen *f, const struct frozen_io *io, int count, struct err *err);
/* Bytes of a sample: hold: the most between two layers; left: those that layer i leaves in its k-th
 * buffer. */
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

/* dst = src in another type; does nothing if both are the same buffer and type. */
void frozen_cast(struct frozen_pass *p, void *dst, enum dtype dst_dt, const void *src,
                 enum dtype src_dt, int64_t n);

#endif
