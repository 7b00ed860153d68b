/* skerry status, workers, tasks, watch, cancel, drain, login */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/follow.h"
#include "cli/job_show.h"
#include "cli/worker_show.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/net/token.h"

/* Parses the flags of a command that only needs a connection, and connects.
 * Returns -1 to go on, else the exit status. */
static int start(struct cli *cli, struct args *args, int argc, char **argv)
{
    struct err err = {0};
    int rc = args_parse(args, argc, argv, &err);
    if (rc)
        return args_exit(args, rc, &err);
    return cli_connect(cli, &err) < 0 ? cli_fail(&err) : -1;
}

/* GET path; with --json prints it and returns NULL with *status set. */
static json_t *fetch(struct cli *cli, const char *path, int *status)
{
    struct err err = {0};
    json_t *answer = NULL;

    *status = CLI_OK;
    if (cli_call(cli, "GET", path, NULL, &answer, &err) < 0) {
        *status = cli_fail(&err);
        return NULL;
    }
    if (cli->json) {
        cli_print_json(answer);
        json_decref(answer);
        return NULL;
    }
    return answer;
}

static void print_job(const json_t *job)
{
    char loss[24] = "-", eta[STR_HUMAN_MAX] = "-";
    if (json_is_number(json_object_get(job, "loss")))
        snprintf(loss, sizeof loss, "%.4f", cli_num(job, "loss", 0.0));
    if (json_is_integer(json_object_get(job, "eta_ms")))
        str_human_duration((uint64_t)cli_int(job, "eta_ms", 0), eta);
    printf("%4lld  %-16s %-12s round %lld/%lld  loss %s  %.0f %s/s  ETA %s\n",
           (long long)cli_int(job, "id", 0), cli_str(job, "name", ""), cli_str(job, "state", ""),
           (long long)cli_int(job, "round", 0), (long long)cli_int(job, "rounds", 0), loss,
           cli_num(job, "images_per_s", 0.0), job_show_unit(job), eta);
    if (*cli_str(job, "reason", ""))
        printf("      %s\n", cli_str(job, "reason", ""));
}

static void print_worker(const json_t *w)
{
    worker_show(w, stdout);
}

static void print_plane(const json_t *bytes, const char *key, const char *name)
{
    const json_t *plane = json_object_get(bytes, key);
    char up[STR_HUMAN_MAX], down[STR_HUMAN_MAX];
    printf("%s: %s up, %s down", name, str_human_bytes((uint64_t)cli_int(plane, "up", 0), up),
           str_human_bytes((uint64_t)cli_int(plane, "down", 0), down));
}

static void print_list(const json_t *list, const char *title, const char *none,
                       void (*print)(const json_t *))
{
    const json_t *item;
    size_t i;

    printf("\n%s\n", title);
    if (json_array_size(list) == 0)
        printf("      %s\n", none);
    json_array_foreach(list, i, item) print(item);
}

static void print_waiting(const json_t *w)
{
    char until[STR_HUMAN_MAX];
    printf("      %s: %s", cli_str(w, "what", ""), cli_str(w, "why", ""));
    if (json_is_integer(json_object_get(w, "until_ms")))
        printf(" (at most %s more)",
               str_human_duration((uint64_t)cli_int(w, "until_ms", 0), until));
    putchar('\n');
}

static void print_all(const json_t *s)
{
    const json_t *bytes = json_object_get(s, "bytes");
    char up[STR_HUMAN_MAX];
    printf("coordinator %s, up %s, ", cli_str(s, "version", "?"),
           str_human_duration((uint64_t)cli_int(s, "uptime_ms", 0), up));
    print_plane(bytes, "control", "control");
    print_plane(bytes, "data", ", data");
    if (json_is_number(json_object_get(s, "ratio_to_fp32_data_parallel")))
        printf("; %.3g times the bytes of fp32 data-parallel",
               cli_num(s, "ratio_to_fp32_data_parallel", 0.0));
    putchar('\n');
    print_list(json_object_get(s, "jobs"), "jobs", "none; `skerry submit job.yaml` starts one",
               print_job);
    print_list(json_object_get(s, "workers"), "workers",
               "none; run `workerd --join TOKEN` with the worker token of the coordinator",
               print_worker);
    print_list(json_object_get(s, "waiting_for"), "waiting for", "nothing", print_waiting);
}

int cmd_status(int argc, char **argv)
{
    struct cli cli = {0};
    struct err err = {0};
    uint64_t id = 0;
    char path[64] = "/v1/status";
    const struct args_flag flags[] = {CLI_FLAG_SERVER(&cli), CLI_FLAG_JSON(&cli), {0}};
    struct args args = {.program = "skerry status",
                        .usage = "[JOB]",
                        .flags = flags,
                        .about = "Shows jobs, workers, bytes moved, and what is waited for; of one "
                                 "job its stage, paths, partitions and figures.",
                        .rest_max = 1};

    int status = start(&cli, &args, argc, argv);
    if (status >= 0)
        return status;
    if (args.n_rest > 0) {
        if (cli_job_id(&cli, &args, &id, &err) < 0) {
            status = cli_fail(&err);
            cli_close(&cli);
            return status;
        }
        (void)snprintf(path, sizeof path, "/v1/jobs/%llu", (unsigned long long)id);
    }
    json_t *s = fetch(&cli, path, &status);
    if (s && id)
        job_show(s, stdout);
    else if (s)
        print_all(s);
    json_decref(s);
    cli_close(&cli);
    return status;
}

