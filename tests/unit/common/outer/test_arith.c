/* Every variant of the kernels against the specification, bit for bit: odd
 * sizes, every codec, guard zones around every array. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/outer/arith.h"

#define N_MAX 2500
#define GUARD 64
#define INPUTS 19

static const size_t sizes[] = {1,   2,   3,   7,   8,   15,  16,  17,   63,   64,   65,   127, 128,
                               255, 256, 257, 300, 511, 512, 513, 1023, 1024, 2304, 2499, 2500};
#define N_SIZES (sizeof sizes / sizeof sizes[0])

/* Storage with a guard zone on both sides, offset by one element from any
 * alignment a vector would like. */
struct zone {
    uint8_t *raw;
    size_t bytes;
};

static void *zone_new(struct zone *z, size_t bytes, size_t element)
{
    z->bytes = bytes;
    z->raw = malloc(bytes + 2 * GUARD + element);
    assert_non_null(z->raw);
    memset(z->raw, 0xa5, bytes + 2 * GUARD + element);
    return z->raw + GUARD + element;
}

static void zone_free(struct zone *z, size_t element)
{
    for (size_t i = 0; i < GUARD + element; i++)
        assert_int_equal(z->raw[i], 0xa5);
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(z->raw[GUARD + element + z->bytes + i], 0xa5);
    free(z->raw);
}

static float gaussian(struct rng *r)
{
    return rng_at_normal(r->seed, r->stream, r->next++);
}

/* Gaussian, with zeros, tiny blocks, exact thresholds and outliers mixed in. */
static void fill(struct rng *r, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t kind = (uint32_t)rng_u64(r) % 16;
        x[i] = gaussian(r) * 1e-3f;
        if (kind == 0)
            x[i] = 0.0f;
        if (kind == 1)
            x[i] = ldexpf(1.0f, -(int)(rng_u64(r) % 20));
        if (kind == 2)
            x[i] = -ldexpf(1.5f, -(int)(rng_u64(r) % 20));
        if (i / 256 % 4 == 3)
            x[i] *= 0x1p-120f;
    }
}

struct encoded {
    struct zone payload_zone, scale_zone, q_zone;
    void *payload;
    uint16_t *scales;
    float *q;
    bool ok;
};

static void encode(const struct arith *k, enum codec c, size_t n, const float *x, struct encoded *e)
{
    e->payload = zone_new(&e->payload_zone, codec_payload_bytes(c, n), 4);
    e->scales = zone_new(&e->scale_zone, codec_scales(c, n) * 2, 2);
    e->q = zone_new(&e->q_zone, n * 4, 4);
    e->ok = k->encode[c](n, x, e->payload, e->scales, e->q);
}

static void encoded_free(struct encoded *e)
{
    zone_free(&e->payload_zone, 4);
    zone_free(&e->scale_zone, 2);
    zone_free(&e->q_zone, 4);
}

static void test_encode(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 1, 2);
    for (size_t v = 1; arith_variant(v); v++) {
        for (size_t i = 0; i < N_SIZES * CODEC_COUNT; i++) {
            size_t n = sizes[i / CODEC_COUNT];
            enum codec c = (enum codec)(i % CODEC_COUNT);
            float x[N_MAX];
            struct encoded a, b;
            fill(&r, n, x);
            encode(arith_variant(0), c, n, x, &a);
            encode(arith_variant(v), c, n, x, &b);
            assert_true(a.ok && b.ok);
            assert_memory_equal(a.payload, b.payload, codec_payload_bytes(c, n));
            assert_memory_equal(a.scales, b.scales, codec_scales(c, n) * 2);
            assert_memory_equal(a.q, b.q, n * 4);
            encoded_free(&a);
            encoded_free(&b);
        }
    }
}

static void test_encode_refuses(void **state)
{
    (void)state;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, 0x1p127f, -3e38f};
    for (size_t v = 0; arith_variant(v); v++) {
        for (size_t i = 0; i < 6 * CODEC_COUNT; i++) {
            float x[300] = {0};
            uint8_t payload[1200];
            uint16_t scales[2];
            float q[300];
            x[i * 7] = bad[i % 6];
            assert_false(arith_variant(v)->encode[i / 6](300, x, payload, scales, q));
        }
    }
}

