/* Where check_ops compares, and memory that its device and the tests can both reach: managed
 * memory, whose pages move to the card when it reads them, so that what is tested reads device
 * memory; pinned memory of the host where a card cannot do that.  The buffers, their guard zones
 * and their poison are those of the unit tests. */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/profile.h"

const char *guard_device(void);
void *guard_alloc(size_t bytes);
void guard_free(void *p);
struct profile *guard_profile(void);

/* SKERRY_DEVICE=cpu: to try the programs themselves where there is no card. */
const char *guard_device(void)
{
    const char *device = getenv("SKERRY_DEVICE");
    return device ? device : "cuda:0";
}

static bool on_card(void)
{
    return strncmp(guard_device(), "cuda", 4) == 0;
}

static bool manages(void)
{
    int yes = 0;
    return cudaDeviceGetAttribute(&yes, cudaDevAttrConcurrentManagedAccess, 0) == cudaSuccess &&
           yes;
}

void *guard_alloc(size_t bytes)
{
    void *p = NULL;
    if (!on_card())
        return aligned_alloc(64, bytes);
    cudaError_t e = manages() ? cudaMallocManaged(&p, bytes, cudaMemAttachGlobal)
                              : cudaHostAlloc(&p, bytes, cudaHostAllocMapped);
    return e == cudaSuccess ? p : NULL;
}

void guard_free(void *p)
{
    if (!on_card())
        free(p);
    else if (manages())
        cudaFree(p);
    else
        cudaFreeHost(p);
}

struct profile *guard_profile(void)
{
    static struct profile profile;
    return &profile;
}
