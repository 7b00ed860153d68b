#include "common/net/net_fault.h"

static struct net_fault now;

const struct net_fault *net_fault(void)
{
    return &now;
}

bool net_fault_set(struct net_fault faults)
{
#ifdef SKERRY_FAULTS
    now = faults;
    return true;
#else
    (void)faults;
    return false;
#endif
}