/* What a decoder gives is what the encoder said it would. */
static void test_decode(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 3, 4);
    for (size_t v = 0; arith_variant(v); v++) {
        for (size_t i = 0; i < N_SIZES * CODEC_COUNT; i++) {
            size_t n = sizes[i / CODEC_COUNT];
            enum codec c = (enum codec)(i % CODEC_COUNT);
            float x[N_MAX];
            struct encoded e;
            struct zone z;
            fill(&r, n, x);
            encode(arith_variant(0), c, n, x, &e);
            float *got = zone_new(&z, n * 4, 4);
            arith_variant(v)->decode[c](n, e.payload, e.scales, got);
            for (size_t j = 0; j < n; j++) /* -0 and 0 are one value */
                assert_true(got[j] == e.q[j]);
            zone_free(&z, 4);
            encoded_free(&e);
        }
    }
}

/* Whatever the bytes are, those that no encoder makes among them. */
static void test_decode_any(void **state)
{
    (void)state;
    struct rng r;
    uint8_t payload[N_MAX];
    uint16_t scales[N_MAX / CODEC_BLOCK + 1];
    float expect[N_MAX];
    rng_init(&r, 5, 6);
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (uint8_t)rng_u64(&r);
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        scales[i] = i % 2 ? 0 : 0x3e01;
    for (size_t v = 1; arith_variant(v); v++) {
        for (size_t i = 0; i < N_SIZES; i++) {
            const size_t n = sizes[i];
            struct zone z;
            float *got = zone_new(&z, n * 4, 4);
            arith_variant(0)->decode[CODEC_E3M0](n, payload, scales, expect);
            arith_variant(v)->decode[CODEC_E3M0](n, payload, scales, got);
            assert_memory_equal(got, expect, n * 4);
            zone_free(&z, 4);
        }
    }
}

/* Sums of weights that are counts may have few bits; divided by 3 they have all.  A heavy input has
 * more bits than others. */
static void accumulate_one(enum codec c, size_t n, double divisor, double heavy, struct rng *r)
{
    struct encoded e[INPUTS];
    const void *payload[INPUTS];
    const uint16_t *scales[INPUTS];
    double weight[INPUTS], expect[N_MAX];
    float x[N_MAX], theta[N_MAX];
    struct arith_inputs in = {.payload = payload, .scales = scales, .weight = weight};
    fill(r, n, theta);
    for (in.k = 0; in.k < INPUTS; in.k++) {
        fill(r, n, x);
        encode(arith_variant(0), c, n, x, &e[in.k]);
        payload[in.k] = e[in.k].payload;
        scales[in.k] = e[in.k].scales;
        weight[in.k] = (double)(1 + rng_u64(r) % 5000) / divisor * (in.k == 1 ? heavy : 1);
    }
    for (in.k = 1; in.k <= INPUTS; in.k++) {
        arith_variant(0)->accumulate[c](n, &in, theta, expect);
        for (size_t v = 1; arith_variant(v); v++) {
            struct zone z;
            double *acc = zone_new(&z, n * 8, 8);
            arith_variant(v)->accumulate[c](n, &in, theta, acc);
            for (size_t j = 0; j < n; j++)
                assert_true(acc[j] == expect[j]);
            zone_free(&z, 8);
        }
    }
    for (size_t i = 0; i < INPUTS; i++)
        encoded_free(&e[i]);
}

static void test_accumulate(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 5, 6);
    for (size_t i = 0; i < N_SIZES * CODEC_COUNT; i++)
        for (int divisor = 1; divisor <= 3; divisor += 2)
            for (int heavy = 1; heavy <= 4096; heavy *= 16)
                accumulate_one((enum codec)(i % CODEC_COUNT), sizes[i / CODEC_COUNT], divisor,
                               heavy, &r);
}

/* ---- sums at the edges of what is exact in whole units ---- */

#define KINDS 9
#define MOST 259 /* elements: a whole block, and the odd end of the next */

