/* Asks whether this machine is about to be taken back: a thread of its own that asks the cloud's
 * metadata service, or looks at a file, or runs a program, every second or two.
 *
 *   aws      IMDSv2: a token by PUT, then spot/instance-action and the rebalance recommendation
 *   gcp      instance/preempted with wait_for_change, instance/maintenance-event
 *   azure    Scheduled Events, those that name this machine
 *   auto     whichever of the three answers first; as long as none does, that is logged
 *   PATH     a program (an executable file): its end with status 0 is the notice; any other file:
 *            that it is there is the notice, and a number as its text the seconds left
 *
 * A notice that the machine goes is the last one.  What each service says is read by
 * worker/spot_notice.h. */
#ifndef WORKER_SPOT_H
#define WORKER_SPOT_H

#include "common/base/base.h"
#include "worker/spot_notice.h"

struct loop;
struct spot;

#define SPOT_METADATA "http://169.254.169.254"

typedef void (*spot_fn)(void *arg, const struct spot_notice *n);

/* what: as above.  -EINVAL: neither a name nor a path, or a directory.  at: the metadata service's
 * address.  fn is called on the loop thread; all pointers are kept until spot_close. */
int spot_open(struct loop *loop, const char *what, const char *at, spot_fn fn, void *arg,
              struct spot **ret, struct err *err);
void spot_close(struct spot *s); /* accepts NULL */

#endif
