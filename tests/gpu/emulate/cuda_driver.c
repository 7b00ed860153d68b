/* A driver that answers what cuDNN asks of it while it makes a plan for a card that is only
 * described, and so lets it go on.  All other entries come from a list of the toolkit's own
 * stub and say that they are one. */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

enum { SUCCESS = 0, NOT_FOUND = 500, MAJOR = 75, MINOR = 76 };

int cuDriverGetVersion(int *ret);
int cuDriverGetVersion(int *ret)
{
    *ret = 13000;
    return SUCCESS;
}

int cuDeviceGetCount(int *ret);
int cuDeviceGetCount(int *ret)
{
    *ret = 1;
    return SUCCESS;
}

int cuDeviceGet(int *ret, int ordinal);
int cuDeviceGet(int *ret, int ordinal)
{
    *ret = ordinal;
    return SUCCESS;
}

int cuDeviceGetAttribute(int *ret, int which, int device);
int cuDeviceGetAttribute(int *ret, int which, int device)
{
    *ret = which == MAJOR ? 9 : which == MINOR ? 0 : 1;
    return SUCCESS;
}

/* Anything that is not NULL: nothing is run. */
static int give(void **ret)
{
    static char something;
    *ret = &something;
    return SUCCESS;
}

#define GIVES(name)                                                                                \
    int name(void **ret);                                                                          \
    int name(void **ret)                                                                           \
    {                                                                                              \
        return give(ret);                                                                          \
    }
GIVES(cuLibraryLoadData)
GIVES(cuLibraryGetKernel)
GIVES(cuKernelGetFunction)
GIVES(cuModuleLoadData)
GIVES(cuModuleLoadDataEx)
GIVES(cuModuleGetFunction)

int cuGetProcAddress_v2(const char *name, void **ret, int version, uint64_t flags, int *status);
int cuGetProcAddress_v2(const char *name, void **ret, int version, uint64_t flags, int *status)
{
    *ret = dlsym(RTLD_DEFAULT, name);
    if (status)
        *status = *ret ? 0 : 1;
    return *ret ? SUCCESS : NOT_FOUND;
}
