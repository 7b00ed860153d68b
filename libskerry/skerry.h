/* libskerry: makes a training loop of any kind an island of a swarm.
 *
 * A worker starts the program (docs/trainers.md), which says what tensors its model has, and then
 * does what it is asked to, one order after the other:
 *
 *     struct skerry *s;
 *     struct skerry_order o;
 *     if (skerry_join(&(struct skerry_options){.library = "mine 1.0"}, tensors, n, &s) < 0)
 *         errx(1, "%s", skerry_error());
 *     while (skerry_next(s, &o) > SKERRY_END) {
 *         if (o.kind == SKERRY_BEGIN) {                 // asks for the first weights
 *             store(skerry_weights(s, 0));              // a plain array, in the tensor's own dtype
 *             skerry_done(s, NULL);
 *             continue;
 *         }
 *         load(skerry_weights(s, 0));                   // a phase; others if options ask for them
 *         struct skerry_sample batch[32];
 *         int got;
 *         while (skerry_more(s) && (got = skerry_samples(s, batch, 32)) > 0) {
 *             float loss = step(batch, got);
 *             skerry_step(s, &(struct skerry_progress){.loss = loss, .samples = (uint32_t)got});
 *         }
 *         store(skerry_weights(s, 0));
 *         skerry_done(s, NULL);                         // hands the weights over
 *     }
 *     skerry_leave(s);
 *
 * ALONE.  A program that no worker has started trains alone, for debugging: its weights lie in
 * memory of its own, and it gets one phase without samples.
 *
 * WEIGHTS.  Between skerry_next() and skerry_done() the tensors at skerry_weights() are the
 * program's: they hold the version that the order is about, and what lies there at skerry_done()
 * is taken.  At other times they are the worker's; a program that writes then loses its lease.
 *
 * FRAGMENTS.  A job may want some of the weights in mid-phase, and give newer ones
 * (outer.fragments, outer.delay, outer.mix).  skerry_step() then calls skerry_options.give or .take
 * for each tensor in question, and the phase trains on with what is there then.  A program without
 * the two gets no such job.
 *
 * STATE.  What an optimiser keeps stays in the program.  Where order.goes_on is set, the last phase
 * of the same replica was this program's; otherwise it starts afresh, or from the state at
 * order.state_fd, which holds what skerry_done() was once given.
 *
 * Functions that can fail return a negative errno value or one of this library; skerry_error()
 * then has the sentence.  One thread at a time. */
#ifndef SKERRY_H
#define SKERRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SKERRY_RANK_MAX 8
#define SKERRY_API __attribute__((visibility("default")))

struct skerry;

/* Of a tensor; I64 and I32 are for buffers. */
enum skerry_dtype { SKERRY_F32 = 1, SKERRY_BF16, SKERRY_F16, SKERRY_I64, SKERRY_I32 };

struct skerry_tensor {
    const char *name; /* as checkpoints have it, UTF-8; tied tensors once */
    enum skerry_dtype dtype;
    unsigned rank; /* 0: a scalar */
    uint64_t shape[SKERRY_RANK_MAX];
    bool buffer; /* not trained, such as a running mean: leaves the program with trainer.buffers
                    only */
};

struct skerry_options {
    const char *library; /* "mine 1.0", for messages; NULL: this library */
    bool evaluates;      /* it can compute losses: SKERRY_EVALUATE */
    bool draws;          /* SKERRY_DRAW */
    bool keeps_state;    /* it gives and takes its optimiser's state */
    /* From within skerry_step(): copies tensor i of the program's to skerry_weights(i), or from
     * there; negative: it cannot, and skerry_step() fails.  Both or none. */
    int (*give)(void *arg, size_t i);
    int (*take)(void *arg, size_t i);
    void *arg;
};

/* Joins the worker that started this program, or trains alone.  tensors are copied.  Waits for
 * the worker. */
SKERRY_API int skerry_join(const struct skerry_options *opt, const struct skerry_tensor *tensors,
                           size_t n, struct skerry **ret);
/* Frees everything; NULL is fine.  The worker starts the program again when it needs it. */
SKERRY_API void skerry_leave(struct skerry *s);
/* Did no worker start this program? */
SKERRY_API bool skerry_alone(const struct skerry *s);
/* The last failure of this thread. */
SKERRY_API const char *skerry_error(void);

