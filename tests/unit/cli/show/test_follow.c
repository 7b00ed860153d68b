/* Following a job: a line for each round and where it goes, the exit status of how it ended, and
 * what ends the following sooner. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/show/follow.h"
#include "common/base/file.h"
#include "tests/unit/cli/script.h"
#include "tests/unit/cli/terminal.h"

#define HURRY 40 /* naps are so many times shorter: canned answers come at once */

/* In place of the C library's, which polls sleep by. */
int nanosleep(const struct timespec *nap, struct timespec *left)
{
    const long ns = (nap->tv_sec * 1000000000 + nap->tv_nsec) / HURRY;
    return clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){ns / 1000000000, ns % 1000000000},
                           left);
}

/* Follows job 7 through the answers, with stdout and stderr as given. */
static int follow_into(int out, int errors, struct cli *cli, const char *const *answers,
                       const struct follow_hook *hook, char asked[256])
{
    struct script s;
    int kept_out = dup(STDOUT_FILENO), kept = dup(STDERR_FILENO);
    assert_true(out >= 0 && errors >= 0 && kept >= 0 && kept_out >= 0);
    connect_to(&s, cli, answers);
    fflush(stdout);
    fflush(stderr);
    assert_true(dup2(out, STDOUT_FILENO) >= 0 && dup2(errors, STDERR_FILENO) >= 0);
    int status = hook ? follow_job(cli, 7, hook) : follow_apart(cli, 7, NULL);
    fflush(stderr);
    assert_true(dup2(kept_out, STDOUT_FILENO) >= 0 && dup2(kept, STDERR_FILENO) >= 0);
    close(kept_out);
    close(kept);
    disconnect(&s, cli);
    (void)snprintf(asked, 256, "%s", s.asked);
    return status;
}

/* The same; what was said comes into `said`. */
static int follow(struct cli *cli, const char *const *answers, const struct follow_hook *hook,
                  char said[4096], char asked[256])
{
    char path[] = "/tmp/skerry-follow.XXXXXX";
    int file = mkstemp(path), status = follow_into(file, file, cli, answers, hook, asked);
    ssize_t n = pread(file, said, 4095, 0);
    assert_true(n >= 0);
    said[n] = '\0';
    close(file);
    assert_int_equal(unlink(path), 0);
    return status;
}

/* The same on a terminal that is so many columns wide. */
static void follow_on_terminal(unsigned short width, const char *const *answers, char said[4096])
{
    struct cli cli = {0};
    char asked[256];
    int master, slave = terminal_open(width, &master);
    (void)follow_into(slave, slave, &cli, answers, NULL, asked);
    terminal_close(slave, master, said, 4096);
}

