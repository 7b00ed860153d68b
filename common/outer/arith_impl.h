/* The specification of arith.h; see there.  Included by one file per
 * instruction set, each of which defines its table from these functions.  No
 * operation is contracted (-ffp-contract=off) or reordered, so vectorising these
 * loops cannot change a bit. */
#ifndef COMMON_OUTER_ARITH_IMPL_H
#define COMMON_OUTER_ARITH_IMPL_H

#include "common/base/base.h"
#include "common/outer/arith.h"

#define ABS_MASK 0x7fffffffu
#define EXP_ONE 0x00800000u /* one step of the exponent */

/* Values of the 16 codes of e3m0, in units of the scale. */
static const double e3m0_value[16] = {
    0.0, 0x1p-6,  0x1p-5,  0x1p-4,  0x1p-3,  0x1p-2,  0x1p-1,  1.0,
    0.0, -0x1p-6, -0x1p-5, -0x1p-4, -0x1p-3, -0x1p-2, -0x1p-1, -1.0,
};

/* The bits of a float, and back. */
static inline uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float bf16_value(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

/* Rounds to nearest even; the argument is finite and far from overflow. */
static inline uint32_t bf16_bits(uint32_t u)
{
    return (u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u;
}

static inline size_t block_len(size_t n, size_t first)
{
    return n - first < CODEC_BLOCK ? n - first : CODEC_BLOCK;
}

#ifdef ARITH_OWN
/* Loops of whole vectors that an including file has; most return their number of elements. */
struct quotient;
static inline void encode_e3m0_own(size_t n, const float *x, uint32_t s, uint8_t *out, float *q);
static inline size_t decode_e3m0_own(size_t n, const uint8_t *in, float s, float *x);
static void accumulate_e3m0(size_t n, const struct arith_inputs *in, const float *theta,
                            double *acc);
static inline size_t nesterov_own(size_t n, const struct arith_nesterov *p,
                                  const struct quotient *q, const double *acc, const float *theta,
                                  float *mom, float *target, float *diff);
static inline size_t settle_own(size_t n, const float *theta, const float *diff, const float *q,
                                float *out, double *step, double *residual);
static inline size_t ema_own(size_t n, double d, const float *theta, float *ema);
static inline size_t square_own(size_t n, const double *x, double *sums);
#endif

/* Bits of max|x|: they order like the values, and NaN and infinity come last. */
static inline uint32_t abs_max_bits(size_t n, const float *x)
{
    uint32_t max = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = bits_of(x[i]) & ABS_MASK;
        max = u > max ? u : max;
    }
    return max;
}

/* ---- f32, bf16 ---- */

static bool encode_f32(size_t n, const float *x, void *payload, uint16_t *scales, float *q)
{
    (void)scales;
    memcpy(payload, x, n * sizeof *x);
    if (q != x)
        memcpy(q, x, n * sizeof *x);
    return abs_max_bits(n, x) <= bits_of(CODEC_ABS_MAX);
}

static void decode_f32(size_t n, const void *payload, const uint16_t *scales, float *x)
{
    (void)scales;
    memcpy(x, payload, n * sizeof *x);
}

static void accumulate_f32(size_t n, const struct arith_inputs *in, const float *theta, double *acc)
{
    memset(acc, 0, n * sizeof *acc);
    for (size_t c = 0; c < in->k; c++) {
        const float *value = in->payload[c];
        double w = in->weight[c];
        for (size_t i = 0; i < n; i++)
            acc[i] += w * ((double)theta[i] - (double)value[i]);
    }
}

static bool encode_bf16(size_t n, const float *x, void *payload, uint16_t *scales, float *q)
{
    uint16_t *out = payload;
    (void)scales;
    bool ok = abs_max_bits(n, x) <= bits_of(CODEC_ABS_MAX);
    for (size_t i = 0; i < n; i++) {
        uint32_t u = bf16_bits(bits_of(x[i]));
        out[i] = (uint16_t)(u >> 16);
        q[i] = float_of(u);
    }
    return ok;
}

static void decode_bf16(size_t n, const void *payload, const uint16_t *scales, float *x)
{
    const uint16_t *in = payload;
    (void)scales;
    for (size_t i = 0; i < n; i++)
        x[i] = bf16_value(in[i]);
}

static void accumulate_bf16(size_t n, const struct arith_inputs *in, const float *theta,
                            double *acc)
{
    (void)theta;
    memset(acc, 0, n * sizeof *acc);
    for (size_t c = 0; c < in->k; c++) {
        const uint16_t *value = in->payload[c];
        double w = in->weight[c];
        for (size_t i = 0; i < n; i++)
            acc[i] += w * (double)bf16_value(value[i]);
    }
}

/* ---- int8 ---- */

/* Rounds |t| < 2^22 to the nearest even integer: the sum has no bits left for a fraction. */
static inline float round_even(float t)
{
    const float big = 12582912.0f; /* 1.5 * 2^23 */
    return (t + big) - big;
}

static inline void encode_int8_block(size_t n, const float *x, float s, int8_t *out, float *q)
{
    for (size_t i = 0; i < n; i++) {
        float r = round_even(x[i] / s);
        out[i] = (int8_t)(int32_t)r;
        q[i] = s * r;
    }
}

static bool encode_int8(size_t n, const float *x, void *payload, uint16_t *scales, float *q)
{
    int8_t *out = payload;
    for (size_t b = 0; b < n; b += CODEC_BLOCK) {
        size_t m = block_len(n, b);
        uint32_t max = abs_max_bits(m, x + b);
        if (max > bits_of(CODEC_ABS_MAX))
            return false;
        uint32_t s = 0;
        if (max >= bits_of(CODEC_TINY))
            s = (bits_of(float_of(max) / 127.0f) + 0xffffu) & 0xffff0000u;
        scales[b / CODEC_BLOCK] = (uint16_t)(s >> 16);
        if (s) {
            encode_int8_block(m, x + b, float_of(s), out + b, q + b);
        } else {
            memset(out + b, 0, m);
            memset(q + b, 0, m * sizeof *q);
        }
    }
    return true;
}

static void decode_int8(size_t n, const void *payload, const uint16_t *scales, float *x)
{
    const int8_t *in = payload;
    for (size_t b = 0; b < n; b += CODEC_BLOCK) {
        float s = bf16_value(scales[b / CODEC_BLOCK]);
        for (size_t i = b, end = b + block_len(n, b); i < end; i++)
            x[i] = s * (float)in[i];
    }
}

static void accumulate_int8(size_t n, const struct arith_inputs *in, const float *theta,
                            double *acc)
{
    (void)theta;
    memset(acc, 0, n * sizeof *acc);
    for (size_t c = 0; c < in->k; c++) {
        const int8_t *value = in->payload[c];
        double w = in->weight[c];
        for (size_t b = 0; b < n; b += CODEC_BLOCK) {
            float s = bf16_value(in->scales[c][b / CODEC_BLOCK]);
            for (size_t i = b, end = b + block_len(n, b); i < end; i++)
                acc[i] += w * (double)(s * (float)value[i]);
        }
    }
}

/* ---- e3m0 ---- */

/* Codes of a block with scale s > 0.  The threshold between two values is 3/4 of
 * the upper one; thresholds are factors of 2 apart, which in the bits of a float
 * are multiples of EXP_ONE.  So a subtraction and a shift count the thresholds
 * passed, exactly.  The threshold below the lowest value is half of it. */
static inline void encode_e3m0_block(size_t n, const float *x, uint32_t s, uint8_t *out, float *q)
{
    uint8_t code[CODEC_BLOCK + 1];
    int32_t lowest = (int32_t)(bits_of(0.75f * float_of(s)) - 6 * EXP_ONE);
    int32_t half = (int32_t)(s - 7 * EXP_ONE);
    for (size_t i = 0; i < n; i++) {
        uint32_t u = bits_of(x[i]);
        int32_t a = (int32_t)(u & ABS_MASK);
        int32_t m = ((a - lowest) >> 23) + 1;
        int32_t least = a >= half;
        m = m < least ? least : m;
        m = m > 7 ? 7 : m;
        uint32_t keep = m ? 0xffffffffu : 0;
        uint32_t sign = u & 0x80000000u & keep;
        code[i] = (uint8_t)((uint32_t)m | sign >> 28);
        q[i] = float_of(((s - 7 * EXP_ONE + (uint32_t)m * EXP_ONE) & keep) | sign);
    }
    code[n] = 0; /* the padding of an odd n */
    for (size_t j = 0; j < (n + 1) / 2; j++)
        out[j] = (uint8_t)(code[2 * j] | code[2 * j + 1] << 4);
}

/* As for int8, with the codes of coding.h. */
static bool encode_e3m0(size_t n, const float *x, void *payload, uint16_t *scales, float *q)
{
    uint8_t *out = payload;
    for (size_t b = 0; b < n; b += CODEC_BLOCK) {
        size_t m = block_len(n, b);
        uint32_t max = abs_max_bits(m, x + b);
        if (max > bits_of(CODEC_ABS_MAX))
            return false;
        uint32_t s = 0;
        if (max >= bits_of(CODEC_TINY))
            s = bf16_bits(bits_of(0.875f * float_of(max)));
        scales[b / CODEC_BLOCK] = (uint16_t)(s >> 16);
        if (!s) {
            memset(out + b / 2, 0, (m + 1) / 2);
            memset(q + b, 0, m * sizeof *q);
            continue;
        }
#ifdef ARITH_OWN
        encode_e3m0_own(m, x + b, s, out + b / 2, q + b);
#else
        encode_e3m0_block(m, x + b, s, out + b / 2, q + b);
#endif
    }
    return true;
}

/* Code i of a payload. */
static inline uint8_t e3m0_code(const uint8_t *in, size_t i)
{
    return in[i / 2] >> (i % 2 * 4) & 15;
}

/* The values of the codes. */
static void decode_e3m0(size_t n, const void *payload, const uint16_t *scales, float *x)
{
    for (size_t b = 0; b < n; b += CODEC_BLOCK) {
        const float s = bf16_value(scales[b / CODEC_BLOCK]);
        const size_t end = b + block_len(n, b);
        size_t i = b;
#ifdef ARITH_OWN
        i += decode_e3m0_own(end - b, (const uint8_t *)payload + b / 2, s, x + b);
#endif
        for (; i < end; i++)
            x[i] = s * (float)e3m0_value[e3m0_code(payload, i)];
    }
}

/* acc[first..end) += the values of one contribution; inside a block.  The product
 * with a power of two is exact, so w s value has one rounding. */
static inline void accumulate_e3m0_span(const void *payload, double ws, size_t first, size_t end,
                                        double *acc)
{
    for (size_t i = first; i < end; i++)
        acc[i] += ws * e3m0_value[e3m0_code(payload, i)];
}

static inline double e3m0_weight(const struct arith_inputs *in, size_t c, size_t block)
{
    return in->weight[c] * (double)bf16_value(in->scales[c][block]);
}

static inline void accumulate_e3m0_block(const struct arith_inputs *in, size_t block, size_t first,
                                         size_t end, double *acc)
{
    for (size_t i = first; i < end; i++)
        acc[i] = 0.0;
    for (size_t c = 0; c < in->k; c++)
        accumulate_e3m0_span(in->payload[c], e3m0_weight(in, c, block), first, end, acc);
}

#ifndef ARITH_OWN
static void accumulate_e3m0(size_t n, const struct arith_inputs *in, const float *theta,
                            double *acc)
{
    (void)theta;
    for (size_t b = 0; b < n; b += CODEC_BLOCK)
        accumulate_e3m0_block(in, b / CODEC_BLOCK, b, b + block_len(n, b), acc);
}
#endif

/* ---- the step ---- */

/* acc / total: a multiplication by the reciprocal in two parts, with one rounding, gives the bits
 * of the division (Brisebarre, Muller and Raina 2004, IEEE TC 53(8)).  The value before rounding
 * has a relative error of at most 2^-105.  No quotient by a total of 50 bits is so near to the
 * middle of two doubles: its distance is a multiple of 2^-54 / 2^50 unless it is the middle, for
 * which acc would need a 54th bit.  acc is 0 or far from underflow. */
struct quotient {
    double total, high, low;
};

static inline bool quotient_init(struct quotient *q, double total)
{
    uint64_t u;
    memcpy(&u, &total, sizeof u);
    *q = (struct quotient){.total = total};
#ifdef __FMA__
    q->high = 1.0 / total;
    q->low = __builtin_fma(-q->high, total, 1.0) / total;
    return (u & 7) == 0 && total > 0x1p-100 && total < 0x1p100;
#else
    return false;
#endif
}

static inline double quotient(const struct quotient *q, double acc, bool quick)
{
    return quick ? __builtin_fma(acc, q->high, acc * q->low) : acc / q->total;
}

static inline void nesterov_by(size_t n, const struct arith_nesterov *p, const struct quotient *q,
                               bool quick, const double *acc, const float *theta, float *mom,
                               float *target, float *diff)
{
    double mu = p->mu, lr = p->lr, scale = p->scale;
    size_t i = 0;
#ifdef ARITH_OWN
    if (quick)
        i = nesterov_own(n, p, q, acc, theta, mom, target, diff);
#endif
    for (; i < n; i++) {
        double delta = quotient(q, acc[i], quick) * scale;
        float v = (float)(mu * (double)mom[i] + delta);
        float t = (float)((double)target[i] - lr * (delta + mu * (double)v));
        mom[i] = v;
        target[i] = t;
        diff[i] = t - theta[i];
    }
}

static void nesterov(size_t n, const struct arith_nesterov *p, const double *acc,
                     const float *theta, float *mom, float *target, float *diff)
{
    struct quotient q;
    if (quotient_init(&q, p->total))
        nesterov_by(n, p, &q, true, acc, theta, mom, target, diff);
    else
        nesterov_by(n, p, &q, false, acc, theta, mom, target, diff);
}

static void delayed(size_t n, const struct arith_nesterov *p, const double *acc, const float *theta,
                    float *mom, float *buf, float *target, float *diff)
{
    double mu = p->mu, lr = p->lr, total = p->total, scale = p->scale, parts = p->parts;
    for (size_t i = 0; i < n; i++) {
        double g = acc[i] / total * scale / parts;
        float b = (float)((double)buf[i] + g);
        double step = g;
        if (p->due) {
            mom[i] = (float)(mu * (double)mom[i] + (double)b);
            step = g + mu * (double)mom[i];
            b = 0.0f;
        }
        buf[i] = b;
        target[i] = (float)((double)target[i] - lr * step);
        diff[i] = target[i] - theta[i];
    }
}

static void add(size_t n, const float *theta, const float *q, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = theta[i] + q[i];
}

static void sub(size_t n, const float *a, const float *b, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] - b[i];
}

