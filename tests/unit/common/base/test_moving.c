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

#include "common/base/moving.h"
#include "common/base/clock.h"
#include "tests/unit/cli/terminal.h"

#define SECOND UINT64_C(1000000000)
#define MIB ((uint64_t)1 << 20)

/* From here on what is said goes to the file; *ret_kept is where it went. */
static void divert(int file, int *ret_kept)
{
    *ret_kept = dup(STDERR_FILENO);
    assert_true(file >= 0 && *ret_kept >= 0 && dup2(file, STDERR_FILENO) >= 0);
}

static void restore(int kept)
{
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
}

static void a_line_every_five_seconds(void **state)
{
    char path[] = "/tmp/skerry-moving.XXXXXX", said[1024];
    int file = mkstemp(path), kept;
    divert(file, &kept);
    clock_fake_set(SECOND);
    struct moving m = moving_begin("downloading the model");
    clock_fake_advance(4 * SECOND);
    moving_show(&m, MIB, 0); /* too soon */
    clock_fake_advance(SECOND);
    moving_show(&m, 10 * MIB, 0);
    moving_show(&m, 11 * MIB, 0);
    clock_fake_advance(5 * SECOND);
    moving_show(&m, 20 * MIB, 60 * MIB);
    struct moving_bytes b = {moving_begin("backing up"), 0, 60 * MIB};
    clock_fake_advance(5 * SECOND);
    moving_add(&b, 10 * MIB);
    clock_fake_advance(5 * SECOND);
    moving_add(&b, 10 * MIB);
    moving_clear(); /* no line is drawn in a file */
    moving_keep();
    clock_fake_clear();
    restore(kept);
    ssize_t n = pread(file, said, sizeof said - 1, 0);
    assert_true(n >= 0);
    said[n] = '\0';
    close(file);
    assert_int_equal(unlink(path), 0);
    assert_string_equal(said, "downloading the model: 10.0 MiB, 2.0 MiB/s\n"
                              "downloading the model: 20.0 MiB of 60.0 MiB, 2.0 MiB/s, 20s left\n"
                              "backing up: 10.0 MiB of 60.0 MiB, 2.0 MiB/s, 25s left\n"
                              "backing up: 20.0 MiB of 60.0 MiB, 2.0 MiB/s, 20s left\n");
}

/* What moving_show(), a line of wide characters and the two ends of a line write to a terminal. */
static void show_on_terminal(unsigned short width, char said[1024])
{
    int kept, master, slave = terminal_open(width, &master);
    divert(slave, &kept);
    clock_fake_set(SECOND);
    struct moving m = moving_begin("downloading the model");
    moving_show(&m, MIB, 60 * MIB); /* too soon */
    clock_fake_advance(SECOND);
    moving_show(&m, 10 * MIB, 60 * MIB);
    moving_clear();
    moving_clear();
    moving_say("\u83ca\u83ca\u83ca\u83ca\u83ca");
    moving_keep();
    moving_keep();
    clock_fake_clear();
    restore(kept);
    terminal_close(slave, master, said, 1024);
}

/* What is wider would leave a line behind each time that it is redrawn. */
static void a_line_is_never_wider_than_the_terminal(void **state)
{
    char said[1024];
    show_on_terminal(80, said);
    assert_string_equal(said,
                        "\r\033[Kdownloading the model: 10.0 MiB of 60.0 MiB, 10.0 MiB/s, 5.0s"
                        " left\r\033[K"
                        "\r\033[K\u83ca\u83ca\u83ca\u83ca\u83ca\r\n");
    show_on_terminal(40, said);
    assert_string_equal(said, "\r\033[Kdownloading the model: 10.0 MiB of 60.0\r\033[K"
                              "\r\033[K\u83ca\u83ca\u83ca\u83ca\u83ca\r\n");
    show_on_terminal(8, said);
    assert_string_equal(said, "\r\033[Kdownloa\r\033[K\r\033[K\u83ca\u83ca\u83ca\r\n");
}

static void a_terminal_that_cannot_redraw_is_a_file(void **state)
{
    const char *was = getenv("TERM");
    char said[1024], *kept = was ? strdup(was) : NULL;
    assert_int_equal(setenv("TERM", "dumb", 1), 0);
    show_on_terminal(80, said);
    assert_int_equal(kept ? setenv("TERM", kept, 1) : unsetenv("TERM"), 0);
    free(kept);
    assert_string_equal(said, "\u83ca\u83ca\u83ca\u83ca\u83ca\r\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_never_wider_than_the_terminal),
        cmocka_unit_test(a_terminal_that_cannot_redraw_is_a_file),
        cmocka_unit_test(a_line_every_five_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
