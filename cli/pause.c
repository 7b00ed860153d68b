/* skerry pause, resume, rollback: stop a job for a while, let it go on, or take it back to an older
 * version. */
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
        printf("job %" PRIu64 " is paused; tasks that run are finished, and `skerry resume "
               "%" PRIu64 "` lets it go on\n",
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
    .what = "hand out no task of a job until it is resumed",
    .usage = "JOB",
    .about = "Hands out no more tasks of a job.  Tasks that run are finished, and "
             "count; then the workers are free for other jobs.  The job stays paused"
             " when the coordinator restarts.",
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_pause,
};

const struct command command_resume = {
    .name = "resume",
    .what = "continue a paused job",
    .usage = "JOB",
    .about = "Continues a paused job.",
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
    .what = "return a job to an earlier version",
    .usage = "JOB --to N [--path P]",
    .about = "Returns a job's model to version N, its state after round N; the last "
             "four versions are kept.  The current round ends without its phases, "
             "but counts.  The next one starts from that version, with a fresh outer"
             " optimiser and fresh moments in the workers.  Only for jobs in rounds,"
             " without fragments or async.",
    .flags =
        (const struct args_flag[]){
            {"to", 0, ARGS_U64, &version, "N", "the version", .required = true, .max = 1e6},
            {"path", 0, ARGS_U64, &path, "P",
             "only this path, and those that share modules with it", .max = UINT32_MAX - 1,
             .given = &path_given},
            {0},
        },
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_rollback,
};
