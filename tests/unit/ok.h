/* Loud assertions on calls that may fail, and cmocka's includes in their order. */
#ifndef TESTS_UNIT_OK_H
#define TESTS_UNIT_OK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"

/* The call must succeed; its sentence is shown if not.  The call takes `err`, which is declared
 * here. */
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

#endif
