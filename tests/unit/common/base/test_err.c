#include <errno.h>

#include "tests/unit/common/base/util.h"

static void sets_and_wraps(void **state)
{
    struct err e = {0};
    assert_int_equal(err_set(&e, -ERR_FORMAT, "byte %d", 7), -ERR_FORMAT);
    assert_string_equal(e.msg, "byte 7");
    assert_int_equal(err_wrap(&e, "reading %s", "x"), -ERR_FORMAT);
    assert_string_equal(e.msg, "reading x: byte 7");
    assert_int_equal(e.code, -ERR_FORMAT);
    /* An argument may be the message itself. */
    err_set(&e, -EIO, "again: %s", e.msg);
    assert_string_equal(e.msg, "again: reading x: byte 7");
    errno = ENOSPC;
    assert_int_equal(err_errno(&e, "cannot write %s", "f"), -ENOSPC);
    assert_string_equal(e.msg, "cannot write f: No space left on device");
    assert_int_equal(err_set(NULL, -EIO, "nobody listens"), -EIO);
    errno = ENOENT;
    assert_int_equal(err_errno(NULL, "x"), -ENOENT);
}

static void cleans_and_cuts(void **state)
{
    struct err e;
    err_set(&e, -EIO, "a\nb\x1b[31m");
    assert_string_equal(e.msg, "a\\x0ab\\x1b[31m");
    err_set(&e, -EIO, "\xc2\x9b\n31m caf\xc3\xa9");
    assert_string_equal(e.msg, "\\xc2\\x9b\\x0a31m caf\xc3\xa9");
    char big[3000];
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    err_set(&e, -EIO, "%s", big);
    assert_int_equal(strlen(e.msg), sizeof(e.msg) - 1);
    assert_string_equal(e.msg + sizeof(e.msg) - 4, "...");
    memset(big, '\n', sizeof(big) - 1);
    err_set(&e, -EIO, "%s", big);
    assert_true(strlen(e.msg) < sizeof(e.msg));
    assert_string_equal(e.msg + strlen(e.msg) - 3, "...");
}

static void names_every_code(void **state)
{
#define X(num, name, text) assert_string_equal(err_text(-ERR_##name), text);
    ERR_MAP(X)
#undef X
    assert_string_equal(err_text(-ENOENT), "No such file or directory");
    assert_string_equal(err_text(-77777), "unknown error");
    assert_string_equal(err_text(0), "success");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_and_wraps),
        cmocka_unit_test(cleans_and_cuts),
        cmocka_unit_test(names_every_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
