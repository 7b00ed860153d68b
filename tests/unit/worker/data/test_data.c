#include "worker/data/data_samples.h"

#include <errno.h>

#include "tests/unit/worker/shards.h"

enum { SAMPLES = 20, SHARDS = 2 };

static const struct data_order as_listed = {0};
static char *dir;
static struct test_shard shards[SHARDS];

static int setup(void **state)
{
    dir = scratch_new();
    for (int i = 0; i < SHARDS; i++)
        shards[i] = shard_make(dir, i, SAMPLES, 2, -1);
    return image_init(NULL);
}

static int teardown(void **state)
{
    for (int i = 0; i < SHARDS; i++)
        mem_free(shards[i].path);
    scratch_free(dir);
    return 0;
}

static struct data_range range(int shard, uint32_t start, uint32_t count, int32_t partition)
{
    struct data_range r = {
        .path = shards[shard].path, .start = start, .count = count, .partition = partition};
    memcpy(r.sha256, shards[shard].sha256, 32);
    return r;
}

/* Ranges of one shard share it; a place knows its shard, number and partition. */
static void places_follow_the_ranges(void **state)
{
    const struct data_range ranges[] = {range(1, 5, 3, 7), range(0, 0, 2, 8), range(1, 19, 1, 9)};
    struct data d = {0};
    OK(data_open(&d, NULL, &as_listed, ranges, 3, err));
    assert_int_equal(d.total, 6);
    assert_int_equal(d.n_shards, 2);
    static const struct data_place want[] = {{0, 5, 7}, {0, 6, 7}, {0, 7, 7},
                                             {1, 0, 8}, {1, 1, 8}, {0, 19, 9}};
    for (uint64_t i = 0; i < 12; i++) { /* two passes */
        struct data_place p = data_at(&d, i);
        assert_memory_equal(&p, &want[i % 6], sizeof(p));
    }
    data_close(&d);
    data_close(&d);
}

/* Each window of a pass is a permutation of its own places; seeds and passes differ. */
static void windows_are_shuffled_apart(void **state)
{
    const struct data_range ranges[] = {range(0, 0, SAMPLES, 0), range(1, 0, SAMPLES, 0)};
    const struct data_order shuffled = {.seed = 4, .window = 16, .shuffle = true};
    struct data d = {0};
    uint64_t moved = 0, again = 0;
    OK(data_open(&d, NULL, &shuffled, ranges, 2, err));
    for (uint64_t pass = 0; pass < 2; pass++) {
        unsigned seen[40] = {0};
        for (uint64_t i = 0; i < 40; i++) {
            struct data_place p = data_at(&d, pass * 40 + i);
            uint32_t at = p.shard * SAMPLES + p.index;
            assert_int_equal(at / 16, i / 16);
            seen[at]++;
            moved += at != i;
        }
        for (int i = 0; i < 40; i++)
            assert_int_equal(seen[i], 1);
    }
    assert_true(moved > 40);
    for (uint64_t i = 0; i < 40; i++) {
        struct data_place one = data_at(&d, i), two = data_at(&d, 40 + i);
        again += one.index == two.index;
    }
    assert_true(again < 20);
    data_close(&d);
}

