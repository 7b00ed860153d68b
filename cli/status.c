/* skerry status, workers, tasks, watch, cancel, drain, login: requests to a running coordinator, of
 * one or two calls each.  show.c describes objects in words. */

#include "common/base/base.h"
#include "cli/command.h"
#include "cli/base/table.h"
#include "cli/show/follow.h"
#include "cli/show/show.h"
#include "cli/show/tensorboard.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/net/token_source.h"

#define WATCH_AGAIN_MS 400
#define ID(id) ((unsigned long long)(id))

/* Gets a path and prints the answer: unchanged with --json, else by print. */
__attribute__((format(printf, 4, 5))) static int get(struct cli *cli, void (*print)(const json_t *),
                                                     struct err *err, const char *format, ...)
{
    char path[160];
    json_t *answer = NULL;
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(path, sizeof path, format, ap);
    va_end(ap);
    int rc = cli_call(cli, "GET", NULL, &answer, err, "%s", path);
    if (rc == 0)
        (cli->json ? cli_print_json : print)(answer);
    json_decref(answer);
    return rc;
}

static void add_job(const json_t *job, struct table *t)
{
    char text[STR_HUMAN_MAX];
    const double speed = cli_num(job, "images_per_s", 0);
    table_cell(t, "%lld", cli_int(job, "id", 0));
    table_cell(t, "%s", cli_str(job, "name", ""));
    table_cell(t, "%s", show_state(job));
    if (cli_int(job, "rounds", 0) > 0)
        table_cell(t, "%lld/%lld", cli_int(job, "round", 0), cli_int(job, "rounds", 0));
    else
        table_cell(t, TABLE_NONE); /* set aside */
    table_loss(t, cli_num(job, "loss", NAN));
    if (speed > 0)
        table_cell(t, "%.0f %s/s", speed, show_unit(job));
    else
        table_cell(t, TABLE_NONE);
    table_cell(t, "%s", cli_has(job, "eta_ms") ? cli_duration(job, "eta_ms", text) : TABLE_NONE);
}

/* Why it ended, or does not go on. */
static void print_why(const json_t *job)
{
    char trouble[SHOW_TROUBLE_MAX];
    const char *whys[] = {cli_str(job, "reason", ""), show_trouble(job, trouble)};
    for (int i = 0; i < 2; i++)
        if (*whys[i])
            printf("  job %lld (%s): %s\n", cli_int(job, "id", 0), cli_str(job, "name", ""),
                   whys[i]);
}

static void print_jobs(const json_t *list)
{
    static const char *const names[] = {">job",  "name",   "state", ">round",
                                        ">loss", ">speed", ">ETA"};
    const json_t *job;
    struct table t;
    size_t i;
    puts("\njobs");
    if (json_array_size(list) == 0) {
        puts("  none; `skerry submit job.yaml` starts one");
        return;
    }
    table_init(&t, names, sizeof names / sizeof names[0]);
    json_array_foreach(list, i, job) add_job(job, &t);
    table_print(&t, stdout);
    table_release(&t);
    json_array_foreach(list, i, job) print_why(job);
}

static void print_plane(const json_t *bytes, const char *key, const char *name)
{
    const json_t *plane = json_object_get(bytes, key);
    char up[STR_HUMAN_MAX], down[STR_HUMAN_MAX];
    printf("%s: %s up, %s down", name, cli_bytes(plane, "up", up), cli_bytes(plane, "down", down));
}

static void print_workers(const json_t *list)
{
    puts("\nworkers");
    if (json_array_size(list) > 0)
        show_workers(list, stdout);
    else
        puts("  none; run `workerd --join @FILE` with a worker token of the coordinator");
}

static void print_all(const json_t *s)
{
    const json_t *bytes = json_object_get(s, "bytes");
    char up[STR_HUMAN_MAX];
    printf("coordinator %s, up %s, ", cli_str(s, "version", "?"), cli_duration(s, "uptime_ms", up));
    print_plane(bytes, "control", "control");
    print_plane(bytes, "data", ", data");
    if (cli_has(s, "ratio_to_fp32_data_parallel"))
        printf("; %.3g times the bytes of fp32 data-parallel",
               cli_num(s, "ratio_to_fp32_data_parallel", 0.0));
    putchar('\n');
    print_jobs(json_object_get(s, "jobs"));
    show_waiting(json_object_get(s, "waiting_for"), stdout);
    print_workers(json_object_get(s, "workers"));
    const long long more = cli_int(json_object_get(s, "workers_count"), "known", 0) -
                           (long long)json_array_size(json_object_get(s, "workers"));
    if (more > 0)
        printf("  and %lld more; `skerry workers` lists them\n", more);
}

