#include "common/component/component_impl.h"

#include <assert.h>

#define ASKED_MAX 32

/* The config.json that is being read; rc is the first failure. */
struct config {
    const char *path;
    const json_t *json;
    const char *asked[ASKED_MAX]; /* the keys that were read */
    size_t n_asked;
    struct err *err;
    int rc;
};

/* Keys that are ignored.  Those of every PretrainedConfig: how a network is trained or text
 * generated. */
#define TRANSFORMERS_KEYS                                                                          \
    "architectures model_type torch_dtype dtype transformers_version bos_token_id "                \
    "eos_token_id pad_token_id sep_token_id decoder_start_token_id cls_token_id "                  \
    "initializer_factor initializer_range attention_dropout dropout dropout_rate "                 \
    "classifier_dropout gradient_checkpointing use_cache output_past task_specific_params "        \
    "tie_word_embeddings return_dict output_hidden_states output_attentions output_scores "        \
    "return_dict_in_generate torchscript use_bfloat16 chunk_size_feed_forward "                    \
    "tie_encoder_decoder max_length min_length do_sample early_stopping num_beams "                \
    "num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty "      \
    "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids "              \
    "num_return_sequences finetuning_task id2label label2id tokenizer_class prefix "               \
    "problem_type forced_bos_token_id forced_eos_token_id remove_invalid_values "                  \
    "exponential_decay_length_penalty suppress_tokens begin_suppress_tokens tf_legacy_loss "       \
    "cross_attention_hidden_size"
#define CLIP_KEYS TRANSFORMERS_KEYS " projection_dim"
#define T5_KEYS                                                                                    \
    TRANSFORMERS_KEYS                                                                              \
    " num_decoder_layers is_encoder_decoder n_positions"                                           \
    " dense_act_fn is_gated_act scale_decoder_outputs is_decoder"
#define VAE_KEYS "_class_name sample_size force_upcast"

/* ---- keys ---- */

/* The value of a key, NULL if it is not there. */
static const json_t *get(struct config *c, const char *key)
{
    const json_t *value = json_object_get(c->json, key);
    assert(c->n_asked < ASKED_MAX);
    c->asked[c->n_asked++] = key;
    return json_is_null(value) ? NULL : value;
}

/* A whole number; without the key it is `absent`, or a failure if that is negative. */
static int get_int(struct config *c, const char *key, int least, int most, int absent)
{
    const json_t *value = get(c, key);
    const json_int_t got = json_is_integer(value) ? json_integer_value(value) : -1;
    if (c->rc < 0)
        return least;
    if (!value && absent >= 0)
        return absent;
    if (value && json_is_integer(value) && got >= least && got <= most)
        return (int)got;
    c->rc = value ? err_set(c->err, -ERR_CONFIG, "%s: %s must be a whole number from %d to %d",
                            c->path, key, least, most)
                  : err_set(c->err, -ERR_CONFIG, "%s has no %s", c->path, key);
    return least;
}

static double get_number(struct config *c, const char *key, double absent)
{
    const json_t *value = get(c, key);
    if (c->rc < 0 || !value)
        return absent;
    if (json_is_number(value) && isfinite((float)json_number_value(value)))
        return json_number_value(value);
    c->rc = err_set(c->err, -ERR_CONFIG, "%s: %s must be a number", c->path, key);
    return absent;
}

static float get_eps(struct config *c, const char *key, double absent)
{
    const double eps = get_number(c, key, absent);
    if (c->rc == 0 && !(eps > 0 && eps < 1))
        c->rc = err_set(c->err, -ERR_CONFIG, "%s: %s is %g, expected a number between 0 and 1",
                        c->path, key, eps);
    return (float)eps;
}

static bool get_bool(struct config *c, const char *key, bool absent)
{
    const json_t *value = get(c, key);
    if (c->rc == 0 && value && !json_is_boolean(value))
        c->rc = err_set(c->err, -ERR_CONFIG, "%s: %s must be true or false", c->path, key);
    return value ? json_is_true(value) : absent;
}

static const char *get_text(struct config *c, const char *key, const char *absent)
{
    const json_t *value = get(c, key);
    if (c->rc == 0 && value && !json_is_string(value))
        c->rc = err_set(c->err, -ERR_CONFIG, "%s: %s must be a text", c->path, key);
    return json_is_string(value) ? json_string_value(value) : absent;
}

