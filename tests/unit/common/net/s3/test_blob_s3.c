/* Blobs in a store that misbehaves: whoever writes does not notice, whoever reads is told whether a
 * blob is gone or only out of reach. */
#include "tests/unit/common/net/s3/blob_s3_rig.h"

#include <sys/statvfs.h>
#include <sys/syscall.h>

#define SPARE (1ull << 30)

static _Atomic uint64_t disk_free = 1ull << 32;
static _Atomic bool full; /* no new file on the disk until its free room is asked for */

int statvfs(const char *path, struct statvfs *ret)
{
    full = false;
    *ret = (struct statvfs){
        .f_bsize = 1, .f_frsize = 1, .f_blocks = 1ull << 33, .f_bavail = disk_free};
    return 0;
}

static _Atomic ino_t unreadable; /* the file with a sector that cannot be read */
static _Atomic int unreadable_errno;

static bool reads(int fd)
{
    struct stat st;
    if (unreadable == 0 || fstat(fd, &st) < 0 || st.st_ino != unreadable)
        return true;
    errno = unreadable_errno;
    return false;
}

ssize_t read(int fd, void *ret, size_t n)
{
    return reads(fd) ? syscall(SYS_read, fd, ret, n) : -1;
}

ssize_t pread(int fd, void *ret, size_t n, off_t at)
{
    return reads(fd) ? syscall(SYS_pread64, fd, ret, n, at) : -1;
}

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    const mode_t mode = (flags & O_CREAT) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    if (full && (flags & O_CREAT) && strstr(path, ".part")) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static int count(void *arg, const struct blob_id *id, const struct blob_stat *st)
{
    assert_int_equal(st->size, LEN);
    ++*(unsigned *)arg;
    return 0;
}

/* ---- */

static void test_whole(void **state)
{
    struct rig *r = *state;
    struct blob_stat st;
    unsigned n = 0;
    const struct blob_id id = put_and_send(r, 1);
    assert_true(fake_store_has(&r->f, "p/q/cluster", NULL));
    assert_int_equal(r->s->ops->stat(r->s, &id, &st, &r->err), 0);
    assert_int_equal(st.size, LEN);
    assert_int_equal(r->s->count, 1);
    assert_int_equal(r->s->used_bytes, LEN);
    assert_false(is_far(r, &id));
    assert_int_equal(local(r, &id, false), 0);
    let_go(r, &id);
    assert_int_equal(r->s->ops->list(r->s, count, &n, &r->err), 0);
    assert_int_equal(n, 1);
    assert_int_equal(r->s->ops->hide(r->s, &id, &r->err), 0);
    assert_int_equal(r->s->ops->stat(r->s, &id, &st, &r->err), -ERR_NOTFOUND);
    assert_int_equal(local(r, &id, true), -ERR_NOTFOUND);
    UNTIL(!stored(r, &id));
    assert_int_equal(r->s->count, 0);
    assert_int_equal(r->s->used_bytes, 0);
    assert_int_equal(r->s->ops->tidy(r->s, 0, &r->err), 0);
    assert_int_equal(health(r).cache_bytes, 0);
}

/* Some bytes of a blob, here or far away, which stays there. */
static void test_read(void **state)
{
    struct rig *r = *state;
    uint8_t some[10];
    struct blob_id none = {{9}};
    const struct blob_id id = put_and_send(r, 3);
    for (int far = 0; far < 2; far++) {
        memset(some, 0, sizeof(some));
        assert_int_equal(is_far(r, &id), far);
        assert_int_equal(r->s->ops->read(r->s, &id, 5, some, sizeof(some), &r->err), 0);
        for (size_t i = 0; i < sizeof(some); i++)
            assert_int_equal(some[i], 3);
        assert_int_equal(r->s->ops->read(r->s, &id, LEN - 9, some, sizeof(some), &r->err),
                         -ERR_FORMAT);
        assert_int_equal(is_far(r, &id), far);
        (void)put_and_send(r, 4); /* two others leave it no room */
        (void)put_and_send(r, 5);
    }
    assert_int_equal(r->s->ops->read(r->s, &none, 0, some, 1, &r->err), -ERR_NOTFOUND);
}

static char *cached_path(struct rig *r, const struct blob_id *id)
{
    char *path = NULL;
    assert_int_equal(r->s->ops->local(r->s, id, false, &path, &r->err), 0);
    return path;
}

static void damage(const char *path)
{
    const int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "?", 1, 5), 1);
    close(fd);
}

#define BAD_DIGEST                                                                                 \
    "HTTP/1.1 400 Bad\r\nContent-Length: 41\r\nConnection: close\r\n\r\n"                          \
    "<Error><Code>BadDigest</Code></Error>    "

/* The store says that what came is not what its name says: damaged on its way it is sent again, and
 * damaged here it is lost, and not sent for ever. */
