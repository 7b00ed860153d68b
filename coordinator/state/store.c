#include "coordinator/state/store.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/list.h"
#include "coordinator/state/db.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define PARAMS_MAX 48
#define AWAY_BYTES_MAX ((size_t)4 * STORE_QUEUE_BYTES_MAX)

struct value {
    char type;
    size_t len; /* of types t and b, whose bytes follow the row in memory; SIZE_MAX: NULL */
    union {
        int64_t i;
        double d;
        size_t offset;
    } u;
};

struct row {
    struct list link;
    int stmt, n;
    size_t bytes;
    struct value values[];
};

static const uint8_t paused[32]; /* noted as the hash of the newest entry */

/* Rows in order. */
struct rows {
    struct list list;
    size_t n, bytes;
};

struct store {
    sqlite3 *db;     /* the writer's */
    sqlite3 *reader; /* the loop thread's; NULL while opening */
    char *paths[DB_FILES];
    struct stat files[DB_FILES]; /* as they were opened */
    const struct store_schema *schema;
    sqlite3_stmt **prepared;
    struct rows queue, group; /* group: rows of the running commit */
    struct rows later;        /* for the queue */
    uint64_t commits;
    uint64_t handed, done; /* numbers of the newest commits */
    const struct store_away *away;
    struct buf rows_away; /* the packed rows for it */
};

static int schema_number(struct store *s, int *ret, struct err *err)
{
    const int rc = db_run(s->db,
                          "CREATE TABLE IF NOT EXISTS migrations(number INTEGER PRIMARY KEY,"
                          " at_unix_ms INTEGER NOT NULL) STRICT",
                          err);
    if (rc == 0)
        *ret = (int)db_number(s->db, "SELECT ifnull(max(number), 0) FROM migrations");
    return rc;
}

static int known_schema(struct store *s, const struct store_schema *schema, int *ret,
                        struct err *err)
{
    const int rc = schema_number(s, ret, err);
    if (rc == 0 && *ret > schema->n_migrations)
        return err_set(err, -ERR_VERSION,
                       "the database has schema %d, this release knows up to %d: it was written "
                       "by a newer release, use that one",
                       *ret, schema->n_migrations);
    return rc;
}

int store_check(struct store *s, const struct store_schema *schema, struct err *err)
{
    int have;
    return known_schema(s, schema, &have, err);
}

