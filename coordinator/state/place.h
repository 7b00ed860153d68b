/* Where the blobs of a data directory are: in its folder blobs/, or in an object store
 * (docs/store.md), which its file blob-store names.  It is opened with the same place or not at
 * all: in another one no blob would be found, and the jobs would be lost. */
#ifndef COORDINATOR_PLACE_H
#define COORDINATOR_PLACE_H

#include "common/base/base.h"

#define PLACE_CACHE "cache" /* folder in the data directory that caches a store's blobs */

/* Files of the data directory that the coordinator's first start makes: who it is. */
#define PLACE_IDENTITY 6
extern const char *const place_identity[PLACE_IDENTITY];

struct blobstore;
struct coordinator_options;
struct s3;
struct s3_options;

/* The database of a restore until all is there; empty before that, as the mark of a restore that
 * has begun. */
#define PLACE_BEGUN "coordinator.db.restored"

/* Makes a data directory to restore into, or checks that it is empty except for a coordinator's
 * lock and the files that a new disk has, or has what an interrupted restore has left. */
int place_check_new(const char *data_dir, struct err *err);
/* The same, removes such leftovers, and marks the directory: a restore begins.  It ends when
 * PLACE_BEGUN is renamed to coordinator.db, or by place_undo(), which leaves the directory as
 * place_check_new() wants it.  Whoever begins holds the directory's lock. */
int place_begin(const char *data_dir, struct err *err);
void place_undo(const char *data_dir);
/* -ERR_FORMAT: a restore has begun and not ended. */
int place_check_whole(const char *data_dir, struct err *err);

/* Gives files restored by root to the directory's owner, as which the coordinator runs: for a unit
 * with DynamicUser, systemd checks only the directory itself.  Meanwhile the process works in other
 * directories, since the owner could lead a path elsewhere. */
int place_give(const char *data_dir, struct err *err);

/* Makes room for the state in the store: moves the data directory's files to its folder "deposed",
 * replacing that folder's, and removes cached blobs.  -EEXIST: it has blobs of its own. */
int place_set_aside(const char *data_dir, struct err *err);

/* -EEXIST: the directory is in other use: it has files, but none of a coordinator.  A missing
 * directory is fine. */
int place_check_own(const char *data_dir, struct err *err);

/* -ERR_CONFIG: the options name another place than the data directory's file. */
int place_check(const struct coordinator_options *o, struct err *err);

/* Opens the place that the options name, after place_check() has accepted it; cluster: our
 * cluster's id.  Region and endpoint of a store may also come from the environment, as in Amazon's
 * programs. */
int place_open(const struct coordinator_options *o, const char *cluster, struct blobstore **ret,
               struct err *err);

/* A client of the store that also has the state (--store-state), and the state's prefix; mem_free
 * it.  like: retries and waits, its other fields zero.  -ERR_CONFIG: the options name no store. */
int place_open_state(const struct coordinator_options *o, const struct s3_options *like,
                     struct s3 **ret, char **ret_prefix, struct err *err);
/* The same for all objects of the store, while a coordinator runs: their keys are the prefix and
 * the names that docs/failover.md lists. */
int place_open_all(const struct coordinator_options *o, struct s3 **ret, char **ret_prefix,
                   struct err *err);
/* Writes the blobs' place to the data directory's file. */
int place_remember(const struct coordinator_options *o, struct err *err);

/* The URL of the store, mem_free it; NULL: the blobs are in the folder. */
char *place_url(const char *data_dir);

/* How far the database was: the number of its newest commit, noted beside it in the file
 * newest-commit, at most once a minute.  A database that is behind its note has lost what was
 * acknowledged: its -wal was removed while no coordinator ran, an older copy was put back, or it
 * was copied while in use, before its note was.
 * SQLite opens both without a word, and a day later the sweep would delete the blobs of what is
 * lost.  -ERR_FORMAT: the database, with so many commits, is behind. */
int place_check_commit(const char *data_dir, uint64_t commits, struct err *err);
/* Notes a commit that is durable, or 0 where a database begins anew.  Waits for the disk. */
int place_note_commit(const char *data_dir, uint64_t commits, struct err *err);

#endif
