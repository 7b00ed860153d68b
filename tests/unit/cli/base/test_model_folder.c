/* A folder that was exported is one to start from; every way of not fitting has its
 * sentence; exported byte tokens are our byte tokens. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/base/cli.h"
#include "cli/show/artifacts.h"
#include "cli/base/model_folder.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/st/st.h"
#include "common/data/tokenizer.h"

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail_msg("%s: %s", #call, err.msg);                                                    \
    } while (0)

#define LLAMA(model)                                                                               \
    "name: tale\n"                                                                                 \
    "data: {path: x.txt}\n"                                                                        \
    "train: {batch: 4}\n"                                                                          \
    "outer: {rounds: 1, steps: 1}\n"                                                               \
    "sample: {temperature: 0.5}\n"                                                                 \
    "model: {type: llama, " model "}\n"
#define DIT(model)                                                                                 \
    "name: pictures\n"                                                                             \
    "data: {path: x, image_size: 8}\n"                                                             \
    "train: {batch: 4}\n"                                                                          \
    "outer: {rounds: 1, steps: 1}\n"                                                               \
    "model: {" model "}\n"

static const char sound_llama[] =
    LLAMA("dim: 16, depth: 2, heads: 4, kv_heads: 2, ffn: 32, context: 64, rope_theta: 5000");
static const char tied_llama[] = LLAMA(
    "dim: 16, depth: 2, heads: 4, kv_heads: 2, ffn: 32, context: 64, rope_theta: 5000, tied: true");
static const char sound_qwen2[] =
    LLAMA("dim: 16, depth: 2, heads: 4, kv_heads: 2, head_dim: 8, qkv_bias: true, vocab: 260, ffn: "
          "32, context: 64, rope_theta: 5000");
static const char sound_qwen3[] =
    LLAMA("dim: 16, depth: 2, heads: 4, kv_heads: 2, head_dim: 8, qk_norm: true, vocab: 260, ffn: "
          "32, context: 64, rope_theta: 5000");
static const char sound_smollm3[] =
    LLAMA("dim: 16, depth: 2, heads: 4, kv_heads: 2, ffn: 32, context: 64, rope_theta: 5000, "
          "no_rope_layer_interval: 2");
#define SCALED(keys)                                                                               \
    LLAMA("dim: 16, depth: 2, heads: 4, kv_heads: 2, ffn: 32, context: 64, rope_theta: 5000, "     \
          "rope_scaling: {" keys "}")
static const char scaled[] = SCALED("rope_type: llama3, factor: 32");
static const char sound_dit[] = DIT("dim: 16, depth: 2, heads: 2, patch: 2");
#define SHRUNK_TO(side)                                                                            \
    DIT("dim: 16, depth: 2, heads: 2, patch: 2") "upscaler: {low_side: " side "}\n"
static const char sound_cascade[] = SHRUNK_TO("4");
static const char sound_pixart[] =
    DIT("dim: 16, depth: 2, heads: 2, patch: 2") "encoders: {vae: x, text: y}\n";
static const char told_pixart[] =
    DIT("dim: 16, depth: 2, heads: 2, patch: 2, self_condition: 0.5") "encoders: {vae: x, text: "
                                                                      "y}\n";

struct fixture {
    char llama[64], dit[64], pixart[64], root[48];
};

/* Zeros of the shapes that a model of the job has. */
struct weights {
    struct st_writer *w;
    uint64_t bytes;
    int first; /* in place of the first zeros */
};

static void put(struct weights *f, const char *name, enum st_dtype dtype, uint64_t a, uint64_t b)
{
    struct err err = {0};
    OK(st_writer_add(f->w, name, dtype, b ? 2 : 1, (uint64_t[]){a, b}, &err));
    f->bytes += a * (b ? b : 1) * st_dtype_bytes(dtype);
}

static void finish(struct weights *f, const char *dir, const char *file)
{
    struct err err = {0};
    char path[96];
    (void)snprintf(path, sizeof path, "%s/%s.safetensors", dir, file);
    uint8_t *zeros = mem_try_zero(f->bytes);
    memset(zeros, f->first, 4);
    OK(st_writer_open(f->w, path, &err));
    OK(st_writer_write(f->w, zeros, f->bytes, &err));
    OK(st_writer_commit(f->w, NULL, NULL, &err));
    st_writer_free(f->w);
    mem_free(zeros);
}

/* fault: 0 none, 1 a tensor is missing, 2 one too many, 3 another shape, 4 another type, 5 a value
 * is none; 6: none, with the frequencies that older releases of transformers saved; 7: none, those
 * of sound_qwen2; 8 and 9: those of sound_qwen3, with and without a norm of keys; 10 to 12: a head
 * that is a copy of the embedding, one that is not, and one that lacks its last row */
