/* A data directory as it is at one moment, while its coordinator goes on: SQLite's online snapshot
 * of the database, and hard links to the files that it names, under DATA/.capture with the same
 * relative paths.  What the coordinator deletes meanwhile stays; what it has deleted before its
 * link was made calls for another snapshot, as does, a few times, what the newest outer step
 * began with.  Where the blobs are in an object store, those of modules are linked from the cache,
 * or brought; the others stay where they are.  One at a time for a data directory.  Blocking. */
#ifndef COORDINATOR_CAPTURE_H
#define COORDINATOR_CAPTURE_H

#include "common/base/file.h"
#include "coordinator/state/options.h"
#include "coordinator/state/manifest.h"
#include "coordinator/state/state.h"

#define CAPTURE_DATABASE "coordinator.db"
#define CAPTURE_BLOBS "blobs"

/* Of one job (0: of all, with the key and the secrets). */
struct capture {
    char *dir;
    struct state state;       /* as the database has it */
    struct manifest manifest; /* the database first; hash and size zero where none is on record */
    uint64_t left;            /* blobs that stay in the store */
    struct file_lock lock;
};

/* o: the data dir, and how its store is reached, if it has one; job_id 0 is refused then.
 * -ERR_NOTFOUND: there is no such job. */
int capture_take(const struct coordinator_options *o, uint64_t job_id, struct capture *ret,
                 struct err *err);
void capture_release(struct capture *s);
/* Removes what a capture that was killed has left, unless one is being made. */
void capture_tidy(const char *data_dir);

#endif
