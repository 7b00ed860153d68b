/* A directory of blobs: what becomes one, what counts, what is left after a stop. */
#include "common/net/blob_dir.h"

#include <sys/stat.h>
#include <time.h>

#include "common/base/file.h"
#include "common/base/str.h"
#include "tests/unit/blobs.h"
#include "tests/unit/common/net/net_test.h"

struct rig {
    struct net_test t;
    struct blobstore *s;
    char *dir;
    struct err err;
};

static void begin(struct rig *r)
{
    memset(r, 0, sizeof *r);
    net_test_init(&r->t);
    r->dir = file_join(r->t.dir, "blobs");
    assert_int_equal(blob_dir_open(r->dir, 1000, &r->s, &r->err), 0);
}

static void reopen(struct rig *r)
{
    r->s->ops->close(r->s);
    assert_int_equal(blob_dir_open(r->dir, 1000, &r->s, &r->err), 0);
}

static void end(struct rig *r)
{
    r->s->ops->close(r->s);
    mem_free(r->dir);
    net_test_release(&r->t);
}

static struct blob_id hello(struct rig *r)
{
    struct blob_id id;
    assert_int_equal(blob_put(r->s, "hello", 5, &id, &r->err), 0);
    return id;
}

/* Makes an old file of a young one. */
static void age(const char *path, time_t seconds)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time(NULL) - seconds}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void test_put_and_get(void **state)
{
    struct rig r;
    begin(&r);
    struct blob_id id = hello(&r), same = hello(&r), absent = {{1}};
    char text[8] = "";
    uint64_t size = 0;
    int fd = -1;
    assert_true(blob_id_equal(&id, &same));
    assert_int_equal(r.s->used_bytes, 5);
    assert_int_equal(r.s->count, 1);
    assert_int_equal(r.s->ops->get(r.s, &id, &fd, &size, &r.err), 0);
    assert_int_equal(size, 5);
    assert_int_equal(r.s->ops->remove(r.s, &id, &r.err), 0); /* readers go on */
    assert_int_equal(pread(fd, text, 4, 1), 4);
    assert_string_equal(text, "ello");
    close(fd);
    assert_int_equal(r.s->ops->get(r.s, &id, &fd, &size, &r.err), -ERR_NOTFOUND);
    assert_int_equal(r.s->ops->remove(r.s, &id, &r.err), 0);
    assert_int_equal(r.s->ops->touch(r.s, &absent, &r.err), -ERR_NOTFOUND);
    assert_int_equal(r.s->used_bytes, 0);
    assert_int_equal(r.s->count, 0);
    end(&r);
}

/* An upload can be read while it goes on, and after its end by who reads it already. */
static void test_part(void **state)
{
    struct rig r;
    begin(&r);
    struct blob_id id;
    struct blob_writer *w;
    char text[8] = "";
    int fd = -1;
    hash_sha256("hello", 5, id.sha256);
    assert_int_equal(r.s->ops->part(r.s, &id, 1, &fd, &r.err), -ERR_NOTFOUND);
    assert_int_equal(r.s->ops->put(r.s, &id, 1, 5, &w, &r.err), 0);
    assert_int_equal(w->ops->write(w, "hel", 3, &r.err), 0);
    assert_int_equal(r.s->ops->part(r.s, &id, 1, &fd, &r.err), 0);
    assert_int_equal(pread(fd, text, 8, 0), 3);
    assert_int_equal(w->ops->write(w, "lo", 2, &r.err), 0);
    assert_int_equal(w->ops->commit(w, 5, &r.err), 0);
    assert_int_equal(pread(fd, text, 8, 0), 5);
    assert_string_equal(text, "hello");
    close(fd);
    assert_int_equal(r.s->ops->part(r.s, &id, 1, &fd, &r.err), -ERR_NOTFOUND);
    end(&r);
}

static void test_refused(void **state)
{
    struct rig r;
    struct blob_writer *w;
    begin(&r);
    struct blob_id id = {{7}}, big;
    static const char zeros[1001];
    assert_int_equal(r.s->ops->put(r.s, &id, 1, 100, &w, &r.err), 0);
    assert_int_equal(w->ops->write(w, "abc", 3, &r.err), 0);
    assert_int_equal(w->ops->commit(w, 4, &r.err), -ERR_FORMAT);
    assert_int_equal(r.s->ops->put(r.s, &id, 1, 100, &w, &r.err), 0);
    assert_int_equal(w->size, 0); /* what was refused is gone */
    assert_int_equal(w->ops->write(w, "hellO", 5, &r.err), 0);
    assert_int_equal(w->ops->commit(w, 5, &r.err), -ERR_HASH);
    assert_int_equal(r.s->ops->put(r.s, &id, 1, 10, &w, &r.err), 0);
    assert_int_equal(w->ops->write(w, zeros, 11, &r.err), -ERR_LIMIT);
    w->ops->abort(w, false);
    assert_int_equal(blob_put(r.s, zeros, 1001, &big, &r.err), -ENOSPC);
    assert_int_equal(r.s->used_bytes, 0);
    assert_int_equal(r.s->count, 0);
    end(&r);
}

