#include "coordinator/state/store.h"

#include "common/base/clock.h"
#include "common/base/list.h"

#include <sys/stat.h>

#ifdef SKERRY_FAULTS
#include <unistd.h>
#endif

#define PARAMS_MAX 48

struct value {
    char type;
    size_t len; /* t and b, which follow the row in memory; SIZE_MAX: NULL */
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

/* What a database in WAL mode consists of; all are there from its first read on, and stay. */
static const char *const file_ends[] = {"", "-wal", "-shm"};

#define FILES ((int)(sizeof(file_ends) / sizeof(file_ends[0])))

/* Rows in order. */
struct rows {
    struct list list;
    size_t n, bytes;
};

struct store {
    sqlite3 *db;     /* of whoever writes */
    sqlite3 *reader; /* of the loop thread; NULL while opening */
    char *paths[FILES];
    struct stat files[FILES]; /* as they were opened */
    const struct store_schema *schema;
    sqlite3_stmt **prepared;
    struct rows queue, group; /* group: of the commit that is under way */
    uint64_t commits;
    uint64_t handed, done; /* numbers of the newest commits */
};

/* SQLite's code as ours: the disk's faults keep their meaning. */
static int db_error(sqlite3 *db, struct err *err, const char *what)
{
    int code = sqlite3_errcode(db), rc = -EIO;
    const char *hint = "";
    bool disk = code == SQLITE_IOERR || code == SQLITE_CANTOPEN;
    int cause = disk ? sqlite3_system_errno(db) : 0;
    if (code == SQLITE_FULL || cause == ENOSPC || cause == EDQUOT || cause == EFBIG) {
        rc = -ENOSPC;
        hint = "; make room on the disk of the data dir";
    } else if (code == SQLITE_BUSY || code == SQLITE_LOCKED) {
        rc = -EBUSY;
        hint = "; another program has the database open";
    } else if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) {
        rc = -ERR_FORMAT;
        hint = "; put a copy of it back, or begin anew with another --data-dir";
    } else if (code == SQLITE_READONLY || code == SQLITE_PERM) {
        rc = -EACCES;
        hint = "; it must be writable for the user who runs coordinatord";
    }
    return err_set(err, rc, "%s: %s%s%s%s", what, sqlite3_errmsg(db), cause ? ": " : "",
                   cause ? strerror(cause) : "", hint);
}

static int store_error(struct store *s, struct err *err, const char *what)
{
    return db_error(s->db, err, what);
}

static int run(struct store *s, const char *sql, struct err *err)
{
    if (sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK)
        return 0;
    char what[96];
    (void)snprintf(what, sizeof(what), "database statement '%.60s'", sql);
    return store_error(s, err, what);
}

static int schema_number(struct store *s, int *ret, struct err *err)
{
    sqlite3_stmt *q = NULL;
    int rc = run(s,
                 "CREATE TABLE IF NOT EXISTS migrations(number INTEGER PRIMARY KEY,"
                 " at_unix_ms INTEGER NOT NULL) STRICT",
                 err);
    if (rc < 0 || (rc = store_select(s, "SELECT ifnull(max(number), 0) FROM migrations", &q, err)))
        return rc;
    *ret = sqlite3_step(q) == SQLITE_ROW ? sqlite3_column_int(q, 0) : 0;
    sqlite3_finalize(q);
    return 0;
}

static int migrate(struct store *s, struct err *err)
{
    int have = 0, rc = schema_number(s, &have, err);
    if (rc < 0)
        return rc;
    if (have > s->schema->n_migrations)
        return err_set(err, -ERR_VERSION,
                       "the database has schema %d, this release knows up to %d: it was written "
                       "by a newer release, use that one",
                       have, s->schema->n_migrations);
    for (int i = have; i < s->schema->n_migrations; i++) {
        char note[120];
        (void)snprintf(note, sizeof(note), "INSERT INTO migrations VALUES(%d, %llu)", i + 1,
                       (unsigned long long)clock_wall_ms());
        if ((rc = run(s, "BEGIN IMMEDIATE", err)) < 0 ||
            (rc = run(s, s->schema->migrations[i], err)) < 0 || (rc = run(s, note, err)) < 0 ||
            (rc = run(s, "COMMIT", err)) < 0)
            return err_wrap(err, "making schema %d of the database", i + 1);
    }
    return 0;
}