/* Where the values of tensor i lie; NULL: the job does not synchronise it. */
SKERRY_API void *skerry_weights(const struct skerry *s, size_t i);

enum skerry_order_kind {
    SKERRY_END = 0,  /* nothing more is wanted: leave */
    SKERRY_BEGIN,    /* write the weights that training starts from, skerry_done() */
    SKERRY_PHASE,    /* load the weights, train, write them, skerry_done() */
    SKERRY_EVALUATE, /* load the weights, compute the loss of all samples, skerry_done() */
    SKERRY_DRAW,     /* load the weights, draw, skerry_done() */
};

/* What the bytes of a sample are. */
enum skerry_sample_kind { SKERRY_NO_SAMPLES, SKERRY_IMAGES, SKERRY_TEXTS };

/* What is asked for; borrowed until the next order. */
struct skerry_order {
    enum skerry_order_kind kind;
    enum skerry_sample_kind samples_kind;
    uint64_t samples; /* that there are */
    uint32_t batch;   /* of a step */
    /* PHASE */
    uint32_t round, path, replica, replicas;
    uint32_t steps, seconds; /* its length: one of them, the other is 0 */
    uint64_t first_step, total_steps;
    uint64_t seed;
    bool goes_on;
    bool wants_state; /* skerry_done() is to bring the optimiser's state */
    int state_fd;     /* its state, -1: none; closed by the library */
    const char *precision;
    /* DRAW */
    const char *prompt; /* texts */
    uint32_t tokens;    /* texts: to generate; 0: images */
    float temperature, top_p;
    const uint32_t *labels; /* images: one each */
    size_t n_labels;
    uint32_t columns; /* of the grid */
};

/* Waits for the next order: its kind, or negative. */
SKERRY_API int skerry_next(struct skerry *s, struct skerry_order *ret);

/* A sample: the file of an image with its class, or tokens, little-endian 32-bit numbers. */
struct skerry_sample {
    const void *data; /* until the next call of skerry_samples() */
    size_t bytes;
    uint32_t cls;
};

/* The next samples of the order, each once, up to `max`: how many, 0 when there are no more. */
SKERRY_API int skerry_samples(struct skerry *s, struct skerry_sample *ret, int max);

/* Is another step to be made?  Not when the steps or seconds of the phase are over (though a phase
 * has at least one step), or the worker wants nothing more of it. */
SKERRY_API bool skerry_more(const struct skerry *s);
/* The share of its peak that the job's schedule gives the learning rate at the next step. */
SKERRY_API double skerry_lr_scale(const struct skerry *s);

struct skerry_progress {
    float loss;
    uint32_t samples; /* that the step was made of */
    float lr, grad_norm;
};

/* One step is done.  Also the place where the worker is listened to, and weights are exchanged. */
SKERRY_API int skerry_step(struct skerry *s, const struct skerry_progress *p);
/* A figure that goes with the next skerry_step(), or with the skerry_done() of an evaluation, up to
 * 16 of them: a series of the job, where the name has 1 to 64 of A-Z a-z 0-9 . _ - and begins with
 * neither . nor -.  Of one that is given twice the newer value counts. */
SKERRY_API int skerry_number(struct skerry *s, const char *name, double value);

struct skerry_result {
    int state_fd;    /* the optimiser's state, -1: none; the caller's */
    double loss_sum; /* EVALUATE: over so many losses */
    uint64_t units;
    const char *text; /* DRAW of texts */
    int picture_fd;   /* DRAW of images: a PNG, -1: none; the caller's */
};

/* What was asked for is done.  NULL: with nothing but the weights. */
SKERRY_API int skerry_done(struct skerry *s, const struct skerry_result *r);
/* It cannot be done: the worker is told the reason. */
SKERRY_API int skerry_fail(struct skerry *s, const char *reason);
/* The same, for lack of this machine's memory or its device's: another worker may have enough. */
SKERRY_API int skerry_lack_memory(struct skerry *s, const char *reason);

#ifdef __cplusplus
}
#endif

#endif
