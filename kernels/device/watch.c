#include "kernels/device/watch.h"

#include <time.h>
#include <unistd.h>

#include "common/base/base.h"
#include "kernels/cpu/memory.h"
#include "kernels/kernels.h"

#if HAVE_CUDA
#include "kernels/cuda/nvml.h"
#endif

struct watch {
    struct watch_state base; /* what does not change */
    int threads;
    double wall, busy; /* s, at the read before */
#if HAVE_CUDA
    struct nvml *nvml; /* NULL: a CPU */
#endif
};

static double seconds(clockid_t clock)
{
    struct timespec t = {0};
    (void)clock_gettime(clock, &t); /* both clocks exist on Linux */
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* "AMD EPYC 7B13, 2 threads"; processors that have no name are just a CPU. */
static void cpu_model(int threads, char *out, size_t size)
{
    char line[256], name[65] = "CPU";
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "model name : %64[^\n]", name) == 1)
            break;
    if (f)
        (void)fclose(f); /* only read */
    snprintf(out, size, "%s, %d thread%s", name, threads, threads == 1 ? "" : "s");
}

/* Resident bytes of this process. */
static uint64_t memory_used(void)
{
    unsigned long long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    if (f)
        (void)fclose(f);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void read_cpu(struct watch *w, struct watch_state *ret)
{
    double wall = seconds(CLOCK_MONOTONIC), busy = seconds(CLOCK_PROCESS_CPUTIME_ID);
    double most = (wall - w->wall) * w->threads;
    double percent = most > 0 ? 100 * (busy - w->busy) / most : 0;
    ret->utilization = percent > 100 ? 100 : (int)(percent + 0.5);
    ret->memory_used = memory_used();
    w->wall = wall;
    w->busy = busy;
}

struct watch *watch_new(const struct device *dev, int threads)
{
    struct watch *w = mem_alloc(sizeof *w);
    w->base.utilization = w->base.ecc_errors = -1;
    str_copy(w->base.name, sizeof w->base.name, dev->name);
#if HAVE_CUDA
    if (strncmp(dev->name, "cuda:", 5) == 0) {
        str_copy(w->base.model, sizeof w->base.model, dev->about);
        w->nvml = nvml_of(dev);
        return w;
    }
#endif
    w->threads = threads > 0 ? threads : 1;
    cpu_model(w->threads, w->base.model, sizeof w->base.model);
    w->wall = seconds(CLOCK_MONOTONIC);
    w->busy = seconds(CLOCK_PROCESS_CPUTIME_ID);
    if (cpu_memory_read("", NULL, &w->base.memory_total) < 0)
        w->base.memory_total = 0;
    return w;
}

void watch_free(struct watch *w)
{
    if (!w)
        return;
#if HAVE_CUDA
    nvml_free(w->nvml);
#endif
    mem_free(w);
}

void watch_read(struct watch *w, struct watch_state *ret)
{
    *ret = w->base;
#if HAVE_CUDA
    if (w->nvml) {
        nvml_read(w->nvml, ret);
        return;
    }
#endif
    read_cpu(w, ret);
}
