/* The tensors of a Llama: names, shapes, initial values, arithmetic. */

#include <float.h>

#include "common/base/base.h"
#include "common/base/rng.h"
#include "common/job/job.h"
#include "worker/model/model_family.h"
#include "worker/model/model_index.h"
#include "worker/model/model_table.h"

static int text_check(const struct model_spec *s, struct err *err)
{
    if (s->vocab < 2 || s->vocab > MODEL_VOCAB_MAX)
        return err_set(err, -ERR_CONFIG, "the dataset has %d token ids; from 2 to %d are possible",
                       s->vocab, MODEL_VOCAB_MAX);
    if (s->context < 2 || s->context > MODEL_CONTEXT_MAX)
        return err_set(err, -ERR_CONFIG, "model.context %d must be from 2 to %d", s->context,
                       MODEL_CONTEXT_MAX);
    if (s->kv_heads < 1 || s->heads % s->kv_heads != 0)
        return err_set(err, -ERR_CONFIG, "model.kv_heads %d must divide model.heads %d",
                       s->kv_heads, s->heads);
    /* Rotary positions turn pairs; and q, k, v (gate, up) are one product, so they must fill
     * whole units of the flat vector. */
    if (model_head_dim(s) % 4 != 0 || s->dim % 4 != 0 || s->mlp % 4 != 0)
        return err_set(err, -ERR_CONFIG,
                       "model.dim %d in %d heads is %d per head, and model.ffn is %d; all must be "
                       "multiples of 4",
                       s->dim, s->heads, model_head_dim(s), s->mlp);
    if (s->qkv_bias && model_head_dim(s) * s->kv_heads % 16 != 0)
        return err_set(err, -ERR_CONFIG,
                       "model.qkv_bias needs keys whose width is a multiple of 16, but %d heads "
                       "are %d wide",
                       s->kv_heads, model_head_dim(s) * s->kv_heads);
    if (s->qkv_bias && s->qk_norm)
        return err_set(err, -ERR_CONFIG, "model.qkv_bias and model.qk_norm are both true");
    if (!(s->rope_theta > 0) || !(s->norm_eps > 0))
        return err_set(err, -ERR_CONFIG, "model.rope_theta and model.norm_eps must be above 0");
    return 0;
}

static void sizes(const struct job_spec *job, const struct model_facts *f, struct model_spec *s)
{
    const struct job_model *m = &job->model;
    s->dim = m->dim;
    s->depth = m->depth;
    s->heads = m->heads;
    s->mlp = m->ffn;
    s->vocab = m->vocab > (int)f->vocab ? m->vocab : (int)f->vocab;
    s->context = m->context;
    s->kv_heads = m->kv_heads;
    s->head_dim = m->head_dim;
    s->qkv_bias = m->qkv_bias;
    s->qk_norm = m->qk_norm;
    s->no_rope_layer_interval = m->no_rope_layer_interval;
    s->rope_theta = (float)m->rope_theta;
    s->norm_eps = (float)m->norm_eps;
    const struct job_rope *rope = &m->rope_scaling;
    if (rope->rope_type == JOB_ROPE_LLAMA3)
        s->rope_scaling = (struct rope_scaling){
            .factor = (float)rope->factor,
            .low = (float)rope->low_freq_factor,
            .high = (float)rope->high_freq_factor,
            .context = (float)rope->original_max_position_embeddings,
        };
    if (rope->rope_type == JOB_ROPE_LINEAR) /* every pair turns few enough times to be scaled */
        s->rope_scaling = (struct rope_scaling){
            .factor = (float)rope->factor, .low = FLT_MAX / 2, .high = FLT_MAX, .context = 1};
    s->tied = m->tied;
}

static int tokens(const struct model_spec *s)
{
    return s->context;
}

static size_t count(const struct model_spec *s)
{
    return (size_t)model_llama_final(s, L_PER_FINAL) - (s->tied ? 1 : 0);
}

static void fill(struct model *m)
{
    const struct model_spec *s = &m->spec;
    const int C = s->dim, D = model_head_dim(s), q = D * s->heads, kv = D * s->kv_heads;

    model_table_add(m, s->cut.embed_level, false, 2, (int[4]){s->vocab, C},
                    "model.embed_tokens.weight");
    for (int i = 0; i < s->depth; i++) {
        const struct {
            const char *name;
            int out, in; /* in 0: a norm */
            bool bias;
        } layers[] = {
            {"input_layernorm", C, 0, false},         {"self_attn.q_proj", q, C, s->qkv_bias},
            {"self_attn.k_proj", kv, C, s->qkv_bias}, {"self_attn.v_proj", kv, C, s->qkv_bias},
            {"self_attn.o_proj", C, q, false},        {"post_attention_layernorm", C, 0, false},
            {"mlp.gate_proj", s->mlp, C, false},      {"mlp.up_proj", s->mlp, C, false},
            {"mlp.down_proj", C, s->mlp, false},      {"self_attn.q_norm", D, 0, false},
            {"self_attn.k_norm", D, 0, false},
        };
        const size_t n = sizeof layers / sizeof *layers - (s->qk_norm ? 0 : 2);
        for (size_t j = 0; j < n; j++) {
            char name[MODEL_NAME_MAX];
            const bool matrix = layers[j].in > 0;
            (void)snprintf(name, sizeof name, "model.layers.%d.%s%s", i, layers[j].name,
                           layers[j].bias ? "" : ".weight");
            if (layers[j].bias)
                model_table_linear(m, s->cut.block_level[i], name, layers[j].out, layers[j].in);
            else
                model_table_add(m, s->cut.block_level[i], matrix, matrix ? 2 : 1,
                                (int[4]){layers[j].out, layers[j].in}, name);
        }
    }
    model_table_add(m, s->cut.head_level, false, 1, (int[4]){C}, "model.norm.weight");
    if (!s->tied)
        model_table_add(m, s->cut.head_level, true, 2, (int[4]){s->vocab, C}, "lm_head.weight");
}

static void init(const struct model_tensor *t, const struct model_spec *s, uint64_t seed,
                 uint64_t stream, float *p)
{
    if (t->rank == 1) { /* a norm, or a bias, which stays 0 */
        if (str_ends(t->name, ".bias"))
            return;
        for (uint64_t j = 0; j < t->count; j++)
            p[j] = 1.0f;
        return;
    }
    const bool ends_branch =
        str_ends(t->name, "o_proj.weight") || str_ends(t->name, "down_proj.weight");
    const float std = ends_branch ? 0.02f / sqrtf(2.0f * (float)s->depth) : 0.02f;
    rng_fill_normal(seed, stream, 0, p, t->count, 0.0f, std);
}

static double macs(const struct model_spec *s, double T)
{
    const double C = s->dim, q = model_head_dim(s) * s->heads, kv = model_head_dim(s) * s->kv_heads;
    const double block = 2 * C * q + 2 * C * kv + 3 * C * s->mlp + 2 * T * q;
    return T * (s->depth * block + C * s->vocab);
}

static void blocks(const struct model_spec *s, int *first, int *each)
{
    *first = L_BLOCKS;
    *each = model_llama_block(s, 1, (enum model_llama_block_index)0) - L_BLOCKS;
}

const struct model_family model_llama = {
    .text = true,
    .check = text_check,
    .sizes = sizes,
    .tokens = tokens,
    .tensors = count,
    .fill = fill,
    .blocks = blocks,
    .init = init,
    .macs = macs,
};
