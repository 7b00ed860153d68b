/* Frozen networks in front of tiny_captioned(), one set for each rank: a CLIP and a VAE of made-up
 * weights, which can also run in pieces. */
#ifndef TESTS_REAL_ENCODERS_H
#define TESTS_REAL_ENCODERS_H

#include "tests/unit/components.h"
#include "tests/unit/worker/train/sides.h"

#include "worker/frozen/frozen.h"

#define REAL_VAE                                                                                   \
    "{\"_class_name\": \"AutoencoderKL\", \"block_out_channels\": [8, 16], \"norm_num_groups\": "  \
    "4, \"layers_per_block\": 1,"                                                                  \
    " \"down_block_types\": [\"DownEncoderBlock2D\", \"DownEncoderBlock2D\"],"                     \
    " \"up_block_types\": [\"UpDecoderBlock2D\", \"UpDecoderBlock2D\"]}"
#define REAL_CLIP                                                                                  \
    "{\"architectures\": [\"CLIPTextModel\"], \"vocab_size\": 100, \"hidden_size\": 10,"           \
    " \"num_hidden_layers\": 3, \"num_attention_heads\": 2, \"intermediate_size\": 40,"            \
    " \"max_position_embeddings\": 9}"

enum { REAL_RANKS = 8 };

struct real_rank {
    struct device *dev;
    struct frozen *of[NET_ENCODERS];
    unsigned asked;  /* samples that were not encoded ahead */
    unsigned opened; /* networks, now */
};

struct real_encoders {
    struct real_rank ranks[REAL_RANKS];
    struct net_encoders tables[REAL_RANKS];
    struct tiny_encoders tiny; /* shift, scale, the empty caption */
};

static inline int real_open(void *arg, enum net_encoder which, struct frozen **ret, struct err *err)
{
    struct real_rank *r = arg;
    (void)err;
    r->opened++;
    *ret = r->of[which];
    return 0;
}

static inline void real_close(void *arg, enum net_encoder which)
{
    struct real_rank *r = arg;
    (void)which;
    r->opened--;
}

static inline int real_images(void *arg, const uint8_t *images, const uint8_t *shapes,
                              unsigned count, bf16 *d_moments, struct err *err)
{
    struct real_rank *r = arg;
    const struct frozen_io io = {.in = images, .out = d_moments};
    assert_null(shapes);
    r->asked += count;
    return frozen_run(r->of[NET_IMAGES], &io, (int)count, err);
}

static inline int real_captions(void *arg, const int32_t *tokens, const int32_t *lengths,
                                unsigned count, void *d_states, struct err *err)
{
    struct real_rank *r = arg;
    const struct frozen_io io = {.in = tokens, .lengths = lengths, .out = d_states};
    r->asked += count;
    return frozen_run(r->of[NET_CAPTIONS], &io, (int)count, err);
}

static inline void real_load(struct real_rank *r, enum net_encoder which, const char *config,
                             int group)
{
    const struct frozen_options opt = {.part = which == NET_IMAGES ? FROZEN_ENCODE : FROZEN_TEXT,
                                       .dt = DT_F32,
                                       .moments = DT_BF16,
                                       .group = group,
                                       .side = TINY_PIXELS,
                                       .tokens = tiny_captioned().caption_tokens,
                                       .layer = -1};
    struct component *c;
    char *folder = scratch_new();
    component_write_text(folder, "config.json", config);
    component_write_weights(folder, config, "model.safetensors", (struct made){0});
    OK(component_open(folder, COMPONENT_ANY, &c, err));
    OK(frozen_open(r->dev, c, &opt, &r->of[which], err));
    component_close(c);
    scratch_free(folder);
}

/* On the devices of an island, which stays open for as long. */
static inline void real_encoders_open(struct real_encoders *e, const struct island *is)
{
    const struct model_spec spec = tiny_captioned();
    for (int k = 0; k < island_size(is); k++) {
        e->ranks[k] = (struct real_rank){.dev = island_device(is, k)};
        real_load(&e->ranks[k], NET_IMAGES, REAL_VAE, 1);
        real_load(&e->ranks[k], NET_CAPTIONS, REAL_CLIP, 4);
        e->tables[k] = *tiny_encoders(&e->tiny, &spec, DT_F32);
        e->tables[k].arg = &e->ranks[k];
        e->tables[k].images = real_images;
        e->tables[k].captions = real_captions;
        e->tables[k].open = real_open;
        e->tables[k].close = real_close;
        e->tables[k].fly = true;
        e->tables[k].bytes = 1 << 20;
        e->tables[k].hold_bytes = 1 << 10;
    }
}

static inline void real_encoders_close(struct real_encoders *e)
{
    for (int k = 0; k < REAL_RANKS; k++) {
        frozen_close(e->ranks[k].of[NET_IMAGES]);
        frozen_close(e->ranks[k].of[NET_CAPTIONS]);
    }
}

#endif
