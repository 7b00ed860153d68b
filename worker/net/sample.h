/* Drawing samples: the flow's ODE from noise at t = 1 to an image at t = 0, with
 * classifier-free guidance (Ho & Salimans 2022):
 *
 *    v = v(null) + guidance (v(label) - v(null));   dx/dt = v
 *
 * Euler takes one evaluation a step, Heun two and is of second order.  The noise of
 * sample i is a function of (seed, i): equal for every batch size and device.
 *
 * A model that reads an estimate of the image is told, row by row, the one of the evaluation
 * before, x - t v of its own velocity; at the first one none.
 *
 * Of a model with captions a label is the number of one of them, and `classes` the null caption's.
 *
 * Where velocities come from is a struct sample_source: one network, or a mixture of
 * experts (worker/engine/mixture.h). */
#ifndef WORKER_SAMPLE_H
#define WORKER_SAMPLE_H

#include "common/base/base.h"
#include "kernels/kernels.h"

struct dit_rows;

/* One evaluation: `copies` rows for each of B samples.  With guidance copies is 2: row
 * B+i has the x and t of row i, and the null label. */
struct sample_call {
    float *v;              /* (copies*B,Ch,S,S) = on the device */
    const float *x;        /* (copies*B,Ch,S,S) on the device */
    const float *estimate; /* as x, of a source that reads one; NULL: there is none yet */
    const float *t;        /* (copies*B) on the host, all equal */
    const int32_t *labels; /* (copies*B) on the host, in [0, classes]; classes is null */
    int B, copies;
    int first;  /* number of the first of these samples */
    bool begin; /* the first evaluation of these samples: x is the noise */
};

struct sample_source {
    struct device *dev;
    struct stream *stream; /* that velocity() works on */
    int channels, image;   /* Ch, S */
    int classes;
    int rows;       /* largest call; guidance needs 2 */
    bool estimates; /* calls are to have the estimate of the one before */
    void *arg;
    int (*velocity)(void *arg, const struct sample_call *call, struct err *err);
};

struct sample_options {
    int steps;      /* 1..1000 */
    bool heun;      /* else Euler */
    float guidance; /* 1: off, half the work */
    uint64_t seed;
    /* What turns latents into pixels: images (count,pixels,pixels,3) u8, host = of latents
     * (count,Ch,S,S), device, at most as many as a run of the source.  NULL: the source's are
     * pixels. */
    int (*decode)(void *arg, const float *latents, int count, uint8_t *images, struct err *err);
    void *decoder; /* its arg */
    int pixels;    /* with decode: side of the images */
    /* Called after every step with evaluations done and in all; nonzero stops the run
     * with -ERR_CANCELLED.  May be NULL. */
    int (*progress)(void *arg, unsigned done, unsigned total);
    void *arg;
};

/* images (count, S, S, 3) u8 on the host, rows from the top, RGB, of side `pixels` where they are
 * decoded.  labels (count) in [0, classes). */
int sample_run(const struct sample_source *src, const struct sample_options *opt,
               const int32_t *labels, int count, uint8_t *images, struct err *err);

/* The same, as f32 (count, Ch, S, S) before clamping or decoding; for tests. */
int sample_run_f32(const struct sample_source *src, const struct sample_options *opt,
                   const int32_t *labels, int count, float *images, struct err *err);

/* The velocities of one DiT: on its device, rows from its batch; captions are set before. */
struct sample_source sample_of_dit(struct dit_rows *r);

#endif
