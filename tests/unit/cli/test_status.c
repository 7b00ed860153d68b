/* What status, tasks, cancel, drain and login ask for, and what they say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "tests/unit/cli/ran.h"

/* ---- */

/* Nothing yet: each list says what would put something there. */
static void an_empty_swarm_says_what_to_do(void **state)
{
    static const char *const answers[] = {"{\"version\": \"1\", \"uptime_ms\": 1000}", NULL};
    struct cli cli = {0};
    struct ran r;
    run(&command_status, &cli, NULL, answers, &r);
    assert_int_equal(r.status, 0);
    assert_string_equal(r.asked, "GET /v1/status HTTP/1.1");
    says(&r, "`skerry submit job.yaml` starts one");
    says(&r, "workerd --join");
    says(&r, "waiting for\n  nothing\n");
    says_no(&r, "more;");
    says_no(&r, "fp32");
}

static void a_swarm_is_listed(void **state)
{
    static const char *const answers[] = {
        "{\"jobs\": [{\"id\": 3, \"name\": \"a\", \"state\": \"running\", \"loss\": 0.25,"
        " \"round\": 2, \"rounds\": 9, \"images_per_s\": 9, \"eta_ms\": 60000, \"stalled\": "
        "\"nobody can do it\"},"
        " {\"id\": 4, \"name\": \"b\", \"state\": \"running\", \"paused\": true, \"text\": true,"
        " \"stalled\": \"a person has paused it\"},"
        " {\"id\": 5, \"name\": \"c\", \"state\": \"failed\", \"reason\": \"no samples\"}],"
        " \"workers\": [{\"id\": 1, \"name\": \"isle\", \"state\": \"idle\"}],"
        " \"workers_count\": {\"known\": 4},"
        " \"waiting_for\": [{\"what\": \"worker 1\", \"why\": \"training\"},"
        " {\"what\": \"task 2\", \"why\": \"a failure\", \"until_ms\": 5000}]}",
        NULL};
    struct cli cli = {0};
    struct ran r;
    run(&command_status, &cli, NULL, answers, &r);
    says(&r, "\n  job  name  state    round    loss       speed    ETA\n"
             "    3  a     running    2/9  0.2500  9 images/s  1m00s\n"
             "    4  b     paused       -       -           -      -\n"
             "    5  c     failed       -       -           -      -\n");
    says(&r, "\n  job 3 (a): stalled: nobody can do it\n  job 4 (b): a person has paused it\n"
             "  job 5 (c): no samples\n");
    says(&r, "\n  worker 1: training\n  task 2: a failure (at most 5.0s more)\n");
    says(&r, "\nworkers\n  worker  name  state\n       1  isle  idle\n"
             "  and 3 more; `skerry workers` lists them\n");
}

/* The file alone, byte by byte. */
static void a_job_file_is_printed(void **state)
{
    static const char *const answers[] = {"{\"id\": 7, \"spec\": \"name: x\\n\"}", NULL};
    bool *file = flag(&command_status, "file");
    struct cli cli = {0};
    struct ran r;
    *file = true;
    run(&command_status, &cli, "7", answers, &r);
    assert_string_equal(r.said, "name: x\n");
    run(&command_status, &cli, NULL, answers, &r);
    misused(&r, "give its id or name");
    *file = false;
}

/* What a task is about goes by its kind; a reason beside what it does now is an older one. */
static void a_task_is_described(void **state)
{
    static const char *const answers[] = {
        "{\"items\": ["
        "{\"id\": 9, \"kind\": \"train\", \"round\": 2, \"path\": 1, \"replica\": 4,"
        " \"activity\": \"training\", \"reason\": \"lost\", \"steps_total\": 8, \"steps_done\": 3},"
        "{\"id\": 8, \"kind\": \"eval\", \"round\": 7, \"path\": 6},"
        "{\"id\": 7, \"kind\": \"sample\", \"round\": 5, \"path\": 6, \"mixture\": true},"
        "{\"id\": 6, \"kind\": \"velocity\", \"round\": 4, \"path\": 3},"
        "{\"id\": 5, \"kind\": \"init\", \"round\": 4, \"path\": 3, \"reason\": \"busy\"},"
        "{\"id\": 4, \"kind\": \"score\", \"round\": 1, \"path\": 2}], \"next\": 4}",
        "{\"items\": [{\"id\": 3, \"kind\": \"split\"}], \"next\": 0}", NULL};
    static const char *const none[] = {"{\"items\": []}", NULL};
    struct cli cli = {0};
    struct ran r;
    run(&command_tasks, &cli, NULL, answers, &r);
    assert_int_equal(r.status, 0);
    assert_string_equal(r.asked, "GET /v1/tasks?before=0 HTTP/1.1");
    assert_string_equal(r.last, "GET /v1/tasks?before=4 HTTP/1.1");
    says(&r, "round 2, path 1, replica 4");
    says(&r, "3/8");
    says(&r, "training (before: lost)");
    says(&r, "path 6 after round 7");
    says(&r, "the mixture after round 5");
    says(&r, "path 3 after round 4");
    says(&r, "path 2 after round 1");
    says(&r, "busy");
    says_no(&r, "before: busy");
    says(&r, "split");
    run(&command_tasks, &cli, NULL, none, &r);
    assert_string_equal(r.said, "no tasks\n");
    cli.json = true; /* programs get what there is, and nothing else */
    run(&command_tasks, &cli, NULL, none, &r);
    assert_string_equal(r.said, "{\"items\":[]}\n");
}