static void test_bad_digest(void **state)
{
    struct rig *r = *state;
    fake_store_next(&r->f, "PUT", FAKE_REPLY, BAD_DIGEST);
    (void)put_and_send(r, 1);
    r->f.down = true;
    const struct blob_id id = put(r, 2);
    char *path = cached_path(r, &id);
    damage(path);
    let_go(r, &id);
    r->s->ops->close(r->s);
    r->s = NULL;
    fake_store_settle(&r->f); /* or what it sent last would have the next answer */
    r->f.down = false;
    fake_store_next(&r->f, "PUT", FAKE_LATER, NULL); /* whose the prefix is */
    fake_store_next(&r->f, "PUT", FAKE_REPLY, BAD_DIGEST);
    reopen(r);
    UNTIL(!blobstore_has(r->s, &id, NULL));
    assert_int_equal(health(r).waiting, 0);
    assert_false(stored(r, &id));
    mem_free(path);
}

/* The same without the store's word where the file has become shorter. */
static void test_cut_short(void **state)
{
    struct rig *r = *state;
    r->f.down = true;
    const struct blob_id id = put(r, 2);
    char *path = cached_path(r, &id);
    assert_int_equal(truncate(path, 10), 0);
    let_go(r, &id);
    UNTIL(!blobstore_has(r->s, &id, NULL));
    assert_int_equal(health(r).waiting, 0);
    assert_false(stored(r, &id));
    mem_free(path);
}

/* A file that the disk has damaged is had from the store again, while it is held. */
static void test_renew(void **state)
{
    struct rig *r = *state;
    uint8_t got[HASH_BYTES];
    const struct blob_id id = put_and_send(r, 1);
    char *path = cached_path(r, &id);
    damage(path);
    assert_int_equal(r->s->ops->renew(r->s, &id, &r->err), 0);
    assert_int_equal(hash_file(path, got, NULL, NULL), 0);
    assert_memory_equal(got, id.sha256, HASH_BYTES);
    let_go(r, &id);
    mem_free(path);
    r->f.down = true;
    const struct blob_id only = put(r, 2);
    path = cached_path(r, &only);
    assert_int_equal(r->s->ops->renew(r->s, &only, &r->err), -ERR_NOTFOUND);
    assert_true(blobstore_has(r->s, &only, NULL));
    let_go(r, &only);
    mem_free(path);
}

/* What is left of uploads that nobody goes on with makes room. */
static void test_given_up(void **state)
{
    struct rig *r = *state;
    struct blob_id ids[2], id;
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    char name[BLOB_HEX_MAX];
    for (uint8_t i = 0; i < 2; i++) {
        struct blob_writer *w;
        memset(&ids[i], 20 + i, sizeof(ids[i]));
        assert_int_equal(r->s->ops->put(r->s, &ids[i], 1, LEN, &w, &r->err), 0);
        assert_int_equal(w->ops->write(w, r->data, LEN - 1, &r->err), 0);
        w->ops->abort(w, true);
        blob_id_hex(&ids[i], name);
        char *path = str_printf("%s/cache/tmp/%s-1.part", r->dir, name);
        assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
        mem_free(path);
    }
    UNTIL(try_put(r, 1, &id) == 0);
    assert_true(health(r).cache_bytes <= LEN + 1);
}

/* What is written while the store is out of reach is there, is read, and is sent when it is back.
 */
static void test_down(void **state)
{
    struct rig *r = *state;
    r->f.down = true;
    const struct blob_id a = put(r, 1), b = put(r, 2);
    assert_true(blobstore_has(r->s, &a, NULL));
    assert_false(is_far(r, &b));
    UNTIL(health(r).failing_since_unix_ms != 0);
    assert_non_null(strstr(health(r).error, "SlowDown"));
    assert_int_equal(health(r).waiting, 2);
    assert_int_equal(health(r).waiting_bytes, 2 * LEN);
    assert_int_equal(health(r).evictable_bytes, 0);
    /* The cache is full of what nobody else has: no more is taken, and nothing is lost. */
    struct blob_id c;
    assert_int_equal(try_put(r, 3, &c), -EAGAIN);
    assert_non_null(strstr(r->err.msg, "raise --store-cache"));
    r->f.down = false;
    UNTIL(stored(r, &a) && stored(r, &b) && health(r).waiting == 0);
    assert_int_equal(health(r).failing_since_unix_ms, 0);
    assert_int_equal(try_put(r, 3, &c), 0);
}

