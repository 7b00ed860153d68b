/* What a model is, apart from any device: its sizes, its tensors by name, their
 * initial values and its files.  Three kinds; an image of theirs is what the network reads,
 * (Ch,S,S): pixels, or the latents of a frozen encoder.
 *
 *   DIT     the diffusion transformer with adaLN-Zero (Peebles & Xie, "Scalable Diffusion
 *           Models with Transformers", 2023), without learned sigma: a noisy image
 *           (B,Ch,S,S), a time and a label to a velocity (B,Ch,S,S).  Names and shapes of
 *           the tensors are those of the original code.
 *           With captions (model_captioned) it is the transformer of PixArt-alpha (Chen et al.,
 *           2023): the states of a frozen text encoder stand where the label was and each
 *           block attends to them, and all blocks share one modulation (adaLN-single).  Names and
 *           shapes are those of diffusers' PixArtTransformer2DModel.
 *           With self_condition (Chen et al., "Analog Bits", 2023) it reads an estimate of
 *           the image beside the noisy one: twice the input channels, the estimate's behind.
 *           With an upscaler (docs/cascades.md; Ho et al., "Cascaded Diffusion Models", 2021) it is
 *           two DiTs behind each other, `chains`: the base, of small images, and the upscaler,
 * which reads a small image beside the noisy one as another reads an estimate.  The upscaler's
 *           tensors stand behind the base's, their names begin with "upscaler.".
 *   ROUTER  a DiT without labels and with a classification token in front (McAllister et al.,
 *           "Decentralized Diffusion Models", 2025): a noisy image and a time to K logits.
 *           `cls_token` (1,C) stands where a DiT has its label table, `head` (K,C) where it has
 *           `final_layer.linear`.
 *   LLAMA   a decoder (Touvron et al., 2023): tokens to logits.  Names and shapes are those of
 *           Hugging Face's LlamaForCausalLM; the head is absent when tied.
 *
 * FLAT VECTOR.  On every device and in every host copy the parameters are one
 * f32 vector of `flat` elements.  Tensor i lies at [offset, offset + count);
 * offsets are multiples of 16 elements, what lies between is zero and stays
 * so.  Decayed tensors come first, so that an optimiser step is two calls.
 *
 *    flat:  [ matrices (weight decay) ....... | biases, norms, embeddings ...... ]
 *           0                              decayed                         flat
 *
 * LEVELS.  A network is cut into levels: each block belongs to one, and so do the
 * embedders (everything before the first block) and the head (everything after the
 * last).  One level of a model is one file, one module.  With an upscaler its blocks follow the
 * base's, and what lies between the chains is in the level of the block beside it: the base's head
 * in that of its last block, the upscaler's embedders in that of its first.
 *
 * Plain data, read-only after model_new: any thread. */
#ifndef WORKER_MODEL_H
#define WORKER_MODEL_H

#include "common/base/base.h"
#include "common/base/hash.h"

struct job_spec;

#define MODEL_PIXEL_CHANNELS 3 /* of an image that is pixels */
#define MODEL_CHANNELS_MAX 128
#define MODEL_CAPTION_MAX 16384 /* channels of a caption's states */
#define MODEL_CAPTION_TOKENS_MAX 4096
#define MODEL_DIM_MAX 16384
#define MODEL_FREQS 256 /* sines and cosines of the time */
#define MODEL_NAME_MAX 80
#define MODEL_LEVELS_MAX 64
#define MODEL_BLOCKS_MAX 256
#define MODEL_CLASSES_MAX 65536
#define MODEL_VOCAB_MAX (1 << 20)
#define MODEL_CONTEXT_MAX 4096
#define MODEL_SHAPES_MAX 16
#define MODEL_CHAINS 2
#define MODEL_UPSCALER "upscaler." /* begins the names of its tensors */

/* In the header above; numbers of checkpoints. */
enum model_kind { MODEL_DIT, MODEL_ROUTER, MODEL_LLAMA };

/* { .n_levels = 1 }: one level with all. */
struct model_cut {
    int n_levels;
    uint8_t block_level[MODEL_BLOCKS_MAX];
    uint8_t embed_level, head_level;
};

/* Sides of an image, of what the network reads. */
struct model_shape {
    int height, width;
};

/* The upscaler of a DiT. */
struct model_upscaler {
    int dim, depth, heads, mlp; /* as in model_spec; depth 0: there is none */
    int image, patch;           /* pixels: a multiple of the base's image */
    float noise;                /* of the small image that it reads */
};

