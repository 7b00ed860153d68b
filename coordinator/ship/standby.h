/* A coordinator that stands by: it reads the sign of life that the owner of a state writes into the
 * store (ship.h), and says when there was none for long enough to go on in the owner's place.
 *
 * Being wrong is safe: an owner that is deposed tells nobody anything from then on
 * (docs/failover.md).  So this needs no clock but our own, and counts only time in which the store
 * answered us. */
#ifndef COORDINATOR_STANDBY_H
#define COORDINATOR_STANDBY_H

#include "common/base/base.h"
#include "coordinator/state/options.h"

#define STANDBY_POLL_MS 1000u
#define STANDBY_SIGN_MAX 192

/* What has been seen; zero at first. */
struct standby {
    char sign[STANDBY_SIGN_MAX]; /* the newest; "": none yet */
    uint64_t read_ms;            /* when the store answered last; 0: it did not, the last time */
    uint64_t silent_ms;          /* for which the sign has been that one */
};

/* The store was asked at now_ms: sign is what it has, "" where nobody has written one, NULL where
 * it did not answer.  True: there was no other sign for after_ms.  Pure. */
bool standby_look(struct standby *s, uint64_t now_ms, const char *sign, uint64_t after_ms);

/* Waits until it is time to go on with the state in o->store; blocks, perhaps for ever.  An error
 * is one of the first look, such as a bucket that is not there: later ones are told and waited out.
 */
int standby_wait(const struct coordinator_options *o, uint64_t after_ms, struct err *err);

#endif