static void print_whole_job(const json_t *job)
{
    show_job(job, stdout);
}

static bool status_file;

static void print_file(const json_t *job)
{
    fputs(cli_str(job, "spec", ""), stdout);
}

static int run_status(struct cli *cli, const struct args *args, struct err *err)
{
    uint64_t id = 0;
    if (status_file && (args->n_rest == 0 || cli->json))
        return err_set(err, -ERR_USAGE, "--file prints the file of one job: give its id or name%s",
                       cli->json ? ", and not --json" : "");
    if (args->n_rest == 0)
        return get(cli, print_all, err, "/v1/status");
    int rc = cli_job_id(cli, args, &id, err);
    return rc < 0 ? rc
                  : get(cli, status_file ? print_file : print_whole_job, err, "/v1/jobs/%llu%s",
                        ID(id), cli->json ? "" : "?history=0&samples=0");
}

const struct command command_status = {
    .name = "status",
    .what = "show what is running and what it waits for",
    .usage = "[JOB [--file]]",
    .about = "Shows jobs, workers, traffic, and what is waited for; for one job its "
             "stage, paths, partitions and figures.",
    .flags =
        (const struct args_flag[]){
            {"file", 0, ARGS_BOOL, &status_file, NULL,
             "print the job file, which `skerry submit` takes again"},
            {0},
        },
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_status,
};

static int one_worker(struct cli *cli, const char *given, struct err *err)
{
    json_t *answer = NULL;
    uint64_t id = 0;
    int rc = cli_find(cli, "worker", given, &id, err);
    if (rc == 0)
        rc = cli_call(cli, "GET", NULL, &answer, err, "/v1/workers?after=%llu&limit=1", ID(id - 1));
    const json_t *w = json_array_get(json_object_get(answer, "items"), 0);
    if (rc == 0 && (uint64_t)cli_int(w, "id", 0) != id)
        rc = err_set(err, -ERR_NOTFOUND, "worker %llu does not exist", ID(id));
    if (rc == 0 && cli->json)
        cli_print_json(w);
    else if (rc == 0)
        show_worker(w, stdout);
    json_decref(answer);
    return rc;
}

static int run_workers(struct cli *cli, const struct args *args, struct err *err)
{
    json_t *answer = NULL;
    if (args->n_rest > 0)
        return one_worker(cli, args->rest[0], err);
    int rc = cli_pages(cli, "/v1/workers", "after", &answer, err);
    if (rc == 0 && cli->json)
        cli_print_json(answer);
    else if (rc == 0)
        print_workers(json_object_get(answer, "items"));
    json_decref(answer);
    return rc;
}

const struct command command_workers = {
    .name = "workers",
    .what = "list the workers",
    .usage = "[WORKER]",
    .about = "Lists the workers, those on record that are gone too: state, speed, share of what "
             "their devices reach, current task, and devices in trouble; or tells all about one, "
             "by its id or name.",
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_workers,
};

/* The subject of a task: a round of a replica, a path, or the whole mixture. */
static void task_subject(const json_t *t, char *out, size_t cap)
{
    const char *kind = cli_str(t, "kind", "");
    long long path = cli_int(t, "path", 0);
    if (!strcmp(kind, "train"))
        snprintf(out, cap, "round %lld, path %lld, replica %lld", cli_int(t, "round", 0), path,
                 cli_int(t, "replica", 0));
    else if (json_is_true(json_object_get(t, "mixture")))
        snprintf(out, cap, "the mixture after round %lld", cli_int(t, "round", 0));
    else if (!strcmp(kind, "eval") || !strcmp(kind, "sample") || !strcmp(kind, "score") ||
             !strcmp(kind, "velocity"))
        snprintf(out, cap, "path %lld after round %lld", path, cli_int(t, "round", 0));
    else
        snprintf(out, cap, "%s", "");
}

