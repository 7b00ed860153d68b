#include "cli/base/decoder.h"

#include "cli/base/cli.h"
#include "cli/base/config_numbers.h"
#include "common/base/file.h"
#include "common/data/tokenizer.h"

static const struct decoder decoders[] = {
    {"llama", "LlamaForCausalLM", .context = 2048},
    {"mistral", "MistralForCausalLM", .context = 131072, .kv_heads = 8, .window = 4096},
    {"qwen2", "Qwen2ForCausalLM", .qkv_bias = true, .context = 32768, .kv_heads = 32,
     .window = 4096, .asks = true},
    {"qwen3", "Qwen3ForCausalLM", .qk_norm = true, .context = 32768, .kv_heads = 32,
     .head_dim = 128, .window = 4096, .asks = true},
    {"smollm3", "SmolLM3ForCausalLM", .no_rope = true, .context = 32768, .kv_heads = 4,
     .theta = 2e6, .tied = true, .asks = true},
};
#define DECODERS                                                                                   \
    "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM or "                 \
    "SmolLM3ForCausalLM"
#define NO_ROPE_INTERVAL 4 /* of a SmolLM3 that says neither of its keys */

const struct decoder *decoder_of(const struct job_model *m)
{
    const struct decoder *d = decoders;
    while (d->qkv_bias != m->qkv_bias || d->qk_norm != m->qk_norm ||
           d->no_rope != (m->no_rope_layer_interval > 0))
        d++;
    return d;
}

static int find(const char *dir, const json_t *config, const struct decoder **ret, struct err *err)
{
    const char *kind = cli_str(config, "model_type", cli_str(config, "_class_name", "(not said)"));
    for (size_t i = 0; i < sizeof decoders / sizeof *decoders; i++) {
        if (strcmp(kind, decoders[i].type) == 0) {
            *ret = &decoders[i];
            return 0;
        }
    }
    const char *class =
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    return err_set(err, -ERR_CONFIG,
                   "%s/config.json is of %s, of type '%s'; a llama can be a " DECODERS, dir,
                   class ? class : "a model", kind);
}

/* How many tokens a token sees, itself included; 0: all. */
static long long window_of(const struct decoder *d, const json_t *config)
{
    const json_t *window = json_object_get(config, "sliding_window");
    if (d->asks && !json_is_true(json_object_get(config, "use_sliding_window")))
        return 0;
    return window && d->window ? json_integer_value(window) : d->window;
}

/* The most tokens that a model takes whose tokens all see each other; 0: none is said. */
static int most_context(const struct decoder *d, const json_t *config)
{
    const long long most = cli_int(config, "max_position_embeddings", d->context);
    const long long window = window_of(d, config);
    return (int)(window > 0 && (window < most || most <= 0) ? window : most);
}

/* The width of a head; null and no value are the same. */
static int head_dim(const struct decoder *d, const json_t *config)
{
    const int heads = (int)cli_int(config, "num_attention_heads", 1);
    const long long share = heads > 0 ? cli_int(config, "hidden_size", 0) / heads : 0;
    return (int)cli_int(config, "head_dim", d->head_dim ? d->head_dim : share);
}

/* Heads of keys and values; null is as many as heads, which the missing key need not be. */
static int kv_heads(const struct decoder *d, const json_t *config)
{
    const int heads = (int)cli_int(config, "num_attention_heads", 0);
    const bool said = json_object_get(config, "num_key_value_heads") != NULL;
    return (int)cli_int(config, "num_key_value_heads", said || !d->kv_heads ? heads : d->kv_heads);
}

/* How it scales the rotary positions, in the place of old or of new configurations; NULL: plain. */
static const json_t *rope_scaling(const json_t *config, const char **ret_type)
{
    const json_t *scaling = json_object_get(config, "rope_scaling");
    if (json_object_size(scaling) == 0)
        scaling = json_object_get(config, "rope_parameters");
    *ret_type = cli_str(scaling, "rope_type", cli_str(scaling, "type", "default"));
    return scaling;
}

/* enum job_rope_type; -1: none that we have. */
static int rope_type(const char *name)
{
    int type;
    return job_rope_parse(name, &type) < 0 ? -1 : type;
}

