#include "common/base/cores.h"

#include <sched.h>

#include "common/base/cgroup.h"

enum { LINE_BYTES = 128, PATH_BYTES = 4096 };

/* Reads the first n numbers of a file; "max" and -1 are not numbers here. */
static bool numbers(const char *dir, const char *name, uint64_t *ret, size_t n)
{
    char path[PATH_BYTES], line[LINE_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return false;
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    char *at = fgets(line, sizeof line, f);
    fclose(f);
    for (size_t i = 0; at && i < n; i++) {
        char *end;
        at += strspn(at, " ");
        ret[i] = strtoull(at, &end, 10);
        at = end == at || *at == '-' ? NULL : end;
    }
    return at != NULL;
}

/* A group's own quota, in microseconds of each period. */
static void quota(void *arg, const char *dir, bool v2)
{
    int *n = arg;
    uint64_t q[2];
    const bool known = v2 ? numbers(dir, "cpu.max", q, 2)
                          : numbers(dir, "cpu.cfs_quota_us", &q[0], 1) &&
                                numbers(dir, "cpu.cfs_period_us", &q[1], 1);
    if (!known || q[0] == 0 || q[1] == 0)
        return;
    const uint64_t whole = q[0] / q[1] + (q[0] % q[1] != 0);
    *n = whole < (uint64_t)*n ? (int)whole : *n;
}

int cores_read(const char *root, int n)
{
    n = n > 0 ? n : 1;
    cgroup_each(root, "cpu", quota, &n);
    return n;
}

int cores_usable(void)
{
    cpu_set_t set;
    return cores_read("", sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1);
}
