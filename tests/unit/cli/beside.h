/* A test's own program as one of those beside it: a link of that name in its folder, which the
 * system resolves to the program that starts it.  It stays, since another test may use it. */
#ifndef TESTS_UNIT_CLI_BESIDE_H
#define TESTS_UNIT_CLI_BESIDE_H

#include <errno.h>
#include <unistd.h>

#include "cli/base/cli.h"

static inline void beside_link(const char *name)
{
    char *folder = cli_own_folder(), *path = str_printf("%s/%s", folder, name);
    assert_true(symlink("/proc/self/exe", path) == 0 || errno == EEXIST);
    mem_free(path);
    mem_free(folder);
}

/* Is this that program? */
static inline bool beside_is(const char *argv0, const char *name)
{
    const char *slash = strrchr(argv0, '/');
    return strcmp(slash ? slash + 1 : argv0, name) == 0;
}

#endif