/* The base of the rotary positions, from the same place or beside it. */
static double rope_theta(const struct decoder *d, const json_t *config)
{
    const char *type;
    const json_t *rope = rope_scaling(config, &type);
    return cli_num(rope, "rope_theta", cli_num(config, "rope_theta", d->theta ? d->theta : 10000));
}

/* Are the layers without rotary positions, which the list gives a 0, every nth one? */
static bool is_every_nth(const json_t *list, long long depth, long long n)
{
    for (long long i = 0; i < depth; i++) {
        const json_t *turns = json_array_get(list, (size_t)i);
        if (!json_is_integer(turns) ||
            (json_integer_value(turns) == 0) != (n > 0 && (i + 1) % n == 0))
            return false;
    }
    return true;
}

/* Every how many layers one has no rotary positions; 0: none; -1: at no equal distances. */
static int no_rope_interval(const struct decoder *d, const json_t *config)
{
    const json_t *list = json_object_get(config, "no_rope_layers");
    const long long depth = cli_int(config, "num_hidden_layers", 0);
    long long n = d->no_rope ? cli_int(config, "no_rope_layer_interval", NO_ROPE_INTERVAL) : 0;
    if (!d->no_rope || !json_is_array(list) || is_every_nth(list, depth, n))
        return (int)n;
    for (n = 1; n <= depth && json_integer_value(json_array_get(list, (size_t)n - 1)) != 0;)
        n++;
    n = n > depth ? 0 : n;
    return is_every_nth(list, depth, n) ? (int)n : -1;
}

static bool is_tied(const struct decoder *d, const json_t *config)
{
    const json_t *tied = json_object_get(config, "tie_word_embeddings");
    return json_is_boolean(tied) ? json_is_true(tied) : d->tied;
}

/* What a class has besides must be what the job's model has besides. */
static int check_besides(const char *dir, const json_t *config, const struct decoder *d,
                         const struct job_model *m, struct err *err)
{
    const struct {
        bool theirs, ours;
        const char *what, *key;
    } parts[] = {
        {d->qkv_bias, m->qkv_bias, "biases of queries, keys and values", "qkv_bias"},
        {d->qk_norm, m->qk_norm, "norms of queries and keys", "qk_norm"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].theirs != parts[i].ours)
            return err_set(err, -ERR_CONFIG,
                           "%s/config.json is of a %s, %s %s, but the job's model.%s is %s", dir,
                           d->type, parts[i].theirs ? "with" : "without", parts[i].what,
                           parts[i].key, parts[i].ours ? "true" : "false");
    const int n = no_rope_interval(d, config);
    return n == m->no_rope_layer_interval
               ? 0
               : err_set(err, -ERR_CONFIG,
                         "%s/config.json is of a %s with a no_rope_layer_interval of %d, but the "
                         "job's model.no_rope_layer_interval is %d",
                         dir, d->type, n, m->no_rope_layer_interval);
}

/* Refuses what no key of a job can say. */
static int check_supported(const char *dir, const json_t *config, const struct decoder *d,
                           struct err *err)
{
    const char *act = cli_str(config, "hidden_act", "silu"), *type;
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return err_set(err, -ERR_CONFIG,
                       "%s/config.json has hidden_act '%s'; only silu is supported", dir, act);
    if (json_is_true(json_object_get(config, "attention_bias")) ||
        json_is_true(json_object_get(config, "mlp_bias")))
        return err_set(err, -ERR_CONFIG,
                       "%s/config.json has attention_bias or mlp_bias; layers with biases are "
                       "not supported, but for the queries, keys and values of a qwen2",
                       dir);
    (void)rope_scaling(config, &type);
    if (rope_type(type) < 0)
        return err_set(err, -ERR_CONFIG,
                       "%s/config.json scales its rotary positions by '%s'; only llama3, linear "
                       "and plain ones are supported",
                       dir, type);
    if (no_rope_interval(d, config) < 0)
        return err_set(err, -ERR_CONFIG,
                       "%s/config.json has no_rope_layers at unequal distances; only those in "
                       "which every Nth layer has no rotary positions are supported",
                       dir);
    return 0;
}

