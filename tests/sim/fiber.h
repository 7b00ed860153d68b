/* What may wait for something far away, in the one thread of the world: a stack of its own, left
 * where it waits and gone on with by an event.
 *
 * On a fiber pthread_create(), pthread_join() and the waits for a condition are those of fibers
 * (pthreads are left alone elsewhere), and CLOCK_MONOTONIC is the world's.  No fiber may wait with
 * a mutex held but the condition's.
 *
 * Each fiber belongs to a process, and so does what it begins.  Whoever cannot wait, as what closes
 * a coordinator between two events, has the fibers of the process hurry: their waits end at once,
 * and whoever asks the store hears at once. */
#ifndef TESTS_SIM_FIBER_H
#define TESTS_SIM_FIBER_H

#include "tests/sim/sim.h"

struct fiber;

#define FIBER_FOREVER UINT64_MAX

/* Begins at once, and comes back when it waits or has ended.  It frees itself; ret (may be NULL) is
 * NULL again from then on, and must stay until then. */
void fiber_new(unsigned process, sim_fn fn, void *arg, struct fiber **ret);
bool fiber_here(void);        /* are we on one? */
bool fiber_may_wait(void);    /* and does it not hurry? */
unsigned fiber_process(void); /* whose; 0: none is here */

/* Waits until fiber_wake(key), or for so long: false.  Whoever hurries hears false at once. */
bool fiber_wait(const void *key, uint64_t ms);
void fiber_wake(const void *key);
/* Waits for its end; where nobody may wait all of its process hurry. */
void fiber_join(struct fiber *const *f);
/* All of a process hurry until none is left. */
void fiber_finish(unsigned process);

/* What the disk adds to the time of what is done here (sim_slow()). */
void fiber_add_slow(uint64_t ms);
uint64_t fiber_take_slow(void);

void fiber_end(void); /* frees the stacks */

#endif
