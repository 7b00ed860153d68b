/* skerry trace: the activity of each device of an island in one step, or where the time of the last
 * rounds went. */
#include "common/base/base.h"
#include "cli/command.h"
#include "cli/base/table.h"
#include "common/base/file.h"
#include "common/net/http/http_client.h"

static struct {
    const char *out, *svg;
    uint64_t rounds;
} o;

static const struct args_flag flags[] = {
    {"out", 'o', ARGS_STR, &o.out, "FILE",
     "file for the events, for ui.perfetto.dev or chrome://tracing"},
    {"svg", 0, ARGS_STR, &o.svg, "FILE", "file for the picture that the status page shows"},
    {"rounds", 0, ARGS_U64, &o.rounds, "N",
     "show where the time of the last N rounds went instead, and which worker was the last",
     .min = 1, .max = 2000},
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

static const char *worker_name(const json_t *workers, long long id)
{
    const json_t *w;
    size_t i;
    json_array_foreach(workers, i, w)
    {
        if (cli_int(w, "id", 0) == id)
            return cli_str(w, "name", "");
    }
    return "";
}

static void add_round(struct table *t, const json_t *round, const json_t *workers, bool paths)
{
    static const char *const parts[] = {"begin", "steps", "network", "rest", "fold"};
    const json_t *of = json_object_get(round, "parts");
    const long long worker = cli_int(of, "worker", 0);
    table_cell(t, "%lld", cli_int(round, "round", 0));
    if (paths)
        table_cell(t, "%lld", cli_int(round, "path", 0));
    else
        table_cell(t, TABLE_NONE);
    table_real(t, cli_num(round, "seconds", NAN), 2);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        table_real(t, cli_num(of, parts[i], NAN), 2);
    if (worker)
        table_cell(t, "%lld (%s)", worker, worker_name(workers, worker));
    else
        table_cell(t, TABLE_NONE);
    table_real(t, cli_num(of, "behind", NAN), 2);
}

static int show_rounds(struct cli *cli, uint64_t id, struct err *err)
{
    static const char *const names[] = {">round",   ">path", ">seconds", ">begin",      ">steps",
                                        ">network", ">rest", ">fold",    "last worker", ">behind"};
    json_t *job = NULL, *workers = NULL;
    struct table t;
    size_t i;
    int rc = cli_call(cli, "GET", NULL, &job, err,
                      "/v1/jobs/%" PRIu64 "?history=%" PRIu64 "&samples=0", id, o.rounds);
    if (rc == 0)
        rc = cli_pages(cli, "/v1/workers", "after", &workers, err);
    const json_t *rounds = json_object_get(job, "history"), *round;
    const bool paths = json_array_size(json_object_get(job, "path_list")) > 1;
    if (rc == 0 && json_array_size(rounds) == 0) {
        puts("no round has ended");
    } else if (rc == 0) {
        table_init(&t, names, sizeof names / sizeof *names);
        json_array_foreach(rounds, i, round)
            add_round(&t, round, json_object_get(workers, "items"), paths);
        table_print(&t, stdout);
        table_release(&t);
    }
    json_decref(job);
    json_decref(workers);
    return rc;
}

static int run(struct cli *cli, const struct args *args, struct err *err)
{
    uint64_t job;
    int rc = cli_job_id(cli, args, &job, err);
    if (rc == 0 && o.rounds && (o.svg || o.out))
        return err_set(err, -ERR_USAGE, "--rounds prints a table: leave out --out and --svg");
    if (rc == 0 && o.rounds)
        return show_rounds(cli, job, err);
    if (rc == 0 && o.svg)
        rc = save(cli, job, "trace.svg", o.svg, err);
    if (rc == 0 && (o.out || !o.svg))
        rc = save(cli, job, "trace", o.out, err);
    return rc;
}

const struct command command_trace = {
    .name = "trace",
    .what = "show where the time of a step or of the last rounds went",
    .usage = "[JOB] [--rounds N]",
    .about = "Shows what the devices of an island did in one step of the job's "
             "newest phase, as events of a timeline or as a picture.  Workers with "
             "one device make no trace.  With --rounds, of each of the last rounds: "
             "the seconds until its last phase began, those of that phase (steps, "
             "waiting for the network during them, and the rest: fetching, coding, "
             "sending), of the outer step after it, and how far the phase's worker "
             "was behind the others.",
    .flags = flags,
    .rest_max = 1,
    .needs = COMMAND_CONNECT,
    .run = run,
};
