/* Whose the log is: a data directory that is a copy of another one. */
#include "coordinator/ship/ship.h"

#include "coordinator/ship/restore.h"
#include "coordinator/state/persist.h"
#include "coordinator/state/store.h"
#include "tests/unit/common/net/s3/fake_store.h"

#include <sys/statvfs.h>

static _Atomic uint64_t disk_free = 1ull << 32;

int statvfs(const char *path, struct statvfs *ret)
{
    *ret = (struct statvfs){.f_bsize = 1, .f_frsize = 1, .f_bavail = disk_free};
    return 0;
}

static const char *const migrations[] = {"CREATE TABLE t(id INTEGER PRIMARY KEY) STRICT"};
static const char *const statements[] = {"INSERT INTO t VALUES(?)"};
static const struct store_schema usual = {migrations, 1, statements, 1};

struct rig {
    struct fake_store f;
    char dir[64];
    struct coordinator_options o;
    const struct store_schema *schema;
    struct ship *ship;
    struct store *store;
    struct err err;
};

static char *in_dir(const struct rig *r, const char *name)
{
    return file_join(r->dir, name);
}

/* A coordinator's start, as far as the log goes; what ship_own() returned. */
static int own(struct rig *r)
{
    char *path = in_dir(r, "coordinator.db");
    if (store_open(path, r->schema, &r->store, &r->err) < 0 ||
        ship_open(&r->o, &r->ship, &r->err) < 0)
        fail_msg("%s", r->err.msg);
    mem_free(path);
    const int rc = ship_own(r->ship, r->store, &r->err);
    if (rc == 0)
        store_send_away(r->store, ship_away(r->ship));
    return rc;
}

static void leave(struct rig *r)
{
    store_close(r->store);
    ship_close(r->ship);
    r->store = NULL;
    r->ship = NULL;
}

static void commit(struct rig *r, int64_t id)
{
    store_put(r->store, 0, "i", id);
    if (store_commit(r->store, &r->err) < 0)
        fail_msg("%s", r->err.msg);
}

static int begin(void **state)
{
    static const char *const keys[] = {"tls-key.pem",   "tls-cert.pem", "cluster.secret",
                                       "worker.secret", "user.secret",  "ticket.secret"};
    static struct rig r;
    memset(&r, 0, sizeof(r));
    fake_store_open(&r.f);
    (void)str_copy(r.dir, sizeof(r.dir), "/tmp/skerry-ship-XXXXXX");
    assert_non_null(mkdtemp(r.dir));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char *path = in_dir(&r, keys[i]);
        assert_int_equal(file_write_put(path, "x", 1, 0600, NULL), 0);
        mem_free(path);
    }
    r.schema = &usual;
    r.o = (struct coordinator_options){.data_dir = r.dir,
                                       .store = "s3://blobs/p",
                                       .store_endpoint = r.f.url,
                                       .store_plain = true,
                                       .store_state = true};
    *state = &r;
    return 0;
}

static int end(void **state)
{
    struct rig *r = *state;
    leave(r);
    fake_store_close(&r->f);
    assert_int_equal(file_remove_tree(r->dir, NULL), 0);
    return 0;
}

/* The directory goes on with its own log, whatever its last start or commit came to. */
static void goes_on(void **state)
{
    struct rig *r = *state;
    for (int64_t i = 1; i <= 3; i++) {
        if (own(r) < 0)
            fail_msg("%s", r->err.msg);
        commit(r, i);
        leave(r);
    }
}

/* The file of a snapshot is as large as the database, and goes once it is sent. */
static void no_copy_stays(void **state)
{
    struct rig *r = *state;
    char *copy = in_dir(r, "coordinator.db.away");
    assert_int_equal(own(r), 0);
    assert_false(file_exists(copy));
    mem_free(copy);
}

static size_t snapshots(struct rig *r)
{
    size_t n = 0;
    pthread_mutex_lock(&r->f.lock);
    for (size_t i = 0; i < FAKE_OBJECTS; i++)
        n += r->f.objects[i].data && str_starts(r->f.objects[i].key, "p/state/snapshot/");
    pthread_mutex_unlock(&r->f.lock);
    return n;
}

