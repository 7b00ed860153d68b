/* `workerd measure` on a device that cannot even be opened.  The functions of kernels/device are
 * the test's. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "kernels/device/device.h"
#include "worker/measure.h"

static int refuses; /* the code with which no device opens */

int device_open(const char *name, int threads, struct device **ret_dev, struct err *err)
{
    return err_set(err, refuses, "no memory for cuBLASLt on device %s", name);
}

void device_close(struct device *dev)
{
}

int device_cards(void)
{
    return 0;
}

/* Runs it in a process of its own, as it is meant to, with its output and its errors in `said`. */
static int measure(const char *path, char said[1024])
{
    char name[] = "/tmp/skerry-measure.XXXXXX";
    char *argv[] = {(char *)"measure", (char *)(uintptr_t)path, (char *)"--classes",
                    (char *)"1",       (char *)"--device",      (char *)"cuda:0"};
    const int file = mkstemp(name);
    int status = 0;
    assert_true(file >= 0);
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(file, STDOUT_FILENO);
        (void)dup2(file, STDERR_FILENO);
        status = measure_main(6, argv);
        fflush(stdout);
        _exit(status);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    memset(said, 0, 1024);
    assert_true(pread(file, said, 1023, 0) >= 0);
    close(file);
    assert_int_equal(unlink(name), 0);
    if (!WIFEXITED(status))
        fail_msg("it crashed: %s", said);
    return WEXITSTATUS(status);
}

/* A model that is too large is an answer; a card on which nothing fits at all is an error, of which
 * there is no more to tell than its sentence. */
static void test_no_device(void **state)
{
    static const char yaml[] = "name: a\ndata: {path: x, image_size: 16}\n"
                               "model: {patch: 4, dim: 32, depth: 2, heads: 2}\n"
                               "train: {batch: 8}\nouter: {rounds: 1, steps: 1}\n";
    static const int codes[] = {-ENOMEM, -ERR_DEVICE};
    char path[] = "/tmp/skerry-job.XXXXXX", said[1024];
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, yaml, strlen(yaml)), (ssize_t)strlen(yaml));
    close(fd);
    for (int i = 0; i < 2; i++) {
        refuses = codes[i];
        assert_int_equal(measure(path, said), 1);
        if (!strstr(said, "workerd: ") || !strstr(said, "no memory for cuBLASLt on device cuda:0"))
            fail_msg("said: %s", said);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(measure(path, said), 1);
    assert_non_null(strstr(said, "reading the job file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
