/* Captures a data directory at one moment while its coordinator runs: SQLite's online snapshot of
 * the database, and hard links to the files that it names, under DATA/.capture with the same
 * relative paths.  Files that the coordinator deletes meanwhile stay.  If a file was deleted before
 * its link was made, another snapshot is taken; for the inputs of the newest outer step only a few
 * times.  Where the blobs are in an object store, those of modules are linked from the cache, or
 * fetched; the others stay in the store.  One capture at a time per data directory.  Blocking. */
#ifndef COORDINATOR_CAPTURE_H
#define COORDINATOR_CAPTURE_H

#include "common/base/file.h"
#include "coordinator/state/options.h"
#include "coordinator/state/manifest.h"
#include "coordinator/state/state.h"

#define CAPTURE_DATABASE "coordinator.db"
#define CAPTURE_BLOBS "blobs"

/* A capture of one job (job_id 0: of all jobs, with the key and the secrets). */
struct capture {
    char *dir;
    struct state state;       /* as in the database */
    struct manifest manifest; /* the database first; hash and size 0 where none is on record */
    uint64_t left;            /* blobs that stay in the store */
    struct file_lock lock;
};

/* o: the data directory, and the options of its object store if it has one; with one, job_id 0 is
 * refused.  -ERR_NOTFOUND: there is no such job. */
int capture_take(const struct coordinator_options *o, uint64_t job_id, struct capture *ret,
                 struct err *err);
void capture_release(struct capture *s);
/* Removes the leftovers of a killed capture, unless a capture is being made. */
void capture_tidy(const char *data_dir);

#endif
