#include "coordinator/state/db.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"

const char *const db_file_ends[DB_FILES] = {"", "-wal", "-shm"};

/* The system's error after a failure of the disk; 0: none.  After a COMMIT only the file has it. */
static int cause_of(sqlite3 *db)
{
    int cause = sqlite3_system_errno(db);
    sqlite3_file *wal = NULL;
    if (cause == 0)
        (void)sqlite3_file_control(db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &wal);
    if (wal != NULL && wal->pMethods != NULL)
        (void)wal->pMethods->xFileControl(wal, SQLITE_FCNTL_LAST_ERRNO, &cause);
    if (cause == 0)
        (void)sqlite3_file_control(db, "main", SQLITE_FCNTL_LAST_ERRNO, &cause);
    return cause;
}

int db_error(sqlite3 *db, struct err *err, const char *what)
{
    int code = sqlite3_errcode(db), rc = -EIO;
    const char *hint = "", *file = sqlite3_db_filename(db, "main");
    char text[512];
    bool disk = code == SQLITE_IOERR || code == SQLITE_CANTOPEN;
    int cause = disk ? cause_of(db) : 0;
    if (code == SQLITE_FULL || cause == ENOSPC || cause == EDQUOT || cause == EFBIG) {
        rc = -ENOSPC;
        hint = "; make room on the disk of the data dir";
    } else if (code == SQLITE_BUSY || code == SQLITE_LOCKED) {
        rc = -EBUSY;
        hint = "; another program has the database open";
    } else if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) {
        rc = -ERR_FORMAT;
        hint = "; put a copy of it back, or begin anew with another --data-dir";
    } else if (cause == EROFS) {
        (void)snprintf(
            text, sizeof(text),
            "; the file system of %.300s is read-only, as it becomes when its disk fails: "
            "look at the disk, and mount it for writing again",
            file ? file : "the database");
        hint = text;
    } else if (code == SQLITE_READONLY || code == SQLITE_PERM || cause == EACCES) {
        rc = -EACCES;
        hint = "; it must be writable for the user who runs coordinatord";
    }
    return err_set(err, rc, "%s: %s%s%s%s", what, sqlite3_errmsg(db), cause ? ": " : "",
                   cause ? strerror(cause) : "", hint);
}

int db_run(sqlite3 *db, const char *sql, struct err *err)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK)
        return 0;
    char what[96];
    (void)snprintf(what, sizeof(what), "database statement '%.60s'", sql);
    return db_error(db, err, what);
}

int64_t db_number(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *q = NULL;
    int64_t n = 0;
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) == SQLITE_OK && sqlite3_step(q) == SQLITE_ROW)
        n = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return n;
}

int db_private(const char *path, struct err *err)
{
    int rc = 0;
    /* One that is there is not opened: closing it would end this process's locks. */
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        (void)close(fd);
    for (int i = 0; i < DB_FILES && rc == 0; i++) {
        struct stat st;
        char *name = str_printf("%s%s", path, db_file_ends[i]);
        if (stat(name, &st) == 0 && st.st_mode & 077 && chmod(name, 0600) < 0)
            rc = err_errno(err, "cannot keep %s from others (chmod 600)", name);
        mem_free(name);
    }
    return rc;
}

int db_open(const char *path, sqlite3 **ret, struct err *err)
{
    static const char *const pragmas[] = {
        "PRAGMA busy_timeout=2000",
        "PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",
        "PRAGMA foreign_keys=OFF",
        "PRAGMA cache_size=-1024", /* KiB: the coordinator must stay small */
        "PRAGMA journal_size_limit=4194304",
    };
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    int rc = db_private(path, err);
    if (rc == 0 && sqlite3_open_v2(path, ret, flags, NULL) != SQLITE_OK)
        rc = *ret ? db_error(*ret, err, "opening the database") : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < sizeof(pragmas) / sizeof(pragmas[0]); i++)
        rc = db_run(*ret, pragmas[i], err);
    return rc;
}

int db_open_reader(const char *path, sqlite3 **ret, struct err *err)
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
    *ret = db;
    return 0;
}

static uint64_t size_of(sqlite3 *db)
{
    return (uint64_t)(db_number(db, "PRAGMA page_count") * db_number(db, "PRAGMA page_size"));
}

void db_renew(sqlite3 *db)
{
    const char *file = sqlite3_db_filename(db, "main");
    char before[STR_HUMAN_MAX], after[STR_HUMAN_MAX];
    struct err err = {0};
    if (db_number(db, "PRAGMA auto_vacuum") != 0)
        return;
    log_info("store", "%s (%s) is of an older release and is written anew, so that it can shrink",
             file, str_human_bytes(size_of(db), before));
    if (db_run(db, "VACUUM", &err) < 0)
        log_warn("store",
                 "%s stays as it is, and does not shrink until a start can write it "
                 "anew: %s",
                 file, err.msg);
    else
        log_info("store", "%s is written anew: %s of %s are left", file,
                 str_human_bytes(size_of(db), after), before);
}
