/* The store: rows survive kill -9 once their commit returned, a failing disk loses nothing, newer
 * schemas are refused, and a row that is as it was is not written. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/rng.h"
#include "coordinator/state/store.h"

static char dir[] = "/tmp/skerry-test-store-XXXXXX";
static char path[128];

static const char *const migrations[] = {
    "CREATE TABLE t(id INTEGER PRIMARY KEY, x REAL, s TEXT, b BLOB) STRICT",
    "ALTER TABLE t ADD COLUMN more INTEGER",
};
static const char *const statements[] = {"INSERT OR REPLACE INTO t(id,x,s,b) VALUES(?,?,?,?)",
                                         "INSERT INTO absent VALUES(1)"};

static int setup(void **state)
{
    char *made = mkdtemp(dir);
    (void)snprintf(path, sizeof(path), "%s/db", dir);
    return made == NULL;
}

static int teardown(void **state)
{
    return file_remove_tree(dir, NULL);
}

static void fresh(void)
{
    char name[160];
    static const char *const ends[] = {"", "-wal", "-shm"};
    for (int i = 0; i < 3; i++) {
        (void)snprintf(name, sizeof(name), "%s%s", path, ends[i]);
        (void)unlink(name); /* may not exist */
    }
}

static struct store *open_schema(int n)
{
    static struct store_schema schema;
    struct store *s = NULL;
    struct err err = {0};
    schema = (struct store_schema){migrations, n, statements, 1};
    if (store_open(path, &schema, &s, &err) < 0)
        fail_msg("%s", err.msg);
    return s;
}

static int64_t count(struct store *s)
{
    sqlite3_stmt *q;
    assert_int_equal(store_select(s, "SELECT count(*) FROM t", &q, NULL), 0);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return n;
}

static void test_values(void **state)
{
    fresh();
    struct store *s = open_schema(1);
    sqlite3_stmt *q;
    store_put(s, 0, "idtb", INT64_MIN, 2.5, "text", "a\0b", (size_t)3);
    store_put(s, 0, "idtb", (int64_t)2, (double)NAN, NULL, NULL, (size_t)0);
    assert_int_equal(store_queued(s), 2);
    assert_int_equal(count(s), 0);
    assert_int_equal(store_commit(s, NULL), 0);
    assert_int_equal(store_queued(s), 0);
    assert_int_equal(store_select(s, "SELECT x, s, b FROM t ORDER BY id", &q, NULL), 0);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    assert_true(sqlite3_column_double(q, 0) == 2.5);
    assert_string_equal(store_text(q, 1), "text");
    assert_int_equal(sqlite3_column_bytes(q, 2), 3);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    for (int i = 0; i < 3; i++)
        assert_int_equal(sqlite3_column_type(q, i), SQLITE_NULL);
    assert_string_equal(store_text(q, 1), "");
    sqlite3_finalize(q);
    store_close(s);
}

static void test_migrates(void **state)
{
    fresh();
    struct store *s = open_schema(1);
    struct err err = {0};
    store_put(s, 0, "idtb", (int64_t)1, 1.0, "kept", NULL, (size_t)0);
    assert_int_equal(store_commit(s, NULL), 0);
    store_close(s);
    s = open_schema(2);
    assert_int_equal(count(s), 1);
    store_close(s);
    const struct store_schema old = {migrations, 1, statements, 1};
    assert_int_equal(store_open(path, &old, &s, &err), -ERR_VERSION);
    assert_non_null(strstr(err.msg, "newer release"));
}

static void test_not_a_database(void **state)
{
    const struct store_schema schema = {migrations, 1, statements, 1};
    struct store *s = NULL;
    struct err err = {0};
    char junk[4096];
    fresh();
    memset(junk, 'x', sizeof(junk));
    assert_int_equal(file_write_atomic(path, junk, sizeof(junk), 0600, NULL), 0);
    assert_true(store_open(path, &schema, &s, &err) < 0);
    assert_non_null(strstr(err.msg, path));
}

/* Moved away, or another put in its place: nothing is acknowledged, and nothing lost when it
 * comes back. */
