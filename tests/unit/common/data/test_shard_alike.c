/* Latents of the same pictures, as two devices and as a liar make them. */
#include "common/data/shard_alike.h"

#include "tests/unit/common/base/util.h"

#include "common/base/buf.h"
#include "common/base/rng.h"
#include "common/data/moments.h"
#include "common/data/shard.h"

enum { PICTURES = 5, VALUES = 64, HALF = VALUES / 2 };

/* How a shard differs from the true one. */
struct change {
    float noise;       /* of all values, relative */
    int picture;       /* whose other values are these: */
    float means, logs; /* noise in one half alone */
    uint32_t cls, sides, n;
    const char *name, *captions;
    float feature;
    uint64_t key;
};

static const struct change none = {.picture = -1};

static uint16_t bits_of(float x)
{
    uint32_t wide;
    memcpy(&wide, &x, sizeof(wide));
    return (uint16_t)(wide >> 16);
}

/* Means about 1, and logarithms of variances about -20, as a VAE makes them. */
static void fill(uint16_t out[2 * VALUES], int picture, const struct change *c)
{
    for (uint64_t i = 0; i < 2 * VALUES; i++) {
        const bool mean = i % VALUES < HALF;
        const float x = rng_at_normal(7, (uint64_t)picture, i), noise = rng_at_normal(8, 1, i);
        const float part = picture != c->picture ? 0 : mean ? c->means : c->logs;
        const float v = mean ? x : -20 + x;
        out[i] = bits_of(v + (c->noise + part) * noise * (mean ? 1 : 20));
    }
}

static void save(const char *path, const struct change *c)
{
    const uint32_t n = c->n ? c->n : PICTURES;
    struct shard_writer *w = shard_writer_new(path);
    struct shard_info info;
    struct buf b;
    buf_init(&b, 1 << 20);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t values[2 * VALUES];
        float feature[2] = {1, 2 + c->feature};
        const bool it = c->picture == (int)i;
        struct shard_sample s = {.ext = "lat", .cls = 1 + (it ? c->cls : 0)};
        const struct moments m = {.key = 100 + i + (it ? c->key : 0),
                                  .values = VALUES,
                                  .height = 4,
                                  .width = 4,
                                  .sides = i == 4 ? 0 : 2 - (it ? c->sides : 0)};
        fill(values, (int)i, c);
        buf_clear(&b);
        OK(moments_encode(&m, values, &b));
        (void)snprintf(s.key, sizeof(s.key), "00000%u-%s%u", i, it && c->name ? c->name : "cat", i);
        s.data = b.data;
        s.len = b.len;
        s.captions = it && c->captions ? c->captions : "a cat";
        s.captions_len = strlen(s.captions);
        s.feature = (const uint8_t *)feature;
        OK(shard_writer_add(w, &s, 2, err));
    }
    OK(shard_writer_finish(w, &info, err));
    shard_writer_free(w);
    buf_release(&b);
}

static bool alike(const struct change *c, unsigned looks)
{
    char *dir = scratch_new(), *a = in(dir, "a.tar"), *b = in(dir, "b.tar");
    save(a, &none);
    save(b, c);
    const bool is = shard_alike(a, b, looks, 0.05);
    mem_free(a);
    mem_free(b);
    scratch_free(dir);
    return is;
}

static void two_devices(void **state)
{
    (void)state;
    assert_true(alike(&none, 64));
    assert_true(alike(&(struct change){.picture = -1, .noise = 0.02F}, 64));
    assert_false(alike(&(struct change){.picture = -1, .noise = 0.2F}, 64));
    assert_false(alike(&(struct change){.picture = -1, .noise = NAN}, 64));
}

/* Of many pictures some are drawn, any of them. */
static void drawn(void **state)
{
    (void)state;
    bool seen = false;
    for (unsigned i = 0; i < 200 && !seen; i++)
        seen = !alike(&(struct change){.picture = 3, .means = 0.2F}, 1);
    assert_true(seen);
}

/* One picture is not what it should be: its means too, which are small beside the rest. */
static void one_of_them(void **state)
{
    (void)state;
    assert_false(alike(&(struct change){.picture = 3, .means = 0.2F}, 64));
    assert_false(alike(&(struct change){.picture = 3, .logs = 0.2F}, 64));
    assert_false(alike(&(struct change){.picture = 3, .cls = 1}, 64));
    assert_false(alike(&(struct change){.picture = 3, .sides = 1}, 64));
    assert_false(alike(&(struct change){.picture = 3, .name = "dog"}, 64));
    assert_false(alike(&(struct change){.picture = 3, .captions = "a dog"}, 64));
    assert_false(alike(&(struct change){.picture = 3, .key = 1}, 64));
    assert_false(alike(&(struct change){.picture = -1, .feature = 1}, 64));
    assert_false(alike(&(struct change){.picture = -1, .n = PICTURES - 1}, 64));
}

static void no_shard(void **state)
{
    (void)state;
    char *dir = scratch_new(), *a = in(dir, "a.tar"), *b = in(dir, "b.tar");
    save(a, &none);
    assert_false(shard_alike(a, b, 64, 0.05));
    put(dir, "b.tar", "no shard", 8);
    assert_false(shard_alike(a, b, 64, 0.05));
    assert_false(shard_alike(b, b, 64, 0.05));
    mem_free(a);
    mem_free(b);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_devices),
        cmocka_unit_test(one_of_them),
        cmocka_unit_test(drawn),
        cmocka_unit_test(no_shard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
