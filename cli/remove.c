/* skerry remove: an ended job goes, with all that was kept of it. */
#include "cli/command.h"

#include <unistd.h>

static bool remove_yes;

/* Asks at a terminal; elsewhere nobody can answer. */
static int confirmed(const char *what, struct err *err)
{
    char line[16] = "";
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return err_set(err, -ERR_USAGE, "%s: give --yes to remove it for good", what);
    fprintf(stderr, "%s.\nRemove it for good? [y/N] ", what);
    if (fgets(line, sizeof line, stdin) == NULL || (line[0] != 'y' && line[0] != 'Y'))
        return err_set(err, -ERR_CANCELLED, "nothing was removed");
    return 0;
}

static int ask(struct cli *cli, uint64_t id, bool dry_run, json_t **ret, struct err *err)
{
    json_t *body = json_pack("{s:b}", "dry_run", dry_run);
    const int rc = cli_call(cli, "POST", body, ret, err, "/v1/jobs/%" PRIu64 "/remove", id);
    json_decref(body);
    return rc;
}

/* What would go is shown before anybody is asked. */
static int look(struct cli *cli, uint64_t id, struct err *err)
{
    char bytes[STR_HUMAN_MAX];
    json_t *job = NULL;
    int rc = ask(cli, id, true, &job, err);
    if (rc < 0)
        return rc;
    const char *reason = cli_str(job, "reason", "");
    char *what = str_printf("job %" PRIu64 " (%s) is %s%s%s; its record and up to %s of versions, "
                            "averages and samples go",
                            id, cli_str(job, "name", "?"), cli_str(job, "state", "?"),
                            *reason ? ": " : "", reason, cli_bytes(job, "bytes", bytes));
    rc = confirmed(what, err);
    mem_free(what);
    json_decref(job);
    return rc;
}

static int run_remove(struct cli *cli, const struct args *args, struct err *err)
{
    char bytes[STR_HUMAN_MAX];
    json_t *job = NULL;
    uint64_t id = 0;
    int rc = cli_job_id(cli, args, &id, err);
    if (rc == 0 && !remove_yes)
        rc = look(cli, id, err);
    if (rc == 0)
        rc = ask(cli, id, false, &job, err);
    if (rc < 0)
        return rc;
    if (cli->json)
        cli_print_json(job);
    else
        printf("job %" PRIu64 " (%s) is removed: up to %s are deleted now, and what was uploaded "
               "with it a day after its last use\n",
               id, cli_str(job, "name", "?"), cli_bytes(job, "bytes", bytes));
    json_decref(job);
    return CLI_OK;
}

const struct command command_remove = {
    .name = "remove",
    .what = "remove an ended job and its files",
    .usage = "JOB [--yes]",
    .about = "Removes a job that is done, failed or cancelled, with its versions, "
             "averages, samples, metrics and tasks: export first what you want to "
             "keep.  At a terminal it shows what goes, and asks.",
    .flags =
        (const struct args_flag[]){
            {"yes", 0, ARGS_BOOL, &remove_yes, NULL, "do not ask"},
            {0},
        },
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_remove,
};
