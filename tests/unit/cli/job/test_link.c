/* How fast a link is, from the times of files: made-up transfers take made-up times. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cli/base/cli.h"
#include "cli/job/link.h"
#include "cli/job/upload.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/net/http/http_client.h"

#define SMALL (256u << 10)

static char dir[64];

/* A link: seconds before the first byte, and bytes a second. */
static struct {
    double wait_s, up, down;
    double spare_s; /* of each large file: what it takes less */
    int fails;      /* this transfer fails; 0: none */
    int n;          /* transfers so far */
    uint8_t sha256[HASH_BYTES];
    uint64_t size;
} net;

static int pass(double rate, struct err *err)
{
    double s = net.wait_s + (double)net.size / rate;
    if (net.size == LINK_LARGE_BYTES)
        s -= net.spare_s;
    clock_fake_advance((uint64_t)(s * 1e9));
    return ++net.n == net.fails ? err_set(err, -ECONNRESET, "cut") : 0;
}

/* In place of upload.c's and of http_client.c's. */
int upload_blob(struct cli *cli, const char *path, const uint8_t sha256[HASH_BYTES], uint64_t size,
                const char *what, xfer_progress_fn tell, void *arg, uint64_t *ret_sent,
                struct err *err)
{
    uint64_t there = 0;
    assert_int_equal(hash_file(path, net.sha256, &there, NULL), 0);
    assert_memory_equal(net.sha256, sha256, HASH_BYTES);
    assert_int_equal(there, size);
    net.size = size;
    return pass(net.up, err);
}

int http_get_file(struct http_client *c, const char *path, const char *file, const uint8_t *sha256,
                  xfer_progress_fn progress, void *arg, struct err *err)
{
    char hex[HASH_HEX_MAX];
    assert_false(file_exists(file)); /* else nothing would be fetched */
    assert_true(str_starts(path, "/v1/blobs/"));
    assert_string_equal(path + strlen("/v1/blobs/"), hash_hex(net.sha256, HASH_BYTES, hex));
    assert_memory_equal(net.sha256, sha256, HASH_BYTES);
    assert_int_equal(file_write_put(file, "x", 1, 0600, NULL), 0);
    return pass(net.down, err);
}

static int make(void **state)
{
    (void)snprintf(dir, sizeof dir, "/tmp/skerry-link.XXXXXX");
    clock_fake_set(CLOCK_NS_PER_S);
    return mkdtemp(dir) ? 0 : -1;
}

static int unmake(void **state)
{
    clock_fake_clear();
    return file_remove_tree(dir, NULL);
}

static int timed(double wait_s, double up, double down, int fails, double ret[2])
{
    struct cli cli = {0};
    struct err err = {0};
    struct file_names left;
    net.n = 0;
    net.wait_s = wait_s;
    net.up = up;
    net.down = down;
    net.fails = fails;
    ret[0] = ret[1] = -1;
    const int rc = link_time(&cli, dir, &ret[0], &ret[1], &err);
    assert_int_equal(file_list(dir, 10, &left, NULL), 0);
    assert_int_equal(left.n, 0); /* no file stays */
    file_names_release(&left);
    return rc;
}

/* The time before the first byte does not count. */
static void a_fast_link(void **state)
{
    double got[2];
    net.spare_s = 0;
    assert_int_equal(timed(0.05, 8e6, 4e6, 0, got), 0);
    assert_int_equal(net.n, 4);
    assert_float_equal(got[0], 8e6, 10);
    assert_float_equal(got[1], 4e6, 10);
}

/* One way is so slow that the small file says enough: no more than 10 s are taken for the large. */
static void a_slow_link(void **state)
{
    double got[2];
    assert_int_equal(timed(0, 8e6, LINK_LARGE_BYTES / 10.01, 0, got), 0);
    assert_int_equal(net.n, 2);
    assert_float_equal(got[0], 8e6, 10);
    assert_float_equal(got[1], LINK_LARGE_BYTES / 10.01, 10);
    assert_int_equal(timed(0, LINK_LARGE_BYTES / 9.99, 8e6, 0, got), 0);
    assert_int_equal(net.n, 4);
    assert_int_equal(timed(1, 8e6, 8e6, 0, got), 0); /* far away */
    assert_int_equal(net.n, 2);
    assert_float_equal(got[0], SMALL / (1 + SMALL / 8e6), 10);
}

/* A link that has become faster meanwhile: the large file's time alone. */
static void a_large_file_that_took_less(void **state)
{
    double got[2];
    net.spare_s = LINK_LARGE_BYTES / 8e6;
    assert_int_equal(timed(0.2, 8e6, 8e6, 0, got), 0);
    net.spare_s = 0;
    assert_float_equal(got[0], LINK_LARGE_BYTES / 0.2, 10);
    assert_float_equal(got[1], LINK_LARGE_BYTES / 0.2, 10);
}

/* Of a measurement that fails nothing is left, and nothing is told. */
static void a_link_that_breaks(void **state)
{
    double got[2];
    for (int i = 1; i <= 4; i++) {
        assert_int_equal(timed(0, 8e6, 8e6, i, got), -ECONNRESET);
        assert_int_equal(net.n, i);
        assert_true(got[0] == -1 && got[1] == -1);
    }
    assert_int_equal(file_remove_tree(dir, NULL), 0);
    struct cli cli = {0};
    struct err err = {0};
    assert_int_equal(link_time(&cli, dir, &got[0], &got[1], &err), -ENOENT);
    assert_non_null(strstr(err.msg, dir));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, unmake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_fast_link),
        TEST(a_slow_link),
        TEST(a_large_file_that_took_less),
        TEST(a_link_that_breaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
