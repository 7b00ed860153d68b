#include "worker/net/model_table.h"

#include <stdio.h>

static struct model_tensor *add(struct model *m, int level, bool decay, unsigned rank,
                                const int shape[4], const char *name)
{
    struct model_tensor *t = &m->tensors[m->n++];
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    t->rank = rank;
    t->count = 1;
    for (unsigned i = 0; i < rank; i++) {
        t->shape[i] = (uint64_t)shape[i];
        t->count *= t->shape[i];
    }
    t->level = level;
    t->decay = decay;
    m->params += t->count;
    return t;
}

/* A linear layer: NAME.weight (out,in) and NAME.bias (out). */
static void add_linear(struct model *m, int level, const char *name, int out, int in)
{
    char full[MODEL_NAME_MAX];
    (void)snprintf(full, sizeof full, "%s.weight", name);
    (void)add(m, level, true, 2, (int[4]){out, in}, full);
    (void)snprintf(full, sizeof full, "%s.bias", name);
    (void)add(m, level, false, 1, (int[4]){out}, full);
}

/* DIT and ROUTER. */
static void fill_dit(struct model *m)
{
    const struct model_spec *s = &m->spec;
    const int C = s->dim, in = s->cut.embed_level, end = s->cut.head_level;
    const bool router = s->kind == MODEL_ROUTER;

    (void)add(m, in, true, 4, (int[4]){C, MODEL_CHANNELS, s->patch, s->patch},
              "x_embedder.proj.weight");
    (void)add(m, in, false, 1, (int[4]){C}, "x_embedder.proj.bias");
    add_linear(m, in, "t_embedder.mlp.0", C, MODEL_FREQS);
    add_linear(m, in, "t_embedder.mlp.2", C, C);
    if (router)
        (void)add(m, in, false, 2, (int[4]){1, C}, "cls_token");
    else
        (void)add(m, in, false, 2, (int[4]){s->classes + 1, C},
                  "y_embedder.embedding_table.weight");

    for (int i = 0; i < s->depth; i++) {
        const struct {
            const char *name;
            int out, in;
        } layers[] = {
            {"attn.qkv", 3 * C, C},           {"attn.proj", C, C},
            {"mlp.fc1", s->mlp, C},           {"mlp.fc2", C, s->mlp},
            {"adaLN_modulation.1", 6 * C, C},
        };
        for (size_t j = 0; j < sizeof layers / sizeof *layers; j++) {
            char name[48];
            (void)snprintf(name, sizeof name, "blocks.%d.%s", i, layers[j].name);
            add_linear(m, s->cut.block_level[i], name, layers[j].out, layers[j].in);
        }
    }
    if (router)
        add_linear(m, end, "head", s->classes, C);
    else
        add_linear(m, end, "final_layer.linear", model_patch_values(s), C);
    add_linear(m, end, "final_layer.adaLN_modulation.1", 2 * C, C);
}

static void fill_llama(struct model *m)
{
    const struct model_spec *s = &m->spec;
    const int C = s->dim, kv = s->dim / s->heads * s->kv_heads;

    (void)add(m, s->cut.embed_level, false, 2, (int[4]){s->vocab, C}, "model.embed_tokens.weight");
    for (int i = 0; i < s->depth; i++) {
        const struct {
            const char *name;
            int out, in; /* in 0: a norm */
        } layers[] = {
            {"input_layernorm", C, 0},    {"self_attn.q_proj", C, C},
            {"self_attn.k_proj", kv, C},  {"self_attn.v_proj", kv, C},
            {"self_attn.o_proj", C, C},   {"post_attention_layernorm", C, 0},
            {"mlp.gate_proj", s->mlp, C}, {"mlp.up_proj", s->mlp, C},
            {"mlp.down_proj", C, s->mlp},
        };
        for (size_t j = 0; j < sizeof layers / sizeof *layers; j++) {
            char name[MODEL_NAME_MAX];
            const bool matrix = layers[j].in > 0;
            (void)snprintf(name, sizeof name, "model.layers.%d.%s.weight", i, layers[j].name);
            (void)add(m, s->cut.block_level[i], matrix, matrix ? 2 : 1,
                      (int[4]){layers[j].out, layers[j].in}, name);
        }
    }
    (void)add(m, s->cut.head_level, false, 1, (int[4]){C}, "model.norm.weight");
    if (!s->tied)
        (void)add(m, s->cut.head_level, true, 2, (int[4]){s->vocab, C}, "lm_head.weight");
}

size_t model_table_size(const struct model_spec *s)
{
    if (s->kind == MODEL_LLAMA)
        return (size_t)model_llama_final(s, L_PER_FINAL) - (s->tied ? 1 : 0);
    return (size_t)model_final_tensor(s, T_PER_FINAL);
}

void model_table_fill(struct model *m)
{
    if (m->spec.kind == MODEL_LLAMA)
        fill_llama(m);
    else
        fill_dit(m);
}
