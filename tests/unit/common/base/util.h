/* What the tests of this folder share: cmocka's includes in their order, a
 * scratch directory, loud assertions on errors. */
#ifndef TESTS_UNIT_BASE_UTIL_H
#define TESTS_UNIT_BASE_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* The call must succeed; its sentence is shown if not. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        struct err ok_err_ = {0};                                                                  \
        struct err *err = &ok_err_;                                                                \
        (void)err;                                                                                 \
        int ok_rc_ = (call);                                                                       \
        if (ok_rc_ < 0)                                                                            \
            fail_msg("%s: %d %s", #call, ok_rc_, ok_err_.msg);                                     \
    } while (0)

/* The call must fail and its sentence hold the text. */
#define FAILS(call, text)                                                                          \
    do {                                                                                           \
        struct err f_err_ = {0};                                                                   \
        struct err *err = &f_err_;                                                                 \
        int f_rc_ = (call);                                                                        \
        if (f_rc_ >= 0)                                                                            \
            fail_msg("%s succeeded", #call);                                                       \
        if (f_rc_ != f_err_.code || !strstr(f_err_.msg, text))                                     \
            fail_msg("%s: %d '%s' lacks '%s'", #call, f_rc_, f_err_.msg, text);                    \
    } while (0)

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
