#include "cli/show/artifacts.h"

#include <unistd.h>

#include "cli/base/cli.h"
#include "cli/base/decoder.h"
#include "common/base/moving.h"
#include "cli/show/loss_svg.h"
#include "cli/show/metrics.h"
#include "cli/base/model_folder.h"
#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/data/tokenizer.h"
#include "common/job/job.h"
#include "common/net/http/http_client.h"

#define POINTS_MAX (4u << 20)
#define SVG_MAX (8u << 20)
#define END_OF_TEXT "<|endoftext|>"
#define ROUTER_OBJECTIVE                                                                           \
    "softmax of the logits at (x_t, t): how probable it is that x0 is of each expert"
#define OBJECTIVE "rectified flow: the model predicts velocity eps - x0 at x_t = (1 - t) x0 + t eps"

int artifacts_blob_shown(struct cli *cli, const char *sha256_hex, const char *path,
                         struct moving *show, struct err *err)
{
    uint8_t sha256[HASH_BYTES];
    char url[128];

    if (hash_unhex(sha256_hex, sha256, sizeof sha256) < 0)
        return err_set(err, -ERR_FORMAT, "the coordinator named a blob '%s', which is no SHA-256",
                       sha256_hex);
    snprintf(url, sizeof url, "/v1/blobs/%s", sha256_hex);
    return http_get_file(cli->http, url, path, sha256, show ? moving_show : NULL, show, err);
}

int artifacts_blob(struct cli *cli, const char *sha256_hex, const char *path, struct err *err)
{
    return artifacts_blob_shown(cli, sha256_hex, path, NULL, err);
}

static int write_json(const char *dir, const char *name, const json_t *value, struct err *err)
{
    char *path = file_join(dir, name);
    char *text = json_dumps(value, JSON_INDENT(2));
    int rc = text ? file_write_atomic(path, text, strlen(text), 0644, err)
                  : err_set(err, -ENOMEM, "no memory to write %s", path);
    free(text);
    mem_free(path);
    return rc;
}

/* ---- metrics and the curve ---- */

struct points {
    struct loss_point *items;
    size_t n, cap;
    FILE *lines;
    const char *name; /* of their file */
    int router;       /* path whose points are left out; -1: there is none */
};

static int points_add(struct points *p, struct loss_point point)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 1024;
        struct loss_point *more =
            cap <= POINTS_MAX ? mem_try_realloc_array(p->items, cap, sizeof *more) : NULL;
        if (!more)
            return -ENOMEM;
        p->items = more;
        p->cap = cap;
    }
    p->items[p->n++] = point;
    return 0;
}

static int take_point(struct points *p, const json_t *record)
{
    struct loss_point point = {.step = (double)cli_int(record, "step", 0), .loss = NAN};

    point.path = (int)cli_int(record, "path", 0);
    if (point.path == p->router)
        return 0; /* its loss is of another kind */
    if (!strcmp(cli_str(record, "kind", ""), "loss")) {
        point.loss = cli_num(record, "loss", NAN);
        point.replica = (int)cli_int(record, "replica", 0);
    } else if (!strcmp(cli_str(record, "kind", ""), "eval")) {
        point.loss = cli_num(record, "eval_loss", NAN);
        point.replica = -1;
    }
    return isnan(point.loss) ? 0 : points_add(p, point);
}

/* Writes a line of metrics.jsonl, and perhaps adds a point to the curve. */
static int take_record(void *arg, const json_t *record, const char *line, size_t len,
                       struct err *err)
{
    struct points *p = arg;
    if (take_point(p, record) < 0)
        return err_set(err, -ENOMEM, "%s has more points than a curve can have", p->name);
    if (fwrite(line, 1, len, p->lines) != len || fputc('\n', p->lines) == EOF)
        return err_errno(err, "writing %s", p->name);
    return 0;
}

/* The path of a mixture's router, -1 in other jobs. */
static int find_router(struct cli *cli, uint64_t job, int *ret, struct err *err)
{
    json_t *answer = NULL;
    const json_t *path;
    size_t i;

    *ret = -1;
    int rc = cli_call(cli, "GET", NULL, &answer, err, "/v1/jobs/%llu", (unsigned long long)job);
    if (rc < 0)
        return rc;
    json_array_foreach(json_object_get(answer, "path_list"), i, path)
    {
        if (!strcmp(cli_str(path, "network", ""), "router"))
            *ret = (int)cli_int(path, "path", -1);
    }
    json_decref(answer);
    return 0;
}