static void write_llama(const char *dir, int fault)
{
    struct weights f = {.w = st_writer_new(), .first = fault == 5 ? 0xff : fault == 11};
    const bool wider = fault >= 7 && fault <= 9;
    const uint64_t vocab = wider ? 260 : 257, wide = wider ? 2 : 1;
    char name[96];
    put(&f, "model.embed_tokens.weight", fault == 4 ? ST_I8 : ST_F32, vocab, 16);
    put(&f, "lm_head.weight", fault >= 10 ? ST_F32 : ST_BF16, vocab - (fault == 12), 16);
    if (fault != 1)
        put(&f, "model.norm.weight", ST_F32, 16, 0);
    if (fault == 2)
        put(&f, "model.norm.bias", ST_F32, 16, 0);
    for (int b = 0; b < 2; b++) {
        const struct {
            const char *name;
            uint64_t out, in;
        } layers[] = {
            {"input_layernorm", 16, 0},
            {"post_attention_layernorm", 16, 0},
            {"self_attn.q_proj", 16 * wide, 16},
            {"self_attn.k_proj", 8 * wide, 16},
            {"self_attn.v_proj", fault == 3 ? 16 : 8 * wide, 16},
            {"self_attn.o_proj", 16, 16 * wide},
            {"mlp.gate_proj", 32, 16},
            {"mlp.up_proj", 32, 16},
            {"mlp.down_proj", 16, 32},
        };
        (void)snprintf(name, sizeof name, "model.layers.%d.self_attn.rotary_emb.inv_freq", b);
        if (fault == 6)
            put(&f, name, ST_F32, 2, 0);
        for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
            (void)snprintf(name, sizeof name, "model.layers.%d.%s.weight", b, layers[i].name);
            put(&f, name, ST_F32, layers[i].out, layers[i].in);
            (void)snprintf(name, sizeof name, "model.layers.%d.%s.bias", b, layers[i].name);
            if (fault == 7 && i >= 2 && i <= 4) /* of q, k and v */
                put(&f, name, ST_F32, layers[i].out, 0);
        }
        for (int i = 0; i < (fault == 8 ? 2 : fault == 9); i++) {
            (void)snprintf(name, sizeof name, "model.layers.%d.self_attn.%c_norm.weight", b,
                           "qk"[i]);
            put(&f, name, ST_F32, 8, 0);
        }
    }
    finish(&f, dir, "model");
}

/* The tensors of a chain; in: channels that it reads. */
static void put_dit(struct weights *f, const char *chain, uint64_t in)
{
    struct err err = {0};
    char name[96];
    (void)snprintf(name, sizeof name, "%sx_embedder.proj.weight", chain);
    OK(st_writer_add(f->w, name, ST_F32, 4, (uint64_t[]){16, in, 2, 2}, &err));
    f->bytes += sizeof(float) * 16 * in * 4;
    (void)snprintf(name, sizeof name, "%sx_embedder.proj.bias", chain);
    put(f, name, ST_F32, 16, 0);
    (void)snprintf(name, sizeof name, "%sy_embedder.embedding_table.weight", chain);
    put(f, name, ST_F32, 4, 16);
    const struct {
        const char *name;
        uint64_t out, in;
    } layers[] = {
        {"t_embedder.mlp.0", 16, 256},
        {"t_embedder.mlp.2", 16, 16},
        {"final_layer.linear", 12, 16},
        {"final_layer.adaLN_modulation.1", 32, 16},
        {"blocks.0.attn.qkv", 48, 16},
        {"blocks.0.attn.proj", 16, 16},
        {"blocks.0.mlp.fc1", 64, 16},
        {"blocks.0.mlp.fc2", 16, 64},
        {"blocks.0.adaLN_modulation.1", 96, 16},
        {"blocks.1.attn.qkv", 48, 16},
        {"blocks.1.attn.proj", 16, 16},
        {"blocks.1.mlp.fc1", 64, 16},
        {"blocks.1.mlp.fc2", 16, 64},
        {"blocks.1.adaLN_modulation.1", 96, 16},
    };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        (void)snprintf(name, sizeof name, "%s%s.weight", chain, layers[i].name);
        put(f, name, ST_F32, layers[i].out, layers[i].in);
        (void)snprintf(name, sizeof name, "%s%s.bias", chain, layers[i].name);
        put(f, name, ST_F32, layers[i].out, 0);
    }
}

/* upscaler: channels that it reads; 0: there is none. */
static void write_dit(const char *dir, uint64_t upscaler)
{
    struct weights f = {.w = st_writer_new()};
    put_dit(&f, "", 3);
    if (upscaler > 0)
        put_dit(&f, "upscaler.", upscaler);
    finish(&f, dir, "model");
}

/* in: channels that it reads; variance: as PixArt was released. */
static void write_pixart(const char *dir, uint64_t in, bool variance)
{
    struct weights f = {.w = st_writer_new()};
    struct err err = {0};
    char name[96];
    OK(st_writer_add(f.w, "pos_embed.proj.weight", ST_F16, 4, (uint64_t[]){16, in, 2, 2}, &err));
    f.bytes += sizeof(uint16_t) * 16 * in * 4;
    put(&f, "pos_embed.proj.bias", ST_F16, 16, 0);
    put(&f, "scale_shift_table", ST_F16, 2, 16);
    const uint64_t out = variance ? 32 : 16;
    const struct {
        const char *name;
        uint64_t out, in;
    } ends[] = {{"adaln_single.emb.timestep_embedder.linear_1", 16, 256},
                {"adaln_single.emb.timestep_embedder.linear_2", 16, 16},
                {"adaln_single.linear", 96, 16},
                {"caption_projection.linear_1", 16, 24},
                {"caption_projection.linear_2", 16, 16},
                {"proj_out", out, 16}},
      layers[] = {{"attn1.to_q", 16, 16},     {"attn1.to_k", 16, 16},     {"attn1.to_v", 16, 16},
                  {"attn1.to_out.0", 16, 16}, {"attn2.to_q", 16, 16},     {"attn2.to_k", 16, 16},
                  {"attn2.to_v", 16, 16},     {"attn2.to_out.0", 16, 16}, {"ff.net.0.proj", 64, 16},
                  {"ff.net.2", 16, 64}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        (void)snprintf(name, sizeof name, "%s.weight", ends[i].name);
        put(&f, name, ST_F16, ends[i].out, ends[i].in);
        (void)snprintf(name, sizeof name, "%s.bias", ends[i].name);
        put(&f, name, ST_F16, ends[i].out, 0);
    }
    for (int b = 0; b < 2; b++) {
        (void)snprintf(name, sizeof name, "transformer_blocks.%d.scale_shift_table", b);
        put(&f, name, ST_F16, 6, 16);
        for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
            (void)snprintf(name, sizeof name, "transformer_blocks.%d.%s.weight", b, layers[i].name);
            put(&f, name, ST_F16, layers[i].out, layers[i].in);
            (void)snprintf(name, sizeof name, "transformer_blocks.%d.%s.bias", b, layers[i].name);
            put(&f, name, ST_F16, layers[i].out, 0);
        }
    }
    finish(&f, dir, "diffusion_pytorch_model");
}

