/* A data directory from the state in a store: all that was acknowledged, or nothing. */
#include "coordinator/ship/restore.h"

#include <sqlite3.h>

#include "common/base/crew.h"
#include "coordinator/ship/ship.h"
#include "coordinator/state/place.h"
#include "coordinator/state/store.h"
#include "tests/unit/common/net/s3/fake_store.h"

static const char *const migrations[] = {"CREATE TABLE t(id INTEGER PRIMARY KEY) STRICT"};
static const char *const statements[] = {"INSERT INTO t VALUES(?)"};
static struct store_schema schema = {migrations, 1, statements, 1};

#define FILES                                                                                      \
    "blob-store cluster.secret coordinator.db ticket.secret tls-cert.pem tls-key.pem user.secret " \
    "worker.secret "

struct rig {
    struct fake_store f;
    char dir[64], to[80];
    struct coordinator_options o, elsewhere;
    struct ship *ship;
    struct store *store;
    struct err err;
};

/* SQLite waits in vain for a lock. */
int usleep(useconds_t us)
{
    return 0;
}

static char *in_dir(const struct rig *r, const char *name)
{
    return file_join(r->dir, name);
}

static int begin(void **state)
{
    static const char *const keys[] = {"tls-key.pem",   "tls-cert.pem", "cluster.secret",
                                       "worker.secret", "user.secret",  "ticket.secret"};
    static struct rig r;
    memset(&r, 0, sizeof(r));
    fake_store_open(&r.f);
    (void)str_copy(r.dir, sizeof(r.dir), "/tmp/skerry-restore-XXXXXX");
    assert_non_null(mkdtemp(r.dir));
    (void)snprintf(r.to, sizeof(r.to), "%s/elsewhere", r.dir);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char *path = in_dir(&r, keys[i]);
        assert_int_equal(file_write_put(path, keys[i], strlen(keys[i]), 0600, NULL), 0);
        mem_free(path);
    }
    r.o = (struct coordinator_options){.data_dir = r.dir,
                                       .store = "s3://blobs/p",
                                       .store_endpoint = r.f.url,
                                       .store_plain = true,
                                       .store_state = true};
    r.elsewhere = r.o;
    r.elsewhere.data_dir = r.to;
    *state = &r;
    return 0;
}

static void own(struct rig *r)
{
    char *path = in_dir(r, "coordinator.db");
    if (store_open(path, &schema, &r->store, &r->err) < 0 ||
        ship_open(&r->o, &r->ship, &r->err) < 0 || ship_own(r->ship, r->store, &r->err) < 0)
        fail_msg("%s", r->err.msg);
    store_send_away(r->store, ship_away(r->ship));
    mem_free(path);
}

static int try_commit(struct rig *r, int64_t id)
{
    store_put(r->store, 0, "i", id);
    return store_commit(r->store, &r->err);
}

static void commit(struct rig *r, int64_t id)
{
    if (try_commit(r, id) < 0)
        fail_msg("%s", r->err.msg);
}

static void leave(struct rig *r)
{
    store_close(r->store);
    ship_close(r->ship);
    r->store = NULL;
    r->ship = NULL;
}

static int end(void **state)
{
    struct rig *r = *state;
    leave(r);
    fake_store_close(&r->f);
    assert_int_equal(file_remove_tree(r->dir, NULL), 0);
    return 0;
}

/* The names in the directory that is made, each with a space behind it. */
static void has_names(const struct rig *r, const char *want)
{
    struct file_names names;
    char got[1024] = "";
    assert_int_equal(file_list(r->to, 100, &names, NULL), 0);
    for (size_t i = 0; i < names.n; i++)
        (void)snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s ", names.items[i]);
    assert_string_equal(got, want);
    file_names_release(&names);
}

/* The ids in the database that was made, as decimal digits. */
static void has_rows(const struct rig *r, const char *want)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    char *path = file_join(r->to, "coordinator.db");
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db,
                                        "SELECT group_concat(id, '') FROM (SELECT id FROM t "
                                        "ORDER BY id)",
                                        -1, &q, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(q, 0), want);
    (void)sqlite3_finalize(q);
    (void)sqlite3_close(db);
    mem_free(path);
}

static struct restore_result restored(struct rig *r)
{
    struct restore_result got = {0};
    if (restore_state(&r->elsewhere, &got, &r->err) < 0)
        fail_msg("%s", r->err.msg);
    has_names(r, FILES);
    return got;
}