/* Tasks of a job that does not exist are an error, not an empty list. */
static void tasks_are_asked_for(void **state)
{
    static const char *const some[] = {"{\"items\": []}", NULL};
    static const char *const no_job[] = {"{\"error\": \"job 7 does not exist\"}", NULL};
    const char **wanted = flag(&command_tasks, "state");
    struct cli cli = {0};
    struct ran r;
    run(&command_tasks, &cli, "7", no_job, &r);
    assert_true(r.status < 0);
    run(&command_tasks, &cli, "7", some, &r);
    assert_string_equal(r.asked, "GET /v1/tasks?job=7&before=0 HTTP/1.1");
    *wanted = "done";
    run(&command_tasks, &cli, "7", some, &r);
    assert_string_equal(r.last, "GET /v1/tasks?job=7&state=done&before=0 HTTP/1.1");
    run(&command_tasks, &cli, NULL, some, &r);
    assert_string_equal(r.last, "GET /v1/tasks?state=done&before=0 HTTP/1.1");
    *wanted = "lease";
    run(&command_tasks, &cli, NULL, some, &r);
    misused(&r, "--state is 'lease', expected pending, leased, done, failed or cancelled");
    assert_string_equal(r.asked, "");
    *wanted = NULL;
}

/* A word that nobody need be asked about. */
static void what_is_watched_is_named(void **state)
{
    const char **folder = flag(&command_watch, "tensorboard");
    const char *const none[] = {NULL};
    struct cli cli = {0};
    struct ran r;
    *folder = "";
    run(&command_watch, &cli, "7", none, &r);
    misused(&r, "--tensorboard is empty");
    *folder = NULL;
}

/* One that restarts, but not one that refuses; a minute is the most. */
static void a_watch_waits_for_the_coordinator(void **state)
{
#define WATCHED "{\"id\": 7, \"round\": 4, \"rounds\": 4, \"state\": \"done\"}"
    static const char *const away[] = {"503", "503", WATCHED, WATCHED, NULL},
                             *const refuses[] = {"401", NULL},
                             *const two[] = {"{\"items\": [{\"id\": 1, \"name\": \"a\"}, "
                                             "{\"id\": 2, \"name\": \"a\"}]}",
                                             NULL};
    struct cli cli = {0};
    struct ran r;
    run(&command_watch, &cli, "7", away, &r);
    if (r.status != CLI_OK)
        fail_msg("%d: %s", r.status, r.err.msg);
    const char *said = strstr(r.said, "no answer from the coordinator since ");
    assert_non_null(said);
    assert_non_null(strstr(said, ", waiting for it for a minute: "));
    assert_null(strstr(said + 1, "no answer from"));
    says(&r, "the coordinator is back after ");
    run(&command_watch, &cli, "7", refuses, &r);
    assert_int_equal(r.status, -ERR_AUTH);
    assert_non_null(strstr(r.err.msg, "the coordinator refuses this token"));
    says_no(&r, "no answer from");
    run(&command_watch, &cli, "a", two, &r);
    misused(&r, "2 jobs have the name 'a'");
    says_no(&r, "no answer from");
}

/* A job or a drawing, but exactly one of them. */
static void what_is_cancelled_is_named(void **state)
{
    static const char *const job[] = {"{\"id\": 7, \"state\": \"cancelled\"}", NULL};
    uint64_t *task = flag(&command_cancel, "task");
    struct cli cli = {0};
    struct ran r;
    run(&command_cancel, &cli, NULL, job, &r);
    misused(&r, "give the id of a job or --task N");
    assert_string_equal(r.asked, "");
    run(&command_cancel, &cli, "7", job, &r);
    assert_string_equal(r.asked, "POST /v1/jobs/7/cancel HTTP/1.1");
    assert_string_equal(r.said, "job 7 is now cancelled\n");
    *task = 5;
    run(&command_cancel, &cli, "7", job, &r);
    misused(&r, "give the id of a job or --task N");
    run(&command_cancel, &cli, NULL, job, &r);
    assert_string_equal(r.asked, "POST /v1/tasks/5/cancel HTTP/1.1");
    *task = 0;
    run(&command_drain, &cli, "12", job, &r);
    assert_string_equal(r.asked, "POST /v1/workers/12/drain HTTP/1.1");
}

#define ITEM(id, name, state) "{\"id\": " id ", \"name\": \"" name "\", \"state\": \"" state "\"}"

