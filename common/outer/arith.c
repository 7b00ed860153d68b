#include "common/outer/arith.h"

#include <pthread.h>

#include "common/outer/arith_impl.h"

static const struct arith arith_scalar = ARITH_TABLE("scalar");

static const struct arith *variants[4]; /* NULL behind the last */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_variants(void)
{
    size_t n = 0;
    variants[n++] = &arith_scalar;
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        variants[n++] = &arith_avx2;
    if (n == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        variants[n++] = &arith_avx512;
#endif
}

const struct arith *arith_variant(size_t i)
{
    (void)pthread_once(&once, find_variants); /* cannot fail with a valid argument */
    return i < sizeof variants / sizeof variants[0] ? variants[i] : NULL;
}

const struct arith *arith_best(void)
{
    const struct arith *best = arith_variant(0);
    for (size_t i = 1; arith_variant(i); i++)
        best = arith_variant(i);
    return best;
}