static int setup(void **state)
{
    static struct fixture f;
    struct err err = {0};
    (void)snprintf(f.root, sizeof f.root, "/tmp/skerry-folder-XXXXXX");
    assert_non_null(mkdtemp(f.root));
    (void)snprintf(f.llama, sizeof f.llama, "%s/llama", f.root);
    (void)snprintf(f.dit, sizeof f.dit, "%s/dit", f.root);
    OK(file_mkdirs(f.llama, 0700, &err));
    OK(file_mkdirs(f.dit, 0700, &err));
    (void)snprintf(f.pixart, sizeof f.pixart, "%s/pixart", f.root);
    OK(file_mkdirs(f.pixart, 0700, &err));
    json_t *drawn = json_pack("{s:s,s:{s:i,s:i,s:i,s:i}}", "spec", sound_pixart, "input",
                              "channels", 4, "side", 8, "caption", 24, "caption_tokens", 7);
    assert_non_null(drawn);
    OK(artifacts_files(NULL, drawn, f.pixart, true, &err));
    json_decref(drawn);
    write_pixart(f.pixart, 4, false);
    json_t *text =
        json_pack("{s:s,s:i,s:i,s:[]}", "spec", sound_llama, "vocab", 257, "round", 3, "classes");
    json_t *images = json_pack("{s:s,s:i,s:[{s:s},{s:s},{s:s}]}", "spec", sound_dit, "round", 3,
                               "classes", "name", "a", "name", "b", "name", "c");
    assert_non_null(text);
    assert_non_null(images);
    OK(artifacts_files(NULL, text, f.llama, true, &err));
    OK(artifacts_files(NULL, images, f.dit, true, &err));
    json_decref(text);
    json_decref(images);
    write_llama(f.llama, 0);
    write_dit(f.dit, 0);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    return file_remove_tree(f->root, NULL);
}

static int check_facts(const char *dir, const char *yaml, struct model_folder_facts facts,
                       struct err *err)
{
    struct job_spec spec;
    struct tokenizer *t = tokenizer_bytes();
    facts.tokenizer = t;
    int rc = job_parse(yaml, strlen(yaml), "job.yaml", &spec, err);
    if (rc < 0)
        fail_msg("%s", err->msg);
    rc = model_folder_check(dir, &spec, &facts, err);
    tokenizer_free(t);
    job_release(&spec);
    return rc;
}

static int check(const char *dir, const char *yaml, uint64_t classes, struct err *err)
{
    return check_facts(dir, yaml, (struct model_folder_facts){.classes = classes}, err);
}

/* What a check that succeeds says on stderr; buf_release. */
static void check_says(const struct fixture *f, const char *dir, const char *yaml,
                       struct model_folder_facts facts, struct buf *ret)
{
    struct err err = {0};
    char path[96];
    (void)snprintf(path, sizeof path, "%s/said", f->root);
    fflush(stderr);
    const int kept = dup(2), fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(kept >= 0 && fd >= 0 && dup2(fd, 2) == 2);
    const int rc = check_facts(dir, yaml, facts, &err);
    fflush(stderr);
    assert_int_equal(dup2(kept, 2), 2);
    (void)close(kept);
    (void)close(fd);
    OK(rc);
    OK(file_read(path, 4096, ret, &err));
}

static void captioned_folders_fit(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    struct model_folder_facts facts = {
        .channels = 4, .side = 8, .caption = 24, .caption_tokens = 7};
    OK(check_facts(f->pixart, sound_pixart, facts, &err));
    OK(check_facts(f->pixart, sound_pixart, (struct model_folder_facts){0}, &err)); /* unknown */
    for (int variance = 1; variance >= 0; variance--) { /* a mark of what its weights predict */
        struct buf said = {0};
        write_pixart(f->pixart, 4, variance);
        check_says(f, f->pixart, sound_pixart, facts, &said);
        if ((strstr(buf_str(&said), "trained to predict noise") != NULL) != variance)
            fail_msg("'%s'", buf_str(&said));
        buf_release(&said);
    }
    facts.caption = 32;
    assert_int_equal(check_facts(f->pixart, sound_pixart, facts, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "caption_channels 24"));
    facts.caption = 24;
    facts.side = 16;
    assert_int_equal(check_facts(f->pixart, sound_pixart, facts, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "sample_size 8"));
    assert_int_equal(check(f->pixart, sound_dit, 3, &err), -ERR_CONFIG);
}

/* A job whose model reads its estimate begins with weights of one that does, or of one that does
 * not. */
static void folders_with_an_estimate_fit(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    const struct model_folder_facts unknown = {0}, known = {
                                                       .channels = 4,
                                                       .side = 8,
                                                       .caption = 24,
                                                       .caption_tokens = 7,
                                                   };
    char dir[64];
    OK(check_facts(f->pixart, told_pixart, known, &err));
    OK(check_facts(f->pixart, told_pixart, unknown, &err));
    (void)snprintf(dir, sizeof dir, "%s/wide", f->root);
    OK(file_mkdirs(dir, 0700, &err));
    json_t *drawn = json_pack("{s:s,s:{s:i,s:i,s:i,s:i}}", "spec", told_pixart, "input", "channels",
                              4, "side", 8, "caption", 24, "caption_tokens", 7);
    OK(artifacts_files(NULL, drawn, dir, true, &err));
    json_decref(drawn);
    write_pixart(dir, 8, false);
    OK(check_facts(dir, told_pixart, known, &err));
    OK(check_facts(dir, told_pixart, unknown, &err));
    assert_int_equal(check_facts(dir, sound_pixart, known, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "in_channels 8"));
    write_pixart(dir, 12, false);
    assert_int_equal(check_facts(dir, told_pixart, known, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "pos_embed.proj.weight is (16, 12, 2, 2), but the job's model "
                                    "needs (16, 8, 2, 2)"));
}