/* Commits up to id; the fake store has no room for so many entries. */
static void commit_to(struct rig *r, int64_t *id, int64_t last)
{
    while (*id < last) {
        commit(r, ++*id);
        pthread_mutex_lock(&r->f.lock);
        for (size_t i = 0; i < FAKE_OBJECTS; i++)
            if (r->f.objects[i].data && str_starts(r->f.objects[i].key, "p/state/log/"))
                fake_drop(&r->f.objects[i]);
        pthread_mutex_unlock(&r->f.lock);
    }
}

/* Commits need the room themselves; and each try may copy the whole database. */
static void no_room_for_a_copy(void **state)
{
    struct rig *r = *state;
    int64_t id = 0;
    assert_int_equal(own(r), 0);
    disk_free = 1 << 20;
    commit_to(r, &id, 1100);
    disk_free = 1ull << 32;
    commit_to(r, &id, 1110);
    assert_int_equal(snapshots(r), 1);
    commit_to(r, &id, 2048);
    WAIT_DOING(snapshots(r) >= 2, (void)poll(NULL, 0, 1));
    assert_int_equal(snapshots(r), 2);
}

static struct fake_store *busy;

static void first_try_fails(const char *method, const char *key)
{
    busy->down = strcmp(method, "GET") == 0 && !busy->down;
}

/* What a start asks of a store that is busy, or slow, is asked again. */
static void a_start_beside_a_busy_store(void **state)
{
    struct rig *r = *state;
    busy = &r->f;
    r->f.look = first_try_fails;
    goes_on(state);
    assert_true(r->f.gets > 6);
}

#define NOT_THERE                                                                                  \
    "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 37\r\n\r\n"                    \
    "<Error><Code>NoSuchKey</Code></Error>"

/* The process was killed while an entry was on its way, and the store writes it after the next
 * start has looked for it: it is its own all the same. */
static void an_entry_that_comes_late(void **state)
{
    struct rig *r = *state;
    assert_int_equal(own(r), 0);
    commit(r, 1);
    leave(r);
    fake_store_next(&r->f, "GET", FAKE_REPLY, NOT_THERE);
    if (own(r) < 0)
        fail_msg("%s", r->err.msg);
    commit(r, 2);
    leave(r);
    if (own(r) < 0)
        fail_msg("%s", r->err.msg);
}

/* The same, and that start failed before its own entry was written, which it had noted already. */
static void an_entry_that_comes_after_a_failed_start(void **state)
{
    struct rig *r = *state;
    struct store_noted noted;
    char *path = in_dir(r, "coordinator.db");
    assert_int_equal(own(r), 0);
    commit(r, 1);
    leave(r);
    assert_int_equal(store_open(path, r->schema, &r->store, &r->err), 0);
    assert_int_equal(store_noted(r->store, &noted, &r->err), 0);
    for (int starts = 0; starts < 2; starts++) {
        noted.hash[0]++;
        assert_int_equal(store_note(r->store, &noted, &r->err), 0);
    }
    store_close(r->store);
    if (own(r) < 0)
        fail_msg("%s", r->err.msg);
    commit(r, 2);
    mem_free(path);
}

/* An older release that is to go on with it could not: it deposes nobody. */
static void a_state_of_a_newer_release(void **state)
{
    struct rig *r = *state;
    const char *newer[64] = {migrations[0]};
    const int n = persist_schema.n_migrations + 1;
    struct store_schema schema = {newer, n, statements, 1};
    struct coordinator_options elsewhere = r->o;
    struct restore_result result;
    char why[512], *dir = in_dir(r, "elsewhere");
    for (int i = 1; i < n; i++)
        newer[i] = "SELECT 1";
    r->schema = &schema;
    elsewhere.data_dir = dir;
    assert_int_equal(own(r), 0);
    assert_int_equal(restore_state(&elsewhere, &result, &r->err), -ERR_VERSION);
    assert_non_null(strstr(r->err.msg, "it was written by a newer release"));
    commit(r, 1);
    assert_false(ship_is_lost(r->ship, why));
    leave(r);
    mem_free(dir);
}

#define ZEROS "0000000000000000"
#define HASH ZEROS ZEROS ZEROS ZEROS

