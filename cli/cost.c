/* skerry cost, adjust: the cost of jobs, and their shares of the workers. */
#include "cli/command.h"
#include "cli/base/table.h"
#include "cli/show/show.h"

static double real(const json_t *o, const char *key)
{
    return cli_num(o, key, NAN);
}

static void line(const char *what, double x, const char *more)
{
    char text[STR_HUMAN_MAX];
    if (!isnan(x))
        printf("  %-18s %10s%s\n", what, show_dollars(x, text), more);
}

static void print_job(const json_t *job)
{
    const json_t *cost = json_object_get(job, "cost"), *quota = json_object_get(job, "swarm");
    const long long workers = cli_int(cost, "workers", 0);
    const long long free_ones = cli_int(cost, "workers_without_price", 0);
    char total[STR_HUMAN_MAX], more[96], eta[STR_HUMAN_MAX];
    printf("job %lld, %s: %s so far\n", cli_int(job, "id", 0), cli_str(job, "name", "?"),
           show_dollars(real(cost, "total"), total));
    line("work", real(cost, "work"), "");
    line("waiting", real(cost, "waiting"), "");
    line("egress", real(cost, "egress"), "");
    if (cli_has(cost, "per_million_tokens"))
        line("a million tokens", real(cost, "per_million_tokens"), "");
    else
        line("a million samples", real(cost, "per_million_samples"), "");
    (void)snprintf(more, sizeof more, " an hour, %lld worker%s", workers,
                   str_plural((uint64_t)workers));
    if (workers > 0)
        line("now", real(cost, "per_hour"), more);
    (void)snprintf(more, sizeof more, " more, in %s",
                   cli_has(job, "eta_ms") ? cli_duration(job, "eta_ms", eta) : "?");
    line("until the end", real(cost, "until_end"), more);
    line("budget", real(quota, "budget"), "");
    if (workers == 0 && real(cost, "total") == 0)
        printf("no prices are set: use workerd --price and coordinatord "
               "--egress-price\n");
    if (free_ones > 0)
        printf("counted as free, without a price (workerd --price): %lld of %lld "
               "worker%s\n",
               free_ones, workers, str_plural((uint64_t)workers));
}

static void print_all(const json_t *status)
{
    static const char *const names[] = {">job", "name", "state", ">cost"};
    const json_t *job, *blobs = json_object_get(status, "blob_store");
    const double idle = cli_num(json_object_get(status, "workers_count"), "idle_per_hour", 0);
    char text[STR_HUMAN_MAX];
    struct table t;
    size_t i;
    if (json_array_size(json_object_get(status, "jobs")) == 0)
        puts("no jobs; `skerry submit job.yaml` starts one");
    table_init(&t, names, sizeof names / sizeof names[0]);
    json_array_foreach(json_object_get(status, "jobs"), i, job)
    {
        table_cell(&t, "%lld", cli_int(job, "id", 0));
        table_cell(&t, "%s", cli_str(job, "name", ""));
        table_cell(&t, "%s", show_state(job));
        table_cell(&t, "%s", show_dollars(cli_num(job, "dollars", 0), text));
    }
    if (t.n_cells > 0)
        table_print(&t, stdout);
    table_release(&t);
    if (cli_num(blobs, "request_dollars", 0) > 0)
        printf("requests to the store: %s\n",
               show_dollars(cli_num(blobs, "request_dollars", 0), text));
    if (idle > 0)
        printf("workers without a task now: %s an hour\n", show_dollars(idle, text));
}

/* The same for programs. */
static void print_all_json(const json_t *status)
{
    json_t *items = json_array();
    const json_t *job;
    size_t i;
    json_array_foreach(json_object_get(status, "jobs"), i, job) json_array_append_new(
        items, json_pack("{s:O*,s:O*,s:O*,s:O*}", "id", json_object_get(job, "id"), "name",
                         json_object_get(job, "name"), "state", json_object_get(job, "state"),
                         "dollars", json_object_get(job, "dollars")));
    cli_print_taken(json_pack(
        "{s:o,s:O?,s:O?}", "items", items, "request_dollars",
        json_object_get(json_object_get(status, "blob_store"), "request_dollars"), "idle_per_hour",
        json_object_get(json_object_get(status, "workers_count"), "idle_per_hour")));
}

