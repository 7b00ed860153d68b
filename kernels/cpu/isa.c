#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* Leaf 7, subleaf 1, EAX bit 5: AVX512_BF16.  gcc 12's __builtin_cpu_supports
 * knows the others and checks that the system saves the registers. */
static bool cpuid_avx512_bf16(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || a < 1)
        return false;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5));
}

void cpu_isa_detect(struct cpu_isa *isa)
{
    __builtin_cpu_init();
    isa->avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    isa->avx512 = isa->avx2 && __builtin_cpu_supports("avx512f") &&
                  __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512dq");
    isa->avx512_bf16 = isa->avx512 && cpuid_avx512_bf16();
    const char *max = getenv("SKERRY_CPU_ISA"); /* for tests: generic, avx2, avx512 */
    if (max && strcmp(max, "avx512") == 0)
        isa->avx512_bf16 = false;
    if (max && strcmp(max, "avx2") == 0)
        isa->avx512 = isa->avx512_bf16 = false;
    if (max && strcmp(max, "generic") == 0)
        *isa = (struct cpu_isa){0};
}
#else
void cpu_isa_detect(struct cpu_isa *isa)
{
    *isa = (struct cpu_isa){0};
}
#endif
