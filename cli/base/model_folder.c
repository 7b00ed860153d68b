#include "cli/base/model_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include "cli/base/cli.h"
#include "cli/base/config_numbers.h"
#include "cli/base/decoder.h"
#include "common/base/moving.h"
#include "common/base/file.h"
#include "common/component/component.h"
#include "common/job/family.h"
#include "common/st/st.h"
#include "common/data/tokenizer.h"

#define CONFIG_MAX (1u << 20)
#define LABELS "y_embedder.embedding_table.weight" /* of a DiT */
#define FREQUENCIES 256                            /* width of a dit's time embedding */

/* The folder with config.json. */
static char *folder_of(const char *dir, const struct job_spec *spec)
{
    char *index = file_join(dir, "model_index.json");
    char *ret = job_has_captions(spec) && file_exists(index) ? file_join(dir, "transformer")
                                                             : str_printf("%s", dir);
    mem_free(index);
    return ret;
}

/* Names of the hub are easily taken for what can be given. */
static int check_there(const char *path, struct err *err)
{
    return file_exists(path)
               ? 0
               : err_set(err, -ERR_CONFIG,
                         "%s is not there: name a folder on this machine, such as one that `hf "
                         "download MODEL --local-dir FOLDER` makes",
                         path);
}

bool model_folder_is_weights(const char *name)
{
    static const char *const ends[] = {
        ".safetensors", ".index.json", ".index.fp16.json", ".bin",   ".pt",
        ".pth",         ".ckpt",       ".msgpack",         ".h5",    ".ot",
        ".gguf",        ".onnx",       ".onnx_data",       ".tflite"};
    for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++)
        if (str_ends(name, ends[i]))
            return true;
    return false;
}

int model_folder_weights(const char *given, const struct job_spec *spec, struct file_names *ret,
                         struct err *err)
{
    const char *name = NULL;
    char *path = folder_of(given, spec);
    int rc = check_there(path, err);
    if (rc == 0 && file_is_dir(path))
        rc = component_find_weights(path, &name, err);
    if (rc == 0 && name) {
        char *in = file_join(path, name);
        mem_free(path);
        path = in;
    }
    if (rc == 0 && !str_ends(path, ".json"))
        return file_names_add(ret, 1, path, err);
    if (rc == 0)
        rc = component_index(path, ret, err);
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = '\0';
    for (size_t i = 0; i < ret->n && slash; i++) {
        char *piece = file_join(path, ret->items[i]);
        mem_free(ret->items[i]);
        ret->items[i] = piece;
    }
    mem_free(path);
    return rc;
}

/* ---- config.json ---- */

/* The class of the folder's model, by the key of transformers or of diffusers. */
static const char *kind_of(const json_t *config)
{
    return cli_str(config, "model_type", cli_str(config, "_class_name", "(not said)"));
}

static int check_kind(const char *dir, const json_t *config, const char *want, struct err *err)
{
    const char *kind = kind_of(config);
    if (strcmp(kind, want) != 0)
        return err_set(err, -ERR_CONFIG,
                       "%s/config.json is of a model of type '%s'; the job's model needs '%s'", dir,
                       kind, want);
    return 0;
}

/* The channels of the network's images: pixels or latents. */
static uint32_t channels_of(const struct model_folder_facts *facts)
{
    return facts->channels ? facts->channels : JOB_CHANNELS;
}

/* The channels of the images, and as many for the estimate if the model reads one. */
static int input_channels(const struct job_model *m, int channels)
{
    return m->self_condition > 0 ? 2 * channels : channels;
}

static uint32_t side_of(const struct job_spec *spec, const struct model_folder_facts *facts)
{
    if (job_has_upscaler(spec))
        return (uint32_t)spec->upscaler.low_side;
    return facts->channels ? facts->side : (uint32_t)spec->data.image_size;
}

/* The second chain as a model of its own, which reads as many channels beside the image. */
static struct job_spec second_chain(const struct job_spec *spec)
{
    const struct job_upscaler *u = &spec->upscaler;
    struct job_spec s = *spec;
    s.model.patch = u->patch;
    s.model.dim = u->dim;
    s.model.depth = u->depth;
    s.model.heads = u->heads;
    s.model.self_condition = 1;
    s.upscaler.low_side = 0;
    return s;
}