static void test_outlives_us(void **state)
{
    struct rig *r = *state;
    const struct blob_id a = put_and_send(r, 1);
    r->f.down = true;
    const struct blob_id b = put(r, 2);
    r->s->ops->close(r->s);
    r->s = NULL;
    assert_int_equal(open_as(r, "s3://blobs/p/q", "me", 0), -EAGAIN); /* says why, and ends */
    r->f.down = false;
    reopen(r);
    assert_int_equal(r->s->count, 2);
    assert_true(blobstore_has(r->s, &a, NULL));
    UNTIL(stored(r, &b));
}

/* The longest unused makes room, and comes back when it is asked for. */
static void test_cache(void **state)
{
    struct rig *r = *state;
    const struct blob_id a = put_and_send(r, 1), b = put_and_send(r, 2);
    assert_false(is_far(r, &a)); /* used now */
    const struct blob_id c = put_and_send(r, 3);
    assert_true(is_far(r, &b));
    assert_false(is_far(r, &a));
    assert_int_equal(local(r, &b, false), -EAGAIN);
    assert_int_equal(local(r, &b, true), 0);
    assert_int_equal(local(r, &c, true), 0); /* two are held */
    assert_int_equal(local(r, &a, true), -EAGAIN);
    assert_non_null(strstr(r->err.msg, "is full of blobs that are in use"));
    let_go(r, &b);
    assert_int_equal(local(r, &a, true), 0);
    assert_true(is_far(r, &b));
    assert_true(health(r).cache_bytes <= CACHE);
    /* A blob that is held outlives its name. */
    assert_int_equal(r->s->ops->hide(r->s, &a, &r->err), 0);
    UNTIL(!stored(r, &a));
    assert_false(is_far(r, &c));
    let_go(r, &a);
    let_go(r, &c);
    assert_int_equal(r->s->ops->tidy(r->s, 0, &r->err), 0);
    assert_int_equal(health(r).cache_bytes, LEN);
}

/* A disk that is smaller than the cache may become: the longest unused makes room there, too. */
static void test_small_disk(void **state)
{
    struct rig *r = *state;
    const struct blob_id a = put_and_send(r, 1), large = {{7}};
    struct blob_writer *w;
    disk_free = 0; /* where all of them are not enough, none goes */
    assert_int_equal(r->s->ops->put(r->s, &large, 1, LEN + LEN / 2, &w, &r->err), 0);
    w->ops->abort(w, false);
    assert_false(is_far(r, &a));
    disk_free = SPARE + LEN / 2;
    const struct blob_id b = put_and_send(r, 2);
    assert_true(is_far(r, &a));
    disk_free = SPARE + LEN;
    assert_int_equal(local(r, &a, true), 0); /* it has just the room */
    assert_false(is_far(r, &b));
    let_go(r, &a);
    full = true; /* too full for the file's name */
    (void)put_and_send(r, 3);
    assert_true(is_far(r, &a));
    disk_free = 1ull << 32;
}

/* What came of an upload that goes on already has its room. */
static void test_kept_upload(void **state)
{
    struct rig *r = *state;
    const struct blob_id id = {{7}};
    struct blob_writer *w;
    for (uint64_t came = 0; came <= 2 * LEN; came += LEN) {
        assert_int_equal(r->s->ops->put(r->s, &id, 1, 2 * LEN, &w, &r->err), 0);
        assert_int_equal(w->size, came);
        if (came < 2 * LEN)
            assert_int_equal(w->ops->write(w, r->data, LEN, &r->err), 0);
        w->ops->abort(w, true);
    }
}

/* A coordinator that starts each day also finds what nobody has used for a day. */
static void test_ages(void **state)
{
    static const struct {
        const char *modified;
        int64_t least_s, most_s;
        bool cached;
    } cases[] = {
        {"2020-02-03T04:05:06.000Z", 12 * 3600, 13 * 3600, true},
        {"2020-02-03T04:05:06.000Z", 12 * 3600, 13 * 3600}, /* it may have been touched since */
        {"2999-02-03T04:05:06Z", 0, 3600},                  /* the store's clock is ahead */
        {"yesterday", 0, 3600},
    };
    static char lists[sizeof(cases) / sizeof(cases[0])][512]; /* the store's thread reads them */
    struct rig *r = *state;
    const struct blob_id id = put_and_send(r, 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct blob_stat st;
        (void)snprintf(lists[i], sizeof(lists[i]),
                       "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<ListBucketResult>"
                       "<Contents><Key>%s</Key><LastModified>%s</LastModified>"
                       "<Size>%d</Size></Contents></ListBucketResult>",
                       key_of(&id), cases[i].modified, LEN);
        r->s->ops->close(r->s);
        r->s = NULL;
        char *cache = file_join(r->dir, "cache");
        if (!cases[i].cached)
            assert_int_equal(file_remove_tree(cache, NULL), 0);
        fake_store_next(&r->f, "GET", FAKE_LATER, NULL); /* whose the prefix is */
        fake_store_next(&r->f, "GET", FAKE_REPLY, lists[i]);
        reopen(r);
        assert_int_equal(r->s->ops->stat(r->s, &id, &st, &r->err), 0);
        const int64_t age_s = (int64_t)(clock_wall_ms() / 1000) - st.touched_s;
        assert_true(age_s >= cases[i].least_s && age_s < cases[i].most_s);
        mem_free(cache);
    }
}

