/* skerry trace: the activity of each device of an island in one step. */
#include "common/base/base.h"
#include "cli/command.h"
#include "common/base/file.h"
#include "common/net/http/http_client.h"

static struct {
    const char *out, *svg;
} o;

static const struct args_flag flags[] = {
    {"out", 'o', ARGS_STR, &o.out, "FILE",
     "file for the events, for ui.perfetto.dev or chrome://tracing"},
    {"svg", 0, ARGS_STR, &o.svg, "FILE", "file for the picture that the status page shows"},
    {0},
};

/* Saves an answer of the coordinator unchanged in a file; NULL: writes to stdout. */
static int save(struct cli *cli, uint64_t job, const char *what, const char *file, struct err *err)
{
    struct http_response answer = {0};
    char path[64];
    (void)snprintf(path, sizeof path, "/v1/jobs/%" PRIu64 "/%s", job, what);
    int rc = http_call(cli->http, "GET", path, NULL, 0, &answer, err);
    if (rc == 0)
        rc = http_response_check(&answer, err);
    if (rc == 0 && file)
        rc = file_write_atomic(file, answer.body, answer.len, 0644, err);
    else if (rc == 0)
        puts(answer.body);
    http_response_release(&answer);
    return rc;
}

static int run(struct cli *cli, const struct args *args, struct err *err)
{
    uint64_t job;
    int rc = cli_job_id(cli, args, &job, err);
    if (rc == 0 && o.svg)
        rc = save(cli, job, "trace.svg", o.svg, err);
    if (rc == 0 && (o.out || !o.svg))
        rc = save(cli, job, "trace", o.out, err);
    return rc;
}

const struct command command_trace = {
    .name = "trace",
    .what = "show what each device of a worker did in a step",
    .usage = "[JOB]",
    .about = "Shows what the devices of an island did in one step of the job's "
             "newest phase, as events of a timeline or as a picture.  Workers with "
             "one device make no trace.",
    .flags = flags,
    .rest_max = 1,
    .needs = COMMAND_CONNECT,
    .run = run,
};
