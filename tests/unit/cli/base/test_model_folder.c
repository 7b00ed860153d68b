/* A folder that was exported is one to start from; every way of not fitting has its
 * sentence; exported byte tokens are our byte tokens. */
#include "tests/unit/cli/base/llama_folder.h"

#define DIT(model)                                                                                 \
    "name: pictures\n"                                                                             \
    "data: {path: x, image_size: 8}\n"                                                             \
    "train: {batch: 4}\n"                                                                          \
    "outer: {rounds: 1, steps: 1}\n"                                                               \
    "model: {" model "}\n"

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
        cmocka_unit_test(pieces_are_one_model),
        cmocka_unit_test(an_interrupted_check_ends),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