/* The index of the value among the names, which end with NULL. */
static int get_choice(struct config *c, const char *key, const char *const *names,
                      const char *absent)
{
    const char *got = get_text(c, key, absent);
    char known[128] = "";
    for (int i = 0; names[i]; i++) {
        const size_t at = strlen(known);
        if (strcmp(names[i], got) == 0)
            return i;
        (void)snprintf(known + at, sizeof known - at, "%s%s",
                       i == 0         ? ""
                       : names[i + 1] ? ", "
                                      : " or ",
                       names[i]);
    }
    if (c->rc == 0)
        c->rc = err_set(c->err, -ERR_CONFIG,
                        "%s: %s is '%s', expected %s: other networks cannot be computed here",
                        c->path, key, got, known);
    return 0;
}

static bool was_asked(const struct config *c, const char *key)
{
    size_t i = 0;
    while (i < c->n_asked && strcmp(c->asked[i], key) != 0)
        i++;
    return i < c->n_asked;
}

/* Refuses keys that were not read, are not among the ignored ones, and are not private. */
static void refuse_unknown(struct config *c, const char *ignored)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)c->json, key, value)
    {
        if (c->rc == 0 && key[0] != '_' && !was_asked(c, key) && !str_has_word(ignored, key))
            c->rc = err_set(c->err, -ERR_CONFIG,
                            "%s has the key '%s', which is not known: such a network cannot be "
                            "computed here",
                            c->path, key);
    }
}

/* ---- AutoencoderKL ---- */

/* Checks that all blocks have the one type that is supported. */
static void check_blocks(struct config *c, const char *key, const char *type, size_t n)
{
    const json_t *list = get(c, key);
    if (c->rc == 0 && (list || n != 1) && json_array_size(list) != n)
        c->rc = err_set(c->err, -ERR_CONFIG,
                        "%s: %s must list %zu types, one for each of block_out_channels", c->path,
                        key, n);
    for (size_t i = 0; i < json_array_size(list) && c->rc == 0; i++) {
        const char *got = json_string_value(json_array_get(list, i));
        if (!got || strcmp(got, type) != 0)
            c->rc = err_set(c->err, -ERR_CONFIG, "%s: %s has a '%s'; '%s' is known", c->path, key,
                            got ? got : "(no text)", type);
    }
}

static void get_channels(struct config *c, struct component_vae *v)
{
    const json_t *list = get(c, "block_out_channels");
    const size_t n = json_array_size(list);
    v->groups = get_int(c, "norm_num_groups", 1, 1024, 32);
    if (c->rc < 0)
        return;
    if (n < 1 || n > COMPONENT_BLOCKS_MAX) {
        c->rc = err_set(c->err, -ERR_CONFIG, "%s: block_out_channels must list 1 to %d numbers",
                        c->path, COMPONENT_BLOCKS_MAX);
        return;
    }
    v->blocks = (int)n;
    for (size_t i = 0; i < n && c->rc == 0; i++) {
        const json_t *one = json_array_get(list, i);
        const json_int_t got = json_is_integer(one) ? json_integer_value(one) : 0;
        if (got < 1 || got > 4096 || got % v->groups != 0)
            c->rc = err_set(c->err, -ERR_CONFIG,
                            "%s: block_out_channels must be whole numbers up to 4096, multiples of "
                            "norm_num_groups %d",
                            c->path, v->groups);
        v->channels[i] = (int)got;
    }
}

/* Reads latents_mean or latents_std, one number for each channel; false: not there. */
static bool get_latents(struct config *c, const char *key, int n, float *out)
{
    const json_t *list = get(c, key);
    if (c->rc < 0 || !list)
        return false;
    if (json_array_size(list) != (size_t)n)
        c->rc = err_set(c->err, -ERR_CONFIG, "%s: %s must list a number for each of %d channels",
                        c->path, key, n);
    for (int i = 0; i < n && c->rc == 0; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        out[i] = (float)json_number_value(one);
        if (!json_is_number(one) || !isfinite(out[i]))
            c->rc = err_set(c->err, -ERR_CONFIG, "%s: %s must list numbers", c->path, key);
    }
    return true;
}

