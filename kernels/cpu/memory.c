#include "kernels/cpu/memory.h"

#include "common/base/base.h"
#include "common/base/cgroup.h"
#include "kernels/cpu/state.h"

enum { LINE_MAX_BYTES = 512, PATH_BYTES = 4096 };

struct room {
    uint64_t free, total;
};

/* Reads the number after `key` at the start of a line, in the file's unit; false: not there. */
static bool field(const char *path, const char *key, uint64_t *ret)
{
    char line[LINE_MAX_BYTES];
    const size_t len = strlen(key);
    bool found = false;
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f)) {
        char *end;
        if (strncmp(line, key, len) != 0)
            continue;
        *ret = strtoull(line + len, &end, 10);
        found = end != line + len;
    }
    fclose(f);
    return found;
}

/* Reads a file of one number; false for "max" and for a missing file. */
static bool number(const char *dir, const char *name, uint64_t *ret)
{
    char path[PATH_BYTES];
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path &&
           field(path, "", ret);
}

/* A control group's own limit, if it is the tighter one. */
static void group_limit(void *arg, const char *dir, bool v2)
{
    struct room *r = arg;
    char stat[PATH_BYTES];
    uint64_t limit, used, cache = 0;
    if (!number(dir, v2 ? "memory.max" : "memory.limit_in_bytes", &limit) ||
        !number(dir, v2 ? "memory.current" : "memory.usage_in_bytes", &used))
        return;
    if (snprintf(stat, sizeof stat, "%s/memory.stat", dir) < (int)sizeof stat)
        (void)field(stat, v2 ? "inactive_file " : "total_inactive_file ", &cache);
    used -= cache < used ? cache : used;
    const uint64_t left = limit > used ? limit - used : 0;
    r->free = left < r->free ? left : r->free;
    r->total = limit < r->total ? limit : r->total;
}

/* A limit of the process on what it maps, of which `used` is taken (/proc/self/status). */
static void own_limit(const char *root, const char *limit_key, const char *used_key, struct room *r)
{
    char limits[PATH_BYTES], status[PATH_BYTES];
    uint64_t limit, used;
    if (snprintf(limits, sizeof limits, "%s/proc/self/limits", root) >= (int)sizeof limits ||
        snprintf(status, sizeof status, "%s/proc/self/status", root) >= (int)sizeof status ||
        !field(limits, limit_key, &limit) || !field(status, used_key, &used))
        return;
    used *= 1024;
    const uint64_t left = limit > used ? limit - used : 0;
    r->free = left < r->free ? left : r->free;
    r->total = limit < r->total ? limit : r->total;
}

int cpu_memory_read(const char *root, uint64_t *ret_free, uint64_t *ret_total)
{
    char path[PATH_BYTES];
    uint64_t available, total;
    if (snprintf(path, sizeof path, "%s/proc/meminfo", root) >= (int)sizeof path ||
        !field(path, "MemAvailable:", &available) || !field(path, "MemTotal:", &total))
        return -ERR_DEVICE;
    struct room r = {available * 1024, total * 1024};
    cgroup_each(root, "memory", group_limit, &r);
    own_limit(root, "Max address space", "VmSize:", &r); /* RLIMIT_AS */
    own_limit(root, "Max data size", "VmData:", &r);     /* RLIMIT_DATA */
    if (ret_free)
        *ret_free = r.free;
    if (ret_total)
        *ret_total = r.total;
    return 0;
}

int cpu_memory(struct device *dev, uint64_t *ret_free, uint64_t *ret_total)
{
    int rc = cpu_memory_read("", ret_free, ret_total);
    if (rc == 0 && ret_free)
        *ret_free = cpu_fault_memory(*ret_free);
    return rc;
}