static void add_task(struct table *table, const json_t *t)
{
    char age[STR_HUMAN_MAX], subject[96];
    const char *reason = cli_str(t, "reason", ""), *doing = cli_str(t, "activity", "");
    const bool again = *reason && *doing; /* the reason is that of the attempt before */
    task_subject(t, subject, sizeof subject);
    table_cell(table, "%lld", cli_int(t, "id", 0));
    table_cell(table, "%lld", cli_int(t, "job", 0));
    table_cell(table, "%s", cli_str(t, "kind", ""));
    table_cell(table, "%s", cli_str(t, "state", ""));
    table_cell(table, "%lld", cli_int(t, "attempt", 0));
    table_cell(table, "%s", subject);
    if (cli_int(t, "steps_total", 0) > 0)
        table_cell(table, "%lld/%lld", cli_int(t, "steps_done", 0), cli_int(t, "steps_total", 0));
    else
        table_cell(table, TABLE_NONE);
    table_cell(table, "%s", cli_duration(t, "age_ms", age));
    table_cell(table, "%s%s%s%s", doing, again ? " (before: " : "", reason, again ? ")" : "");
}

static void print_tasks(const json_t *answer)
{
    static const char *const names[] = {">task", ">job",   "kind", "state", ">attempt",
                                        "about", ">steps", ">age", "doing"};
    const json_t *items = json_object_get(answer, "items"), *item;
    struct table t;
    size_t i;
    if (json_array_size(items) == 0) {
        puts("no tasks");
        return;
    }
    table_init(&t, names, sizeof names / sizeof names[0]);
    json_array_foreach(items, i, item) add_task(&t, item);
    table_print(&t, stdout);
    table_release(&t);
}

static const char *tasks_state;
static const char *const states[] = {"pending", "leased", "done", "failed", "cancelled"};

static bool is_state(const char *word)
{
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (strcmp(states[i], word) == 0)
            return true;
    return false;
}

static int run_tasks(struct cli *cli, const struct args *args, struct err *err)
{
    char job[32] = "", state[48] = "", path[128];
    json_t *answer = NULL;
    uint64_t id = 0; /* tasks of every job */
    if (tasks_state && !is_state(tasks_state))
        return err_set(err, -ERR_USAGE,
                       "--state is '%.60s', expected pending, leased, done, failed or cancelled",
                       tasks_state);
    int rc = args->n_rest > 0 ? cli_job_id(cli, args, &id, err) : 0;
    if (rc < 0)
        return rc;
    if (id)
        (void)snprintf(job, sizeof job, "?job=%llu", ID(id));
    if (tasks_state)
        (void)snprintf(state, sizeof state, "%cstate=%s", id ? '&' : '?', tasks_state);
    (void)snprintf(path, sizeof path, "/v1/tasks%s%s", job, state);
    rc = cli_pages(cli, path, "before", &answer, err);
    if (rc == 0)
        (cli->json ? cli_print_json : print_tasks)(answer);
    json_decref(answer);
    return rc;
}

const struct command command_tasks = {
    .name = "tasks",
    .what = "list the tasks of a job",
    .usage = "[JOB] [--state STATE]",
    .about = "Lists the tasks of a job, or of all jobs, newest first.",
    .flags =
        (const struct args_flag[]){
            {"state", 0, ARGS_STR, &tasks_state, "STATE",
             "pending, leased, done, failed or cancelled"},
            {0},
        },
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_tasks,
};

static const char *watch_tensorboard;

/* The job, once its coordinator answers: one that restarts is waited for. */
static int find_watched(struct cli *cli, const struct args *args, uint64_t *ret, struct err *err)
{
    struct cli_away away = {.seen_ms = clock_now_ms()};
    for (;; cli_sleep_ms(WATCH_AGAIN_MS)) {
        int rc = cli_job_id(cli, args, ret, err);
        if (rc == 0)
            rc = cli_call(cli, "GET", NULL, NULL, err, "/v1/jobs/%llu?history=0&samples=0",
                          ID(*ret));
        if (rc == 0)
            cli_say_back(&away);
        if (rc == 0 || !cli_may_come_back(rc, away.seen_ms))
            return rc;
        cli_say_away(&away, err->msg);
    }
}

static int run_watch(struct cli *cli, const struct args *args, struct err *err)
{
    struct tensorboard *tb = NULL;
    uint64_t id = 0;
    cli_catch_signals();
    if (watch_tensorboard && !watch_tensorboard[0])
        return err_set(err, -ERR_USAGE, "--tensorboard is empty, expected a directory");
    int rc = find_watched(cli, args, &id, err);
    if (rc == 0 && watch_tensorboard)
        rc = tensorboard_open(cli, id, watch_tensorboard, &tb, err);
    if (rc == 0)
        rc = follow_apart(cli, id, tb ? &(struct follow_hook){tensorboard_poll, tb} : NULL);
    tensorboard_close(tb);
    return rc;
}

