/* A database whose rows, or bytes, are not what a coordinator saved.  It is refused with a
 * sentence, or a coordinator serves with it: everything is shown, workers come and get tasks, time
 * passes.
 *
 *   header    which of two databases: four jobs that have just begun, the same when some are done
 *   changes   each of a row, which is deleted or has another value somewhere, of a table, which
 *             goes, or of a byte of the file */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/net/loop.h"
#include "coordinator/coordinator.h"
#include "coordinator/state/core.h"
#include "coordinator/state/store.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/message.h"
#include "tests/sim/disk.h"
#include "tests/sim/http.h"
#include "tests/sim/net.h"
#include "tests/sim/sim.h"
#include "tests/sim/spec.h"
#include "tests/sim/world.h"

#define SAVED 2
#define CHANGES_MAX 6
#define WORKERS 3
#define PASS_MS 5000
#define DATABASE "coordinator.db"
#define FILE_MAX (16u << 20)
#define VALUE_MAX 65536
#define METHOD(name) SKERRY__V1__METHOD__METHOD_##name

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *keys;                 /* a directory: the secrets, by which workers and people come */
static struct buf saved[SAVED];    /* the databases */
static struct coordinator *serves; /* NULL: none */

/* ---- what a coordinator saved ------------------------------------------------------------ */

static void release_saved(void)
{
    for (int i = 0; i < SAVED; i++)
        buf_release(&saved[i]);
    mem_free(keys);
}

static void copy_files(const char *from, const char *to)
{
    struct file_names names;
    struct err err = {0};
    if (file_mkdirs(to, 0700, &err) < 0 || file_list(from, 64, &names, &err) < 0)
        sim_fail("%s", err.msg);
    for (size_t i = 0; i < names.n; i++) {
        char *a = file_join(from, names.items[i]), *b = file_join(to, names.items[i]);
        struct buf text;
        if (!file_is_dir(a) && !str_starts(names.items[i], DATABASE) &&
            file_read(a, FILE_MAX, &text, &err) == 0) {
            if (file_write_atomic(b, text.data, text.len, 0600, &err) < 0)
                sim_fail("%s", err.msg);
            buf_release(&text);
        }
        mem_free(a);
        mem_free(b);
    }
    file_names_release(&names);
}

static void save(struct buf *ret)
{
    char *from = file_join(disk_dir(), DATABASE), *to = file_join(fuzz_folder, "saved");
    struct err err = {0};
    disk_elsewhere(true);
    if (store_snapshot(from, to, &err) < 0 || file_read(to, FILE_MAX, ret, &err) < 0)
        sim_fail("%s", err.msg);
    disk_elsewhere(false);
    mem_free(from);
    mem_free(to);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const size_t jobs[] = {3, 7, 11, 9}; /* timed, of paths, of experts, of an archive */
    log_set_level(LOG_LEVEL_ERROR + 1);
    fuzz_folder_make();
    if (atexit(release_saved) != 0)
        sim_fail("no room to end by");
    keys = file_join(fuzz_folder, "keys");
    world_open(1, fuzz_folder, 4);
    for (size_t i = 0; i < 4; i++)
        while (world_coordinator()->state.n_jobs == i) /* an upload may be cut */
            world_submit(spec_at(jobs[i]));
    world_pass(15000);
    save(&saved[0]);
    world_pass(100000);
    save(&saved[1]);
    copy_files(disk_dir(), keys);
    world_close();
    net_end(); /* nobody of it comes to others */
    return 0;
}

/* ---- what becomes of it ------------------------------------------------------------------- */

static void run(sqlite3 *db, const char *sql)
{
    (void)sqlite3_exec(db, sql, NULL, NULL, NULL); /* what cannot be done is not */
}

static sqlite3_stmt *query(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK)
        return NULL;
    return q;
}

/* A text of the first row; "": there is none. */
static void first(sqlite3 *db, const char *sql, char *ret, size_t max)
{
    sqlite3_stmt *q = query(db, sql);
    *ret = '\0';
    if (q != NULL && sqlite3_step(q) == SQLITE_ROW)
        (void)str_copy(ret, max, store_text(q, 0));
    sqlite3_finalize(q);
}

/* Bytes, of which some are others, fewer or more. */
static size_t change_bytes(uint8_t bytes[VALUE_MAX], const void *was, size_t len)
{
    len = len < VALUE_MAX / 2 ? len : VALUE_MAX / 2;
    if (len > 0)
        memcpy(bytes, was, len);
    for (unsigned n = message_byte() % 4; n > 0 && len > 0; n--)
        bytes[(message_byte() * 256u + message_byte()) % len] = message_byte();
    const unsigned how = message_byte() % 8;
    if (how == 0 && len > 0)
        return (message_byte() * 256u + message_byte()) % len;
    if (how == 1)
        bytes[len++] = message_byte();
    if (how == 2) {
        memcpy(bytes + len, bytes, len);
        len *= 2;
    }
    return len;
}

