/* The machines of the coordinator.  One serves: it is stopped, is killed or loses its power, and
 * starts again.  Where the state is shipped to the store (docs/failover.md) another machine may
 * take over, whether that one lives or not.  If it lives it goes on, deposed, until it finds that
 * out and ends itself: workers and people may come to either. */
#ifndef TESTS_SIM_HOST_H
#define TESTS_SIM_HOST_H

#include "common/base/base.h"

struct coordinator;
struct loop;

/* look_again: as its option.  serves(): this one does from now on; NULL: none does, for a while. */
void host_begin(bool ships, unsigned look_again, void (*serves)(struct coordinator *co));
void host_start(void);
void host_stop(void); /* as a person does it: it starts again soon */
void host_down(void); /* for good */
/* After a crash (disk.h), before the disk is back. */
void host_crashed(void);
/* Another machine begins to restore, if none does; the old one may be gone. */
void host_take_over(void);
/* One of the two cannot reach the store. */
void host_cut(void);
/* Is nobody deposed, and nobody about to take over? */
bool host_is_settled(void);
uint64_t host_taken_over(void); /* how often, in this world */
void host_end(void);

/* The coordinator of this loop ends itself. */
void host_ends(const struct loop *loop);

#endif