static void get_scale(struct config *c, struct component_vae *v)
{
    const double factor = get_number(c, "scaling_factor", 0.18215);
    const double shift = get_number(c, "shift_factor", 0);
    float deviation[COMPONENT_LATENT_MAX];
    const bool mean = get_latents(c, "latents_mean", v->latent, v->shift);
    const bool std = get_latents(c, "latents_std", v->latent, deviation);
    if (c->rc == 0 && !(factor > 0))
        c->rc = err_set(c->err, -ERR_CONFIG,
                        "%s: scaling_factor is %g, expected above 0: latents are multiplied by it "
                        "before a model trains on them",
                        c->path, factor);
    if (c->rc == 0 && (mean != std || (mean && shift != 0)))
        c->rc = err_set(c->err, -ERR_CONFIG,
                        "%s: latents_mean and latents_std go together, and without shift_factor",
                        c->path);
    for (int i = 0; i < v->latent && c->rc == 0; i++) {
        v->scale[i] = (float)(std ? factor / (double)deviation[i] : factor);
        v->shift[i] = mean ? v->shift[i] : (float)shift;
        if (!(v->scale[i] > 0) || !isfinite(v->scale[i]) || !isfinite(1 / v->scale[i]))
            c->rc = err_set(c->err, -ERR_CONFIG,
                            "%s: scaling_factor and latents_std of channel %d make a scale of %g, "
                            "expected above 0",
                            c->path, i, (double)v->scale[i]);
    }
}

static void check_head(struct config *c, const char *what, int channels)
{
    if (c->rc == 0 && channels > COMPONENT_HEAD_MAX)
        c->rc =
            err_set(c->err, -ERR_CONFIG, "%s: %s makes heads of %d channels, expected at most %d",
                    c->path, what, channels, COMPONENT_HEAD_MAX);
}

static void vae_config(struct config *c, struct component *out)
{
    static const char *const acts[] = {"silu", "swish", NULL};
    struct component_vae *v = &out->vae;
    (void)get_int(c, "in_channels", 3, 3, 3);
    (void)get_int(c, "out_channels", 3, 3, 3);
    (void)get_choice(c, "act_fn", acts, "silu");
    v->latent = get_int(c, "latent_channels", 1, COMPONENT_LATENT_MAX, 4);
    v->layers = get_int(c, "layers_per_block", 1, 16, 1);
    v->quant = get_bool(c, "use_quant_conv", true);
    v->post_quant = get_bool(c, "use_post_quant_conv", true);
    v->attention = get_bool(c, "mid_block_add_attention", true);
    get_channels(c, v);
    check_blocks(c, "down_block_types", "DownEncoderBlock2D", (size_t)v->blocks);
    check_blocks(c, "up_block_types", "UpDecoderBlock2D", (size_t)v->blocks);
    if (c->rc == 0 && v->attention)
        check_head(c, "the last of block_out_channels", v->channels[v->blocks - 1]);
    if (c->rc == 0)
        get_scale(c, v);
    refuse_unknown(c, VAE_KEYS);
}

/* ---- text encoders ---- */

static void clip_config(struct config *c, struct component *out)
{
    static const char *const acts[] = {"quick_gelu", "gelu", "gelu_new", NULL};
    static const enum component_act known[] = {COMPONENT_QUICK_GELU, COMPONENT_GELU,
                                               COMPONENT_GELU_TANH};
    struct component_text *t = &out->text;
    t->vocab = get_int(c, "vocab_size", 1, 1 << 20, 49408);
    t->positions = get_int(c, "max_position_embeddings", 1, 4096, 77);
    t->dim = get_int(c, "hidden_size", 1, 16384, 512);
    t->layers = get_int(c, "num_hidden_layers", 1, 128, 12);
    t->mlp = get_int(c, "intermediate_size", 1, 65536, 2048);
    t->heads = get_int(c, "num_attention_heads", 1, 256, 8);
    t->eps = get_eps(c, "layer_norm_eps", 1e-5);
    t->act = known[get_choice(c, "hidden_act", acts, "quick_gelu")];
    t->head_dim = t->dim / t->heads;
    if (c->rc == 0 && t->head_dim * t->heads != t->dim)
        c->rc = err_set(c->err, -ERR_CONFIG,
                        "%s: hidden_size %d is no multiple of num_attention_heads %d", c->path,
                        t->dim, t->heads);
    check_head(c, "hidden_size / num_attention_heads", t->head_dim);
    refuse_unknown(c, CLIP_KEYS);
}

