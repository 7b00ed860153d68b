#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "kernels/cpu/matmul_onednn.h"
#include "kernels/cpu/pool.h"

enum { MAX_THREADS = 256 };

/* Cores this process may use. */
static int cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? n : 1;
}

static void describe(struct device *dev, const struct cpu_isa *isa, bool reference)
{
    const char *what = isa->avx512_bf16 ? "AVX-512 with bf16"
                       : isa->avx512    ? "AVX-512"
                       : isa->avx2      ? "AVX2"
                                        : "no vector extension in use";
    snprintf(dev->name, sizeof dev->name, "%s", reference ? "cpu-ref" : "cpu");
    snprintf(dev->about, sizeof dev->about, "CPU, %d thread%s, %s", dev->threads,
             dev->threads == 1 ? "" : "s", reference ? "reference code" : what);
}

void *cpu_scratch(struct cpu_state *st, enum cpu_scratch_use use, size_t bytes)
{
    if (bytes > st->scratch_bytes[use]) {
        size_t size = (bytes + 4095) / 4096 * 4096;
        free(st->scratch[use]);
        st->scratch[use] = aligned_alloc(64, size);
        st->scratch_bytes[use] = st->scratch[use] ? size : 0;
    }
    return st->scratch[use];
}

int cpu_device_open(bool reference, int threads, struct device **ret_dev, struct err *err)
{
    if (threads < 0)
        return err_set(err, -EINVAL, "%d compute threads asked for, expected 0 (all cores) or more",
                       threads);
    struct device *dev = calloc(1, sizeof *dev);
    struct cpu_state *st = calloc(1, sizeof *st);
    if (!dev || !st) {
        free(dev);
        free(st);
        return err_set(err, -ENOMEM, "no memory for a CPU device");
    }
    struct cpu_isa isa;
    cpu_fault_load();
    cpu_isa_detect(&isa);
    dev->impl = st;
    dev->ops = &cpu_front_ops;
    dev->unified = true;
    dev->threads = reference ? 1 : threads ? threads : cores();
    if (dev->threads > MAX_THREADS)
        dev->threads = MAX_THREADS;
    st->inner = cpu_ref_ops;
    if (!reference) {
        dev->fast_bf16 = isa.avx512_bf16;
        int r = cpu_fast_ops(st, &isa, dev->threads);
        if (r < 0)
            err_set(err, r, "cannot set up oneDNN");
        else
            r = cpu_pool_new(dev->threads, &st->pool, err);
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
    cpu_pool_free(st->pool);
    onednn_free(st->onednn);
    free(st->scratch[SCRATCH_PACKED]);
    free(st->scratch[SCRATCH_WIDE]);
    free(st);
    free(dev);
}
