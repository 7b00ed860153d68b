/* An audit confirms what a coordinator has recorded (rig.h), and names what somebody has changed
 * since: in the database, or in a file. */
#include "coordinator/state/audit.h"

#include <jansson.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include "common/base/moving.h"
#include "common/net/blob_dir.h"
#include "coordinator/job/flow.h"
#include "tests/unit/coordinator/rig.h"

#define JOB                                                                                        \
    "name: fake\nseed: 3\ndata: {path: x, image_size: 16}\n"                                       \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"                                  \
    "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"                            \
    "outer: {rounds: 9, steps: 2}\n"

/* ---- a disk that lacks room ---- */

static struct {
    const char *file; /* writes to a file of the capture with such a name fail; NULL: none do */
    int code;
    uint64_t room;     /* as far as it says itself; 0: plenty */
    atomic_uint added; /* writes while a file of the last check was there, too */
} disk;

/* Is a file made once more while the last one is still there?  The coordinator needs the room. */
static bool adds_up(const char *path)
{
    const char *other = strstr(path, "/.capture/made") ? "m.full" : "made";
    const char *at = strstr(path, "/.capture/m");
    char *there = at ? str_printf("%.*s/.capture/%s", (int)(at - path), path, other) : NULL;
    const bool adds = there && access(there, F_OK) == 0;
    mem_free(there);
    return adds;
}

static bool writes(int fd)
{
    char link[64], path[256] = "";
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof(path) - 1) < 0)
        return true;
    if (adds_up(path))
        disk.added++;
    if (disk.file == NULL || strstr(path, disk.file) == NULL)
        return true;
    errno = disk.code;
    return false;
}

ssize_t write(int fd, const void *data, size_t n)
{
    return writes(fd) ? syscall(SYS_write, fd, data, n) : -1;
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    return writes(fd) ? syscall(SYS_pwrite64, fd, data, n, at) : -1;
}

int statvfs(const char *path, struct statvfs *ret)
{
    *ret = (struct statvfs){.f_bsize = 1, .f_frsize = 1, .f_bavail = 1ull << 32};
    if (disk.room > 0)
        ret->f_bavail = disk.room;
    return 0;
}

/* ---- */

static void wait_round(struct rig *r, const struct job *j, uint32_t round)
{
    WAIT_FOR(r, j->paths[0].round >= round);
}

/* A job that was stopped after three rounds; its coordinator is gone until start(). */
static uint64_t three_rounds(struct rig *r)
{
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const uint64_t job = submit_spec(r, JOB);
    do_init(r, &r->workers[0]);
    for (uint32_t round = 0; round < 3; round++) {
        for (int i = 0; i < 2; i++)
            (void)assign(r, &r->workers[i], TASK_TRAIN);
        for (int i = 0; i < 2; i++)
            finish_train(r, &r->workers[i]);
        wait_round(r, state_job(&r->co->state, job), round + 1);
    }
    settle(r);
    stop(r);
    return job;
}

/* ---- how far it says it is; the linker leaves the real ones out ---- */

static uint64_t done, total;

struct moving moving_begin(const char *what)
{
    done = total = 0;
    return (struct moving){.what = what};
}

void moving_add(struct moving_bytes *m, uint64_t bytes)
{
    m->done += bytes;
    done = m->done;
    total = m->total;
    assert_in_range(done, 0, total);
}

void moving_clear(void)
{
}

