/* Memory that the card and the tests can both reach: pinned memory of the host, so that the
 * buffers, their guard zones and their poison are those of the unit tests. */
#include <cuda_runtime_api.h>

#include "kernels/profile.h"

void *guard_alloc(size_t bytes);
void guard_free(void *p);
struct profile *guard_profile(void);

void *guard_alloc(size_t bytes)
{
    void *p = NULL;
    return cudaHostAlloc(&p, bytes, cudaHostAllocMapped) == cudaSuccess ? p : NULL;
}

void guard_free(void *p)
{
    cudaFreeHost(p);
}

struct profile *guard_profile(void)
{
    static struct profile profile;
    return &profile;
}
