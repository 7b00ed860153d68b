/* Targets and slices of batches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "worker/net/batch.h"

enum { ROWS = 3, SEQ = 4, VALUES = 12 };

static void test_images(void **state)
{
    const uint8_t images[ROWS * VALUES] = {0};
    const int32_t labels[ROWS] = {0};
    const uint64_t ids[ROWS] = {0}, keys[ROWS] = {0};
    const struct batch all = {
        .count = ROWS, .ids = ids, .keys = keys, .images = images, .labels = labels, .seed = 7};
    struct batch part;
    (void)state;
    assert_int_equal(batch_units(&all), ROWS);
    assert_int_equal(batch_losses(&all), 1);
    batch_slice(&all, 1, 2, &(struct batch_sizes){.image = VALUES}, &part);
    assert_int_equal(part.count, 2);
    assert_int_equal(part.seed, 7);
    assert_ptr_equal(part.images, images + VALUES);
    assert_ptr_equal(part.labels, labels + 1);
    assert_ptr_equal(part.ids, ids + 1);
    assert_ptr_equal(part.keys, keys + 1);
    assert_null(part.partitions);
}

/* What was held stays as it was; arrays that are not there are not made up. */
static void test_hold(void **state)
{
    uint8_t images[ROWS * VALUES], shapes[ROWS] = {1, 2, 3};
    uint64_t ids[ROWS] = {10, 11, 12};
    int32_t captions[ROWS * 2] = {1, 2, 3, 4, 5, 6}, lengths[ROWS] = {2, 1, 2};
    const struct batch b = {.count = ROWS,
                            .ids = ids,
                            .images = images,
                            .shapes = shapes,
                            .captions = captions,
                            .caption_lengths = lengths,
                            .seed = 5};
    const struct batch_sizes sizes = {.image = VALUES, .moments = 9, .caption_tokens = 2};
    struct batch_held held = {0};
    struct err err = {0};
    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < sizeof images; i++)
            images[i] = (uint8_t)(i + turn);
        assert_int_equal(batch_hold(&held, &b, &sizes, &err), 0);
        memset(images, 0xee, sizeof images);
        for (size_t i = 0; i < sizeof images; i++)
            assert_int_equal(held.batch.images[i], (uint8_t)(i + turn));
        assert_memory_equal(held.batch.ids, ids, sizeof ids);
        assert_memory_equal(held.batch.captions, captions, sizeof captions);
        assert_memory_equal(held.batch.caption_lengths, lengths, sizeof lengths);
        assert_memory_equal(held.batch.shapes, shapes, sizeof shapes);
        assert_true(held.batch.ids != ids && held.batch.captions != captions);
        assert_null(held.batch.moments);
        assert_null(held.batch.labels);
        assert_int_equal(held.batch.count, ROWS);
        assert_int_equal(held.batch.seed, 5);
    }
    batch_release(&held);
}

/* Rows of tokens have a column more than the other arrays. */
static void test_texts(void **state)
{
    const int32_t tokens[ROWS * (SEQ + 1)] = {0}, start[ROWS * SEQ] = {0}, pos[ROWS * SEQ] = {0};
    const int32_t target[ROWS * SEQ] = {1, 2, -1, 0, -1, -1, -1, -1, 5, -1, 6, 7};
    const uint32_t lengths[ROWS] = {4, 1, 4};
    const struct batch all = {.count = ROWS,
                              .seq = SEQ,
                              .tokens = tokens,
                              .start = start,
                              .target = target,
                              .pos = pos,
                              .lengths = lengths};
    struct batch part;
    (void)state;
    assert_int_equal(batch_units(&all), 6);
    assert_int_equal(batch_losses(&all), SEQ);
    batch_slice(&all, 1, 2, NULL, &part);
    assert_ptr_equal(part.tokens, tokens + SEQ + 1);
    assert_ptr_equal(part.start, start + SEQ);
    assert_ptr_equal(part.target, target + SEQ);
    assert_ptr_equal(part.pos, pos + SEQ);
    assert_ptr_equal(part.lengths, lengths + 1);
    assert_int_equal(batch_units(&part), 3);
    batch_slice(&all, 1, 1, NULL, &part);
    assert_int_equal(batch_units(&part), 0);
    struct batch_held held = {0};
    struct err err = {0};
    assert_int_equal(batch_pick(&held, &all, (unsigned[]){0, 2}, 2, NULL, &err), 0);
    assert_int_equal(held.batch.count, 2);
    assert_int_equal(batch_units(&held.batch), 6);
    assert_memory_equal(held.batch.target + SEQ, target + 2 * SEQ, SEQ * sizeof *target);
    assert_int_equal(held.batch.lengths[1], 4);
    assert_null(held.batch.ids);
    batch_release(&held);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_hold),
        cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