int cmd_workers(int argc, char **argv)
{
    struct cli cli = {0};
    const struct args_flag flags[] = {CLI_FLAG_SERVER(&cli), CLI_FLAG_JSON(&cli), {0}};
    struct args args = {.program = "skerry workers",
                        .usage = "[--json]",
                        .flags = flags,
                        .about = "Lists the workers: state, speed, bytes, what each does, how "
                                 "much of its devices it uses and how they are."};

    int status = start(&cli, &args, argc, argv);
    if (status >= 0)
        return status;
    json_t *list = fetch(&cli, "/v1/workers", &status);
    if (list)
        print_list(json_object_get(list, "items"), "workers", "none", print_worker);
    json_decref(list);
    cli_close(&cli);
    return status;
}

/* What a task is about: a round of a replica, a path, or the whole mixture. */
static void task_subject(const json_t *t, char *out, size_t cap)
{
    const char *kind = cli_str(t, "kind", "");
    long long path = cli_int(t, "path", 0);
    if (!strcmp(kind, "train"))
        snprintf(out, cap, "round %lld, path %lld, replica %lld", (long long)cli_int(t, "round", 0),
                 path, (long long)cli_int(t, "replica", 0));
    else if (json_is_true(json_object_get(t, "mixture")))
        snprintf(out, cap, "the mixture after round %lld", (long long)cli_int(t, "round", 0));
    else if (!strcmp(kind, "eval") || !strcmp(kind, "sample") || !strcmp(kind, "score") ||
             !strcmp(kind, "velocity"))
        snprintf(out, cap, "path %lld after round %lld", path, (long long)cli_int(t, "round", 0));
    else
        snprintf(out, cap, "%s", "");
}

static void print_task(const json_t *t)
{
    char age[STR_HUMAN_MAX], subject[96], steps[48] = "";
    task_subject(t, subject, sizeof subject);
    if (cli_int(t, "steps_total", 0) > 0)
        snprintf(steps, sizeof steps, "%lld/%lld", (long long)cli_int(t, "steps_done", 0),
                 (long long)cli_int(t, "steps_total", 0));
    printf("%5lld  job %-3lld %-8s %-9s attempt %lld  %-30s %-11s %-7s %s\n",
           (long long)cli_int(t, "id", 0), (long long)cli_int(t, "job", 0), cli_str(t, "kind", ""),
           cli_str(t, "state", ""), (long long)cli_int(t, "attempt", 0), subject, steps,
           str_human_duration((uint64_t)cli_int(t, "age_ms", 0), age),
           *cli_str(t, "reason", "") ? cli_str(t, "reason", "") : cli_str(t, "activity", ""));
}

int cmd_tasks(int argc, char **argv)
{
    struct cli cli = {0};
    uint64_t job = 0;
    const char *state = NULL;
    const struct args_flag flags[] = {
        CLI_FLAG_SERVER(&cli),
        CLI_FLAG_JSON(&cli),
        {"job", 0, ARGS_U64, &job, "ID", "of this job only"},
        {"state", 0, ARGS_STR, &state, "STATE", "pending, leased, done, failed or cancelled"},
        {0},
    };
    struct args args = {.program = "skerry tasks",
                        .usage = "[--job ID] [--state STATE]",
                        .flags = flags,
                        .about = "Lists tasks, newest first."};
    char path[160];

    int status = start(&cli, &args, argc, argv);
    if (status >= 0)
        return status;
    int n = snprintf(path, sizeof path, "/v1/tasks");
    if (job)
        n += snprintf(path + n, sizeof path - (size_t)n, "?job=%llu", (unsigned long long)job);
    if (state && strlen(state) < 32 && str_is_name(state, 31))
        snprintf(path + n, sizeof path - (size_t)n, "%cstate=%s", job ? '&' : '?', state);
    json_t *list = fetch(&cli, path, &status);
    if (list)
        print_list(json_object_get(list, "items"), "tasks", "none", print_task);
    json_decref(list);
    cli_close(&cli);
    return status;
}

int cmd_watch(int argc, char **argv)
{
    struct cli cli = {0};
    struct err err = {0};
    uint64_t id = 0;
    const struct args_flag flags[] = {CLI_FLAG_SERVER(&cli), CLI_FLAG_JSON(&cli), {0}};
    struct args args = {.program = "skerry watch",
                        .usage = "[JOB]",
                        .flags = flags,
                        .about = "Follows a job (the newest by default) to its end; Ctrl-C stops "
                                 "the watching, not the job.",
                        .rest_max = 1};

    int status = start(&cli, &args, argc, argv);
    if (status >= 0)
        return status;
    cli_catch_signals();
    if (cli_job_id(&cli, &args, &id, &err) < 0)
        status = cli_fail(&err);
    else
        status = follow_apart(&cli, id);
    cli_close(&cli);
    return status;
}

