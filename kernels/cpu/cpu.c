/* Opens CPU devices: finds what this CPU can run, and puts the fast entries for it over the
 * reference ones. */
#include "kernels/cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "common/base/base.h"
#include "common/base/cores.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/ref.h"
#include "kernels/cpu/state.h"

/* The instructions that this CPU and its operating system can run. */
struct isa {
    bool avx2;        /* AVX2, FMA and F16C */
    bool avx512;      /* F, BW, VL, DQ */
    bool avx512_bf16; /* and the bf16 dot product */
    bool amx;         /* and tiles of bf16 */
};

#if defined(__x86_64__)
/* Leaf 7, subleaf 1, EAX bit 5: AVX512_BF16.  gcc 12's __builtin_cpu_supports
 * knows the others and checks that the system saves the registers. */
static bool cpuid_avx512_bf16(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || a < 1)
        return false;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5));
}

/* Leaf 7, EDX bits 22 and 24: AMX-BF16, AMX-TILE.  Linux gives tiles to a process that asks
 * (Documentation/arch/x86/xstate.rst). */
static bool amx_granted(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    const unsigned both = 1u << 22 | 1u << 24;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & both) == both &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static void isa_detect(struct isa *isa)
{
    __builtin_cpu_init();
    isa->avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    isa->avx512 = isa->avx2 && __builtin_cpu_supports("avx512f") &&
                  __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512dq");
    isa->avx512_bf16 = isa->avx512 && cpuid_avx512_bf16();
    const char *max = getenv("SKERRY_CPU_ISA"); /* for tests: generic, avx2, avx512, avx512bf16 */
    const bool no_tiles = max && strcmp(max, "avx512bf16") == 0;
    if (max && strcmp(max, "avx512") == 0)
        isa->avx512_bf16 = false;
    if (max && strcmp(max, "avx2") == 0)
        isa->avx512 = isa->avx512_bf16 = false;
    if (max && strcmp(max, "generic") == 0)
        *isa = (struct isa){0};
    isa->amx = isa->avx512_bf16 && !no_tiles && amx_granted();
}
#else
static void isa_detect(struct isa *isa)
{
    *isa = (struct isa){0};
}
#endif

#if defined(__x86_64__)
/* The fast entries for one instruction set. */
#define INSTALL(isa)                                                                               \
    do {                                                                                           \
        elem_install_##isa(&st->inner);                                                            \
        adaln_install_##isa(&st->inner);                                                           \
        decoder_install_##isa(&st->inner);                                                         \
        conv_install_##isa(&st->inner);                                                            \
        norm_install_##isa(&st->inner);                                                            \
        sample_install_##isa(&st->inner);                                                          \
        attention_install_##isa(&st->inner);                                                       \
    } while (0)
#endif

/* Puts the fast entries that `isa` allows over the reference ones. */
static void fast_ops(struct cpu_state *st, const struct isa *isa)
{
#if defined(__x86_64__)
    if (!isa->avx2)
        return;
    INSTALL(avx2);
    st->gemm[DT_F32] = &gemm_kernel_avx2;
    st->inner.matmul = gemm_matmul;
    if (isa->avx512) {
        INSTALL(avx512);
        st->gemm[DT_F32] = &gemm_kernel_avx512;
    }
    if (isa->avx512_bf16) {
        INSTALL(avx512bf16);
        st->gemm[DT_BF16] = &gemm_kernel_avx512bf16;
    }
    if (isa->amx)
        st->inner.matmul = gemm_amx_matmul;
#endif
}

/* ---- the device ---- */

static void describe(struct device *dev, const struct isa *isa, bool reference)
{
    const char *what = isa->amx           ? "AVX-512 with AMX"
                       : isa->avx512_bf16 ? "AVX-512 with bf16"
                       : isa->avx512      ? "AVX-512"
                       : isa->avx2        ? "AVX2"
                                          : "no vector extension in use";
    snprintf(dev->name, sizeof dev->name, "%s", reference ? "cpu-ref" : "cpu");
    snprintf(dev->about, sizeof dev->about, "CPU, %d thread%s, %s", dev->threads,
             dev->threads == 1 ? "" : "s", reference ? "reference code" : what);
}

int cpu_device_open(bool reference, int threads, struct device **ret_dev, struct err *err)
{
    if (threads < 0)
        return err_set(err, -EINVAL, "%d compute threads asked for, expected 0 (all cores) or more",
                       threads);
    int faulty = cpu_fault_open(err);
    if (faulty < 0)
        return faulty;
    struct device *dev = calloc(1, sizeof *dev);
    struct cpu_state *st = calloc(1, sizeof *st);
    if (!dev || !st) {
        free(dev);
        free(st);
        return err_set(err, -ENOMEM, "no memory for a CPU device");
    }
    struct isa isa;
    isa_detect(&isa);
    dev->impl = st;
    dev->ops = &cpu_front_ops;
    dev->unified = true;
    dev->threads = reference ? 1 : threads ? threads : cores_usable();
    if (dev->threads > CPU_THREADS_MAX)
        dev->threads = CPU_THREADS_MAX;
    st->inner = cpu_ref_ops;
    cpu_fault_ops(&st->inner);
    if (!reference) {
        dev->fast_bf16 = isa.avx512_bf16;
        fast_ops(st, &isa);
        int r = cpu_team_new(dev->threads, &st->team, err);
        if (r < 0) {
            cpu_device_close(dev);
            return r;
        }
    }
    describe(dev, &isa, reference);
    *ret_dev = dev;
    return 0;
}

void cpu_device_close(struct device *dev)
{
    struct cpu_state *st = cpu_state(dev);
    cpu_team_free(st->team);
    free(st->scratch[SCRATCH_PACKED]);
    free(st->scratch[SCRATCH_WIDE]);
    free(st);
    free(dev);
}
