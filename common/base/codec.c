#include "common/base/codec.h"

const char *const codec_names[CODEC_COUNT + 1] = {"f32", "bf16", "int8", "e3m0", NULL};

static const struct {
    unsigned char bits; /* per element */
    bool scaled;
} codecs[CODEC_COUNT] = {
    [CODEC_F32] = {32, false},
    [CODEC_BF16] = {16, false},
    [CODEC_INT8] = {8, true},
    [CODEC_E3M0] = {4, true},
};

const char *codec_name(enum codec c)
{
    return (unsigned)c < CODEC_COUNT ? codec_names[c] : "?";
}

int codec_parse(const char *name, enum codec *ret)
{
    for (int i = 0; i < CODEC_COUNT; i++) {
        if (!strcmp(name, codec_names[i])) {
            *ret = (enum codec)i;
            return 0;
        }
    }
    return -EINVAL;
}

bool codec_has_scale(enum codec c)
{
    return codecs[c].scaled;
}

bool codec_is_packed(enum codec c)
{
    return codecs[c].bits < 8;
}

size_t codec_payload_bytes(enum codec c, size_t n)
{
    const size_t bits = codecs[c].bits;
    return bits < 8 ? n / 2 + n % 2 : n * (bits / 8);
}

size_t codec_scales(enum codec c, size_t n)
{
    return codec_has_scale(c) ? n / CODEC_BLOCK + (n % CODEC_BLOCK != 0) : 0;
}

size_t codec_bytes(enum codec c, size_t n)
{
    return codec_payload_bytes(c, n) + codec_scales(c, n) * sizeof(uint16_t);
}