/* The owner goes on while somebody restores: the snapshots that were listed are gone, and newer
 * ones are there.  That is tried again, and is no store without a state. */
static void snapshots_are_replaced_meanwhile(void **state)
{
    static const char list[] =
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<ListBucketResult><Contents><Key>"
        "p/state/snapshot/" ZEROS "-" HASH "-" HASH "</Key><Size>5</Size></Contents>"
        "<IsTruncated>false</IsTruncated></ListBucketResult>";
    struct rig *r = *state;
    struct coordinator_options elsewhere = r->o;
    struct restore_result result;
    char *dir = in_dir(r, "elsewhere");
    elsewhere.data_dir = dir;
    assert_int_equal(own(r), 0);
    commit(r, 1);
    leave(r);
    fake_store_next(&r->f, "GET", FAKE_LATER, NULL); /* the keys */
    fake_store_next(&r->f, "GET", FAKE_REPLY, list);
    if (restore_state(&elsewhere, &result, &r->err) < 0)
        fail_msg("%s", r->err.msg);
    assert_true(result.snapshot > 0);
    mem_free(dir);
}

#define ENDED                                                                                      \
    "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 40\r\n\r\n"                  \
    "<Error><Code>ExpiredToken</Code></Error>"

/* The key's session ends, the bucket is closed, the store is down: the commit waits, and the log is
 * nobody else's. */
static void what_a_store_refuses_is_not_anothers(void **state)
{
    static const char *const answers[] = {
        ENDED,
        "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    };
    struct rig *r = *state;
    char why[512];
    assert_int_equal(own(r), 0);
    while (!fake_store_has(&r->f, "p/state/alive", NULL))
        (void)poll(NULL, 0, 1); /* the next one comes in three seconds, and is none of these */
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        fake_store_next(&r->f, "PUT", FAKE_REPLY, answers[i]);
        commit(r, (int64_t)i);
        assert_false(ship_is_lost(r->ship, why));
    }
}

/* A copy that has begun to go on with the same number as the other, which got it: it has noted the
 * entry that it wanted to write, and lacks what that one says. */
static void a_copy_that_came_second(void **state)
{
    struct rig *r = *state;
    struct store_noted noted;
    char *path = in_dir(r, "coordinator.db"), *copy = in_dir(r, "copy");
    assert_int_equal(own(r), 0);
    assert_int_equal(store_snapshot(path, copy, &r->err), 0);
    commit(r, 1);
    leave(r);
    assert_int_equal(file_rename(copy, path, &r->err), 0);
    assert_int_equal(store_open(path, r->schema, &r->store, &r->err), 0);
    assert_int_equal(store_noted(r->store, &noted, &r->err), 0);
    noted.seq++;
    noted.hash[0] ^= 1;
    assert_int_equal(store_note(r->store, &noted, &r->err), 0);
    store_close(r->store);
    assert_int_equal(own(r), -ERR_STALE);
    assert_non_null(strstr(r->err.msg, "another coordinator has gone on with this state"));
    mem_free(path);
    mem_free(copy);
}

/* What the store has lost is not another coordinator's: nobody takes an older state for it. */
static void a_store_that_went_back(void **state)
{
    static const char *const lost[] = {"p/state/log/0000000000000003",
                                       "p/state/log/0000000000000004"};
    struct rig *r = *state;
    assert_int_equal(own(r), 0);
    for (int64_t i = 1; i <= 3; i++)
        commit(r, i);
    leave(r);
    for (int i = 0; i < 2; i++) {
        struct fake_object *o = fake_find(r->f.objects, lost[i], false);
        assert_non_null(o);
        fake_drop(o);
    }
    assert_int_equal(own(r), -ERR_CONFIG);
    assert_non_null(strstr(r->err.msg, "is newer than the state in the store"));
}

/* A start without --store-state. */
static int watch(struct rig *r)
{
    char *path = in_dir(r, "coordinator.db");
    r->o.store_state = false;
    if (store_open(path, r->schema, &r->store, &r->err) < 0 ||
        ship_open(&r->o, &r->ship, &r->err) < 0)
        fail_msg("%s", r->err.msg);
    mem_free(path);
    return ship_watch(r->ship, r->store, &r->err);
}

