/* Frozen networks for tests: states and moments that are functions of ids and pixels, computed on
 * the host (whose memory a CPU's is). */
#ifndef TESTS_UNIT_WORKER_TINY_ENCODERS_H
#define TESTS_UNIT_WORKER_TINY_ENCODERS_H

#include "tests/unit/worker/tiny.h"

#include <math.h>

#include "worker/net/net.h"

enum { TINY_PIXELS = 12 }; /* side of images before they are encoded */

struct tiny_encoders {
    struct net_encoders table;
    struct model_spec spec;
    float shift[16], scale[16];
    unsigned images, captions; /* encoded */
};

static inline bf16 tiny_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (bf16)((bits + 0x8000u) >> 16);
}

static inline float tiny_state(int32_t id, int at, int channel)
{
    return sinf((float)(id * 7 + at * 3 + channel));
}

static inline int tiny_encode_captions(void *arg, const int32_t *tokens, const int32_t *lengths,
                                       unsigned count, void *d_states, struct err *err)
{
    struct tiny_encoders *e = arg;
    const int L = e->spec.caption_tokens, D = e->spec.caption;
    float *f = d_states;
    bf16 *h = d_states;
    (void)err;
    for (int i = 0; i < (int)count * L * D; i++) {
        const int row = i / D, at = row % L;
        const float v = at < lengths[row / L] ? tiny_state(tokens[row], at, i % D) : 0;
        if (e->table.dt == DT_F32)
            f[i] = v;
        else
            h[i] = tiny_bf16(v);
    }
    e->captions += count;
    return 0;
}

/* Moment j of an image. */
static inline bf16 tiny_moment(const uint8_t *image, int j)
{
    return tiny_bf16((float)image[(j * 5) % (3 * TINY_PIXELS * TINY_PIXELS)] / 64.0f - 2.0f);
}

static inline int tiny_encode_images(void *arg, const uint8_t *images, const uint8_t *shapes,
                                     unsigned count, bf16 *d_moments, struct err *err)
{
    struct tiny_encoders *e = arg;
    const int n = 2 * (int)model_image_values(&e->spec);
    (void)err;
    assert_null(shapes);
    for (int i = 0; i < (int)count * n; i++)
        d_moments[i] = tiny_moment(images + i / n * 3 * TINY_PIXELS * TINY_PIXELS, i % n);
    e->images += count;
    return 0;
}

/* e must stay where it is. */
static inline const struct net_encoders *tiny_encoders(struct tiny_encoders *e,
                                                       const struct model_spec *spec, enum dtype dt)
{
    static const int32_t null_tokens[2] = {90, 91};
    *e = (struct tiny_encoders){.spec = *spec};
    for (int i = 0; i < 16; i++) {
        e->shift[i] = 0.25f * (float)i;
        e->scale[i] = 0.5f + (float)i;
    }
    e->table = (struct net_encoders){
        .arg = e,
        .images = tiny_encode_images,
        .captions = model_captioned(spec) ? tiny_encode_captions : NULL,
        .pixels = TINY_PIXELS,
        .shift = e->shift,
        .scale = e->scale,
        .null_tokens = null_tokens,
        .null_length = 2,
        .null_pad = 99,
        .dt = dt,
    };
    return &e->table;
}

/* Pixels and captions of samples [first, first+n): images (n,12,12,3), ids (n,L), lengths (n). */
static inline void tiny_captions(const struct model_spec *s, uint64_t first, unsigned n,
                                 uint8_t *images, int32_t *ids, int32_t *lengths)
{
    const size_t values = (size_t)3 * TINY_PIXELS * TINY_PIXELS, L = (size_t)s->caption_tokens;
    for (unsigned i = 0; i < n; i++) {
        for (size_t j = 0; j < values; j++)
            images[i * values + j] = (uint8_t)rng_at_u32(99, first + i, j);
        lengths[i] = 1 + (int32_t)(rng_at_u32(98, first + i, 0) % L);
        for (size_t j = 0; j < L; j++)
            ids[i * L + j] =
                (int)j < lengths[i] ? (int32_t)(rng_at_u32(97, first + i, j) % 50) : 99;
    }
}

#endif
