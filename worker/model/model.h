/* A model apart from any device: its sizes, its tensors by name, their
 * initial values and its files.  There are three kinds; "image" below is what the network
 * reads, (Ch,S,S): pixels, or the latents of a frozen encoder.
 *
 *   DIT     the diffusion transformer with adaLN-Zero (Peebles & Xie, "Scalable Diffusion
 *           Models with Transformers", 2023), without learned sigma: a noisy image
 *           (B,Ch,S,S), a time and a label to a velocity (B,Ch,S,S).  Names and shapes of
 *           the tensors are those of the original code.
 *           With captions (model_captioned) it is the transformer of PixArt-alpha (Chen et al.,
 *           2023): in place of a label each block attends to the states of a frozen text
 *           encoder, and all blocks share one modulation (adaLN-single).  Names and
 *           shapes are those of diffusers' PixArtTransformer2DModel.
 *           With self_condition (Chen et al., "Analog Bits", 2023) it reads an estimate of
 *           the image beside the noisy one: twice the input channels, the estimate's last.
 *           With an upscaler (docs/cascades.md; Ho et al., "Cascaded Diffusion Models", 2021) it is
 *           two DiTs, `chains`: the base, for small images, and the upscaler, which reads a
 *           small image beside the noisy one, in the place of an estimate.  The upscaler's
 *           tensors follow the base's; their names begin with "upscaler.".
 *   ROUTER  a DiT without labels and with a classification token in front (McAllister et al.,
 *           "Decentralized Diffusion Models", 2025): a noisy image and a time to K logits.
 *           `cls_token` (1,C) replaces a DiT's label table, and `head` (K,C) its
 *           `final_layer.linear`.  Of experts of two chains it sees the base's small images.
 *   LLAMA   a decoder (Touvron et al., 2023): tokens to logits.  Names and shapes are those of
 *           Hugging Face's LlamaForCausalLM and of its relatives MistralForCausalLM, with
 *           qkv_bias Qwen2ForCausalLM, with qk_norm Qwen3ForCausalLM, and with
 *           no_rope_layer_interval SmolLM3ForCausalLM; a tied head is absent.
 *
 * FLAT VECTOR.  On every device and in every host copy the parameters are one
 * f32 vector of `flat` elements.  Tensor i lies at [offset, offset + count);
 * offsets are multiples of 16 elements, and the gaps are zero and stay
 * zero.  Decayed tensors come first, so an optimiser step is two calls.
 *
 *    flat:  [ matrices (weight decay) ....... | biases, norms, embeddings ...... ]
 *           0                              decayed                         flat
 *
 * LEVELS.  A network is cut into levels: each block belongs to one, and so do the
 * embedders (everything before the first block) and the head (everything after the
 * last).  One level of a model is one file, one module.  An upscaler's blocks follow the base's;
 * the base's head is in the level of the base's last block, and the upscaler's embedders are in
 * that of its first block.
 *
 * Plain data, read-only after model_new: any thread. */
#ifndef WORKER_MODEL_H
#define WORKER_MODEL_H

#include "common/base/base.h"
#include "common/base/hash.h"
#include "kernels/rope.h"

struct job_spec;

#define MODEL_PIXEL_CHANNELS 3 /* channels of an image of pixels */
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
#define MODEL_UPSCALER "upscaler." /* prefix of its tensors' names */

/* The kinds described above; checkpoints hold these numbers. */
enum model_kind { MODEL_DIT, MODEL_ROUTER, MODEL_LLAMA };

/* The level of each block.  { .n_levels = 1 }: one level with everything. */
struct model_cut {
    int n_levels;
    uint8_t block_level[MODEL_BLOCKS_MAX];
    uint8_t embed_level, head_level;
};

/* Sides of an image, in the units that the network reads: pixels, or latents. */
struct model_shape {
    int height, width;
};

/* The upscaler of a DiT. */
struct model_upscaler {
    int dim, depth, heads, mlp; /* as in model_spec; depth 0: there is none */
    int image, patch;           /* pixels: a multiple of the base's image */
    float noise;                /* share of noise in the small image that it reads */
};

