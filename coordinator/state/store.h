/* Durable rows: one SQLite file (WAL, synchronous=FULL), written in batches.
 *
 *   loop thread                                       writer thread
 *   persist_changes() store_put()s rows that changed
 *   store_hand()     they become the next commit ───► store_write()  one transaction with all of
 *   store_put()      rows of the commit after that                   them, in order, and an fsync
 *   store_written()  answers that waited may leave ◄─ rc             (invariant 3)
 *
 * One commit is under way at a time.  Commits are numbered in the order in which they were handed
 * over.  A failed one (disk full, I/O) changes nothing: its rows are queued again before the
 * others, and the next commit contains them all.  The queue, including the commit under way, is
 * bounded; its owner must refuse changes while store_full() or while commits fail.
 *
 * The schema has a number (table `migrations`): an older file is migrated, a newer one refused.
 * Loop thread, except store_write().  store_select() has its own connection, which sees durable
 * rows only and never waits for a commit. */
#ifndef COORDINATOR_STORE_H
#define COORDINATOR_STORE_H

#include <sqlite3.h>

#include "common/base/base.h"

struct store;

#define STORE_QUEUE_ROWS_MAX 262144
#define STORE_QUEUE_BYTES_MAX (64u << 20)

struct store_schema {
    const char *const *migrations; /* SQL scripts; number i makes schema i + 1 */
    int n_migrations;
    const char *const *statements; /* for store_put, by number */
    int n_statements;
};

/* Ships rows elsewhere, too (docs/failover.md): each commit is an entry of a log, is noted in the
 * database in the same transaction, and counts as durable once the entry is written.  Called on the
 * thread of store_write(). */
struct store_away {
    /* Makes the next entry from these rows: its number and hash.  Negative: there is no commit. */
    int (*next)(void *arg, const void *rows, size_t len, uint64_t *ret_seq, uint8_t ret_hash[32],
                struct err *err);
    /* Waits until it is written.  Negative: the commit is in the database but does not count. */
    int (*send)(void *arg, struct err *err);
    void *arg;
};

/* The newest entry that the database has; seq 0: none. */
struct store_noted {
    uint8_t owner[16]; /* the coordinator that owns this database */
    uint64_t seq;
    uint8_t hash[32];
};

/* If the database has an older schema, which store_open() would migrate, keeps a copy of it beside
 * it, PATH.schema-N, with which the older release can be used again; an earlier copy goes. */
int store_keep_old(const char *path, const struct store_schema *schema, struct err *err);
/* Keeps schema until close; NULL: no migration, for store_replay(). */
int store_open(const char *path, const struct store_schema *schema, struct store **ret,
               struct err *err);
/* The same if what the migrated database has is accepted; if not, the file keeps its schema. */
typedef int (*store_accept_fn)(void *arg, struct store *s, struct err *err);
int store_open_if(const char *path, const struct store_schema *schema, store_accept_fn accept,
                  void *arg, struct store **ret, struct err *err);
/* -ERR_VERSION: the database is of a newer release than this schema. */
int store_check(struct store *s, const struct store_schema *schema, struct err *err);
/* Rows not committed are lost: commit first. */
void store_close(struct store *s); /* accepts NULL */

/* Queues a run of statement `stmt`.  One letter of types per parameter:
 *   i  int64_t      d  double (NAN becomes NULL)
 *   t  const char * (NULL becomes NULL)      b  const void *, size_t (NULL, 0)
 * Everything is copied.  s NULL: nothing is queued. */
void store_put(struct store *s, int stmt, const char *types, ...);
/* The same, but the row waits for store_put_waiting(), which queues such rows before the others. */
void store_put_later(struct store *s, int stmt, const char *types, ...);
void store_put_waiting(struct store *s);
/* As store_put(), and returns true, unless the row is unchanged; *seen, 0 at first, holds its hash.
 * Values after a '|' in types do not count as changes: they are written with the next change. */
bool store_put_changed(struct store *s, uint64_t *seen, int stmt, const char *types, ...);

bool store_full(const struct store *s);     /* false for NULL */
size_t store_queued(const struct store *s); /* rows that are in no finished commit */
uint64_t store_commits(const struct store *s);

/* The next commit's number: a row put now is durable once store_has() that. */
uint64_t store_next(const struct store *s);
/* The commit after which all rows put so far are durable. */
uint64_t store_newest(const struct store *s);
bool store_has(const struct store *s, uint64_t commit);

/* Makes the queued rows the commit under way; there must be none.  False: nothing was queued, so
 * the commit is done. */
bool store_hand(struct store *s);
/* Writes the commit, and gives back up to a MiB of the file if most of it is free.  -EIO while the
 * file, its -wal or its -shm is not where it was opened: nobody would find the rows.  On any
 * thread, between store_hand() and store_written(). */
int store_write(struct store *s, struct err *err);
/* Ends the commit; rc: from store_write(), or another reason why it was not written. */
void store_written(struct store *s, int rc);

/* All three at once, on a thread that may block. */
int store_commit(struct store *s, struct err *err);

/* Ships rows from the next commit on.  Keeps away; call it between commits. */
void store_send_away(struct store *s, const struct store_away *away);
int store_noted(struct store *s, struct store_noted *ret, struct err *err);
/* Notes an entry that belongs to no commit; makes the table for it if needed.  What was noted for
 * the same number is kept beside it: whichever the store writes is ours. */
int store_note(struct store *s, const struct store_noted *noted, struct err *err);
/* Notes, if an entry ever was, that changes follow which the log does not get.  A migration does
 * so, too. */
int store_pause(struct store *s, struct err *err);
bool store_is_paused(const struct store_noted *noted);
/* Whether that entry was noted, as the newest or for the newest's number. */
int store_was_noted(struct store *s, uint64_t seq, const uint8_t hash[32], bool *ret,
                    struct err *err);
/* Applies rows, as passed to store_away, to the database, and notes the entry. */
int store_replay(struct store *s, const void *rows, size_t len, const struct store_noted *noted,
                 struct err *err);

/* A statement that reads committed rows; the caller finalises it. */
int store_select(struct store *s, const char *sql, sqlite3_stmt **ret, struct err *err);

/* Copies the database at `path`, which another process may be writing, to the new file `to`, and
 * none of its free pages. */
int store_snapshot(const char *path, const char *to, struct err *err);

/* Column as text, "" for NULL. */
const char *store_text(sqlite3_stmt *q, int column);

#endif