/* A job or a worker may be named; of those that have the name the ones that go on are meant. */
static void a_name_is_an_id(void **state)
{
    static const char *const answers[] = {
        "{\"items\": [" ITEM("1", "a", "done") "," ITEM("2", "a", "running") "," ITEM(
            "3", "twice", "idle") "," ITEM("4", "twice", "busy") "," ITEM("5", "old", "left") "]}",
        "{\"id\": 2, \"state\": \"x\"}", NULL};
    struct cli cli = {0};
    struct ran r;
    run(&command_cancel, &cli, "a", answers, &r);
    assert_string_equal(r.asked, "GET /v1/jobs?after=0 HTTP/1.1");
    assert_string_equal(r.last, "POST /v1/jobs/2/cancel HTTP/1.1");
    run(&command_drain, &cli, "old", answers, &r);
    assert_string_equal(r.asked, "GET /v1/workers?after=0 HTTP/1.1");
    assert_string_equal(r.last, "POST /v1/workers/5/drain HTTP/1.1");
    run(&command_drain, &cli, "twice", answers, &r);
    misused(&r, "2 workers have the name 'twice'; give the id of one");
    run(&command_drain, &cli, "nobody", answers, &r);
    assert_true(r.status == -ERR_NOTFOUND);
    run(&command_drain, &cli, "0", answers, &r);
    assert_true(r.status == -ERR_NOTFOUND);
    run(&command_drain, &cli, "05", answers, &r); /* a host may be named so */
    assert_true(r.status == -ERR_NOTFOUND);
}

static void a_worker_is_told_in_full(void **state)
{
    static const char *const answers[] = {
        "{\"items\": [{\"id\": 3, \"name\": \"isle\", \"state\": \"idle\", \"version\": \"9.8\","
        " \"address\": \"10.0.0.5\", \"token\": 4}]}",
        NULL};
    static const char *const none[] = {"{\"items\": []}", NULL};
    struct cli cli = {0};
    struct ran r;
    run(&command_workers, &cli, "3", answers, &r);
    assert_string_equal(r.asked, "GET /v1/workers?after=2&limit=1 HTTP/1.1");
    says(&r, "worker 3, isle: idle\n  version 9.8 at 10.0.0.5, joined with token 4\n");
    run(&command_workers, &cli, "2", answers, &r);
    assert_true(r.status == -ERR_NOTFOUND);
    run(&command_workers, &cli, "2", none, &r);
    assert_true(r.status == -ERR_NOTFOUND);
}

/* A token is saved for its user alone, and only once its coordinator has taken it. */
static void a_token_is_saved_when_it_works(void **state)
{
    static const char *const taken[] = {"{}", NULL};
    static const char *const refused[] = {"{\"error\": \"this token was revoked\"}", NULL};
    struct token t = {.host = "127.0.0.1", .rpc_port = 1, .http_plain = true};
    char dir[] = "/tmp/skerry-login.XXXXXX", text[TOKEN_STRING_MAX];
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    assert_non_null(mkdtemp(dir));
    setenv("XDG_CONFIG_HOME", dir, 1);
    char *path = cli_token_path();
    for (int i = 0; i < 2; i++) {
        struct script s;
        struct cli cli = {0}, other = {0};
        struct err err = {0};
        connect_to(&s, &other, i == 0 ? refused : taken);
        assert_int_equal(getsockname(s.listener, (struct sockaddr *)&a, &len), 0);
        t.http_port = ntohs(a.sin_port);
        t.role = TOKEN_ROLE_OPERATOR;
        assert_int_equal(token_format(&t, text, &err), 0);
        struct args args = {.n_rest = 1, .rest = {text}};
        const int rc = command_login.run(&cli, &args, &err);
        disconnect(&s, &other);
        cli_close(&cli);
        assert_int_equal(rc == 0, i == 1);
        assert_null(strstr(text, TOKEN_PREFIX)); /* `ps` does not show it any more */
        assert_int_equal(file_exists(path), i == 1);
    }
    struct stat st;
    struct buf saved;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(token_format(&t, text, NULL), 0);
    assert_int_equal(file_read(path, 4096, &saved, NULL), 0);
    assert_memory_equal(buf_str(&saved), text, strlen(text));
    buf_release(&saved);
    mem_free(path);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_swarm_says_what_to_do),
        cmocka_unit_test(a_swarm_is_listed),
        cmocka_unit_test(a_job_file_is_printed),
        cmocka_unit_test(a_task_is_described),
        cmocka_unit_test(tasks_are_asked_for),
        cmocka_unit_test(what_is_watched_is_named),
        cmocka_unit_test(a_watch_waits_for_the_coordinator),
        cmocka_unit_test(what_is_cancelled_is_named),
        cmocka_unit_test(a_name_is_an_id),
        cmocka_unit_test(a_worker_is_told_in_full),
        cmocka_unit_test(a_token_is_saved_when_it_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
