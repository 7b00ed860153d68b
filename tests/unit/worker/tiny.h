/* A model small enough for finite differences, and what the tests of the numeric part
 * share: sizes that are odd where they may be, random weights (the initial ones make
 * most gradients zero), a batch of images. */
#ifndef TESTS_UNIT_WORKER_TINY_H
#define TESTS_UNIT_WORKER_TINY_H

#include "tests/unit/ok.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/train/train.h"

static inline struct model_spec tiny_spec(void)
{
    return (struct model_spec){
        .channels = 3,
        .image = 6,
        .patch = 2,
        .dim = 12,
        .depth = 3,
        .heads = 3,
        .mlp = 28,
        .classes = 3,
        .cut = {.n_levels = 1},
    };
}

/* Of two chains: the base of small images, and the upscaler of images as those of the others. */
static inline struct model_spec tiny_base(void)
{
    struct model_spec s = tiny_spec();
    s.image = 3;
    s.patch = 1;
    return s;
}
static inline struct model_spec tiny_cascade(void)
{
    struct model_spec s = tiny_base();
    s.upscaler = (struct model_upscaler){
        .dim = 8, .depth = 2, .heads = 2, .mlp = 12, .image = 6, .patch = 3, .noise = 0.25f};
    return s;
}

/* Of latents, told by captions. */
static inline struct model_spec tiny_captioned(void)
{
    return (struct model_spec){
        .channels = 4,
        .image = 6,
        .patch = 2,
        .dim = 16,
        .depth = 3,
        .heads = 2,
        .mlp = 64,
        .caption = 10,
        .caption_tokens = 5,
        .cut = {.n_levels = 1},
    };
}

static inline struct model_spec tiny_router(void)
{
    struct model_spec s = tiny_spec();
    s.kind = MODEL_ROUTER;
    s.classes = 4;
    return s;
}

static inline struct model_spec tiny_llama(void)
{
    return (struct model_spec){
        .kind = MODEL_LLAMA,
        .dim = 12,
        .depth = 2,
        .heads = 3,
        .kv_heads = 1,
        .mlp = 20,
        .vocab = 11,
        .context = 8,
        .rope_theta = 10000.0f,
        .norm_eps = 1e-5f,
        .cut = {.n_levels = 1},
    };
}

/* One with all that a class beside Llama has; heads are wider than dim. */
static inline struct model_spec tiny_qwen(void)
{
    struct model_spec s = tiny_llama();
    s.head_dim = 16;
    s.qkv_bias = true;
    return s;
}

/* As tiny_qwen, with norms of queries and keys in place of the biases, and, as in a SmolLM3, a
 * block without rotary positions. */
static inline struct model_spec tiny_qwen3(void)
{
    struct model_spec s = tiny_qwen();
    s.qkv_bias = false;
    s.qk_norm = true;
    s.no_rope_layer_interval = 2;
    return s;
}

static inline struct train_options tiny_options(void)
{
    return (struct train_options){
        .batch = 5,
        .accumulate = 1,
        .lr = 1e-3,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .clip = 1.0,
        .decay_fraction = 0.2,
        .precision = NET_F32,
        .label_dropout = 0.2,
        .seed = 11,
        .replica = 1,
    };
}

/* mem_free. */
static inline float *tiny_weights(const struct model *m, uint64_t seed)
{
    float *flat = model_flat_new(m);
    assert_non_null(flat);
    for (size_t i = 0; i < m->n; i++)
        rng_fill_normal(seed, i, 0, flat + m->tensors[i].offset, m->tensors[i].count, 0.0f, 0.2f);
    return flat;
}

/* Images and labels of samples [first, first+n). */
static inline void tiny_batch(const struct model_spec *s, uint64_t first, unsigned n,
                              uint8_t *images, int32_t *labels)
{
    const size_t values = (size_t)(3 * model_drawn_side(s) * model_drawn_side(s));
    for (unsigned i = 0; i < n; i++) {
        labels[i] = (int32_t)((first + i) % (uint64_t)s->classes);
        for (size_t j = 0; j < values; j++)
            images[i * values + j] = (uint8_t)rng_at_u32(99, first + i, j);
    }
}

/* One step on images of the host. */
static inline int tiny_step(struct trainer *t, const uint8_t *images, const int32_t *labels,
                            unsigned n, struct step_result *ret, struct err *err)
{
    const struct batch b = {.count = n, .images = images, .labels = labels};
    return trainer_step(t, &b, ret, err);
}

#endif