static void test_resume(void **state)
{
    struct rig r;
    struct blob_writer *w, *other;
    struct blob_id id;
    hash_sha256("hello", 5, id.sha256);
    begin(&r);
    assert_int_equal(r.s->ops->put(r.s, &id, 1, 100, &w, &r.err), 0);
    assert_int_equal(r.s->ops->put(r.s, &id, 1, 100, &other, &r.err), -EBUSY);
    assert_int_equal(w->ops->write(w, "hel", 3, &r.err), 0);
    w->ops->abort(w, true);
    reopen(&r);
    assert_int_equal(r.s->used_bytes, 3);
    assert_false(blobstore_has(r.s, &id, NULL));
    assert_int_equal(r.s->ops->put(r.s, &id, 1, 100, &w, &r.err), 0);
    assert_int_equal(w->size, 3);
    assert_int_equal(w->ops->write(w, "lo", 2, &r.err), 0);
    assert_int_equal(w->ops->commit(w, UINT64_MAX, &r.err), 0);
    assert_true(blobstore_has(r.s, &id, NULL));
    end(&r);
}

/* Nobody hinders another one's upload, by holding a name or by announcing fewer bytes. */
static void test_holders(void **state)
{
    struct rig r;
    struct blob_writer *slow, *w;
    struct blob_id id;
    int fd = -1;
    hash_sha256("hello", 5, id.sha256);
    begin(&r);
    assert_int_equal(r.s->ops->put(r.s, &id, 1, 100, &w, &r.err), 0);
    assert_int_equal(w->ops->write(w, "hel", 3, &r.err), 0);
    w->ops->abort(w, true);
    assert_int_equal(r.s->ops->part(r.s, &id, 2, &fd, &r.err), -ERR_NOTFOUND);
    assert_int_equal(r.s->ops->put(r.s, &id, 2, 1, &slow, &r.err), 0);
    assert_int_equal(slow->size, 0);
    assert_int_equal(slow->ops->write(slow, "x", 1, &r.err), 0);
    assert_int_equal(r.s->ops->put(r.s, &id, 1, 5, &w, &r.err), 0);
    assert_int_equal(w->size, 3);
    assert_int_equal(w->ops->write(w, "lo", 2, &r.err), 0);
    assert_int_equal(w->ops->commit(w, 5, &r.err), 0);
    assert_int_equal(slow->ops->commit(slow, 1, &r.err), -ERR_HASH);
    assert_true(blobstore_has(r.s, &id, NULL));
    assert_int_equal(r.s->used_bytes, 5);
    assert_int_equal(r.s->count, 1);
    end(&r);
}

/* Of two whole uploads one is the blob. */
static void test_both_whole(void **state)
{
    struct rig r;
    struct blob_writer *w[2];
    struct blob_id id;
    hash_sha256("hello", 5, id.sha256);
    begin(&r);
    for (uint64_t i = 0; i < 2; i++) {
        assert_int_equal(r.s->ops->put(r.s, &id, 1 + i, 5, &w[i], &r.err), 0);
        assert_int_equal(w[i]->ops->write(w[i], "hello", 5, &r.err), 0);
    }
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(w[i]->ops->commit(w[i], 5, &r.err), 0);
    assert_int_equal(r.s->used_bytes, 5);
    assert_int_equal(r.s->count, 1);
    end(&r);
}

/* A blob that becomes an upload again counts as written then. */
static void test_reopened_stays(void **state)
{
    struct rig r;
    struct blob_writer *w;
    begin(&r);
    const struct blob_id id = hello(&r);
    char *path = blob_dir_file(r.dir, id.sha256);
    age(path, 3600);
    assert_int_equal(blob_dir_reopen(r.s, &id, 1, &r.err), 0);
    assert_int_equal(r.s->ops->tidy(r.s, time(NULL) - 900, &r.err), 0);
    assert_int_equal(r.s->ops->put(r.s, &id, 1, 5, &w, &r.err), 0);
    assert_int_equal(w->size, 5);
    w->ops->abort(w, false);
    mem_free(path);
    end(&r);
}

static void test_old_uploads_go(void **state)
{
    struct rig r;
    struct blob_writer *w;
    struct blob_id id = {{7}};
    char hex[BLOB_HEX_MAX];
    begin(&r);
    assert_int_equal(r.s->ops->put(r.s, &id, 1, 100, &w, &r.err), 0);
    assert_int_equal(w->ops->write(w, "part", 4, &r.err), 0);
    w->ops->abort(w, true);
    blob_id_hex(&id, hex);
    char *part = str_printf("%s/tmp/%s-1.part", r.dir, hex);
    age(part, 23 * 3600);
    reopen(&r);
    assert_int_equal(r.s->ops->tidy(r.s, time(NULL) - 24 * 3600, &r.err), 0);
    assert_true(file_exists(part));
    assert_int_equal(r.s->used_bytes, 4);
    age(part, 25 * 3600);
    assert_int_equal(r.s->ops->put(r.s, &id, 1, 100, &w, &r.err), 0);
    assert_int_equal(r.s->ops->tidy(r.s, time(NULL) - 24 * 3600, &r.err), 0);
    assert_true(file_exists(part)); /* somebody goes on with it */
    w->ops->abort(w, true);
    age(part, 25 * 3600);
    assert_int_equal(r.s->ops->tidy(r.s, time(NULL) - 24 * 3600, &r.err), 0);
    assert_false(file_exists(part));
    assert_int_equal(r.s->used_bytes, 0);
    mem_free(part);
    end(&r);
}

