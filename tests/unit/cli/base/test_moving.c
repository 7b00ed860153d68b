/* What is said of a large file on its way: when, and with what is known of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/base/moving.h"
#include "common/base/clock.h"

#define SECOND UINT64_C(1000000000)
#define MIB ((uint64_t)1 << 20)

static void a_line_every_five_seconds(void **state)
{
    char path[] = "/tmp/skerry-moving.XXXXXX", said[1024];
    int file = mkstemp(path), kept = dup(STDERR_FILENO);
    assert_true(file >= 0 && kept >= 0 && dup2(file, STDERR_FILENO) >= 0);
    clock_fake_set(SECOND);
    struct moving m = moving_begin("downloading the model");
    clock_fake_advance(4 * SECOND);
    moving_show(&m, MIB, 0); /* too soon */
    clock_fake_advance(SECOND);
    moving_show(&m, 10 * MIB, 0);
    moving_show(&m, 11 * MIB, 0);
    clock_fake_advance(5 * SECOND);
    moving_show(&m, 20 * MIB, 60 * MIB);
    moving_end(&m);
    clock_fake_clear();
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    ssize_t n = pread(file, said, sizeof said - 1, 0);
    assert_true(n >= 0);
    said[n] = '\0';
    close(file);
    assert_int_equal(unlink(path), 0);
    assert_string_equal(said, "downloading the model: 10.0 MiB, 2.0 MiB/s\n"
                              "downloading the model: 20.0 MiB of 60.0 MiB, 2.0 MiB/s, 20s left\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_every_five_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