/* Checks that the folder has a second chain if and only if the job's model has one. */
static int check_chains(const char *dir, const json_t *config, const struct job_spec *spec,
                        struct err *err)
{
    const bool theirs = json_is_object(json_object_get(config, "upscaler"));
    return theirs == job_has_upscaler(spec)
               ? 0
               : err_set(err, -ERR_CONFIG, "%s/config.json is of a model %s, but the job's has %s",
                         dir, theirs ? "with an upscaler" : "without an upscaler",
                         theirs ? "none" : "one");
}

/* Checks the keys of the second chain in config.json. */
static int check_upscaler(const char *dir, const json_t *config, const struct job_spec *spec,
                          struct err *err)
{
    const json_t *theirs = json_object_get(config, "upscaler");
    const struct job_upscaler *u = &spec->upscaler;
    const struct config_number wanted[] = {
        {"image_size", "data.image_size", spec->data.image_size, NAN},
        {"patch_size", "upscaler.patch", u->patch, NAN},
        {"hidden_size", "upscaler.dim", u->dim, NAN},
        {"depth", "upscaler.depth", u->depth, NAN},
        {"num_heads", "upscaler.heads", u->heads, NAN},
    };
    int rc = check_chains(dir, config, spec, err);
    return rc < 0 || !theirs
               ? rc
               : config_numbers_check(dir, theirs, wanted, sizeof wanted / sizeof *wanted, err);
}

/* Warns if a label was another class's where the weights were trained. */
static void warn_of_classes(const char *dir, const json_t *config,
                            const struct model_folder_facts *facts)
{
    const json_t *theirs = json_object_get(config, "classes");
    for (size_t i = 0; facts->class_names && i < facts->classes; i++) {
        const char *ours = facts->class_names[i],
                   *name = json_string_value(json_array_get(theirs, i));
        if (!name || strcmp(name, ours) == 0)
            continue;
        fprintf(stderr,
                "warning: %s/config.json calls class %zu '%s', but the data call it '%s': what "
                "the model knows of the one is where the other begins; if the two are the same, "
                "name the data's folders as there\n",
                dir, i, name, ours);
        return;
    }
}

/* Makes the error about another number of classes name the tensor, and say what to do. */
static int say_labels(const json_t *config, uint64_t classes, struct err *err)
{
    const struct err why = *err;
    if (classes == 0 || (uint64_t)cli_int(config, "num_classes", 0) == classes)
        return why.code;
    return err_set(err, why.code,
                   "%s; %s has a row for each class and a last one for none: train on the same "
                   "classes, or give the table other rows (docs/job.md, Training on)",
                   why.msg, LABELS);
}

static int check_dit(const char *dir, const json_t *config, const struct job_spec *spec,
                     const struct model_folder_facts *facts, struct err *err)
{
    const uint64_t classes = facts->classes;
    const struct job_model *m = &spec->model;
    const struct config_number wanted[] = {
        {"image_size", job_has_upscaler(spec) ? "upscaler.low_side" : "data.image_size",
         (int)side_of(spec, facts), NAN},
        {"patch_size", "model.patch", m->patch, NAN},
        {"hidden_size", "model.dim", m->dim, NAN},
        {"depth", "model.depth", m->depth, NAN},
        {"num_heads", "model.heads", m->heads, NAN},
        {"mlp_ratio", "model.mlp_ratio", m->mlp_ratio, 4},
        {"num_classes", "number of classes", (double)classes, NAN},
    };
    int rc = check_kind(dir, config, "DiT", err);
    size_t n = sizeof wanted / sizeof *wanted - (classes == 0);
    if (rc == 0)
        rc = check_upscaler(dir, config, spec, err);
    if (rc == 0)
        rc = config_numbers_check(dir, config, wanted, n, err);
    if (rc < 0)
        rc = say_labels(config, classes, err);
    if (rc == 0)
        warn_of_classes(dir, config, facts);
    return rc;
}

/* ---- PixArtTransformer2DModel ---- */

/* The default divisor of positions; as in worker/model/model.h. */
static int interpolation(uint32_t side)
{
    return side >= 128 ? (int)(side / 64) : 1;
}

