/* Small frozen networks with made-up weights, and samples for them: what the tests of this folder
 * share. */
#ifndef TESTS_UNIT_WORKER_FROZEN_BENCH_H
#define TESTS_UNIT_WORKER_FROZEN_BENCH_H

#include "common/base/rng.h"
#include "kernels/device/device.h"
#include "tests/unit/components.h"
#include "worker/frozen/frozen.h"

#define VAE(more)                                                                                  \
    "{\"_class_name\": \"AutoencoderKL\", \"block_out_channels\": [8, 16], \"norm_num_groups\": "  \
    "4,"                                                                                           \
    " \"layers_per_block\": 1,"                                                                    \
    " \"down_block_types\": [\"DownEncoderBlock2D\", \"DownEncoderBlock2D\"],"                     \
    " \"up_block_types\": [\"UpDecoderBlock2D\", \"UpDecoderBlock2D\"]" more "}"
#define CLIP                                                                                       \
    "{\"architectures\": [\"CLIPTextModel\"], \"vocab_size\": 50, \"hidden_size\": 24,"            \
    " \"num_hidden_layers\": 3, \"num_attention_heads\": 2, \"intermediate_size\": 40,"            \
    " \"max_position_embeddings\": 9}"
#define T5(form)                                                                                   \
    "{\"architectures\": [\"T5EncoderModel\"], \"vocab_size\": 50, \"d_model\": 24, \"d_kv\": 5,"  \
    " \"d_ff\": 40, \"num_layers\": 2, \"num_heads\": 3, \"feed_forward_proj\": \"" form "\"}"

enum { N = 7, SIDE = 10, TOKENS = 3, MOST = 8192 };

/* A chain, what it is given and what it makes of it. */
struct bench {
    char *folder;
    struct device *dev;
    struct component *c;
    struct frozen *f;
    uint8_t pixels[N * SIDE * SIDE * 3];
    float latents[N * 4 * (SIDE / 2) * (SIDE / 2)];
    int32_t ids[N * TOKENS];
    int32_t lengths[N];
};

static inline void load_up(struct bench *b, const char *config, const char *device, int threads)
{
    *b = (struct bench){.folder = scratch_new()};
    component_write_text(b->folder, "config.json", config);
    component_write_weights(b->folder, config, "model.safetensors", (struct made){0});
    OK(component_open(b->folder, COMPONENT_ANY, &b->c, err));
    OK(device_open(device, threads, &b->dev, err));
    for (size_t i = 0; i < sizeof b->pixels; i++)
        b->pixels[i] = (uint8_t)rng_at_u32(1, 0, i);
    rng_fill_normal(2, 0, 0, b->latents, COUNT(b->latents), 0, 1);
    for (size_t i = 0; i < COUNT(b->ids); i++)
        b->ids[i] = (int32_t)(rng_at_u32(3, 0, i) % 50);
    for (size_t i = 0; i < N; i++)
        b->lengths[i] = (int32_t)(i % TOKENS) + 1;
}

static inline void put_away(struct bench *b)
{
    frozen_close(b->f);
    component_close(b->c);
    device_close(b->dev);
    scratch_free(b->folder);
}

static inline struct frozen_options options(enum frozen_part part, enum dtype dt, int group)
{
    return (struct frozen_options){.part = part,
                                   .dt = dt,
                                   .moments = dt,
                                   .group = group,
                                   .side = SIDE,
                                   .tokens = TOKENS,
                                   .layer = -1};
}

static inline struct frozen_io inputs(const struct bench *b, enum frozen_part part, void *out)
{
    const void *in[] = {b->pixels, b->latents, b->ids};
    return (struct frozen_io){.in = in[part], .lengths = b->lengths, .out = out};
}

/* The chain over all samples; bytes of the whole. */
static inline size_t run(struct bench *b, const struct frozen_options *opt, uint8_t *out)
{
    const struct frozen_io io = inputs(b, opt->part, out);
    frozen_close(b->f);
    b->f = NULL;
    OK(frozen_open(b->dev, b->c, opt, &b->f, err));
    const size_t bytes = N * (size_t)frozen_out_bytes(b->f);
    assert_true(bytes <= MOST);
    OK(frozen_run(b->f, &io, N, err));
    return bytes;
}

static inline void refused(struct bench *b, struct frozen_options opt, const char *says)
{
    struct frozen_sizes sizes = {.weights = 77};
    FAILS(frozen_bytes(b->c, &opt, &sizes, err), says);
    assert_int_equal(sizes.weights, 77);
    FAILS(frozen_open(b->dev, b->c, &opt, &b->f, err), says);
    assert_null(b->f);
}

#endif
