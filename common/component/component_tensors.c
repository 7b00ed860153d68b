#include "common/component/component_impl.h"

/* A visit of a network's tensors, one by one. */
struct teller {
    component_want_fn *fn;
    void *arg;
    const char *former; /* prefix of names of the whole network: "text_model.", or NULL */
    int rc;
};

/* `other` is the same tensor's older name, or NULL. */
static void tell(struct teller *t, const char *name, const char *other, unsigned rank,
                 const uint64_t shape[4])
{
    char former[ST_NAME_MAX];
    struct component_want want = {.name = name, .other = other, .rank = rank};
    if (t->rc < 0)
        return;
    if (t->former) {
        (void)snprintf(former, sizeof former, "%s%s", t->former, name);
        want.other = former;
    }
    memcpy(want.shape, shape, rank * sizeof *shape);
    t->rc = t->fn(t->arg, &want);
}

/* Tells a layer's weight and bias; the bias has the weight's first dimension. */
static void tell_layer(struct teller *t, const char *prefix, const char *layer, const char *older,
                       unsigned rank, const uint64_t shape[4], bool bias)
{
    static const char *const leaves[] = {"weight", "bias"};
    for (int i = 0; i < 1 + bias; i++) {
        char name[ST_NAME_MAX], other[ST_NAME_MAX];
        (void)snprintf(name, sizeof name, "%s%s.%s", prefix, layer, leaves[i]);
        (void)snprintf(other, sizeof other, "%s%s.%s", prefix, older ? older : "", leaves[i]);
        tell(t, name, older ? other : NULL, i ? 1 : rank, shape);
    }
}

static void tell_linear(struct teller *t, const char *prefix, const char *layer, int out, int in,
                        bool bias)
{
    tell_layer(t, prefix, layer, NULL, 2, (uint64_t[4]){(uint64_t)out, (uint64_t)in}, bias);
}

static void tell_norm(struct teller *t, const char *prefix, const char *layer, int n, bool bias)
{
    tell_layer(t, prefix, layer, NULL, 1, (uint64_t[4]){(uint64_t)n}, bias);
}

static void tell_conv(struct teller *t, const char *prefix, const char *layer, int out, int in,
                      unsigned k)
{
    tell_layer(t, prefix, layer, NULL, 4, (uint64_t[4]){(uint64_t)out, (uint64_t)in, k, k}, true);
}

/* ---- AutoencoderKL ---- */

static void tell_resnet(struct teller *t, const char *prefix, int in, int out)
{
    tell_norm(t, prefix, "norm1", in, true);
    tell_conv(t, prefix, "conv1", out, in, 3);
    tell_norm(t, prefix, "norm2", out, true);
    tell_conv(t, prefix, "conv2", out, out, 3);
    if (in != out)
        tell_conv(t, prefix, "conv_shortcut", out, in, 1);
}

static void tell_middle(struct teller *t, const char *half, int width, bool attention)
{
    static const char *const products[][2] = {
        {"to_q", "query"}, {"to_k", "key"}, {"to_v", "value"}, {"to_out.0", "proj_attn"}};
    const uint64_t shape[4] = {(uint64_t)width, (uint64_t)width};
    char prefix[96];
    (void)snprintf(prefix, sizeof prefix, "%s.mid_block.resnets.0.", half);
    tell_resnet(t, prefix, width, width);
    (void)snprintf(prefix, sizeof prefix, "%s.mid_block.attentions.0.", half);
    if (attention)
        tell_norm(t, prefix, "group_norm", width, true);
    for (int i = 0; attention && i < 4; i++)
        tell_layer(t, prefix, products[i][0], products[i][1], 2, shape, true);
    (void)snprintf(prefix, sizeof prefix, "%s.mid_block.resnets.1.", half);
    tell_resnet(t, prefix, width, width);
}

/* Block i of a half: its residual layers, and `last`, the layer that changes the size. */
static void tell_block(struct teller *t, const char *block, int layers, const int width[2],
                       const char *last)
{
    char prefix[96];
    for (int i = 0; i < layers; i++) {
        (void)snprintf(prefix, sizeof prefix, "%sresnets.%d.", block, i);
        tell_resnet(t, prefix, i ? width[1] : width[0], width[1]);
    }
    if (last)
        tell_conv(t, block, last, width[1], width[1], 3);
}

