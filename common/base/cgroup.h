/* The control groups of this process, in both versions (cgroups(7)): a limit may be set on its own
 * group or on any above it, and all of them hold. */
#ifndef COMMON_BASE_CGROUP_H
#define COMMON_BASE_CGROUP_H

#include "common/base/base.h"

/* dir: the folder of the group's files; those of the controller may be missing. */
typedef void (*cgroup_fn)(void *arg, const char *dir, bool v2);

/* Calls fn for the process's group and each above it, up to the mount point, in version 2 and in
 * the hierarchy of version 1 that has the controller ("memory", "cpu").  root: ""; tests give a
 * folder with their own /proc and /sys. */
void cgroup_each(const char *root, const char *controller, cgroup_fn fn, void *arg);

#endif