static void t5_config(struct config *c, struct component *out)
{
    static const char *const projections[] = {"relu", "gated-gelu", "gated-silu", NULL};
    static const enum component_act known[] = {COMPONENT_RELU, COMPONENT_GELU_TANH, COMPONENT_SILU};
    struct component_text *t = &out->text;
    t->vocab = get_int(c, "vocab_size", 1, 1 << 20, 32128);
    t->dim = get_int(c, "d_model", 1, 16384, 512);
    t->head_dim = get_int(c, "d_kv", 1, COMPONENT_HEAD_MAX, 64);
    t->mlp = get_int(c, "d_ff", 1, 65536, 2048);
    t->layers = get_int(c, "num_layers", 1, 128, 6);
    t->heads = get_int(c, "num_heads", 1, 256, 8);
    t->buckets = get_int(c, "relative_attention_num_buckets", 4, 4096, 32);
    t->distance = get_int(c, "relative_attention_max_distance", 2, 1 << 20, 128);
    t->eps = get_eps(c, "layer_norm_epsilon", 1e-6);
    const int form = get_choice(c, "feed_forward_proj", projections, "relu");
    t->act = known[form];
    t->gated = form > 0;
    if (get_bool(c, "is_decoder", false) && c->rc == 0)
        c->rc =
            err_set(c->err, -ERR_CONFIG, "%s: is_decoder is true, expected an encoder", c->path);
    if (c->rc == 0 && t->distance <= t->buckets / 4)
        c->rc = err_set(c->err, -ERR_CONFIG,
                        "%s: relative_attention_max_distance %d must be above a quarter of "
                        "relative_attention_num_buckets %d",
                        c->path, t->distance, t->buckets);
    refuse_unknown(c, T5_KEYS);
}

/* ---- classes ---- */

const char *component_kind_name(enum component_kind kind)
{
    static const char *const names[] = {"any", "AutoencoderKL", "CLIPTextModel", "T5EncoderModel"};
    return names[kind];
}

static const struct {
    const char *name; /* _class_name, of architectures, or model_type */
    enum component_kind kind;
    void (*read)(struct config *c, struct component *out);
} classes[] = {
    {"AutoencoderKL", COMPONENT_VAE, vae_config},
    {"CLIPTextModel", COMPONENT_CLIP, clip_config},
    {"CLIPTextModelWithProjection", COMPONENT_CLIP, clip_config},
    {"T5EncoderModel", COMPONENT_T5, t5_config},
    {"T5Model", COMPONENT_T5, t5_config},
    {"T5ForConditionalGeneration", COMPONENT_T5, t5_config},
    {"T5WithLMHeadModel", COMPONENT_T5, t5_config},
    {"clip_text_model", COMPONENT_CLIP, clip_config}, /* model_type of such without architectures */
    {"t5", COMPONENT_T5, t5_config},
};
enum { CLASSES = sizeof classes / sizeof *classes };

/* The name of the class in config.json, "" for none. */
static const char *class_of(const json_t *json)
{
    const char *name = json_string_value(json_object_get(json, "_class_name"));
    const json_t *architectures = json_object_get(json, "architectures");
    if (!name)
        name = json_string_value(json_array_get(architectures, 0));
    if (!name)
        name = json_string_value(json_object_get(json, "model_type"));
    return name ? name : "";
}

static int read_class(struct config *c, enum component_kind kind, struct component *out)
{
    const char *name = class_of(c->json);
    for (size_t i = 0; i < CLASSES; i++) {
        if (strcmp(classes[i].name, name) != 0)
            continue;
        if (kind != COMPONENT_ANY && kind != classes[i].kind)
            return err_set(c->err, -ERR_CONFIG,
                           "%s describes a '%s', expected a component of the kind %s", c->path,
                           name, component_kind_name(kind));
        out->kind = classes[i].kind;
        classes[i].read(c, out);
        return c->rc;
    }
    return err_set(
        c->err, -ERR_CONFIG,
        "%s describes the class '%s'; AutoencoderKL, CLIPTextModel and T5EncoderModel are known",
        c->path, name);
}

int component_json(const char *path, const char *text, size_t len, json_t **ret, struct err *err)
{
    json_error_t why;
    int rc = file_check_placeholder(path, text, len, err);
    if (rc < 0)
        return rc;
    json_t *json = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (!json)
        return err_set(err, -ERR_CONFIG, "%s:%d: %s", path, why.line, why.text);
    if (!json_is_object(json)) {
        json_decref(json);
        return err_set(err, -ERR_CONFIG, "%s is not a JSON object", path);
    }
    *ret = json;
    return 0;
}

int component_config(const char *path, const char *text, size_t len, enum component_kind kind,
                     struct component *out, struct err *err)
{
    json_t *json = NULL;
    int rc = component_json(path, text, len, &json, err);
    struct config c = {.path = path, .json = json, .err = err};
    if (rc == 0)
        rc = read_class(&c, kind, out);
    json_decref(json);
    return rc;
}