static int check_window(const char *dir, const json_t *config, const struct decoder *d,
                        const struct job_model *m, struct err *err)
{
    const long long window = window_of(d, config);
    return window <= 0 || window >= m->context
               ? 0
               : err_set(err, -ERR_CONFIG,
                         "%s/config.json has a sliding_window of %lld tokens, but the job's "
                         "model.context is %d: set model.context to at most that",
                         dir, window, m->context);
}

static int check_rope(const char *dir, const json_t *config, const struct job_rope *rope,
                      struct err *err)
{
    const char *type;
    const json_t *scaling = rope_scaling(config, &type);
    if (rope_type(type) != rope->rope_type)
        return err_set(err, -ERR_CONFIG,
                       "%s/config.json says rope_type %s, but the job's "
                       "model.rope_scaling.rope_type is %s",
                       dir, type, job_rope_name(rope->rope_type));
    const double turned =
        cli_num(scaling, "partial_rotary_factor", cli_num(config, "partial_rotary_factor", 1));
    const struct config_number wanted[] = {
        {"factor", "model.rope_scaling.factor", rope->factor, NAN},
        {"low_freq_factor", "model.rope_scaling.low_freq_factor", rope->low_freq_factor, NAN},
        {"high_freq_factor", "model.rope_scaling.high_freq_factor", rope->high_freq_factor, NAN},
        {"original_max_position_embeddings", "model.rope_scaling.original_max_position_embeddings",
         rope->original_max_position_embeddings, NAN},
    };
    if (rope->rope_type == JOB_ROPE_DEFAULT) /* which transformers gives the whole head */
        return 0;
    if (turned != 1)
        return err_set(err, -ERR_CONFIG,
                       "%s/config.json has partial_rotary_factor %g; only heads that turn as a "
                       "whole are supported",
                       dir, turned);
    const size_t n = rope->rope_type == JOB_ROPE_LINEAR ? 1 : sizeof wanted / sizeof *wanted;
    return config_numbers_check(dir, scaling, wanted, n, err);
}

long long decoder_vocab(const struct job_model *m, const struct tokenizer *t)
{
    const long long ids = tokenizer_vocab(t);
    return m->vocab > ids ? m->vocab : ids;
}

static int check_vocabulary(const char *dir, const json_t *config, const struct job_spec *spec,
                            const struct tokenizer *t, struct err *err)
{
    const long long theirs = cli_int(config, "vocab_size", 0), ours = tokenizer_vocab(t);
    char padded[160] = "";
    if (theirs == decoder_vocab(&spec->model, t))
        return 0;
    if (theirs > ours)
        (void)snprintf(padded, sizeof padded,
                       "; if it is that, the embedding is padded: set model.vocab to %lld", theirs);
    return err_set(err, -ERR_CONFIG,
                   "%s/config.json has a vocabulary of %lld, but %s has %lld tokens: set "
                   "data.tokenizer to the tokenizer.json that the model was trained with%s",
                   dir, theirs,
                   spec->data.tokenizer ? spec->data.tokenizer : "the job's byte tokenizer", ours,
                   padded);
}

static bool same_token(const struct tokenizer *a, const struct tokenizer *b, uint32_t id)
{
    size_t n, k;
    const uint8_t *p = tokenizer_piece(a, id, &n), *q = tokenizer_piece(b, id, &k);
    if (tokenizer_is_special(a, id) && tokenizer_is_special(b, id))
        return true; /* that of byte tokens has no text */
    return n == k && (n == 0 || memcmp(p, q, n) == 0);
}

/* The path of the folder's own tokenizer (mem_free); NULL: it has none. */
static char *tokenizer_of(const char *dir)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model"}; /* SentencePiece's */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = file_join(dir, names[i]);
        if (file_exists(path))
            return path;
        mem_free(path);
    }
    return NULL;
}

