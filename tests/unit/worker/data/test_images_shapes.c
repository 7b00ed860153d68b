/* Images of unlike shapes: which shape each goes to, the order of a batch, what comes with each;
 * and the same from latents, kept or in a shard. */
#include "tests/unit/worker/shards.h"

#include "common/data/moments.h"
#include "common/data/shard.h"
#include "worker/data/images.h"
#include "worker/data/latents.h"

enum { SIDE = 16, N = 12, PLACE = SIDE * SIDE * 3, CHANNELS = 2, LATENT = 4, LARGEST = 64 };

static char *dir, *path;
static uint8_t sha256[32];

/* Pixels of the images as they come; none is square but the last. */
static const struct image_shape sizes[N] = {{40, 20}, {20, 40}, {32, 16}, {16, 33},
                                            {31, 30}, {60, 20}, {20, 70}, {17, 17},
                                            {64, 33}, {30, 64}, {25, 24}, {16, 16}};
static const struct image_shape shapes[] = {{16, 16}, {24, 8}, {8, 24}, {16, 12}, {16, 16}};

/* By hand: numbers in `shapes`, counted from 1. */
static const uint8_t expected[N] = {2, 3, 2, 3, 1, 2, 3, 1, 4, 3, 1, 1};

/* A picture whose colour tells its number, and whose left half is darker. */
static void add_picture(struct tar_writer *w, int i)
{
    const struct image_shape s = sizes[i];
    uint8_t rgb[70 * 70 * 3];
    char name[32];
    for (int p = 0; p < s.width * s.height; p++)
        for (int c = 0; c < 3; c++)
            rgb[p * 3 + c] = (uint8_t)(20 * i + (p % s.width >= s.width / 2 ? 10 : 0));
    struct buf png;
    buf_init(&png, 1 << 20);
    OK(image_png(rgb, s.width, s.height, &png, err));
    snprintf(name, sizeof name, "s-%04d.png", i);
    OK(tar_writer_add(w, name, png.data, png.len, err));
    snprintf(name, sizeof name, "s-%04d.cls", i);
    char cls[16];
    snprintf(cls, sizeof cls, "%d", i);
    OK(tar_writer_add(w, name, cls, strlen(cls), err));
    snprintf(name, sizeof name, "s-%04d.txt", i);
    OK(tar_writer_add(w, name, cls, strlen(cls), err));
    buf_release(&png);
}

static int setup(void **state)
{
    struct tar_writer *w;
    OK(image_init(err));
    dir = scratch_new();
    path = in(dir, "pictures");
    OK(tar_writer_open(path, &w, err));
    for (int i = 0; i < N; i++)
        add_picture(w, i);
    OK(tar_writer_commit(w, sha256, NULL, err));
    tar_writer_free(w);
    return 0;
}

static int teardown(void **state)
{
    free(path);
    scratch_free(dir);
    return 0;
}

/* The caption is the number: its token is it. */
static int caption(void *arg, const char *text, size_t len, int32_t *tokens, int32_t *ret_length)
{
    tokens[0] = len == 1 ? text[0] - '0' : 10 * (text[0] - '0') + text[1] - '0';
    tokens[1] = 99;
    *ret_length = 1 + tokens[0] % 2;
    return 0;
}

/* Moments begin with the first pixels of an image, and say its shape. */
static int encode(void *arg, const uint8_t *images, const uint8_t *of, unsigned count,
                  uint16_t *moments, struct err *e)
{
    for (unsigned i = 0; i < count; i++) {
        memset(moments + (size_t)i * LARGEST, 0, LARGEST * sizeof *moments);
        moments[i * LARGEST] = images[(size_t)i * PLACE];
        moments[i * LARGEST + 1] = of[i];
    }
    return 0;
}

static struct images_options options(unsigned batch)
{
    return (struct images_options){.image_size = SIDE,
                                   .shapes = shapes,
                                   .n_shapes = 5,
                                   .batch = batch,
                                   .threads = 3,
                                   .caption = caption,
                                   .caption_tokens = 2};
}

static struct data *open_data(const struct images_options *o)
{
    struct data_range range = {.path = path, .count = N};
    struct data *d = NULL;
    memcpy(range.sha256, sha256, 32);
    OK(images_open(o, &range, 1, &d, err));
    return d;
}

/* Everything of sample k belongs together. */
static void check_sample(const struct batch *b, unsigned k)
{
    const int i = b->labels[k];
    const uint8_t *p = b->images + (size_t)k * PLACE;
    assert_in_range(i, 0, N - 1);
    assert_int_equal(b->shapes[k], expected[i]);
    assert_int_equal(b->ids[k] & 0xffff, i);
    assert_int_equal(b->captions[2 * k], i);
    assert_int_equal(b->caption_lengths[k], 1 + i % 2);
    const struct image_shape s = shapes[b->shapes[k] - 1];
    assert_in_range(p[0], 20 * i > 2 ? 20 * i - 2 : 0, 20 * i + 2);
    const uint8_t *last = p + (s.width * s.height - 1) * 3;
    assert_in_range(*last, 20 * i + 8, 20 * i + 12);
}

static void batches_are_in_the_order_of_shapes(void **state)
{
    for (unsigned batch = 1; batch <= N + 1; batch += 4) {
        struct images_options o = options(batch);
        struct data *d = open_data(&o);
        unsigned seen = 0;
        for (struct batch b; data_next(d, &b, NULL) == 0 && b.count > 0; seen += b.count) {
            assert_true(b.images && !b.moments);
            for (unsigned k = 0; k < b.count; k++) {
                check_sample(&b, k);
                assert_in_range(b.labels[k], seen, seen + b.count - 1); /* of these positions */
                if (k > 0)
                    assert_true(b.shapes[k] > b.shapes[k - 1] ||
                                (b.shapes[k] == b.shapes[k - 1] && b.labels[k] > b.labels[k - 1]));
            }
        }
        assert_int_equal(seen, N);
        data_free(d);
    }
}