/* A weight of the kind: counts, all of 24 bits, far apart, at both ends of a double, and so on. */
static double any_weight(struct rng *r, unsigned kind)
{
    const double n = (double)(1 + rng_u64(r) % 5000);
    const double all_bits = (double)((1u << 23) | (rng_u64(r) & 0x7fffff) | 1);
    switch (kind) {
    case 0:
        return n;
    case 1:
        return all_bits;
    case 2:
        return 0x1p24 - (double)(rng_u64(r) % 3); /* the most in units, and one too much */
    case 3:
        return ldexp(n, (int)(rng_u64(r) % 41) - 20);
    case 4:
        return ldexp(all_bits, rng_u64(r) % 2 ? 850 : -950);
    case 5:
        return rng_u64(r) % 4 ? 0 : n;
    case 6:
        return n / 3;
    case 7:
        return (double)((1u << 6 * (1 + rng_u64(r) % 4)) - 1); /* digits of 63 */
    default:
        return ldexp(1, (int)(rng_u64(r) % 27));
    }
}

/* Half of the scales are 1; others have all eight bits, are 0, -0, negative or denormal. */
static uint16_t any_scale(struct rng *r)
{
    static const uint16_t rare[] = {0, 0x8000, 0xbf80, 1, 0x007f, 0x3fff, 0x7f7f, 0x0080};
    const uint64_t x = rng_u64(r);
    if (x % 16 == 0)
        return rare[x / 16 % 8];
    return (uint16_t)(x % 2 ? 0x3f80 : 0x3e00 | (x / 16 & 0x1ff));
}

static void same_sums(struct rng *r, size_t k, unsigned kind, bool plain_scales)
{
    static uint8_t bytes[ARITH_INPUTS_MAX][MOST / 2 + 1];
    uint16_t scales[ARITH_INPUTS_MAX][2];
    const void *payload[ARITH_INPUTS_MAX];
    const uint16_t *scale[ARITH_INPUTS_MAX];
    double weight[ARITH_INPUTS_MAX], want[MOST];
    const struct arith_inputs in = {k, payload, scale, weight};
    for (size_t c = 0; c < k; c++) {
        payload[c] = bytes[c];
        scale[c] = scales[c];
        weight[c] = any_weight(r, kind);
        for (size_t b = 0; b < 2; b++)
            scales[c][b] = plain_scales ? 0x3f80 : any_scale(r);
        /* Codes of no order, or the largest values of one sign, whose sum has most bits. */
        const uint8_t whole = (const uint8_t[]){0x77, 0xff, 0x88, 0x11}[rng_u64(r) % 4];
        const bool one = rng_u64(r) % 2;
        for (size_t i = 0; i < sizeof bytes[c]; i++)
            bytes[c][i] = one ? whole : (uint8_t)rng_u64(r);
    }
    arith_variant(0)->accumulate[CODEC_E3M0](MOST, &in, NULL, want);
    for (size_t v = 1; arith_variant(v); v++) {
        struct zone z;
        double *acc = zone_new(&z, sizeof want, 8);
        arith_variant(v)->accumulate[CODEC_E3M0](MOST, &in, NULL, acc);
        if (memcmp(acc, want, sizeof want) != 0)
            fail_msg("%s: %zu inputs of kind %u", arith_variant(v)->name, k, kind);
        zone_free(&z, 8);
    }
}

static void test_accumulate_any(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 10, 11);
    for (unsigned i = 0; i < 3000; i++) {
        const size_t k = i % 50 == 0 ? ARITH_INPUTS_MAX - rng_u64(&r) % 9 : 1 + rng_u64(&r) % 20;
        same_sums(&r, k, i % KINDS, i / KINDS % 2);
    }
}

struct step {
    struct zone zone[5];
    float *mom, *target, *diff, *ema, *buf;
    double step, residual;
};

static void step_new(struct step *s, size_t n, const float *x)
{
    float **a[5] = {&s->mom, &s->target, &s->diff, &s->ema, &s->buf};
    for (size_t i = 0; i < 5; i++) {
        *a[i] = zone_new(&s->zone[i], n * 4, 4);
        memcpy(*a[i], x + i * 13, n * 4);
    }
}

