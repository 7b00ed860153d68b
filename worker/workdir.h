/* The directory that makes a worker the same worker after a restart.
 *
 *   DIR/lock              one process at a time
 *   DIR/identity          16 random bytes in hex: what this disk is known by to a coordinator
 *   DIR/tls-key.pem       its key, which proves that, and the certificate (common/net/keys.h)
 *   DIR/blobs/            the cache (worker/order/cache.h)
 *   DIR/state-CLUSTER/    residuals, local checkpoints, held versions, per coordinator
 *   DIR/tmp/              of running tasks; emptied at start
 *
 * Residuals and checkpoints of a phase's end are not flushed as they are written: each round would
 * wait for the disk.  A killed process loses none of them, a loss of power may cut or garble them.
 * So state-CLUSTER/boot names the boot that they are of, until the work dir is closed and all is on
 * the disk; after another boot than that they are removed.
 *
 * Without a name the first free of ~/.cache/skerry/worker-0, worker-1, ... is taken, so
 * that several workers of one machine do not meet and each finds its own again. */
#ifndef WORKER_WORKDIR_H
#define WORKER_WORKDIR_H

#include "common/base/base.h"
#include "common/base/file.h"

#define WORKDIR_DEFAULTS_MAX 256
#define WORKDIR_STATE_DAYS 14 /* state files untouched for longer are removed at the start */

/* An open work dir: its paths and its identity. */
struct workdir {
    char *dir, *blobs, *state, *tmp, *held;
    uint8_t identity[16];
    struct keys *keys;
    struct file_lock lock;
    bool opened; /* workdir_open came to its end */
};

/* dir: NULL for the default.  -EBUSY: another process has it.  -EEXIST: it has files, and none of
 * a worker; tmp/ in it would be emptied, and blobs/ too.  On a full disk some of blobs/ goes. */
int workdir_open(const char *dir, const uint8_t cluster_id[16], struct workdir *ret,
                 struct err *err);
void workdir_close(struct workdir *w); /* { 0 } is fine; unlocks */

/* Removes what lies in a state directory of jobs with smaller numbers, which are over. */
void workdir_forget(const char *state, uint64_t before);

#endif