static void exported_folders_fit(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    OK(check(f->llama, sound_llama, 0, &err));
    OK(check(f->dit, sound_dit, 3, &err));
    OK(check(f->dit, sound_dit, 0, &err)); /* classes not known yet */
}

/* Labels are numbers: as many classes in another order fit, but each begins as another. */
static void other_classes_are_warned_of(void **state)
{
    struct fixture *f = *state;
    static const char *const alike[] = {"a", "b", "c"}, *const moved[] = {"a", "c", "b"};
    static const struct {
        const char *const *names;
        const char *warning;
    } rows[] = {{alike, ""}, {moved, "calls class 1 'b', but the data call it 'c'"}};
    for (size_t i = 0; i < 2; i++) {
        struct buf said = {0};
        check_says(f, f->dit, sound_dit,
                   (struct model_folder_facts){.classes = 3, .class_names = rows[i].names}, &said);
        if (!strstr(buf_str(&said), rows[i].warning) || (said.len == 0) != (i == 0))
            fail_msg("case %zu: '%s'", i, buf_str(&said));
        buf_release(&said);
    }
}

/* Both chains, by their own sizes and tensors. */
static void folders_with_an_upscaler_fit(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    char dir[64];
    (void)snprintf(dir, sizeof dir, "%s/cascade", f->root);
    OK(file_mkdirs(dir, 0700, &err));
    json_t *drawn = json_pack("{s:s,s:i,s:[{s:s},{s:s},{s:s}]}", "spec", sound_cascade, "round", 3,
                              "classes", "name", "a", "name", "b", "name", "c");
    OK(artifacts_files(NULL, drawn, dir, true, &err));
    json_decref(drawn);
    write_dit(dir, 6);
    OK(check(dir, sound_cascade, 3, &err));
    write_dit(dir, 3); /* one that is told nothing */
    assert_int_equal(check(dir, sound_cascade, 3, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "upscaler.x_embedder.proj.weight is (16, 3, 2, 2), but the "
                                    "job's model needs (16, 6, 2, 2)"));
    assert_int_equal(check(dir, SHRUNK_TO("2"), 3, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "image_size 4, but the job's upscaler.low_side is 2"));
    assert_int_equal(check(dir, sound_dit, 3, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "a model with an upscaler, but the job's has none"));
    assert_int_equal(check(f->dit, sound_cascade, 3, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "a model without an upscaler, but the job's has one"));
    write_dit(dir, 0);
    assert_int_equal(check(dir, sound_cascade, 3, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "has no tensor upscaler.x_embedder.proj.weight"));
}

static void other_sizes_are_named(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *yaml, *sentence;
    } rows[] = {
        {LLAMA("dim: 32, depth: 2, heads: 4, kv_heads: 2, ffn: 32, rope_theta: 5000"),
         "hidden_size 16, but the job's model.dim is 32; head_dim 4, but the job's "
         "model.head_dim is 8"},
        {LLAMA("dim: 16, depth: 3, heads: 4, kv_heads: 2, ffn: 32, rope_theta: 5000"),
         "num_hidden_layers 2, but the job's model.depth is 3"},
        {LLAMA("dim: 16, depth: 2, heads: 2, kv_heads: 2, ffn: 32, rope_theta: 5000"),
         "num_attention_heads 4"},
        {LLAMA("dim: 16, depth: 2, heads: 4, ffn: 32, rope_theta: 5000"),
         "num_key_value_heads 2, but the job's model.kv_heads is 4"},
        {LLAMA("dim: 16, depth: 2, heads: 4, kv_heads: 2, ffn: 64, rope_theta: 5000"),
         "intermediate_size 32"},
        {LLAMA("dim: 16, depth: 2, heads: 4, kv_heads: 2, ffn: 32"),
         "rope_theta 5000, but the job's model.rope_theta is 10000"},
        {LLAMA("dim: 16, depth: 2, heads: 4, kv_heads: 2, ffn: 32, rope_theta: 5000, norm_eps: "
               "1e-6"),
         "rms_norm_eps"},
        {LLAMA("dim: 16, depth: 2, heads: 4, kv_heads: 2, ffn: 32, rope_theta: 5000, tied: true"),
         "tie_word_embeddings false"},
        {LLAMA("dim: 16, depth: 3, heads: 4, ffn: 64, tied: true"), /* all at once */
         "says num_hidden_layers 2, but the job's model.depth is 3; num_key_value_heads 2, but the "
         "job's model.kv_heads is 4; intermediate_size 32, but the job's model.ffn is 64; "
         "rope_theta 5000, but the job's model.rope_theta is 10000; tie_word_embeddings false, but "
         "the job's model.tied is true"},
        {DIT("dim: 16, depth: 2, heads: 2, patch: 2"), "'llama'; the job's model needs 'DiT'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err err = {0};
        assert_int_equal(check(f->llama, rows[i].yaml, 0, &err), -ERR_CONFIG);
        if (!strstr(err.msg, rows[i].sentence) || !strstr(err.msg, "model.warm_start"))
            fail_msg("'%s' lacks '%s'", err.msg, rows[i].sentence);
    }
    struct err err = {0};
    assert_int_equal(check(f->dit, sound_dit, 5, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "num_classes 3, but the job's number of classes is 5; "
                                    "y_embedder.embedding_table.weight has a row for each class"));
    assert_int_equal(check(f->dit, sound_pixart, 5, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "is of a 'DiT'; the job's model needs a PixArt"));
    assert_int_equal(check(f->dit, sound_llama, 0, &err), -ERR_CONFIG);
    assert_int_equal(check(f->root, sound_llama, 0, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, " has no config.json: name a folder that save_pretrained"));
    char path[96];
    (void)snprintf(path, sizeof path, "%s/config.json", f->llama);
    assert_int_equal(check(path, sound_llama, 0, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "/config.json is a file: name the folder that it is in"));
}