static int prepare_all(struct store *s, struct err *err)
{
    s->prepared = mem_alloc_array((size_t)s->schema->n_statements + 1, sizeof(*s->prepared));
    for (int i = 0; i < s->schema->n_statements; i++)
        if (sqlite3_prepare_v3(s->db, s->schema->statements[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &s->prepared[i], NULL) != SQLITE_OK)
            return store_error(s, err, s->schema->statements[i]);
    return 0;
}

static int find_files(struct store *s, const char *path, struct err *err)
{
    for (int i = 0; i < FILES; i++) {
        s->paths[i] = str_printf("%s%s", path, file_ends[i]);
        if (stat(s->paths[i], &s->files[i]) < 0)
            return err_errno(err, "cannot look at %s", s->paths[i]);
    }
    return 0;
}

static int open_reader(struct store *s, const char *path, struct err *err)
{
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    sqlite3 *db = NULL;
    int rc = 0;
    if (sqlite3_open_v2(path, &db, flags, NULL) != SQLITE_OK ||
        sqlite3_exec(db, "PRAGMA query_only=ON", NULL, NULL, NULL) != SQLITE_OK ||
        sqlite3_exec(db, "PRAGMA cache_size=-256", NULL, NULL, NULL) != SQLITE_OK) {
        rc = db ? db_error(db, err, "opening the database for reading") : -ENOMEM;
        sqlite3_close_v2(db);
        return rc;
    }
    s->reader = db;
    return 0;
}

int store_open(const char *path, const struct store_schema *schema, struct store **ret,
               struct err *err)
{
    if (sqlite3_threadsafe() == 0)
        return err_set(err, -ERR_UNIMPLEMENTED,
                       "this SQLite (%s) was built for programs of one thread: install one that "
                       "was built with SQLITE_THREADSAFE=1 or 2",
                       sqlite3_libversion());
    struct store *s = mem_alloc(sizeof(*s));
    s->schema = schema;
    list_init(&s->queue.list);
    list_init(&s->group.list);
    int rc = 0;
    if (sqlite3_open_v2(path, &s->db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK)
        rc = s->db ? store_error(s, err, "opening the database") : -ENOMEM;
    /* cache_size in KiB: the coordinator must stay small. */
    if (rc < 0 || (rc = run(s, "PRAGMA busy_timeout=2000", err)) < 0 ||
        (rc = run(s, "PRAGMA journal_mode=WAL", err)) < 0 ||
        (rc = run(s, "PRAGMA synchronous=FULL", err)) < 0 ||
        (rc = run(s, "PRAGMA foreign_keys=OFF", err)) < 0 ||
        (rc = run(s, "PRAGMA cache_size=-1024", err)) < 0 ||
        (rc = run(s, "PRAGMA journal_size_limit=4194304", err)) < 0 || (rc = migrate(s, err)) < 0 ||
        (rc = prepare_all(s, err)) < 0 || (rc = open_reader(s, path, err)) < 0) {
        store_close(s);
        return err_wrap(err, "%s", path);
    }
    if ((rc = find_files(s, path, err)) < 0) {
        store_close(s);
        return rc;
    }
    *ret = s;
    return 0;
}

static void rows_clear(struct rows *r)
{
    struct list *l;
    while ((l = list_pop(&r->list)) != NULL)
        mem_free(list_entry(l, struct row, link));
    r->n = r->bytes = 0;
}

/* What `from` has goes behind what `to` has. */
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
    for (int i = 0; s->prepared != NULL && i < s->schema->n_statements; i++)
        sqlite3_finalize(s->prepared[i]);
    mem_free(s->prepared);
    sqlite3_close_v2(s->reader);
    sqlite3_close_v2(s->db);
    for (int i = 0; i < FILES; i++)
        mem_free(s->paths[i]);
    mem_free(s);
}

/* A row's parameters, before they are copied. */
struct params {
    struct value v[PARAMS_MAX];
    const void *data[PARAMS_MAX]; /* t and b */
    size_t n, bytes;              /* bytes of texts and blobs */
    uint64_t hash;                /* what stands before a '|' */
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
}

static void queue(struct store *s, int stmt, const struct params *p)
{
    if (s == NULL)
        return;
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
    list_push(&s->queue.list, &r->link);
    s->queue.n++;
    s->queue.bytes += r->bytes;
}

void store_put(struct store *s, int stmt, const char *types, ...)
{
    struct params p;
    va_list ap;
    va_start(ap, types);
    collect(types, ap, &p);
    va_end(ap);
    queue(s, stmt, &p);
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
    queue(s, stmt, &p);
    return true;
}

bool store_full(const struct store *s)
{
    return store_queued(s) >= STORE_QUEUE_ROWS_MAX ||
           s->queue.bytes + s->group.bytes >= STORE_QUEUE_BYTES_MAX;
}

size_t store_queued(const struct store *s)
{
    return s->queue.n + s->group.n;
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
    const char *data = (const char *)r + v->u.offset;
    switch (v->type) {
    case 'i':
        return sqlite3_bind_int64(q, at, v->u.i);
    case 'd':
        return isnan(v->u.d) ? sqlite3_bind_null(q, at) : sqlite3_bind_double(q, at, v->u.d);
    case 't':
        return v->len == SIZE_MAX
                   ? sqlite3_bind_null(q, at)
                   : sqlite3_bind_text64(q, at, data, v->len, SQLITE_STATIC, SQLITE_UTF8);
    default:
        return v->len == SIZE_MAX ? sqlite3_bind_null(q, at)
                                  : sqlite3_bind_blob64(q, at, data, v->len, SQLITE_STATIC);
    }
}

static int write_row(struct store *s, const struct row *r, struct err *err)
{
    sqlite3_stmt *q = s->prepared[r->stmt];
    int rc = 0;
    for (int i = 0; i < r->n && rc == 0; i++)
        if (bind(q, i + 1, r, &r->values[i]) != SQLITE_OK)
            rc = store_error(s, err, s->schema->statements[r->stmt]);
    if (rc == 0 && sqlite3_step(q) != SQLITE_DONE)
        rc = store_error(s, err, s->schema->statements[r->stmt]);
    (void)sqlite3_reset(q); /* repeats the error of step */
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

/* SQLite would go on writing to a file that nobody will ever find.  What was acknowledged may
 * stand in a -wal that is gone: it goes into the database while that is where it was. */
static int check_place(struct store *s, struct err *err)
{
    for (int i = 0; i < FILES; i++) {
        const struct stat *was = &s->files[i];
        struct stat now;
        if (stat(s->paths[i], &now) == 0 && now.st_dev == was->st_dev && now.st_ino == was->st_ino)
            continue;
        bool saved = i > 0 && run(s, "PRAGMA wal_checkpoint(FULL)", NULL) == 0;
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

int store_write(struct store *s, struct err *err)
{
    int rc = check_place(s, err);
    if (rc < 0)
        return rc;
    fault_stalls();
    rc = run(s, "BEGIN IMMEDIATE", err);
    for (struct list *l = s->group.list.next; rc == 0 && l != &s->group.list; l = l->next)
        rc = write_row(s, list_entry(l, struct row, link), err);
    if (rc == 0)
        rc = run(s, "COMMIT", err);
    /* Some faults have rolled back already; then this one fails, rightly. */
    if (rc < 0 && !sqlite3_get_autocommit(s->db))
        (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
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
    struct store from = {0}, copy = {0};
    sqlite3_backup *b = NULL;
    int rc = 0;
    if (sqlite3_open_v2(path, &from.db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) !=
        SQLITE_OK)
        rc = from.db ? store_error(&from, err, "opening the database") : -ENOMEM;
    if (rc == 0 && sqlite3_open_v2(to, &copy.db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE,
                                   NULL) != SQLITE_OK)
        rc = copy.db ? store_error(&copy, err, "opening the copy") : -ENOMEM;
    if (rc == 0)
        rc = run(&from, "PRAGMA busy_timeout=5000", err);
    if (rc == 0 && (b = sqlite3_backup_init(copy.db, "main", from.db, "main")) == NULL)
        rc = store_error(&copy, err, "copying the database");
    if (b != NULL) {
        (void)sqlite3_backup_step(b, -1); /* all at once: writers go on beside it */
        if (sqlite3_backup_finish(b) != SQLITE_OK)
            rc = store_error(&copy, err, "copying the database");
    }
    sqlite3_close_v2(copy.db);
    sqlite3_close_v2(from.db);
    return rc < 0 ? err_wrap(err, "%s", path) : 0;
}

const char *store_text(sqlite3_stmt *q, int column)
{
    const char *t = (const char *)sqlite3_column_text(q, column);
    return t != NULL ? t : "";
}
