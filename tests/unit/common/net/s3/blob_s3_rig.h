/* Blobs in a store that misbehaves, for the tests of blob_s3.h. */
#ifndef TESTS_UNIT_COMMON_NET_S3_BLOB_S3_RIG_H
#define TESTS_UNIT_COMMON_NET_S3_BLOB_S3_RIG_H

#include "common/net/s3/blob_s3.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "common/net/blobstore.h"
#include "tests/unit/blobs.h"
#include "tests/unit/common/net/s3/fake_store.h"

#define LEN 100000
#define CACHE 250000

struct rig {
    struct fake_store f;
    char dir[64];
    struct blobstore *s;
    struct err err;
    uint8_t data[LEN];
    bool known, through;
    uint64_t part_bytes;
    const char *lead; /* whether others are led there */
};

static inline int open_as(struct rig *r, const char *url, const char *cluster, uint64_t quota)
{
    char *cache = file_join(r->dir, "cache");
    const struct blob_s3_options o = {
        .url = url,
        .s3 = {.endpoint = r->f.url,
               .plain = true,
               .tries = 2,
               .first_wait_ms = 1,
               .stall_s = 5,
               .part_bytes = r->part_bytes},
        .cache_dir = cache,
        .cache_bytes = CACHE,
        .quota_bytes = quota,
        .cluster = cluster,
        .known = r->known,
        .through = r->through,
        .lead = r->lead,
    };
    const int rc = blob_s3_open(&o, &r->s, &r->err);
    mem_free(cache);
    return rc;
}

static inline void reopen(struct rig *r)
{
    if (r->s)
        r->s->ops->close(r->s);
    r->s = NULL;
    if (open_as(r, "s3://blobs/p/q/", "me", 0) < 0)
        fail_msg("%s", r->err.msg);
}

static inline int begin(void **state)
{
    static struct rig r;
    memset(&r, 0, sizeof(r));
    r.lead = "yes";
    fake_store_open(&r.f);
    (void)str_copy(r.dir, sizeof(r.dir), "/tmp/skerry-s3-XXXXXX");
    assert_non_null(mkdtemp(r.dir));
    reopen(&r);
    *state = &r;
    return 0;
}

static inline int end(void **state)
{
    struct rig *r = *state;
    if (r->s)
        r->s->ops->close(r->s);
    fake_store_close(&r->f);
    assert_int_equal(file_remove_tree(r->dir, NULL), 0);
    return 0;
}

/* Until the condition holds; other threads make it. */
#define UNTIL(cond) WAIT_DOING(cond, (void)poll(NULL, 0, 1))

static inline const char *key_of(const struct blob_id *id)
{
    static char key[128];
    char hex[BLOB_HEX_MAX];
    blob_id_hex(id, hex);
    (void)snprintf(key, sizeof(key), "p/q/blobs/%s", hex);
    return key;
}

static inline bool stored(struct rig *r, const struct blob_id *id)
{
    return fake_store_has(&r->f, key_of(id), NULL);
}

static inline struct blob_health health(struct rig *r)
{
    struct blob_health h;
    r->s->ops->health(r->s, &h);
    return h;
}

/* A blob of its own for each number. */
static inline int try_put(struct rig *r, uint8_t n, struct blob_id *ret)
{
    memset(r->data, n, LEN);
    return blob_put(r->s, r->data, LEN, ret, &r->err);
}

static inline struct blob_id put(struct rig *r, uint8_t n)
{
    struct blob_id id;
    if (try_put(r, n, &id) < 0)
        fail_msg("%s", r->err.msg);
    return id;
}

static inline struct blob_id put_and_send(struct rig *r, uint8_t n)
{
    const struct blob_id id = put(r, n);
    UNTIL(health(r).waiting == 0);
    assert_true(stored(r, &id));
    return id;
}

static inline int local(struct rig *r, const struct blob_id *id, bool wait)
{
    char *path = NULL;
    const int rc = r->s->ops->local(r->s, id, wait, &path, &r->err);
    uint8_t got[HASH_BYTES];
    if (rc == 0) {
        assert_int_equal(hash_file(path, got, NULL, NULL), 0);
        assert_memory_equal(got, id->sha256, HASH_BYTES);
    }
    mem_free(path);
    return rc;
}

static inline void let_go(struct rig *r, const struct blob_id *id)
{
    r->s->ops->let_go(r->s, id);
}

static inline bool is_far(struct rig *r, const struct blob_id *id)
{
    uint64_t size;
    int fd;
    const int rc = r->s->ops->get(r->s, id, &fd, &size, &r->err);
    if (rc == 0) {
        assert_int_equal(size, LEN);
        close(fd);
    }
    assert_true(rc == 0 || rc == -EAGAIN);
    return rc != 0;
}

#endif
