/* The work directory, by which a worker stays the same worker after a restart.
 *
 *   DIR/lock              one process at a time
 *   DIR/identity          16 random bytes in hex, by which a coordinator knows this disk
 *   DIR/tls-key.pem       its key, which proves that, and the certificate (common/net/keys.h)
 *   DIR/blobs/            the cache (worker/order/cache.h)
 *   DIR/state-CLUSTER/    residuals, local checkpoints, held versions, per coordinator
 *   DIR/tmp/              of running tasks; emptied at start
 *
 * Residuals and checkpoints at a phase's end are not flushed when written, since each round would
 * wait for the disk.  A killed process loses none of them; a loss of power may truncate or garble
 * them.  So state-CLUSTER/boot names the boot in which they were written, until the work directory
 * is closed and all is on disk; after another boot they are removed.
 *
 * The default is the first free one of ~/.cache/skerry/worker-0, worker-1, ..., so that
 * several workers of one machine do not collide and each finds its own directory again. */
#ifndef WORKER_WORKDIR_H
#define WORKER_WORKDIR_H

#include "common/base/base.h"
#include "common/base/file.h"

#define WORKDIR_DEFAULTS_MAX 256
/* State files that are so much older than the newest one are removed at the start, and the state
 * for a coordinator that was not joined for so long before the last one was. */
#define WORKDIR_STATE_DAYS 14

/* An open work dir: its paths and its identity. */
struct workdir {
    char *dir, *blobs, *state, *tmp, *held;
    uint8_t identity[16];
    struct keys *keys;
    struct file_lock lock;
    bool opened; /* workdir_open has succeeded */
};

/* dir: NULL for the default.  -EBUSY: another process has it.  -EEXIST: it has files, but none of a
 * worker: its tmp/ and blobs/ would be emptied.  On a full disk removes some of blobs/. */
int workdir_open(const char *dir, const uint8_t cluster_id[16], struct workdir *ret,
                 struct err *err);
void workdir_close(struct workdir *w); /* { 0 } is fine; unlocks */

/* Removes the files of jobs with smaller numbers, which have ended, from a state directory: of all
 * but these. */
void workdir_forget(const char *state, uint64_t before, const uint64_t *going, size_t n_going);

#endif
