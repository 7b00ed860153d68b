/* Images whose moments come from the step, from those that the worker keeps, or from a shard of
 * latents: the same moments, in the same order, flips and bad images included. */
#include "tests/unit/worker/shards.h"

#include "common/data/moments.h"
#include "common/data/shard.h"
#include "worker/data/images.h"
#include "worker/data/latents.h"

enum { SIDE = 8, VALUES = 6, SAMPLES = 20, BATCHES = 12 };

static char *dir;
static struct test_shard shard;
static unsigned encoded; /* images that the encoder has seen */

/* Numbers that tell an image from another, and from its mirror. */
static void encode_one(const uint8_t *image, uint16_t *out)
{
    for (int i = 0; i < VALUES; i++) {
        uint32_t sum = (uint32_t)i;
        for (int p = 0; p < SIDE * SIDE * 3; p++)
            sum = sum * 31 + image[p];
        out[i] = (uint16_t)sum;
    }
}

static int encode(void *arg, const uint8_t *images, const uint8_t *shapes, unsigned count,
                  uint16_t *moments, struct err *e)
{
    for (unsigned i = 0; i < count; i++)
        encode_one(images + (size_t)i * SIDE * SIDE * 3, moments + (size_t)i * VALUES);
    encoded += count;
    return 0;
}

static struct images_options options(bool shuffle)
{
    return (struct images_options){.image_size = SIDE,
                                   .batch = 7,
                                   .threads = 2,
                                   .order = {.shuffle = shuffle, .repeat = shuffle, .seed = 99},
                                   .flip = shuffle,
                                   .classes = 5,
                                   .moments = VALUES,
                                   .latent_side = 1,
                                   .encode = encode};
}

/* Moments, labels and keys of some batches, one after the other. */
struct stream {
    uint16_t moments[7 * BATCHES][VALUES];
    int32_t labels[7 * BATCHES];
    uint64_t keys[7 * BATCHES];
    unsigned n, bad;
};

static void run(const struct images_options *o, const struct test_shard *from, struct stream *s)
{
    struct data_range range = {.path = from->path, .count = SAMPLES};
    struct data *d = NULL;
    const struct data_bad *list;
    unsigned named;
    memcpy(range.sha256, from->sha256, 32);
    memset(s, 0, sizeof *s);
    OK(images_open(o, &range, 1, &d, err));
    for (int i = 0; i < BATCHES; i++) {
        struct batch b;
        OK(data_next(d, &b, err));
        assert_true((b.images == NULL) != (b.moments == NULL));
        for (unsigned k = 0; k < b.count; k++, s->n++) {
            if (b.moments)
                memcpy(s->moments[s->n], b.moments + (size_t)k * VALUES, sizeof s->moments[0]);
            else
                encode_one(b.images + (size_t)k * SIDE * SIDE * 3, s->moments[s->n]);
            s->labels[s->n] = b.labels[k];
            s->keys[s->n] = b.keys ? b.keys[k] : 0;
        }
    }
    s->bad = data_bad(d, &list, &named);
    data_free(d);
}

/* What an ENCODE task makes: both sides of each image, none of a bad one. */
static struct test_shard latents_of(bool sides)
{
    struct test_shard made = {.path = in(dir, sides ? "both.lat" : "one.lat")};
    struct shard from;
    struct shard_info info;
    OK(shard_open(shard.path, &from, err));
    struct shard_writer *w = shard_writer_new(made.path);
    for (size_t i = 0; i < from.n; i++) {
        struct shard_sample s = from.samples[i];
        uint8_t pixels[SIDE * SIDE * 3], mirrored[sizeof pixels];
        uint16_t values[2 * VALUES];
        struct buf out;
        struct moments m = {
            .key = data_content_key(s.data, s.len), .values = VALUES, .height = 1, .width = 1};
        buf_init(&out, 1 << 16);
        if (image_decode(s.data, s.len, image_square(SIDE), NULL, pixels, NULL) == 0) {
            m.sides = sides ? 2 : 1;
            for (int y = 0; y < SIDE; y++)
                for (int x = 0; x < SIDE; x++)
                    memcpy(mirrored + (y * SIDE + x) * 3, pixels + (y * SIDE + SIDE - 1 - x) * 3,
                           3);
            encode_one(pixels, values);
            encode_one(mirrored, values + VALUES);
        }
        OK(moments_encode(&m, values, &out));
        strcpy(s.ext, "lat");
        s.data = out.data;
        s.len = out.len;
        OK(shard_writer_add(w, &s, 0, err));
        buf_release(&out);
    }
    OK(shard_writer_finish(w, &info, err));
    memcpy(made.sha256, info.sha256, 32);
    shard_writer_free(w);
    shard_close(&from);
    return made;
}

static int setup(void **state)
{
    OK(image_init(err));
    dir = scratch_new();
    shard = shard_make(dir, 0, SAMPLES, 5, 7);
    return 0;
}

static int teardown(void **state)
{
    free(shard.path);
    scratch_free(dir);
    return 0;
}

static void equal(const struct stream *a, const struct stream *b)
{
    assert_true(a->n > 0);
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->bad, b->bad);
    assert_memory_equal(a->moments, b->moments, sizeof a->moments);
    assert_memory_equal(a->labels, b->labels, sizeof a->labels);
    assert_memory_equal(a->keys, b->keys, sizeof a->keys);
}

static void all_ways_are_equal(void **state)
{
    static struct stream fly, kept, again, job;
    struct test_shard made = latents_of(true);
    char *kept_dir = in(dir, "kept");
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        struct images_options o = options(shuffle);
        const struct latents_options lo = {.dir = kept_dir,
                                           .max_bytes = 1 << 20,
                                           .values = VALUES,
                                           .mirrored = shuffle,
                                           .encoder[0] = (uint8_t)shuffle};
        run(&o, &shard, &fly);
        run(&o, &made, &job);
        equal(&fly, &job);
        OK(latents_open(&lo, &o.latents, err));
        encoded = 0;
        run(&o, &shard, &kept);
        equal(&fly, &kept);
        assert_in_range(encoded, 1, 2 * SAMPLES); /* each side once */
        encoded = 0;
        run(&o, &shard, &again);
        equal(&fly, &again);
        assert_int_equal(encoded, 0);
        latents_close(o.latents);
    }
    assert_int_equal(fly.bad, 1);
    free(kept_dir);
    free(made.path);
}

static void refuses_other_latents(void **state)
{
    struct test_shard one = latents_of(false);
    struct data_range range = {.path = one.path, .count = SAMPLES};
    const struct {
        unsigned moments;
        const char *reason;
    } cases[] = {{0, "latents, not an image"}, {VALUES + 1, "latents of another size"}};
    for (size_t i = 0; i < 2; i++) {
        struct images_options o = options(false);
        struct data *d = NULL;
        struct batch b;
        o.moments = cases[i].moments;
        OK(images_open(&o, &range, 1, &d, err));
        FAILS(data_next(d, &b, err), cases[i].reason);
        data_free(d);
    }
    static struct stream s;
    struct images_options o = options(true); /* flips, but there is one side */
    run(&o, &one, &s);
    assert_in_range(s.bad, 2, SAMPLES - 1);
    free(one.path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ways_are_equal),
        cmocka_unit_test(refuses_other_latents),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
