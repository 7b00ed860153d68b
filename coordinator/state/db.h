/* A SQLite file as this program opens it: for its owner alone, in WAL mode, flushed at each commit,
 * in little memory.  store.h keeps rows in it. */
#ifndef COORDINATOR_DB_H
#define COORDINATOR_DB_H

#include <sqlite3.h>

#include "common/base/base.h"

/* The files of a database in WAL mode, by the ends of their names; all exist from its first read
 * on, and stay. */
#define DB_FILES 3
extern const char *const db_file_ends[DB_FILES];

/* The writer's connection; makes the file if there is none.  *ret is for sqlite3_close_v2() also
 * after a failure. */
int db_open(const char *path, sqlite3 **ret, struct err *err);
/* Another one, which only reads. */
int db_open_reader(const char *path, sqlite3 **ret, struct err *err);
/* A database holds the secrets of join tokens, so nobody else may read it, whatever the directory
 * permits.  SQLite gives its other files the mode of the first; files of an older release or of a
 * crash are changed. */
int db_private(const char *path, struct err *err);

/* Writes a file of a release that never gave free pages back anew, once, and logs its sizes.
 * Without room for that it does not shrink. */
void db_renew(sqlite3 *db);

/* Runs statements that give no rows. */
int db_run(sqlite3 *db, const char *sql, struct err *err);
/* The first number that a statement gives; 0 if there is none. */
int64_t db_number(sqlite3 *db, const char *sql);
/* SQLite's error as one of ours, so that the disk's faults keep their meaning. */
int db_error(sqlite3 *db, struct err *err, const char *what);

#endif
