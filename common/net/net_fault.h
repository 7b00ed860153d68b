/* Injected network faults, in builds with SKERRY_FAULTS (debug, asan, tsan);
 * none in release builds.  Read from the environment at first use:
 *
 *     SKERRY_FAULT_NET="write_max=7,delay_ms=20,drop=18:3,cut=100"
 *
 *   write_max=N   a socket write takes at most N bytes per turn of the loop
 *   delay_ms=N    every flush of an RPC connection waits N ms
 *   drop=M:N      the server forgets every N-th request of method M
 *   cut=N         a connection is cut after N frames have been read from it */
#ifndef COMMON_NET_NET_FAULT_H
#define COMMON_NET_NET_FAULT_H

#include "common/base/base.h"

/* The knobs above; 0: off. */
struct net_fault {
    unsigned write_max, delay_ms;
    unsigned drop_method, drop_every;
    unsigned cut_frames;
};

/* Never NULL; all zero without faults.  Loop thread. */
const struct net_fault *net_fault(void);

/* Replaces the knobs (for tests; "" clears).  False: not compiled in. */
bool net_fault_set(const char *text);

#endif
