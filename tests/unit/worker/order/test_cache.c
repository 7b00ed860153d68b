/* The blob cache: limit, order of eviction, pins, damage. */
#include "tests/unit/common/base/util.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "worker/order/cache.h"

static char *dir;
static uint8_t sums[8][32];

static int setup(void **state)
{
    (void)state;
    dir = scratch_new();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_free(dir);
    return 0;
}

/* Blob i: 100 bytes. */
static void add(struct cache *c, int i)
{
    char data[100], path[CACHE_PATH_MAX];
    memset(data, 'a' + i, sizeof(data));
    hash_sha256(data, sizeof(data), sums[i]);
    OK(cache_reserve(c, sizeof(data), err));
    cache_path(c, sums[i], path);
    OK(file_write_atomic(path, data, sizeof(data), 0600, err));
    OK(cache_added(c, sums[i], err));
}

/* The first 40 bytes of blob i have come. */
static char *part_of(struct cache *c, int i)
{
    char data[100], path[CACHE_PATH_MAX];
    memset(data, 'a' + i, sizeof(data));
    hash_sha256(data, sizeof(data), sums[i]);
    cache_path(c, sums[i], path);
    char *part = str_printf("%s.part", path);
    OK(file_write_atomic(part, data, 40, 0600, err));
    return part;
}

static void damage(struct cache *c, int i, const char *how)
{
    char path[CACHE_PATH_MAX];
    cache_path(c, sums[i], path);
    struct buf b;
    OK(file_read(path, 4096, &b, err));
    b.data[50] ^= 4;
    OK(file_write_atomic(path, b.data, strcmp(how, "cut") == 0 ? 60 : b.len, 0600, err));
    buf_release(&b);
}

static void evicts_what_was_used_longest_ago(void **state)
{
    (void)state;
    struct cache *c;
    OK(cache_open(dir, 450, &c, err));
    for (int i = 0; i < 4; i++)
        add(c, i);
    assert_int_equal(cache_used_bytes(c), 400);
    OK(cache_check(c, sums[0], 100, err)); /* used just now */
    cache_pin(c, sums[1]);
    add(c, 4); /* 2 is the oldest that is neither used nor pinned */
    assert_true(cache_has(c, sums[0]));
    assert_true(cache_has(c, sums[1]));
    assert_false(cache_has(c, sums[2]));
    assert_true(cache_has(c, sums[4]));
    assert_int_equal(cache_used_bytes(c), 400);
    for (int i = 0; i < 5; i++)
        cache_pin(c, sums[i]);
    FAILS(cache_reserve(c, 100, err), "--cache-limit");
    assert_int_equal(cache_used_bytes(c), 400);
    for (int i = 0; i < 5; i++)
        cache_unpin(c, sums[i]);
    cache_unpin(c, sums[1]);
    OK(cache_reserve(c, 450, err));
    assert_int_equal(cache_used_bytes(c), 0);
    cache_close(c);
}

/* What a transfer leaves stays for as long as there is room. */
static void parts_go_like_blobs(void **state)
{
    (void)state;
    struct cache *c;
    OK(cache_open(dir, 250, &c, err));
    char *parts[] = {part_of(c, 5), part_of(c, 6)};
    for (int i = 5; i <= 6; i++)
        cache_pin(c, sums[i]);
    assert_int_equal(cache_used_bytes(c), 0);
    for (int i = 5; i <= 6; i++)
        cache_unpin(c, sums[i]);
    assert_int_equal(cache_used_bytes(c), 80);
    assert_false(cache_has(c, sums[5]));
    cache_pin(c, sums[5]); /* it goes on */
    assert_int_equal(cache_used_bytes(c), 40);
    cache_unpin(c, sums[5]);
    add(c, 0);
    add(c, 1);
    assert_int_equal(cache_used_bytes(c), 240);
    assert_true(file_exists(parts[0]));
    assert_false(file_exists(parts[1]));
    add(c, 5); /* by other means */
    assert_false(file_exists(parts[0]));
    assert_int_equal(cache_used_bytes(c), 200);
    cache_close(c);
    mem_free(parts[0]);
    mem_free(parts[1]);
}

