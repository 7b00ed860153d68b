/* A scratch directory and files in it, for tests. */
#ifndef TESTS_UNIT_BASE_UTIL_H
#define TESTS_UNIT_BASE_UTIL_H

#include "tests/unit/ok.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/file.h"
#include "common/base/mem.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static inline char *scratch_new(void)
{
    char *dir = strdup("/tmp/skerry-test-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static inline void scratch_free(char *dir)
{
    OK(file_remove_tree(dir, err));
    free(dir);
}

/* "DIR/NAME"; free it. */
static inline char *in(const char *dir, const char *name)
{
    return file_join(dir, name);
}

static inline void put(const char *dir, const char *name, const void *data, size_t len)
{
    char *path = in(dir, name), *slash = strrchr(path, '/');
    *slash = '\0';
    OK(file_mkdirs(path, 0755, err));
    *slash = '/';
    OK(file_write_atomic(path, data, len, 0644, err));
    mem_free(path);
}

#endif
