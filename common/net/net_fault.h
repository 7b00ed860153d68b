/* Injected network faults, for tests: in builds with SKERRY_FAULTS (debug, asan, tsan), none in
 * release builds. */
#ifndef COMMON_NET_NET_FAULT_H
#define COMMON_NET_NET_FAULT_H

#include "common/base/base.h"

/* 0: off. */
struct net_fault {
    unsigned write_max;               /* a socket write takes so many bytes per turn of the loop */
    unsigned drop_method, drop_every; /* the server forgets every N-th request of the method */
};

/* Never NULL; all zero without faults.  Loop thread. */
const struct net_fault *net_fault(void);

/* From now on these, for tests.  False: not compiled in. */
bool net_fault_set(struct net_fault faults);

#endif
