/* A batch on its way from the data to the loss: images, or rows of texts (tokens not NULL).
 * The pipelines fill it (worker/data/) and the networks read it (worker/net/net.h); training and
 * evaluation set the rest: seed, t and the place in a step.
 *
 * Plain data, any thread; all pointers are borrowed and to host memory. */
#ifndef WORKER_BATCH_H
#define WORKER_BATCH_H

#include "common/base/base.h"

struct batch {
    unsigned count;      /* images or rows; a pipeline gives 0 at its end */
    uint64_t samples;    /* images, or pieces of text in the rows */
    const uint64_t *ids; /* (count) data_sample_id(); NULL where rows are packed */
    uint64_t seed;
    const uint64_t *keys; /* (count) name of each image's random streams */

    /* images */
    const uint8_t *images;     /* (count,S,S,3) rows from the top, RGB; NULL with moments */
    const uint16_t *moments;   /* (count,2,Ch,s,s) bf16: mean and logarithm of the variance of the
                                * latents, if an encoder has run before; or NULL */
    const uint8_t *shapes;     /* (count) number of each image's shape (model_shape); a smaller
                                * image lies at the beginning of its place; NULL: all S x S */
    const int32_t *labels;     /* (count) class of each; NULL: the null label for all */
    const int32_t *partitions; /* (count) partition of each: a router's class, or the number of its
                                * teacher; NULL where neither is used */
    const int32_t *captions;   /* (count,L) token ids of the caption drawn for each; or NULL */
    const int32_t *caption_lengths; /* (count) tokens of each, 1..L */
    float t;                        /* above 0: the time of all samples; 0: times are drawn */
    bool estimate; /* a model that reads an estimate of the image makes one first */

    /* texts */
    unsigned seq;            /* inputs in a row, at most model.context */
    const int32_t *tokens;   /* (count,seq+1) */
    const int32_t *start;    /* (count,seq) first index that index i may see; never decreases */
    const int32_t *target;   /* (count,seq) token to predict, -1: none */
    const int32_t *pos;      /* (count,seq) position in the piece */
    const uint32_t *lengths; /* (count) tokens of the piece; NULL where rows are packed */
    const float *features;   /* (count,d) the dataset's column of features; NULL: none */

    /* The step that the batch is a part of; whole 0: it is a whole step. */
    unsigned first, whole; /* position of its first sample; samples of the step */
    uint64_t units;        /* batch_units of the step */
    unsigned next;         /* samples of the same part of the next step, whose frozen layers are to
                            * run in this step's bubbles; 0: unknown yet, or there are none */
};

/* The number of targets: images, or entries of target >= 0. */
uint64_t batch_units(const struct batch *b);

/* The number of losses of each image or row: 1, or seq. */
static inline unsigned batch_losses(const struct batch *b)
{
    return b->tokens ? b->seq : 1;
}

/* The size of one sample in the arrays of a batch of images. */
struct batch_sizes {
    uint64_t image;          /* bytes: 3*S*S */
    uint64_t moments;        /* values: 2*Ch*s*s; 0: the batch has no moments */
    unsigned caption_tokens; /* L; 0: the batch has no captions */
};

/* The shape of sample i. */
static inline int batch_shape(const struct batch *b, unsigned i)
{
    return b->shapes ? b->shapes[i] : 0;
}
/* How many samples, at most `most`, have the shape of sample `from`, counted from it: those that a
 * network can take at a time. */
unsigned batch_run(const struct batch *b, unsigned from, unsigned most);

/* A batch with memory of its own: it stays valid while its pipeline makes the next one. */
struct batch_held {
    struct batch batch;
    void *memory;
    size_t bytes;
};
/* hold copies b, which must not be held's own batch; pick copies only its samples at[0..n).  sizes
 * is not read for texts.  -ENOMEM.  release accepts { 0 }. */
int batch_hold(struct batch_held *held, const struct batch *b, const struct batch_sizes *sizes,
               struct err *err);
int batch_pick(struct batch_held *held, const struct batch *b, const unsigned *at, unsigned n,
               const struct batch_sizes *sizes, struct err *err);
void batch_release(struct batch_held *held);

/* *ret = samples [from, from+count) of b, in b's memory; sizes is not read for texts. */
void batch_slice(const struct batch *b, unsigned from, unsigned count,
                 const struct batch_sizes *sizes, struct batch *ret);

#endif