int artifacts_metrics(struct cli *cli, uint64_t job, const char *dir, struct err *err)
{
    struct points p = {0};
    uint64_t after = 0;
    struct buf svg;
    char *jsonl = file_join(dir, "metrics.jsonl"), *curve = file_join(dir, "loss.svg");
    char *part = str_printf("%s.part", jsonl);
    FILE *f = fopen(part, "w");
    int rc;

    buf_init(&svg, SVG_MAX);
    if (!f) {
        rc = err_errno(err, "creating %s", part);
        goto out;
    }
    p.lines = f;
    p.name = jsonl;
    rc = find_router(cli, job, &p.router, err);
    if (rc == 0)
        rc = metrics_each(cli, job, &after, take_record, &p, err);
    if (fclose(f) != 0 && rc == 0)
        rc = err_errno(err, "writing %s", jsonl);
    if (rc == 0)
        rc = file_move(part, jsonl, err);
    else
        (void)unlink(part);
    if (rc == 0)
        rc = loss_svg(p.items, p.n, "Training loss (bold: the mean of all; dots: held out)", &svg);
    if (rc == 0)
        rc = file_write_atomic(curve, svg.data, svg.len, 0644, err);
out:
    buf_release(&svg);
    mem_free(p.items);
    mem_free(curve);
    mem_free(part);
    mem_free(jsonl);
    return rc;
}

static int take_sample(struct cli *cli, const json_t *sample, const char *dir, const char *grid,
                       struct err *err)
{
    const char *text = cli_str(sample, "text", NULL);
    char *file = file_join(dir, text ? "sample.txt" : grid);
    int rc;
    if (text) {
        char *all = str_printf("%s\n", text);
        rc = file_write_atomic(file, all, strlen(all), 0644, err);
        mem_free(all);
    } else {
        rc = artifacts_blob(cli, cli_str(sample, "blob", ""), file, err);
    }
    mem_free(file);
    return rc;
}

/* The newest sample of a path, JSON null for the mixture; NULL if there is none. */
static const json_t *newest_of(const json_t *list, const json_t *path)
{
    for (size_t i = json_array_size(list); i-- > 0;) {
        const json_t *sample = json_array_get(list, i);
        if (json_equal(json_object_get(sample, "path"), path))
            return sample;
    }
    return NULL;
}

/* Fetches the mixture's grid, and the grids of its experts. */
static int take_mixture(struct cli *cli, const json_t *list, const json_t *mixture, const char *dir,
                        struct err *err)
{
    int rc = take_sample(cli, mixture, dir, "samples.png", err);
    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++) {
        const json_t *sample = json_array_get(list, i), *path = json_object_get(sample, "path");
        char grid[64];
        if (!json_is_integer(path) || newest_of(list, path) != sample)
            continue;
        snprintf(grid, sizeof grid, "samples-expert-%lld.png", (long long)json_integer_value(path));
        rc = take_sample(cli, sample, dir, grid, err);
    }
    return rc;
}

int artifacts_samples(struct cli *cli, uint64_t job, const char *dir, struct err *err)
{
    json_t *answer = NULL;

    int rc = cli_call(cli, "GET", NULL, &answer, err, "/v1/jobs/%llu", (unsigned long long)job);
    if (rc < 0)
        return rc;
    const json_t *list = json_object_get(answer, "samples");
    size_t n = json_array_size(list);
    if (n == 0)
        rc = err_set(err, -ERR_NOTFOUND, "job %llu has drawn no samples yet",
                     (unsigned long long)job);
    else if (newest_of(list, json_null()))
        rc = take_mixture(cli, list, newest_of(list, json_null()), dir, err);
    else
        rc = take_sample(cli, json_array_get(list, n - 1), dir, "samples.png", err);
    json_decref(answer);
    return rc;
}

/* ---- the files beside the weights: images ---- */

static json_t *class_names(const json_t *job)
{
    json_t *names = json_array();
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(job, "classes"), i, item)
        json_array_append_new(names, json_string(cli_str(item, "name", "")));
    return names;
}