static int end(struct store *s, int rc, struct err *err)
{
    if (rc == 0)
        rc = db_run(s->db, "COMMIT", err);
    /* Some faults have already rolled back; another rollback would then fail. */
    if (rc < 0 && !sqlite3_get_autocommit(s->db))
        (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

/* To the newest schema, and what that makes of the rows is accepted; or nothing is changed. */
static int migrate(struct store *s, store_accept_fn accept, void *arg, struct err *err)
{
    int have = 0, rc = s->schema ? known_schema(s, s->schema, &have, err) : 0;
    if (rc < 0 || s->schema == NULL)
        return rc;
    rc = db_run(s->db, "BEGIN IMMEDIATE", err);
    for (int i = have; i < s->schema->n_migrations && rc == 0; i++) {
        char note[120];
        (void)snprintf(note, sizeof(note), "INSERT INTO migrations VALUES(%d, %llu)", i + 1,
                       (unsigned long long)clock_wall_ms());
        if ((rc = db_run(s->db, s->schema->migrations[i], err)) < 0 ||
            (rc = db_run(s->db, note, err)) < 0 || (rc = store_pause(s, err)) < 0)
            (void)err_wrap(err, "making schema %d of the database", i + 1);
    }
    if (rc == 0 && accept != NULL)
        rc = accept(arg, s, err);
    return end(s, rc, err);
}

static int prepare_all(struct store *s, struct err *err)
{
    const int n = s->schema ? s->schema->n_statements : 0;
    s->prepared = mem_alloc_array((size_t)n + 1, sizeof(*s->prepared));
    for (int i = 0; i < n; i++)
        if (sqlite3_prepare_v3(s->db, s->schema->statements[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &s->prepared[i], NULL) != SQLITE_OK)
            return db_error(s->db, err, s->schema->statements[i]);
    return 0;
}

static int find_files(struct store *s, const char *path, struct err *err)
{
    for (int i = 0; i < DB_FILES; i++) {
        s->paths[i] = str_printf("%s%s", path, db_file_ends[i]);
        if (stat(s->paths[i], &s->files[i]) < 0)
            return err_errno(err, "cannot look at %s", s->paths[i]);
    }
    return 0;
}

/* Once most pages are free, and a MiB, up to a MiB goes back to the disk after each commit. */
static void shrink(struct store *s)
{
    const int64_t n = db_number(s->db, "PRAGMA freelist_count");
    if (n > 256 && n > db_number(s->db, "PRAGMA page_count") / 2)
        (void)db_run(s->db, "PRAGMA incremental_vacuum(256)", NULL); /* there may be no room */
}

int store_open_if(const char *path, const struct store_schema *schema, store_accept_fn accept,
                  void *arg, struct store **ret, struct err *err)
{
    if (sqlite3_threadsafe() == 0)
        return err_set(err, -ERR_UNIMPLEMENTED,
                       "this SQLite (%s) was built for programs of one thread: install one that "
                       "was built with SQLITE_THREADSAFE=1 or 2",
                       sqlite3_libversion());
    struct store *s = mem_alloc(sizeof(*s));
    s->schema = schema;
    buf_init(&s->rows_away, AWAY_BYTES_MAX);
    list_init(&s->queue.list);
    list_init(&s->group.list);
    list_init(&s->later.list);
    int rc = db_open(path, &s->db, err);
    if (rc < 0 || (rc = migrate(s, accept, arg, err)) < 0 || (rc = prepare_all(s, err)) < 0 ||
        (rc = db_open_reader(path, &s->reader, err)) < 0 || (rc = find_files(s, path, err)) < 0) {
        store_close(s);
        return err_wrap(err, "%s", path);
    }
    if (schema != NULL)
        db_renew(s->db);
    *ret = s;
    return 0;
}

int store_open(const char *path, const struct store_schema *schema, struct store **ret,
               struct err *err)
{
    return store_open_if(path, schema, NULL, NULL, ret, err);
}

static char *old_path(const char *path, int schema)
{
    return str_printf("%s.schema-%d", path, schema);
}

int store_keep_old(const char *path, const struct store_schema *schema, struct err *err)
{
    struct store *s = NULL;
    int have = 0, rc = store_open(path, NULL, &s, err);
    if (rc == 0)
        rc = schema_number(s, &have, err);
    store_close(s);
    if (rc < 0 || have == 0 || have >= schema->n_migrations)
        return rc;
    for (int i = 1; i <= have; i++) { /* this one too: of a start that was killed */
        char *old = old_path(path, i);
        (void)file_remove(old, NULL);
        mem_free(old);
    }
    char *to = old_path(path, have);
    if ((rc = store_snapshot(path, to, err)) < 0) {
        (void)file_remove(to, NULL);
        (void)err_wrap(err, "keeping the database of schema %d", have);
    }
    mem_free(to);
    return rc;
}

static void rows_clear(struct rows *r)
{
    struct list *l;
    while ((l = list_pop(&r->list)) != NULL)
        mem_free(list_entry(l, struct row, link));
    r->n = r->bytes = 0;
}

/* Appends the rows of `from` to `to`. */
static void rows_move(struct rows *to, struct rows *from)
{
    list_append(&to->list, &from->list);
    to->n += from->n;
    to->bytes += from->bytes;
    from->n = from->bytes = 0;
}

void store_close(struct store *s)
{
    if (s == NULL)
        return;
    rows_clear(&s->queue);
    rows_clear(&s->group);
    rows_clear(&s->later);
    for (int i = 0; s->prepared != NULL && s->schema != NULL && i < s->schema->n_statements; i++)
        sqlite3_finalize(s->prepared[i]);
    mem_free(s->prepared);
    sqlite3_close_v2(s->reader);
    sqlite3_close_v2(s->db);
    buf_release(&s->rows_away);
    for (int i = 0; i < DB_FILES; i++)
        mem_free(s->paths[i]);
    mem_free(s);
}

/* A row's parameters, before they are copied. */
struct params {
    struct value v[PARAMS_MAX];
    const void *data[PARAMS_MAX]; /* t and b */
    size_t n, bytes;              /* bytes of texts and blobs */
    uint64_t hash;                /* of the values before a '|' */
};

static uint64_t mix(uint64_t h, const void *data, size_t len)
{
    const uint8_t *p = data;
    uint64_t word = 0;
    for (; len >= 8; p += 8, len -= 8) {
        memcpy(&word, p, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 29;
    }
    word = len;
    for (; len > 0; len--)
        word = word << 8 | *p++;
    h = (h ^ word) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 32;
}

static void collect(const char *types, va_list ap, struct params *p)
{
    bool counts = true;
    p->n = p->bytes = 0;
    p->hash = 1;
    for (const char *type = types; *type != '\0' && p->n < PARAMS_MAX; type++) {
        if (*type == '|') {
            counts = false;
            continue;
        }
        struct value *v = &p->v[p->n];
        const void **data = &p->data[p->n++];
        *v = (struct value){.type = *type};
        *data = NULL;
        if (*type == 'i') {
            v->u.i = va_arg(ap, int64_t);
        } else if (*type == 'd') {
            v->u.d = va_arg(ap, double);
        } else {
            *data = va_arg(ap, const void *);
            if (*type == 'b')
                v->len = va_arg(ap, size_t);
            else if (*data != NULL)
                v->len = strlen(*data);
            if (*data == NULL)
                v->len = SIZE_MAX;
            else
                p->bytes += v->len;
        }
        if (counts)
            p->hash = *data ? mix(p->hash, *data, v->len) : mix(p->hash, &v->u, sizeof(v->u));
    }
    if (p->hash == 0) /* which stands for no row */
        p->hash = 1;
}

static void add_row(struct rows *to, int stmt, const struct params *p)
{
    size_t offset = sizeof(struct row) + p->n * sizeof(struct value);
    struct row *r = mem_alloc(offset + p->bytes);
    r->stmt = stmt;
    r->n = (int)p->n;
    r->bytes = offset + p->bytes;
    for (size_t i = 0; i < p->n; i++) {
        r->values[i] = p->v[i];
        if (p->data[i] == NULL)
            continue;
        memcpy((uint8_t *)r + offset, p->data[i], p->v[i].len);
        r->values[i].u.offset = offset;
        offset += p->v[i].len;
    }
    list_push(&to->list, &r->link);
    to->n++;
    to->bytes += r->bytes;
}

void store_put(struct store *s, int stmt, const char *types, ...)
{
    struct params p;
    va_list ap;
    va_start(ap, types);
    collect(types, ap, &p);
    va_end(ap);
    if (s != NULL)
        add_row(&s->queue, stmt, &p);
}

void store_put_later(struct store *s, int stmt, const char *types, ...)
{
    struct params p;
    va_list ap;
    va_start(ap, types);
    collect(types, ap, &p);
    va_end(ap);
    if (s != NULL)
        add_row(&s->later, stmt, &p);
}

void store_put_waiting(struct store *s)
{
    rows_move(&s->later, &s->queue);
    rows_move(&s->queue, &s->later);
}

bool store_put_changed(struct store *s, uint64_t *seen, int stmt, const char *types, ...)
{
    struct params p;
    va_list ap;
    va_start(ap, types);
    collect(types, ap, &p);
    va_end(ap);
    if (p.hash == *seen)
        return false;
    *seen = p.hash;
    if (s != NULL)
        add_row(&s->queue, stmt, &p);
    return true;
}

bool store_full(const struct store *s)
{
    return s != NULL && (store_queued(s) >= STORE_QUEUE_ROWS_MAX ||
                         s->queue.bytes + s->group.bytes + s->later.bytes >= STORE_QUEUE_BYTES_MAX);
}

size_t store_queued(const struct store *s)
{
    return s->queue.n + s->group.n + s->later.n;
}

uint64_t store_commits(const struct store *s)
{
    return s->commits;
}

uint64_t store_next(const struct store *s)
{
    return s->handed + 1;
}

uint64_t store_newest(const struct store *s)
{
    return s->queue.n > 0 ? s->handed + 1 : s->handed;
}

bool store_has(const struct store *s, uint64_t commit)
{
    return commit <= s->done;
}

static int bind(sqlite3_stmt *q, int at, const struct row *r, const struct value *v)
{
    if (v->type == 'i')
        return sqlite3_bind_int64(q, at, v->u.i);
    if (v->type == 'd')
        return isnan(v->u.d) ? sqlite3_bind_null(q, at) : sqlite3_bind_double(q, at, v->u.d);
    if (v->len == SIZE_MAX)
        return sqlite3_bind_null(q, at);
    const char *data = (const char *)r + v->u.offset;
    return v->type == 't' ? sqlite3_bind_text64(q, at, data, v->len, SQLITE_STATIC, SQLITE_UTF8)
                          : sqlite3_bind_blob64(q, at, data, v->len, SQLITE_STATIC);
}

static int write_row(struct store *s, const struct row *r, struct err *err)
{
    sqlite3_stmt *q = s->prepared[r->stmt];
    int rc = 0;
    for (int i = 0; i < r->n && rc == 0; i++)
        if (bind(q, i + 1, r, &r->values[i]) != SQLITE_OK)
            rc = db_error(s->db, err, s->schema->statements[r->stmt]);
    if (rc == 0 && sqlite3_step(q) != SQLITE_DONE)
        rc = db_error(s->db, err, s->schema->statements[r->stmt]);
    (void)sqlite3_reset(q); /* it returns step's error again */
    (void)sqlite3_clear_bindings(q);
    return rc;
}

/* Builds with SKERRY_FAULTS: a commit takes as long as the file SKERRY_FAULT_COMMIT is there. */
static void fault_stalls(void)
{
#ifdef SKERRY_FAULTS
    const char *path = getenv("SKERRY_FAULT_COMMIT");
    while (path != NULL && access(path, F_OK) == 0)
        (void)usleep(10000);
#endif
}

/* If the files were replaced, SQLite would go on writing to files that nobody can find.  A lost
 * -wal may hold acknowledged changes: they are copied into the database while that is still there.
 */
static int check_place(struct store *s, struct err *err)
{
    for (int i = 0; i < DB_FILES; i++) {
        const struct stat *was = &s->files[i];
        struct stat now;
        if (stat(s->paths[i], &now) == 0 && now.st_dev == was->st_dev && now.st_ino == was->st_ino)
            continue;
        bool saved = i > 0 && db_run(s->db, "PRAGMA wal_checkpoint(FULL)", NULL) == 0;
        return err_set(err, -EIO,
                       "%s was removed or replaced while it is in use: move it back, or stop the "
                       "coordinator and start it %s",
                       s->paths[i],
                       saved ? "again, the database has all that counts" : "on a copy");
    }
    return 0;
}

bool store_hand(struct store *s)
{
    s->handed++;
    rows_move(&s->group, &s->queue);
    if (s->group.n > 0)
        return true;
    s->done = s->handed;
    return false;
}

/* ---- rows that are also sent away ----
 *
 * The number of used statements (u32), and each of them as length (u32) and SQL; then the rows,
 * each as the statement's index (u32), the number of values (u32), and for each value its type
 * (u8), its length (u64; SIZE_MAX: NULL) if it is a text or a blob, and its bytes.  Little-endian.
 */

static void put_u32(struct buf *b, uint32_t n)
{
    (void)buf_append(b, &n, sizeof(n));
}

static void put_value(struct buf *b, const struct row *r, const struct value *v)
{
    const uint64_t len = v->len;
    (void)buf_append(b, &v->type, 1);
    if (v->type == 'i' || v->type == 'd') {
        (void)buf_append(b, &v->u, 8);
        return;
    }
    (void)buf_append(b, &len, sizeof(len));
    if (v->len != SIZE_MAX)
        (void)buf_append(b, (const char *)r + v->u.offset, v->len);
}

/* Its bound is above what a queue can hold. */
static void pack_rows(struct store *s)
{
    struct buf *b = &s->rows_away;
    uint32_t *places = mem_alloc_array((size_t)s->schema->n_statements + 1, sizeof(*places));
    uint32_t used = 0;
    struct list *l;
    buf_clear(b);
    for (l = s->group.list.next; l != &s->group.list; l = l->next) {
        uint32_t *place = &places[list_entry(l, struct row, link)->stmt];
        *place = *place ? *place : ++used;
    }
    put_u32(b, used);
    for (uint32_t at = 1; at <= used; at++)
        for (int i = 0; i < s->schema->n_statements; i++)
            if (places[i] == at) {
                put_u32(b, (uint32_t)strlen(s->schema->statements[i]));
                (void)buf_append_str(b, s->schema->statements[i]);
            }
    for (l = s->group.list.next; l != &s->group.list; l = l->next) {
        const struct row *r = list_entry(l, struct row, link);
        put_u32(b, places[r->stmt] - 1);
        put_u32(b, (uint32_t)r->n);
        for (int i = 0; i < r->n; i++)
            put_value(b, r, &r->values[i]);
    }
    mem_free(places);
}

static int note(struct store *s, const struct store_noted *n, struct err *err)
{
    sqlite3_stmt *q = NULL;
    int rc = 0;
    if (sqlite3_prepare_v2(s->db, "INSERT OR REPLACE INTO away VALUES(1, ?, ?, ?)", -1, &q, NULL) !=
            SQLITE_OK ||
        sqlite3_bind_blob(q, 1, n->owner, sizeof(n->owner), SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_bind_int64(q, 2, (int64_t)n->seq) != SQLITE_OK ||
        sqlite3_bind_blob(q, 3, n->hash, sizeof(n->hash), SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_step(q) != SQLITE_DONE)
        rc = db_error(s->db, err, "noting an entry of the log");
    sqlite3_finalize(q);
    return rc;
}

/* Notes the commit's entry in the log, together with its rows. */
static int note_next(struct store *s, struct err *err)
{
    struct store_noted n = {0};
    pack_rows(s);
    int rc = store_noted(s, &n, err);
    if (rc == 0)
        rc = s->away->next(s->away->arg, s->rows_away.data, s->rows_away.len, &n.seq, n.hash, err);
    return rc == 0 ? note(s, &n, err) : rc;
}

void store_send_away(struct store *s, const struct store_away *away)
{
    s->away = away;
}

int store_noted(struct store *s, struct store_noted *ret, struct err *err)
{
    sqlite3_stmt *q = NULL;
    *ret = (struct store_noted){0};
    if (sqlite3_prepare_v2(s->db, "SELECT owner, seq, hash FROM away", -1, &q, NULL) != SQLITE_OK)
        return 0; /* nothing was sent so far */
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW && sqlite3_column_bytes(q, 0) == sizeof(ret->owner) &&
        sqlite3_column_bytes(q, 2) == sizeof(ret->hash)) {
        memcpy(ret->owner, sqlite3_column_blob(q, 0), sizeof(ret->owner));
        ret->seq = (uint64_t)sqlite3_column_int64(q, 1);
        memcpy(ret->hash, sqlite3_column_blob(q, 2), sizeof(ret->hash));
        rc = SQLITE_DONE;
    }
    rc = rc == SQLITE_DONE ? 0 : db_error(s->db, err, "reading the newest entry of the log");
    sqlite3_finalize(q);
    return rc;
}

/* Row 1 is the newest entry; the others are those noted for its number before. */
int store_note(struct store *s, const struct store_noted *noted, struct err *err)
{
    char keep[160];
    int rc = db_run(s->db,
                    "CREATE TABLE IF NOT EXISTS away(one INTEGER PRIMARY KEY, owner BLOB NOT NULL,"
                    " seq INTEGER NOT NULL, hash BLOB NOT NULL) STRICT",
                    err);
    (void)snprintf(keep, sizeof(keep),
                   "DELETE FROM away WHERE seq <> %" PRIu64 " AND one > 1;"
                   "INSERT INTO away(owner, seq, hash) SELECT owner, seq, hash FROM away"
                   " WHERE one = 1 AND seq = %" PRIu64,
                   noted->seq, noted->seq);
    if (rc == 0)
        rc = db_run(s->db, keep, err);
    return rc == 0 ? note(s, noted, err) : rc;
}

bool store_is_paused(const struct store_noted *noted)
{
    return noted->seq > 0 && hash_equal(noted->hash, paused, sizeof(paused));
}

int store_pause(struct store *s, struct err *err)
{
    struct store_noted n;
    int rc = store_noted(s, &n, err);
    if (rc < 0 || n.seq == 0 || store_is_paused(&n))
        return rc;
    memcpy(n.hash, paused, sizeof(paused));
    return store_note(s, &n, err);
}

int store_was_noted(struct store *s, uint64_t seq, const uint8_t hash[32], bool *ret,
                    struct err *err)
{
    sqlite3_stmt *q = NULL;
    int rc = SQLITE_ERROR;
    if (sqlite3_prepare_v2(s->db, "SELECT 1 FROM away WHERE seq = ? AND hash = ?", -1, &q, NULL) ==
            SQLITE_OK &&
        sqlite3_bind_int64(q, 1, (int64_t)seq) == SQLITE_OK &&
        sqlite3_bind_blob(q, 2, hash, 32, SQLITE_STATIC) == SQLITE_OK)
        rc = sqlite3_step(q);
    *ret = rc == SQLITE_ROW;
    rc = rc == SQLITE_ROW || rc == SQLITE_DONE ? 0
                                               : db_error(s->db, err, "reading entries of the log");
    sqlite3_finalize(q);
    return rc;
}

struct reading {
    const uint8_t *at, *end;
};

static bool take(struct reading *r, void *ret, size_t len)
{
    if ((size_t)(r->end - r->at) < len)
        return false;
    memcpy(ret, r->at, len);
    r->at += len;
    return true;
}

static int cut_off(struct err *err)
{
    return err_set(err, -ERR_FORMAT, "rows of the log in the store are cut off or damaged");
}

static int take_value(struct store *s, struct reading *r, sqlite3_stmt *q, int at, struct err *err)
{
    char type;
    uint64_t n;
    double d;
    int rc;
    if (!take(r, &type, 1) || !take(r, &n, sizeof(n)))
        return cut_off(err);
    memcpy(&d, &n, sizeof(d));
    if (type == 'i') {
        rc = sqlite3_bind_int64(q, at, (int64_t)n);
    } else if (type == 'd') {
        rc = isnan(d) ? sqlite3_bind_null(q, at) : sqlite3_bind_double(q, at, d);
    } else if (n == UINT64_MAX) {
        rc = sqlite3_bind_null(q, at);
    } else {
        if ((type != 't' && type != 'b') || n > (uint64_t)(r->end - r->at))
            return cut_off(err);
        const char *data = (const char *)r->at;
        r->at += n;
        rc = type == 't' ? sqlite3_bind_text64(q, at, data, n, SQLITE_STATIC, SQLITE_UTF8)
                         : sqlite3_bind_blob64(q, at, data, n, SQLITE_STATIC);
    }
    return rc == SQLITE_OK ? 0 : db_error(s->db, err, "a row of the log in the store");
}

static int take_row(struct store *s, struct reading *r, sqlite3_stmt **q, uint32_t n_q,
                    struct err *err)
{
    uint32_t place, n;
    int rc = 0;
    if (!take(r, &place, 4) || !take(r, &n, 4) || place >= n_q || n > PARAMS_MAX)
        return cut_off(err);
    for (uint32_t i = 0; i < n && rc == 0; i++)
        rc = take_value(s, r, q[place], (int)i + 1, err);
    if (rc == 0 && sqlite3_step(q[place]) != SQLITE_DONE)
        rc = db_error(s->db, err, sqlite3_sql(q[place]));
    (void)sqlite3_reset(q[place]);
    (void)sqlite3_clear_bindings(q[place]);
    return rc;
}

static int take_statement(struct store *s, struct reading *r, sqlite3_stmt **ret, struct err *err)
{
    uint32_t len;
    if (!take(r, &len, 4) || len > (size_t)(r->end - r->at))
        return cut_off(err);
    const char *sql = (const char *)r->at;
    r->at += len;
    if (sqlite3_prepare_v2(s->db, sql, (int)len, ret, NULL) != SQLITE_OK || *ret == NULL)
        return db_error(s->db, err, "a statement of the log in the store");
    return 0;
}

static int take_rows(struct store *s, struct reading *r, struct err *err)
{
    sqlite3_stmt **q;
    uint32_t n, made = 0;
    int rc = 0;
    if (!take(r, &n, 4) || n > (size_t)(r->end - r->at) / 4)
        return cut_off(err);
    q = mem_alloc_array((size_t)n + 1, sizeof(sqlite3_stmt *));
    while (rc == 0 && made < n)
        if ((rc = take_statement(s, r, &q[made], err)) == 0)
            made++;
    while (rc == 0 && r->at < r->end)
        rc = take_row(s, r, q, n, err);
    while (made > 0)
        sqlite3_finalize(q[--made]);
    mem_free(q);
    return rc;
}

/* ---- transactions ---- */

int store_replay(struct store *s, const void *rows, size_t len, const struct store_noted *noted,
                 struct err *err)
{
    struct reading r = {rows, (const uint8_t *)rows + len};
    int rc = db_run(s->db, "BEGIN IMMEDIATE", err);
    if (rc == 0 && len > 0)
        rc = take_rows(s, &r, err);
    if (rc == 0)
        rc = note(s, noted, err);
    return end(s, rc, err);
}

int store_write(struct store *s, struct err *err)
{
    int rc = check_place(s, err);
    if (rc < 0)
        return rc;
    fault_stalls();
    rc = db_run(s->db, "BEGIN IMMEDIATE", err);
    for (struct list *l = s->group.list.next; rc == 0 && l != &s->group.list; l = l->next)
        rc = write_row(s, list_entry(l, struct row, link), err);
    if (rc == 0 && s->away != NULL)
        rc = note_next(s, err);
    rc = end(s, rc, err);
    if (rc == 0)
        shrink(s);
    return rc == 0 && s->away != NULL ? s->away->send(s->away->arg, err) : rc;
}

void store_written(struct store *s, int rc)
{
    if (rc < 0) {
        rows_move(&s->group, &s->queue);
        rows_move(&s->queue, &s->group);
        return;
    }
    rows_clear(&s->group);
    s->done = s->handed;
    s->commits++;
}

int store_commit(struct store *s, struct err *err)
{
    if (!store_hand(s))
        return 0;
    int rc = store_write(s, err);
    store_written(s, rc);
    return rc;
}

int store_select(struct store *s, const char *sql, sqlite3_stmt **ret, struct err *err)
{
    sqlite3 *db = s->reader ? s->reader : s->db;
    return sqlite3_prepare_v2(db, sql, -1, ret, NULL) == SQLITE_OK ? 0 : db_error(db, err, sql);
}

int store_snapshot(const char *path, const char *to, struct err *err)
{
    sqlite3 *from = NULL;
    char *sql = sqlite3_mprintf("VACUUM INTO %Q", to);
    int rc = sql ? 0 : -ENOMEM;
    if (rc == 0 && sqlite3_open_v2(path, &from, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX,
                                   NULL) != SQLITE_OK)
        rc = from ? db_error(from, err, "opening the database") : -ENOMEM;
    if (rc == 0 && (rc = file_remove(to, err)) == 0 && (rc = db_private(to, err)) == 0 &&
        (rc = db_run(from, "PRAGMA busy_timeout=5000", err)) == 0 &&
        sqlite3_exec(from, sql, NULL, NULL, NULL) != SQLITE_OK)
        rc = db_error(from, err, "copying the database");
    const int fd = rc == 0 ? open(to, O_RDONLY | O_CLOEXEC) : -1; /* SQLite does not flush it */
    rc = rc < 0 ? rc : fd >= 0 ? file_sync(fd, to, err) : err_errno(err, "cannot open %s", to);
    (void)close(fd);
    sqlite3_free(sql);
    sqlite3_close_v2(from);
    return rc < 0 ? err_wrap(err, "%s", path) : 0;
}

const char *store_text(sqlite3_stmt *q, int column)
{
    const char *t = (const char *)sqlite3_column_text(q, column);
    return t != NULL ? t : "";
}
