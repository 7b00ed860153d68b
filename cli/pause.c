/* skerry pause, resume, rollback: a job stands still, goes on, or goes back to what it was. */
#include "cli/command.h"

static int set_paused(struct cli *cli, const struct args *args, bool paused, struct err *err)
{
    json_t *answer = NULL;
    uint64_t id = 0;
    int rc = cli_job_id(cli, args, &id, err);
    if (rc == 0)
        rc = cli_call(cli, "POST", NULL, &answer, err, "/v1/jobs/%" PRIu64 "/%s", id,
                      paused ? "pause" : "resume");
    if (rc == 0 && cli->json)
        cli_print_json(answer);
    else if (rc == 0 && paused)
        printf("job %" PRIu64 " is paused; what its workers do goes on to its end, and `skerry "
               "resume %" PRIu64 "` lets it go on\n",
               id, id);
    else if (rc == 0)
        printf("job %" PRIu64 " goes on\n", id);
    json_decref(answer);
    return rc;
}

static int run_pause(struct cli *cli, const struct args *args, struct err *err)
{
    return set_paused(cli, args, true, err);
}

static int run_resume(struct cli *cli, const struct args *args, struct err *err)
{
    return set_paused(cli, args, false, err);
}

const struct command command_pause = {
    .name = "pause",
    .what = "give out no task of a job until it is resumed",
    .usage = "JOB",
    .about = "Gives out no task of a job. Those that run go on to their end, and count; the "
             "workers are free for other jobs. It stays so over a restart of the coordinator.",
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_pause,
};

const struct command command_resume = {
    .name = "resume",
    .what = "let a paused job go on",
    .usage = "JOB",
    .about = "Lets a job go on that was paused.",
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_resume,
};

/* ---- rollback ------------------------------------------------------------ */

static uint64_t version, path;
static bool path_given;

static int run_rollback(struct cli *cli, const struct args *args, struct err *err)
{
    json_t *answer = NULL;
    uint64_t id = 0;
    int rc = cli_job_id(cli, args, &id, err);
    if (rc < 0)
        return rc;
    json_t *order = json_pack("{s:I}", "to", (json_int_t)version);
    if (path_given)
        (void)json_object_set_new(order, "path", json_integer((json_int_t)path));
    rc = cli_call(cli, "POST", order, &answer, err, "/v1/jobs/%" PRIu64 "/rollback", id);
    json_decref(order);
    if (rc == 0 && cli->json)
        cli_print_json(answer);
    else if (rc == 0 && path_given)
        printf("path %" PRIu64 " of job %" PRIu64 " is what it was after round %" PRIu64
               ", and so are those that share modules with it; the round that ran has ended "
               "without their phases\n",
               path, id, version);
    else if (rc == 0)
        printf("job %" PRIu64 " is what it was after round %" PRIu64
               "; the round that ran has ended without its phases\n",
               id, version);
    json_decref(answer);
    return rc;
}

const struct command command_rollback = {
    .name = "rollback",
    .what = "make of a job what it was some rounds ago",
    .usage = "JOB --to N [--path P]",
    .about =
        "Goes back to version N of a job's model, what it was after round N; the last four are "
        "kept. The round that runs ends without its phases and counts as one of the job's, "
        "and the next begins with that version: the outer optimiser and the workers' moments "
        "begin anew. Jobs that train in rounds; not in fragments, nor asynchronously.",
    .flags =
        (const struct args_flag[]){
            {"to", 0, ARGS_U64, &version, "N", "the version", .required = true, .max = 1e6},
            {"path", 0, ARGS_U64, &path, "P",
             "this path, and those that share modules with it, alone", .max = UINT32_MAX - 1,
             .given = &path_given},
            {0},
        },
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_rollback,
};