/* What an audit writes, in `told`. */
static struct audit_result audit(struct rig *r, uint64_t job, char told[8192])
{
    const struct coordinator_options o = {.data_dir = r->f.dir};
    struct audit_result got;
    struct err err = {0};
    FILE *out = fmemopen(told, 8192, "w");
    memset(told, 0, 8192);
    if (audit_job(&o, job, out, &got, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(done, total);
    assert_true(total > 0);
    return got;
}

static sqlite3 *database(struct rig *r)
{
    sqlite3 *db = NULL;
    char *path = fx_path(&r->f, "coordinator.db");
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    mem_free(path);
    return db;
}

static void change(struct rig *r, const char *sql)
{
    sqlite3 *db = database(r);
    char *why = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", sql, why);
    assert_true(sqlite3_changes(db) > 0);
    sqlite3_close(db);
}

static void expect(struct rig *r, uint64_t job, const char *fault)
{
    char told[8192];
    const struct audit_result got = audit(r, job, told);
    if (got.faults == 0 || !strstr(told, fault))
        fail_msg("%u faults, without '%s': %s", got.faults, fault, told);
}

/* ---- */

static void what_is_true_has_no_faults(void **state)
{
    struct rig *r = *state;
    char told[8192];
    const uint64_t job = three_rounds(r);
    const struct audit_result got = audit(r, job, told);
    assert_string_equal(strstr(told, "FAULT") ? told : "", "");
    assert_true(got.faults == 0 && got.versions == 4 && got.deltas == 3);
    assert_true(got.steps >= 1 && got.files > 6 && got.bytes > 1000);
    /* 3 rounds of 2 phases of 8 images, and two phases that wait. */
    assert_non_null(strstr(told, "48 done, 0 leased"));
    assert_non_null(strstr(told, "folded in 3 rounds: 48, reported and not folded yet: 0"));
    start(r);
}

/* A machine that lacks something is no fault of the data. */
static void what_is_lacking_is_no_fault(void **state)
{
    static const struct {
        const char *file;
        int code;
    } cases[] = {{"/made", ENOSPC}, {"/m.full", ENOSPC}, {"/m.mom", EDQUOT}, {"/m.delta", EMFILE}};
    struct rig *r = *state;
    const struct coordinator_options o = {.data_dir = r->f.dir};
    struct audit_result got;
    struct err err = {0};
    char told[8192];
    const uint64_t job = three_rounds(r);
    FILE *out = fmemopen(told, sizeof(told), "w");
    memset(told, 0, sizeof(told));
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        disk.file = cases[i].file;
        disk.code = cases[i].code;
        const int rc = audit_job(&o, job, out, &got, &err);
        disk.file = NULL;
        assert_int_equal(rc, -cases[i].code);
        assert_int_equal(got.faults, 0);
    }
    disk.room = 4096;
    const int rc = audit_job(&o, job, out, &got, &err);
    disk.room = 0;
    assert_int_equal(fclose(out), 0);
    assert_int_equal(rc, -ENOSPC);
    assert_non_null(strstr(err.msg, "where 4.0 KiB are free: make room there"));
    assert_string_equal(told, "");
    disk.added = 0;
    assert_int_equal(audit(r, job, told).faults, 0);
    assert_int_equal(disk.added, 0);
    start(r);
}

/* Of a job that ended no outer state is left: its deltas alone are applied again, which needs room
 * for one version. */
static void an_ended_job_needs_little_room(void **state)
{
    struct rig *r = *state;
    char told[8192];
    const uint64_t job = three_rounds(r);
    start(r);
    flow_end(r->co, state_job(&r->co->state, job), JOB_CANCELLED, "it was long enough");
    settle(r);
    stop(r);
    change(r, "DELETE FROM versions WHERE version = 0"); /* as after more rounds */
    sqlite3 *db = database(r);
    sqlite3_stmt *q = NULL;
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT max(full_size) FROM versions", -1, &q, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    disk.room = (uint64_t)sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    const struct audit_result got = audit(r, job, told);
    disk.room = 0;
    assert_string_equal(strstr(told, "FAULT") ? told : "", "");
    assert_true(got.deltas == 2 && got.steps == 0);
    start(r);
}

/* A router, or a student of experts, draws from all the data, which have a ledger of their own. */
static void all_data_are_in_the_balance(void **state)
{
    struct rig *r = *state;
    char told[8192];
    const uint64_t job = three_rounds(r);
    change(r, "UPDATE jobs SET state = 5"); /* finishing: it needs none of partition 0 */
    change(r, "DELETE FROM tasks WHERE state < 3");
    change(r, "UPDATE ledgers SET part = 1");
    assert_int_equal(audit(r, job, told).faults, 0);
    assert_non_null(strstr(told, "48 done, 0 leased"));
    change(r, "UPDATE ledgers SET part = 0");
    change(r, "UPDATE jobs SET state = 4");
    start(r);
}

/* Sets the JSON at `path` (a path of SQLite's) in the newest version's provenance. */
#define FORGE(how) "UPDATE versions SET provenance = " how " WHERE version = 3"

static void a_forged_record_is_named(void **state)
{
    static const char zeros[] =
        "'0000000000000000000000000000000000000000000000000000000000000000'";
    static const struct {
        const char *path, *value, *fault; /* value NULL: zeros */
    } cases[] = {
        {"$.full.sha256", NULL, "version 3 is not what its provenance says"},
        {"$.full.size", "7", "version 3 is not what its provenance says"},
        {"$.delta.sha256", NULL, "version 3 has another delta than its provenance says"},
        {"$.base_full.sha256", NULL, "version 3 did not come from version 2"},
        {"$.restored", "1", "version 3 is not version 1, as its provenance says"},
        {"$.lr", "0.3", "version 3 gives the version other bytes"},
        {"$.momentum", "0.25", "version 3 gives the momentum other bytes"},
        {"$.down", "'bf16'", "version 3 gives the delta other bytes"},
        {"$.contributions[1].weight", "77", "version 3 gives the version other bytes"},
        {"$.contributions[0].shrink", "0.5", "version 3 gives the version other bytes"},
        {"$.contributions[0].refused", "json('true')", "version 3 gives the version other bytes"},
        {"$.state.target.sha256", NULL, "version 3 gives the target other bytes"},
        {"$.state.momentum.sha256", NULL, "version 3 gives the momentum other bytes"},
        {"$.ema.sha256", NULL, "version 3 gives the average other bytes"},
        /* What says nothing of the step cannot be what made the version. */
        {"$.down", "'x'", "says nothing of an outer step"},
        {"$.contributions", "json('[]')", "says nothing of an outer step"},
        {"$.contributions", "5", "says nothing of an outer step"},
        {"$.contributions[0].sha256", "'x'", "says nothing of an outer step"},
        {"$.contributions[0].codec", "'x'", "says nothing of an outer step"},
        {"$.contributions[0].weight", "0", "says nothing of an outer step"},
    };
    struct rig *r = *state;
    const uint64_t job = three_rounds(r);
    change(r, "CREATE TABLE kept AS SELECT provenance FROM versions WHERE version = 3;"
              "UPDATE kept SET provenance = provenance");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *sql = str_printf(FORGE("json_set(provenance, '%s', %s)"), cases[i].path,
                               cases[i].value ? cases[i].value : zeros);
        change(r, sql);
        mem_free(sql);
        expect(r, job, cases[i].fault);
        change(r, FORGE("(SELECT provenance FROM kept)"));
    }
    change(r, FORGE("NULL"));
    expect(r, job, "version 3 has no provenance");
    change(r, FORGE("'{'"));
    expect(r, job, "version 3 has no provenance");
    change(r, FORGE("(SELECT provenance FROM kept)"));
    change(r, "UPDATE versions SET delta = (SELECT delta FROM versions WHERE version = 2) "
              "WHERE version = 3");
    expect(r, job, "version 2 and the delta do not make version 3");
    start(r);
}

