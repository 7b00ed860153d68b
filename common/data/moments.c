#include "common/data/moments.h"

#include <zstd.h>

#define HEAD 20
#define LEVEL 1 /* what is left is noise: higher ones find nothing more */

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static uint32_t get_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* A side's frame at the end of out. */
static int put_side(const uint16_t *values, uint32_t n, struct buf *out, uint32_t *ret_bytes)
{
    const size_t most = ZSTD_compressBound(2 * (size_t)n);
    uint8_t *planes = mem_try(2 * (size_t)n), *p;
    int rc = planes ? buf_reserve(out, most, &p) : -ENOMEM;
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        planes[i] = (uint8_t)(values[i] >> 8);
        planes[n + i] = (uint8_t)values[i];
    }
    size_t size = rc == 0 ? ZSTD_compress(p, most, planes, 2 * (size_t)n, LEVEL) : 0;
    if (rc == 0 && ZSTD_isError(size))
        rc = -ENOMEM; /* the bound holds: nothing else is left */
    if (rc == 0) {
        buf_commit(out, size);
        *ret_bytes = (uint32_t)size;
    }
    mem_free(planes);
    return rc;
}

int moments_encode(const struct moments *m, const uint16_t *values, struct buf *out)
{
    const size_t head = HEAD + 4 * (size_t)m->sides, at = out->len;
    uint8_t *p;
    if (m->sides > 2 || m->values > MOMENTS_VALUES_MAX)
        return -EINVAL;
    int rc = buf_reserve(out, head, &p);
    if (rc < 0)
        return rc;
    put_u32(p, (uint32_t)m->key);
    put_u32(p + 4, (uint32_t)(m->key >> 32));
    put_u32(p + 8, m->values);
    put_u32(p + 12, m->height | (uint32_t)m->width << 16);
    put_u32(p + 16, m->sides);
    buf_commit(out, head);
    for (uint32_t s = 0; s < m->sides && rc == 0; s++) {
        uint32_t bytes = 0;
        rc = put_side(values + (size_t)s * m->values, m->values, out, &bytes);
        put_u32(out->data + at + HEAD + 4 * (size_t)s, bytes);
    }
    return rc;
}

bool moments_parse(const uint8_t *data, size_t len, struct moments *ret)
{
    struct moments m = {0};
    if (len < HEAD)
        return false;
    m.key = get_u32(data) | (uint64_t)get_u32(data + 4) << 32;
    m.values = get_u32(data + 8);
    m.height = (uint16_t)get_u32(data + 12);
    m.width = (uint16_t)(get_u32(data + 12) >> 16);
    m.sides = get_u32(data + 16);
    const uint32_t places = (uint32_t)m.height * m.width;
    if (m.sides > 2 || m.values == 0 || m.values > MOMENTS_VALUES_MAX || places == 0 ||
        m.values % places != 0 || len < HEAD + 4 * (size_t)m.sides)
        return false;
    size_t all = HEAD + 4 * (size_t)m.sides;
    for (uint32_t s = 0; s < m.sides; s++)
        all += m.bytes[s] = get_u32(data + HEAD + 4 * (size_t)s);
    if (m.sides == 0) {
        m.bytes[0] = (uint32_t)(len - HEAD);
        all += m.bytes[0];
    }
    if (all != len)
        return false;
    *ret = m;
    return true;
}

bool moments_decode(const uint8_t *data, const struct moments *m, uint32_t side, uint16_t *out)
{
    const size_t n = m->values, at = HEAD + 4 * (size_t)m->sides + (side ? m->bytes[0] : 0);
    uint8_t *planes = side < m->sides ? mem_try(2 * n) : NULL;
    const bool whole = planes && ZSTD_decompress(planes, 2 * n, data + at, m->bytes[side]) == 2 * n;
    for (size_t i = 0; i < n && whole; i++)
        out[i] = (uint16_t)(planes[i] << 8 | planes[n + i]);
    mem_free(planes);
    return whole;
}

void moments_why(const uint8_t *data, const struct moments *m, char *out, size_t size)
{
    const char *text = (const char *)data + HEAD;
    const size_t n = m->bytes[0] < size ? m->bytes[0] : size - 1;
    const bool good = m->sides == 0 && str_is_utf8(text, n) && !memchr(text, '\0', n);
    if (good)
        memcpy(out, text, n);
    out[good ? n : 0] = '\0';
}