static void the_cache_knows_shapes(void **state)
{
    struct image_cache *cache;
    OK(image_cache_new(1 << 20, &cache, err));
    struct images_options o = options(N);
    o.cache = cache;
    for (int pass = 0; pass < 3; pass++) {
        o.n_shapes = pass == 1 ? 0 : 5;
        struct data *d = open_data(&o);
        struct batch b;
        OK(data_next(d, &b, err));
        assert_true((b.shapes != NULL) == (pass != 1));
        for (unsigned k = 0; k < b.count && b.shapes; k++)
            check_sample(&b, k);
        data_free(d);
    }
    image_cache_free(cache);
}

/* Mirrored by its own width. */
static void mirrors(void **state)
{
    uint8_t image[2 * 3 * 3];
    for (size_t i = 0; i < sizeof image; i++)
        image[i] = (uint8_t)i;
    images_mirror(image, (struct image_shape){.width = 3, .height = 2});
    const uint8_t row[] = {6, 7, 8, 3, 4, 5, 0, 1, 2};
    assert_memory_equal(image, row, sizeof row);
    assert_int_equal(image[9], 15);
}

static void latents_are_kept_with_their_shape(void **state)
{
    char *kept = in(dir, "kept");
    const struct latents_options lo = {.dir = kept, .max_bytes = 1 << 20, .values = LARGEST};
    struct images_options o = options(5);
    uint16_t first[2][N][2];
    o.moments = LARGEST;
    o.latent_side = LATENT;
    o.encode = encode;
    OK(latents_open(&lo, &o.latents, err));
    for (int pass = 0; pass < 2; pass++) {
        struct data *d = open_data(&o);
        for (struct batch b; data_next(d, &b, NULL) == 0 && b.count > 0;)
            for (unsigned k = 0; k < b.count; k++) {
                const int i = b.labels[k];
                memcpy(first[pass][i], b.moments + (size_t)k * LARGEST, sizeof first[0][0]);
                assert_int_equal(b.shapes[k], expected[i]);
                assert_int_equal(b.moments[k * LARGEST + 1], expected[i]);
            }
        data_free(d);
    }
    assert_memory_equal(first[0], first[1], sizeof first[0]);
    latents_close(o.latents);
    free(kept);
}

/* A shard of latents whose member says height x width of the job's shape `number`; of the last one
 * as a picture that could not be encoded. */
static char *latents_of(int number, uint32_t values)
{
    static const struct image_shape places[] = {{4, 4}, {6, 2}, {2, 6}, {4, 3}, {3, 3}, {4, 4}};
    char *made = in(dir, "made.lat");
    uint16_t numbers[LARGEST] = {0};
    struct shard_info info;
    struct buf out;
    struct shard_writer *w = shard_writer_new(made);
    struct moments m = {.key = 7,
                        .values = values,
                        .height = (uint16_t)places[number].height,
                        .width = (uint16_t)places[number].width,
                        .sides = number < 5};
    struct shard_sample s = {.key = "s-0000", .cls = 3};
    buf_init(&out, 1 << 16);
    OK(moments_encode(&m, numbers, &out));
    strcpy(s.ext, "lat");
    s.data = out.data;
    s.len = out.len;
    OK(shard_writer_add(w, &s, 0, err));
    OK(shard_writer_finish(w, &info, err));
    shard_writer_free(w);
    buf_release(&out);
    return made;
}

static void shards_of_latents_say_shapes(void **state)
{
    static const uint32_t values[] = {64, 48, 48, 48, 36, 64};
    for (int i = 0; i < 6; i++) {
        char *made = latents_of(i, values[i]);
        struct images_options o = options(1);
        struct data_range range = {.path = made, .count = 1};
        struct data *d;
        struct batch b;
        o.caption = NULL;
        o.moments = LARGEST;
        o.latent_side = LATENT;
        if (i == 5) { /* none of these is a square */
            o.shapes = shapes + 1;
            o.n_shapes = 3;
        }
        OK(images_open(&o, &range, 1, &d, err));
        if (i < 4) {
            OK(data_next(d, &b, err));
            assert_int_equal(b.shapes[0], i + 1);
            assert_non_null(b.moments);
        } else {
            FAILS(data_next(d, &b, err),
                  i == 4 ? "latents of another size" : "an image that could not be encoded");
        }
        data_free(d);
        free(made);
    }
}

static void refuses_what_is_too_large(void **state)
{
    const struct image_shape large = {24, 16};
    struct data_range range = {.path = path, .count = N};
    struct images_options o = options(1);
    struct data *d;
    o.shapes = &large;
    o.n_shapes = 1;
    FAILS(images_open(&o, &range, 1, &d, err), "images of 24 x 16 in places for 16 x 16");
    o.n_shapes = 17;
    FAILS(images_open(&o, &range, 1, &d, err), "images of 17 shapes; at most 16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_in_the_order_of_shapes),
        cmocka_unit_test(the_cache_knows_shapes),
        cmocka_unit_test(mirrors),
        cmocka_unit_test(latents_are_kept_with_their_shape),
        cmocka_unit_test(shards_of_latents_say_shapes),
        cmocka_unit_test(refuses_what_is_too_large),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