static void other_tensors_are_named(void **state)
{
    struct fixture *f = *state;
    static const char *const sentences[] = {
        "has no tensor model.norm.weight",
        "has the tensor model.norm.bias, which the job's model has not",
        "self_attn.v_proj.weight is (16, 16), but the job's model needs (8, 16)",
        "model.embed_tokens.weight is I8",
        "model.embed_tokens.weight holds a value that is not finite at 0",
    };
    for (int fault = 1; fault <= 5; fault++) {
        struct err err = {0};
        write_llama(f->llama, fault);
        assert_int_equal(check(f->llama, sound_llama, 0, &err), -ERR_CONFIG);
        if (!strstr(err.msg, sentences[fault - 1]))
            fail_msg("'%s' lacks '%s'", err.msg, sentences[fault - 1]);
    }
    struct err err = {0};
    write_llama(f->llama, 6);
    OK(check(f->llama, sound_llama, 0, &err));
    write_llama(f->llama, 0);
}

/* Changes keys of the folder's config.json for the time of a check; sentence NULL: it fits. */
static void with_keys(const char *dir, const char *yaml, json_t *keys, const char *sentence)
{
    struct err err = {0};
    char path[96];
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *config = json_load_file(path, 0, NULL), *changed = json_deep_copy(config);
    assert_non_null(config);
    json_object_update(changed, keys);
    assert_int_equal(json_dump_file(changed, path, 0), 0);
    const int rc = check(dir, yaml, 0, &err);
    if (rc != (sentence ? -ERR_CONFIG : 0) || !strstr(err.msg, sentence ? sentence : ""))
        fail_msg("'%s' lacks '%s'", err.msg, sentence ? sentence : "nothing");
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    json_decref(changed);
    json_decref(keys);
}

/* As Llama 3.1 has them; an export says the same, so that it is one to start from. */
static void scaled_positions_fit(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    char dir[64];
    (void)snprintf(dir, sizeof dir, "%s/scaled", f->root);
    OK(file_mkdirs(dir, 0700, &err));
    json_t *about = json_pack("{s:s,s:i}", "spec", scaled, "vocab", 257);
    OK(artifacts_files(NULL, about, dir, true, &err));
    json_decref(about);
    write_llama(dir, 0);
    OK(check(dir, scaled, 0, &err));
    assert_int_equal(check(dir, sound_llama, 0, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "rope_type llama3, but the job's model.rope_scaling.rope_type "
                                    "is default"));
    assert_int_equal(check(f->llama, scaled, 0, &err), -ERR_CONFIG);
    assert_int_equal(check(dir,
                           SCALED("rope_type: llama3, high_freq_factor: 8, "
                                  "original_max_position_embeddings: 4096"),
                           0, &err),
                     -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "factor 32, but the job's model.rope_scaling.factor is 8; "
                                    "high_freq_factor 4, but the job's"));
    struct job_model m;
    char *tokenizer = NULL;
    OK(model_folder_sizes(dir, &m, &tokenizer, &err));
    assert_int_equal(m.rope_scaling.rope_type, JOB_ROPE_LLAMA3);
    assert_true(m.rope_scaling.factor == 32 && m.rope_scaling.low_freq_factor == 1 &&
                m.rope_scaling.high_freq_factor == 4 &&
                m.rope_scaling.original_max_position_embeddings == 8192);
    assert_non_null(strstr(tokenizer, "/scaled/tokenizer.json"));
    mem_free(tokenizer);

    static const char linear[] = SCALED("rope_type: linear, factor: 4");
    about = json_pack("{s:s,s:i}", "spec", linear, "vocab", 257);
    OK(artifacts_files(NULL, about, dir, true, &err));
    json_decref(about);
    OK(check(dir, linear, 0, &err));
    OK(model_folder_sizes(dir, &m, &tokenizer, &err));
    assert_true(m.rope_scaling.rope_type == JOB_ROPE_LINEAR && m.rope_scaling.factor == 4);
    mem_free(tokenizer);
    with_keys(dir, linear,
              json_pack("{s:{s:s,s:f}}", "rope_scaling", "type", "linear", "factor", 2.0),
              "factor 2, but the job's model.rope_scaling.factor is 4");
    with_keys(dir, linear,
              json_pack("{s:{s:s,s:f}}", "rope_scaling", "type", "yarn", "factor", 4.0),
              "by 'yarn'; only llama3, linear and plain ones are supported");
    about = json_pack("{s:s,s:i}", "spec", scaled, "vocab", 257);
    OK(artifacts_files(NULL, about, dir, true, &err));
    json_decref(about);
}