/* Refuses options of a PixArtTransformer2DModel that the DiT does not have. */
static int check_pixart_variants(const char *dir, const json_t *config, struct err *err)
{
    const struct {
        const char *key, *known;
    } words[] = {{"norm_type", "ada_norm_single"},
                 {"activation_fn", "gelu-approximate"},
                 {"attention_type", "default"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *got = cli_str(config, words[i].key, words[i].known);
        if (strcmp(got, words[i].known) != 0)
            return err_set(err, -ERR_CONFIG, "%s/config.json has %s '%s'; only %s is supported",
                           dir, words[i].key, got, words[i].known);
    }
    const json_t *more = json_object_get(config, "use_additional_conditions");
    if (json_is_true(more) || (!json_is_false(more) && cli_int(config, "sample_size", 128) == 128))
        return err_set(err, -ERR_CONFIG,
                       "%s/config.json has use_additional_conditions; models that read image "
                       "sizes besides the caption are not supported",
                       dir);
    if (json_is_false(json_object_get(config, "attention_bias")) ||
        json_is_true(json_object_get(config, "norm_elementwise_affine")))
        return err_set(err, -ERR_CONFIG,
                       "%s/config.json has no attention_bias or has norm_elementwise_affine; "
                       "only attention with biases and norms without weights are supported",
                       dir);
    return 0;
}

static int check_pixart_chain(const char *dir, const json_t *config, const struct job_spec *spec,
                              const struct model_folder_facts *facts, struct err *err)
{
    const struct job_model *m = &spec->model;
    const uint32_t channels = channels_of(facts), side = side_of(spec, facts);
    const bool known = facts->channels > 0 || !job_has_latents(spec);
    const struct config_number wanted[] = {
        {"patch_size", "model.patch", m->patch, 2},
        {"num_attention_heads", "model.heads", m->heads, 16},
        {"attention_head_dim", "model.dim / model.heads", m->dim / m->heads, 72},
        {"cross_attention_dim", "model.dim", m->dim, 1152},
        {"num_layers", "model.depth", m->depth, 28},
        {"norm_eps", "norms' epsilon", 1e-6, 1e-6},
    };
    /* The weights' input channels; a job may also start from weights without an estimate. */
    const int theirs = (int)cli_int(config, "in_channels", 4),
              wide = input_channels(m, (int)channels);
    const struct config_number seen[] = {
        {"in_channels", "number of channels that the model sees",
         theirs == (int)channels ? theirs : wide, 4},
        {"sample_size", "side of what the model sees", side, 128},
        {"interpolation_scale", "scale of positions", interpolation(side), interpolation(side)},
        {"caption_channels", "text encoder's width", facts->caption, NAN},
    };
    const char *kind = kind_of(config);
    if (strcmp(kind, "PixArtTransformer2DModel") != 0 && strcmp(kind, "Transformer2DModel") != 0)
        return err_set(err, -ERR_CONFIG,
                       "%s/config.json is of a '%s'; the job's model needs a "
                       "PixArtTransformer2DModel",
                       dir, kind);
    int rc = check_pixart_variants(dir, config, err);
    if (rc == 0)
        rc = config_numbers_check(dir, config, wanted, sizeof wanted / sizeof *wanted, err);
    if (rc == 0 && known)
        rc = config_numbers_check(dir, config, seen,
                                  sizeof seen / sizeof *seen - (facts->caption == 0), err);
    return rc;
}

static int check_pixart(const char *dir, const json_t *config, const struct job_spec *spec,
                        const struct model_folder_facts *facts, struct err *err)
{
    int rc = check_chains(dir, config, spec, err);
    if (rc == 0)
        rc = check_pixart_chain(dir, config, spec, facts, err);
    if (rc < 0 || !job_has_upscaler(spec))
        return rc;
    const struct job_spec second = second_chain(spec);
    rc = check_pixart_chain(dir, json_object_get(config, "upscaler"), &second, facts, err);
    return rc < 0 ? err_wrap(err, "upscaler") : 0;
}

static json_t *pixart_chain(const struct job_spec *spec, const struct model_folder_facts *facts,
                            json_t *about)
{
    const struct job_model *m = &spec->model;
    const int channels = (int)channels_of(facts), side = (int)side_of(spec, facts);
    return json_pack("{s:s,s:s,s:s,s:b,s:i,s:s,s:i,s:i,s:f,s:i,s:i,s:b,s:f,s:s,s:i,s:i,s:i,s:i,s:i,"
                     "s:i,s:i,s:b,s:b,"
                     "s:o}",
                     "_class_name", "PixArtTransformer2DModel", "_diffusers_version", "0.30.0",
                     "activation_fn", "gelu-approximate", "attention_bias", 1, "attention_head_dim",
                     m->dim / m->heads, "attention_type", "default", "caption_channels",
                     (int)facts->caption, "cross_attention_dim", m->dim, "dropout", 0.0,
                     "in_channels", input_channels(m, channels), "interpolation_scale",
                     interpolation((uint32_t)side), "norm_elementwise_affine", 0, "norm_eps", 1e-6,
                     "norm_type", "ada_norm_single", "norm_num_groups", 32, "num_attention_heads",
                     m->heads, "num_embeds_ada_norm", 1000, "num_layers", m->depth, "out_channels",
                     channels, "patch_size", m->patch, "sample_size", side, "upcast_attention", 0,
                     "use_additional_conditions", 0, "_skerry", about);
}

json_t *model_folder_pixart(const struct job_spec *spec, const struct model_folder_facts *facts,
                            json_t *about)
{
    json_t *config = pixart_chain(spec, facts, about);
    if (!job_has_upscaler(spec))
        return config;
    const struct job_spec second = second_chain(spec);
    json_t *noise = json_pack("{s:f}", "noise", spec->upscaler.noise);
    json_object_set_new(config, "upscaler", pixart_chain(&second, facts, noise));
    return config;
}

/* ---- tensors ---- */

#define UPSCALER "upscaler." /* begins the names of the second chain's */

/* A file of weights: all of them, or one of several. */
struct piece {
    const char *path;
    struct st st;
    bool *used; /* of st's tensors, those that the job's model has */
};

struct tensors {
    const char *path; /* of the file, or of the folder if there are several */
    struct piece *pieces;
    size_t n;
    bool variance;     /* PixArt also predicts the variance, which is ignored, beside noise */
    const char *chain; /* prefix of the names of the chain being checked; NULL: the first chain */
    struct err *err;
    int rc; /* failure of the first tensor that does not fit */
};

/* A tensor of the chain being checked, and the file that has it; NULL: there is none. */
static const struct st_tensor *find_in(const struct tensors *t, const char *tensor,
                                       struct piece **ret)
{
    char name[ST_NAME_MAX];
    const struct st_tensor *found = NULL;
    (void)snprintf(name, sizeof name, "%s%s", t->chain ? t->chain : "", tensor);
    for (size_t i = 0; i < t->n && !found; i++) {
        *ret = &t->pieces[i];
        found = st_find(&t->pieces[i].st, name);
    }
    return found;
}

static const struct st_tensor *find(const struct tensors *t, const char *tensor)
{
    struct piece *p;
    return find_in(t, tensor, &p);
}

static void expect(struct tensors *t, const char *tensor, unsigned rank, const int64_t shape[4])
{
    struct piece *p = NULL;
    if (t->rc < 0)
        return;
    const struct st_tensor *found = find_in(t, tensor, &p);
    if (!found) {
        t->rc = err_set(t->err, -ERR_CONFIG, "%s has no tensor %s%s", t->path,
                        t->chain ? t->chain : "", tensor);
        return;
    }
    p->used[found - p->st.tensors] = true;
    bool fits = found->rank == rank;
    for (unsigned i = 0; fits && i < rank; i++)
        fits = found->shape[i] == (uint64_t)shape[i];
    if (!fits) {
        char got[ST_SHAPE_TEXT], want[ST_SHAPE_TEXT];
        uint64_t wanted[ST_RANK_MAX] = {0};
        for (unsigned i = 0; i < rank; i++)
            wanted[i] = (uint64_t)shape[i];
        t->rc = err_set(t->err, -ERR_CONFIG, "%s: %s is %s, but the job's model needs %s", p->path,
                        found->name, st_shape_text(found->rank, found->shape, got),
                        st_shape_text(rank, wanted, want));
    } else if (found->dtype != ST_F32 && found->dtype != ST_BF16 && found->dtype != ST_F16) {
        t->rc = err_set(t->err, -ERR_CONFIG, "%s: %s is %s; only F32, BF16 and F16 are supported",
                        p->path, found->name, st_dtype_name(found->dtype));
    }
}

static void expect_linear(struct tensors *t, const char *prefix, const char *layer, bool bias,
                          int64_t out, int64_t in)
{
    char name[ST_NAME_MAX];
    (void)snprintf(name, sizeof name, "%s%s.weight", prefix, layer);
    expect(t, name, 2, (int64_t[4]){out, in});
    if (!bias)
        return;
    (void)snprintf(name, sizeof name, "%s%s.bias", prefix, layer);
    expect(t, name, 1, (int64_t[4]){out});
}

/* True if two tensors of one type hold the same bytes. */
static int same_bytes(const struct piece *p, const struct st_tensor *a, const struct piece *q,
                      const struct st_tensor *b, bool *ret, struct err *err)
{
    enum { CHUNK = 1 << 20 };
    char *room = mem_alloc_array(2, CHUNK);
    const int f = open(p->path, O_RDONLY | O_CLOEXEC), g = open(q->path, O_RDONLY | O_CLOEXEC);
    bool same = a->dtype == b->dtype && a->bytes == b->bytes;
    int rc = f < 0 || g < 0 ? err_errno(err, "opening %s", f < 0 ? p->path : q->path) : 0;
    for (uint64_t at = 0; at < a->bytes && same && rc == 0; at += CHUNK) {
        const size_t n = a->bytes - at < CHUNK ? (size_t)(a->bytes - at) : CHUNK;
        rc = file_pread_all(f, room, n, a->offset + at, p->path, err);
        if (rc == 0)
            rc = file_pread_all(g, room + CHUNK, n, b->offset + at, q->path, err);
        same = rc == 0 && memcmp(room, room + CHUNK, n) == 0;
    }
    if (f >= 0)
        (void)close(f); /* read only: nothing to lose */
    if (g >= 0)
        (void)close(g);
    mem_free(room);
    *ret = same;
    return rc;
}

/* A file may hold a tied head all the same, if it is a copy of the embedding. */
static void expect_tied(struct tensors *t)
{
    struct piece *p = NULL, *q = NULL;
    const struct st_tensor *head = find_in(t, "lm_head.weight", &p),
                           *embed = find_in(t, "model.embed_tokens.weight", &q);
    bool same = true;
    if (t->rc < 0 || !head)
        return;
    p->used[head - p->st.tensors] = true;
    t->rc = same_bytes(p, head, q, embed, &same, t->err);
    if (t->rc == 0 && !same)
        t->rc = err_set(t->err, -ERR_CONFIG,
                        "%s: lm_head.weight differs from model.embed_tokens.weight, but "
                        "tie_word_embeddings of config.json is true: set that and model.tied to "
                        "false",
                        t->path);
}

static void expect_llama(struct tensors *t, const struct job_spec *spec,
                         const struct model_folder_facts *facts)
{
    const struct job_model *m = &spec->model;
    const int64_t vocab = decoder_vocab(m, facts->tokenizer);
    const int64_t C = m->dim, q = (int64_t)m->head_dim * m->heads,
                  kv = (int64_t)m->head_dim * m->kv_heads;

    expect(t, "model.embed_tokens.weight", 2, (int64_t[4]){vocab, C});
    for (int b = 0; b < m->depth; b++) {
        char prefix[48], name[96];
        (void)snprintf(prefix, sizeof prefix, "model.layers.%d.", b);
        (void)snprintf(name, sizeof name, "%sinput_layernorm.weight", prefix);
        expect(t, name, 1, (int64_t[4]){C});
        (void)snprintf(name, sizeof name, "%spost_attention_layernorm.weight", prefix);
        expect(t, name, 1, (int64_t[4]){C});
        expect_linear(t, prefix, "self_attn.q_proj", m->qkv_bias, q, C);
        expect_linear(t, prefix, "self_attn.k_proj", m->qkv_bias, kv, C);
        expect_linear(t, prefix, "self_attn.v_proj", m->qkv_bias, kv, C);
        expect_linear(t, prefix, "self_attn.o_proj", false, C, q);
        for (int i = 0; i < 2 && m->qk_norm; i++) {
            (void)snprintf(name, sizeof name, "%sself_attn.%c_norm.weight", prefix, "qk"[i]);
            expect(t, name, 1, (int64_t[4]){m->head_dim});
        }
        expect_linear(t, prefix, "mlp.gate_proj", false, m->ffn, C);
        expect_linear(t, prefix, "mlp.up_proj", false, m->ffn, C);
        expect_linear(t, prefix, "mlp.down_proj", false, C, m->ffn);
    }
    expect(t, "model.norm.weight", 1, (int64_t[4]){C});
    if (m->tied)
        expect_tied(t);
    else
        expect(t, "lm_head.weight", 2, (int64_t[4]){vocab, C});
}

/* Checks the patch embedding, which may lack the estimate's channels even if the job's model has
 * them. */
static void expect_patches(struct tensors *t, const struct job_model *m, const char *name,
                           int64_t channels)
{
    const struct st_tensor *found = find(t, name);
    const bool narrow =
        !t->chain && found && found->rank == 4 && found->shape[1] == (uint64_t)channels;
    const int64_t in = narrow ? channels : input_channels(m, (int)channels);
    expect(t, name, 4, (int64_t[4]){m->dim, in, m->patch, m->patch});
}

static void expect_chain(struct tensors *t, const struct job_model *m,
                         const struct model_folder_facts *facts)
{
    const struct st_tensor *table = find(t, LABELS);
    const int64_t C = m->dim, M = (int64_t)(m->dim * m->mlp_ratio);
    const int64_t rows = facts->classes ? (int64_t)facts->classes + 1
                         : table        ? (int64_t)table->shape[0] /* not known yet */
                                        : 0;

    expect_patches(t, m, "x_embedder.proj.weight", channels_of(facts));
    expect(t, "x_embedder.proj.bias", 1, (int64_t[4]){C});
    expect_linear(t, "t_embedder.mlp.", "0", true, C, FREQUENCIES);
    expect_linear(t, "t_embedder.mlp.", "2", true, C, C);
    expect(t, LABELS, 2, (int64_t[4]){rows, C});
    for (int b = 0; b < m->depth; b++) {
        char prefix[32];
        (void)snprintf(prefix, sizeof prefix, "blocks.%d.", b);
        expect_linear(t, prefix, "attn.qkv", true, 3 * C, C);
        expect_linear(t, prefix, "attn.proj", true, C, C);
        expect_linear(t, prefix, "mlp.fc1", true, M, C);
        expect_linear(t, prefix, "mlp.fc2", true, C, M);
        expect_linear(t, prefix, "adaLN_modulation.1", true, 6 * C, C);
    }
    expect_linear(t, "final_layer.", "linear", true,
                  (int64_t)m->patch * m->patch * channels_of(facts), C);
    expect_linear(t, "final_layer.", "adaLN_modulation.1", true, 2 * C, C);
}

static void expect_dit(struct tensors *t, const struct job_spec *spec,
                       const struct model_folder_facts *facts)
{
    const struct job_spec second = second_chain(spec);
    expect_chain(t, &spec->model, facts);
    if (!job_has_upscaler(spec))
        return;
    t->chain = UPSCALER;
    expect_chain(t, &second.model, facts);
    t->chain = NULL;
}

/* The number of channels; if it is not known yet, that of the file. */
static void expect_pixart_ends(struct tensors *t, const struct job_model *m,
                               const struct model_folder_facts *facts)
{
    const int64_t C = m->dim, pixels = (int64_t)m->patch * m->patch;
    const struct st_tensor *patch = find(t, "pos_embed.proj.weight");
    const struct st_tensor *text = find(t, "caption_projection.linear_1.weight");
    const struct st_tensor *out = find(t, "proj_out.weight");
    int64_t channels = facts->channels, caption = facts->caption;
    if (!channels && patch && patch->rank == 4)
        channels = (int64_t)patch->shape[1];
    if (!facts->channels && m->self_condition > 0 && out &&
        2 * out->shape[0] == (uint64_t)(pixels * channels))
        channels /= 2; /* the other half are the estimate's */
    if (!caption && text && text->rank == 2)
        caption = (int64_t)text->shape[1];
    t->variance = out && out->rank == 2 && out->shape[0] == (uint64_t)(2 * pixels * channels);
    expect_patches(t, m, "pos_embed.proj.weight", channels);
    expect(t, "pos_embed.proj.bias", 1, (int64_t[4]){C});
    expect_linear(t, "caption_projection.", "linear_1", true, C, caption);
    expect_linear(t, "caption_projection.", "linear_2", true, C, C);
    expect_linear(t, "", "proj_out", true, pixels * channels * (t->variance ? 2 : 1), C);
    expect(t, "scale_shift_table", 2, (int64_t[4]){2, C});
}

static void expect_pixart_chain(struct tensors *t, const struct job_model *m,
                                const struct model_folder_facts *facts)
{
    static const char *const square[] = {"attn1.to_q",     "attn1.to_k",    "attn1.to_v",
                                         "attn1.to_out.0", "attn2.to_q",    "attn2.to_k",
                                         "attn2.to_v",     "attn2.to_out.0"};
    const int64_t C = m->dim;

    expect_pixart_ends(t, m, facts);
    expect_linear(t, "adaln_single.emb.timestep_embedder.", "linear_1", true, C, FREQUENCIES);
    expect_linear(t, "adaln_single.emb.timestep_embedder.", "linear_2", true, C, C);
    expect_linear(t, "adaln_single.", "linear", true, 6 * C, C);
    for (int b = 0; b < m->depth; b++) {
        char prefix[48], name[96];
        (void)snprintf(prefix, sizeof prefix, "transformer_blocks.%d.", b);
        (void)snprintf(name, sizeof name, "%sscale_shift_table", prefix);
        expect(t, name, 2, (int64_t[4]){6, C});
        for (size_t i = 0; i < sizeof square / sizeof *square; i++)
            expect_linear(t, prefix, square[i], true, C, C);
        expect_linear(t, prefix, "ff.net.0.proj", true, 4 * C, C);
        expect_linear(t, prefix, "ff.net.2", true, C, 4 * C);
    }
}

static void expect_pixart(struct tensors *t, const struct job_spec *spec,
                          const struct model_folder_facts *facts)
{
    const struct job_spec second = second_chain(spec);
    expect_pixart_chain(t, &spec->model, facts);
    if (!job_has_upscaler(spec))
        return;
    t->chain = UPSCALER;
    expect_pixart_chain(t, &second.model, facts);
    t->chain = NULL;
}

struct folder_family {
    int (*check)(const char *dir, const json_t *config, const struct job_spec *spec,
                 const struct model_folder_facts *facts, struct err *err);
    void (*expect)(struct tensors *t, const struct job_spec *spec,
                   const struct model_folder_facts *facts);
};

static const struct folder_family *family_of(const struct job_spec *spec)
{
    static const struct folder_family pixart = {check_pixart, expect_pixart},
                                      families[] = {
                                          [JOB_MODEL_DIT] = {check_dit, expect_dit},
                                          [JOB_MODEL_LLAMA] = {decoder_check, expect_llama},
                                      };
    return job_has_captions(spec) ? &pixart : &families[spec->model.type];
}

/* Checks that all weights are finite, so that bad ones are not refused only by the first worker. */
static int check_values(const char *path, const struct st *st, struct err *err)
{
    struct moving show = moving_begin("reading the warm start");
    uint64_t most = 1, done = 0;
    for (size_t i = 0; i < st->n_tensors; i++)
        most = st->tensors[i].count > most ? st->tensors[i].count : most;
    float *values = mem_try_array(most, sizeof *values);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = !values  ? err_set(err, -ENOMEM, "no memory to read %s", path)
             : fd < 0 ? err_errno(err, "opening %s", path)
                      : 0;
    for (size_t i = 0; i < st->n_tensors && rc == 0; i++) {
        moving_show(&show, done, st->file_bytes);
        rc = cli_interrupted ? err_set(err, -ERR_CANCELLED, "interrupted")
                             : st_read_f32(fd, path, &st->tensors[i], values, err);
        done += st->tensors[i].bytes;
    }
    moving_clear();
    if (fd >= 0)
        (void)close(fd); /* read only: nothing to lose */
    mem_free(values);
    return rc;
}

/* Checks that a file has nothing besides what the job's model has, and that its values are sound.
 */
static int check_rest(const struct tensors *t, const struct piece *p, const struct job_spec *spec,
                      struct err *err)
{
    for (size_t i = 0; i < p->st.n_tensors; i++) {
        const char *name = p->st.tensors[i].name;
        if (p->used[i] || st_is_leftover(name, job_is_text(spec), job_has_captions(spec)))
            continue;
        return find(t, name) == &p->st.tensors[i]
                   ? err_set(err, -ERR_CONFIG,
                             "%s has the tensor %s, which the job's model has not", p->path, name)
                   : err_set(err, -ERR_CONFIG, "%s: two files hold %s", t->path, name);
    }
    return check_values(p->path, &p->st, err);
}

static int check_tensors(const char *dir, const struct job_spec *spec,
                         const struct model_folder_facts *facts, struct err *err)
{
    struct file_names files = {0};
    struct tensors t = {.path = dir, .err = err};
    t.rc = model_folder_weights(dir, spec, &files, err);
    t.pieces = mem_alloc_array(files.n + 1, sizeof *t.pieces);
    for (; t.n < files.n && t.rc == 0; t.n++) {
        struct piece *p = &t.pieces[t.n];
        p->path = files.items[t.n];
        t.rc = st_open(p->path, &p->st, err);
        p->used = mem_alloc_array(p->st.n_tensors + 1, sizeof *p->used);
    }
    if (t.n == 1)
        t.path = t.pieces[0].path;
    family_of(spec)->expect(&t, spec, facts);
    for (size_t i = 0; i < t.n && t.rc == 0; i++)
        t.rc = check_rest(&t, &t.pieces[i], spec, err);
    if (t.rc == 0 && t.variance)
        fprintf(stderr,
                "warning: %s also predicts a variance, as models do that were trained to predict "
                "noise; this job teaches it the velocity of rectified flow, so the loss begins "
                "high and the first rounds are spent on that (the variance's half of proj_out is "
                "left out)\n",
                t.path);
    for (size_t i = 0; i < t.n; i++) {
        st_release(&t.pieces[i].st);
        mem_free(t.pieces[i].used);
    }
    mem_free(t.pieces);
    file_names_release(&files);
    return t.rc;
}

/* ---- all of it ---- */

int model_folder_config(const char *dir, json_t **ret, struct err *err)
{
    char *path = file_join(dir, "config.json");
    struct buf text = {0};
    int rc = check_there(dir, err);
    if (rc == 0)
        rc = file_read(path, CONFIG_MAX, &text, err);
    if (rc == -ENOTDIR)
        rc = err_set(err, -ERR_CONFIG, "%s is a file: name the folder that it is in", dir);
    if (rc == -ENOENT)
        rc = err_set(err, -ERR_CONFIG,
                     "%s has no config.json: name a folder that save_pretrained of transformers or "
                     "diffusers wrote",
                     dir);
    if (rc == 0)
        rc = component_json(path, buf_str(&text), text.len, ret, err);
    buf_release(&text);
    mem_free(path);
    return rc;
}

/* Of a quantised model a part of the tensors are codes, which take no gradients. */
static int check_plain(const char *dir, const json_t *config, struct err *err)
{
    const json_t *how = json_object_get(config, "quantization_config");
    return json_object_size(how) == 0
               ? 0
               : err_set(err, -ERR_CONFIG,
                         "%s/config.json has a quantization_config (%s): quantised weights cannot "
                         "be trained on; name a folder with the model that they were made of",
                         dir, cli_str(how, "quant_method", "its method is not said"));
}

int model_folder_sizes(const char *dir, struct job_model *ret, char **ret_tokenizer,
                       struct err *err)
{
    json_t *config = NULL;
    int rc = model_folder_config(dir, &config, err);
    if (rc == 0)
        rc = check_plain(dir, config, err);
    if (rc == 0)
        rc = decoder_sizes(dir, config, ret, ret_tokenizer, err);
    json_decref(config);
    return rc;
}

int model_folder_check(const char *dir, const struct job_spec *spec,
                       const struct model_folder_facts *facts, struct err *err)
{
    char *folder = folder_of(dir, spec);
    json_t *config = NULL;
    int rc = model_folder_config(folder, &config, err);
    if (rc == 0)
        rc = check_plain(folder, config, err);
    if (rc == 0)
        rc = family_of(spec)->check(folder, config, spec, facts, err);
    if (rc == 0)
        rc = check_tensors(dir, spec, facts, err);
    json_decref(config);
    mem_free(folder);
    if (rc < 0) {
        (void)err_wrap(err, "model.warm_start");
        err->code = -ERR_CONFIG;
        return -ERR_CONFIG;
    }
    return 0;
}