static void the_end_of_a_job_is_the_status(void **state)
{
    static const struct {
        const char *job;
        int status;
        const char *line;
    } cases[] = {
        {"{\"state\":\"done\",\"round\":3,\"rounds\":3,\"loss\":0.25}", CLI_OK,
         "done after round 3/3  loss 0.2500\n"},
        {"{\"state\":\"failed\",\"round\":1,\"rounds\":3,\"reason\":\"no data\","
         "\"waiting_for\":[{\"what\":\"x\",\"why\":\"y\"}]}",
         CLI_JOB_FAILED, "failed after round 1/3: no data\n"},
        {"{\"state\":\"cancelled\",\"round\":0,\"rounds\":3,\"loss\":null}", CLI_JOB_CANCELLED,
         "cancelled after round 0/3\n"},
        {"{\"state\":\"failed\",\"round\":0,\"rounds\":0,\"reason\":\"it is not known here\"}",
         CLI_JOB_FAILED, "failed: it is not known here\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const answers[] = {cases[i].job, NULL};
        struct cli cli = {0};
        char said[4096], asked[256];
        assert_int_equal(follow(&cli, answers, NULL, said, asked), cases[i].status);
        assert_string_equal(said, cases[i].line);
        assert_string_equal(asked, "GET /v1/jobs/7?history=0&samples=0 HTTP/1.1");
    }
}

#define RUNNING(round, waiting)                                                                    \
    "{\"state\":\"running\",\"round\":" round ",\"rounds\":4,\"step\":50,\"total_steps\":200,"     \
    "\"loss\":0.5,\"images_per_s\":80,\"eta_ms\":61000,\"waiting_for\":[" waiting "]}"
#define TRAINS(late)                                                                               \
    "{\"worker\":3,\"what\":\"isle-b\",\"why\":\"training, step 9 of 50\",\"late\":" late "}"
/* For longer than a moment. */
#define LATE(round, waiting)                                                                       \
    RUNNING(round, waiting), RUNNING(round, waiting), RUNNING(round, waiting),                     \
        RUNNING(round, waiting), RUNNING(round, waiting), RUNNING(round, waiting),                 \
        RUNNING(round, waiting), RUNNING(round, waiting)
#define NOBODY                                                                                     \
    "{\"worker\":null,\"what\":\"TRAIN task 4\",\"why\":\"no worker is here\",\"late\":true}"
#define STALLED                                                                                    \
    "{\"state\":\"initialising\",\"stalled\":\"INIT task 1 failed 5 "                              \
    "times\",\"waiting_for\":[" NOBODY "]}"
#define PAUSED                                                                                     \
    "{\"state\":\"running\",\"paused\":true,\"round\":2,\"rounds\":4,\"stalled\":"                 \
    "\"a person has paused it\",\"waiting_for\":[" NOBODY "]}"
#define BARRED "[#####...............] round 1/4  loss 0.5000  80 images/s  ETA 1m01s"
#define DONE "{\"state\":\"done\",\"round\":4,\"rounds\":4}"

/* The history of a long job is large: it is asked for only when there is something to print. */
static void data_come_whole_when_something_happens(void **state)
{
    static const char *const answers[] = {
        RUNNING("1", ""),
        "{\"state\":\"running\",\"round\":1,\"history\":[1]}",
        RUNNING("1", ""),
        RUNNING("1", ""),
        DONE,
        "{\"state\":\"done\",\"round\":4,\"history\":[1,2]}",
        NULL,
    };
    struct cli cli = {.json = true};
    char said[4096], asked[256];
    assert_int_equal(follow(&cli, answers, NULL, said, asked), CLI_OK);
    assert_string_equal(asked, "GET /v1/jobs/7?history=0&samples=0 HTTP/1.1");
    const char *first = strstr(said, "\"history\""),
               *last = first ? strstr(first + 1, "\"history\"") : 0;
    assert_true(first && last && !strstr(last + 1, "\"round\""));
    assert_null(strstr(said, "\"rounds\""));
}

static int go_on(void *arg, const json_t *job)
{
    return 0;
}

static void a_line_is_said_for_each_round(void **state)
{
    static const char *const answers[] = {
        STALLED,
        STALLED,
        RUNNING("1", TRAINS("false")), /* who does what is expected is not named */
        RUNNING("1", TRAINS("false")), /* and nothing new is not said */
        RUNNING("2", TRAINS("false")),
        LATE("2", TRAINS("true")), /* somebody is late: said once */
        RUNNING("2", TRAINS("true")),
        LATE("2", TRAINS("false") "," NOBODY),
        RUNNING("2", TRAINS("true")), /* for a moment */
        PAUSED,
        PAUSED,
        RUNNING("2", TRAINS("false")), /* it goes on */
        RUNNING("3", ""),
        DONE,
        NULL,
    };
    struct cli cli = {0};
    char said[4096], asked[256];
    assert_int_equal(follow(&cli, answers, NULL, said, asked), CLI_OK);
    assert_string_equal(said, "initialising  stalled: INIT task 1 failed 5 times\n"
                              "round 1/4  loss 0.5000  80 images/s  ETA 1m01s\n"
                              "round 2/4  loss 0.5000  80 images/s  ETA 1m01s\n"
                              "round 2/4  loss 0.5000  80 images/s  ETA 1m01s"
                              "  waits for isle-b: training, step 9 of 50\n"
                              "round 2/4  loss 0.5000  80 images/s  ETA 1m01s"
                              "  waits: no worker is here\n"
                              "round 2/4  a person has paused it\n"
                              "round 2/4  loss 0.5000  80 images/s  ETA 1m01s\n"
                              "round 3/4  loss 0.5000  80 images/s  ETA 1m01s\n"
                              "done after round 4/4\n");
}

/* A worker that is gone, and who goes on with its phase: a line for each change. */
static void who_is_gone_is_said(void **state)
{
#define GONE(phases)                                                                               \
    "{\"state\":\"running\",\"round\":1,\"rounds\":4,\"phases\":[{\"worker\":2,\"gone\":null}"     \
    "," phases "]}"
#define LOST "\"gone\":{\"worker\":3,\"worker_name\":\"isle-c\",\"state\":\"lost\"}}"
    static const char *const answers[] = {
        GONE("{\"worker\":3,\"gone\":null}"),
        GONE("{\"worker\":null,\"worker_name\":\"\"," LOST),
        GONE("{\"worker\":2,\"worker_name\":\"isle-b\"," LOST),
        GONE("{\"worker\":2,\"worker_name\":\"isle-b\"," LOST),
        GONE("{\"worker\":2,\"gone\":null}"),
        GONE("{\"worker\":3,\"worker_name\":\"isle-c\"," LOST
             ",{\"worker\":2,\"worker_name\":\"b\",\"gone\":{\"worker\":4,\"state\":\"left\"}}"),
        DONE,
        NULL,
    };
    struct cli cli = {0};
    char said[4096], asked[256];
    assert_int_equal(follow(&cli, answers, NULL, said, asked), CLI_OK);
    assert_string_equal(said, "round 1/4\n"
                              "round 1/4  worker 3 (isle-c) is lost, nobody has its phase yet\n"
                              "round 1/4  worker 3 (isle-c) is lost, worker 2 (isle-b) continues "
                              "its phase\n"
                              "round 1/4  worker 3 (isle-c) is lost, its last snapshot counts; "
                              "1 more like it\n"
                              "done after round 4/4\n");
}

/* Into a pipe or a file, as of `skerry watch > FILE`, also where stderr is a terminal; what the
 * command of another purpose says of progress stays on stderr. */
static void lines_go_to_a_file(void **state)
{
    static const char *const answers[] = {RUNNING("1", ""), RUNNING("2", ""), DONE, NULL};
    static const char lines[] = "round 1/4  loss 0.5000  80 images/s  ETA 1m01s\n"
                                "round 2/4  loss 0.5000  80 images/s  ETA 1m01s\n"
                                "done after round 4/4\n";
    const struct follow_hook goes_on = {go_on, NULL};
    for (int apart = 0; apart < 2; apart++) {
        char path[] = "/tmp/skerry-follow.XXXXXX", said[4096], drawn[4096], asked[256];
        struct cli cli = {0};
        int master, file = mkstemp(path), slave = terminal_open(80, &master);
        assert_int_equal(follow_into(file, slave, &cli, answers, apart ? NULL : &goes_on, asked),
                         CLI_OK);
        terminal_close(slave, master, drawn, sizeof drawn);
        ssize_t n = pread(file, said, sizeof said - 1, 0);
        said[n > 0 ? n : 0] = '\0';
        assert_string_equal(said, apart ? lines : "");
        assert_int_equal(drawn[0], apart ? '\0' : '\r');
        close(file);
        assert_int_equal(unlink(path), 0);
    }
}

/* Nobody has them: on a full disk the following ends, and main() says why; where there was no
 * output from the start they go to stderr. */
static void lines_that_cannot_be_written(void **state)
{
    static const char *const answers[] = {RUNNING("1", ""), NULL};
    static const char *const done[] = {DONE, NULL};
    char path[] = "/tmp/skerry-follow.XXXXXX", said[4096], asked[256];
    struct cli cli = {0};
    int ends[2], file = mkstemp(path), full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_int_equal(follow_into(full, file, &cli, answers, NULL, asked), CLI_OK);
    assert_true(ferror(stdout));
    clearerr(stdout);
    close(full);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(follow_into(ends[0], file, &cli, done, NULL, asked), CLI_OK);
    assert_false(ferror(stdout));
    ssize_t n = pread(file, said, sizeof said - 1, 0);
    said[n > 0 ? n : 0] = '\0';
    assert_string_equal(said, "done after round 4/4\n");
    close(ends[0]);
    close(ends[1]);
    close(file);
    assert_int_equal(unlink(path), 0);
}

/* The line is redrawn in place and never wider than the terminal: the bar goes first, then the
 * speed, the loss, and what is waited for; the time left stays. */
static void a_terminal_has_one_line(void **state)
{
    static const struct {
        unsigned short width;
        const char *first, *waits, *done;
    } cases[] = {
        {160, BARRED, BARRED "  waits for isle-b: training, step 9 of 50", "done after round 4/4"},
        {80, BARRED, "round 1/4  loss 0.5000  ETA 1m01s  waits for isle-b: training, step 9 of 50",
         "done after round 4/4"},
        {40, "round 1/4  loss 0.5000  ETA 1m01s",
         "round 1/4  ETA 1m01s  waits for isle-b:", "done after round 4/4"},
        {30, "round 1/4  ETA 1m01s", "round 1/4  ETA 1m01s  waits f", "done after round 4/4"},
        {15, "ETA 1m01s", "ETA 1m01s  wai", "done after rou"},
        {9, "ETA 1m01", "ETA 1m01", "done aft"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char *const answers[] = {RUNNING("1", ""), LATE("1", TRAINS("true")), DONE,
                                              NULL};
        char said[4096], first[256], last[256];
        (void)snprintf(first, sizeof first, "\r\033[K%s\r", cases[i].first);
        (void)snprintf(last, sizeof last, "\r\033[K%s\r\033[K%s\r\n", cases[i].waits,
                       cases[i].done);
        follow_on_terminal(cases[i].width, answers, said);
        const size_t n = strlen(said);
        if (strncmp(said, first, strlen(first)) != 0 || n < strlen(last) ||
            strcmp(said + n - strlen(last), last) != 0)
            fail_msg("%u columns: %s", cases[i].width, said);
    }
}

/* Characters count, not bytes, and a reason of several lines is one. */
static void a_line_is_cut_between_characters(void **state)
{
    static const char *const answers[] = {
        "{\"state\":\"failed\",\"rounds\":9,\"reason\":\"KeyError:\\n\\téééé\"}", NULL};
    char said[4096];
    follow_on_terminal(39, answers, said);
    assert_string_equal(said, "\r\033[Kfailed after round 0/9: KeyError:  ééé\r\n");
}

static void a_job_that_is_not_there_is_not_waited_for(void **state)
{
    static const char *const answers[] = {
        "{\"error\":{\"code\":\"not_found\",\"message\":\"There is no job 7.\"}}", NULL};
    struct cli cli = {0};
    char said[4096], asked[256];
    assert_int_equal(follow(&cli, answers, NULL, said, asked), CLI_FAILED);
    assert_int_equal(strncmp(said, "skerry: ", 8), 0);
    assert_non_null(strstr(said, "There is no job 7."));
}

static int stop(void *arg, const json_t *job)
{
    (*(unsigned *)arg)++;
    return !strcmp(cli_str(job, "state", ""), "running");
}

static void a_hook_ends_the_following(void **state)
{
    static const char *const answers[] = {"{\"state\":\"running\",\"round\":1,\"rounds\":2}", NULL};
    unsigned polled = 0;
    const struct follow_hook hook = {stop, &polled};
    struct cli cli = {0};
    char said[4096], asked[256];
    assert_int_equal(follow(&cli, answers, &hook, said, asked), CLI_FAILED);
    assert_int_equal(polled, 1);
    assert_string_equal(said, "round 1/2\n");
}

/* Nobody answers for a while, and then somebody does: a line each. */
static void silence_is_said_once(void **state)
{
    static const char *const answers[] = {RUNNING("1", ""), "", "", RUNNING("1", ""), DONE, NULL};
    struct cli cli = {0};
    char said[4096], asked[256];
    int end = 0;
    assert_int_equal(follow(&cli, answers, NULL, said, asked), CLI_OK);
    (void)sscanf(said,
                 "round 1/4 loss 0.5000 80 images/s ETA 1m01s\n"
                 "no answer from the coordinator since %*2d:%*2d:%*2d, waiting for it for a "
                 "minute: %*[^\n]\nthe coordinator is back after %*[0-9.]s\n"
                 "done after round 4/4\n%n",
                 &end);
    if (end == 0 || said[end])
        fail_msg("%s", said);
    follow_on_terminal(80, answers, said);
    assert_non_null(strstr(said, "\r\033[Kno answer from the coordinator for "));
    assert_null(strstr(said, "is back"));
}

static int stop_in_silence(void *arg, const json_t *job)
{
    (*(unsigned *)arg)++;
    return job == NULL;
}

static void a_hook_hears_of_silence(void **state)
{
    static const char *const answers[] = {RUNNING("1", ""), "", NULL};
    unsigned polled = 0;
    const struct follow_hook hook = {stop_in_silence, &polled};
    struct cli cli = {0};
    char said[4096], asked[256];
    assert_int_equal(follow(&cli, answers, &hook, said, asked), CLI_FAILED);
    assert_int_equal(polled, 2);
}

static void an_interrupted_job_goes_on(void **state)
{
    static const char *const answers[] = {NULL}; /* nobody is asked */
    struct cli cli = {0};
    char said[4096], asked[256];
    cli_interrupted = SIGINT;
    int status = follow(&cli, answers, NULL, said, asked);
    cli_interrupted = 0;
    assert_int_equal(status, CLI_INTERRUPTED);
    assert_string_equal(said,
                        "skerry: interrupted; job 7 goes on, `skerry cancel 7` would stop it\n");
    assert_string_equal(asked, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_a_job_is_the_status),
        cmocka_unit_test(data_come_whole_when_something_happens),
        cmocka_unit_test(a_line_is_said_for_each_round),
        cmocka_unit_test(who_is_gone_is_said),
        cmocka_unit_test(lines_go_to_a_file),
        cmocka_unit_test(lines_that_cannot_be_written),
        cmocka_unit_test(a_terminal_has_one_line),
        cmocka_unit_test(a_job_that_is_not_there_is_not_waited_for),
        cmocka_unit_test(a_line_is_cut_between_characters),
        cmocka_unit_test(a_hook_ends_the_following),
        cmocka_unit_test(silence_is_said_once),
        cmocka_unit_test(a_hook_hears_of_silence),
        cmocka_unit_test(an_interrupted_job_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
