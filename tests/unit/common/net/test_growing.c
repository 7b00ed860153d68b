/* A file that is sent while it is written: nothing is read before it is there, and what was
 * received is the file. */
#include "common/net/growing.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "tests/unit/common/net/net_test.h"

#define BYTES 300000u
#define FROM 1001u

struct rig {
    struct net_test t;
    char *path, *sent, *to;
    uint8_t data[BYTES];
    int fd;
    struct growing *g;
};

static void begin(struct rig *r)
{
    memset(r, 0, sizeof *r);
    net_test_init(&r->t);
    r->path = file_join(r->t.dir, "delta");
    r->sent = file_join(r->t.dir, "sent");
    r->to = file_join(r->t.dir, "to");
    hash_random(r->data, BYTES);
    r->fd = open(r->path, O_RDWR | O_CREAT, 0600);
    assert_true(r->fd >= 0);
    r->g = growing_new(r->fd, FROM, BYTES);
    assert_non_null(r->g);
}

static void end(struct rig *r)
{
    growing_drop(r->g);
    close(r->fd);
    mem_free(r->path);
    mem_free(r->sent);
    mem_free(r->to);
    net_test_release(&r->t);
}

static void put(struct rig *r, size_t from, size_t to)
{
    assert_int_equal(pwrite(r->fd, r->data + from, to - from, (off_t)from), to - from);
}

/* Writes the payload piece by piece, and the beginning with the last one. */
static void *write_all(void *arg)
{
    struct rig *r = arg;
    for (size_t at = FROM; at < BYTES; at += 7777) {
        const size_t end = at + 7777 < BYTES ? at + 7777 : BYTES;
        put(r, at, end);
        if (end == BYTES)
            put(r, 0, FROM);
        growing_reach(r->g, end);
    }
    return NULL;
}

static void test_while_it_is_written(void **state)
{
    static struct rig r;
    uint8_t piece[5000], got[32], want[32];
    uint64_t pos = 0, bytes = 0;
    struct err err = {0};
    pthread_t thread;
    begin(&r);
    int out = open(r.sent, O_RDWR | O_CREAT, 0600);
    assert_int_equal(growing_length(r.g), BYTES + 8);
    assert_int_equal(pthread_create(&thread, NULL, write_all, &r), 0);
    while (pos < BYTES + 8) {
        const ssize_t n = growing_read(r.g, pos, piece, sizeof piece);
        assert_true(n >= 0);
        assert_int_equal(pwrite(out, piece, (size_t)n, (off_t)pos), n);
        pos += (uint64_t)n;
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    close(out);
    if (growing_restore(r.sent, r.to, got, &bytes, &err) < 0)
        fail_msg("%s", err.msg);
    hash_sha256(r.data, BYTES, want);
    assert_memory_equal(got, want, 32);
    assert_int_equal(bytes, BYTES);
    assert_int_equal(hash_file(r.to, got, NULL, &err), 0);
    assert_memory_equal(got, want, 32);
    end(&r);
}

static void test_not_yet_and_never(void **state)
{
    static struct rig r;
    uint8_t piece[5000];
    begin(&r);
    assert_int_equal(growing_read(r.g, 3, piece, sizeof piece), 5); /* where it begins is known */
    assert_int_equal(growing_read(r.g, 8, piece, sizeof piece), 0);
    put(&r, FROM, FROM + 10);
    growing_reach(r.g, FROM + 10);
    assert_int_equal(growing_read(r.g, 8, piece, sizeof piece), 10);
    assert_memory_equal(piece, r.data + FROM, 10);
    assert_int_equal(growing_read(r.g, 18, piece, sizeof piece), 0);
    put(&r, FROM + 10, BYTES);
    growing_reach(r.g, BYTES - 1);
    assert_int_equal(growing_read(r.g, BYTES - FROM + 8, piece, sizeof piece), 0);
    put(&r, 0, FROM);
    growing_reach(r.g, BYTES);
    assert_int_equal(growing_read(r.g, BYTES - FROM + 8, piece, sizeof piece), FROM);
    assert_memory_equal(piece, r.data, FROM);
    struct growing *other = growing_share(r.g), *again = growing_new(r.fd, FROM, BYTES);
    assert_string_equal(growing_tag(other), growing_tag(r.g));
    assert_string_not_equal(growing_tag(again), growing_tag(r.g));
    growing_drop(again);
    assert_false(growing_is_given_up(r.g));
    growing_give_up(other);
    assert_true(growing_is_given_up(r.g));
    growing_drop(other);
    assert_int_equal(growing_read(r.g, 8, piece, sizeof piece), -1);
    end(&r);
}

/* What is no such file is none. */
static void test_bad_files(void **state)
{
    static struct rig r;
    static const char *const bad[] = {"", "short", "\377\377\377\377\377\377\377\377rest",
                                      "\005\0\0\0\0\0\0\0rest"};
    static const size_t lengths[] = {0, 5, 12, 12};
    uint8_t got[32];
    uint64_t bytes;
    begin(&r);
    for (size_t i = 0; i < 4; i++) {
        struct err err = {0};
        assert_int_equal(file_write_put(r.sent, bad[i], lengths[i], 0600, &err), 0);
        assert_int_equal(growing_restore(r.sent, r.to, got, &bytes, &err), -ERR_FORMAT);
        assert_false(file_exists(r.to));
    }
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_while_it_is_written),
        cmocka_unit_test(test_not_yet_and_never),
        cmocka_unit_test(test_bad_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
