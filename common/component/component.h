/* A frozen network in the usual form of a folder, as written by save_pretrained of diffusers and
 * transformers.  Three kinds are known:
 *
 *     AutoencoderKL                                   config.json, diffusion_pytorch_model*
 *     CLIPTextModel, CLIPTextModelWithProjection      config.json, model*
 *     T5EncoderModel, and T5Model or T5ForConditionalGeneration, of which the encoder is used
 *
 * The weights are one .safetensors file, or several with an .index.json that maps tensors to files,
 * in F32, BF16 or F16; the variant "fp16" if there is no other.  A folder with only the files in
 * component.files is as good as the original.
 *
 * Opening a component reads config.json and the headers of the weights, and checks that there are
 * exactly the tensors of such a network, with their shapes.  Settings in config.json that this code
 * does not know, or cannot compute, are refused by name; so are missing and extra tensors.  Skipped
 * by name: position_ids, logit_scale and text_projection of CLIP; decoder and lm_head of T5.
 *
 * Read-only after component_open: any thread. */
#ifndef COMMON_COMPONENT_COMPONENT_H
#define COMMON_COMPONENT_COMPONENT_H

#include <jansson.h>

#include "common/base/base.h"
#include "common/base/file.h"
#include "common/st/st.h"

#define COMPONENT_BLOCKS_MAX 8  /* blocks of a VAE, which shrinks pictures by up to 2^7 */
#define COMPONENT_LATENT_MAX 64 /* channels of latents */
#define COMPONENT_FILES_MAX 256 /* files of weights */
#define COMPONENT_HEAD_MAX 512  /* channels of a head; a VAE's attention has one */
#define COMPONENT_SEEN_MAX 128  /* side, in latents, of the square that a VAE's attention sees */

enum component_kind {
    COMPONENT_ANY, /* only as an expectation: any kind */
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

/* An AutoencoderKL.  Pictures of `side` become latents of side >> (blocks - 1), and moments with
 * twice the channels: mean, then logarithm of variance.  A model trains on (z - shift[c]) *
 * scale[c] in channel c: shift_factor and scaling_factor of config.json, or latents_mean and
 * scaling_factor / latents_std.  force_upcast is ignored: it is for f16, which we never compute
 * in. */
struct component_vae {
    int blocks;                         /* blocks of the encoder, and of the decoder */
    int channels[COMPONENT_BLOCKS_MAX]; /* of the encoder's blocks, outermost first */
    int layers;                         /* residual layers of an encoder's block; a decoder's has
                                         * one more */
    int groups;                         /* groups of every GroupNorm */
    int latent;                         /* channels of latents */
    bool quant, post_quant;             /* 1x1 convolutions after the encoder, before the decoder */
    bool attention;                     /* the middle blocks have attention */
    float shift[COMPONENT_LATENT_MAX];
    float scale[COMPONENT_LATENT_MAX]; /* finite, above 0 */
};

/* A text encoder, CLIP's or T5's. */
struct component_text {
    int vocab;     /* rows of the embedding */
    int positions; /* most tokens of a text; 0: no bound (T5) */
    int dim;       /* channels of a token's state */
    int layers, heads;
    int head_dim; /* CLIP: dim / heads */
    int mlp;      /* hidden width */
    float eps;    /* of the norms */
    enum component_act act;
    bool gated;            /* T5: act(x w0) * (x w1) */
    int buckets, distance; /* T5: relative positions */
};

/* One tensor of the network.  `name` is the one in the newest diffusers and transformers, for CLIP
 * without "text_model.", whatever name the file has. */
struct component_tensor {
    char *name;
    unsigned rank;
    uint64_t shape[4];
    uint64_t count;
    size_t file;         /* index in component.files */
    struct st_tensor at; /* with the name in the file */
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
    /* The names of the files that the folder must have: config.json, the weights, their index. */
    char **files;
    size_t n_files;
};

/* kind is the expected one, or COMPONENT_ANY.  -ERR_CONFIG, -ERR_FORMAT, or an error of reading;
 * err names the file, and the key or tensor.  close accepts NULL. */
int component_open(const char *folder, enum component_kind kind, struct component **ret,
                   struct err *err);
void component_close(struct component *c);

/* The component's tensor of that name; NULL: it has none. */
const struct component_tensor *component_find(const struct component *c, const char *name);
/* Its values (count) as f32; values that are not finite are refused. */
int component_read(const struct component *c, const struct component_tensor *t, float *out,
                   struct err *err);

/* Parses the bytes of a folder's file, a JSON object (json_decref). */
int component_json(const char *path, const char *text, size_t len, json_t **ret, struct err *err);
/* The file of weights in a folder, or the index of their pieces; *ret is static. */
int component_find_weights(const char *folder, const char **ret, struct err *err);
/* Appends the files that an index names, each once. */
int component_index(const char *path, struct file_names *ret, struct err *err);

/* The folder of a part ("vae", "text_encoder", "tokenizer") of a pipeline, whose folder has a
 * model_index.json that lists the part.  mem_free. */
int component_root(const char *folder, const char *part, char **ret, struct err *err);

#endif