static void test_moved_away(void **state)
{
    struct err err = {0};
    char away[160];
    fresh();
    struct store *s = open_schema(1);
    (void)snprintf(away, sizeof(away), "%s.away", path);
    store_put(s, 0, "idtb", (int64_t)1, 0.5, "x", NULL, (size_t)0);
    assert_int_equal(store_commit(s, &err), 0);
    assert_int_equal(rename(path, away), 0);
    store_put(s, 0, "idtb", (int64_t)2, 0.5, "x", NULL, (size_t)0);
    for (int twice = 0; twice < 2; twice++) {
        assert_int_equal(store_commit(s, &err), -EIO);
        assert_non_null(strstr(err.msg, "was removed or replaced"));
        assert_int_equal(file_write_atomic(path, "other", 5, 0600, NULL), 0);
    }
    assert_int_equal(count(s), 1);
    assert_int_equal(rename(away, path), 0);
    assert_int_equal(store_commit(s, &err), 0);
    store_close(s);
    s = open_schema(1);
    assert_int_equal(count(s), 2);
    store_close(s);
}

static ssize_t write_nothing(int fd, const void *data, size_t len, off_t at)
{
    errno = EROFS;
    return -1;
}

/* A disk that fails is mounted again without writing: the sentence says that, where, and what now;
 * and nothing is lost when it is writable again. */
static void test_read_only(void **state)
{
    static const char *const calls[] = {"pwrite", "pwrite64"}; /* SQLite has one of them */
    struct err err = {0};
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    fresh();
    struct store *s = open_schema(1);
    store_put(s, 0, "idtb", (int64_t)1, 0.5, "x", NULL, (size_t)0);
    for (int i = 0; i < 2; i++)
        (void)vfs->xSetSystemCall(vfs, calls[i], (sqlite3_syscall_ptr)write_nothing);
    const int rc = store_commit(s, &err);
    for (int i = 0; i < 2; i++)
        (void)vfs->xSetSystemCall(vfs, calls[i], NULL);
    assert_int_equal(rc, -EIO);
    assert_non_null(strstr(err.msg, path));
    assert_non_null(strstr(err.msg, "is read-only"));
    assert_int_equal(store_commit(s, &err), 0);
    assert_int_equal(count(s), 1);
    store_close(s);
}

/* Its -wal or -shm: likewise, and what was acknowledged is in the database even after a kill. */
static void test_wal_removed(void **state)
{
    static const char *const ends[] = {"-wal", "-shm"};
    for (int i = 0; i < 2; i++) {
        struct err err = {0};
        char name[160];
        fresh();
        struct store *s = open_schema(1);
        (void)snprintf(name, sizeof(name), "%s%s", path, ends[i]);
        store_put(s, 0, "idtb", (int64_t)1, 0.5, "x", NULL, (size_t)0);
        assert_int_equal(store_commit(s, &err), 0);
        assert_int_equal(unlink(name), 0);
        store_put(s, 0, "idtb", (int64_t)2, 0.5, "x", NULL, (size_t)0);
        for (int twice = 0; twice < 2; twice++) {
            assert_int_equal(store_commit(s, &err), -EIO);
            assert_non_null(strstr(err.msg, ends[i]));
            assert_non_null(strstr(err.msg, "start it again"));
            assert_int_equal(file_write_atomic(name, "", 0, 0600, NULL), 0);
        }
        assert_int_equal(store_queued(s), 1);
        /* As after a kill: the database alone, read by another. */
        char copy[160];
        struct buf b;
        assert_int_equal(file_read(path, 1 << 20, &b, NULL), 0);
        (void)snprintf(copy, sizeof(copy), "%s.copy", path);
        assert_int_equal(file_write_atomic(copy, b.data, b.len, 0600, NULL), 0);
        buf_release(&b);
        store_close(s);
        assert_int_equal(rename(copy, path), 0);
        (void)unlink(name); /* may be gone with the store */
        s = open_schema(1);
        assert_int_equal(count(s), 1);
        store_close(s);
    }
}

