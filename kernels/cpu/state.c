/* The state of a CPU device: its working memory, and faults for tests. */
#include "kernels/cpu/state.h"

#include <stdatomic.h>
#include <unistd.h>

#include "kernels/cpu/ref.h"

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

/* ---- faults ----
 *
 * A CPU that breaks like a GPU, on purpose, in builds with SKERRY_FAULTS (debug, asan,
 * tsan); nothing in release builds.
 *
 *     SKERRY_FAULT_DEVICE="40,7"
 *
 * The 40th wait for the device fails, and every later one of the process, as CUDA's errors
 * are sticky.  A process takes the first number off the list, so the next one, started by
 * execve, breaks at its 7th wait, and one after that not at all.
 *
 * "hang" before a number: that wait does not fail, but never ends.
 *
 * "lost" in place of a number: of the next process's CPUs the second one is not there.
 *
 *     SKERRY_FAULT_MEMORY=20000000       the device reports at most so many free bytes
 *     SKERRY_FAULT_LOSS="5,9"            the loss of its 5th and 9th step is no number */
#ifdef SKERRY_FAULTS

static atomic_long left; /* waits until it breaks; 0: never */
static int opened;       /* CPUs */
static bool loaded, lost, hangs;

static void load(void)
{
    const char *text = getenv("SKERRY_FAULT_DEVICE");
    if (loaded || !text)
        return;
    loaded = true;
    lost = strncmp(text, "lost", 4) == 0;
    hangs = strncmp(text, "hang", 4) == 0;
    char *rest = NULL;
    atomic_store(&left, strtol(text + (lost || hangs ? 4 : 0), &rest, 10));
    char *next = strdup(*rest == ',' ? rest + 1 : "");
    if (next)
        (void)setenv("SKERRY_FAULT_DEVICE", next, 1);
    free(next);
}

int cpu_fault_open(struct err *err)
{
    load();
    if (++opened == 2 && lost)
        return err_set(err, -ERR_DEVICE,
                       "device cpu is not there on purpose (SKERRY_FAULT_DEVICE)");
    return 0;
}

int cpu_fault(struct device *dev, struct err *err)
{
    if (atomic_load(&left) == 0)
        return 0;
    if (atomic_load(&left) > 1) {
        (void)atomic_fetch_sub(&left, 1);
        return 0;
    }
    if (hangs)
        (void)fprintf(stderr, "device %s hangs on purpose (SKERRY_FAULT_DEVICE)\n", dev->name);
    while (hangs)
        (void)pause();
    return err_set(err, -ERR_DEVICE,
                   "device %s failed on purpose (SKERRY_FAULT_DEVICE); it stays so until this "
                   "program is started again",
                   dev->name);
}

uint64_t cpu_fault_memory(uint64_t free_bytes)
{
    const char *text = getenv("SKERRY_FAULT_MEMORY");
    const uint64_t most = text ? strtoull(text, NULL, 10) : UINT64_MAX;
    return most < free_bytes ? most : free_bytes;
}

static int faulty_sum(struct device *dev, double *sum, const float *x, int64_t n, struct stream *s)
{
    const unsigned long now = ++cpu_state(dev)->losses;
    const int rc = ref_sum(dev, sum, x, n, s);
    const char *text = getenv("SKERRY_FAULT_LOSS");
    for (char *rest; text && *text; text = *rest == ',' ? rest + 1 : NULL)
        if (strtoul(text, &rest, 10) == now)
            *sum = NAN;
    return rc;
}

void cpu_fault_ops(struct kernel_ops *ops)
{
    if (getenv("SKERRY_FAULT_LOSS"))
        ops->sum = faulty_sum;
}

#else

void cpu_fault_ops(struct kernel_ops *ops)
{
}

uint64_t cpu_fault_memory(uint64_t free_bytes)
{
    return free_bytes;
}

int cpu_fault_open(struct err *err)
{
    return 0;
}

int cpu_fault(struct device *dev, struct err *err)
{
    return 0;
}

#endif
