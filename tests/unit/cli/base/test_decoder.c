/* Folders of the classes that a llama can be: what their config.json and tokenizer say. */
#include "tests/unit/cli/base/llama_folder.h"

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

struct fixture {
    char llama[64], root[48];
};

static int setup(void **state)
{
    static struct fixture f;
    struct err err = {0};
    (void)snprintf(f.root, sizeof f.root, "/tmp/skerry-decoder-XXXXXX");
    assert_non_null(mkdtemp(f.root));
    (void)snprintf(f.llama, sizeof f.llama, "%s/llama", f.root);
    OK(file_mkdirs(f.llama, 0700, &err));
    json_t *text = json_pack("{s:s,s:i,s:i}", "spec", sound_llama, "vocab", 257, "round", 3);
    OK(artifacts_files(NULL, text, f.llama, true, &err));
    json_decref(text);
    write_llama(f.llama, 0);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    return file_remove_tree(f->root, NULL);
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
        cmocka_unit_test(scaled_positions_fit),
        cmocka_unit_test(scaling_has_more_keys),
        cmocka_unit_test(defaults_are_of_the_class),
        cmocka_unit_test(variants_are_refused),
        cmocka_unit_test(relatives_fit),
        cmocka_unit_test(normed_heads_fit),
        cmocka_unit_test(unturned_layers_fit),
        cmocka_unit_test(tied_heads_are_copies),
        cmocka_unit_test(byte_tokens_are_ours),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