static void ema_update(size_t n, double d, const float *theta, float *ema)
{
    double rest = 1.0 - d;
    size_t i = 0;
#ifdef ARITH_OWN
    i = ema_own(n, d, theta, ema);
#endif
    for (; i < n; i++)
        ema[i] = (float)(d * (double)ema[i] + rest * (double)theta[i]);
}

/* Sum of the lanes, as a tree. */
static inline double sum_lanes(double *s)
{
    for (size_t half = ARITH_LANES / 2; half; half /= 2)
        for (size_t j = 0; j < half; j++)
            s[j] += s[j + half];
    return s[0];
}

static double square_f32(size_t n, const float *x)
{
    double s[ARITH_LANES] = {0};
    size_t i = 0;
    for (; i + ARITH_LANES <= n; i += ARITH_LANES)
        for (size_t j = 0; j < ARITH_LANES; j++)
            s[j] += (double)x[i + j] * (double)x[i + j];
    for (size_t j = 0; i + j < n; j++)
        s[j] += (double)x[i + j] * (double)x[i + j];
    return sum_lanes(s);
}

static double square_f64(size_t n, const double *x)
{
#ifdef ARITH_OWN
    double s[ARITH_LANES];
    size_t i = square_own(n, x, s);
#else
    double s[ARITH_LANES] = {0};
    size_t i = 0;
#endif
    for (; i + ARITH_LANES <= n; i += ARITH_LANES)
        for (size_t j = 0; j < ARITH_LANES; j++)
            s[j] += x[i + j] * x[i + j];
    for (size_t j = 0; i + j < n; j++)
        s[j] += x[i + j] * x[i + j];
    return sum_lanes(s);
}