/* A diffusers folder. */
static int write_captioned(const json_t *job, const struct job_spec *spec, const char *dir,
                           bool ema, struct err *err)
{
    const json_t *input = json_object_get(job, "input");
    const struct model_folder_facts facts = {
        .channels = (uint32_t)cli_int(input, "channels", 0),
        .side = (uint32_t)cli_int(input, "side", 0),
        .caption = (uint32_t)cli_int(input, "caption", 0),
        .caption_tokens = (uint32_t)cli_int(input, "caption_tokens", 0),
    };
    json_t *about =
        json_pack("{s:s,s:s,s:s,s:f,s:i,s:b,s:I}", "job", spec->name, "objective", OBJECTIVE,
                  "timestep", "1000 * t", "shift", spec->train.shift, "caption_tokens",
                  (int)facts.caption_tokens, "ema", (int)ema, "round", cli_int(job, "round", 0));
    json_t *config = model_folder_pixart(spec, &facts, about);
    int rc = write_json(dir, "config.json", config, err);
    json_decref(config);
    return rc;
}

static json_t *upscaler_config(const struct job_spec *spec)
{
    const struct job_upscaler *u = &spec->upscaler;
    return json_pack("{s:i,s:i,s:i,s:b,s:i,s:i,s:i,s:f,s:f}", "image_size", spec->data.image_size,
                     "patch_size", u->patch, "in_channels", JOB_CHANNELS, "self_condition", 1,
                     "hidden_size", u->dim, "depth", u->depth, "num_heads", u->heads, "mlp_ratio",
                     spec->model.mlp_ratio, "noise", u->noise);
}

/* The side of the drawn images; with an upscaler that of the first chain. */
static int drawn_side(const json_t *input, const struct job_spec *spec)
{
    if (job_has_upscaler(spec))
        return spec->upscaler.low_side;
    return cli_int(input, "channels", 0) ? (int)cli_int(input, "side", 0) : spec->data.image_size;
}

static int write_dit(struct cli *cli, const json_t *job, const struct job_spec *spec,
                     const char *dir, bool ema, struct err *err)
{
    (void)cli; /* the job has everything */
    const json_t *input = json_object_get(job, "input");
    const int channels = (int)cli_int(input, "channels", 0);
    if (job_has_captions(spec))
        return write_captioned(job, spec, dir, ema, err);
    json_t *classes = class_names(job);
    json_t *config = json_pack(
        "{s:s,s:s,s:i,s:i,s:i,s:b,s:i,s:i,s:i,s:f,s:i,s:o,s:b,s:s,s:s,s:f,s:b,s:I}", "model_type",
        "DiT", "job", spec->name, "image_size", drawn_side(input, spec), "patch_size",
        spec->model.patch, "in_channels", channels ? channels : JOB_CHANNELS, "self_condition",
        spec->model.self_condition > 0, "hidden_size", spec->model.dim, "depth", spec->model.depth,
        "num_heads", spec->model.heads, "mlp_ratio", spec->model.mlp_ratio, "num_classes",
        (int)json_array_size(classes), "classes", classes, "learn_sigma", 0, "objective", OBJECTIVE,
        "timestep", "1000 * t", "shift", spec->train.shift, "ema", (int)ema, "round",
        cli_int(job, "round", 0));
    if (job_has_upscaler(spec))
        json_object_set_new(config, "upscaler", upscaler_config(spec));
    int rc = write_json(dir, "config.json", config, err);
    json_decref(config);
    return rc;
}

/* ---- and texts ---- */

/* The ids at both ends of a text, -1: none. */
struct ends {
    int32_t bos, eos;
};

static json_t *id_or_null(int32_t id)
{
    return id >= 0 ? json_integer(id) : json_null();
}

/* NULL: they are not scaled. */
static json_t *rope_scaling(const struct job_rope *rope)
{
    if (rope->rope_type == JOB_ROPE_DEFAULT)
        return NULL;
    const char *type = job_rope_name(rope->rope_type);
    if (rope->rope_type == JOB_ROPE_LINEAR)
        return json_pack("{s:s,s:f}", "rope_type", type, "factor", rope->factor);
    return json_pack("{s:s,s:f,s:f,s:f,s:i}", "rope_type", type, "factor", rope->factor,
                     "low_freq_factor", rope->low_freq_factor, "high_freq_factor",
                     rope->high_freq_factor, "original_max_position_embeddings",
                     rope->original_max_position_embeddings);
}

