/* A swarm whose coordinator and workers are this program: what they are given, what is left of
 * those before, and what is said of those that end. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/swarm.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "tests/unit/cli/beside.h"
#include "tests/unit/wait.h"

#define DEADLINE_MS WAIT_MS

static char dir[64];

/* ---- the daemons ---- */

static void put(const char *folder, const char *name, const char *text)
{
    char *path = file_join(folder, name);
    struct err err = {0};
    if (file_mkdirs_for(path, 0700, &err) < 0 ||
        file_write_atomic(path, text, strlen(text), 0600, &err) < 0)
        fail_msg("%s", err.msg);
    mem_free(path);
}

static void wait_for_signal(void)
{
    for (;;)
        (void)pause();
}

/* Says what it was given, and does what SWARM_COORDINATOR or SWARM_WORKER says. */
static int be_daemon(int argc, char **argv, const char *how)
{
    for (int i = 1; i < argc; i++)
        printf("%s%s", i > 1 ? " " : "", argv[i]);
    puts("");
    if (strcmp(how, "fails") == 0)
        puts("there is no room\n");
    if (strcmp(how, "fails at length") == 0)
        printf("there is no room in %01500d\n", 0);
    (void)fflush(stdout);
    if (str_starts(how, "fails"))
        return 1;
    if (strcmp(how, "silent") == 0)
        return ftruncate(STDOUT_FILENO, 0) == 0 ? 1 : 2;
    if (beside_is(argv[0], "coordinatord") && strcmp(how, "waits") != 0) {
        put(argv[2], "user.token", "u");
        put(argv[2], "worker.token", "w");
        put(argv[2], "ports.json", "{}");
    }
    wait_for_signal();
    return 0;
}

static void be(const char *coordinator, const char *worker)
{
    setenv("SWARM_COORDINATOR", coordinator, 1);
    setenv("SWARM_WORKER", worker, 1);
}

static int begun[2];
static bool held;

/* In place of the C library's: a child that is held says that it is here, and waits for a signal.
 */
int execv(const char *path, char *const argv[])
{
    if (!held)
        return execve(path, argv, environ);
    (void)!write(begun[1], "x", 1);
    (void)pause();
    _exit(99); /* the signal was swallowed */
}

/* ---- what the tests share ---- */

static int make(void **state)
{
    (void)snprintf(dir, sizeof dir, "/tmp/skerry-swarm.XXXXXX");
    beside_link("coordinatord");
    beside_link("workerd");
    be("lives", "lives");
    return mkdtemp(dir) ? 0 : -1;
}

static int unmake(void **state)
{
    return file_remove_tree(dir, NULL);
}

static bool is_there(const char *name)
{
    char *path = file_join(dir, name);
    const bool there = file_exists(path);
    mem_free(path);
    return there;
}

static void begin(struct swarm *s)
{
    struct err err = {0};
    if (swarm_start(s, dir, &err) < 0)
        fail_msg("%s", err.msg);
}

static void add(struct swarm *s)
{
    struct err err = {0};
    if (swarm_add_worker(s, &err) < 0)
        fail_msg("%s", err.msg);
}

/* Waits until the first line of a worker's log is there: what it was given; static. */
static const char *given(const struct swarm *s, int name)
{
    static char line[4096];
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    char *path = str_printf("%s/worker-%d.log", s->logs, name);
    for (line[0] = '\0'; !strchr(line, '\n'); cli_sleep_ms(1)) {
        FILE *f = fopen(path, "r");
        if (!f || !fgets(line, sizeof line, f))
            line[0] = '\0';
        if (f)
            (void)fclose(f);
        assert_true(clock_now_ms() < until);
    }
    line[strcspn(line, "\n")] = '\0';
    mem_free(path);
    return line;
}

/* Checks the swarm until the error comes. */
static void expect_end(struct swarm *s, const char *text)
{
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    struct err err = {0};
    int rc;
    while ((rc = swarm_check(s, &err)) == 0 && clock_now_ms() < until)
        cli_sleep_ms(1);
    assert_int_equal(rc, -ECHILD);
    if (!strstr(err.msg, text))
        fail_msg("'%s' is not in: %s", text, err.msg);
}

