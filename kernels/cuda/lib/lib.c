#include "kernels/cuda/lib/lib.h"

#include <dlfcn.h>

#include "common/base/base.h"

static void *open_under(const char *root, const char *name)
{
    static const char *const folders[] = {"lib64", "lib"};
    void *handle = NULL;
    for (int i = 0; root && *root && !handle && i < 2; i++) {
        char path[1024];
        int n = snprintf(path, sizeof path, "%s/%s/%s", root, folders[i], name);
        if (n > 0 && n < (int)sizeof path)
            handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return handle;
}

/* `found` becomes the name that loaded, or stays what the system said about the first. */
static void *open_any(const struct lib *lib, char *found, size_t room)
{
    for (const char *const *name = lib->names; *name; name++) {
        void *handle = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        if (!handle && name == lib->names) {
            const char *why = dlerror();
            snprintf(found, room, "%s", why ? why : *name);
        }
        if (!handle)
            handle = open_under(getenv("CUDA_HOME"), *name);
        if (!handle)
            handle = open_under(getenv("CUDA_PATH"), *name);
        if (!handle)
            handle = open_under("/usr/local/cuda", *name);
        if (handle) {
            snprintf(found, room, "%s", *name);
            return handle;
        }
    }
    return NULL;
}

int lib_open(const struct lib *lib, void **table, struct err *err)
{
    char found[256];
    void *handle = open_any(lib, found, sizeof found);
    if (!handle)
        return err_set(err, -ERR_DEVICE,
                       "%s is needed and not found (%s); install it, or set LD_LIBRARY_PATH or "
                       "CUDA_HOME to where it is",
                       lib->what, found);
    for (int i = 0; lib->symbols[i]; i++) {
        table[i] = dlsym(handle, lib->symbols[i]);
        if (!table[i]) {
            dlclose(handle);
            return err_set(err, -ERR_DEVICE, "%s as %s has no %s: another version is needed",
                           lib->what, found, lib->symbols[i]);
        }
    }
    return 0;
}
