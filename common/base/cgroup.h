/* The control groups that this process is in, of both versions (cgroups(7)): a limit may be set
 * on its own group or on any above it, and all of them hold. */
#ifndef COMMON_BASE_CGROUP_H
#define COMMON_BASE_CGROUP_H

#include "common/base/base.h"

/* dir: where the group's files are; those of the controller may not be there. */
typedef void (*cgroup_fn)(void *arg, const char *dir, bool v2);

/* Calls fn for the process' group and each above it, up to the mount point, in version 2 and in
 * that hierarchy of version 1 which has the controller ("memory", "cpu").  root: "" but for tests,
 * which have /proc and /sys below it. */
void cgroup_each(const char *root, const char *controller, cgroup_fn fn, void *arg);

#endif
