/* What tests of the store's client share: a client and a fake store, and a file of LEN bytes. */
#ifndef TESTS_UNIT_COMMON_NET_S3_CLIENT_RIG_H
#define TESTS_UNIT_COMMON_NET_S3_CLIENT_RIG_H

#include "common/base/buf.h"
#include "common/net/s3/client_impl.h"
#include "tests/unit/common/net/s3/fake_store.h"

#define LEN 100000

struct rig {
    struct fake_store f;
    struct s3 *c;
    struct err err;
    char path[64];
    uint8_t data[LEN], sha256[32];
    struct buf got;
};

static inline struct s3 *client(struct rig *r, struct s3_options o)
{
    struct s3 *c = NULL;
    o.bucket = "blobs";
    o.endpoint = r->f.url;
    o.plain = true;
    o.first_wait_ms = 1;
    if (s3_open(&o, &c, &r->err) < 0)
        fail_msg("%s", r->err.msg);
    return c;
}

static inline int begin(void **state)
{
    static struct rig r;
    memset(&r, 0, sizeof(r));
    fake_store_open(&r.f);
    r.c = client(&r, (struct s3_options){.tries = 3, .stall_s = 1, .part_bytes = 40000});
    for (size_t i = 0; i < LEN; i++)
        r.data[i] = (uint8_t)(i * 7 + i / 251);
    hash_sha256(r.data, LEN, r.sha256);
    (void)str_copy(r.path, sizeof(r.path), "/tmp/skerry-s3-XXXXXX");
    const int fd = mkstemp(r.path);
    assert_true(fd >= 0);
    assert_int_equal(file_write_all(fd, r.data, LEN, r.path, NULL), 0);
    close(fd);
    buf_init(&r.got, 2 * LEN);
    *state = &r;
    return 0;
}

static inline int end(void **state)
{
    struct rig *r = *state;
    s3_close(r->c);
    fake_store_close(&r->f);
    buf_release(&r->got);
    unlink(r->path);
    return 0;
}

static inline int keep(void *arg, const void *data, size_t len)
{
    return buf_append(arg, data, len);
}

static inline void expect_all(struct rig *r, const char *key)
{
    buf_clear(&r->got);
    if (s3_get(r->c, key, 0, LEN, keep, &r->got, &r->err) < 0)
        fail_msg("%s", r->err.msg);
    assert_int_equal(r->got.len, LEN);
    assert_memory_equal(r->got.data, r->data, LEN);
}

static inline void put(struct rig *r, const char *key)
{
    fake_set(r->f.objects, key, r->data, LEN);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

#endif