/* Binds what is in place of the value; -1: it stays. */
static int bind_other(sqlite3_stmt *to, const sqlite3_value *value)
{
    static uint8_t bytes[VALUE_MAX];
    sqlite3_value *was = (sqlite3_value *)(uintptr_t)value;
    const int type = sqlite3_value_type(was);
    if (message_byte() < 16)
        return sqlite3_bind_null(to, 1);
    if (type == SQLITE_INTEGER)
        return sqlite3_bind_int64(to, 1,
                                  (int64_t)message_odd_number((uint64_t)sqlite3_value_int64(was)));
    if (type == SQLITE_FLOAT || (type == SQLITE_NULL && message_byte() % 2))
        return sqlite3_bind_double(to, 1, message_odd_real());
    const bool text = type == SQLITE_TEXT || (type == SQLITE_NULL && message_byte() % 2);
    if (text && message_byte() % 2)
        return sqlite3_bind_text(to, 1, message_odd_text(), -1, SQLITE_TRANSIENT);
    const size_t len =
        change_bytes(bytes, sqlite3_value_blob(was), (size_t)sqlite3_value_bytes(was));
    return text ? sqlite3_bind_text(to, 1, (const char *)bytes, (int)len, SQLITE_TRANSIENT)
                : sqlite3_bind_blob(to, 1, bytes, (int)len, SQLITE_TRANSIENT);
}

static void change_row(sqlite3 *db, const char *table)
{
    char sql[512], key[128], column[64], count[24];
    (void)snprintf(sql, sizeof(sql), "SELECT count(*) FROM %s", table);
    first(db, sql, count, sizeof(count));
    const uint64_t n = strtoull(count, NULL, 10);
    const uint64_t row = n > 0 ? (message_byte() * 256u + message_byte()) % n : 0;
    (void)snprintf(sql, sizeof(sql),
                   "SELECT group_concat(name) FROM pragma_table_info('%s') WHERE pk", table);
    first(db, sql, key, sizeof(key));
    (void)snprintf(sql, sizeof(sql), "SELECT name FROM pragma_table_info('%s') LIMIT 1 OFFSET %u",
                   table, message_byte() % 48u);
    first(db, sql, column, sizeof(column));
    if (column[0] == '\0' || n == 0)
        return;
    char where[256];
    (void)snprintf(where, sizeof(where), "(%s)=(SELECT %s FROM %s LIMIT 1 OFFSET %llu)", key, key,
                   table, (unsigned long long)row);
    if (message_byte() < 24) {
        (void)snprintf(sql, sizeof(sql), "DELETE FROM %s WHERE %s", table, where);
        run(db, sql);
        return;
    }
    (void)snprintf(sql, sizeof(sql), "SELECT %s FROM %s LIMIT 1 OFFSET %llu", column, table,
                   (unsigned long long)row);
    sqlite3_stmt *q = query(db, sql);
    (void)snprintf(sql, sizeof(sql), "UPDATE %s SET %s=?1 WHERE %s", table, column, where);
    sqlite3_stmt *to = query(db, sql);
    if (q != NULL && to != NULL && sqlite3_step(q) == SQLITE_ROW) {
        sqlite3_value *was = sqlite3_value_dup(sqlite3_column_value(q, 0));
        (void)sqlite3_reset(q);
        if (bind_other(to, was) == SQLITE_OK)
            (void)sqlite3_step(to); /* it may be no value for there */
        sqlite3_value_free(was);
    }
    sqlite3_finalize(q);
    sqlite3_finalize(to);
}

static void change(sqlite3 *db)
{
    char sql[128], table[64];
    (void)snprintf(sql, sizeof(sql),
                   "SELECT name FROM sqlite_schema WHERE type='table' LIMIT 1 OFFSET %u",
                   message_byte() % 32u);
    first(db, sql, table, sizeof(table));
    if (table[0] == '\0')
        return;
    const unsigned how = message_byte();
    message_begin();
    (void)snprintf(sql, sizeof(sql), how < 4 ? "DROP TABLE %s" : "DELETE FROM %s", table);
    if (how < 12)
        run(db, sql);
    else
        change_row(db, table);
}

static void must(int rc, const struct err *err)
{
    if (rc < 0)
        sim_fail("%s", err->msg);
}

/* Makes the data directory. */
static void prepare(const struct buf *database)
{
    char *path = file_join(fuzz_folder, "changed"), *to = file_join(disk_dir(), DATABASE);
    struct err err = {0};
    struct buf file;
    sqlite3 *db = NULL;
    copy_files(keys, disk_dir());
    disk_elsewhere(true);
    must(file_write_atomic(path, database->data, database->len, 0600, &err), &err);
    if (sqlite3_open(path, &db) != SQLITE_OK)
        sim_fail("%s: %s", path, sqlite3_errmsg(db));
    run(db, "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF");
    for (unsigned n = 1 + message_byte() % CHANGES_MAX; n > 0 && message_next < message_end; n--)
        change(db);
    (void)sqlite3_close(db);
    must(file_read(path, FILE_MAX, &file, &err), &err);
    while (message_next + 4 <= message_end && file.len > 0) { /* what is left says which bytes */
        const uint32_t at = (uint32_t)(message_byte() << 16 | message_byte() << 8 | message_byte());
        file.data[at % file.len] = message_byte();
    }
    must(file_write_atomic(to, file.data, file.len, 0600, &err), &err);
    disk_elsewhere(false);
    buf_release(&file);
    mem_free(path);
    mem_free(to);
}