static json_t *llama_config(const json_t *job, const struct job_spec *spec, const struct ends *ends)
{
    const struct job_model *m = &spec->model;
    json_t *scaling = rope_scaling(&m->rope_scaling);
    json_t *rope = scaling ? json_copy(scaling) : json_pack("{s:s}", "rope_type", "default");
    json_object_set_new(rope, "rope_theta", json_real(m->rope_theta));
    const struct decoder *d = decoder_of(m);
    const json_int_t ids = cli_int(job, "vocab", 0);
    json_t *config = json_pack(
        "{s:[s],s:s,s:s,s:I,s:i,s:i,s:i,s:i,s:i,s:i,s:s,s:i,s:f,s:f,s:b,s:f,s:o,s:o,s:b,s:b,s:f,"
        "s:i,s:b,s:o,s:o,s:n,s:s}",
        "architectures", d->class, "model_type", d->type, "_name_or_path", spec->name, "vocab_size",
        m->vocab > ids ? (json_int_t)m->vocab : ids, "hidden_size", m->dim, "intermediate_size",
        m->ffn, "num_hidden_layers", m->depth, "num_attention_heads", m->heads,
        "num_key_value_heads", m->kv_heads, "head_dim", m->head_dim, "hidden_act", "silu",
        "max_position_embeddings", m->context, "initializer_range", 0.02, "rms_norm_eps",
        m->norm_eps, "tie_word_embeddings", (int)m->tied, "rope_theta", m->rope_theta,
        "rope_parameters", rope, "rope_scaling", scaling ? scaling : json_null(), "attention_bias",
        0, "mlp_bias", 0, "attention_dropout", 0.0, "pretraining_tp", 1, "use_cache", 1,
        "bos_token_id", id_or_null(ends->bos), "eos_token_id", id_or_null(ends->eos),
        "pad_token_id", "torch_dtype", "float32");
    if (d->no_rope)
        json_object_set_new(config, "no_rope_layer_interval",
                            json_integer(m->no_rope_layer_interval));
    return config;
}

static json_t *generation_config(const struct job_spec *spec, const struct ends *ends)
{
    const struct job_sample *s = &spec->sample;
    json_t *config = json_pack("{s:o,s:o,s:i,s:b}", "bos_token_id", id_or_null(ends->bos),
                               "eos_token_id", id_or_null(ends->eos), "max_new_tokens", s->tokens,
                               "do_sample", (int)(s->temperature > 0));
    if (s->temperature > 0) {
        json_object_set_new(config, "temperature", json_real(s->temperature));
        json_object_set_new(config, "top_p", json_real(s->top_p));
    }
    return config;
}

/* The character of a byte in byte-level BPE: itself if it is printable, the others from
 * U+0100 on. */
static unsigned byte_character(unsigned byte, unsigned *shifted)
{
    bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    return plain ? byte : 256 + (*shifted)++;
}

static json_t *byte_vocabulary(void)
{
    json_t *vocab = json_object();
    unsigned shifted = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        const unsigned c = byte_character(byte, &shifted);
        char utf8[3] = {(char)c, 0, 0};
        if (c >= 128) {
            utf8[0] = (char)(0xc0 | c >> 6);
            utf8[1] = (char)(0x80 | (c & 63));
        }
        json_object_set_new(vocab, utf8, json_integer(byte));
    }
    json_object_set_new(vocab, END_OF_TEXT, json_integer(TOKENIZER_BYTES_END));
    return vocab;
}

static json_t *byte_level(bool trim)
{
    return json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", (int)trim, "use_regex", 1);
}