/* ---- starting ---- */

/* What a run before has left is removed, and nothing else; nobody else may begin there. */
static void test_folder(void **state)
{
    static const char *const stay[] = {"logs/notes.log", "logs/worker-3.log.old",
                                       "logs/worker-.log", "logs/my-worker-3.log", "worker-3.log"};
    static const char *const go[] = {"logs/worker-3.log", "logs/worker-30.log",
                                     ".swarm/coordinator/db"};
    struct swarm s = {0}, other = {0};
    struct err err = {0};
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++)
        put(dir, stay[i], "");
    for (size_t i = 0; i < sizeof go / sizeof *go; i++)
        put(dir, go[i], "");
    put(dir, "logs/coordinatord.log", "of the run before");
    put(dir, ".swarm/untrained", "");
    begin(&s);
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++)
        assert_true(is_there(stay[i]));
    for (size_t i = 0; i < sizeof go / sizeof *go; i++)
        assert_false(is_there(go[i]));
    assert_int_equal(swarm_start(&other, dir, &err), -EBUSY);
    assert_non_null(strstr(err.msg, "another `skerry run` is at work in"));
    swarm_stop(&other);
    assert_true(is_there(".swarm/coordinator/user.token"));
    swarm_stop(&s);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    assert_false(is_there(".swarm"));
    struct buf log;
    char *path = file_join(dir, "logs/coordinatord.log"),
         *expected = str_printf("--data-dir %s/.swarm/coordinator --listen 127.0.0.1 --host "
                                "127.0.0.1 --rpc-port 0 --http-port 0 --local\n",
                                dir);
    assert_int_equal(file_read(path, 4096, &log, NULL), 0);
    assert_string_equal(buf_str(&log), expected);
    buf_release(&log);
    mem_free(path);
    mem_free(expected);
    begin(&other); /* it is free again */
    swarm_stop(&other);
    char *none = file_join(dir, "none");
    assert_int_equal(swarm_start(&other, none, &err), -ENOENT);
    swarm_stop(&other);
    mem_free(none);
}

static void end_with(struct swarm *s, const char *trained)
{
    put(dir, ".swarm/coordinator/db", trained);
    swarm_keep(s);
    swarm_stop(s);
}

static bool has(const char *name, const char *text)
{
    char *path = file_join(dir, name);
    struct buf in;
    const bool is = file_read(path, 64, &in, NULL) == 0 && strcmp(buf_str(&in), text) == 0;
    buf_release(&in);
    mem_free(path);
    return is;
}

/* What was to be kept outlives the swarm but for the workers' caches, and the next one moves it
 * aside, unless a coordinator is at work there. */
static void test_kept(void **state)
{
    struct swarm s = {0};
    struct err err = {0};
    begin(&s);
    add(&s);
    put(dir, ".swarm/worker-1/cache", "");
    end_with(&s, "first");
    assert_true(is_there(".swarm/coordinator/user.token"));
    assert_false(is_there(".swarm/worker-1"));
    begin(&s);
    assert_true(has(".swarm-unsaved/coordinator/db", "first"));
    assert_false(is_there(".swarm/coordinator/db"));
    swarm_stop(&s);
    assert_false(is_there(".swarm"));
    begin(&s); /* nothing was left */
    assert_true(has(".swarm-unsaved/coordinator/db", "first"));
    end_with(&s, "second");
    struct file_lock lock;
    char *data = file_join(dir, ".swarm/coordinator");
    assert_int_equal(file_lock_dir(data, "lock", &lock, &err), 0);
    assert_int_equal(swarm_start(&s, dir, &err), -EBUSY);
    swarm_stop(&s);
    assert_true(has(".swarm/coordinator/db", "second"));
    file_unlock(&lock);
    mem_free(data);
    begin(&s);
    assert_true(has(".swarm-unsaved/coordinator/db", "first"));
    assert_true(has(".swarm-unsaved-2/coordinator/db", "second"));
    swarm_keep(&s);
    assert_false(is_there(".swarm/untrained"));
    swarm_saved(&s);
    assert_true(is_there(".swarm/untrained"));
    swarm_stop(&s);
    assert_false(is_there(".swarm"));
    begin(&s);
    end_with(&s, "third");
    assert_int_equal(chmod(dir, 0500), 0);
    if (access(dir, W_OK) < 0) { /* root may write everywhere */
        assert_int_equal(swarm_start(&s, dir, &err), -EACCES);
        assert_non_null(strstr(err.msg, "/.swarm has what an earlier run trained and did not save: "
                                        "move it, or give another folder with --out: cannot "));
        swarm_stop(&s);
    }
    assert_int_equal(chmod(dir, 0700), 0);
    assert_true(has(".swarm/coordinator/db", "third"));
}