static void refused(struct rig *r, int code, const char *why, const char *left)
{
    struct restore_result got = {0};
    const int rc = restore_state(&r->elsewhere, &got, &r->err);
    if (rc != code || !strstr(r->err.msg, why))
        fail_msg("%d '%s', expected %d '%s'", rc, r->err.msg, code, why);
    has_names(r, left);
}

/* Turns a bit of the newest object with this in its key; or drops it. */
static void spoil(struct rig *r, const char *part, bool drop)
{
    struct fake_object *found = NULL;
    pthread_mutex_lock(&r->f.lock);
    for (size_t i = 0; i < FAKE_OBJECTS; i++) {
        struct fake_object *o = &r->f.objects[i];
        if (o->data && strstr(o->key, part) && (!found || strcmp(o->key, found->key) > 0))
            found = o;
    }
    assert_non_null(found);
    if (drop)
        fake_drop(found);
    else
        found->data[found->len / 2] ^= 1;
    pthread_mutex_unlock(&r->f.lock);
}

/* ---- */

/* All commits are there, the key's files are, and the log's next entry is no longer the owner's. */
static void test_everything(void **state)
{
    struct rig *r = *state;
    struct store *s = NULL;
    struct store_noted noted;
    struct buf text;
    own(r);
    for (int64_t i = 1; i <= 3; i++)
        commit(r, i);
    const struct restore_result got = restored(r);
    assert_int_equal(got.snapshot, 1);
    assert_int_equal(got.entries, 3);
    assert_int_equal(got.owned, 5);
    has_rows(r, "123");
    assert_int_equal(try_commit(r, 4), -ERR_STALE);
    char *path = file_join(r->to, "coordinator.db"), *secret = file_join(r->to, "user.secret");
    assert_int_equal(store_open(path, &schema, &s, NULL), 0);
    assert_int_equal(store_noted(s, &noted, NULL), 0);
    assert_int_equal(noted.seq, 5); /* the next start goes on from there */
    store_close(s);
    assert_int_equal(file_read(secret, 100, &text, NULL), 0);
    assert_string_equal(buf_str(&text), "user.secret");
    buf_release(&text);
    mem_free(secret);
    mem_free(path);
}

/* A snapshot that is damaged, or whose entry was never written, is not the only one. */
static void test_the_snapshot_before(void **state)
{
    for (int damaged = 0; damaged < 2; damaged++) {
        struct rig *r = *state;
        own(r);
        commit(r, 1);
        leave(r);
        own(r);
        leave(r);
        spoil(r, damaged ? "/snapshot/" : "/log/", !damaged);
        const struct restore_result got = restored(r);
        assert_int_equal(got.snapshot, 1);
        assert_int_equal(got.entries, damaged ? 2 : 1);
        assert_int_equal(got.owned, damaged ? 4 : 3);
        has_rows(r, "1");
        assert_int_equal(end(state), 0);
        assert_int_equal(begin(state), 0);
    }
}

/* A commit that the log does not get: made while nothing was shipped, or lost on its way. */
static void commit_alone(struct rig *r, int64_t id, bool paused)
{
    struct store_noted noted;
    char *path = in_dir(r, "coordinator.db");
    assert_int_equal(store_open(path, &schema, &r->store, &r->err), 0);
    if (paused) {
        assert_int_equal(store_pause(r->store, &r->err), 0);
        assert_int_equal(store_pause(r->store, &r->err), 0); /* a second start without the flag */
    }
    commit(r, id);
    assert_int_equal(store_noted(r->store, &noted, &r->err), 0);
    noted.seq++;
    if (!paused)
        assert_int_equal(store_note(r->store, &noted, &r->err), 0);
    leave(r);
    mem_free(path);
}

/* Rows that only the newest snapshots have: an older one and the log do not make up for those. */
static void test_rows_that_the_log_lacks(void **state)
{
    for (int paused = 0; paused < 2; paused++) {
        struct rig *r = *state;
        own(r);
        commit(r, 1);
        leave(r);
        commit_alone(r, 2, paused);
        own(r);
        commit(r, 3);
        leave(r);
        spoil(r, "/snapshot/", false);
        refused(r, -ERR_HASH, "has rows at entry 3 that only snapshots from there on have", "");
        spoil(r, "/snapshot/", false);
        (void)restored(r);
        has_rows(r, "123");
        assert_int_equal(end(state), 0);
        assert_int_equal(begin(state), 0);
    }
}