/* Weights in pieces are looked through together, and a piece that is missing is named. */
static void pieces_are_one_model(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    struct weights first = {.w = st_writer_new()};
    char whole[96], a[96], b[96], index[96];
    (void)snprintf(whole, sizeof whole, "%s/model.safetensors", f->llama);
    (void)snprintf(a, sizeof a, "%s/model-1.safetensors", f->llama);
    (void)snprintf(b, sizeof b, "%s/model-2.safetensors", f->llama);
    (void)snprintf(index, sizeof index, "%s/model.safetensors.index.json", f->llama);
    static const char map[] = "{\"weight_map\": {\"model.norm.weight\": \"model-1.safetensors\", "
                              "\"lm_head.weight\": \"model-2.safetensors\"}}";
    OK(file_write_atomic(index, map, sizeof map - 1, 0600, &err));
    write_llama(f->llama, 1);
    OK(file_move(whole, b, &err));
    assert_int_equal(check(f->llama, sound_llama, 0, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "model-1.safetensors"));
    put(&first, "model.norm.weight", ST_F32, 16, 0);
    finish(&first, f->llama, "model-1");
    OK(check(f->llama, sound_llama, 0, &err));
    write_llama(f->llama, 0); /* whole; it also has what the other piece has */
    OK(file_move(whole, b, &err));
    assert_int_equal(check(f->llama, sound_llama, 0, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "/llama: two files hold model.norm.weight"));
    OK(file_remove(index, &err));
    OK(file_remove(a, &err));
    OK(file_move(b, whole, &err));
    OK(check(f->llama, sound_llama, 0, &err));
}

static void with_key(struct fixture *f, const char *key, json_t *value, const char *sentence)
{
    with_keys(f->llama, sound_llama, json_pack("{s:o}", key, value), sentence);
}

/* The most tokens that a model takes whose config.json has the keys, too. */
static int context_with(const char *dir, json_t *keys)
{
    struct err err = {0};
    char path[96], *tokenizer = NULL;
    struct job_model m = {0};
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *config = json_load_file(path, 0, NULL), *changed = json_deep_copy(config);
    json_object_update(changed, keys);
    assert_int_equal(json_dump_file(changed, path, 0), 0);
    OK(model_folder_sizes(dir, &m, &tokenizer, &err));
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    json_decref(changed);
    json_decref(keys);
    mem_free(tokenizer);
    return m.context;
}

/* What else our decoder can be: each class by what it has, and the window that would cut texts. */
static void relatives_fit(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    char dir[64];
    (void)snprintf(dir, sizeof dir, "%s/qwen2", f->root);
    OK(file_mkdirs(dir, 0700, &err));
    json_t *about = json_pack("{s:s,s:i}", "spec", sound_qwen2, "vocab", 257), *config = NULL;
    OK(artifacts_files(NULL, about, dir, true, &err));
    json_decref(about);
    write_llama(dir, 7);
    OK(check(dir, sound_qwen2, 0, &err));
    OK(model_folder_config(dir, &config, &err));
    assert_string_equal(json_string_value(json_object_get(config, "model_type")), "qwen2");
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0)),
        "Qwen2ForCausalLM");
    json_decref(config);
    struct job_model m;
    char *tokenizer = NULL;
    OK(model_folder_sizes(dir, &m, &tokenizer, &err));
    assert_true(m.qkv_bias && m.head_dim == 8 && m.vocab == 260);
    mem_free(tokenizer);

    const char *no = "set model.context to at most that";
    const char *biases = "without biases of queries, keys and values, but the job's model.qkv_bias "
                         "is true";
    with_keys(dir, sound_qwen2, json_pack("{s:i}", "sliding_window", 32), NULL);
    with_keys(dir, sound_qwen2,
              json_pack("{s:i,s:b}", "sliding_window", 32, "use_sliding_window", 1), no);
    with_keys(dir, sound_qwen2, json_pack("{s:s}", "model_type", "mistral"), biases);
    with_key(f, "model_type", json_string("qwen2"), "of a qwen2, with biases");
    with_key(f, "model_type", json_string("mistral"), NULL);
    with_keys(f->llama, sound_llama,
              json_pack("{s:s,s:n}", "model_type", "mistral", "sliding_window"), NULL);
    with_keys(f->llama, sound_llama,
              json_pack("{s:s,s:i}", "model_type", "mistral", "sliding_window", 63), no);
    with_key(f, "sliding_window", json_integer(8), NULL); /* a llama has none */
    assert_int_equal(context_with(dir, json_pack("{s:i}", "sliding_window", 32)), 64);
    assert_int_equal(
        context_with(dir, json_pack("{s:i,s:b}", "sliding_window", 32, "use_sliding_window", 1)),
        32);
    assert_int_equal(
        context_with(dir, json_pack("{s:s,s:i}", "model_type", "mistral", "sliding_window", 96)),
        64);
}

/* A Qwen3, which is exported as one: its norms are in place of biases. */
static void normed_heads_fit(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    char dir[64];
    (void)snprintf(dir, sizeof dir, "%s/qwen3", f->root);
    OK(file_mkdirs(dir, 0700, &err));
    json_t *about = json_pack("{s:s,s:i}", "spec", sound_qwen3, "vocab", 257), *config = NULL;
    OK(artifacts_files(NULL, about, dir, true, &err));
    json_decref(about);
    OK(model_folder_config(dir, &config, &err));
    assert_string_equal(json_string_value(json_object_get(config, "model_type")), "qwen3");
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0)),
        "Qwen3ForCausalLM");
    json_decref(config);
    struct job_model m;
    char *tokenizer = NULL;
    OK(model_folder_sizes(dir, &m, &tokenizer, &err));
    assert_true(m.qk_norm && !m.qkv_bias && m.head_dim == 8 && m.vocab == 260);
    mem_free(tokenizer);

    write_llama(dir, 8);
    OK(check(dir, sound_qwen3, 0, &err));
    with_keys(dir, sound_qwen3,
              json_pack("{s:i,s:b}", "sliding_window", 32, "use_sliding_window", 1),
              "set model.context to at most that");
    with_keys(dir, sound_qwen3, json_pack("{s:b}", "attention_bias", 1), "attention_bias");
    with_keys(dir, sound_qwen3, json_pack("{s:s}", "model_type", "mistral"),
              "of a mistral, without norms of queries and keys, but the job's model.qk_norm is "
              "true");
    with_keys(dir, sound_qwen3, json_pack("{s:s}", "model_type", "qwen2"),
              "of a qwen2, with biases of queries, keys and values, but the job's model.qkv_bias "
              "is false");
    with_key(f, "model_type", json_string("qwen3"), "of a qwen3, with norms of queries and keys");
    with_key(f, "head_dim", json_integer(16), "head_dim 16");
    write_llama(dir, 9);
    assert_int_equal(check(dir, sound_qwen3, 0, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "has no tensor model.layers.0.self_attn.k_norm.weight"));
}