static void test_start_fails(void **state)
{
    struct swarm s = {0};
    struct err err = {0};
    be("fails", "");
    assert_int_equal(swarm_start(&s, dir, &err), -ECHILD);
    assert_non_null(
        strstr(err.msg, "coordinatord ended at its start: there is no room (")); /* the last line */
    swarm_stop(&s);
    be("fails at length", "");
    assert_int_equal(swarm_start(&s, dir, &err), -ECHILD);
    assert_non_null(strstr(err.msg, "coordinatord ended at its start: there is no room in 0"));
    assert_non_null(strstr(err.msg, "/logs/coordinatord.log)"));
    swarm_stop(&s);
    be("silent", "");
    assert_int_equal(swarm_start(&s, dir, &err), -ECHILD);
    assert_non_null(strstr(err.msg, "nothing is in "));
    assert_non_null(strstr(err.msg, "its disk has "));
    swarm_stop(&s);
    be("waits", "");
    cli_interrupted = SIGINT;
    assert_int_equal(swarm_start(&s, dir, &err), -ERR_CANCELLED);
    cli_interrupted = 0;
    swarm_stop(&s);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

/* ---- workers ---- */

/* Each gets its own words, those beyond the list the last ones, and a replacement those of the one
 * that it replaces. */
static void test_words(void **state)
{
    char first[] = "--one 1", last[] = "--rest";
    struct swarm s = {.threads = 3};
    struct err err = {0};
    begin(&s);
    char *expected = str_printf("--join @%s/.swarm/coordinator/worker.token --name worker-1 "
                                "--work-dir %s/.swarm/worker-1 --threads 3 --device auto",
                                dir, dir);
    add(&s);
    assert_string_equal(given(&s, 1), expected);
    mem_free(expected);
    s.extra.items[0] = first;
    s.extra.items[1] = last;
    s.extra.n = 2;
    s.device = "cpu";
    add(&s);
    assert_true(str_ends(given(&s, 2), "--device cpu --rest"));
    s.trainers = true;
    add(&s);
    assert_true(str_ends(given(&s, 3), "--device cpu --allow-trainers --rest"));
    s.trainers = false;
    assert_int_equal(swarm_kill_worker(&s, 3, &err), 0); /* of three the first */
    assert_true(str_ends(given(&s, 4), "--device cpu --one 1"));
    assert_int_equal(s.n_workers, 3);
    assert_int_equal(s.deaths, 0);
    assert_int_equal(s.places[2], 0);
    assert_int_equal(s.names[2], 4);
    assert_int_equal(s.names[0], 2);
    swarm_stop(&s);
    assert_int_equal(swarm_kill_worker(&s, 3, &err), 0); /* there is none */
}

static void test_too_many(void **state)
{
    struct swarm s = {0};
    struct err err = {0};
    char words[256] = "";
    s.extra.items[0] = words;
    s.extra.n = 1;
    begin(&s);
    for (int i = 0; i < 53; i++)
        (void)strcat(words, "-v ");
    add(&s);
    (void)strcat(words, "-v");
    assert_int_equal(swarm_add_worker(&s, &err), -ERR_LIMIT);
    assert_non_null(strstr(err.msg, "--workerd has too many words: at most 53 are possible"));
    s.trainers = true;
    assert_int_equal(swarm_add_worker(&s, &err), -ERR_LIMIT);
    assert_non_null(strstr(err.msg, "at most 52 are possible"));
    const int n = s.n_workers;
    s.n_workers = SWARM_WORKERS_MAX;
    assert_int_equal(swarm_add_worker(&s, &err), -ERR_LIMIT);
    assert_non_null(strstr(err.msg, "at most 64 workers"));
    s.n_workers = n;
    assert_int_equal(n, 1);
    swarm_stop(&s);
}

/* ---- ends ---- */

/* A worker that is killed is replaced, unless that goes on and on; one that ends is an error. */
static void test_workers_end(void **state)
{
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    struct swarm s = {0};
    struct err err = {0};
    begin(&s);
    add(&s);
    add(&s);
    assert_int_equal(kill(s.workers[0], SIGKILL), 0);
    while (s.deaths == 0) {
        assert_int_equal(swarm_check(&s, &err), 0);
        assert_true(clock_now_ms() < until);
    }
    assert_int_equal(s.n_workers, 2);
    assert_true(s.names[0] == 2 && s.names[1] == 3);
    (void)given(&s, 3);
    s.deaths = 16;
    assert_int_equal(kill(s.workers[1], SIGKILL), 0);
    expect_end(&s,
               "17 workers have died, worker-3 as the last one (Killed, as the kernel does when "
               "memory is short): ");
    assert_int_equal(s.n_workers, 1);
    be("", "fails");
    s.deaths = 0;
    add(&s);
    expect_end(&s, "worker-4 ended by itself: there is no room (");
    swarm_stop(&s);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void test_coordinator_ends(void **state)
{
    struct swarm s = {0};
    begin(&s);
    assert_int_equal(kill(s.coordinator, SIGKILL), 0);
    expect_end(&s, "coordinatord ended by itself: --data-dir ");
    swarm_stop(&s);
}

/* The signal by which a child ends that gets these two before it is another program. */
static int ended_by(struct swarm *s, int first, int second)
{
    int status;
    char said;
    held = true;
    add(s);
    held = false;
    const pid_t pid = s->workers[--s->n_workers];
    assert_int_equal(read(begun[0], &said, 1), 1);
    assert_int_equal(kill(pid, first), 0);
    assert_int_equal(kill(pid, second), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    return WTERMSIG(status);
}

/* A child that is told to end before it is another program does so, too, unless it is the end of a
 * terminal under nohup. */
static void test_ends_before_it_begins(void **state)
{
    struct swarm s = {0};
    begin(&s);
    assert_int_equal(pipe(begun), 0);
    (void)signal(SIGHUP, SIG_DFL);
    cli_catch_signals(); /* as `skerry run` does */
    assert_int_equal(ended_by(&s, SIGHUP, SIGTERM), SIGHUP);
    assert_int_equal(ended_by(&s, SIGTERM, SIGTERM), SIGTERM);
    (void)signal(SIGHUP, SIG_IGN);
    assert_int_equal(ended_by(&s, SIGHUP, SIGTERM), SIGTERM);
    (void)signal(SIGHUP, SIG_DFL);
    close(begun[0]);
    close(begun[1]);
    swarm_stop(&s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, unmake)

int main(int argc, char **argv)
{
    if (beside_is(argv[0], "coordinatord"))
        return be_daemon(argc, argv, getenv("SWARM_COORDINATOR"));
    if (beside_is(argv[0], "workerd"))
        return be_daemon(argc, argv, getenv("SWARM_WORKER"));
    const struct CMUnitTest tests[] = {
        TEST(test_folder),           TEST(test_kept),
        TEST(test_start_fails),      TEST(test_words),
        TEST(test_too_many),         TEST(test_workers_end),
        TEST(test_coordinator_ends), TEST(test_ends_before_it_begins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
