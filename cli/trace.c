/* skerry trace: what each device of an island did in a step. */
#include "common/base/base.h"
#include "cli/command.h"
#include "cli/gantt_svg.h"
#include "common/base/buf.h"
#include "common/base/file.h"

#define SVG_MAX (4u << 20)

static struct {
    const char *out, *svg;
} o;

static const struct args_flag flags[] = {
    {"out", 'o', ARGS_STR, &o.out, "FILE",
     "write the events here, for ui.perfetto.dev or chrome://tracing"},
    {"svg", 0, ARGS_STR, &o.svg, "FILE", "write a picture here"},
    {0},
};

static int write_svg(const json_t *trace, uint64_t job, struct err *err)
{
    struct buf svg;
    char title[64];
    (void)snprintf(title, sizeof title, "job %" PRIu64 ": one step, device by device", job);
    buf_init(&svg, SVG_MAX);
    int rc = gantt_svg(trace, title, &svg, err);
    if (rc == 0)
        rc = file_write_atomic(o.svg, svg.data, svg.len, 0644, err);
    buf_release(&svg);
    return rc;
}

static int run(struct cli *cli, const struct args *args, struct err *err)
{
    uint64_t job;
    json_t *trace = NULL;
    int rc = cli_job_id(cli, args, &job, err);
    if (rc == 0)
        rc = cli_call(cli, "GET", NULL, &trace, err, "/v1/jobs/%" PRIu64 "/trace", job);
    if (rc == 0 && o.svg)
        rc = write_svg(trace, job, err);
    if (rc == 0 && (o.out || !o.svg)) {
        char *text = json_dumps(trace, JSON_COMPACT | JSON_REAL_PRECISION(9));
        rc = !text   ? err_set(err, -ENOMEM, "no memory for the trace")
             : o.out ? file_write_atomic(o.out, text, strlen(text), 0644, err)
                     : (puts(text), 0);
        free(text);
    }
    json_decref(trace);
    return rc;
}

const struct command command_trace = {
    .name = "trace",
    .what = "show what each device of a worker did in a step",
    .usage = "[JOB]",
    .about = "What the devices of an island did in one step of the job's newest phase: the events "
             "of a timeline, or a picture of it.  Workers of one device leave no trace.",
    .flags = flags,
    .rest_max = 1,
    .needs = COMMAND_CONNECT,
    .run = run,
};