/* A tokenizer.json with ids 0..255 for the bytes and 256, <|endoftext|>, before a text. */
static json_t *byte_tokenizer(void)
{
    json_t *added = json_pack("[{s:i,s:s,s:b,s:b,s:b,s:b,s:b}]", "id", TOKENIZER_BYTES_END,
                              "content", END_OF_TEXT, "single_word", 0, "lstrip", 0, "rstrip", 0,
                              "normalized", 0, "special", 1);
    json_t *post = json_pack(
        "{s:s,s:[{s:{s:s,s:i}},{s:{s:s,s:i}}],s:[{s:{s:s,s:i}},{s:{s:s,s:i}},{s:{s:s,s:i}}],"
        "s:{s:{s:s,s:[i],s:[s]}}}",
        "type", "TemplateProcessing", "single", "SpecialToken", "id", END_OF_TEXT, "type_id", 0,
        "Sequence", "id", "A", "type_id", 0, "pair", "SpecialToken", "id", END_OF_TEXT, "type_id",
        0, "Sequence", "id", "A", "type_id", 0, "Sequence", "id", "B", "type_id", 1,
        "special_tokens", END_OF_TEXT, "id", END_OF_TEXT, "ids", TOKENIZER_BYTES_END, "tokens",
        END_OF_TEXT);
    json_t *model =
        json_pack("{s:s,s:n,s:n,s:n,s:n,s:b,s:b,s:b,s:o,s:[]}", "type", "BPE", "dropout",
                  "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                  "byte_fallback", 0, "ignore_merges", 0, "vocab", byte_vocabulary(), "merges");
    return json_pack("{s:s,s:n,s:n,s:o,s:n,s:o,s:o,s:o,s:o}", "version", "1.0", "truncation",
                     "padding", "added_tokens", added, "normalizer", "pre_tokenizer",
                     byte_level(false), "post_processor", post, "decoder", byte_level(true),
                     "model", model);
}

/* A special token's text, for tokenizer_config.json. */
static json_t *token_text(const struct tokenizer *t, int32_t id)
{
    size_t len = 0;
    const uint8_t *text = id >= 0 ? tokenizer_piece(t, (uint32_t)id, &len) : NULL;
    return len > 0 ? json_stringn((const char *)text, len) : json_null();
}

/* Gives a SentencePiece model the file name that its class expects. */
static int rename_model(const char *dir, const char *path, struct err *err)
{
    char *model = file_join(dir, "tokenizer.model");
    int rc = file_rename(path, model, err);
    mem_free(model);
    return rc;
}

/* Writes tokenizer.json or .model, of the job's blob or byte tokens; gets its ends of a text. */
static int write_tokenizer(struct cli *cli, const json_t *job, const struct job_spec *spec,
                           const char *dir, struct ends *ret, struct err *err)
{
    const json_t *blob = json_object_get(job, "tokenizer");
    const char *class = "PreTrainedTokenizerFast";
    json_t *bos = NULL, *eos = NULL;
    int rc;

    if (json_is_object(blob)) {
        char *path = file_join(dir, "tokenizer.json");
        struct tokenizer *t = NULL;
        rc = artifacts_blob(cli, cli_str(blob, "sha256", ""), path, err);
        if (rc == 0)
            rc = tokenizer_open(path, &t, err);
        if (rc == 0) {
            *ret = (struct ends){tokenizer_bos(t), tokenizer_eos(t)};
            bos = token_text(t, ret->bos);
            eos = token_text(t, ret->eos);
            if (tokenizer_is_sentencepiece(t)) {
                class = "LlamaTokenizer";
                rc = rename_model(dir, path, err);
            }
        }
        tokenizer_free(t);
        mem_free(path);
    } else {
        json_t *bytes = byte_tokenizer();
        *ret = (struct ends){TOKENIZER_BYTES_END, TOKENIZER_BYTES_END};
        bos = json_string(END_OF_TEXT);
        eos = json_string(END_OF_TEXT);
        rc = write_json(dir, "tokenizer.json", bytes, err);
        json_decref(bytes);
    }
    if (rc == 0) {
        json_t *config = json_pack("{s:s,s:O,s:O,s:i,s:b}", "tokenizer_class", class, "bos_token",
                                   bos, "eos_token", eos, "model_max_length", spec->model.context,
                                   "clean_up_tokenization_spaces", 0);
        rc = write_json(dir, "tokenizer_config.json", config, err);
        json_decref(config);
    }
    json_decref(bos);
    json_decref(eos);
    return rc;
}

bool artifacts_has_tokenizer(const json_t *job)
{
    return json_is_object(json_object_get(job, "tokenizer")) ||
           cli_int(job, "vocab", 0) <= TOKENIZER_BYTES_VOCAB;
}

static int write_llama(struct cli *cli, const json_t *job, const struct job_spec *spec,
                       const char *dir, bool ema, struct err *err)
{
    (void)ema; /* transformers' configuration has no key for it */
    struct ends ends = {-1, -1};
    int rc = artifacts_has_tokenizer(job) ? write_tokenizer(cli, job, spec, dir, &ends, err) : 0;
    json_t *config = llama_config(job, spec, &ends), *generation = generation_config(spec, &ends);
    if (rc == 0)
        rc = write_json(dir, "config.json", config, err);
    if (rc == 0)
        rc = write_json(dir, "generation_config.json", generation, err);
    json_decref(generation);
    json_decref(config);
    return rc;
}

int artifacts_keep_config(const json_t *job, const char *dir, struct err *err)
{
    const char *text = cli_str(job, "spec", "");
    struct job_spec spec;
    json_t *config = NULL;
    int rc = job_parse_saved(text, strlen(text), "the job", &spec, err);
    if (rc < 0)
        return rc;
    if (spec.model.type == JOB_MODEL_LLAMA)
        rc = model_folder_config(dir, &config, err);
    if (config && cli_int(config, "max_position_embeddings", 2048) < spec.model.context)
        json_object_set_new(config, "max_position_embeddings", json_integer(spec.model.context));
    if (config) {
        (void)json_object_del(config,
                              "dtype"); /* newer than torch_dtype, which all releases know */
        json_object_set_new(config, "torch_dtype", json_string("float32"));
        rc = write_json(dir, "config.json", config, err);
    }
    json_decref(config);
    job_release(&spec);
    return rc;
}

static int (*const writers[])(struct cli *cli, const json_t *job, const struct job_spec *spec,
                              const char *dir, bool ema, struct err *err) = {
    [JOB_MODEL_DIT] = write_dit,
    [JOB_MODEL_LLAMA] = write_llama,
};

int artifacts_files(struct cli *cli, const json_t *job, const char *dir, bool ema, struct err *err)
{
    struct job_spec spec;
    const char *text = cli_str(job, "spec", "");

    int rc = job_parse_saved(text, strlen(text), "the job", &spec, err);
    if (rc < 0)
        return rc;
    if (spec.model.type != JOB_MODEL_EXTERNAL)
        rc = writers[spec.model.type](cli, job, &spec, dir, ema, err);
    job_release(&spec);
    return rc;
}

int artifacts_router_files(const json_t *job, const char *dir, bool ema, struct err *err)
{
    struct job_spec spec;
    const struct job_router *r = &spec.router;
    const char *text = cli_str(job, "spec", "");
    const json_t *input = json_object_get(job, "input");
    const int channels = (int)cli_int(input, "channels", 0);

    int rc = job_parse_saved(text, strlen(text), "the job", &spec, err);
    if (rc < 0)
        return rc;
    json_t *config = json_pack(
        "{s:s,s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:i,s:s,s:s,s:b,s:I}", "model_type", "DiT router",
        "job", spec.name, "image_size", drawn_side(input, &spec), "patch_size", r->patch,
        "in_channels", channels ? channels : JOB_CHANNELS, "hidden_size", r->dim, "depth", r->depth,
        "num_heads", r->heads, "mlp_ratio", r->mlp_ratio, "num_classes",
        r->classes > 0 ? r->classes : spec.recipe.experts, "objective", ROUTER_OBJECTIVE,
        "timestep", "1000 * t", "ema", (int)ema, "round", cli_int(job, "round", 0));
    rc = write_json(dir, "config.json", config, err);
    json_decref(config);
    job_release(&spec);
    return rc;
}

/* ---- report.json ---- */

/* Adds the answer to a GET (of a list its items) to the report under a name. */
static int add(struct cli *cli, json_t *report, const char *name, const char *path, struct err *err)
{
    json_t *answer = NULL;
    int rc = cli_call(cli, "GET", NULL, &answer, err, "%s", path);
    if (rc < 0)
        return rc;
    json_t *items = json_object_get(answer, "items");
    json_object_set(report, name, items ? items : answer);
    json_decref(answer);
    return 0;
}

static int add_workers(struct cli *cli, json_t *report, struct err *err)
{
    json_t *answer = NULL;
    int rc = cli_pages(cli, "/v1/workers", "after", &answer, err);
    if (rc == 0)
        json_object_set(report, "workers", json_object_get(answer, "items"));
    json_decref(answer);
    return rc;
}

int artifacts_report(struct cli *cli, uint64_t job, const char *dir, struct err *err)
{
    char path[64];
    json_t *report = json_object();
    snprintf(path, sizeof path, "/v1/jobs/%llu", (unsigned long long)job);
    int rc = add(cli, report, "job", path, err);
    snprintf(path, sizeof path, "/v1/modules?job=%llu", (unsigned long long)job);
    if (rc == 0)
        rc = add(cli, report, "modules", path, err);
    if (rc == 0)
        rc = add_workers(cli, report, err);
    if (rc == 0)
        rc = write_json(dir, "report.json", report, err);
    json_decref(report);
    return rc;
}
