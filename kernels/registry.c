#include "kernels/kernels.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "kernels/cpu/cpu.h"

#if HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

/* Number of CUDA devices a driver shows; 0 without a driver, as the static
 * runtime then only reports an error. */
static int cuda_devices(void)
{
#if HAVE_CUDA
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
#else
    return 0;
#endif
}

static int open_cuda(const char *name, struct err *err)
{
    char *end;
    long index = strtol(name + 5, &end, 10);
    if (name[5] < '0' || name[5] > '9' || *end || index > 1023)
        return err_set(err, -EINVAL, "device \"%s\": expected cuda:N with N a number from 0", name);
    if (!HAVE_CUDA)
        return err_set(err, -ERR_DEVICE,
                       "device \"%s\" is not there: this program was built without CUDA; "
                       "use cpu or auto, or build with CUDA=1",
                       name);
    int n = cuda_devices();
    if (index >= n)
        return err_set(err, -ERR_DEVICE,
                       "device \"%s\" is not there: this machine shows %d CUDA device%s; "
                       "use cpu or auto, or check the driver with nvidia-smi",
                       name, n, n == 1 ? "" : "s");
    return err_set(err, -ERR_DEVICE,
                   "device \"%s\" is there, but this version has no CUDA operations yet; "
                   "use cpu or auto",
                   name);
}

int device_open(const char *name, int threads, struct device **ret_dev, struct err *err)
{
    if (strcmp(name, "auto") == 0 || strcmp(name, "cpu") == 0)
        return cpu_device_open(false, threads, ret_dev, err);
    if (strcmp(name, "cpu-ref") == 0)
        return cpu_device_open(true, threads, ret_dev, err);
    if (strncmp(name, "cuda:", 5) == 0)
        return open_cuda(name, err);
    return err_set(err, -EINVAL, "device \"%s\" is unknown: expected auto, cpu, cpu-ref or cuda:N",
                   name);
}

void device_close(struct device *dev)
{
    if (dev)
        cpu_device_close(dev);
}