/* Without --store-state the log is looked at all the same, at each start and then every two
 * seconds, since another coordinator would share the blobs. */
static void without_the_flag(void **state)
{
    struct rig *r = *state;
    struct coordinator_options elsewhere = r->o;
    struct restore_result result;
    char why[512], *dir = in_dir(r, "elsewhere");
    elsewhere.data_dir = dir;
    assert_int_equal(own(r), 0);
    leave(r);
    for (int starts = 0; starts < 2; starts++) {
        if (watch(r) < 0)
            fail_msg("%s", r->err.msg);
        leave(r);
    }
    assert_int_equal(watch(r), 0);
    assert_false(ship_is_lost(r->ship, why));
    if (restore_state(&elsewhere, &result, &r->err) < 0)
        fail_msg("%s", r->err.msg);
    WAIT_DOING(ship_is_lost(r->ship, why), (void)poll(NULL, 0, 10));
    assert_true(ship_is_lost(r->ship, why));
    leave(r);
    assert_int_equal(watch(r), -ERR_STALE);
    assert_non_null(strstr(r->err.msg, "another coordinator has gone on with this state"));
    mem_free(dir);
}

/* Whoever has dropped the flag may remove the state from the bucket, and take it up again. */
static void without_the_flag_and_the_state(void **state)
{
    struct rig *r = *state;
    assert_int_equal(own(r), 0);
    commit(r, 8);
    commit(r, 9);
    leave(r);
    for (size_t i = 0; i < FAKE_OBJECTS; i++)
        fake_drop(&r->f.objects[i]);
    assert_int_equal(own(r), -ERR_CONFIG);
    assert_non_null(strstr(r->err.msg, "start once without --store-state"));
    leave(r);
    for (int starts = 0; starts < 2; starts++) {
        if (watch(r) < 0)
            fail_msg("%s", r->err.msg);
        leave(r);
    }
    r->o.store_state = true;
    for (int64_t i = 1; i <= 2; i++) {
        if (own(r) < 0)
            fail_msg("%s", r->err.msg);
        commit(r, i);
        leave(r);
    }
    char *dir = in_dir(r, "elsewhere");
    struct coordinator_options elsewhere = r->o;
    struct restore_result result;
    elsewhere.data_dir = dir;
    if (restore_state(&elsewhere, &result, &r->err) < 0)
        fail_msg("%s", r->err.msg);
    mem_free(dir);
}

/* Two coordinators could own a state there. */
static void a_store_that_takes_two_at_once(void **state)
{
    struct rig *r = *state;
    r->f.hasty = true;
    assert_int_equal(ship_open(&r->o, &r->ship, &r->err), -ERR_UNIMPLEMENTED);
    assert_non_null(strstr(r->err.msg, "takes both of two conditional writes"));
    assert_null(r->ship);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(goes_on, begin, end),
        cmocka_unit_test_setup_teardown(a_start_beside_a_busy_store, begin, end),
        cmocka_unit_test_setup_teardown(no_copy_stays, begin, end),
        cmocka_unit_test_setup_teardown(no_room_for_a_copy, begin, end),
        cmocka_unit_test_setup_teardown(an_entry_that_comes_late, begin, end),
        cmocka_unit_test_setup_teardown(an_entry_that_comes_after_a_failed_start, begin, end),
        cmocka_unit_test_setup_teardown(a_state_of_a_newer_release, begin, end),
        cmocka_unit_test_setup_teardown(snapshots_are_replaced_meanwhile, begin, end),
        cmocka_unit_test_setup_teardown(what_a_store_refuses_is_not_anothers, begin, end),
        cmocka_unit_test_setup_teardown(a_copy_that_came_second, begin, end),
        cmocka_unit_test_setup_teardown(a_store_that_went_back, begin, end),
        cmocka_unit_test_setup_teardown(without_the_flag, begin, end),
        cmocka_unit_test_setup_teardown(without_the_flag_and_the_state, begin, end),
        cmocka_unit_test_setup_teardown(a_store_that_takes_two_at_once, begin, end),
    };
    return cmocka_run_group_tests_name("ship", tests, NULL, NULL);
}
