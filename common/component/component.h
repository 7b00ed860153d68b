/* A frozen network in the folder form in which everybody has it: what diffusers' and transformers'
 * save_pretrained leave.  Three kinds are known:
 *
 *     AutoencoderKL                                   config.json, diffusion_pytorch_model*
 *     CLIPTextModel, CLIPTextModelWithProjection      config.json, model*
 *     T5EncoderModel, and T5Model or T5ForConditionalGeneration, of which the encoder is used
 *
 * The weights are one .safetensors file, or several with an .index.json that says which tensor is
 * where, in F32, BF16 or F16; where only a variant "fp16" is there, that.  A folder of the files
 * that component.files names is as good as the one that they came from.
 *
 * Opening a component reads config.json and the headers of the weights, and checks that exactly
 * the tensors of such a network are there, each of its shape.  What config.json says and this
 * code does not know, or cannot compute, is refused by name; so is a tensor too few or too many.
 * Passed over by name: position_ids, logit_scale and text_projection of CLIP; decoder and lm_head
 * of T5.
 *
 * Read-only after component_open: any thread. */
#ifndef COMMON_COMPONENT_COMPONENT_H
#define COMMON_COMPONENT_COMPONENT_H

#include "common/base/base.h"
#include "common/base/file.h"
#include "common/st/st.h"

#define COMPONENT_BLOCKS_MAX 8  /* of a VAE: it shrinks pictures by up to 2^7 */
#define COMPONENT_LATENT_MAX 64 /* channels of latents */
#define COMPONENT_FILES_MAX 256 /* that the weights may be in */
#define COMPONENT_HEAD_MAX 512  /* channels of a head; a VAE's attention has one */
#define COMPONENT_SEEN_MAX 128  /* a VAE's attention is between at most so many latents squared */

enum component_kind {
    COMPONENT_ANY, /* as what is expected: any of them */
    COMPONENT_VAE,
    COMPONENT_CLIP,
    COMPONENT_T5,
};
const char *component_kind_name(enum component_kind kind); /* "AutoencoderKL" */

/* Activations between two products of an MLP. */
enum component_act {
    COMPONENT_QUICK_GELU, /* x sigmoid(1.702 x) */
    COMPONENT_GELU,       /* exact, by erf */
    COMPONENT_GELU_TANH,
    COMPONENT_RELU,
    COMPONENT_SILU,
};

/* An AutoencoderKL.  Pictures of `side` become latents of side >> (blocks - 1), and moments of
 * twice the channels: mean, then logarithm of variance.  What a model trains on is
 * (z - shift[c]) * scale[c] of a channel c: shift_factor and scaling_factor of config.json, or
 * latents_mean and scaling_factor / latents_std.  force_upcast is about f16, which nothing here
 * computes in. */
struct component_vae {
    int blocks;                         /* of the encoder, and of the decoder */
    int channels[COMPONENT_BLOCKS_MAX]; /* of the encoder's blocks, outermost first */
    int layers;                         /* residual layers of an encoder's block; a decoder's has
                                         * one more */
    int groups;                         /* of every GroupNorm */
    int latent;                         /* channels */
    bool quant, post_quant;             /* 1x1 convolutions after the encoder, before the decoder */
    bool attention;                     /* in the middle blocks */
    float shift[COMPONENT_LATENT_MAX];
    float scale[COMPONENT_LATENT_MAX]; /* finite, above 0 */
};

/* A text encoder, CLIP's or T5's. */
struct component_text {
    int vocab;     /* rows of the embedding */
    int positions; /* tokens of a text, at most; 0: as many as one likes (T5) */
    int dim;       /* of a token's state */
    int layers, heads;
    int head_dim; /* CLIP: dim / heads */
    int mlp;      /* hidden width */
    float eps;    /* of the norms */
    enum component_act act;
    bool gated;            /* T5: act(x w0) * (x w1) */
    int buckets, distance; /* T5: of relative positions */
};

/* One tensor of the network.  `name` is that of the newest diffusers and transformers, CLIP's
 * without text_model.: whatever the file says. */
struct component_tensor {
    char *name;
    unsigned rank;
    uint64_t shape[4];
    uint64_t count;
    size_t file;         /* of component.files */
    struct st_tensor at; /* its name is the file's */
};

struct component {
    enum component_kind kind;
    char *folder;
    union {
        struct component_vae vae;
        struct component_text text;
    };
    struct component_tensor *tensors; /* in the order of the network */
    size_t n_tensors;
    /* What the folder must hold, names within it: config.json, the weights, their index. */
    char **files;
    size_t n_files;
};

/* kind is what must be there, or COMPONENT_ANY.  Sentences name the file, and the key or tensor:
 * -ERR_CONFIG, -ERR_FORMAT, or of reading.  close accepts NULL. */
int component_open(const char *folder, enum component_kind kind, struct component **ret,
                   struct err *err);
void component_close(struct component *c);

/* Which of the component's tensors this is; NULL: it has none of that name. */
const struct component_tensor *component_find(const struct component *c, const char *name);
/* Its values (count) as f32.  One that is not finite is refused. */
int component_read(const struct component *c, const struct component_tensor *t, float *out,
                   struct err *err);

/* The file of weights in a folder, or the index of their pieces; *ret is static. */
int component_find_weights(const char *folder, const char **ret, struct err *err);
/* The files in its folder that an index names, each once; appended. */
int component_index(const char *path, struct file_names *ret, struct err *err);

/* Where a part ("vae", "text_encoder", "tokenizer") of a pipeline is: below its folder, which has a
 * model_index.json that lists the part.  mem_free. */
int component_root(const char *folder, const char *part, char **ret, struct err *err);

#endif