/* A SmolLM3, some layers of which have no rotary positions; which ones its list says, else a
 * number.
 */
static void unturned_layers_fit(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    char dir[64];
    (void)snprintf(dir, sizeof dir, "%s/smollm3", f->root);
    OK(file_mkdirs(dir, 0700, &err));
    json_t *about = json_pack("{s:s,s:i}", "spec", sound_smollm3, "vocab", 257), *config = NULL;
    OK(artifacts_files(NULL, about, dir, true, &err));
    json_decref(about);
    OK(model_folder_config(dir, &config, &err));
    assert_string_equal(json_string_value(json_object_get(config, "model_type")), "smollm3");
    json_decref(config);
    struct job_model m;
    char *tokenizer = NULL;
    OK(model_folder_sizes(dir, &m, &tokenizer, &err));
    assert_int_equal(m.no_rope_layer_interval, 2);
    mem_free(tokenizer);

    write_llama(dir, 0);
    OK(check(dir, sound_smollm3, 0, &err));
#define LIST(a, b, interval)                                                                       \
    json_pack("{s:[i,i],s:i}", "no_rope_layers", a, b, "no_rope_layer_interval", interval)
    with_keys(dir, sound_smollm3, LIST(1, 0, 4), NULL);
    with_keys(dir, sound_smollm3, LIST(1, 1, 2), "a no_rope_layer_interval of 0, but the job's");
    with_keys(dir, sound_smollm3, LIST(0, 0, 2), "a no_rope_layer_interval of 1, but the job's");
    with_keys(dir, sound_smollm3, LIST(1, 1, 4), "a no_rope_layer_interval of 4, but the job's");
    with_keys(dir, sound_smollm3, LIST(0, 1, 2), "has no_rope_layers at unequal distances");
#undef LIST
    with_keys(dir, sound_llama, json_object(),
              "a no_rope_layer_interval of 2, but the job's model.no_rope_layer_interval is 0");
    with_key(f, "model_type", json_string("smollm3"), "a no_rope_layer_interval of 4, but");
}

/* Some tied models are published with their head, too. */
static void tied_heads_are_copies(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    char dir[64];
    (void)snprintf(dir, sizeof dir, "%s/tied", f->root);
    OK(file_mkdirs(dir, 0700, &err));
    json_t *about = json_pack("{s:s,s:i}", "spec", tied_llama, "vocab", 257);
    OK(artifacts_files(NULL, about, dir, true, &err));
    json_decref(about);
    write_llama(dir, 10);
    OK(check(dir, tied_llama, 0, &err));
    const int others[] = {11, 12, 0}; /* one value is another, fewer rows, another type */
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        write_llama(dir, others[i]);
        assert_int_equal(check(dir, tied_llama, 0, &err), -ERR_CONFIG);
        assert_non_null(strstr(err.msg, "lm_head.weight differs from model.embed_tokens.weight"));
    }
}