static void tell_vae(struct teller *t, const struct component_vae *v)
{
    const int n = v->blocks, inner = v->channels[n - 1], outer = v->channels[0];
    char block[64];

    tell_conv(t, "encoder.", "conv_in", outer, 3, 3);
    for (int i = 0; i < n; i++) {
        (void)snprintf(block, sizeof block, "encoder.down_blocks.%d.", i);
        tell_block(t, block, v->layers, (int[2]){v->channels[i ? i - 1 : 0], v->channels[i]},
                   i < n - 1 ? "downsamplers.0.conv" : NULL);
    }
    tell_middle(t, "encoder", inner, v->attention);
    tell_norm(t, "encoder.", "conv_norm_out", inner, true);
    tell_conv(t, "encoder.", "conv_out", 2 * v->latent, inner, 3);
    if (v->quant)
        tell_conv(t, "", "quant_conv", 2 * v->latent, 2 * v->latent, 1);

    if (v->post_quant)
        tell_conv(t, "", "post_quant_conv", v->latent, v->latent, 1);
    tell_conv(t, "decoder.", "conv_in", inner, v->latent, 3);
    tell_middle(t, "decoder", inner, v->attention);
    for (int i = 0; i < n; i++) {
        (void)snprintf(block, sizeof block, "decoder.up_blocks.%d.", i);
        tell_block(t, block, v->layers + 1,
                   (int[2]){v->channels[i ? n - i : n - 1], v->channels[n - 1 - i]},
                   i < n - 1 ? "upsamplers.0.conv" : NULL);
    }
    tell_norm(t, "decoder.", "conv_norm_out", outer, true);
    tell_conv(t, "decoder.", "conv_out", 3, outer, 3);
}

/* ---- text encoders ---- */

static void tell_clip(struct teller *t, const struct component_text *x)
{
    const uint64_t dim = (uint64_t)x->dim;
    static const char *const products[] = {"q_proj", "k_proj", "v_proj", "out_proj"};

    t->former = "text_model.";
    tell(t, "embeddings.token_embedding.weight", NULL, 2, (uint64_t[4]){(uint64_t)x->vocab, dim});
    tell(t, "embeddings.position_embedding.weight", NULL, 2,
         (uint64_t[4]){(uint64_t)x->positions, dim});
    for (int i = 0; i < x->layers; i++) {
        char prefix[64], attention[96];
        (void)snprintf(prefix, sizeof prefix, "encoder.layers.%d.", i);
        (void)snprintf(attention, sizeof attention, "%sself_attn.", prefix);
        tell_norm(t, prefix, "layer_norm1", x->dim, true);
        for (int k = 0; k < 4; k++)
            tell_linear(t, attention, products[k], x->dim, x->dim, true);
        tell_norm(t, prefix, "layer_norm2", x->dim, true);
        tell_linear(t, prefix, "mlp.fc1", x->mlp, x->dim, true);
        tell_linear(t, prefix, "mlp.fc2", x->dim, x->mlp, true);
    }
    tell_norm(t, "", "final_layer_norm", x->dim, true);
}

static void tell_t5(struct teller *t, const struct component_text *x)
{
    const int inner = x->heads * x->head_dim;

    tell(t, "shared.weight", "encoder.embed_tokens.weight", 2,
         (uint64_t[4]){(uint64_t)x->vocab, (uint64_t)x->dim});
    for (int i = 0; i < x->layers; i++) {
        char half[64];
        (void)snprintf(half, sizeof half, "encoder.block.%d.layer.0.", i);
        tell_norm(t, half, "layer_norm", x->dim, false);
        tell_linear(t, half, "SelfAttention.q", inner, x->dim, false);
        tell_linear(t, half, "SelfAttention.k", inner, x->dim, false);
        tell_linear(t, half, "SelfAttention.v", inner, x->dim, false);
        tell_linear(t, half, "SelfAttention.o", x->dim, inner, false);
        if (i == 0)
            tell_linear(t, half, "SelfAttention.relative_attention_bias", x->buckets, x->heads,
                        false);
        (void)snprintf(half, sizeof half, "encoder.block.%d.layer.1.", i);
        tell_norm(t, half, "layer_norm", x->dim, false);
        tell_linear(t, half, x->gated ? "DenseReluDense.wi_0" : "DenseReluDense.wi", x->mlp, x->dim,
                    false);
        if (x->gated)
            tell_linear(t, half, "DenseReluDense.wi_1", x->mlp, x->dim, false);
        tell_linear(t, half, "DenseReluDense.wo", x->dim, x->mlp, false);
    }
    tell_norm(t, "encoder.", "final_layer_norm", x->dim, false);
}

int component_wants(const struct component *c, component_want_fn *fn, void *arg)
{
    struct teller t = {.fn = fn, .arg = arg};
    if (c->kind == COMPONENT_VAE)
        tell_vae(&t, &c->vae);
    else if (c->kind == COMPONENT_CLIP)
        tell_clip(&t, &c->text);
    else
        tell_t5(&t, &c->text);
    return t.rc;
}

bool component_passes_over(const struct component *c, const char *name)
{
    if (c->kind == COMPONENT_CLIP)
        return str_ends(name, "position_ids") || strcmp(name, "logit_scale") == 0 ||
               strcmp(name, "text_projection.weight") == 0;
    if (c->kind == COMPONENT_T5) /* embed_tokens is the same as shared */
        return str_starts(name, "decoder.") || str_starts(name, "lm_head.") ||
               strcmp(name, "encoder.embed_tokens.weight") == 0;
    return false;
}