/* One file of every sort is damaged in turn: a byte of it, or its end. */
static void a_damaged_file_is_named(void **state)
{
    struct rig *r = *state;
    char told[8192], *blobs = fx_path(&r->f, "blobs");
    const uint64_t job = three_rounds(r);
    sqlite3 *db = database(r);
    sqlite3_stmt *q = NULL;
    assert_int_equal(sqlite3_prepare_v2(db,
                                        "SELECT full FROM versions WHERE version = 3 UNION ALL "
                                        "SELECT delta FROM versions WHERE version = 2 UNION ALL "
                                        "SELECT sha256 FROM shards",
                                        -1, &q, NULL),
                     SQLITE_OK);
    int n = 0;
    for (; sqlite3_step(q) == SQLITE_ROW; n++) {
        char hex[HASH_HEX_MAX], *path = blob_dir_file(blobs, sqlite3_column_blob(q, 0));
        struct buf was;
        (void)hash_hex(sqlite3_column_blob(q, 0), HASH_BYTES, hex);
        assert_int_equal(file_read(path, 1 << 20, &was, NULL), 0);
        assert_int_equal(chmod(path, 0600), 0);
        was.data[was.len / 2] ^= 1;
        assert_int_equal(file_write_atomic(path, was.data, was.len, 0600, NULL), 0);
        expect(r, job, hex);
        was.data[was.len / 2] ^= 1;
        assert_int_equal(file_write_atomic(path, was.data, was.len - 1, 0600, NULL), 0);
        expect(r, job, hex);
        assert_int_equal(file_write_atomic(path, was.data, was.len, 0600, NULL), 0);
        buf_release(&was);
        mem_free(path);
    }
    assert_int_equal(n, 4);
    sqlite3_finalize(q);
    sqlite3_close(db);
    assert_int_equal(audit(r, job, told).faults, 0);
    mem_free(blobs);
    start(r);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(what_is_true_has_no_faults),  TEST(a_forged_record_is_named),
        TEST(a_damaged_file_is_named),     TEST(what_is_lacking_is_no_fault),
        TEST(all_data_are_in_the_balance), TEST(an_ended_job_needs_little_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
