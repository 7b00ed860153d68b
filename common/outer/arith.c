#include "common/outer/arith.h"

#include <pthread.h>

#include "common/outer/arith_impl.h"

static const struct arith arith_scalar = ARITH_TABLE("scalar");

static const struct arith *variants[4]; /* NULL behind the last */
static const struct arith *best;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The number of variants that SKERRY_CPU_ISA allows, which is the variable of the kernels, too. */
static size_t most_allowed(void)
{
    const char *max = getenv("SKERRY_CPU_ISA");
    if (max && strcmp(max, "generic") == 0)
        return 1;
    return max && strcmp(max, "avx2") == 0 ? 2 : SIZE_MAX;
}

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
    best = variants[(n < most_allowed() ? n : most_allowed()) - 1];
}

const struct arith *arith_variant(size_t i)
{
    (void)pthread_once(&once, find_variants); /* cannot fail with a valid argument */
    return i < sizeof variants / sizeof variants[0] ? variants[i] : NULL;
}

const struct arith *arith_best(void)
{
    (void)pthread_once(&once, find_variants);
    return best;
}

double arith_sum(double lanes[ARITH_LANES])
{
    return sum_lanes(lanes);
}
