/* What a model is, apart from any device: its sizes, its tensors by name, their
 * initial values and its files.
 *
 * The model is the diffusion transformer DiT with adaLN-Zero (Peebles & Xie,
 * "Scalable Diffusion Models with Transformers", 2023), without learned sigma:
 * it maps a noisy image (B,3,S,S), a time and a label to a velocity (B,3,S,S).
 * Names and shapes of the tensors are those of the original code.
 *
 * FLAT VECTOR.  On every device and in every host copy the parameters are one
 * f32 vector of `flat` elements.  Tensor i lies at [offset, offset + count);
 * offsets are multiples of 16 elements, what lies between is zero and stays
 * so.  Decayed tensors come first, so that an optimiser step is two calls.
 *
 *    flat:  [ matrices (weight decay) ....... | biases, embeddings ....... ]
 *           0                              decayed                      flat
 *
 * LEVELS.  The blocks can be cut into `levels` runs; each tensor belongs to one
 * level: the embedders to 0, the final layer to the last.  One level of a model
 * is one file.
 *
 * Plain data, read-only after model_new: any thread. */
#ifndef WORKER_MODEL_H
#define WORKER_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/hash.h"

struct err;
struct job_spec;

#define MODEL_CHANNELS 3
#define MODEL_FREQS 256 /* sines and cosines of the time */
#define MODEL_NAME_MAX 64
#define MODEL_LEVELS_MAX 64
#define MODEL_CLASSES_MAX 65536

struct model_spec {
    int image; /* pixels of a side */
    int patch; /* divides image */
    int dim;   /* C: divisible by heads and by 4 */
    int depth; /* blocks */
    int heads;
    int mlp;     /* hidden width of a block's MLP */
    int classes; /* labels 0..classes-1; `classes` itself is the null label */
    int levels;  /* 1..depth */
};

struct model_tensor {
    char name[MODEL_NAME_MAX]; /* "blocks.3.attn.qkv.weight" */
    unsigned rank;
    uint64_t shape[4];
    uint64_t count;
    uint64_t offset; /* in the flat vector, elements */
    int level;
    bool decay; /* weight decay applies */
};

struct model {
    struct model_spec spec;
    struct model_tensor *tensors; /* in the order of the files */
    size_t n;
    uint64_t params;  /* sum of the counts */
    uint64_t flat;    /* elements of the flat vector */
    uint64_t decayed; /* flat[0..decayed) has weight decay */
};

/* T = tokens of an image, P = values of a patch. */
static inline int model_tokens(const struct model_spec *s)
{
    return (s->image / s->patch) * (s->image / s->patch);
}
static inline int model_patch_values(const struct model_spec *s)
{
    return s->patch * s->patch * MODEL_CHANNELS;
}

/* The spec of a job, whose class count the dataset gives.  -ERR_CONFIG with a
 * sentence on sizes that do not fit each other. */
int model_spec_from_job(const struct job_spec *job, int classes, int levels, struct model_spec *ret,
                        struct err *err);

/* The tensor table. */
int model_new(const struct model_spec *spec, struct model **ret, struct err *err);
void model_free(struct model *m); /* accepts NULL */

const struct model_tensor *model_find(const struct model *m, const char *name); /* or NULL */

/* A zeroed flat vector, 64-byte aligned; NULL when memory is out; mem_free. */
float *model_flat_new(const struct model *m);

/* Initial values as the original code draws them: Xavier uniform for linear
 * layers and the patch embedding, normal(0.02) for the label table and the time
 * MLP, zero for biases, adaLN and the final layer.  A function of (seed, name). */
void model_init(const struct model *m, uint64_t seed, float *flat);

/* Fixed 2-D sine-cosine positions, (T, C), as the original computes them. */
void model_positions(const struct model_spec *s, float *out);

/* Files: safetensors, F32, the tensors of one level (or of all: level -1) in
 * table order, metadata {"format":"pt"}; the same values give the same bytes.
 * save writes atomically; sha256 and ret_bytes may be NULL.  load wants exactly
 * these names and shapes and finite values; other levels of flat stay as they are. */
int model_save(const struct model *m, int level, const float *flat, const char *path,
               uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes, struct err *err);
int model_load(const struct model *m, int level, const char *path, float *flat, struct err *err);

#endif
