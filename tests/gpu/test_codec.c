/* The card's codecs against the specification, common/outer/arith_impl.h, bit for bit: every
 * codec, odd sizes and places, ties, tiny and huge blocks, signed zeros, any bits at all, and
 * what is refused. */
#include "tests/unit/kernels/guard.h"

#include <float.h>

#include "common/outer/arith_impl.h"

static const struct arith spec = ARITH_TABLE("specification");

static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 127, 128, 130, 255, 256, 257, 511, 1000, 2049};
enum { SIZES = sizeof sizes / sizeof *sizes, LONGEST = 2049 };

static const size_t element[CODEC_COUNT] = {4, 2, 1, 1};

static size_t payload_bytes(int c, size_t n)
{
    return c == CODEC_E3M0 ? (n + 1) / 2 : n * element[c];
}

/* ---- values: what u is to be ---- */

/* The next float, `by` steps away from zero. */
static float near(float x, int by)
{
    return float_of(bits_of(x) + (uint32_t)by);
}

static float sign(float x)
{
    return guard_rng() & 1 ? x : -x;
}

static float normal(size_t i)
{
    return 1e-3f * guard_rand();
}

/* Every threshold of a block of e3m0 whose scale is 7/8, its neighbours and the values. */
static float ties_e3m0(size_t i)
{
    int k = (int)(guard_rng() % 9), by = (int)(guard_rng() % 3) - 1;
    float threshold = k == 8 ? 0.875f / 128 : ldexpf(0.875f * 0.75f, -k);
    return i % CODEC_BLOCK == 0 ? 1.0f : sign(i % 5 ? near(threshold, by) : ldexpf(0.875f, -k));
}

/* Half steps where the scale is 1, and their neighbours. */
static float ties_int8(size_t i)
{
    float half = (float)(guard_rng() % 127) + 0.5f;
    return i % CODEC_BLOCK == 0 ? 127.0f : sign(near(half, (int)(guard_rng() % 3) - 1));
}

static float ties_bf16(size_t i)
{
    uint32_t u = (uint32_t)guard_rng() & 0xbf7f0000u;
    return float_of(u + 0x8000u + (uint32_t)(guard_rng() % 3) - 1);
}

/* The largest of a block is about the smallest that is sent; the others may be anything below. */
static float tiny(size_t i)
{
    float top = near(CODEC_TINY, (int)(i / CODEC_BLOCK % 3) - 1);
    return sign(i % CODEC_BLOCK == 0 ? top : float_of((uint32_t)(guard_rng() % bits_of(top))));
}

static float huge(size_t i)
{
    return sign(i % 3 == 0 ? CODEC_ABS_MAX
                           : float_of((uint32_t)(guard_rng() % bits_of(CODEC_ABS_MAX))));
}

static float zeros(size_t i)
{
    return sign(i / CODEC_BLOCK % 2 && i % 9 == 0 ? 1.0f : 0.0f);
}

/* Any finite bits; blocks of like magnitude, or not. */
static float any(size_t i)
{
    uint32_t u = (uint32_t)guard_rng() & ABS_MASK;
    if (i / CODEC_BLOCK % 2)
        u = (u & 0x03ffffffu) | 0x3c000000u;
    return sign(float_of(u <= bits_of(CODEC_ABS_MAX) ? u : u & 0x00ffffffu));
}

static float (*const kinds[])(size_t i) = {normal, ties_e3m0, ties_int8, ties_bf16,
                                           tiny,   huge,      zeros,     any};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- one call ---- */

struct given {
    int codec;
    size_t n, shift;                /* elements by which nothing is aligned */
    float *theta, *base, *residual; /* residual NULL: none */
    bool feedback, in_place;        /* left is wanted; it is the residual */
};

struct gives {
    uint8_t payload[4 * LONGEST];
    uint16_t scales[LONGEST / CODEC_BLOCK + 1];
    float left[LONGEST];
    bool ok;
};

static struct given given_new(int codec, size_t n, size_t shift)
{
    struct given g = {.codec = codec, .n = n, .shift = shift};
    g.theta = (float *)guard_new((n + shift) * 4) + shift;
    g.base = (float *)guard_new((n + shift) * 4) + shift;
    return g;
}

/* theta, base and residual that make u(i). */
static void fill(struct given *g, float (*u)(size_t i), int way)
{
    if (way == 2)
        g->residual = (float *)guard_new((g->n + g->shift) * 4) + g->shift;
    for (size_t i = 0; i < g->n; i++) {
        float x = u(i);
        g->theta[i] = g->codec == CODEC_F32 ? x : way == 0 ? 0.0f : guard_rand();
        g->base[i] = way == 0 ? x : way == 1 ? g->theta[i] + x : g->theta[i];
        if (g->residual)
            g->residual[i] = x;
    }
    g->feedback = way > 0;
    g->in_place = way == 2 && guard_rng() & 1;
}

