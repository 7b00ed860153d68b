#include "common/data/shard_alike.h"

#include "common/data/moments.h"
#include "common/data/shard.h"

static bool same_bytes(const void *a, size_t a_len, const void *b, size_t b_len)
{
    return a_len == b_len && (a_len == 0 || memcmp(a, b, a_len) == 0);
}

/* But for the moments' values. */
static bool same_sample(const struct shard_sample *a, const struct shard_sample *b, uint32_t dim)
{
    struct moments x, y;
    return strcmp(a->key, b->key) == 0 && a->cls == b->cls &&
           same_bytes(a->captions, a->captions_len, b->captions, b->captions_len) &&
           same_bytes(a->feature, dim * sizeof(float), b->feature, dim * sizeof(float)) &&
           moments_parse(a->data, a->len, &x) && moments_parse(b->data, b->len, &y) &&
           x.key == y.key && x.values == y.values && x.sides == y.sides && x.height == y.height &&
           x.width == y.width;
}

static float value_of(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float v;
    memcpy(&v, &wide, sizeof(v));
    return v;
}

static bool near(const uint16_t *a, const uint16_t *b, size_t n, double apart)
{
    double square = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = value_of(a[i]), y = value_of(b[i]);
        square += (x - y) * (x - y);
        all += y * y;
    }
    return square <= apart * apart * all; /* false if one is not a number */
}

/* room: for the values of two sides. */
static bool same_moments(const struct shard_sample *a, const struct shard_sample *b, double apart,
                         uint16_t *room)
{
    struct moments x, y;
    bool same = moments_parse(a->data, a->len, &x) && moments_parse(b->data, b->len, &y);
    for (uint32_t side = 0; same && side < x.sides; side++) {
        const size_t half = x.values / 2, rest = x.values - half;
        uint16_t *u = room, *v = room + x.values;
        same = moments_decode(a->data, &x, side, u) && moments_decode(b->data, &y, side, v) &&
               near(u, v, half, apart) && near(u + half, v + half, rest, apart);
    }
    return same;
}

static bool look_at(const struct shard *a, const struct shard *b, size_t at, double apart)
{
    struct moments m;
    if (!moments_parse(a->samples[at].data, a->samples[at].len, &m) || m.sides == 0)
        return true; /* of a picture that cannot be read */
    uint16_t *room = mem_try_array(m.values, 2 * sizeof(*room));
    const bool same = room != NULL && same_moments(&a->samples[at], &b->samples[at], apart, room);
    mem_free(room);
    return same;
}

static bool same_shards(const struct shard *a, const struct shard *b, unsigned looks, double apart)
{
    bool same =
        a->kind == SHARD_LATENTS && b->kind == SHARD_LATENTS && a->n == b->n && a->dim == b->dim;
    for (size_t i = 0; same && i < a->n; i++)
        same = same_sample(&a->samples[i], &b->samples[i], a->dim);
    for (size_t i = 0; same && i < looks && i < a->n; i++) {
        uint64_t at = i;
        if (a->n > looks) {
            hash_random(&at, sizeof(at));
            at %= a->n;
        }
        same = look_at(a, b, (size_t)at, apart);
    }
    return same;
}

bool shard_alike(const char *a, const char *b, unsigned looks, double apart)
{
    struct shard x = {0}, y = {0};
    const bool same = shard_open(a, &x, NULL) == 0 && shard_open(b, &y, NULL) == 0 &&
                      same_shards(&x, &y, looks, apart);
    shard_close(&x);
    shard_close(&y);
    return same;
}
