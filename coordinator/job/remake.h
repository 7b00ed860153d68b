/* Version 0 of a network with which no phase can begin is made again.
 *
 *   TRAIN or FEATURE fails   remake_consider(): if nobody trains from version 0, or has, and only
 *                            one worker has made it, its INIT task is open again.  The word of
 *                            another origin than its maker's is enough; of the same one, five
 *                            failures of the task are
 *   INIT                     as at first (agree.h): by another worker, if one is here.  Other bytes
 *                            take the place of version 0, and who failed with it begins anew.  The
 *                            same from elsewhere: the fault was not there, and it stays for good
 *
 * Before that others have a minute for a first step from it, which shows that it is of use: else a
 * liar who comes early could replace it.  Each time the wait doubles.  A version 0 that a user's
 * program has made is not made again. */
#ifndef COORDINATOR_REMAKE_H
#define COORDINATOR_REMAKE_H

#include "coordinator/state/core.h"

/* Worker `by` has failed the task, which is open. */
void remake_consider(struct coordinator *co, struct job *j, const struct task *failed,
                     const struct worker *by);
/* The network has no version but 0, and nobody trains from it, or has. */
bool remake_may(const struct state *s, const struct job *j, uint32_t network);
/* Another version 0 has taken the place of the one before: what failed with that is tried at once.
 */
void remake_begin_anew(struct coordinator *co, struct job *j, uint32_t network);
/* The hash by which versions 0 are compared: of n levels. */
void remake_hash(const struct blob_ref *made, size_t n, uint8_t ret[32]);

#endif
