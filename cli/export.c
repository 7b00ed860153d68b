#include "cli/export.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/artifacts.h"
#include "cli/cli.h"
#include "common/base/file.h"
#include "common/job/job.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/data/tokenizer.h"

#define END_OF_TEXT "<|endoftext|>"

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

/* ---- images ---- */

static json_t *class_names(const json_t *job)
{
    json_t *names = json_array();
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(job, "classes"), i, item)
        json_array_append_new(names, json_string(cli_str(item, "name", "")));
    return names;
}

static int write_dit(const json_t *job, const struct job_spec *spec, const char *dir, bool ema,
                     struct err *err)
{
    json_t *classes = class_names(job);
    json_t *config = json_pack(
        "{s:s,s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:i,s:o,s:b,s:s,s:s,s:b,s:I}", "model_type", "DiT",
        "job", spec->name, "image_size", spec->data.image_size, "patch_size", spec->model.patch,
        "in_channels", JOB_CHANNELS, "hidden_size", spec->model.dim, "depth", spec->model.depth,
        "num_heads", spec->model.heads, "mlp_ratio", spec->model.mlp_ratio, "num_classes",
        (int)json_array_size(classes), "classes", classes, "learn_sigma", 0, "objective",
        "rectified flow: the model predicts velocity eps - x0 at x_t = (1 - t) x0 + t eps",
        "timestep", "1000 * t", "ema", (int)ema, "round", (json_int_t)cli_int(job, "round", 0));
    int rc = write_json(dir, "config.json", config, err);
    json_decref(config);
    return rc;
}

/* ---- texts ---- */

/* Ids at the ends of a text, -1: none. */
struct ends {
    int32_t bos, eos;
};

static json_t *id_or_null(int32_t id)
{
    return id >= 0 ? json_integer(id) : json_null();
}

static json_t *llama_config(const json_t *job, const struct job_spec *spec, const struct ends *ends)
{
    const struct job_model *m = &spec->model;
    json_t *rope = json_pack("{s:s,s:f}", "rope_type", "default", "rope_theta", m->rope_theta);
    return json_pack(
        "{s:[s],s:s,s:s,s:I,s:i,s:i,s:i,s:i,s:i,s:i,s:s,s:i,s:f,s:f,s:b,s:f,s:o,s:n,s:b,s:b,s:f,"
        "s:i,s:b,s:o,s:o,s:n,s:s}",
        "architectures", "LlamaForCausalLM", "model_type", "llama", "_name_or_path", spec->name,
        "vocab_size", (json_int_t)cli_int(job, "vocab", 0), "hidden_size", m->dim,
        "intermediate_size", m->ffn, "num_hidden_layers", m->depth, "num_attention_heads", m->heads,
        "num_key_value_heads", m->kv_heads, "head_dim", m->dim / m->heads, "hidden_act", "silu",
        "max_position_embeddings", m->context, "initializer_range", 0.02, "rms_norm_eps",
        m->norm_eps, "tie_word_embeddings", (int)m->tied, "rope_theta", m->rope_theta,
        "rope_parameters", rope, "rope_scaling", "attention_bias", 0, "mlp_bias", 0,
        "attention_dropout", 0.0, "pretraining_tp", 1, "use_cache", 1, "bos_token_id",
        id_or_null(ends->bos), "eos_token_id", id_or_null(ends->eos), "pad_token_id", "torch_dtype",
        "float32");
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

/* The character that stands for a byte in byte-level BPE: itself where it can be printed,
 * the others from U+0100 on. */
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

json_t *export_byte_tokenizer(void)
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

/* tokenizer.json: the job's blob, or byte tokens; what it says of the ends of a text. */
static int write_tokenizer(struct cli *cli, const json_t *job, const struct job_spec *spec,
                           const char *dir, struct ends *ret, struct err *err)
{
    const json_t *blob = json_object_get(job, "tokenizer");
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
        }
        tokenizer_free(t);
        mem_free(path);
    } else {
        json_t *bytes = export_byte_tokenizer();
        *ret = (struct ends){TOKENIZER_BYTES_END, TOKENIZER_BYTES_END};
        bos = json_string(END_OF_TEXT);
        eos = json_string(END_OF_TEXT);
        rc = write_json(dir, "tokenizer.json", bytes, err);
        json_decref(bytes);
    }
    if (rc == 0) {
        json_t *config =
            json_pack("{s:s,s:O,s:O,s:i,s:b}", "tokenizer_class", "PreTrainedTokenizerFast",
                      "bos_token", bos, "eos_token", eos, "model_max_length", spec->model.context,
                      "clean_up_tokenization_spaces", 0);
        rc = write_json(dir, "tokenizer_config.json", config, err);
        json_decref(config);
    }
    json_decref(bos);
    json_decref(eos);
    return rc;
}

static int write_llama(struct cli *cli, const json_t *job, const struct job_spec *spec,
                       const char *dir, struct err *err)
{
    struct ends ends = {-1, -1};
    int rc = write_tokenizer(cli, job, spec, dir, &ends, err);
    json_t *config = llama_config(job, spec, &ends), *generation = generation_config(spec, &ends);
    if (rc == 0)
        rc = write_json(dir, "config.json", config, err);
    if (rc == 0)
        rc = write_json(dir, "generation_config.json", generation, err);
    json_decref(generation);
    json_decref(config);
    return rc;
}

int export_write(struct cli *cli, const json_t *job, const char *dir, bool ema, struct err *err)
{
    struct job_spec spec;
    const char *text = cli_str(job, "spec", "");

    int rc = job_parse_saved(text, strlen(text), "the job", &spec, err);
    if (rc < 0)
        return rc;
    rc = spec.model.type == JOB_MODEL_LLAMA ? write_llama(cli, job, &spec, dir, err)
                                            : write_dit(job, &spec, dir, ema, err);
    job_release(&spec);
    return rc;
}