/* ---- what a coordinator makes of it --------------------------------------------------------- */

struct visitor {
    uint8_t key[32], identity[16];
    struct net_conn *conn;
    uint64_t calls;
};

static void on_open(void *arg)
{
}

static void on_reply(void *arg, const struct net_reply *r)
{
    if (r->code != 0 || r->method != METHOD(ASSIGN))
        return;
    Skerry__V1__AssignReply *m = skerry__v1__assign_reply__unpack(NULL, r->len, r->bytes);
    if (m == NULL)
        sim_fail("a task cannot be read");
    skerry__v1__assign_reply__free_unpacked(m, NULL);
}

static void on_closed(void *arg)
{
    ((struct visitor *)arg)->conn = NULL;
}

static void pass(uint64_t ms)
{
    for (const uint64_t until = sim_now_ms() + ms; sim_now_ms() < until && sim_step();)
        ;
}

static void come(struct visitor *v, unsigned number)
{
    Skerry__V1__JoinRequest m = SKERRY__V1__JOIN_REQUEST__INIT;
    Skerry__V1__AssignRequest a = SKERRY__V1__ASSIGN_REQUEST__INIT;
    bool refused = false;
    memset(v->key, (int)(number + 1), sizeof(v->key));
    memset(v->identity, (int)(number + 1), sizeof(v->identity));
    const struct net_client c = {v->key, v, on_open, on_reply, on_closed};
    if ((v->conn = net_dial(&c, &refused)) == NULL)
        return;
    m.name = (char *)(uintptr_t) "visitor";
    m.device = (char *)(uintptr_t) "none";
    m.version = (char *)(uintptr_t)SKERRY_VERSION;
    m.identity.data = m.instance.data = v->identity;
    m.identity.len = m.instance.len = sizeof(v->identity);
    m.allows_trainers = m.fetches_ahead = true;
    m.reads = SKERRY__V1__READS__READS_CASCADE_EXPERTS;
    net_send(v->conn, METHOD(JOIN), ++v->calls, &m.base);
    a.wait_ms = 5000;
    pass(500);
    if (v->conn != NULL)
        net_send(v->conn, METHOD(ASSIGN), ++v->calls, &a.base);
    pass(2000);
}

static void shown(void *arg, const struct http_said *s)
{
    const char *target = arg;
    if (s->status >= 500 && s->status != 503 && s->status != 507)
        sim_fail("%s is answered with %u: %.*s", target, s->status, (int)s->len, s->body);
}

static void look(void)
{
    static const char *const pages[] = {
        "/v1/status",         "/v1/jobs",           "/v1/tasks",
        "/v1/workers",        "/v1/modules",        "/v1/tokens",
        "/metrics",           "/v1/jobs/1",         "/v1/jobs/2",
        "/v1/jobs/3",         "/v1/jobs/4",         "/v1/jobs/1/metrics",
        "/v1/jobs/2/metrics", "/v1/jobs/3/metrics", "/v1/jobs/1/trace.svg"};
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        const struct http_ask a = {
            .method = "GET", .target = pages[i], .bearer = serves->user_text};
        (void)http_ask(&a, shown, (void *)(uintptr_t)pages[i]);
        pass(50);
    }
}

static void live(void)
{
    static struct visitor visitors[WORKERS]; /* of the cut they hear when this is over */
    look();
    for (unsigned i = 0; i < WORKERS; i++)
        come(&visitors[i], i);
    pass(PASS_MS);
    look();
    net_down(serves->rpc);
}

/* A sentence that names what is wrong. */
static void check_refusal(int rc, const struct err *err)
{
    if (err->msg[0] == '\0' || strpbrk(err->msg, "\r\n") != NULL)
        sim_fail("it is refused with %d by '%s'", rc, err->msg);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct loop *loop = NULL;
    struct err err = {0};
    char *dir = file_join(fuzz_folder, "run");
    message_next = data + (size > 0);
    message_end = data + size;
    sim_begin(1);
    must(file_mkdirs(dir, 0700, &err), &err);
    disk_begin(dir);
    prepare(&saved[size > 0 ? data[0] % SAVED : 0]);
    must(loop_new(&loop, &err), &err);
    const struct coordinator_options o = {
        .data_dir = disk_dir(),
        .listen = "127.0.0.1",
        .host = "127.0.0.1",
        .plain_http = true,
        .heartbeat_ms = 2000,
        .lease_ms = 8000,
        .outer_threads = 2,
        .store_workers = "no",
    };
    const int rc = coordinator_open(loop, &o, &serves, &err);
    if (rc < 0) {
        check_refusal(rc, &err);
    } else {
        loop_run(loop);
        live();
        coordinator_close(serves);
    }
    loop_free(loop);
    while (sim_step())
        ;
    net_end();
    http_end();
    disk_end();
    must(file_remove_tree(dir, &err), &err);
    mem_free(dir);
    return 0;
}
