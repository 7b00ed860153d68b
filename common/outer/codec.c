#include "common/outer/codec.h"

#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "common/outer/kernels.h"

static const char *const names[CODEC_COUNT] = {"f32", "bf16", "int8", "e3m0"};

const char *codec_name(enum codec c)
{
    return (unsigned)c < CODEC_COUNT ? names[c] : "?";
}

int codec_parse(const char *name, enum codec *ret)
{
    for (int i = 0; i < CODEC_COUNT; i++) {
        if (!strcmp(name, names[i])) {
            *ret = (enum codec)i;
            return 0;
        }
    }
    return -EINVAL;
}

enum st_dtype codec_dtype(enum codec c)
{
    static const enum st_dtype dtypes[CODEC_COUNT] = {ST_F32, ST_BF16, ST_I8, ST_U8};
    return dtypes[c];
}

bool codec_has_scale(enum codec c)
{
    return c == CODEC_INT8 || c == CODEC_E3M0;
}

size_t codec_payload_bytes(enum codec c, size_t n)
{
    switch (c) {
    case CODEC_F32:
        return n * 4;
    case CODEC_BF16:
        return n * 2;
    case CODEC_INT8:
        return n;
    case CODEC_E3M0:
        break;
    }
    return n / 2 + n % 2;
}

size_t codec_scales(enum codec c, size_t n)
{
    return codec_has_scale(c) ? n / CODEC_BLOCK + (n % CODEC_BLOCK != 0) : 0;
}

int codec_encode(enum codec c, size_t n, const float *x, void *payload, uint16_t *scales, float *q)
{
    return kernels_best()->encode[c](n, x, payload, scales, q) ? 0 : -ERR_FORMAT;
}

void codec_decode(enum codec c, size_t n, const void *payload, const uint16_t *scales, float *x)
{
    kernels_best()->decode[c](n, payload, scales, x);
}

/* Bits of the smallest scale an encoder makes (int8 of CODEC_TINY), with room. */
#define SCALE_MIN 0x0e80u /* 2^-98 */
#define SCALE_MAX 0x7e80u /* 2^126 */

static bool scales_ok(size_t n, const uint16_t *scales)
{
    for (size_t i = 0; i < n; i++)
        if (scales[i] && (scales[i] < SCALE_MIN || scales[i] > SCALE_MAX))
            return false;
    return true;
}

static bool int8_ok(size_t n, const int8_t *q)
{
    bool ok = true;
    for (size_t i = 0; i < n; i++)
        ok &= q[i] != INT8_MIN;
    return ok;
}

static bool bf16_ok(size_t n, const uint16_t *h)
{
    bool ok = true;
    for (size_t i = 0; i < n; i++)
        ok &= (h[i] & 0x7fff) <= SCALE_MAX;
    return ok;
}

static bool f32_ok(size_t n, const float *x)
{
    bool ok = true;
    for (size_t i = 0; i < n; i++)
        ok &= x[i] >= -CODEC_ABS_MAX && x[i] <= CODEC_ABS_MAX;
    return ok;
}

bool codec_check(enum codec c, size_t n, const void *payload, const uint16_t *scales)
{
    if (codec_has_scale(c) && !scales_ok(codec_scales(c, n), scales))
        return false;
    switch (c) {
    case CODEC_F32:
        return f32_ok(n, payload);
    case CODEC_BF16:
        return bf16_ok(n, payload);
    case CODEC_INT8:
        return int8_ok(n, payload);
    case CODEC_E3M0:
        break;
    }
    return n % 2 == 0 || ((const uint8_t *)payload)[n / 2] >> 4 == 0; /* the padding */
}