static void want(const struct given *g, struct gives *out)
{
    static float u[LONGEST], q[LONGEST];
    for (size_t i = 0; i < g->n; i++) {
        u[i] = g->codec == CODEC_F32 ? g->theta[i] : g->base[i] - g->theta[i];
        if (g->residual && g->codec != CODEC_F32)
            u[i] = u[i] + g->residual[i];
    }
    out->ok = spec.encode[g->codec](g->n, u, out->payload, out->scales, q);
    spec.sub(g->n, u, q, out->left);
}

static void compare(const char *what, const void *got, const void *wanted, size_t bytes,
                    const struct given *g)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const uint8_t *)got)[i] != ((const uint8_t *)wanted)[i])
            fail_msg("%s of codec %d, n %zu, shift %zu: byte %zu of %zu is %02x, not %02x", what,
                     g->codec, g->n, g->shift, i, bytes, ((const uint8_t *)got)[i],
                     ((const uint8_t *)wanted)[i]);
}

/* Encodes; *refused must become `expected` from `before`. */
static void encode(struct device *dev, const struct given *g, uint32_t before, uint32_t expected,
                   struct encode *ret)
{
    const bool f32 = g->codec == CODEC_F32, scaled = g->codec >= CODEC_INT8;
    const size_t skip = g->shift * element[g->codec];
    *ret = (struct encode){
        .codec = g->codec,
        .payload = (uint8_t *)guard_new(payload_bytes(g->codec, g->n) + skip) + skip,
        .scales = scaled ? guard_new((g->n + CODEC_BLOCK - 1) / CODEC_BLOCK * 2) : NULL,
        .refused = guard_of(uint32_t, before),
        .theta = g->theta,
        .base = f32 ? NULL : g->base,
        .residual = f32 ? NULL : g->residual,
        .n = (int64_t)g->n,
    };
    if (g->feedback && !f32)
        ret->left = g->in_place ? g->residual : (float *)guard_new(g->n * 4);
    assert_int_equal(dev->ops->encode(dev, ret, NULL), 0);
    assert_int_equal(*ret->refused, expected);
}

static void check(struct device *dev, const struct given *g)
{
    static struct gives wanted;
    struct encode e;
    want(g, &wanted);
    assert_true(wanted.ok);
    encode(dev, g, 7, 7, &e);
    compare("payload", e.payload, wanted.payload, payload_bytes(g->codec, g->n), g);
    if (e.scales)
        compare("scales", e.scales, wanted.scales, (g->n + CODEC_BLOCK - 1) / CODEC_BLOCK * 2, g);
    if (e.left)
        compare("left", e.left, wanted.left, g->n * 4, g);
}

/* ---- tests ---- */

static void test_bits(void **state)
{
    struct devices *d = *state;
    for (int c = 0; c < CODEC_COUNT; c++)
        for (int k = 0; k < KINDS; k++)
            for (int i = 0; i < SIZES; i++)
                for (int way = 0; way < 3; way++) {
                    if (way && (kinds[k] == huge || kinds[k] == any))
                        continue; /* theta + x is not x, nor in range */
                    struct given g = given_new(c, (size_t)sizes[i], guard_rng() % 3 == 0);
                    fill(&g, kinds[k], way);
                    check(d->fast, &g);
                    guard_check_all();
                }
}

/* Wherever it stands; the other blocks are as ever. */
static void test_refused(void **state)
{
    struct devices *d = *state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 0x1.000002p126f, -FLT_MAX};
    static struct gives wanted;
    const size_t n = 1000;
    for (int c = 0; c < CODEC_COUNT; c++)
        for (int i = 0; i < 20; i++) {
            struct given g = given_new(c, n, (size_t)(i & 1));
            struct encode e;
            size_t at = i < 10 ? n - 1 : guard_rng() % n;
            fill(&g, normal, 0);
            want(&g, &wanted);
            g.theta[at] = bad[i % 5];
            encode(d->fast, &g, 0, 1, &e);
            size_t first = at / CODEC_BLOCK ? 0 : CODEC_BLOCK; /* a block without it */
            size_t skip = payload_bytes(c, first);
            compare("payload", (uint8_t *)e.payload + skip, wanted.payload + skip,
                    payload_bytes(c, CODEC_BLOCK), &g);
            guard_check_all();
        }
}

static void test_arguments(void **state)
{
    struct devices *d = *state;
    struct given g = given_new(CODEC_E3M0, 300, 0);
    struct encode good, bad;
    fill(&g, normal, 0);
    encode(d->fast, &g, 0, 0, &good);
    good.n = 0;
    assert_int_equal(d->fast->ops->encode(d->fast, &good, NULL), 0);
    for (int i = 0; i < 6; i++) {
        bad = good;
        bad.n = i == 0 ? -1 : 300;
        bad.codec = i == 1 ? (enum codec)CODEC_COUNT : i == 2 ? CODEC_F32 : CODEC_E3M0;
        bad.scales = i == 3 ? NULL : good.scales;
        bad.refused = i == 4 ? NULL : good.refused;
        bad.base = i == 5 ? NULL : good.base;
        assert_int_equal(d->fast->ops->encode(d->fast, &bad, NULL), -EINVAL);
    }
    assert_null(d->ref->ops->encode); /* a CPU leaves it to common/outer */
    guard_check_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, devices_setup, devices_teardown);
}
