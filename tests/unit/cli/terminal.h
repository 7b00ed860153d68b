/* A terminal that nobody looks at but the test. */
#ifndef TESTS_UNIT_CLI_TERMINAL_H
#define TESTS_UNIT_CLI_TERMINAL_H

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The side that the program writes to; *ret_master is what the test reads. */
static inline int terminal_open(unsigned short columns, int *ret_master)
{
    struct winsize size = {.ws_row = 24, .ws_col = columns};
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_int_equal(ioctl(slave, TIOCSWINSZ, &size), 0);
    *ret_master = master;
    return slave;
}

/* Closes both sides; what was written comes into said. */
static inline void terminal_close(int slave, int master, char *said, size_t size)
{
    size_t len = 0;
    close(slave);
    for (ssize_t n; len < size - 1 && (n = read(master, said + len, size - 1 - len)) > 0;)
        len += (size_t)n;
    said[len] = '\0';
    close(master);
}

#endif