/* A full disk: a limit on the size of files does what ENOSPC does. */
static void test_full_disk(void **state)
{
    fresh();
    struct store *s = open_schema(1);
    struct err err = {0};
    struct rlimit was, tight;
    static char big[300000];
    memset(big, 'y', sizeof(big));
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    store_put(s, 0, "idtb", (int64_t)1, 1.0, "first", NULL, (size_t)0);
    assert_int_equal(store_commit(s, NULL), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    tight = (struct rlimit){100000, was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    store_put(s, 0, "idtb", (int64_t)2, 2.0, "second", big, sizeof(big));
    store_put(s, 0, "idtb", (int64_t)3, 3.0, "third", NULL, (size_t)0);
    for (int i = 0; i < 3; i++) {
        assert_true(store_commit(s, &err) < 0);
        assert_int_equal(store_queued(s), 2);
        assert_int_equal(count(s), 1);
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(store_commit(s, &err), 0);
    assert_int_equal(count(s), 3);
    store_close(s);
}

static void put_row(struct store *s, int64_t id)
{
    store_put(s, 0, "idtb", id, 1.0, "row", NULL, (size_t)0);
}

/* What is put while a commit is under way is the next one's; what is read is what is durable. */
static void test_under_way(void **state)
{
    fresh();
    struct store *s = open_schema(1);
    assert_false(store_hand(s)); /* nothing was queued: it is done */
    const uint64_t first = store_next(s);
    put_row(s, 1);
    assert_int_equal(store_newest(s), first);
    assert_true(store_hand(s));
    assert_int_equal(store_newest(s), first);
    put_row(s, 2);
    assert_int_equal(store_newest(s), first + 1);
    assert_int_equal(store_queued(s), 2);
    assert_int_equal(count(s), 0);
    assert_int_equal(store_write(s, NULL), 0);
    assert_false(store_has(s, first));
    store_written(s, 0);
    assert_true(store_has(s, first));
    assert_false(store_has(s, first + 1));
    assert_int_equal(store_queued(s), 1);
    assert_int_equal(count(s), 1);
    assert_int_equal(store_commit(s, NULL), 0);
    assert_int_equal(count(s), 2);
    store_close(s);
}

/* The rows of a commit that was not written come before those that were put meanwhile. */
static void test_not_written(void **state)
{
    fresh();
    struct store *s = open_schema(1);
    sqlite3_stmt *q = NULL;
    const uint64_t first = store_next(s);
    put_row(s, 1);
    assert_true(store_hand(s));
    store_put(s, 0, "idtb", (int64_t)1, 2.0, "newer", NULL, (size_t)0);
    store_written(s, -ENOSPC);
    assert_int_equal(store_queued(s), 2);
    assert_false(store_has(s, first));
    assert_int_equal(store_commit(s, NULL), 0);
    assert_true(store_has(s, first));
    assert_int_equal(store_select(s, "SELECT s FROM t", &q, NULL), 0);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    assert_string_equal(store_text(q, 0), "newer");
    sqlite3_finalize(q);
    store_close(s);
}

/* ---- rows that go elsewhere, too ---- */

struct elsewhere {
    uint8_t rows[4096];
    size_t len;
    uint64_t seq;
    int rc; /* of sending */
};

static int next_entry(void *arg, const void *rows, size_t len, uint64_t *ret_seq,
                      uint8_t ret_hash[32], struct err *err)
{
    struct elsewhere *e = arg;
    assert_true(len <= sizeof(e->rows));
    memcpy(e->rows, rows, len);
    e->len = len;
    *ret_seq = e->seq + 1;
    memset(ret_hash, 7, 32);
    return 0;
}

static int send_entry(void *arg, struct err *err)
{
    struct elsewhere *e = arg;
    e->seq += e->rc == 0;
    return e->rc;
}

static void dump(struct store *s, char *ret, size_t cap)
{
    sqlite3_stmt *q;
    size_t n = 0;
    *ret = '\0';
    assert_int_equal(
        store_select(s, "SELECT id, quote(x), quote(s), quote(b) FROM t ORDER BY id", &q, NULL), 0);
    while (sqlite3_step(q) == SQLITE_ROW)
        n += (size_t)snprintf(ret + n, cap - n, "%d %s %s %s;", sqlite3_column_int(q, 0),
                              store_text(q, 1), store_text(q, 2), store_text(q, 3));
    sqlite3_finalize(q);
}

/* Another database that is told the rows has them, to the bit; one that was not sent counts not. */
static void test_elsewhere(void **state)
{
    struct elsewhere e = {0};
    const struct store_away away = {next_entry, send_entry, &e};
    struct store_noted n = {.owner = {1}}, got;
    char here[512], there[512], other[160];
    fresh();
    struct store *s = open_schema(1), *copy = NULL;
    assert_int_equal(store_note(s, &n, NULL), 0);
    (void)snprintf(other, sizeof(other), "%s-copy", path);
    assert_int_equal(store_snapshot(path, other, NULL), 0);
    store_send_away(s, &away);
    store_put(s, 0, "idtb", (int64_t)1, 0.1 + 0.2, "te'xt", "a\0b", (size_t)3);
    store_put(s, 0, "idtb", (int64_t)2, (double)NAN, NULL, NULL, (size_t)0);
    const uint64_t first = store_next(s);
    e.rc = -ERR_STALE;
    assert_int_equal(store_commit(s, NULL), -ERR_STALE);
    assert_false(store_has(s, first));
    e.rc = 0;
    assert_int_equal(store_commit(s, NULL), 0);
    assert_true(store_has(s, first));
    assert_int_equal(store_noted(s, &got, NULL), 0);
    assert_true(got.seq == 1 && got.owner[0] == 1 && got.hash[31] == 7);
    assert_int_equal(store_open(other, NULL, &copy, NULL), 0);
    for (size_t len = 1; len < e.len; len++) /* cut anywhere: nothing of it, or what is whole */
        if (store_replay(copy, e.rows, len, &n, NULL) == 0)
            dump(copy, there, sizeof(there));
    e.rows[e.len] = 0;
    assert_int_equal(store_replay(copy, e.rows, e.len + 1, &n, NULL), -ERR_FORMAT);
    assert_int_equal(store_replay(copy, e.rows, e.len, &got, NULL), 0);
    dump(s, here, sizeof(here));
    dump(copy, there, sizeof(there));
    assert_string_equal(here, there);
    assert_non_null(strstr(here, "2 NULL NULL NULL"));
    assert_int_equal(store_noted(copy, &n, NULL), 0);
    assert_memory_equal(&n, &got, sizeof(n));
    store_close(copy);
    store_close(s);
}

/* The child commits batches and acknowledges each through a pipe. */
static void child(int fd)
{
    struct store *s = open_schema(1);
    for (int64_t id = 1;; id += 3) {
        for (int64_t k = 0; k < 3; k++)
            store_put(s, 0, "idtb", id + k, (double)id, "row", NULL, (size_t)0);
        if (store_commit(s, NULL) < 0)
            _exit(1);
        int64_t acked = id + 2;
        if (write(fd, &acked, sizeof(acked)) != (ssize_t)sizeof(acked))
            _exit(1);
    }
}

static void test_kill(void **state)
{
    struct rng r;
    rng_init(&r, 17, 0);
    for (int round = 0; round < 12; round++) {
        int fds[2];
        int64_t acked = 0, next;
        fresh();
        assert_int_equal(pipe(fds), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            (void)close(fds[0]);
            child(fds[1]);
        }
        (void)close(fds[1]);
        int64_t stop = 3 + (int64_t)rng_below(&r, 120);
        while (acked < stop && read(fds[0], &next, sizeof(next)) == (ssize_t)sizeof(next))
            acked = next;
        assert_true(acked >= stop);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        while (read(fds[0], &next, sizeof(next)) == (ssize_t)sizeof(next))
            acked = next;
        (void)close(fds[0]);
        struct store *s = open_schema(1);
        int64_t have = count(s);
        assert_true(have >= acked);    /* all that was acknowledged */
        assert_int_equal(have % 3, 0); /* and batches are whole */
        store_close(s);
    }
}

/* What stands behind the bar goes along with the next change, and is none by itself. */
static void test_changed(void **state)
{
    fresh();
    struct store *s = open_schema(1);
    uint64_t seen = 0;
    const char *text = "text";
    assert_true(store_put_changed(s, &seen, 0, "idt|b", (int64_t)1, 2.5, text, "a", (size_t)1));
    assert_false(store_put_changed(s, &seen, 0, "idt|b", (int64_t)1, 2.5, text, "a", (size_t)1));
    assert_false(store_put_changed(s, &seen, 0, "idt|b", (int64_t)1, 2.5, text, "b", (size_t)1));
    assert_int_equal(store_queued(s), 1);
    assert_true(store_put_changed(s, &seen, 0, "idt|b", (int64_t)1, 2.5, "tex", "b", (size_t)1));
    assert_true(
        store_put_changed(s, &seen, 0, "idt|b", (int64_t)1, (double)NAN, "tex", "b", (size_t)1));
    assert_false(
        store_put_changed(s, &seen, 0, "idt|b", (int64_t)1, (double)NAN, "tex", "c", (size_t)1));
    assert_true(
        store_put_changed(s, &seen, 0, "idt|b", (int64_t)2, (double)NAN, "tex", "c", (size_t)1));
    assert_true(
        store_put_changed(s, &seen, 0, "idt|b", (int64_t)2, (double)NAN, NULL, "c", (size_t)1));
    assert_int_equal(store_queued(s), 5);
    store_put(NULL, 0, "idtb", (int64_t)3, 2.5, text, "a", (size_t)1); /* into nowhere */
    seen = 0;
    assert_true(store_put_changed(NULL, &seen, 0, "i", (int64_t)3));
    assert_false(store_put_changed(NULL, &seen, 0, "i", (int64_t)3));
    seen = 0; /* a first row of zeros is a row */
    assert_true(
        store_put_changed(NULL, &seen, 0, "iidb", (int64_t)1, (int64_t)0, 0.0, NULL, (size_t)0));
    assert_false(
        store_put_changed(NULL, &seen, 0, "iidb", (int64_t)1, (int64_t)0, 0.0, NULL, (size_t)0));
    assert_int_equal(store_commit(s, NULL), 0);
    assert_int_equal(count(s), 2);
    store_close(s);
}

static void expect_private(const char *name)
{
    struct stat st;
    assert_int_equal(stat(name, &st), 0);
    if (st.st_mode & 077)
        fail_msg("%s has mode %03o", name, (unsigned)st.st_mode & 0777);
}

/* It has secrets: no file of it can be read by others, not even what an older release has made. */
static void test_private(void **state)
{
    char names[3][160], copy[160];
    const mode_t before = umask(022);
    (void)snprintf(copy, sizeof(copy), "%s.copy", path);
    (void)snprintf(names[0], sizeof(names[0]), "%s", path);
    (void)snprintf(names[1], sizeof(names[1]), "%s-wal", path);
    (void)snprintf(names[2], sizeof(names[2]), "%s-shm", path);
    fresh();
    for (int again = 0; again < 2; again++) {
        struct store *s = open_schema(2);
        for (int i = 0; i < 3; i++)
            expect_private(names[i]);
        assert_int_equal(store_snapshot(path, copy, NULL), 0);
        expect_private(copy);
        for (int i = 0; i < 3; i++)
            assert_int_equal(chmod(names[i], 0644), 0);
        store_close(s);
    }
    assert_int_equal(file_remove(copy, NULL), 0);
    (void)umask(before);
}

static uint64_t size_of(const char *name)
{
    struct stat st;
    assert_int_equal(stat(name, &st), 0);
    return (uint64_t)st.st_size;
}

/* As a release before auto_vacuum has left it. */
static void make_old(void)
{
    sqlite3 *db = NULL;
    fresh();
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "CREATE TABLE migrations(number INTEGER PRIMARY KEY,"
                                  " at_unix_ms INTEGER NOT NULL) STRICT;"
                                  "INSERT INTO migrations VALUES(1, 1)",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, migrations[0], NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* After many rows have come and gone the file shrinks, commit by commit, and its copy at once. */
static void test_shrinks(void **state)
{
    enum { ROWS = 1500, BYTES = 8192, MIB = 1 << 20 };
    static uint8_t b[BYTES];
    char copy[160];
    (void)snprintf(copy, sizeof(copy), "%s.copy", path);
    for (int old = 0; old < 2; old++) {
        if (old)
            make_old();
        else
            fresh();
        struct store *s = open_schema(1);
        for (int64_t i = 0; i < ROWS; i++)
            store_put(s, 0, "idtb", i, 0.0, "", b, sizeof(b));
        assert_int_equal(store_commit(s, NULL), 0);
        for (int64_t i = 0; i < ROWS; i++)
            store_put(s, 0, "idtb", i, 0.0, "", b, (size_t)1);
        assert_int_equal(store_commit(s, NULL), 0);
        assert_int_equal(store_snapshot(path, copy, NULL), 0);
        assert_in_range(size_of(copy), 1, MIB);
        for (int64_t i = 0; i < 100; i++) {
            store_put(s, 0, "idtb", i, 1.0, "", b, (size_t)1);
            assert_int_equal(store_commit(s, NULL), 0);
        }
        assert_int_equal(count(s), ROWS);
        store_close(s); /* which copies the -wal into the database */
        assert_in_range(size_of(path), 1, 2 * MIB);
        s = open_schema(1);
        assert_int_equal(count(s), ROWS);
        store_close(s);
    }
    assert_int_equal(file_remove(copy, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shrinks),     cmocka_unit_test(test_values),
        cmocka_unit_test(test_migrates),    cmocka_unit_test(test_not_a_database),
        cmocka_unit_test(test_full_disk),   cmocka_unit_test(test_moved_away),
        cmocka_unit_test(test_wal_removed), cmocka_unit_test(test_kill),
        cmocka_unit_test(test_changed),     cmocka_unit_test(test_elsewhere),
        cmocka_unit_test(test_under_way),   cmocka_unit_test(test_not_written),
        cmocka_unit_test(test_private),     cmocka_unit_test(test_read_only),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
