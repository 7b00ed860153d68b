#include "kernels/device/device.h"

#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/memory.h"

#include "common/base/log.h"

#if HAVE_CUDA
#include "kernels/cuda/cuda.h"
#endif

/* Opens cpu:N, with N threads. */
static int open_cpu(const char *name, struct device **ret_dev, struct err *err)
{
    char *end;
    const long threads = strtol(name + 4, &end, 10);
    if (name[4] < '1' || name[4] > '9' || *end || threads > CPU_THREADS_MAX)
        return err_set(err, -EINVAL,
                       "device \"%s\": expected cpu:N with N threads, a number from 1 to %d", name,
                       CPU_THREADS_MAX);
    return cpu_device_open(false, (int)threads, ret_dev, err);
}

/* Without a device file there is no driver worth loading: a CUDA build then starts as a CPU
 * build does.  SKERRY_CUDA_PROBE=1 asks the runtime all the same. */
static bool driver_files(void)
{
    const char *probe = getenv("SKERRY_CUDA_PROBE");
    return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0 ||
           access("/dev/nvhost-ctrl-gpu", F_OK) == 0 || (probe && *probe == '1');
}

/* How many cards this program can use; 0: none, and why. */
static int cards(const char **ret_why)
{
#if HAVE_CUDA
    *ret_why = "no NVIDIA driver is loaded (/dev/nvidiactl is not there)";
    return driver_files() ? cuda_device_count(ret_why) : 0;
#else
    *ret_why = "this program was built without CUDA (`make CUDA=1` builds it with CUDA)";
    return 0;
#endif
}

static int open_card(int index, struct device **ret_dev, struct err *err)
{
#if HAVE_CUDA
    return cuda_device_open(index, ret_dev, err);
#else
    return err_set(err, -ERR_DEVICE, "there is no CUDA");
#endif
}

static int open_cuda(const char *name, struct device **ret_dev, struct err *err)
{
    char *end;
    const char *why;
    long index = strtol(name + 5, &end, 10);
    if (name[5] < '0' || name[5] > '9' || *end || index > 1023)
        return err_set(err, -EINVAL, "device \"%s\": expected cuda:N with N a number from 0", name);
    int n = cards(&why);
    if (n == 0)
        return err_set(err, -ERR_DEVICE,
                       "device \"%s\" is not there: %s; use cpu or auto, or check the driver with "
                       "nvidia-smi",
                       name, why);
    if (index >= n)
        return err_set(err, -ERR_DEVICE,
                       "device \"%s\" is not there: this machine shows %d CUDA device%s, cuda:0%s; "
                       "use one of them, cpu or auto",
                       name, n, n == 1 ? "" : "s", n == 1 ? "" : " and on");
    return open_card((int)index, ret_dev, err);
}

/* Opens the first usable GPU, else the CPU: who pays for a card must hear that it is not used. */
static int open_auto(int threads, struct device **ret_dev, struct err *err)
{
    const char *none;
    struct err why = {0};
    const int n = cards(&none);
    for (int i = 0; i < n; i++) {
        if (open_card(i, ret_dev, &why) == 0)
            return 0;
        log_warn("device", "a card is there and not used: %s", why.msg);
    }
    if (n == 0 && driver_files())
        log_warn("device", "a card is there and not used: %s", none);
    return cpu_device_open(false, threads, ret_dev, err);
}

int device_open(const char *name, int threads, struct device **ret_dev, struct err *err)
{
    if (strcmp(name, "auto") == 0)
        return open_auto(threads, ret_dev, err);
    if (strcmp(name, "cpu") == 0)
        return cpu_device_open(false, threads, ret_dev, err);
    if (strcmp(name, "cpu-ref") == 0)
        return cpu_device_open(true, threads, ret_dev, err);
    if (strncmp(name, "cpu:", 4) == 0)
        return open_cpu(name, ret_dev, err);
    if (strncmp(name, "cuda:", 5) == 0)
        return open_cuda(name, ret_dev, err);
    return err_set(err, -EINVAL,
                   "device \"%s\" is unknown: expected auto, cpu, cpu:N, cpu-ref or cuda:N", name);
}

void device_close(struct device *dev)
{
    if (!dev)
        return;
#if HAVE_CUDA
    if (dev->ops == &cuda_ops) {
        cuda_device_close(dev);
        return;
    }
#endif
    cpu_device_close(dev);
}

uint64_t device_host_free(void)
{
    uint64_t left;
    return cpu_memory_read("", &left, NULL) < 0 ? 0 : left;
}

uint64_t device_host_memory(void)
{
    uint64_t total = 0;
    return cpu_memory_read("", NULL, &total) < 0 ? 0 : total;
}

int device_cards(void)
{
    const char *why;
    return cards(&why);
}