static inline void settle_few(size_t n, const float *theta, const float *diff, const float *q,
                              float *out, double *step, double *residual)
{
    for (size_t j = 0; j < n; j++) {
        const float left = diff[j] - q[j];
        step[j] += (double)q[j] * (double)q[j];
        residual[j] += (double)left * (double)left;
        out[j] = theta[j] + q[j];
    }
}

static void settle(size_t n, const float *theta, const float *diff, const float *q, float *out,
                   double step[ARITH_LANES], double residual[ARITH_LANES])
{
    size_t i = 0;
#ifdef ARITH_OWN
    i = settle_own(n, theta, diff, q, out, step, residual);
    if (i == n)
        return;
#endif
    double a[ARITH_LANES], b[ARITH_LANES];
    memcpy(a, step, sizeof a);
    memcpy(b, residual, sizeof b);
    for (; i + ARITH_LANES <= n; i += ARITH_LANES)
        settle_few(ARITH_LANES, theta + i, diff + i, q + i, out + i, a, b);
    settle_few(n - i, theta + i, diff + i, q + i, out + i, a, b);
    memcpy(step, a, sizeof a);
    memcpy(residual, b, sizeof b);
}

/* The table of the including file. */
#define ARITH_TABLE(table_name)                                                                    \
    {                                                                                              \
        .name = table_name, .encode = {encode_f32, encode_bf16, encode_int8, encode_e3m0},         \
        .decode = {decode_f32, decode_bf16, decode_int8, decode_e3m0},                             \
        .accumulate = {accumulate_f32, accumulate_bf16, accumulate_int8, accumulate_e3m0},         \
        .nesterov = nesterov, .delayed = delayed, .settle = settle, .add = add, .sub = sub,        \
        .ema = ema_update, .square_f32 = square_f32, .square_f64 = square_f64,                     \
    }

#endif
