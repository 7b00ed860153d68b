#include "common/base/cgroup.h"

enum { PATH_BYTES = 4096 };

/* Calls fn for the group and all above it, up to the mount point. */
static void groups(const char *mount, const char *group, bool v2, cgroup_fn fn, void *arg)
{
    char dir[PATH_BYTES];
    const size_t base = strlen(mount);
    if (snprintf(dir, sizeof dir, "%s%s", mount, group) >= (int)sizeof dir)
        return;
    for (;;) {
        fn(arg, dir, v2);
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= base || !slash || slash < dir + base)
            return;
        *slash = '\0';
    }
}

/* True if the word is in a list that is separated by commas. */
static bool among(const char *list, const char *word)
{
    const size_t len = strlen(word);
    for (const char *at = list; *at; at += *at == ',') {
        const size_t n = strcspn(at, ",");
        if (n == len && strncmp(at, word, n) == 0)
            return true;
        at += n;
    }
    return false;
}

/* /proc/self/cgroup: "0::/a/b" in version 2, "4:cpu,cpuacct:/a/b" in version 1. */
void cgroup_each(const char *root, const char *controller, cgroup_fn fn, void *arg)
{
    char path[PATH_BYTES], line[PATH_BYTES], mount[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/proc/self/cgroup", root) >= (int)sizeof path)
        return;
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':');
        char *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        const bool v2 = names[1] == '\0';
        if (!v2 && !among(names + 1, controller))
            continue;
        if (snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", root, v2 ? "" : "/",
                     v2 ? "" : controller) < (int)sizeof mount)
            groups(mount, strcmp(group, "/") == 0 ? "" : group, v2, fn, arg);
    }
    fclose(f);
}