/* POST to a path without a body, for cancel and drain. */
static int post(struct cli *cli, const char *path, const char *what)
{
    struct err err = {0};
    json_t *answer = NULL;

    int rc = cli_call(cli, "POST", path, NULL, &answer, &err);
    if (rc < 0)
        return cli_fail(&err);
    if (cli->json)
        cli_print_json(answer);
    else
        printf("%s %lld is now %s\n", what, (long long)cli_int(answer, "id", 0),
               cli_str(answer, "state", "?"));
    json_decref(answer);
    return CLI_OK;
}

int cmd_cancel(int argc, char **argv)
{
    struct cli cli = {0};
    struct err err = {0};
    uint64_t id = 0;
    uint64_t task = 0;
    char path[64];
    const struct args_flag flags[] = {
        CLI_FLAG_SERVER(&cli),
        CLI_FLAG_JSON(&cli),
        {"task", 0, ARGS_U64, &task, "N", "a drawing that `skerry sample` asked for, not a job",
         .min = 1, .max = 9e18},
        {0},
    };
    struct args args = {.program = "skerry cancel",
                        .usage = "JOB | --task N",
                        .flags = flags,
                        .about = "Stops a job for good; its versions and samples stay.",
                        .rest_max = 1};

    int status = start(&cli, &args, argc, argv);
    if (status >= 0)
        return status;
    if ((task != 0) == (args.n_rest > 0)) {
        fprintf(stderr, "skerry: give the id of a job or --task N; `skerry status` and `skerry "
                        "tasks` list them\n");
        status = CLI_USAGE;
    } else if (task) {
        snprintf(path, sizeof path, "/v1/tasks/%llu/cancel", (unsigned long long)task);
        status = post(&cli, path, "task");
    } else if (cli_job_id(&cli, &args, &id, &err) < 0) {
        status = cli_fail(&err);
    } else {
        snprintf(path, sizeof path, "/v1/jobs/%llu/cancel", (unsigned long long)id);
        status = post(&cli, path, "job");
    }
    cli_close(&cli);
    return status;
}

int cmd_drain(int argc, char **argv)
{
    struct cli cli = {0};
    uint64_t id = 0;
    char path[64];
    const struct args_flag flags[] = {CLI_FLAG_SERVER(&cli), CLI_FLAG_JSON(&cli), {0}};
    struct args args = {.program = "skerry drain",
                        .usage = "WORKER",
                        .flags = flags,
                        .about = "Lets a worker finish its task and gives it no other.",
                        .rest_min = 1,
                        .rest_max = 1};

    int status = start(&cli, &args, argc, argv);
    if (status >= 0)
        return status;
    if (str_parse_u64(args.rest[0], &id) < 0 || id == 0) {
        fprintf(stderr, "skerry: '%s' is not a worker's id; `skerry workers` lists them\n",
                args.rest[0]);
        status = CLI_USAGE;
    } else {
        snprintf(path, sizeof path, "/v1/workers/%llu/drain", (unsigned long long)id);
        status = post(&cli, path, "worker");
    }
    cli_close(&cli);
    return status;
}

/* Saves the token where cli_connect() looks for it, readable by the user only. */
static int save_token(const char *given, struct err *err)
{
    struct token token;
    char text[TOKEN_STRING_MAX];
    int rc = cli_token(given, &token, err);
    if (rc == 0)
        rc = token_format(&token, text, err);
    if (rc < 0)
        return rc;
    char *path = cli_token_path();
    char *dir = str_ndup(path, (size_t)(strrchr(path, '/') - path));
    char *line = str_printf("%s\n", text);

    rc = file_mkdirs(dir, 0700, err);
    if (rc == 0)
        rc = file_write_atomic(path, line, strlen(line), 0600, err);
    if (rc == 0)
        printf("saved in %s\n", path);
    mem_free(line);
    mem_free(dir);
    mem_free(path);
    return rc;
}

int cmd_login(int argc, char **argv)
{
    struct cli cli = {0};
    struct err err = {0};
    json_t *answer = NULL;
    const struct args_flag flags[] = {{0}};
    struct args args = {.program = "skerry login",
                        .usage = "TOKEN|@FILE",
                        .flags = flags,
                        .about = "Checks a user token, or the one in a file, against its "
                                 "coordinator and saves it, so "
                                 "that the other commands need no --server.",
                        .rest_min = 1,
                        .rest_max = 1};

    int rc = args_parse(&args, argc, argv, &err);
    if (rc)
        return args_exit(&args, rc, &err);
    cli.token = args.rest[0];
    rc = cli_connect(&cli, &err);
    if (rc == 0)
        rc = cli_call(&cli, "GET", "/v1/status", NULL, &answer, &err);
    cli_close(&cli);
    json_decref(answer);
    if (rc == 0)
        rc = save_token(args.rest[0], &err);
    return rc < 0 ? cli_fail(&err) : CLI_OK;
}