const struct command command_watch = {
    .name = "watch",
    .what = "follow a job to its end",
    .usage = "[JOB] [--tensorboard DIR]",
    .about = "Follows a job (by default the newest) to its end: in one line on a "
             "terminal, and in a line for each round in a pipe or a file.  A coordinator "
             "that is away is waited for, for a minute.  Ctrl-C stops watching, not the job.",
    .flags =
        (const struct args_flag[]){
            {"tensorboard", 0, ARGS_STR, &watch_tensorboard, "DIR",
             "also write losses, held-out losses, rounds and samples since the job "
             "began to event files in DIR/NAME-ID, for `tensorboard --logdir DIR`"},
            {0},
        },
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_watch,
};

/* POST to /v1/WHATs/ID/VERB; prints the state after it. */
static int post(struct cli *cli, const char *what, uint64_t id, const char *verb, struct err *err)
{
    json_t *answer = NULL;
    int rc = cli_call(cli, "POST", NULL, &answer, err, "/v1/%ss/%llu/%s", what, ID(id), verb);
    if (rc < 0)
        return rc;
    if (cli->json)
        cli_print_json(answer);
    else
        printf("%s %lld is now %s\n", what, cli_int(answer, "id", 0),
               cli_str(answer, "state", "?"));
    json_decref(answer);
    return CLI_OK;
}

static uint64_t cancel_task;

static int run_cancel(struct cli *cli, const struct args *args, struct err *err)
{
    uint64_t id = 0;
    if ((cancel_task != 0) == (args->n_rest > 0))
        return err_set(err, -ERR_USAGE,
                       "give the id of a job or --task N; `skerry status` and `skerry tasks` list "
                       "them");
    if (cancel_task)
        return post(cli, "task", cancel_task, "cancel", err);
    int rc = cli_job_id(cli, args, &id, err);
    return rc < 0 ? rc : post(cli, "job", id, "cancel", err);
}

const struct command command_cancel = {
    .name = "cancel",
    .what = "stop a job",
    .usage = "JOB | --task N",
    .about = "Stops a job for good; its versions and samples stay.",
    .flags =
        (const struct args_flag[]){
            {"task", 0, ARGS_U64, &cancel_task, "N",
             "cancel a drawing of `skerry sample` instead of a job", .min = 1, .max = 9e18},
            {0},
        },
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_cancel,
};

static int run_drain(struct cli *cli, const struct args *args, struct err *err)
{
    uint64_t id = 0;
    const int rc = cli_find(cli, "worker", args->rest[0], &id, err);
    return rc < 0 ? rc : post(cli, "worker", id, "drain", err);
}

const struct command command_drain = {
    .name = "drain",
    .what = "let a worker finish its task, leave and end",
    .usage = "WORKER",
    .about = "Lets a worker, by its id or name, finish its task and gives it no other: it leaves, "
             "and its workerd ends.",
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_drain,
};

/* Saves the token where cli_connect() finds it, readable only by the user. */
static int save_token(const char *text, struct err *err)
{
    char *path = cli_token_path();
    if (!path)
        return err_set(err, -ENOENT,
                       "neither XDG_CONFIG_HOME nor HOME is set to a folder to save the token in; "
                       "set one of them, or give the token to each command with --server");
    char *line = str_printf("%s\n", text);
    int rc = file_mkdirs_for(path, 0700, err);
    if (rc == 0)
        rc = file_write_atomic(path, line, strlen(line), 0600, err);
    if (rc == 0)
        printf("saved in %s\n", path);
    mem_free(line);
    mem_free(path);
    return rc;
}

static int run_login(struct cli *cli, const struct args *args, struct err *err)
{
    char text[TOKEN_STRING_MAX];
    struct token token;
    int rc = token_source_read(args->rest[0], &token, err);
    if (rc == 0)
        rc = token_format(&token, text, err);
    if (rc < 0)
        return rc;
    token_source_wipe(args->rest[0]);
    char *given = str_dup(text); /* connecting wipes it */
    cli->token = given;
    rc = cli_connect(cli, err);
    mem_free(given);
    if (rc == 0)
        rc = cli_call(cli, "GET", NULL, NULL, err, "/v1/status");
    return rc < 0 ? rc : save_token(text, err);
}

const struct command command_login = {
    .name = "login",
    .what = "save the token of a coordinator",
    .usage = "@FILE|-|TOKEN",
    .about = "Checks the token in a file, or on standard input, against its coordinator and saves "
             "it, so that the other commands need no --server.",
    .rest_min = 1,
    .rest_max = 1,
    .run = run_login,
};