static void makes_room_on_the_disk(void **state)
{
    (void)state;
    struct cache *c;
    OK(cache_open(dir, 0, &c, err));
    add(c, 0);
    add(c, 1);
    cache_pin(c, sums[1]);
    OK(cache_reserve(c, (uint64_t)1 << 60, err)); /* more than any disk has */
    assert_int_equal(cache_used_bytes(c), 100);
    assert_true(cache_has(c, sums[1]));
    add(c, 0);
    cache_make_room(c, 1);
    assert_true(cache_has(c, sums[0]));
    cache_make_room(c, (uint64_t)1 << 60); /* for others, likewise */
    assert_true(!cache_has(c, sums[0]) && cache_has(c, sums[1]));
    cache_close(c);
}

/* Whoever else needs the cache while a large file is removed. */
static struct cache *looked_at;
static unsigned removals;

static void *look(void *arg)
{
    (void)cache_used_bytes(looked_at);
    return NULL;
}

/* In place of the C library's. */
int unlink(const char *path)
{
    if (looked_at && str_ends(path, ".gone")) {
        struct timespec until;
        pthread_t thread;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 10;
        assert_int_equal(pthread_create(&thread, NULL, look, NULL), 0);
        assert_int_equal(pthread_timedjoin_np(thread, NULL, &until), 0);
        removals++;
    }
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

static void nobody_waits_for_a_removal(void **state)
{
    (void)state;
    struct cache *c;
    OK(cache_open(dir, 0, &c, err));
    for (int i = 0; i < 4; i++)
        add(c, i);
    looked_at = c;
    cache_remove(c, sums[0]);
    damage(c, 1, "flip");
    FAILS(cache_check(c, sums[1], 100, err), "damaged");
    cache_pin(c, sums[2]);
    cache_make_room(c, (uint64_t)1 << 60);
    cache_unpin(c, sums[2]);
    OK(cache_reserve(c, (uint64_t)1 << 60, err));
    looked_at = NULL;
    assert_int_equal(removals, 4);
    struct file_names names;
    OK(file_list(dir, 8, &names, err));
    assert_int_equal(names.n, 0);
    file_names_release(&names);
    cache_close(c);
}

static void damage_is_found(void **state)
{
    (void)state;
    struct cache *c;
    OK(cache_open(dir, 0, &c, err));
    add(c, 0);
    add(c, 1);
    OK(cache_check(c, sums[0], 100, err));
    damage(c, 0, "flip");
    FAILS(cache_check(c, sums[0], 100, err), "does not match its hash");
    assert_false(cache_has(c, sums[0]));
    FAILS(cache_check(c, sums[0], 100, err), "not in the cache");
    damage(c, 1, "cut");
    FAILS(cache_check(c, sums[1], 100, err), "cut short: 60 of 100 bytes");
    add(c, 0); /* and it can come back */
    OK(cache_check(c, sums[0], 100, err));
    assert_int_equal(cache_used_bytes(c), 100);
    cache_close(c);
}

static void survives_a_restart(void **state)
{
    (void)state;
    struct cache *c;
    OK(cache_open(dir, 0, &c, err));
    for (int i = 0; i < 3; i++)
        add(c, i);
    mem_free(part_of(c, 2)); /* of a blob that is here, it is of no use */
    char *stray = in(dir, "temporary"), *odd = in(dir, "x.part"), *part = part_of(c, 3);
    cache_close(c);
    OK(file_write_atomic(stray, "x", 1, 0600, err));
    OK(file_write_atomic(odd, "x", 1, 0600, err));
    OK(cache_open(dir, 0, &c, err));
    assert_false(file_exists(stray));
    assert_false(file_exists(odd));
    assert_true(file_exists(part));
    assert_int_equal(cache_used_bytes(c), 340);
    OK(cache_check(c, sums[2], 0, err));
    damage(c, 1, "flip"); /* before it was looked at in this life */
    FAILS(cache_check(c, sums[1], 100, err), "damaged");
    cache_close(c);
    const struct timespec old[2] = {{1, 0}, {1, 0}};
    assert_int_equal(utimensat(AT_FDCWD, part, old, 0), 0);
    OK(cache_open(dir, 100, &c, err)); /* a lower limit holds from the start */
    assert_int_equal(cache_used_bytes(c), 100);
    cache_close(c);
    assert_false(file_exists(part));
    free(stray);
    free(odd);
    free(part);
}

static void removed_file_is_absent(void **state)
{
    (void)state;
    struct cache *c;
    char path[CACHE_PATH_MAX];
    OK(cache_open(dir, 0, &c, err));
    add(c, 5);
    cache_path(c, sums[5], path);
    OK(file_remove(path, err));
    assert_int_equal(cache_check(c, sums[5], 100, NULL), -ERR_NOTFOUND);
    assert_false(cache_has(c, sums[5]));
    cache_close(c);
}

/* What is linked to takes no room, and is looked at again once its owner has changed it. */
static void links_take_no_room(void **state)
{
    (void)state;
    struct cache *c;
    char path[CACHE_PATH_MAX], *own = str_printf("%s/own", dir), *at = str_printf("%s/c", dir);
    char data[1000] = {0};
    OK(cache_open(at, 200, &c, err));
    OK(file_write_atomic(own, data, sizeof(data), 0600, err));
    hash_sha256(data, sizeof(data), sums[7]);
    cache_path(c, sums[7], path);
    assert_int_equal(symlink(own, path), 0);
    OK(cache_added(c, sums[7], err));
    cache_pin(c, sums[7]);
    add(c, 0);
    add(c, 1);
    assert_int_equal(cache_used_bytes(c), 200);
    OK(cache_check(c, sums[7], sizeof(data), err));
    data[3] = 1;
    OK(file_write_atomic(own, data, sizeof(data), 0600, err));
    assert_int_equal(cache_check(c, sums[7], sizeof(data), NULL), -ERR_HASH);
    assert_true(file_exists(own) && cache_used_bytes(c) == 200);
    cache_close(c);
    OK(cache_open(at, 200, &c, err));
    assert_int_equal(cache_used_bytes(c), 200);
    cache_close(c);
    mem_free(at);
    mem_free(own);
}

/* A file is written over only if nobody can be reading it. */
static void a_blob_is_taken(void **state)
{
    (void)state;
    struct cache *c;
    char *to = str_printf("%s.to", dir), path[CACHE_PATH_MAX];
    OK(cache_open(dir, 0, &c, err));
    assert_false(cache_take(c, sums[1], to)); /* it is not there */
    add(c, 1);
    add(c, 2);
    cache_pin(c, sums[1]);
    assert_false(cache_take(c, sums[1], to));
    cache_unpin(c, sums[1]);
    cache_keep(c, sums[1]);
    assert_false(cache_take(c, sums[1], to) || file_exists(to));
    cache_unkeep(c, sums[1]);
    assert_true(cache_take(c, sums[1], to) && file_exists(to));
    cache_path(c, sums[1], path);
    assert_false(cache_has(c, sums[1]) || file_exists(path) || cache_take(c, sums[1], to));
    assert_int_equal(cache_used_bytes(c), 100);
    cache_lend(c);
    assert_false(cache_take(c, sums[2], to));
    cache_close(c);
    OK(file_remove(to, err));
    mem_free(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(evicts_what_was_used_longest_ago, setup, teardown),
        cmocka_unit_test_setup_teardown(parts_go_like_blobs, setup, teardown),
        cmocka_unit_test_setup_teardown(makes_room_on_the_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(nobody_waits_for_a_removal, setup, teardown),
        cmocka_unit_test_setup_teardown(damage_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(survives_a_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(removed_file_is_absent, setup, teardown),
        cmocka_unit_test_setup_teardown(links_take_no_room, setup, teardown),
        cmocka_unit_test_setup_teardown(a_blob_is_taken, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