/* A key that config.json lacks has the default of its class, and null is another value. */
static void defaults_are_of_the_class(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    const struct {
        const char *type;
        int heads, kv_heads, context;
        bool null;
    } cases[] = {
        {"llama", 16, 16, 2048, false},   {"mistral", 16, 8, 4096, false}, /* its window */
        {"mistral", 16, 16, 4096, true},  {"qwen2", 64, 32, 32768, false},
        {"qwen2", 64, 64, 32768, true},   {"qwen3", 64, 32, 32768, false},
        {"smollm3", 64, 4, 32768, false},
    };
    struct job_model none;
    char *no_tokenizer = NULL;
    assert_int_equal(model_folder_sizes("owner/Model-1B", &none, &no_tokenizer, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "owner/Model-1B is not there: name a folder on this machine"));
    char path[96];
    (void)snprintf(path, sizeof path, "%s/bare/config.json", f->root);
    OK(file_mkdirs_for(path, 0700, &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *config = json_pack("{s:s,s:i,s:i}", "model_type", cases[i].type, "hidden_size", 128,
                                   "num_attention_heads", cases[i].heads);
        if (cases[i].null)
            json_object_set_new(config, "num_key_value_heads", json_null());
        assert_int_equal(json_dump_file(config, path, 0), 0);
        json_decref(config);
        struct job_model m;
        char *tokenizer = NULL, *dir = file_join(f->root, "bare");
        OK(model_folder_sizes(dir, &m, &tokenizer, &err));
        assert_int_equal(m.kv_heads, cases[i].kv_heads);
        assert_int_equal(m.context, cases[i].context);
        assert_int_equal(m.head_dim, m.qk_norm ? 128 : 128 / cases[i].heads);
        const bool last = m.no_rope_layer_interval == 4;
        assert_true(m.norm_eps == 1e-6 && m.rope_theta == (last ? 2e6 : 10000) && m.tied == last);
        mem_free(tokenizer);
        mem_free(dir);
    }
}

/* Where positions are scaled, transformers reads two more keys among the numbers of the scaling. */
static void scaling_has_more_keys(void **state)
{
    struct fixture *f = *state;
    char dir[64];
    (void)snprintf(dir, sizeof dir, "%s/scaled", f->root);
    const struct {
        const char *key;
        double value;
        const char *sentence;
    } cases[] = {
        {"partial_rotary_factor", 0.5, "partial_rotary_factor 0.5"},
        {"partial_rotary_factor", 1, NULL},
        {"rope_theta", 7000, "rope_theta 7000, but the job's model.rope_theta is 5000"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *scaling = json_pack("{s:s,s:f,s:f,s:f,s:i}", "rope_type", "llama3", "factor", 32.0,
                                    "low_freq_factor", 1.0, "high_freq_factor", 4.0,
                                    "original_max_position_embeddings", 8192);
        json_object_set_new(scaling, cases[i].key, json_real(cases[i].value));
        with_keys(dir, scaled, json_pack("{s:o}", "rope_scaling", scaling), cases[i].sentence);
    }
    with_keys(dir, scaled, json_pack("{s:f}", "partial_rotary_factor", 0.5), "factor 0.5");
    with_key(f, "partial_rotary_factor", json_real(0.5), NULL); /* plain positions have none */
}

static void variants_are_refused(void **state)
{
    struct fixture *f = *state;
    char list[64];
    struct err err = {0};
    (void)snprintf(list, sizeof list, "%s/list", f->root);
    OK(file_mkdirs(list, 0755, &err));
    char *path = file_join(list, "config.json");
    OK(file_write_atomic(path, "[]", 2, 0600, &err));
    assert_int_equal(check(list, sound_llama, 0, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "list/config.json is not a JSON object"));
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4a5e\n";
    OK(file_write_atomic(path, lfs, sizeof lfs - 1, 0600, &err));
    assert_int_equal(check(list, sound_llama, 0, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "list/config.json is a placeholder of Git LFS"));
    mem_free(path);
    with_key(f, "hidden_act", json_string("gelu"), "hidden_act 'gelu'");
    with_key(f, "attention_bias", json_true(), "attention_bias");
    with_key(f, "rope_scaling", json_pack("{s:s,s:f}", "type", "linear", "factor", 2.0), "linear");
    with_key(f, "vocab_size", json_integer(32000),
             "vocabulary of 32000, but the job's byte tokenizer has 257 tokens");
    with_key(f, "vocab_size", json_integer(260),
             "if it is that, the embedding is padded: set model.vocab to 260");
    with_key(f, "head_dim", json_integer(8), "head_dim 8");
    with_key(f, "head_dim", json_null(), NULL);
    const char *classes = "a llama can be a LlamaForCausalLM, MistralForCausalLM, "
                          "Qwen2ForCausalLM, Qwen3ForCausalLM or SmolLM3ForCausalLM";
    with_key(f, "model_type", json_string("gpt2"), classes);
    with_keys(
        f->llama, sound_llama,
        json_pack("{s:s,s:[s]}", "model_type", "gemma3_text", "architectures", "Gemma3ForCausalLM"),
        "config.json is of Gemma3ForCausalLM, of type 'gemma3_text'; a llama can be a ");
    with_keys(f->llama, sound_llama,
              json_pack("{s:s,s:o}", "model_type", "gpt2", "architectures", json_null()),
              "config.json is of a model, of type 'gpt2'; a llama");
    with_key(f, "hidden_size", json_null(), "has no hidden_size");
}

/* Gigabytes of weights are read. */
static void an_interrupted_check_ends(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    cli_interrupted = SIGINT;
    const int rc = check(f->llama, sound_llama, 0, &err);
    cli_interrupted = 0;
    assert_true(rc < 0);
    assert_string_equal(err.msg, "model.warm_start: interrupted");
}

static void byte_tokens_are_ours(void **state)
{
    struct fixture *f = *state;
    struct err err = {0};
    char path[96];
    uint8_t text[256];
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", f->llama);
    struct tokenizer *theirs, *ours = tokenizer_bytes();
    OK(tokenizer_open(path, &theirs, &err));
    assert_int_equal(tokenizer_vocab(theirs), 257);
    assert_int_equal(tokenizer_bos(theirs), 256);
    assert_int_equal(tokenizer_eos(theirs), 256);
    for (int i = 0; i < 256; i++)
        text[i] = (uint8_t)(i * 7 + i / 16);
    struct tokens a = {0}, b = {0};
    OK(tokenizer_encode(theirs, text, sizeof text, TOKENIZER_ENDS, &a, &err));
    OK(tokenizer_encode(ours, text, sizeof text, TOKENIZER_ENDS, &b, &err));
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.ids, b.ids, a.n * sizeof *a.ids);
    tokens_release(&a);
    tokens_release(&b);
    tokenizer_free(theirs);
    tokenizer_free(ours);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captioned_folders_fit),
        cmocka_unit_test(exported_folders_fit),
        cmocka_unit_test(other_classes_are_warned_of),
        cmocka_unit_test(folders_with_an_upscaler_fit),
        cmocka_unit_test(folders_with_an_estimate_fit),
        cmocka_unit_test(other_sizes_are_named),
        cmocka_unit_test(other_tensors_are_named),
        cmocka_unit_test(scaled_positions_fit),
        cmocka_unit_test(pieces_are_one_model),
        cmocka_unit_test(scaling_has_more_keys),
        cmocka_unit_test(defaults_are_of_the_class),
        cmocka_unit_test(variants_are_refused),
        cmocka_unit_test(relatives_fit),
        cmocka_unit_test(normed_heads_fit),
        cmocka_unit_test(unturned_layers_fit),
        cmocka_unit_test(tied_heads_are_copies),
        cmocka_unit_test(an_interrupted_check_ends),
        cmocka_unit_test(byte_tokens_are_ours),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
