/* Moments on a worker's disk: what comes back, what is damaged, what has no room. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "worker/data/latents.h"

enum { VALUES = 24, RECORD = 8 + 2 * VALUES, SAMPLES = 10 };

struct fixture {
    char dir[64];
    struct latents_options opt;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    (void)snprintf(f->dir, sizeof f->dir, "/tmp/latents-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->opt = (struct latents_options){
        .dir = f->dir, .max_bytes = 100 * RECORD, .values = VALUES, .mirrored = true};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(file_remove_tree(f->dir, NULL), 0);
    free(f);
    return 0;
}

static struct latents *open_it(const struct fixture *f)
{
    struct latents *l = NULL;
    struct err err = {0};
    if (latents_open(&f->opt, &l, &err) < 0)
        fail_msg("%s", err.msg);
    return l;
}

static const uint8_t shard_a[HASH_BYTES] = {1}, shard_b[HASH_BYTES] = {2},
                     shard_c[HASH_BYTES] = {3};

static struct latents_place place(const uint8_t *shard, uint32_t index, bool mirror)
{
    return (struct latents_place){shard, SAMPLES, index, mirror};
}

static void put(struct latents *l, const uint8_t *shard, uint32_t index, bool mirror, uint16_t v)
{
    uint16_t values[VALUES];
    const struct latents_place at = place(shard, index, mirror);
    for (int i = 0; i < VALUES; i++)
        values[i] = (uint16_t)(v + i);
    latents_put(l, &at, values);
}

/* The first value of what is there, -1: nothing is. */
static int get(struct latents *l, const uint8_t *shard, uint32_t index, bool mirror)
{
    uint16_t values[VALUES];
    const struct latents_place at = place(shard, index, mirror);
    return latents_get(l, &at, values) ? values[0] : -1;
}

static void test_comes_back(void **state)
{
    struct fixture *f = *state;
    struct latents *l = open_it(f);
    assert_int_equal(get(l, shard_a, 3, false), -1);
    put(l, shard_a, 3, false, 30);
    put(l, shard_a, 3, true, 31);
    put(l, shard_b, 9, true, 90);
    assert_int_equal(get(l, shard_a, 3, false), 30);
    assert_int_equal(get(l, shard_a, 3, true), 31);
    assert_int_equal(get(l, shard_a, 2, true), -1); /* a hole */
    assert_int_equal(get(l, shard_b, 9, false), -1);
    put(l, shard_a, 3, false, 32);
    assert_int_equal(get(l, shard_a, 3, false), 32);
    latents_close(l);
    l = open_it(f); /* another phase */
    assert_int_equal(get(l, shard_b, 9, true), 90);
    latents_close(l);
    f->opt.encoder[0] = 7; /* of another encoder */
    l = open_it(f);
    assert_int_equal(get(l, shard_b, 9, true), -1);
    latents_close(l);
}

