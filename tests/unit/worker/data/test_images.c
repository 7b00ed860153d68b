/* The image pipeline: the same batches whatever the threads, bad images, cache. */
#include "tests/unit/worker/shards.h"

#include "common/base/hash.h"
#include "common/data/shard.h"
#include "worker/data/images.h"

static char *dir;
static struct test_shard shards[3];
static struct data_range ranges[4];

static int setup(void **state)
{
    (void)state;
    OK(image_init(err));
    dir = scratch_new();
    for (int i = 0; i < 3; i++)
        shards[i] = shard_make(dir, i, 20, 5, i == 2 ? 7 : -1);
    for (int i = 0; i < 3; i++) {
        ranges[i] = (struct data_range){.path = shards[i].path, .start = 0, .count = 20};
        memcpy(ranges[i].sha256, shards[i].sha256, 32);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        free(shards[i].path);
    scratch_free(dir);
    return 0;
}

static struct images_options defaults(void)
{
    return (struct images_options){.image_size = 8,
                                   .batch = 7,
                                   .threads = 1,
                                   .order.shuffle = true,
                                   .flip = true,
                                   .classes = 5,
                                   .order.seed = 99};
}

/* Hash of everything in the next n batches (all for n < 0); the ids too. */
static void digest(struct data *d, int n, uint8_t out[32], uint64_t *ids, size_t *n_ids)
{
    struct hash h;
    hash_init(&h);
    size_t seen = 0;
    for (int i = 0; i != n; i++) {
        struct batch b;
        OK(data_next(d, &b, err));
        assert_int_equal(b.samples, b.count);
        if (b.count == 0)
            break;
        hash_update(&h, b.images, (size_t)b.count * 8 * 8 * 3);
        hash_update(&h, b.labels, b.count * sizeof(*b.labels));
        hash_update(&h, b.ids, b.count * sizeof(*b.ids));
        for (unsigned k = 0; k < b.count && ids; k++)
            ids[seen + k] = b.ids[k];
        seen += b.count;
    }
    hash_final(&h, out);
    if (n_ids)
        *n_ids = seen;
}

static void run(const struct images_options *o, size_t n_ranges, int batches, uint8_t out[32])
{
    struct data *d;
    OK(images_open(o, ranges, n_ranges, &d, err));
    digest(d, batches, out, NULL, NULL);
    data_free(d);
}

static void threads_and_cache_change_nothing(void **state)
{
    (void)state;
    struct images_options o = defaults();
    o.order.repeat = true;
    uint8_t one[32], other[32];
    run(&o, 3, 20, one); /* several passes */
    struct image_cache *cache;
    OK(image_cache_new(1 << 20, &cache, err));
    for (unsigned threads = 1; threads <= 9; threads += 4) {
        o.threads = threads;
        o.cache = NULL;
        run(&o, 3, 20, other);
        assert_memory_equal(one, other, 32);
        o.cache = cache;
        run(&o, 3, 20, other);
        assert_memory_equal(one, other, 32);
    }
    assert_true(image_cache_bytes(cache) > 58 * 8 * 8 * 3);
    image_cache_free(cache);
    o.cache = NULL;
    o.order.seed = 100;
    run(&o, 3, 20, other);
    assert_memory_not_equal(one, other, 32);
}

static void small_cache_keeps_its_limit(void **state)
{
    (void)state;
    struct images_options o = defaults();
    uint8_t one[32], other[32];
    run(&o, 2, -1, one);
    OK(image_cache_new(2000, &o.cache, err));
    run(&o, 2, -1, other);
    run(&o, 2, -1, other);
    assert_memory_equal(one, other, 32);
    assert_in_range(image_cache_bytes(o.cache), 1, 2000);
    o.image_size = 4; /* another size empties it */
    struct data *d;
    OK(images_open(&o, ranges, 1, &d, err));
    assert_int_equal(image_cache_bytes(o.cache), 0);
    data_free(d);
    image_cache_free(o.cache);
}

static void bad_image_is_named_and_replaced(void **state)
{
    (void)state;
    struct images_options o = defaults();
    struct data *d;
    uint64_t ids[64];
    size_t n;
    uint8_t sum[32];
    o.threads = 3;
    OK(images_open(&o, ranges, 3, &d, err));
    assert_int_equal(data_total(d), 60);
    digest(d, -1, sum, ids, &n);
    assert_int_equal(n, 59);
    const struct data_bad *bad;
    unsigned named;
    assert_int_equal(data_bad(d, &bad, &named), 1);
    assert_int_equal(named, 1);
    assert_string_equal(bad[0].key, "s2-0007");
    assert_true(bad[0].reason[0] != '\0');
    assert_memory_equal(bad[0].shard_sha256, shards[2].sha256, 32);
    for (size_t i = 0; i < n; i++) {
        assert_true(ids[i] != data_sample_id(shards[2].sha256, 7));
        for (size_t j = 0; j < i; j++)
            assert_true(ids[i] != ids[j]);
    }
    assert_int_equal(data_position(d), 60);
    data_free(d);
}

static void class_out_of_range_is_bad(void **state)
{
    (void)state;
    struct images_options o = defaults();
    o.classes = 4;
    struct data *d;
    uint8_t sum[32];
    size_t n;
    OK(images_open(&o, ranges, 1, &d, err));
    digest(d, -1, sum, NULL, &n);
    assert_int_equal(n, 16);
    data_free(d);
}

static void window_uses_a_prefix(void **state)
{
    (void)state;
    struct images_options o = defaults();
    o.order.window = 10;
    o.batch = 10;
    struct data *d;
    uint64_t ids[64];
    uint8_t sum[32];
    size_t n;
    OK(images_open(&o, ranges, 2, &d, err));
    digest(d, 2, sum, ids, &n);
    assert_int_equal(n, 20);
    for (uint32_t i = 0; i < 20; i++) {
        bool found = false;
        for (size_t k = 0; k < n; k++)
            found = found || ids[k] == data_sample_id(shards[0].sha256, i);
        assert_true(found);
    }
    data_free(d);
}

static void unshuffled_keeps_the_order(void **state)
{
    (void)state;
    struct images_options o = defaults();
    o.order.shuffle = o.flip = false;
    struct data_range r = ranges[1];
    r.start = 3;
    r.count = 5;
    struct data *d;
    uint64_t ids[64];
    uint8_t sum[32];
    size_t n;
    OK(images_open(&o, &r, 1, &d, err));
    digest(d, -1, sum, ids, &n);
    assert_int_equal(n, 5);
    for (uint32_t i = 0; i < 5; i++)
        assert_true(ids[i] == data_sample_id(shards[1].sha256, 3 + i));
    data_free(d);
}

static void seek_goes_on_where_it_was(void **state)
{
    (void)state;
    struct images_options o = defaults();
    o.order.repeat = true;
    o.threads = 2;
    struct data *d;
    uint8_t sum[32], rest[32], again[32];
    OK(images_open(&o, ranges, 3, &d, err));
    digest(d, 11, sum, NULL, NULL);
    uint64_t position = data_position(d);
    digest(d, 6, rest, NULL, NULL);
    data_free(d);
    OK(images_open(&o, ranges, 3, &d, err));
    OK(data_seek(d, position, err));
    digest(d, 6, again, NULL, NULL);
    data_free(d);
    assert_memory_equal(rest, again, 32);
}

/* ---- captions and crops: a shard of wide images, of which every third has no caption ---- */

#define WIDE 18

static struct data_range wide_range(const char *name)
{
    static uint8_t rgb[24 * 12 * 3];
    struct shard_info info;
    struct buf png;
    char *path = in(dir, name);
    struct shard_writer *w = shard_writer_new(path);
    for (unsigned i = 0; i < WIDE; i++) {
        for (size_t p = 0; p < sizeof(rgb); p++)
            rgb[p] = (uint8_t)(p / 3 % 24 * 10 + i);
        buf_init(&png, 1 << 16);
        OK(image_png(rgb, 24, 12, &png, err));
        char text[32];
        struct shard_sample s = {.ext = "png", .cls = i % 5, .data = png.data, .len = png.len};
        snprintf(s.key, sizeof(s.key), "w%u", i);
        snprintf(text, sizeof(text), "a%02u\nb%02u\nc%02u", i, i, i);
        if (i % 3) {
            s.captions = text;
            s.captions_len = strlen(text);
        }
        OK(shard_writer_add(w, &s, 0, err));
        buf_release(&png);
    }
    OK(shard_writer_finish(w, &info, err));
    shard_writer_free(w);
    struct data_range r = {.path = path, .count = WIDE};
    memcpy(r.sha256, info.sha256, 32);
    return r;
}

/* Tokens are bytes; `arg`: a text that has none. */
static int bytes_of(void *arg, const char *text, size_t len, int32_t *tokens, int32_t *ret_length)
{
    if (arg && len == strlen(arg) && memcmp(text, arg, len) == 0)
        return -ERR_LIMIT;
    for (size_t i = 0; i < 4; i++)
        tokens[i] = i < len ? text[i] : -1;
    *ret_length = (int32_t)len + 1;
    return 0;
}

/* Each image gets one of its own, another one in some later pass; without any it is "". */
static void captions_come_with_the_images(void **state)
{
    (void)state;
    struct data_range r = wide_range("wide");
    struct images_options o = defaults();
    bool seen[WIDE][3] = {{0}};
    int32_t first[40 * 4], again[40 * 4];
    uint64_t ids[40];
    o.caption = bytes_of;
    o.caption_tokens = 4;
    o.batch = WIDE;
    o.order.repeat = true;
    for (unsigned run = 0; run < 2; run++) {
        struct data *d;
        o.threads = run ? 5 : 1;
        OK(images_open(&o, &r, 1, &d, err));
        for (unsigned pass = 0; pass < 20; pass++) {
            struct batch b;
            OK(data_next(d, &b, err));
            assert_int_equal(b.count, WIDE);
            for (unsigned i = 0; i < b.count; i++) {
                const unsigned number = b.ids[i] & 0xffff;
                const int32_t *c = b.captions + (size_t)i * 4;
                assert_int_equal(b.caption_lengths[i], number % 3 ? 4 : 1);
                if (number % 3 == 0) {
                    assert_int_equal(c[0], -1);
                    continue;
                }
                assert_in_range(c[0], 'a', 'c');
                assert_int_equal((c[1] - '0') * 10 + c[2] - '0', number);
                seen[number][c[0] - 'a'] = true;
            }
            if (pass == 3) {
                memcpy(run ? again : first, b.captions, WIDE * 4 * sizeof(*first));
                if (run)
                    assert_memory_equal(ids, b.ids, WIDE * sizeof(*ids));
                memcpy(ids, b.ids, WIDE * sizeof(*ids));
            }
        }
        data_free(d);
    }
    assert_memory_equal(first, again, WIDE * 4 * sizeof(*first));
    for (unsigned i = 0; i < WIDE; i++)
        assert_true(i % 3 == 0 || (seen[i][0] && seen[i][1] && seen[i][2]));
    free((char *)r.path);
}

static void a_caption_may_be_bad(void **state)
{
    (void)state;
    struct data_range r = wide_range("bad");
    struct images_options o = defaults();
    struct data *d;
    struct batch b;
    const struct data_bad *bad;
    unsigned named, n = 0;
    char none[] = "";
    o.caption = bytes_of;
    o.caption_arg = none;
    o.caption_tokens = 4;
    o.batch = 5;
    OK(images_open(&o, &r, 1, &d, err));
    do {
        OK(data_next(d, &b, err));
        n += b.count;
    } while (b.count);
    assert_int_equal(n, WIDE - WIDE / 3);
    assert_int_equal(data_bad(d, &bad, &named), WIDE / 3);
    assert_string_equal(bad[0].reason, "its caption has no tokens");
    data_free(d);
    o.caption_tokens = 0;
    FAILS(images_open(&o, &r, 1, &d, err), "captions have 0 tokens");
    free((char *)r.path);
}

/* Other squares in other passes, the same with any threads; the cache keeps none of them. */
static void random_crops_are_not_cached(void **state)
{
    (void)state;
    struct data_range r = wide_range("crop");
    struct images_options o = defaults();
    struct data *d;
    uint8_t one[32], other[32], centre[32];
    bool seen[256] = {false};
    o.flip = false;
    o.order.repeat = true;
    OK(image_cache_new(1 << 20, &o.cache, err));
    for (unsigned run = 0; run < 3; run++) {
        o.random_crop = run < 2;
        o.threads = run ? 3 : 1;
        OK(images_open(&o, &r, 1, &d, err));
        digest(d, 30, run == 0 ? one : run == 1 ? other : centre, NULL, NULL);
        data_free(d);
        assert_int_equal(image_cache_bytes(o.cache) > 0, run == 2);
    }
    assert_memory_equal(one, other, 32);
    assert_memory_not_equal(one, centre, 32);
    o.random_crop = true;
    o.batch = 1;
    r.count = 1;
    OK(images_open(&o, &r, 1, &d, err));
    unsigned places = 0;
    for (unsigned pass = 0; pass < 200; pass++) {
        struct batch b;
        OK(data_next(d, &b, err));
        places += !seen[b.images[0]];
        seen[b.images[0]] = true;
    }
    assert_int_equal(places, 16 - 8 + 1); /* 24 x 12 becomes 16 x 8 */
    data_free(d);
    image_cache_free(o.cache);
    free((char *)r.path);
}

static void refuses_what_cannot_be(void **state)
{
    (void)state;
    struct images_options o = defaults();
    struct data *d;
    struct data_range r = ranges[0];
    r.start = 15;
    r.count = 6;
    FAILS(images_open(&o, &r, 1, &d, err), "which holds 20");
    r.path = "/nonexistent";
    FAILS(images_open(&o, &r, 1, &d, err), "/nonexistent");
    o.batch = 0;
    FAILS(images_open(&o, ranges, 1, &d, err), "batches of 0");
    /* Nothing but bad images: an error, not an endless loop. */
    o = defaults();
    o.order.repeat = true;
    r = ranges[2];
    r.start = 7;
    r.count = 1;
    OK(images_open(&o, &r, 1, &d, err));
    struct batch b;
    FAILS(data_next(d, &b, err), "none of the 1 images");
    data_free(d);
    /* Fine in a single pass whose reader keeps a place for each. */
    o.order.repeat = false;
    o.order.may_be_empty = true;
    OK(images_open(&o, &r, 1, &d, err));
    OK(data_next(d, &b, err));
    assert_int_equal(b.count, 0);
    data_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_and_cache_change_nothing),
        cmocka_unit_test(small_cache_keeps_its_limit),
        cmocka_unit_test(bad_image_is_named_and_replaced),
        cmocka_unit_test(class_out_of_range_is_bad),
        cmocka_unit_test(window_uses_a_prefix),
        cmocka_unit_test(unshuffled_keeps_the_order),
        cmocka_unit_test(seek_goes_on_where_it_was),
        cmocka_unit_test(captions_come_with_the_images),
        cmocka_unit_test(a_caption_may_be_bad),
        cmocka_unit_test(random_crops_are_not_cached),
        cmocka_unit_test(refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
