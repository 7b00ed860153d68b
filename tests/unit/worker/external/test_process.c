/* A command of somebody else's, as a process. */
#include "worker/external/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/str.h"
#include "tests/unit/common/base/util.h"

static struct process *begin(const char *command)
{
    const struct process_options opt = {
        .command = command, .folder = "/", .what = "test", .passed = -1};
    struct process *p = NULL;
    OK(process_start(&opt, &p, err));
    return p;
}

static void expect_end(struct process *p, const char *want)
{
    char how[128];
    while (!process_is_over(p, how, sizeof(how)))
        (void)poll(NULL, 0, 1);
    assert_string_equal(how, want);
}

/* What it writes until its last lines end with `end`. */
static void expect_tail(struct process *p, const char *end)
{
    while (!str_ends(process_tail(p), end)) {
        (void)process_take_output(p);
        (void)poll(NULL, 0, 1);
    }
}

static void test_ends(void **state)
{
    struct process *p = begin("echo first; echo last; exit 3");
    expect_end(p, "ended with exit status 3");
    assert_string_equal(process_tail(p), "first | last");
    process_end(p);
    p = begin("printf 'begun\\rhalf'; exec sleep 1000"); /* a progress bar, say */
    expect_tail(p, "half");
    process_end(p);
}

/* The kernel counts whom it kills for memory; who is killed otherwise is not taken for one of them.
 */
static void test_lacks_memory(void **state)
{
    char *dir = scratch_new(), *vmstat = in(dir, "vmstat"), *command;
    OK(file_write_atomic(vmstat, "nr_free_pages 9\noom_kill 2\n", 28, 0600, err));
    for (int kills = 2; kills <= 3; kills++) {
        command =
            str_printf("printf 'nr_free_pages 9\noom_kill %d\n' >%s; kill -9 $$", kills, vmstat);
        const struct process_options opt = {
            .command = command, .folder = "/", .what = "test", .passed = -1, .vmstat = vmstat};
        struct process *p = NULL;
        OK(process_start(&opt, &p, err));
        expect_end(p,
                   kills == 2
                       ? "was ended by signal 9 (Killed), as the kernel does when memory is short"
                       : "was ended by signal 9 (Killed) by the kernel, as memory was short");
        assert_true(process_lacked_memory(p) == (kills == 3));
        process_end(p);
        mem_free(command);
    }
    mem_free(vmstat);
    scratch_free(dir);
}

/* Another program's lack of memory, long before, is none of this one's. */
static void test_does_not_inherit_a_kill(void **state)
{
    char *dir = scratch_new(), *vmstat = in(dir, "vmstat"), *go = in(dir, "go");
    char *command = str_printf("read word <%s; kill -9 $$", go);
    const struct process_options opt = {
        .command = command, .folder = "/", .what = "test", .passed = -1, .vmstat = vmstat};
    struct process *p = NULL;
    assert_int_equal(mkfifo(go, 0600), 0);
    OK(file_write_atomic(vmstat, "nr_free_pages 9\noom_kill 2\n", 28, 0600, err));
    clock_fake_set(clock_now_ns());
    OK(process_start(&opt, &p, err));
    OK(file_write_atomic(vmstat, "nr_free_pages 9\noom_kill 3\n", 28, 0600, err));
    for (int i = 0; i < 2; i++) {
        clock_fake_advance(30 * CLOCK_NS_PER_S);
        (void)process_use(p);
    }
    clock_fake_clear();
    const int fd = open(go, O_WRONLY | O_CLOEXEC);
    assert_int_equal(write(fd, "go\n", 3), 3);
    assert_int_equal(close(fd), 0);
    expect_end(p, "was ended by signal 9 (Killed), as the kernel does when memory is short");
    assert_false(process_lacked_memory(p));
    process_end(p);
    mem_free(command);
    mem_free(go);
    mem_free(vmstat);
    scratch_free(dir);
}

/* A folder that is named from here is HOME and TMPDIR from within, too. */
static void test_is_at_home(void **state)
{
    char *dir = scratch_new(), *name = strrchr(dir, '/') + 1, here[4096];
    const struct process_options opt = {.command =
                                            "test $HOME = $PWD && mktemp -p $TMPDIR && exit 3",
                                        .folder = name,
                                        .what = "test",
                                        .passed = -1};
    struct process *p = NULL;
    assert_non_null(getcwd(here, sizeof(here)));
    name[-1] = '\0';
    assert_int_equal(chdir(dir), 0);
    name[-1] = '/';
    OK(process_start(&opt, &p, err));
    expect_end(p, "ended with exit status 3");
    process_end(p);
    assert_int_equal(chdir(here), 0);
    scratch_free(dir);
}

