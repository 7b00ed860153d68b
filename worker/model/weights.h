/* A network's parameters on a device: the f32 flat vector of worker/model/model.h, the
 * bf16 copy for products, the gradients, and the stream on which the network's work
 * is queued.  Used by every kind of network; their differences (activations,
 * operations) are in worker/net/dit.h and worker/net/llama.h.
 *
 * Failures: the operations below only queue work and remember the first failure
 * (weights_note); later ones run on garbage, harmlessly.  weights_check
 * reports and forgets the failure; weights_sync waits for the stream first.
 *
 * All calls on the compute thread of the device. */
#ifndef WORKER_WEIGHTS_H
#define WORKER_WEIGHTS_H

#include "common/base/base.h"
#include "kernels/kernels.h"
#include "worker/model/model.h"

/* A callback for gradients that are final: see weights_ready. */
struct weights_watch {
    void (*ready)(void *arg, uint64_t offset, uint64_t count);
    void *arg;
};

/* Work that a backward has put off: products that make gradients of weights, and announcements of
 * weights_ready.  {0} is empty. */
struct weights_later {
    struct weights_put_off *items;
    int n, room;
};
void weights_later_release(struct weights_later *l);

struct weights {
    struct device *dev;
    const struct kernel_ops *ops;
    struct stream *stream;
    const struct model *m;             /* borrowed */
    enum dtype dt;                     /* type that products read */
    float *w;                          /* (flat) master values */
    bf16 *w16;                         /* (flat) or NULL in f32 */
    float *g;                          /* (flat) gradients; NULL: made without */
    int rc;                            /* first failure since the last check */
    const char *failed;                /* the operation that failed */
    const struct weights_watch *watch; /* during the last micro-batch of a step, or NULL */
    struct weights_later *later;       /* where work is put off to; NULL: nothing is put off */
};

/* Values are undefined until weights_set; gradients are zero.  release accepts
 * the state after a failed init, and { 0 }. */
int weights_init(struct weights *w, struct device *dev, const struct model *m, enum dtype dt,
                 bool gradients, struct err *err);
void weights_release(struct weights *w);

/* Bytes that weights_init takes on the device. */
uint64_t weights_bytes(const struct model *m, enum dtype dt, bool gradients);

/* All values, from a host flat vector. */
int weights_set(struct weights *w, const float *flat, struct err *err);
/* The values of a part, from a host flat vector of the whole model. */
int weights_set_part(struct weights *w, const struct model *whole, const float *flat,
                     struct err *err);
/* After w->w was written on the device: refreshes the bf16 copy. */
int weights_changed(struct weights *w, struct err *err);

/* dst, on the device of `to`, = src, on that of `from`, through the host.  Waits for both. */
int weights_bring(struct weights *to, void *dst, struct weights *from, const void *src,
                  uint64_t bytes, struct err *err);

int weights_check(struct weights *w, struct err *err);
int weights_sync(struct weights *w, struct err *err);
static inline void weights_note(struct weights *w, int rc, const char *what)
{
    if (rc < 0 && w->rc == 0) {
        w->rc = rc;
        w->failed = what;
    }
}

/* A tensor by its index in the model's table: its master values, those that products read, and
 * its gradients. */
static inline const float *weights_f32(const struct weights *w, int i)
{
    return w->w + w->m->tensors[i].offset;
}
static inline const void *weights_mm(const struct weights *w, int i)
{
    return w->w16 ? (const void *)(w->w16 + w->m->tensors[i].offset)
                  : (const void *)weights_f32(w, i);
}
static inline float *weights_g(const struct weights *w, int i)
{
    return w->g + w->m->tensors[i].offset;
}

/* A backward announces, at most once for each value, that the gradients [offset, offset+count) of
 * the flat vector are final once the work that is queued on the stream by now is done. */
void weights_ready(struct weights *w, uint64_t offset, uint64_t count);

/* The same for the matrices among tensors first..last of the table, which lie together. */
void weights_ready_matrices(struct weights *w, int first, int last);

/* A linear layer over `rows` rows: tensor w (out,in), whose bias (out), if it has
 * one, is tensor w+1. */
struct weights_linear {
    int w;
    int64_t rows, in, out;
    bool no_bias;
    enum mm_epilogue epilogue; /* forward: MM_GELU; gradient of the input: MM_DGELU */
    void *aux;                 /* the epilogue's, of the result's shape */
};
/* y (rows,out) (y_dt) ld ldy = x (rows,in) (dt) ld ldx Wᵀ + bias; 0: dense. */
void weights_forward(struct weights *w, const struct weights_linear *l, void *y, enum dtype y_dt,
                     int64_t ldy, const void *x, int64_t ldx);
/* dW = (first) or += dyᵀ x, db += column sums of dy; dy and x (dt). */
void weights_grad(struct weights *w, const struct weights_linear *l, const void *dy, int64_t ld_dy,
                  const void *x, int64_t ldx, bool first);
/* The same, put off if w->later is set: dy and x must stay as they are until it runs. */
void weights_grad_later(struct weights *w, const struct weights_linear *l, const void *dy,
                        int64_t ld_dy, const void *x, int64_t ldx, bool first);
/* Queues all the work that was put off, in its order, and empties `later`. */
void weights_run_later(struct weights *w, struct weights_later *later);
/* dx (rows,in) (dx_dt) ld ldx = or += dy (rows,out) (dt) W. */
void weights_input_grad(struct weights *w, const struct weights_linear *l, void *dx,
                        enum dtype dx_dt, int64_t ldx, const void *dy, int64_t ld_dy,
                        bool accumulate);
/* Before the first micro-batch of a step: zeroes the gradients that it does not overwrite
 * (those without decay: biases, norms, embeddings). */
void weights_zero_grads(struct weights *w);
/* n values of f32 as products read them: rounded into copy, or x itself in f32. */
const void *weights_as_dt(struct weights *w, const float *x, void *copy, int64_t n);

#endif