/* Nor for a newer release's schema. */
static void test_a_schema_that_the_log_lacks(void **state)
{
    static const char *const newer[] = {"CREATE TABLE t(id INTEGER PRIMARY KEY) STRICT",
                                        "ALTER TABLE t ADD COLUMN n INTEGER"};
    static const char *const statement[] = {"INSERT INTO t(id, n) VALUES(?, 1)"};
    struct rig *r = *state;
    const struct store_schema before = schema;
    own(r);
    commit(r, 1);
    leave(r);
    schema = (struct store_schema){newer, 2, statement, 1};
    own(r);
    commit(r, 2);
    leave(r);
    schema = before;
    spoil(r, "/snapshot/", false);
    refused(r, -ERR_HASH, "that only snapshots from there on have", "");
}

static void test_nothing_to_restore(void **state)
{
    struct rig *r = *state;
    refused(r, -ERR_NOTFOUND, "there is no coordinator's state below s3://blobs/p", "");
    own(r);
    commit(r, 1);
    spoil(r, "/snapshot/", false);
    refused(r, -ERR_HASH, "is damaged", "");
    commit(r, 2); /* nobody was deposed for nothing */
    spoil(r, "/snapshot/", false);
    (void)restored(r);
    has_rows(r, "12");
}

static void test_not_over_anything(void **state)
{
    struct rig *r = *state;
    char *mine = file_join(r->to, "user.secret");
    own(r);
    assert_int_equal(file_mkdirs(r->to, 0700, NULL), 0);
    assert_int_equal(file_write_put(mine, "mine", 4, 0600, NULL), 0);
    refused(r, -EEXIST, "is not empty (it has user.secret)", "user.secret ");
    commit(r, 1);
    mem_free(mine);
}

/* A restore that was killed has left a part: the next one removes it. */
static void test_after_a_killed_one(void **state)
{
    struct rig *r = *state;
    char *left = file_join(r->to, "worker.secret");
    own(r);
    commit(r, 1);
    assert_int_equal(place_begin(r->to, NULL), 0);
    assert_int_equal(file_write_put(left, "x", 1, 0600, NULL), 0);
    (void)restored(r);
    has_rows(r, "1");
    mem_free(left);
}

/* An entry that is damaged ends it: what comes after it may build on it. */
static void test_a_damaged_entry(void **state)
{
    struct rig *r = *state;
    own(r);
    commit(r, 1);
    spoil(r, "/log/", false);
    commit(r, 2);
    refused(r, -ERR_FORMAT, "entry 2 of the log in the store is damaged", "");
    commit(r, 3);
}

/* ---- a database that does not take an entry ---- */

#define ASKED (1 + CREW_MAX) /* the snapshot's, and the first that are read ahead */

static struct {
    char path[128];
    unsigned asked; /* entries, since the database is there */
    sqlite3 *db;
} locker;

/* Somebody else has the database open when the first lot of entries has been read, and not for
 * long. */
static void lock_second(const char *method, const char *key)
{
    if (strcmp(method, "GET") != 0 || !strstr(key, "/log/") || !file_exists(locker.path))
        return;
    if (++locker.asked == ASKED) {
        assert_int_equal(sqlite3_open(locker.path, &locker.db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(locker.db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    } else {
        (void)sqlite3_close(locker.db);
        locker.db = NULL;
    }
}

/* No later one takes its place. */
static void test_an_entry_that_finds_no_place(void **state)
{
    struct rig *r = *state;
    memset(&locker, 0, sizeof(locker));
    (void)snprintf(locker.path, sizeof(locker.path), "%s/coordinator.db.restored", r->to);
    own(r);
    for (int64_t i = 1; i <= 2 * CREW_MAX; i++)
        commit(r, i);
    r->f.look = lock_second;
    refused(r, -EBUSY, "another program has the database open", "");
    fake_store_settle(&r->f);
    r->f.look = NULL;
    (void)sqlite3_close(locker.db);
    assert_int_equal(locker.asked, ASKED);
    commit(r, 2 * CREW_MAX + 1);
    assert_int_equal(restored(r).entries, 2 * CREW_MAX + 1);
}

int main(void)
{
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        LIVE(test_everything),
        LIVE(test_the_snapshot_before),
        LIVE(test_nothing_to_restore),
        LIVE(test_not_over_anything),
        LIVE(test_after_a_killed_one),
        LIVE(test_a_damaged_entry),
        LIVE(test_an_entry_that_finds_no_place),
        LIVE(test_rows_that_the_log_lacks),
        LIVE(test_a_schema_that_the_log_lacks),
    };
    return cmocka_run_group_tests_name("restore", tests, NULL, NULL);
}
