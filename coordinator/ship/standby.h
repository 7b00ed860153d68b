/* A standby coordinator: it reads the sign of life that the owner of a state writes to the store
 * (ship.h), and decides when it has been missing long enough to take over.
 *
 * A wrong takeover is safe: a deposed owner acknowledges nothing any more (docs/failover.md).  So
 * this needs only our own clock, and counts only the time during which the store answered us. */
#ifndef COORDINATOR_STANDBY_H
#define COORDINATOR_STANDBY_H

#include "common/base/base.h"
#include "coordinator/state/options.h"

#define STANDBY_POLL_MS 1000u
#define STANDBY_SIGN_MAX 192

/* What has been seen; zero at first. */
struct standby {
    char sign[STANDBY_SIGN_MAX]; /* the newest; "": none yet */
    uint64_t read_ms;            /* when the store last answered; 0: it did not, the last time */
    uint64_t silent_ms;          /* how long the sign has not changed */
};

/* Takes the store's answer of now_ms: sign is the one it has, "" where nobody has written one, NULL
 * where it did not answer.  True: the sign has not changed for after_ms.  Pure. */
bool standby_look(struct standby *s, uint64_t now_ms, const char *sign, uint64_t after_ms);

/* Waits until it is time to take over the state in o->store; blocks, perhaps for ever.  First it
 * tries there what the owner needs: to write, also on condition (-ERR_UNIMPLEMENTED: the store
 * cannot), and to delete.  It returns errors until then, such as a missing bucket, unless they may
 * pass; later ones are logged and waited out. */
int standby_wait(const struct coordinator_options *o, uint64_t after_ms, struct err *err);

#endif
