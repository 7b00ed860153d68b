#include "common/outer/coding.h"

#include "common/outer/arith.h"

int coding_encode(enum codec c, size_t n, const float *x, void *payload, uint16_t *scales, float *q)
{
    return arith_best()->encode[c](n, x, payload, scales, q) ? 0 : -ERR_FORMAT;
}

void coding_decode(enum codec c, size_t n, const void *payload, const uint16_t *scales, float *x)
{
    arith_best()->decode[c](n, payload, scales, x);
}

/* The bits of the smallest scale that an encoder makes (int8 of CODEC_TINY), with a margin. */
#define SCALE_MIN 0x0e80u      /* 2^-98 */
#define SCALE_MAX 0x7e80u      /* CODEC_ABS_MAX, 2^126 */
#define SCALE_MAX_INT8 0x7b02u /* CODEC_ABS_MAX / 127, rounded up */

static bool scales_ok(enum codec c, size_t n, const uint16_t *scales)
{
    const uint16_t most = c == CODEC_INT8 ? SCALE_MAX_INT8 : SCALE_MAX;
    for (size_t i = 0; i < n; i++)
        if (scales[i] && (scales[i] < SCALE_MIN || scales[i] > most))
            return false;
    return true;
}

static bool int8_ok(size_t n, const void *payload)
{
    const int8_t *q = payload;
    bool ok = true;
    for (size_t i = 0; i < n; i++)
        ok &= q[i] != INT8_MIN;
    return ok;
}

static bool bf16_ok(size_t n, const void *payload)
{
    const uint16_t *h = payload;
    bool ok = true;
    for (size_t i = 0; i < n; i++)
        ok &= (h[i] & 0x7fff) <= SCALE_MAX;
    return ok;
}

static bool f32_ok(size_t n, const void *payload)
{
    const float *x = payload;
    bool ok = true;
    for (size_t i = 0; i < n; i++)
        ok &= x[i] >= -CODEC_ABS_MAX && x[i] <= CODEC_ABS_MAX;
    return ok;
}

/* True if the payload is valid: an odd last element has padding in its byte. */
static bool e3m0_ok(size_t n, const void *payload)
{
    return n % 2 == 0 || ((const uint8_t *)payload)[n / 2] >> 4 == 0;
}

static const struct {
    enum st_dtype dtype;
    bool (*ok)(size_t n, const void *payload);
} rows[CODEC_COUNT] = {
    [CODEC_F32] = {ST_F32, f32_ok},
    [CODEC_BF16] = {ST_BF16, bf16_ok},
    [CODEC_INT8] = {ST_I8, int8_ok},
    [CODEC_E3M0] = {ST_U8, e3m0_ok},
};

enum st_dtype coding_dtype(enum codec c)
{
    return rows[c].dtype;
}

bool coding_check(enum codec c, size_t n, const void *payload, const uint16_t *scales)
{
    return (!codec_has_scale(c) || scales_ok(c, codec_scales(c, n), scales)) &&
           rows[c].ok(n, payload);
}