/* Flips one byte of each record's place in turn. */
static void test_damaged(void **state)
{
    struct fixture *f = *state;
    struct latents *l = open_it(f);
    struct file_names names;
    put(l, shard_a, 0, false, 5);
    assert_int_equal(file_list(f->dir, 10, &names, NULL), 0);
    assert_int_equal(names.n, 1);
    char *path = file_join(f->dir, names.items[0]);
    int fd = open(path, O_RDWR);
    for (off_t at = 0; at < RECORD; at++) {
        uint8_t byte = 0;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        assert_int_equal(get(l, shard_a, 0, false), -1);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    assert_int_equal(get(l, shard_a, 0, false), 5);
    assert_int_equal(ftruncate(fd, RECORD / 2), 0);
    assert_int_equal(get(l, shard_a, 0, false), -1);
    put(l, shard_a, 0, false, 6); /* encoded again */
    assert_int_equal(get(l, shard_a, 0, false), 6);
    (void)close(fd);
    mem_free(path);
    file_names_release(&names);
    latents_close(l);
}

/* A set that is opened after the files' clock has gone on. */
static struct latents *open_later(const struct fixture *f)
{
    struct timespec begun, now;
    (void)clock_gettime(CLOCK_REALTIME_COARSE, &begun);
    do
        (void)clock_gettime(CLOCK_REALTIME_COARSE, &now);
    while (now.tv_sec == begun.tv_sec && now.tv_nsec == begun.tv_nsec);
    return open_it(f);
}

/* Room for two shards: a third is not kept, but drives out what an earlier set has left; one that
 * is too large is not kept. */
static void test_room(void **state)
{
    struct fixture *f = *state;
    f->opt.max_bytes = 2 * 2 * SAMPLES * RECORD;
    struct latents *l = open_it(f);
    put(l, shard_a, 0, false, 1);
    put(l, shard_b, 0, false, 2);
    assert_int_equal(get(l, shard_a, 0, false), 1);
    put(l, shard_c, 0, false, 3); /* they come round in turn: the first ones stay */
    assert_int_equal(get(l, shard_a, 0, false), 1);
    assert_int_equal(get(l, shard_b, 0, false), 2);
    assert_int_equal(get(l, shard_c, 0, false), -1);
    latents_close(l);
    l = open_later(f);
    put(l, shard_c, 0, false, 3); /* one of an earlier set goes; both may be of one moment */
    assert_int_equal((get(l, shard_a, 0, false) == 1) + (get(l, shard_b, 0, false) == 2), 1);
    assert_int_equal(get(l, shard_c, 0, false), 3);
    latents_close(l);
    f->opt.max_bytes = RECORD;
    f->opt.encoder[0] = 1;
    l = open_it(f);
    put(l, shard_a, 0, false, 1);
    assert_int_equal(get(l, shard_a, 0, false), -1);
    latents_close(l);
}

/* Room is looked for, through all files, only once for files of a size. */
static void test_full_stays_full(void **state)
{
    struct fixture *f = *state;
    static const uint8_t shard_d[HASH_BYTES] = {4}, small[HASH_BYTES] = {5};
    const uint16_t values[VALUES] = {50};
    const struct latents_place at = {small, SAMPLES / 2, 0, false};
    uint16_t back[VALUES];
    struct file_names names;
    f->opt.max_bytes = 2 * 2 * SAMPLES * RECORD;
    struct latents *l = open_it(f);
    put(l, shard_a, 0, false, 1);
    assert_int_equal(file_list(f->dir, 10, &names, NULL), 0);
    put(l, shard_b, 0, false, 2);
    put(l, shard_c, 0, false, 3); /* no room */
    char *path = file_join(f->dir, names.items[0]);
    assert_int_equal(unlink(path), 0);
    put(l, shard_c, 0, false, 3);
    put(l, shard_d, 0, false, 4);
    assert_int_equal(get(l, shard_c, 0, false), -1);
    assert_int_equal(get(l, shard_d, 0, false), -1);
    put(l, shard_b, 1, false, 6); /* it is there */
    assert_int_equal(get(l, shard_b, 1, false), 6);
    latents_put(l, &at, values); /* a smaller one */
    assert_true(latents_get(l, &at, back) && back[0] == 50);
    latents_close(l);
    l = open_later(f);
    put(l, shard_d, 0, false, 4);
    assert_int_equal(get(l, shard_d, 0, false), 4);
    latents_close(l);
    mem_free(path);
    file_names_release(&names);
}

/* Two sets of encoders, used in turn, have their files in one place and keep to one maximum. */
static void test_shared_room(void **state)
{
    struct fixture *f = *state;
    f->opt.max_bytes = 2 * 2 * SAMPLES * RECORD;
    struct latents *l = open_it(f);
    f->opt.encoder[0] = 1;
    put(l, shard_a, 0, false, 1);
    struct latents *other = open_later(f);
    put(other, shard_a, 0, false, 2);
    put(other, shard_b, 0, false, 3);
    assert_int_equal(get(l, shard_a, 0, false), -1);
    put(l, shard_c, 0, false, 4); /* the newer set's stay */
    assert_int_equal(get(other, shard_a, 0, false), 2);
    assert_int_equal(get(other, shard_b, 0, false), 3);
    assert_int_equal(get(l, shard_c, 0, false), -1);
    latents_close(l);
    latents_close(other);
}

static void test_one_side(void **state)
{
    struct fixture *f = *state;
    f->opt.mirrored = false;
    struct latents *l = open_it(f);
    put(l, shard_a, 1, true, 9);
    assert_int_equal(get(l, shard_a, 1, true), -1);
    put(l, shard_a, 1, false, 8);
    assert_int_equal(get(l, shard_a, 1, false), 8);
    latents_close(l);
}

/* What is there of a range, beside holes. */
static void test_share(void **state)
{
    struct fixture *f = *state;
    struct latents *l = open_it(f);
    assert_true(latents_share(l, shard_a, 0, SAMPLES) == 0);
    put(l, shard_a, 1, false, 8);
    put(l, shard_a, 2, false, 9);
    put(l, shard_a, 2, true, 9);
    assert_true(latents_share(l, shard_a, 1, 2) == 0.75);
    assert_true(latents_share(l, shard_a, 0, 2) == 0.25);
    assert_true(latents_share(l, shard_a, 3, SAMPLES - 3) == 0);
    assert_true(latents_share(l, shard_a, 1, 0) == 0);
    assert_true(latents_share(l, shard_a, UINT32_MAX, UINT32_MAX) == 0);
    assert_true(latents_share(l, shard_b, 1, 2) == 0);
    assert_int_equal(latents_record(l), RECORD);
    latents_close(l);
    f->opt.mirrored = false;
    f->opt.max_bytes = UINT64_MAX;
    l = open_it(f);
    const struct latents_place last = {shard_c, 100000, 99999, false};
    latents_put(l, &last, (uint16_t[VALUES]){1});
    assert_true(latents_share(l, shard_c, 99999, 1) == 1);
    assert_true(latents_share(l, shard_c, 0, 100000) < 0.01);
    latents_close(l);
}

/* What the disk has free is shared, but what is kept already stays. */
static void test_half_of_the_disk(void **state)
{
    struct fixture *f = *state;
    uint64_t before, after;
    f->opt.max_bytes = UINT64_MAX;
    f->opt.spare = true;
    assert_int_equal(file_disk_free(f->dir, &before, NULL), 0);
    struct latents *l = open_it(f);
    assert_int_equal(file_disk_free(f->dir, &after, NULL), 0);
    const uint64_t least = before < after ? before : after, most = before < after ? after : before;
    assert_in_range(latents_room(l), least / 2 - least / 100, most / 2 + most / 100);
    latents_close(l);
    f->opt.max_bytes = 100 * RECORD;
    l = open_it(f);
    assert_int_equal(latents_room(l), 100 * RECORD);
    latents_close(l);
}

static void test_measures(void **state)
{
    struct fixture *f = *state;
    struct file_names names;
    struct err err = {0};
    double put_s = 0, get_s = 0;
    struct latents *l = open_it(f);
    assert_int_equal(latents_measure(l, &put_s, &get_s, &err), 0);
    assert_true(put_s > 0 && get_s > 0 && put_s < 60 && get_s < 60);
    assert_int_equal(file_list(f->dir, 10, &names, NULL), 0);
    assert_int_equal(names.n, 0); /* nothing stays */
    file_names_release(&names);
    assert_int_equal(file_remove_tree(f->dir, NULL), 0);
    assert_true(latents_measure(l, &put_s, &get_s, &err) < 0);
    assert_non_null(strstr(err.msg, "measured"));
    assert_int_equal(file_mkdirs(f->dir, 0700, NULL), 0);
    latents_close(l);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_comes_back),  TEST(test_damaged),          TEST(test_room),
        TEST(test_shared_room), TEST(test_one_side),         TEST(test_full_stays_full),
        TEST(test_share),       TEST(test_half_of_the_disk), TEST(test_measures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
