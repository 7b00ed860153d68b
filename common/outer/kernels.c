#include "common/outer/kernels.h"

#include <pthread.h>

static const struct kernels *variants[4]; /* NULL behind the last */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_variants(void)
{
    size_t n = 0;
    variants[n++] = &kernels_scalar;
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        variants[n++] = &kernels_avx2;
    if (n == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        variants[n++] = &kernels_avx512;
#endif
}

const struct kernels *kernels_variant(size_t i)
{
    (void)pthread_once(&once, find_variants); /* cannot fail with a valid argument */
    return i < sizeof variants / sizeof variants[0] ? variants[i] : NULL;
}

const struct kernels *kernels_best(void)
{
    const struct kernels *best = kernels_variant(0);
    for (size_t i = 1; kernels_variant(i); i++)
        best = kernels_variant(i);
    return best;
}
