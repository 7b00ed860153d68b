/* Whether pictures are encoded once or in each step, and why. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/decide/encode.h"
#include "tests/unit/coordinator/decide/expect.h"

#define MIB (UINT64_C(1) << 20)

/* 100 pictures; the disk has room unless a case says otherwise. */
static const struct {
    const char *name;
    uint64_t seen, latents_mib, disk_mib, shards;
    bool asked_once, asked_step, flip, random_crop, pipeline;
    int stages, micros, batch;
    bool once, impossible;
    const char *reason;
} cases[] = {
    {"asked once", 1, .asked_once = true, .random_crop = true, .once = true,
     .reason = "as encoders.run says"},
    {"asked step", 100000, .asked_step = true, .reason = "as encoders.run says"},
    {"random", 100000, .random_crop = true, .reason = "data.crop random"},
    {"seconds", 0, .once = true, .reason = "bounded by time"},
    {"twice", 200,
     .reason = "only 2.0 times; a worker keeps latents on its own disk if that is faster"},
    {"more", 210, .once = true, .reason = "seen 2.1 times, and one pass of the encoder makes"},
    {"flip", 400, .flip = true, .reason = "only 4.0 times"},
    {"flip more", 410, .flip = true, .once = true,
     .reason = "seen 4.1 times, and two passes of the encoder make"},
    {"no disk", 1000, 6, 10,
     .reason = "6.0 MiB of the coordinator's room for blobs, of which 10.0 MiB are free; a "
               "worker keeps latents on its own disk if that is faster"},
    {"no disk, seconds", 0, 6, 10, .reason = "a worker keeps latents"},
    {"many", 1000, .shards = 8193,
     .reason = "of the 8193 shards at most 8192 can be encoded before the training; a worker "
               "keeps latents"},
    {"not too many", 1000, .shards = 8192, .once = true, .reason = "seen 10.0 times"},
    {"asked once, many", 1000, .shards = 8193, .asked_once = true, .impossible = true,
     .reason = "raise data.shard_samples"},
    {"bubbles", 1000, .stages = 4, .micros = 3,
     .reason = "with 4 stages and 3 micro-batches a pipeline's bubbles"},
    {"automatic micro-batches", 240, .stages = 4, .batch = 64,
     .reason = "only 2.4 times, 0.4 of them in bubbles (4 stages, 16 micro-batches)"},
    {"and more passes", 250, .stages = 4, .batch = 64, .once = true,
     .reason = "seen 2.5 times, 0.5 of them in bubbles (4 stages, 16 micro-batches), and one"},
    {"few samples", 1000, .stages = 4, .batch = 3, .reason = "with 4 stages and 3 micro-batches"},
    {"automatic stages", 360, .pipeline = true, .micros = 2,
     .reason = "only 3.6 times, 1.8 of them in bubbles (2 stages, 2 micro-batches)"},
    {"one micro-batch", 1000, .pipeline = true, .micros = 1,
     .reason = "2 stages and 1 micro-batch "},
    {"all automatic", 220, .pipeline = true, .batch = 64,
     .reason = "only 2.2 times, 0.3 of them in bubbles (2 stages, 8 micro-batches)"},
    {"perhaps none", 220, .batch = 64, .once = true, .reason = "seen 2.2 times, and"},
    {"short bubbles", 1000, .stages = 4, .micros = 4, .once = true,
     .reason = "seen 10.0 times, 7.5 of them in bubbles"},
    {"asked once, bubbles", 1, .asked_once = true, .stages = 4, .micros = 1, .once = true,
     .reason = "as encoders.run says"},
    {"disk", 1000, 5, 10, .once = true, .reason = "each is seen 10.0 times"},
};

static void test_encode(void **state)
{
    for (size_t i = 0; i < N(cases); i++) {
        struct encode_decision d;
        const struct encode_in in = {.asked_once = cases[i].asked_once,
                                     .asked_step = cases[i].asked_step,
                                     .pictures = 100,
                                     .shards = cases[i].shards,
                                     .seen = cases[i].seen,
                                     .flip = cases[i].flip,
                                     .latents_bytes = cases[i].latents_mib * MIB,
                                     .disk_free = cases[i].disk_mib * MIB,
                                     .random_crop = cases[i].random_crop,
                                     .pipeline = cases[i].pipeline,
                                     .stages = cases[i].stages,
                                     .micros = cases[i].micros,
                                     .batch = cases[i].batch};
        encode_decide(&in, &d);
        if (d.once != cases[i].once || d.impossible != cases[i].impossible)
            fail_msg("%s: once %d, impossible %d, '%s'", cases[i].name, d.once, d.impossible,
                     d.reason);
        expect_text(cases[i].name, d.reason, cases[i].reason);
    }
}

/* Whoever sees no picture twice is not told of a cache for it. */
static void test_no_cache(void **state)
{
    struct encode_decision d;
    const struct encode_in in = {.pictures = 100, .seen = 100, .latents_bytes = 6, .disk_free = 10};
    encode_decide(&in, &d);
    assert_false(d.once);
    assert_non_null(strstr(d.reason, "of which 10 B are free"));
    assert_null(strstr(d.reason, "worker keeps"));
}

static void test_no_pictures(void **state)
{
    struct encode_decision d;
    encode_decide(&(struct encode_in){.seen = 10}, &d);
    assert_false(d.once);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),
        cmocka_unit_test(test_no_cache),
        cmocka_unit_test(test_no_pictures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