static int run_cost(struct cli *cli, const struct args *args, struct err *err)
{
    json_t *answer = NULL;
    uint64_t id = 0;
    int rc = args->n_rest > 0 ? cli_job_id(cli, args, &id, err) : 0;
    if (rc == 0)
        rc = id ? cli_call(cli, "GET", NULL, &answer, err, "/v1/jobs/%" PRIu64, id)
                : cli_call(cli, "GET", NULL, &answer, err, "/v1/status");
    if (rc == 0 && cli->json && id)
        cli_print_json(json_object_get(answer, "cost"));
    else if (rc == 0 && cli->json)
        print_all_json(answer);
    else if (rc == 0 && id)
        print_job(answer);
    else if (rc == 0)
        print_all(answer);
    json_decref(answer);
    return rc;
}

const struct command command_cost = {
    .name = "cost",
    .what = "show what jobs have cost, and will cost",
    .usage = "[JOB]",
    .about = "Prints what a job's worker time and downloads have cost, by the "
             "workers' prices (workerd --price) and coordinatord's --egress-price; "
             "without a job the sums of all jobs.",
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_cost,
};

/* ---- adjust -------------------------------------------------------------- */

static int priority;
static double share, budget;

/* Says what becomes of a job that has cost its new budget already. */
static void say_spent(struct cli *cli, uint64_t id, double bound)
{
    json_t *job = NULL;
    char spent[STR_HUMAN_MAX];
    if (cli_call(cli, "GET", NULL, &job, NULL, "/v1/jobs/%" PRIu64, id) < 0)
        return; /* the budget is set all the same */
    const json_t *cost = json_object_get(job, "cost");
    const double so_far = cli_num(cost, "work", 0) + cli_num(cost, "waiting", 0);
    if (so_far >= bound)
        printf("its workers have cost %s already: tasks that run are finished, and no others are "
               "given out until the budget is raised\n",
               show_dollars(so_far, spent));
    json_decref(job);
}

static bool has_priority, has_share, has_budget;

static int run_adjust(struct cli *cli, const struct args *args, struct err *err)
{
    json_t *order, *answer = NULL;
    char text[STR_HUMAN_MAX];
    uint64_t id = 0;
    if (!has_priority && !has_share && !has_budget)
        return err_set(err, -ERR_USAGE, "say what to change: --priority, --share or --budget");
    int rc = cli_job_id(cli, args, &id, err);
    if (rc < 0)
        return rc;
    order = json_object();
    if (has_priority)
        json_object_set_new(order, "priority", json_integer(priority));
    if (has_share)
        json_object_set_new(order, "share", json_real(share));
    if (has_budget)
        json_object_set_new(order, "budget", json_real(budget));
    rc = cli_call(cli, "POST", order, &answer, err, "/v1/jobs/%" PRIu64 "/adjust", id);
    json_decref(order);
    if (rc == 0 && cli->json)
        cli_print_json(answer);
    else if (rc == 0)
        printf("job %" PRIu64 " has priority %lld, share %g and %s%s now\n", id,
               cli_int(answer, "priority", 0), real(answer, "share"),
               cli_has(answer, "budget") ? "a budget of " : "no budget",
               cli_has(answer, "budget") ? show_dollars(real(answer, "budget"), text) : "");
    if (rc == 0 && !cli->json && has_budget && budget > 0)
        say_spent(cli, id, budget);
    json_decref(answer);
    return rc;
}

const struct command command_adjust = {
    .name = "adjust",
    .what = "change a job's priority, share of the workers or budget",
    .usage = "JOB [--priority N] [--share X] [--budget DOLLARS]",
    .about = "Changes a job's priority, share of the workers or budget, from the "
             "next task on.  Its rounds stay as they are, since the learning rate goes by "
             "them: to train on, export its model and submit a job whose model.warm_start is "
             "that folder.",
    .flags =
        (const struct args_flag[]){
            {"priority", 0, ARGS_INT, &priority, "N",
             "workers serve the job with the highest priority that has work", .min = -100,
             .max = 100, .given = &has_priority},
            {"share", 0, ARGS_DOUBLE, &share, "X",
             "its part of the workers among jobs of its priority", .min = 0.01, .max = 100,
             .given = &has_share},
            {"budget", 0, ARGS_DOUBLE, &budget, "DOLLARS",
             "dollars that its workers' time may cost, 0: any", .max = 1e9, .given = &has_budget},
            {0},
        },
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_adjust,
};