struct model_spec {
    enum model_kind kind;
    int dim;   /* C: divisible by heads; images: by 4 */
    int depth; /* blocks */
    int heads;
    int mlp; /* hidden width of a block's MLP */
    /* images */
    int channels;        /* Ch */
    int image;           /* S, in the units that the network reads: pixels, or latents */
    int patch;           /* divides image */
    bool self_condition; /* DIT: reads an estimate of the image, too */
    /* Shapes that images may have besides S x S, with no more patches. */
    int n_shapes;
    struct model_shape shapes[MODEL_SHAPES_MAX];
    int classes; /* DIT: labels 0..classes-1; `classes` itself is the null label.
                  * ROUTER: partitions.  Not read with captions */
    struct model_upscaler upscaler;
    /* ROUTER: a batch's images have this many times the side S; the network reads the means of
     * their squares of pixels (worker/net/resize.h).  0: as 1 */
    int shrink;
    /* captions; a ROUTER has none */
    int caption;        /* D: channels of the text encoder's states; 0: no captions */
    int caption_tokens; /* L: most tokens of a caption */
    /* texts */
    int vocab;
    int context;                /* most tokens of a row */
    int kv_heads;               /* divides heads */
    int head_dim;               /* width of a head; 0: dim / heads, as with images */
    bool qkv_bias;              /* of queries, keys and values */
    bool qk_norm;               /* each head of queries and keys has a norm; not with qkv_bias */
    int no_rope_layer_interval; /* every Nth block has no rotary positions; 0: all have */
    float rope_theta, norm_eps;
    struct rope_scaling rope_scaling;
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

/* A run of blocks [from, to).  The first run also has the embedders, the last one the head.
 * {0, 0}: the whole network. */
struct model_part {
    int from, to;
};
/* A part without any block or end of a chain. */
#define MODEL_PART_NONE ((struct model_part){INT_MAX, INT_MAX})
static inline bool model_part_is_none(struct model_part p)
{
    return p.from == INT_MAX;
}

/* The end of its place in the flat vector, where the next tensor may begin. */
uint64_t model_tensor_end(const struct model_tensor *t);

struct model {
    struct model_spec spec;
    struct model_part part;       /* the part in the flat vector; of two chains: the base's */
    struct model_tensor *tensors; /* in the order of the files, see model_index.h */
    size_t n;
    uint64_t params;  /* sum of the counts */
    uint64_t flat;    /* elements of the flat vector */
    uint64_t decayed; /* flat[0..decayed) has weight decay */
    /* With an upscaler: the base and the upscaler, each a model whose tensors lie in this one's
     * flat vector; else NULL. */
    struct model *chains[MODEL_CHAINS];
};

/* Properties of the model's family: it reads rows of tokens, else images; it can learn from other
 * models of its kind. */
bool model_is_text(const struct model_spec *s);
bool model_teaches(const struct model_spec *s);

/* patches: of an image of S x S.  tokens: T, the rows of one sample in a block: the patches, one
 * more with a classification token; texts: the context. */
static inline int model_patches(const struct model_spec *s)
{
    return (s->image / s->patch) * (s->image / s->patch);
}
int model_tokens(const struct model_spec *s);
static inline int model_head_dim(const struct model_spec *s)
{
    return s->head_dim > 0 ? s->head_dim : s->dim / s->heads;
}

/* Shape number i (0 is S x S, the others are `shapes`), and its patches, tokens and values; then
 * P, the values of a patch. */
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

/* Channels that the network reads, and the values of a patch of those. */
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
/* The blocks of all chains. */
static inline int model_blocks(const struct model_spec *s)
{
    return s->depth + s->upscaler.depth;
}
/* Side of a drawn image and of one in a batch, in the network's units. */
static inline int model_drawn_side(const struct model_spec *s)
{
    return model_has_upscaler(s) ? s->upscaler.image : s->image * (s->shrink > 1 ? s->shrink : 1);
}
/* The two chains as models of their own. */
void model_chain_specs(const struct model_spec *s, struct model_spec ret[MODEL_CHAINS]);

/* Does it read captions, in place of labels? */
static inline bool model_captioned(const struct model_spec *s)
{
    return s->caption > 0;
}

/* Facts about a job's networks that its file does not say: they come from the data and the cut. */
struct model_facts {
    bool router;                 /* the job's second network, else the main one */
    int classes;                 /* images: classes of the dataset */
    int channels, side;          /* channels and side of latents; 0: pixels of data.image_size */
    int caption, caption_tokens; /* the text encoder's channels and tokens; 0: no captions */
    int partitions;              /* number of partitions of the data */
    uint32_t vocab;              /* texts: vocabulary of the dataset */
    const struct model_cut *cut; /* NULL: one level */
};

/* -ERR_CONFIG: sizes do not fit each other (err says which), or only a trainer has the model. */
int model_spec_from_job(const struct job_spec *job, const struct model_facts *facts,
                        struct model_spec *ret, struct err *err);

/* Makes the table of tensors. */
int model_new(const struct model_spec *spec, struct model **ret, struct err *err);
/* The same table for one device of a pipeline, which has parts[i] of chain i, perhaps
 * MODEL_PART_NONE: tensors of other parts have no elements.  -EINVAL: there is no such part, or the
 * head is the embedding. */
int model_part_new(const struct model *m, const struct model_part *parts, struct model **ret,
                   struct err *err);
void model_free(struct model *m); /* accepts NULL */

/* A chain of m; if m has only one chain, m itself. */
static inline const struct model *model_chain(const struct model *m, int chain)
{
    return m->chains[chain] ? m->chains[chain] : m;
}
/* The blocks of the chain with the fewest, which are also the most stages of a pipeline. */
static inline int model_least_blocks(const struct model_spec *s)
{
    const int up = s->upscaler.depth;
    return up > 0 && up < s->depth ? up : s->depth;
}

const struct model_tensor *model_find(const struct model *m, const char *name); /* or NULL */

uint64_t model_largest(const struct model *m); /* elements of the largest tensor */

/* A zeroed flat vector, 64-byte aligned, to be freed by mem_free; NULL: out of memory. */
float *model_flat_new(const struct model *m);

/* The divisor of the positions of a model with captions, as in diffusers. */
static inline int model_interpolation(const struct model_spec *s)
{
    return model_captioned(s) && s->image >= 128 ? s->image / 64 : 1;
}

/* Initial values, a function of (seed, name).  DIT and ROUTER as in the original code of
 * DiT: Xavier uniform for linear layers and the patch embedding, normal(0.02)
 * for the label table, the time MLP, the classification token and the router's head, zero
 * for biases, adaLN and the final layer.  With captions as in PixArt: normal(0.02) also for the
 * shared modulation and the captions' projection, normal(1 / sqrt(C)) for the tables, zero for the
 * output projection of the cross-attention.  LLAMA: normal(0.02), for the projections that end a
 * residual branch (o_proj, down_proj) normal(0.02 / sqrt(2 depth)), norms one. */
void model_init(const struct model *m, uint64_t seed, float *flat);

/* Fixed 2-D sine-cosine positions of the patches of a shape, (T,C), as in the original code; a
 * classification token's is zero.  Other shapes count rows and columns as the square does; with
 * captions each axis is scaled to the square's, as in diffusers. */
void model_positions(const struct model_spec *s, int shape, float *out);

/* Files: safetensors, F32, the tensors of one level (or of all: level -1) in table order,
 * metadata {"format":"pt"}; the same values give the same bytes.  save writes atomically; sha256
 * and ret_bytes may be NULL.  load reads n files, however the model was cut into them: together
 * they must hold each tensor of the level once, finite, and nothing else; tensors of other levels
 * stay as they are. */
int model_save(const struct model *m, int level, const float *flat, const char *path,
               uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes, struct err *err);
int model_load(const struct model *m, int level, const char *const *paths, size_t n, float *flat,
               struct err *err);

/* All weights, from another program's file, in F32, BF16 or F16.  If a model with captions also
 * predicts a variance, those outputs are left out; what nothing reads is skipped: st_is_leftover,
 * and a tied head, which the command has compared.  If only this model reads an estimate, the
 * weights for it become 0. -ERR_CONFIG: a name or shape is not this model's; err names the first
 * one. */
int model_load_foreign(const struct model *m, const char *path, float *flat, struct err *err);

#endif