/* The folder's own tokenizer, if it has one, must be the job's. */
static int check_tokenizer(const char *dir, const struct tokenizer *ours, struct err *err)
{
    char *path = tokenizer_of(dir);
    struct tokenizer *theirs = NULL;
    int rc = 0;

    if (path) {
        rc = tokenizer_open(path, &theirs, err);
        for (uint32_t id = 0; rc == 0 && id < tokenizer_vocab(ours); id++) {
            if (!same_token(theirs, ours, id))
                rc = err_set(err, -ERR_CONFIG,
                             "token %u of %s differs from that of the job's tokenizer: set "
                             "data.tokenizer to this file",
                             id, path);
        }
    }
    tokenizer_free(theirs);
    mem_free(path);
    return rc;
}

int decoder_check(const char *dir, const json_t *config, const struct job_spec *spec,
                  const struct model_folder_facts *facts, struct err *err)
{
    const struct job_model *m = &spec->model;
    const struct decoder *d = NULL;
    int rc = find(dir, config, &d, err);
    if (rc == 0)
        rc = check_supported(dir, config, d, err);
    if (rc < 0)
        return rc;
    const struct config_number wanted[] = {
        {"hidden_size", "model.dim", m->dim, NAN},
        {"num_hidden_layers", "model.depth", m->depth, NAN},
        {"num_attention_heads", "model.heads", m->heads, NAN},
        {"num_key_value_heads", "model.kv_heads", m->kv_heads, .theirs = kv_heads(d, config)},
        {"head_dim", "model.head_dim", m->head_dim, .theirs = head_dim(d, config)},
        {"intermediate_size", "model.ffn", m->ffn, NAN},
        {"rms_norm_eps", "model.norm_eps", m->norm_eps, 1e-6},
        {"rope_theta", "model.rope_theta", m->rope_theta, .theirs = rope_theta(d, config)},
        {"tie_word_embeddings", "model.tied", m->tied, d->tied, .yes_or_no = true},
    };
    rc = config_numbers_check(dir, config, wanted, sizeof wanted / sizeof *wanted, err);
    if (rc == 0)
        rc = check_besides(dir, config, d, m, err);
    if (rc == 0)
        rc = check_window(dir, config, d, m, err);
    if (rc == 0)
        rc = check_rope(dir, config, &m->rope_scaling, err);
    if (rc == 0)
        rc = check_vocabulary(dir, config, spec, facts->tokenizer, err);
    return rc == 0 ? check_tokenizer(dir, facts->tokenizer, err) : rc;
}

int decoder_sizes(const char *dir, const json_t *config, struct job_model *ret,
                  char **ret_tokenizer, struct err *err)
{
    const struct decoder *d = NULL;
    int rc = find(dir, config, &d, err);
    if (rc == 0)
        rc = check_supported(dir, config, d, err);
    if (rc < 0)
        return rc;
    const char *type;
    const json_t *scaling = rope_scaling(config, &type);
    *ret = (struct job_model){
        .type = JOB_MODEL_LLAMA,
        .dim = (int)cli_int(config, "hidden_size", 0),
        .depth = (int)cli_int(config, "num_hidden_layers", 0),
        .heads = (int)cli_int(config, "num_attention_heads", 0),
        .kv_heads = kv_heads(d, config),
        .head_dim = head_dim(d, config),
        .qkv_bias = d->qkv_bias,
        .qk_norm = d->qk_norm,
        .no_rope_layer_interval = no_rope_interval(d, config),
        .vocab = (int)cli_int(config, "vocab_size", 0),
        .ffn = (int)cli_int(config, "intermediate_size", 0),
        .context = most_context(d, config),
        .rope_theta = rope_theta(d, config),
        .rope_scaling =
            {
                .rope_type = rope_type(type),
                .factor = cli_num(scaling, "factor", 0),
                .low_freq_factor = cli_num(scaling, "low_freq_factor", 0),
                .high_freq_factor = cli_num(scaling, "high_freq_factor", 0),
                .original_max_position_embeddings =
                    (int)cli_int(scaling, "original_max_position_embeddings", 0),
            },
        .norm_eps = cli_num(config, "rms_norm_eps", 1e-6),
        .tied = is_tied(d, config),
    };
    *ret_tokenizer = tokenizer_of(dir);
    return 0;
}
