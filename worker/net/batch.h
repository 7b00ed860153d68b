/* A batch on its way from the data to the loss: images, or rows of texts (tokens not NULL).
 * The pipelines fill it (worker/data/), the networks read it (worker/net/net.h); what neither
 * knows (seed, t, the place in a step) is set by training and evaluation.
 *
 * Host memory, all borrowed: plain data, any thread. */
#ifndef WORKER_BATCH_H
#define WORKER_BATCH_H

#include "common/base/base.h"

struct batch {
    unsigned count;      /* images or rows; from a pipeline 0 at the end */
    uint64_t samples;    /* images, or pieces of text in the rows */
    const uint64_t *ids; /* (count) data_sample_id(); NULL where rows are packed */
    uint64_t seed;
    const uint64_t *keys; /* (count) names the random streams of each image */

    /* images */
    const uint8_t *images;     /* (count,S,S,3) rows from the top, RGB; NULL with moments */
    const uint16_t *moments;   /* (count,2,Ch,s,s) bf16: mean and logarithm of the variance of the
                                * latents, where an encoder has run before; or NULL */
    const uint8_t *shapes;     /* (count) the number of each one's shape (model_shape), which it
                                * fills its place from the beginning with; NULL: all S x S */
    const int32_t *labels;     /* (count) class of each; NULL: the null label for all */
    const int32_t *partitions; /* (count) of the data: a router's class, the teacher's number;
                                * NULL where neither is meant */
    const int32_t *captions;   /* (count,L) token ids of the caption drawn for each; or NULL */
    const int32_t *caption_lengths; /* (count) tokens of each, 1..L */
    float t;                        /* above 0: the time of all samples; 0: drawn */
    bool estimate; /* a model that reads an estimate of the image makes one first */

    /* texts */
    unsigned seq;            /* inputs of a row, at most model.context */
    const int32_t *tokens;   /* (count,seq+1) */
    const int32_t *start;    /* (count,seq) first index that index i may see; never falls */
    const int32_t *target;   /* (count,seq) token to predict, -1: none */
    const int32_t *pos;      /* (count,seq) position in the piece */
    const uint32_t *lengths; /* (count) tokens of the piece; NULL where rows are packed */
    const float *features;   /* (count,d) of the dataset's column; NULL: none */

    /* The step that it is a part of; whole 0: it is a step of its own. */
    unsigned first, whole; /* position of its first sample; samples of the step */
    uint64_t units;        /* batch_units of the step */
    unsigned next;         /* samples of this part of the step after it, whose frozen layers are to
                            * run in the bubbles of this one; 0: not known yet, or nobody's */
};

/* Targets: images, or entries of target >= 0. */
uint64_t batch_units(const struct batch *b);

/* Losses of each sample: 1, or seq. */
static inline unsigned batch_losses(const struct batch *b)
{
    return b->tokens ? b->seq : 1;
}

/* What one sample of a batch of images takes in its arrays. */
struct batch_sizes {
    uint64_t image;          /* bytes: 3*S*S */
    uint64_t moments;        /* values: 2*Ch*s*s; 0: none come */
    unsigned caption_tokens; /* L; 0: none come */
};

/* The shape of sample i; from it on, how many samples of one shape there are, at most `most`: what
 * a network can take at a time. */
static inline int batch_shape(const struct batch *b, unsigned i)
{
    return b->shapes ? b->shapes[i] : 0;
}
unsigned batch_run(const struct batch *b, unsigned from, unsigned most);

/* A batch in memory of its own, while its pipeline makes the next one. */
struct batch_held {
    struct batch batch;
    void *memory;
    size_t bytes;
};
/* Copies b, which is not held's own; of it samples at[0..n) alone.  sizes is not read for texts.
 * -ENOMEM.  release accepts { 0 }. */
int batch_hold(struct batch_held *held, const struct batch *b, const struct batch_sizes *sizes,
               struct err *err);
int batch_pick(struct batch_held *held, const struct batch *b, const unsigned *at, unsigned n,
               const struct batch_sizes *sizes, struct err *err);
void batch_release(struct batch_held *held);

/* Samples [from, from+count); sizes is not read for texts. */
void batch_slice(const struct batch *b, unsigned from, unsigned count,
                 const struct batch_sizes *sizes, struct batch *ret);

#endif