static void step_run(const struct arith *k, struct step *s, size_t n, const double *acc,
                     const float *theta)
{
    struct arith_nesterov p = {.lr = 0.7, .mu = 0.9, .total = 12345, .scale = 1, .parts = 3};
    k->nesterov(n, &p, acc, theta, s->mom, s->target, s->diff);
    p.scale = 1.5;
    k->nesterov(n, &p, acc, theta, s->mom, s->target, s->diff);
    for (int i = 0; i < 2; i++) {
        p.due = i;
        k->delayed(n, &p, acc, theta, s->mom, s->buf, s->target, s->diff);
    }
    double step[ARITH_LANES] = {0}, residual[ARITH_LANES] = {0};
    k->settle(n, theta, s->diff, s->mom, s->target, step, residual);
    s->step += arith_sum(step);
    s->residual += arith_sum(residual);
    k->add(n, theta, s->diff, s->diff);
    k->sub(n, s->diff, s->mom, s->diff);
    k->ema(n, 0.9, theta, s->ema);
}

static void test_step(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 7, 8);
    for (size_t i = 0; i < N_SIZES; i++) {
        size_t n = sizes[i];
        float x[N_MAX + 64], theta[N_MAX];
        double acc[N_MAX];
        fill(&r, n + 64, x);
        fill(&r, n, theta);
        for (size_t j = 0; j < n; j++)
            acc[j] = (double)gaussian(&r) * 10;
        for (size_t v = 1; arith_variant(v); v++) {
            const struct arith *k = arith_variant(v);
            struct step a = {.step = 1}, b = {.step = 1};
            step_new(&a, n, x);
            step_new(&b, n, x);
            step_run(arith_variant(0), &a, n, acc, theta);
            step_run(k, &b, n, acc, theta);
            assert_memory_equal(a.mom, b.mom, n * 4);
            assert_memory_equal(a.target, b.target, n * 4);
            assert_memory_equal(a.diff, b.diff, n * 4);
            assert_memory_equal(a.ema, b.ema, n * 4);
            assert_memory_equal(a.buf, b.buf, n * 4);
            assert_true(a.step == b.step && a.residual == b.residual);
            assert_true(arith_variant(0)->square_f32(n, x) == k->square_f32(n, x));
            assert_true(arith_variant(0)->square_f64(n, acc) == k->square_f64(n, acc));
            for (size_t j = 0; j < 5; j++) {
                zone_free(&a.zone[j], 4);
                zone_free(&b.zone[j], 4);
            }
        }
    }
}

/* Quotients that lie beside the middle of two floats, by less than the last bit of a double: only
 * the division's own rounding says to which of the two the momentum goes. */
static void test_division(void **state)
{
    static const double totals[] = {1, 3, 7, 80, 25628, 268435399, 1.0 / 3, 0.1, 0x1p-200, 0x1p200};
    enum { N = 1024 };
    (void)state;
    struct rng r;
    rng_init(&r, 9, 9);
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++) {
        struct arith_nesterov p = {.lr = 0, .mu = 0, .total = totals[i], .scale = 1};
        double acc[N];
        float want[N], mom[N], target[N] = {0}, theta[N] = {0}, diff[N];
        for (size_t j = 0; j < N; j++) {
            const double middle = (double)((rng_u64(&r) & 0xffffff) | 0x1000001);
            acc[j] = nextafter(middle * totals[i], j % 3 ? j % 3 == 1 ? INFINITY : 0 : middle);
        }
        memset(want, 0, sizeof want);
        arith_variant(0)->nesterov(N, &p, acc, theta, want, target, diff);
        for (size_t v = 1; arith_variant(v); v++) {
            memset(mom, 0, sizeof mom);
            arith_variant(v)->nesterov(N, &p, acc, theta, mom, target, diff);
            assert_memory_equal(mom, want, sizeof want);
        }
    }
}

int main(void)
{
    for (size_t i = 0; arith_variant(i); i++)
        printf("variant %zu: %s\n", i, arith_variant(i)->name);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),     cmocka_unit_test(test_encode_refuses),
        cmocka_unit_test(test_decode),     cmocka_unit_test(test_decode_any),
        cmocka_unit_test(test_accumulate), cmocka_unit_test(test_step),
        cmocka_unit_test(test_division),   cmocka_unit_test(test_accumulate_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