/* The first process of a container is given what others leave, and nobody else buries it. */
static void test_leaves_no_dead(void **state)
{
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    struct process *p = begin("sleep 1000 & echo up; wait");
    expect_tail(p, "up");
    process_end(p);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

/* Of what it leaves no more is read than a pipe holds: what it has started may write for ever. */
static void test_leaves_much(void **state)
{
    struct process *p = begin("head -c 200000 /dev/zero; exit 3");
    assert_true(fcntl(process_output_fd(p), F_SETPIPE_SZ, 1 << 20) >= 200000);
    expect_end(p, "ended with exit status 3");
    assert_true(process_take_output(p) > 0);
    process_end(p);
}

/* One that tells each step leaves room in the log, and a progress bar is one line of it. */
static void test_writes_much(void **state)
{
    char *dir = scratch_new(), *go = in(dir, "go"), *log = in(dir, "log");
    char *command = str_printf("printf 'one\\rtwo\\rthree\\nb\\r\\n'; seq 250;"
                               "while [ ! -e %s ]; do sleep 0.01; done; seq 251 300",
                               go);
    struct buf text;
    const int real = dup(STDERR_FILENO), to = open(log, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_true(dup2(to, STDERR_FILENO) >= 0);
    log_set_level(LOG_LEVEL_INFO);
    clock_fake_set(1000 * CLOCK_NS_PER_S);
    struct process *p = begin(command);
    expect_tail(p, " 250");
    clock_fake_advance(25 * CLOCK_NS_PER_S);
    OK(file_write_atomic(go, "", 0, 0600, err));
    expect_tail(p, " 300");
    process_end(p);
    clock_fake_clear();
    log_set_level(LOG_LEVEL_ERROR);
    assert_true(dup2(real, STDERR_FILENO) >= 0);
    (void)close(real);
    (void)close(to);
    OK(file_read(log, 65536, &text, err));
    size_t lines = 0;
    for (size_t i = 0; i < text.len; i++)
        lines += text.data[i] == '\n';
    assert_int_equal(lines, 100 + 1 + 2); /* at once; what is left out, and two more */
    assert_non_null(strstr(buf_str(&text), "test: three\n"));
    assert_non_null(strstr(buf_str(&text), "test: b\n"));
    assert_null(strstr(buf_str(&text), "two"));
    assert_non_null(strstr(buf_str(&text), "test: 98\n"));
    assert_non_null(strstr(buf_str(&text), "test: 152 lines are left out here\n"));
    assert_non_null(strstr(buf_str(&text), "test: 252\n"));
    buf_release(&text);
    mem_free(command);
    mem_free(log);
    mem_free(go);
    scratch_free(dir);
}

static bool lives(const char *pid)
{
    char *path = str_printf("/proc/%s/stat", pid);
    struct buf text;
    bool is = false;
    if (file_read(path, 4096, &text, NULL) == 0) {
        const char *state = strrchr(buf_str(&text), ')');
        is = state != NULL && state[2] != 'Z' && state[2] != 'X';
        buf_release(&text);
    }
    mem_free(path);
    return is;
}

/* What it leaves in a group of its own would keep its memory, and its card.  It holds much: the
 * kernel tells a small process's pages only roughly, and none while it becomes another program. */
static void test_ends_with_all(void **state)
{
    struct process *p = begin("bash -c 'set -m;"
                              "(x=$(head -c 32M /dev/zero | tr \"\\0\" x); read -t 1000 <> <(:)) &"
                              "echo $!; exit 3'");
    char pid[32];
    expect_end(p, "ended with exit status 3");
    assert_true(str_copy(pid, sizeof(pid), process_tail(p)));
    assert_true(lives(pid));
    struct process_use use = process_use(p);
    for (; use.processes != 1 || use.bytes < 32 << 20; use = process_use(p))
        (void)poll(NULL, 0, 1);
    assert_true(use.bytes < 512 << 20);
    assert_in_range(use.cpu_ms, 1, 600000);
    process_end(p);
    while (lives(pid))
        (void)poll(NULL, 0, 1);
}

/* As the workers of a DataLoader, which have the memory of their parent. */
static void test_shares_memory(void **state)
{
    struct process *p = begin("x=$(head -c 64M /dev/zero | tr '\\0' x); "
                              "for i in 1 2 3 4; do (sleep 1000; :) & done; echo up; wait");
    expect_tail(p, "up");
    while (process_use(p).bytes < 300 << 20)
        (void)poll(NULL, 0, 1);
    assert_in_range(process_memory(p), 64 << 20, 200 << 20);
    process_end(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_at_home),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_shares_memory),
        cmocka_unit_test(test_lacks_memory),
        cmocka_unit_test(test_does_not_inherit_a_kill),
        cmocka_unit_test(test_leaves_no_dead),
        cmocka_unit_test(test_leaves_much),
        cmocka_unit_test(test_writes_much),
        cmocka_unit_test(test_ends_with_all),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