struct model_spec {
    enum model_kind kind;
    int dim;   /* C: divisible by heads; images: by 4 */
    int depth; /* blocks */
    int heads;
    int mlp; /* hidden width of a block's MLP */
    /* images */
    int channels;        /* Ch */
    int image;           /* S, of what the network reads: pixels, or latents */
    int patch;           /* divides image */
    bool self_condition; /* DIT: reads an estimate of the image, too */
    /* Shapes that images may have beside S x S, with no more patches. */
    int n_shapes;
    struct model_shape shapes[MODEL_SHAPES_MAX];
    int classes; /* DIT: labels 0..classes-1; `classes` itself is the null label.
                  * ROUTER: partitions.  Captions: not read */
    struct model_upscaler upscaler;
    /* captions; a ROUTER has none */
    int caption;        /* D: channels of the text encoder's states; 0: no captions */
    int caption_tokens; /* L: most tokens of a caption */
    /* texts */
    int vocab;
    int context;  /* most tokens of a row */
    int kv_heads; /* divides heads */
    float rope_theta, norm_eps;
    bool tied; /* the head is the embedding */

    struct model_cut cut;
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

/* A run of blocks [from, to); the first one has the embedders too, the last one the head.  {0, 0}:
 * the whole network. */
struct model_part {
    int from, to;
};
/* No block of a chain, nor an end of it. */
#define MODEL_PART_NONE ((struct model_part){INT_MAX, INT_MAX})
static inline bool model_part_is_none(struct model_part p)
{
    return p.from == INT_MAX;
}

/* Where the next one begins in the flat vector. */
uint64_t model_tensor_end(const struct model_tensor *t);

struct model {
    struct model_spec spec;
    struct model_part part;       /* that the flat vector has; of two chains: the base's */
    struct model_tensor *tensors; /* in the order of the files, see model_index.h */
    size_t n;
    uint64_t params;  /* sum of the counts */
    uint64_t flat;    /* elements of the flat vector */
    uint64_t decayed; /* flat[0..decayed) has weight decay */
    /* With an upscaler base and upscaler, each a model by itself whose tensors are those of this
     * one, in this one's flat vector; else NULL. */
    struct model *chains[MODEL_CHAINS];
};

/* What its family can: reads rows of tokens, else images; learns from others of its kind. */
bool model_is_text(const struct model_spec *s);
bool model_teaches(const struct model_spec *s);

/* Rows that a block sees of one sample: T = patches of an image, one more with the
 * classification token; texts: the context.  P = values of a patch. */
static inline int model_patches(const struct model_spec *s)
{
    return (s->image / s->patch) * (s->image / s->patch);
}
int model_tokens(const struct model_spec *s);

/* Shape number i: 0 is S x S, the others are those of shapes; its patches, tokens and values. */
static inline struct model_shape model_shape(const struct model_spec *s, int i)
{
    return i > 0 ? s->shapes[i - 1] : (struct model_shape){s->image, s->image};
}
static inline int model_shape_patches(const struct model_spec *s, int i)
{
    const struct model_shape h = model_shape(s, i);
    return (h.height / s->patch) * (h.width / s->patch);
}
static inline int model_shape_tokens(const struct model_spec *s, int i)
{
    return model_shape_patches(s, i) + (model_tokens(s) - model_patches(s));
}
static inline int64_t model_shape_values(const struct model_spec *s, int i)
{
    const struct model_shape h = model_shape(s, i);
    return (int64_t)s->channels * h.height * h.width;
}
static inline int model_patch_values(const struct model_spec *s)
{
    return s->patch * s->patch * s->channels;
}

/* Channels that the network reads, and values of a patch of them. */
static inline int model_input_channels(const struct model_spec *s)
{
    return s->self_condition ? 2 * s->channels : s->channels;
}
static inline int model_input_values(const struct model_spec *s)
{
    return s->patch * s->patch * model_input_channels(s);
}

/* Ch*S*S, the values of an image; 0 for texts. */
static inline uint64_t model_image_values(const struct model_spec *s)
{
    return (uint64_t)s->channels * (uint64_t)s->image * (uint64_t)s->image;
}

static inline bool model_has_upscaler(const struct model_spec *s)
{
    return s->upscaler.depth > 0;
}
static inline int model_n_chains(const struct model_spec *s)
{
    return model_has_upscaler(s) ? MODEL_CHAINS : 1;
}
/* Of all chains. */
static inline int model_blocks(const struct model_spec *s)
{
    return s->depth + s->upscaler.depth;
}
/* Side of what is drawn. */
static inline int model_drawn_side(const struct model_spec *s)
{
    return model_has_upscaler(s) ? s->upscaler.image : s->image;
}
/* The two chains as models by themselves. */
void model_chain_specs(const struct model_spec *s, struct model_spec ret[MODEL_CHAINS]);

/* Is it told by captions what to draw, in place of labels? */
static inline bool model_captioned(const struct model_spec *s)
{
    return s->caption > 0;
}

/* What the job file does not say about its networks: the data and the cut do. */
struct model_facts {
    bool router;                 /* the job's second network, else the main one */
    int classes;                 /* images: the dataset's */
    int channels, side;          /* of latents; 0: pixels of data.image_size */
    int caption, caption_tokens; /* the text encoder's; 0: no captions */
    int partitions;              /* the data are cut into */
    uint32_t vocab;              /* texts: the dataset's */
    const struct model_cut *cut; /* NULL: one level */
};

/* -ERR_CONFIG with a sentence on sizes that do not fit each other. */
int model_spec_from_job(const struct job_spec *job, const struct model_facts *facts,
                        struct model_spec *ret, struct err *err);

/* The tensor table. */
int model_new(const struct model_spec *spec, struct model **ret, struct err *err);
/* The same table for what one device of a pipeline has of m, a part of each chain, perhaps none of
 * one of two: tensors of other parts have no elements.  -EINVAL: there is no such part, or the head
 * is the embedding. */
int model_part_new(const struct model *m, const struct model_part *parts, struct model **ret,
                   struct err *err);
void model_free(struct model *m); /* accepts NULL */

/* A chain of m; of a model of one chain m itself. */
static inline const struct model *model_chain(const struct model *m, int chain)
{
    return m->chains[chain] ? m->chains[chain] : m;
}
/* Of the chain that has the fewest: a pipeline has no more stages. */
static inline int model_least_blocks(const struct model_spec *s)
{
    const int up = s->upscaler.depth;
    return up > 0 && up < s->depth ? up : s->depth;
}

const struct model_tensor *model_find(const struct model *m, const char *name); /* or NULL */

uint64_t model_largest(const struct model *m); /* elements of the largest tensor */

/* A zeroed flat vector, 64-byte aligned; NULL when memory is out; mem_free. */
float *model_flat_new(const struct model *m);

/* What the positions of a model with captions are divided by, as diffusers has it. */
static inline int model_interpolation(const struct model_spec *s)
{
    return model_captioned(s) && s->image >= 128 ? s->image / 64 : 1;
}

/* Initial values, a function of (seed, name).  DIT and ROUTER as the original code of
 * DiT draws them: Xavier uniform for linear layers and the patch embedding, normal(0.02)
 * for the label table, the time MLP, the classification token and the router's head, zero
 * for biases, adaLN and the final layer.  With captions as PixArt's: normal(0.02) also for the
 * shared modulation and the captions' projection, normal(1 / sqrt(C)) for the tables, zero for what
 * ends the cross-attention.  LLAMA: normal(0.02), the projections that end a residual branch
 * (o_proj, down_proj) normal(0.02 / sqrt(2 depth)), norms one. */
void model_init(const struct model *m, uint64_t seed, float *flat);

/* Fixed 2-D sine-cosine positions of the patches of a shape, (T,C), as the original computes
 * them; that of a classification token is zero.  Those of other shapes count rows and columns as
 * the square's do; with captions each axis is scaled to the square's, as diffusers has it. */
void model_positions(const struct model_spec *s, int shape, float *out);

/* Files: safetensors, F32, the tensors of one level (or of all: level -1) in table order,
 * metadata {"format":"pt"}; the same values give the same bytes.  save writes atomically; sha256
 * and ret_bytes may be NULL.  load reads n files however the model was cut into them: together
 * they hold each tensor of the level once, finite, and nothing else; what is of other levels stays
 * as it is. */
int model_save(const struct model *m, int level, const float *flat, const char *path,
               uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes, struct err *err);
int model_load(const struct model *m, int level, const char *const *paths, size_t n, float *flat,
               struct err *err);

/* Weights from elsewhere, whole, in F32, BF16 or F16.  Of a model with captions that also predicts
 * a variance only the other outputs are read; what else older releases saved is passed over.  Where
 * they know of no estimate and this model reads one, its weights are 0.
 * -ERR_CONFIG with one sentence on the first name or shape that is not this model's. */
int model_load_foreign(const struct model *m, const char *path, float *flat, struct err *err);

#endif
