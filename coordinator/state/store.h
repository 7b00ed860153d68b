/* Durable rows: one SQLite file (WAL, synchronous=FULL), written in batches.
 *
 *   loop thread                                       writer thread
 *   persist_changes() store_put()s rows that changed
 *   store_hand()     they become the next commit ───► store_write()  one transaction with all of
 *   store_put()      rows of the commit after that                   them, in order, and an fsync
 *   store_written()  what waited for it may leave ◄── rc             (invariant 3)
 *
 * One commit is under way at a time.  Commits have numbers, in the order in which they were handed
 * over.  One that fails (disk full, I/O) changes nothing: its rows are queued again before the
 * others, and the next one has them all.  The queue is bounded, with what is under way; its owner
 * must stop taking changes while store_full() or while commits fail.
 *
 * The schema has a number (table `migrations`): an older file is migrated, a
 * newer one is refused.  Loop thread, but for store_write(); store_select() has a connection of
 * its own, which sees what is durable and never waits for a commit. */
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

/* Rows that go elsewhere, too (docs/failover.md): each commit is an entry of a log, which is noted
 * in the database in the same transaction, and is durable when that is written.  On the thread of
 * store_write(). */
struct store_away {
    /* The next entry, with these rows: its number and hash.  Negative: it is not committed. */
    int (*next)(void *arg, const void *rows, size_t len, uint64_t *ret_seq, uint8_t ret_hash[32],
                struct err *err);
    /* Waits until it is written.  Negative: the commit is in the database, and does not count. */
    int (*send)(void *arg, struct err *err);
    void *arg;
};

/* The newest entry that the database has; seq 0: none. */
struct store_noted {
    uint8_t owner[16]; /* whose database this is */
    uint64_t seq;
    uint8_t hash[32];
};

/* schema is kept until close; NULL: the database stays as it is, for store_replay(). */
int store_open(const char *path, const struct store_schema *schema, struct store **ret,
               struct err *err);
/* -ERR_VERSION: the database is of a newer release than this schema. */
int store_check(struct store *s, const struct store_schema *schema, struct err *err);
/* Queued rows that were not committed are lost: commit first. */
void store_close(struct store *s); /* accepts NULL */

/* Queues a run of statement `stmt`.  One letter of types per parameter:
 *   i  int64_t      d  double (NAN becomes NULL)
 *   t  const char * (NULL becomes NULL)      b  const void *, size_t (NULL, 0)
 * Everything is copied.  s NULL: nothing is queued. */
void store_put(struct store *s, int stmt, const char *types, ...);
/* The same, and true, unless the row is what it was: *seen, 0 at first, is kept for that.  Values
 * behind a '|' in types do not count: figures that go along with the next change. */
bool store_put_changed(struct store *s, uint64_t *seen, int stmt, const char *types, ...);

bool store_full(const struct store *s);
size_t store_queued(const struct store *s); /* rows that no commit has yet */
uint64_t store_commits(const struct store *s);

/* The commit that is gathering: what is put now is durable once store_has() it. */
uint64_t store_next(const struct store *s);
/* The one after which all that was put so far is durable. */
uint64_t store_newest(const struct store *s);
bool store_has(const struct store *s, uint64_t commit);

/* Makes what is queued the commit that is under way; there must be none.  false: nothing was
 * queued, and it is done. */
bool store_hand(struct store *s);
/* Writes it.  -EIO while the file, its -wal or its -shm is not where it was opened: what was
 * written then nobody would find.  On any thread, between store_hand() and store_written(). */
int store_write(struct store *s, struct err *err);
/* What store_write() has returned, or another reason why it was not written. */
void store_written(struct store *s, int rc);

/* All three at once, on a thread that may wait. */
int store_commit(struct store *s, struct err *err);

/* From the next commit on.  away is kept; between commits. */
void store_send_away(struct store *s, const struct store_away *away);
int store_noted(struct store *s, struct store_noted *ret, struct err *err);
/* Notes an entry that is no commit's; makes the place for it. */
int store_note(struct store *s, const struct store_noted *noted, struct err *err);
/* Does to the database what rows, as store_away has got them, did elsewhere, and notes the entry.
 */
int store_replay(struct store *s, const void *rows, size_t len, const struct store_noted *noted,
                 struct err *err);

/* A statement for reading what is committed, to be finalised by the caller. */
int store_select(struct store *s, const char *sql, sqlite3_stmt **ret, struct err *err);

/* Copies the database at `path`, which another process may be writing, to the new file `to`. */
int store_snapshot(const char *path, const char *to, struct err *err);

/* Column as text, "" for NULL. */
const char *store_text(sqlite3_stmt *q, int column);

#endif