/* Gone at once, also for the quota; the same bytes may come again before they are freed. */
static void test_hide(void **state)
{
    struct rig r;
    char hex[BLOB_HEX_MAX], byte;
    begin(&r);
    struct blob_id id = hello(&r);
    uint64_t size;
    int fd;
    blob_id_hex(&id, hex);
    char *away = str_printf("%s/tmp/%s.gone", r.dir, hex);
    assert_int_equal(r.s->ops->get(r.s, &id, &fd, &size, &r.err), 0);
    assert_int_equal(r.s->ops->hide(r.s, &id, &r.err), 0);
    assert_int_equal(r.s->ops->hide(r.s, &id, &r.err), -ERR_NOTFOUND);
    assert_false(blobstore_has(r.s, &id, NULL));
    assert_int_equal(r.s->used_bytes, 0);
    assert_int_equal(r.s->count, 0);
    (void)hello(&r);
    assert_true(file_exists(away));
    assert_int_equal(r.s->ops->tidy(r.s, 0, &r.err), 0);
    assert_false(file_exists(away));
    assert_true(blobstore_has(r.s, &id, NULL));
    assert_int_equal(pread(fd, &byte, 1, 0), 1); /* readers go on */
    close(fd);
    mem_free(away);
    end(&r);
}

static int note(void *arg, const struct blob_id *id, const struct blob_stat *st)
{
    *(struct blob_stat *)arg = *st;
    return 7;
}

static void test_list_and_touch(void **state)
{
    struct rig r;
    char path[256];
    begin(&r);
    struct blob_id id = hello(&r);
    struct blob_stat st = {0};
    assert_int_equal(blob_file(r.s, &id, path, sizeof path), 0);
    age(path, 3600);
    reopen(&r);
    assert_int_equal(r.s->count, 1);
    assert_int_equal(r.s->ops->list(r.s, note, &st, &r.err), 7);
    assert_int_equal(st.size, 5);
    assert_in_range(time(NULL) - st.touched_s, 3600, 3660);
    assert_int_equal(r.s->ops->touch(r.s, &id, &r.err), 0);
    assert_int_equal(r.s->ops->stat(r.s, &id, &st, &r.err), 0);
    assert_in_range(time(NULL) + 1 - st.touched_s, 0, 61); /* time() may be a tick behind files' */
    end(&r);
}

static int adopt(struct rig *r, const char *path, const struct blob_id *id, uint64_t size)
{
    return r->s->ops->adopt(r->s, &(struct blob_file){path, *id, size}, 1, &r->err);
}

static void test_adopt(void **state)
{
    struct rig r;
    struct blob_id id;
    hash_sha256("hello", 5, id.sha256);
    begin(&r);
    char *path = file_join(r.t.dir, "finished");
    for (int i = 0; i < 2; i++) { /* the second finds it there */
        assert_int_equal(file_write_atomic(path, "hello", 5, 0600, NULL), 0);
        assert_int_equal(adopt(&r, path, &id, 5), 0);
        assert_false(file_exists(path));
        assert_int_equal(r.s->used_bytes, 5);
    }
    static const char zeros[996];
    assert_int_equal(file_write_atomic(path, zeros, sizeof zeros, 0600, NULL), 0);
    assert_int_equal(adopt(&r, path, &id, 5), -ERR_FORMAT);
    assert_int_equal(adopt(&r, path, &id, sizeof zeros), -ENOSPC);
    assert_true(file_exists(path));
    assert_int_equal(r.s->used_bytes, 5);
    char *other = file_join(r.t.dir, "other");
    struct blob_file two[] = {{.path = other, .size = 3}, {path, id, 5}};
    hash_sha256("two", 3, two[0].id.sha256);
    assert_int_equal(file_write_atomic(other, "two", 3, 0600, NULL), 0);
    assert_int_equal(r.s->ops->adopt(r.s, two, 2, &r.err), -ERR_FORMAT);
    assert_false(file_exists(other));
    assert_true(file_exists(path) && blobstore_has(r.s, &two[0].id, NULL));
    mem_free(other);
    mem_free(path);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_and_get),    cmocka_unit_test(test_part),
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_holders),        cmocka_unit_test(test_both_whole),
        cmocka_unit_test(test_reopened_stays), cmocka_unit_test(test_old_uploads_go),
        cmocka_unit_test(test_hide),           cmocka_unit_test(test_list_and_touch),
        cmocka_unit_test(test_adopt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
