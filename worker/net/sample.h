/* Drawing samples: the flow's ODE from noise at t = 1 to an image at t = 0, with
 * classifier-free guidance (Ho & Salimans 2022):
 *
 *    v = v(null) + guidance (v(label) - v(null));   dx/dt = v
 *
 * The steps are equal, or with a shift more of them are near noise (flow_shift).  Euler takes one
 * evaluation per step; Heun takes two and is of second order.  The noise of
 * sample i is a function of (seed, i): the same for every batch size and device.
 *
 * A model that reads an estimate of the image gets, for each row, that of the evaluation before,
 * x - t v with the row's own velocity; at the first evaluation it gets none.
 *
 * For a model with captions a label is the number of a caption, and `classes` the null caption's.
 *
 * Velocities come from a struct sample_source: one network, or a mixture of experts
 * (worker/engine/mixture.h). */
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
    const float *estimate; /* as x, if the source reads one; NULL: there is none yet */
    const float *t;        /* (copies*B) on the host, all equal */
    const int32_t *labels; /* (copies*B) on the host, in [0, classes]; classes is null */
    int B, copies;
    int first;  /* number of the first sample */
    bool begin; /* the first evaluation of these samples: x is the noise */
};

struct sample_source {
    struct device *dev;
    struct stream *stream; /* the stream that velocity() works on */
    int channels, image;   /* Ch, S */
    int classes;
    int rows;       /* most rows of a call; guidance needs 2 */
    bool estimates; /* each call gets the estimate of the call before */
    void *arg;
    int (*velocity)(void *arg, const struct sample_call *call, struct err *err);
};

struct sample_options {
    int steps;      /* 1..1000 */
    bool heun;      /* else Euler */
    float shift;    /* of the times (flow_matching.h); 0: none */
    float guidance; /* 1: off, half the work */
    uint64_t seed;
    /* Turns latents into pixels: images (count,pixels,pixels,3) u8, host = those of latents
     * (count,Ch,S,S), device; count is at most src->rows.  NULL: the source draws pixels. */
    int (*decode)(void *arg, const float *latents, int count, uint8_t *images, struct err *err);
    void *decoder; /* decode's arg */
    int pixels;    /* with decode: side of the images */
    /* Called after every step with the evaluations done and their total; nonzero stops the
     * run with -ERR_CANCELLED.  May be NULL. */
    int (*progress)(void *arg, unsigned done, unsigned total);
    void *arg;
};

/* images (count, S, S, 3) u8 on the host, rows from the top, RGB; decoded images have the side
 * `pixels`.  labels (count) in [0, classes). */
int sample_run(const struct sample_source *src, const struct sample_options *opt,
               const int32_t *labels, int count, uint8_t *images, struct err *err);

/* The same, as f32 (count, Ch, S, S) before clamping or decoding; for tests. */
int sample_run_f32(const struct sample_source *src, const struct sample_options *opt,
                   const int32_t *labels, int count, float *images, struct err *err);

/* The velocities of one DiT, on its device; rows is its batch.  Captions must be set before. */
struct sample_source sample_of_dit(struct dit_rows *r);

#endif