static struct blob_id far_blob(struct rig *r)
{
    const struct blob_id a = put_and_send(r, 1);
    (void)put_and_send(r, 2);
    (void)put_and_send(r, 3);
    assert_true(is_far(r, &a));
    return a;
}

/* Only the store's word means that a blob is gone. */
static void test_out_of_reach(void **state)
{
    struct rig *r = *state;
    const struct blob_id a = far_blob(r);
    r->f.down = true;
    assert_int_equal(local(r, &a, true), -EAGAIN);
    assert_true(blobstore_has(r->s, &a, NULL));
    r->f.down = false;
    fake_store_next(&r->f, "GET", FAKE_REPLY,
                    "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    assert_int_equal(local(r, &a, true), -ERR_AUTH);
    fake_store_next(&r->f, "GET", FAKE_REPLY,
                    "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot here\n");
    assert_int_equal(local(r, &a, true), -ERR_REMOTE);
    assert_true(blobstore_has(r->s, &a, NULL));
    pthread_mutex_lock(&r->f.lock);
    fake_drop(fake_find(r->f.objects, key_of(&a), false));
    pthread_mutex_unlock(&r->f.lock);
    assert_int_equal(local(r, &a, true), -ERR_NOTFOUND);
    assert_false(blobstore_has(r->s, &a, NULL));
    assert_int_equal(put_and_send(r, 1).sha256[0], a.sha256[0]);
}

static void test_damaged(void **state)
{
    struct rig *r = *state;
    const struct blob_id a = far_blob(r);
    fake_store_next(&r->f, "GET", FAKE_CUT, NULL);
    fake_store_next(&r->f, "GET", FAKE_FLIP, NULL);
    assert_int_equal(local(r, &a, true), 0); /* on its way: it is asked for again */
    let_go(r, &a);
    pthread_mutex_lock(&r->f.lock);
    fake_find(r->f.objects, key_of(&a), false)->data[7] ^= 1;
    pthread_mutex_unlock(&r->f.lock);
    const struct blob_id b = put_and_send(r, 4), c = put_and_send(r, 5);
    assert_true(is_far(r, &a) && !is_far(r, &b) && !is_far(r, &c));
    assert_int_equal(local(r, &a, true), -ERR_HASH);
    assert_false(blobstore_has(r->s, &a, NULL)); /* nobody has it, then */
    /* It is removed, and the same bytes come again. */
    assert_int_equal(r->s->ops->remove(r->s, &a, &r->err), 0);
    assert_false(blobstore_has(r->s, &a, NULL));
    (void)put_and_send(r, 1);
    (void)put_and_send(r, 4);
    (void)put_and_send(r, 6);
    (void)put_and_send(r, 7);
    assert_true(is_far(r, &a));
    assert_int_equal(local(r, &a, true), 0);
    let_go(r, &a);
}

/* Hidden and put again at once: whatever the store's threads were at, it stays. */
static void test_again(void **state)
{
    struct rig *r = *state;
    for (uint8_t i = 0; i < 20; i++) {
        const struct blob_id a = put(r, 1);
        assert_int_equal(r->s->ops->hide(r->s, &a, &r->err), 0);
        (void)put(r, 1);
        UNTIL(health(r).waiting == 0);
    }
    const struct blob_id a = put(r, 1);
    UNTIL(stored(r, &a));
    reopen(r);
    assert_true(blobstore_has(r->s, &a, NULL));
    UNTIL(stored(r, &a)); /* a DELETE may have ended last: then it is sent after the start */
}

/* The store deletes a blob, nobody hears of it, and the same bytes come again. */
static void test_deleted_unheard(void **state)
{
    struct rig *r = *state;
    const struct blob_id a = put_and_send(r, 1);
    r->f.down = true;
    assert_int_equal(r->s->ops->hide(r->s, &a, &r->err), 0);
    UNTIL(health(r).failing_since_unix_ms > 0);
    pthread_mutex_lock(&r->f.lock);
    fake_drop(fake_find(r->f.objects, key_of(&a), false));
    pthread_mutex_unlock(&r->f.lock);
    (void)put(r, 1);
    r->f.down = false;
    UNTIL(stored(r, &a));
}

/* What the store may have of it is not what is sent now: until that is there, the blob waits, and
 * nobody is led to the store. */
static void test_sent_again(void **state)
{
    struct rig *r = *state;
    const struct blob_id a = put_and_send(r, 1);
    char *url;
    r->f.down = true;
    assert_int_equal(r->s->ops->hide(r->s, &a, &r->err), 0);
    UNTIL(health(r).failing_since_unix_ms > 0);
    fake_store_next(&r->f, "PUT", FAKE_STALL, NULL);
    (void)put(r, 1);
    const unsigned puts = r->f.puts;
    r->f.down = false;
    UNTIL(r->f.puts > puts);
    assert_int_equal(health(r).waiting, 1);
    assert_true(r->s->ops->away(r->s, &a, false, 0, &url) < 0);
}

static void test_adopt(void **state)
{
    struct rig *r = *state;
    struct blob_id id;
    char *path = file_join(r->dir, "made");
    memset(r->data, 9, LEN);
    hash_sha256(r->data, LEN, id.sha256);
    assert_int_equal(file_write_atomic(path, r->data, LEN, 0600, &r->err), 0);
    assert_int_equal(r->s->ops->adopt(r->s, &(struct blob_file){path, id, LEN}, 1, &r->err), 0);
    assert_false(file_exists(path));
    mem_free(path);
    UNTIL(stored(r, &id));
    assert_false(is_far(r, &id));
}

/* What cannot be taken is left with those after it; what was taken before is known. */
static void test_adopt_in_part(void **state)
{
    struct rig *r = *state;
    char *path[] = {file_join(r->dir, "first"), file_join(r->dir, "second")};
    for (int through = 0; through < 2; through++) {
        struct blob_file files[2];
        r->through = through == 1;
        reopen(r);
        for (int i = 0; i < 2; i++) {
            memset(r->data, 10 + 2 * through + i, LEN);
            files[i] = (struct blob_file){.path = path[i], .size = LEN};
            hash_sha256(r->data, LEN, files[i].id.sha256);
            assert_int_equal(file_write_atomic(path[i], r->data, LEN, 0600, &r->err), 0);
        }
        files[1].size += through == 0;
        r->f.down = through == 1;
        assert_int_equal(r->s->ops->adopt(r->s, files, 2, &r->err),
                         through ? -EAGAIN : -ERR_FORMAT);
        assert_true(blobstore_has(r->s, &files[0].id, NULL) == (through == 0));
        assert_true(file_exists(path[1]));
        r->f.down = false;
    }
    for (int i = 0; i < 2; i++)
        mem_free(path[i]);
}

/* Somebody empties the directory: what the store has comes back, and what it has not is gone. */
static void test_emptied(void **state)
{
    struct rig *r = *state;
    const struct blob_id a = put_and_send(r, 1);
    r->f.down = true;
    const struct blob_id b = put(r, 2);
    char *cache = file_join(r->dir, "cache"), *one = blob_dir_file(cache, a.sha256),
         *two = blob_dir_file(cache, b.sha256);
    uint64_t size;
    int fd;
    UNTIL(health(r).failing_since_unix_ms != 0);
    assert_int_equal(unlink(one) | unlink(two), 0);
    assert_true(is_far(r, &a));
    assert_int_equal(r->s->ops->get(r->s, &b, &fd, &size, &r->err), -ERR_NOTFOUND);
    assert_false(blobstore_has(r->s, &b, NULL));
    r->f.down = false;
    reopen(r); /* the directory is counted anew */
    assert_int_equal(local(r, &a, true), 0);
    let_go(r, &a);
    mem_free(cache);
    mem_free(one);
    mem_free(two);
}

static void test_stop(void **state)
{
    struct rig *r = *state;
    const struct blob_id a = far_blob(r);
    r->s->ops->stop(r->s);
    assert_int_equal(local(r, &a, true), -ERR_CANCELLED);
}

static void expect(struct rig *r, const char *url, const char *cluster, int code, const char *why)
{
    r->s->ops->close(r->s);
    r->s = NULL;
    const int rc = open_as(r, url, cluster, 0);
    assert_int_equal(rc, code);
    if (!strstr(r->err.msg, why))
        fail_msg("'%s' is not in: %s", why, r->err.msg);
    reopen(r);
}

static void test_refused(void **state)
{
    struct rig *r = *state;
    expect(r, "s3://blobs/p/q", "other", -ERR_CONFIG, "has the blobs of another cluster (me)");
    r->known = true;
    expect(r, "s3://blobs/x", "me", -ERR_CONFIG, "does not know this cluster");
    r->known = false;
    expect(r, "blobs/p", "me", -ERR_CONFIG, "expected s3://BUCKET or s3://BUCKET/PREFIX");
    expect(r, "s3://blobs/a b", "me", -ERR_CONFIG, "expected s3://BUCKET");
    expect(r, "s3://", "me", -ERR_CONFIG, "expected s3://BUCKET");
    fake_store_next(&r->f, "PUT", FAKE_REPLY,
                    "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    expect(r, "s3://blobs/p/q", "me", -ERR_AUTH, "may not write into the bucket blobs");
    reopen(r);
    fake_store_next(&r->f, "DELETE", FAKE_REPLY,
                    "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    expect(r, "s3://blobs/p/q", "me", -ERR_AUTH, "s3:DeleteObject");
}

static void test_quota(void **state)
{
    struct rig *r = *state;
    struct blob_id id;
    r->s->ops->close(r->s);
    assert_int_equal(open_as(r, "s3://blobs/p/q", "me", LEN), 0);
    (void)put(r, 1);
    assert_int_equal(try_put(r, 2, &id), -ENOSPC);
    assert_non_null(strstr(r->err.msg, "quota is used up"));
}

/* The store has other bytes of it, as the list says: what counts is ours. */
static void test_quota_of_other_length(void **state)
{
    struct rig *r = *state;
    const struct blob_id id = put_and_send(r, 1);
    pthread_mutex_lock(&r->f.lock);
    fake_find(r->f.objects, key_of(&id), false)->len = 10;
    pthread_mutex_unlock(&r->f.lock);
    reopen(r);
    assert_int_equal(r->s->used_bytes, LEN);
    assert_int_equal(r->s->ops->hide(r->s, &id, &r->err), 0);
    assert_int_equal(r->s->used_bytes, 0);
    assert_int_equal(r->s->count, 0);
}

/* A blob is here when the store has it, and not before: our disk is not to be relied on. */
static void test_through(void **state)
{
    struct rig *r = *state;
    struct blob_id id;
    r->through = true;
    reopen(r);
    id = put(r, 1);
    assert_true(stored(r, &id));
    const unsigned deletes = r->f.deletes;
    r->f.down = true;
    assert_int_equal(try_put(r, 2, &id), -EAGAIN);
    assert_non_null(strstr(r->err.msg, "is busy or broken"));
    assert_false(blobstore_has(r->s, &id, NULL));
    r->f.down = false;
    UNTIL(r->f.deletes > deletes); /* perhaps the store had taken it */
    UNTIL(health(r).failing_since_unix_ms == 0);
    id = put(r, 2);
    assert_true(stored(r, &id) && blobstore_has(r->s, &id, NULL));
    id = put(r, 2); /* once more: it is there */
    assert_int_equal(local(r, &id, true), 0);
}

/* Commits what came earlier. */
static int commit_again(struct rig *r, const struct blob_id *id)
{
    struct blob_writer *w;
    assert_int_equal(r->s->ops->put(r->s, id, 1, LEN, &w, &r->err), 0);
    assert_int_equal(w->size, LEN);
    return w->ops->commit(w, LEN, &r->err);
}

/* What came whole while the store refused it is kept, so that it need not come again; and the store
 * is not asked with each question. */
static void test_through_keeps_what_came(void **state)
{
    struct rig *r = *state;
    struct blob_id id;
    r->through = true;
    reopen(r);
    r->f.down = true;
    assert_int_equal(try_put(r, 1, &id), -EAGAIN);
    assert_false(blobstore_has(r->s, &id, NULL));
    r->f.down = false;
    reopen(r); /* also across a start */
    r->f.down = true;
    assert_int_equal(commit_again(r, &id), -EAGAIN);
    assert_int_equal(health(r).evictable_bytes, 0); /* an upload */
    uint64_t requests;
    UNTIL((requests = health(r).requests, commit_again(r, &id)) == -EAGAIN &&
          health(r).requests == requests);           /* each refusal doubles the pause */
    assert_non_null(strstr(r->err.msg, "SlowDown")); /* the store's own words */
    r->f.down = false;
    UNTIL(commit_again(r, &id) == 0);
    assert_true(stored(r, &id) && blobstore_has(r->s, &id, NULL));
    assert_int_equal(health(r).cache_bytes, LEN);
    assert_int_equal(health(r).evictable_bytes, LEN);
}

/* A process that ended between its disk and the store: whoever is told of the blob after the next
 * start is told what the store has. */
static void *put_one(void *arg)
{
    return (void *)(intptr_t)try_put(arg, 1, &(struct blob_id){0});
}

/* The store takes its time with a blob that came: it need not come again meanwhile. */
static void test_through_takes_time(void **state)
{
    struct rig *r = *state;
    struct blob_id id;
    struct blob_writer *w;
    struct err err = {0};
    pthread_t thread;
    void *rc;
    r->through = true;
    reopen(r);
    memset(r->data, 1, LEN);
    hash_sha256(r->data, LEN, id.sha256);
    const unsigned puts = r->f.puts;
    fake_store_next(&r->f, "PUT", FAKE_STALL, NULL);
    assert_int_equal(pthread_create(&thread, NULL, put_one, r), 0);
    UNTIL(r->f.puts > puts);
    assert_int_equal(r->s->ops->put(r->s, &id, 1, LEN, &w, &err), -EBUSY);
    assert_non_null(strstr(err.msg, "on its way to the store"));
    pthread_mutex_lock(&r->f.lock);
    assert_int_equal(shutdown(r->f.stalled[0], SHUT_RDWR), 0);
    pthread_mutex_unlock(&r->f.lock);
    assert_int_equal(pthread_join(thread, &rc), 0);
    assert_int_equal((intptr_t)rc, 0);
    assert_true(stored(r, &id) && blobstore_has(r->s, &id, NULL));
}

static void test_through_starts_with_all(void **state)
{
    struct rig *r = *state;
    r->f.down = true;
    const struct blob_id id = put(r, 1); /* in the directory alone */
    UNTIL(health(r).failing_since_unix_ms > 0);
    r->s->ops->close(r->s);
    r->s = NULL;
    r->through = true;
    fake_store_settle(&r->f); /* or what it sent last would have the next answer */
    r->f.down = false;
    fake_store_next(&r->f, "PUT", FAKE_LATER, NULL); /* whose the prefix is */
    fake_store_next(&r->f, "PUT", FAKE_REPLY,
                    "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    assert_int_equal(open_as(r, "s3://blobs/p/q", "me", 0), -EAGAIN);
    assert_non_null(strstr(r->err.msg, "may not write into the bucket blobs"));
    assert_false(stored(r, &id));
    reopen(r);
    assert_true(blobstore_has(r->s, &id, NULL) && stored(r, &id));
}

/* A file that waits to be sent has an unreadable sector: the blob is lost, and does not keep the
 * coordinator from starting.  Another error of our disk is named. */
static void test_through_starts_without_unreadable(void **state)
{
    struct rig *r = *state;
    struct stat st;
    r->f.down = true;
    const struct blob_id a = put(r, 1), b = put(r, 2);
    char *path = cached_path(r, &a);
    assert_int_equal(stat(path, &st), 0);
    mem_free(path);
    let_go(r, &a);
    UNTIL(health(r).failing_since_unix_ms > 0);
    r->s->ops->close(r->s);
    r->s = NULL;
    r->through = true;
    fake_store_settle(&r->f);
    r->f.down = false;
    unreadable = st.st_ino;
    unreadable_errno = EACCES;
    assert_true(open_as(r, "s3://blobs/p/q", "me", 0) < 0);
    assert_non_null(strstr(r->err.msg, "Permission denied"));
    unreadable_errno = EIO;
    reopen(r);
    assert_false(blobstore_has(r->s, &a, NULL) || stored(r, &a));
    assert_true(blobstore_has(r->s, &b, NULL) && stored(r, &b));
    unreadable = 0;
}

static int name_saved(void *arg, const char *name)
{
    char *all = arg;
    (void)snprintf(all + strlen(all), 512 - strlen(all), "%s ", name);
    return 0;
}

/* Files that are no blobs: kept under their names, brought back, dropped. */
static void test_beside(void **state)
{
    struct rig *r = *state;
    uint8_t sha256[32];
    char *path = file_join(r->dir, "file"), *back = file_join(r->dir, "back");
    assert_null(r->s->ops->save);
    r->through = true;
    reopen(r);
    assert_int_equal(file_write_put(path, "state", 5, 0600, NULL), 0);
    assert_int_equal(hash_file(path, sha256, NULL, NULL), 0);
    assert_int_equal(r->s->ops->save(r->s, "outer/1/a", path, sha256, 5, &r->err), 0);
    assert_int_equal(r->s->ops->save(r->s, "outer/10/a", path, sha256, 5, &r->err), 0);
    assert_int_equal(r->s->ops->fetch(r->s, "outer/1/a", back, sha256, 5, &r->err), 0);
    assert_true(file_exists(back));
    char all[512] = "", want[512], hex[HASH_HEX_MAX];
    assert_int_equal(r->s->ops->saved(r->s, "outer/1", name_saved, all, &r->err), 0);
    (void)hash_hex(sha256, 32, hex);
    (void)snprintf(want, sizeof(want), "outer/1/a-%s outer/10/a-%s ", hex, hex);
    assert_string_equal(all, want);
    assert_int_equal(r->s->ops->drop(r->s, "outer/1/", &r->err), 0);
    assert_int_equal(r->s->ops->fetch(r->s, "outer/1/a", back, sha256, 5, &r->err), -ERR_NOTFOUND);
    assert_int_equal(r->s->ops->fetch(r->s, "outer/10/a", back, sha256, 5, &r->err), 0);
    fake_set(r->f.objects, "p/q/outer/2/b", "older", 5); /* of a release whose keys had no hash */
    assert_int_equal(r->s->ops->fetch(r->s, "outer/2/b", back, sha256, 5, &r->err), 0);
    r->through = false;
    reopen(r);
    assert_null(r->s->ops->save); /* what was saved before can still be had */
    assert_int_equal(file_remove(back, NULL), 0);
    assert_int_equal(r->s->ops->fetch(r->s, "outer/10/a", back, sha256, 5, &r->err), 0);
    assert_true(file_exists(back));
    mem_free(path);
    mem_free(back);
}

#define BESIDE 100000 /* in parts of 40000 */

static int save_filled(struct rig *r, char *data, char fill, uint8_t sha256[32])
{
    char *path = file_join(r->dir, "file");
    memset(data, fill, BESIDE);
    assert_int_equal(file_write_put(path, data, BESIDE, 0600, NULL), 0);
    assert_int_equal(hash_file(path, sha256, NULL, NULL), 0);
    const int rc = r->s->ops->save(r->s, "outer/1/a", path, sha256, BESIDE, &r->err);
    mem_free(path);
    return rc;
}

static void expect_back(struct rig *r, const uint8_t sha256[32])
{
    uint8_t got[32];
    char *back = file_join(r->dir, "back");
    if (r->s->ops->fetch(r->s, "outer/1/a", back, sha256, BESIDE, &r->err) < 0)
        fail_msg("%s", r->err.msg);
    assert_int_equal(hash_file(back, got, NULL, NULL), 0);
    assert_memory_equal(got, sha256, 32);
    mem_free(back);
}

/* A step that is made again makes other bytes of the same length: the parts of those that were cut
 * off are not among them.  Nor do later ones replace what a record names. */
static void test_beside_made_again(void **state)
{
    struct rig *r = *state;
    uint8_t first[32], second[32], third[32];
    char *data = mem_alloc(BESIDE);
    r->through = true;
    r->part_bytes = 40000;
    reopen(r);
    fake_store_next(&r->f, "PUT", FAKE_LATER, NULL);
    fake_store_next(&r->f, "PUT", FAKE_REPLY, /* the second part is refused for good */
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    assert_int_equal(save_filled(r, data, 'a', first), -ERR_REMOTE);
    assert_int_equal(save_filled(r, data, 'b', second), 0);
    expect_back(r, second);
    assert_int_equal(save_filled(r, data, 'c', third), 0);
    expect_back(r, second);
    expect_back(r, third);
    mem_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_whole, begin, end),
        cmocka_unit_test_setup_teardown(test_bad_digest, begin, end),
        cmocka_unit_test_setup_teardown(test_cut_short, begin, end),
        cmocka_unit_test_setup_teardown(test_renew, begin, end),
        cmocka_unit_test_setup_teardown(test_given_up, begin, end),
        cmocka_unit_test_setup_teardown(test_down, begin, end),
        cmocka_unit_test_setup_teardown(test_outlives_us, begin, end),
        cmocka_unit_test_setup_teardown(test_cache, begin, end),
        cmocka_unit_test_setup_teardown(test_small_disk, begin, end),
        cmocka_unit_test_setup_teardown(test_kept_upload, begin, end),
        cmocka_unit_test_setup_teardown(test_ages, begin, end),
        cmocka_unit_test_setup_teardown(test_read, begin, end),
        cmocka_unit_test_setup_teardown(test_out_of_reach, begin, end),
        cmocka_unit_test_setup_teardown(test_damaged, begin, end),
        cmocka_unit_test_setup_teardown(test_again, begin, end),
        cmocka_unit_test_setup_teardown(test_deleted_unheard, begin, end),
        cmocka_unit_test_setup_teardown(test_sent_again, begin, end),
        cmocka_unit_test_setup_teardown(test_adopt, begin, end),
        cmocka_unit_test_setup_teardown(test_adopt_in_part, begin, end),
        cmocka_unit_test_setup_teardown(test_emptied, begin, end),
        cmocka_unit_test_setup_teardown(test_stop, begin, end),
        cmocka_unit_test_setup_teardown(test_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_quota, begin, end),
        cmocka_unit_test_setup_teardown(test_quota_of_other_length, begin, end),
        cmocka_unit_test_setup_teardown(test_through, begin, end),
        cmocka_unit_test_setup_teardown(test_through_keeps_what_came, begin, end),
        cmocka_unit_test_setup_teardown(test_through_takes_time, begin, end),
        cmocka_unit_test_setup_teardown(test_through_starts_with_all, begin, end),
        cmocka_unit_test_setup_teardown(test_through_starts_without_unreadable, begin, end),
        cmocka_unit_test_setup_teardown(test_beside, begin, end),
        cmocka_unit_test_setup_teardown(test_beside_made_again, begin, end),
    };
    return cmocka_run_group_tests_name("blob_s3", tests, NULL, NULL);
}