static void names_the_bad(void **state)
{
    const struct data_range ranges[] = {range(0, 0, 3, 0)};
    struct data d = {0};
    struct err e = {0};
    OK(data_open(&d, NULL, &as_listed, ranges, 1, err));
    struct data_place p = data_at(&d, 1);
    d.head = 1;
    OK(data_found_bad(&d, &p, "things", "is odd", err));
    const struct data_bad *bad;
    unsigned named = 0;
    assert_int_equal(data_bad(&d, &bad, &named), 1);
    assert_true(named == 1 && bad == d.bad);
    assert_true(d.bad_count == 1 && d.bad_named == 1 && d.bad_run == 1);
    assert_string_equal(d.bad[0].key, "s0-0001");
    assert_string_equal(d.bad[0].reason, "is odd");
    assert_memory_equal(d.bad[0].shard_sha256, shards[0].sha256, 32);
    OK(data_found_bad(&d, &p, "things", "is odd", err)); /* in another range: the same one */
    assert_true(d.bad_count == 1 && d.bad_named == 1 && d.bad_run == 2);
    d.bad_run = 1;
    d.head = 4;
    OK(data_found_bad(&d, &p, "things", "is odd", err)); /* in the second pass: known */
    assert_int_equal(d.bad_count, 1);
    assert_int_equal(data_found_bad(&d, &p, "things", "no", &e), -ERR_CONFIG);
    assert_string_equal(e.msg, "none of the 3 things, e.g. s0-0001: is odd");
    data_close(&d);
}

static void refuses(void **state)
{
    struct data_range beyond = range(0, 18, 3, 0), empty = range(0, 0, 0, 0);
    struct data d = {0};
    FAILS(data_open(&d, NULL, &as_listed, &beyond, 1, err), "samples 18 to 21 of shard");
    data_close(&d);
    FAILS(data_open(&d, NULL, &as_listed, &empty, 1, err), "names 0 samples");
    data_close(&d);
    d.total = 5;
    OK(data_seek(&d, 5, err));
    assert_int_equal(data_position(&d), 5);
    FAILS(data_seek(&d, 6, err), "cannot go to position 6 of 5");
    d.opt.repeat = true;
    OK(data_seek(&d, 6, err));
    d.started = true;
    FAILS(data_seek(&d, 0, err), "cannot go to position 0");
}

/* Names of samples and contents stay what they are. */
static void ids_are_fixed(void **state)
{
    uint8_t sha[32];
    for (int i = 0; i < 32; i++)
        sha[i] = (uint8_t)(i + 1);
    assert_true(data_sample_id(sha, 0x10203) == 0x0102030405060203ULL);
    assert_true(data_content_key(sha, 9) != data_content_key(sha, 8));
    assert_true(data_content_key(sha, 32) == data_content_key(sha, 32));
    sha[31] ^= 1;
    assert_true(data_sample_id(sha, 0x10203) == 0x0102030405060203ULL);
    uint64_t key = data_content_key(sha, 32);
    sha[31] ^= 1;
    assert_true(data_content_key(sha, 32) != key);
}

/* As often as chance has it, differently in every pass, and the same on every machine. */
static void captions_are_drawn_evenly(void **state)
{
    enum { N = 5, DRAWS = 20000 };
    unsigned counts[N] = {0}, changed = 0;
    for (unsigned i = 0; i < DRAWS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "cat_%u", i / 10);
        const unsigned one = caption_draw(7, name, i % 10, N);
        assert_true(one < N);
        counts[one]++;
        changed += one != caption_draw(8, name, i % 10, N);
    }
    double chi = 0;
    for (unsigned k = 0; k < N; k++)
        chi += (counts[k] - DRAWS / 5.0) * (counts[k] - DRAWS / 5.0) / (DRAWS / 5.0);
    assert_true(chi < 18.5); /* 4 degrees of freedom: one seed of a thousand has more */
    assert_in_range(changed, DRAWS * 4 / 5 - 400, DRAWS * 4 / 5 + 400);
    assert_int_equal(caption_draw(7, "cat_1", 3, 1), 0);
    static const unsigned fixed[] = {737, 450, 406, 30};
    for (unsigned i = 0; i < COUNT(fixed); i++)
        assert_int_equal(caption_draw(1, "dog_1", i, 1000), fixed[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_follow_the_ranges),
        cmocka_unit_test(windows_are_shuffled_apart),
        cmocka_unit_test(names_the_bad),
        cmocka_unit_test(refuses),
        cmocka_unit_test(ids_are_fixed),
        cmocka_unit_test(captions_are_drawn_evenly),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
