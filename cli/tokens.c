/* skerry tokens, revoke: access to the swarm, and its limits. */

#include <signal.h>

#include "cli/command.h"
#include "cli/base/table.h"
#include "cli/show/show.h"
#include "common/net/token.h"

static const char *role, *name, *change;
static uint64_t life_ms, uses, workers, jobs;
static double budget;
static bool has_uses, has_workers, has_jobs, has_budget, has_life;

static void put_limit(struct table *t, const json_t *token, const char *used, const char *max)
{
    if (strcmp(cli_str(token, "role", ""), token_role_name(TOKEN_ROLE_WORKER)) != 0)
        table_cell(t, TABLE_NONE);
    else if (cli_has(token, max))
        table_cell(t, "%lld of %lld", cli_int(token, used, 0), cli_int(token, max, 0));
    else
        table_cell(t, "%lld", cli_int(token, used, 0));
}

/* Writes the dollars that an operator's token has spent, and its budget. */
static void put_budget(struct table *t, const json_t *token)
{
    char spent[STR_HUMAN_MAX], of[STR_HUMAN_MAX];
    const double cost = cli_num(token, "cost", 0);
    if (cli_has(token, "budget"))
        table_cell(t, "%s of %s", show_dollars(cost, spent),
                   show_dollars(cli_num(token, "budget", 0), of));
    else if (cost > 0)
        table_cell(t, "%s", show_dollars(cost, spent));
    else
        table_cell(t, TABLE_NONE);
}

static void print_tokens(const json_t *items)
{
    static const char *const names[] = {"name",  "role",    ">id",           "state",
                                        ">ends", ">joined", ">workers here", ">cost"};
    struct table t;
    const json_t *token;
    size_t i;
    table_init(&t, names, sizeof names / sizeof names[0]);
    json_array_foreach(items, i, token)
    {
        char left[STR_HUMAN_MAX];
        table_cell(&t, "%s", cli_str(token, "name", ""));
        table_cell(&t, "%s", cli_str(token, "role", ""));
        table_cell(&t, "%lld", cli_int(token, "id", 0));
        table_cell(&t, "%s", cli_str(token, "state", ""));
        if (cli_has(token, "left_ms") && !strcmp(cli_str(token, "state", ""), "live"))
            table_cell(&t, "in %s", cli_duration(token, "left_ms", left));
        else
            table_cell(&t, TABLE_NONE);
        put_limit(&t, token, "uses", "uses_max");
        put_limit(&t, token, "workers_here", "workers_max");
        put_budget(&t, token);
    }
    table_print(&t, stdout);
    table_release(&t);
}

static int list(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    int rc = cli_call(cli, "GET", NULL, &answer, err, "/v1/tokens");
    if (rc == 0 && cli->json)
        cli_print_json(answer);
    else if (rc == 0)
        print_tokens(json_object_get(answer, "items"));
    json_decref(answer);
    return rc;
}

static void put_count(json_t *order, const char *key, uint64_t n)
{
    if (n > 0)
        json_object_set_new(order, key, json_integer((json_int_t)n));
}

/* Nobody but the output has the secret of a token that was made. */
static int check_shown(const json_t *answer, struct err *err)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    const char *given = cli_str(answer, "name", "");
    return err_set(err, -EIO,
                   "the token %s was made, but could not be shown, as standard output cannot be "
                   "written%s%s: revoke it with `skerry revoke %s`, and make another",
                   given, errno ? ": " : "", errno ? strerror(errno) : "", given);
}

static int make(struct cli *cli, struct err *err)
{
    json_t *order = json_object(), *answer = NULL;
    (void)signal(SIGPIPE, SIG_IGN); /* see check_shown() */
    json_object_set_new(order, "role", cli_text(role));
    if (name)
        json_object_set_new(order, "name", cli_text(name));
    put_count(order, "life_s", (life_ms + 999) / 1000);
    put_count(order, "uses", uses);
    put_count(order, "workers", workers);
    put_count(order, "jobs", jobs);
    if (budget > 0)
        json_object_set_new(order, "budget", json_real(budget));
    int rc = cli_call(cli, "POST", order, &answer, err, "/v1/tokens");
    json_decref(order);
    if (rc == 0 && cli->json)
        cli_print_json(answer);
    else if (rc == 0)
        puts(cli_str(answer, "token", "")); /* alone: it goes into a file */
    if (rc == 0)
        rc = check_shown(answer, err);
    json_decref(answer);
    return rc;
}

/* Finds a token by name, else by id; live ones first, because older ones may have had the name. */
static int find_token(struct cli *cli, const char *given, bool revoked_too, uint64_t *ret,
                      struct err *err)
{
    json_t *answer = NULL;
    const json_t *token;
    size_t i;
    uint64_t id = 0, wanted = 0, old = 0;
    int rc = cli_call(cli, "GET", NULL, &answer, err, "/v1/tokens");
    if (rc < 0)
        return rc;
    (void)str_parse_u64(given, &wanted); /* a name */
    json_array_foreach(json_object_get(answer, "items"), i, token)
    {
        const uint64_t its = (uint64_t)cli_int(token, "id", 0);
        const bool revoked = strcmp(cli_str(token, "state", ""), "revoked") == 0;
        const bool named = strcmp(cli_str(token, "name", ""), given) == 0;
        old = named && revoked ? its : old;
        if ((named && !revoked) || (id == 0 && its == wanted))
            id = its;
    }
    json_decref(answer);
    if (id == 0 && old != 0 && !revoked_too)
        return err_set(err, -ERR_STALE, "the token '%s' was revoked before", given);
    *ret = id != 0 ? id : old;
    if (*ret == 0)
        return err_set(err, -ERR_NOTFOUND,
                       "there is no token '%s'; `skerry tokens` lists them, and a worker is given "
                       "as worker:NAME",
                       given);
    return 0;
}

static void print_bounds(const char *given, const json_t *token)
{
    static const struct {
        const char *key, *what;
    } counts[] = {{"uses_max", "first join"}, {"workers_max", "worker"}, {"jobs_max", "job"}};
    char text[STR_HUMAN_MAX];
    const char *before = " allows";
    printf("the token %s", given);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const uint64_t n = (uint64_t)cli_int(token, counts[i].key, 0);
        if (n == 0)
            continue;
        printf("%s %" PRIu64 " %s%s%s", before, n, counts[i].what, str_plural(n),
               i > 0 ? " at once" : "");
        before = ",";
    }
    if (cli_has(token, "budget"))
        printf("%s a budget of %s now", before, show_dollars(cli_num(token, "budget", 0), text));
    else
        printf("%s", *before == ',' ? " now" : " has no bounds now");
    if (cli_has(token, "left_ms") && cli_int(token, "left_ms", 0) <= 0)
        printf("; it has ended, and --expires gives it more time");
    else if (cli_has(token, "left_ms"))
        printf("; it ends in %s", cli_duration(token, "left_ms", text));
    puts("");
}

static int adjust(struct cli *cli, struct err *err)
{
    json_t *answer = NULL;
    uint64_t id = 0;
    int rc = find_token(cli, change, true, &id, err);
    if (rc < 0)
        return rc;
    json_t *order = json_object();
    if (has_uses)
        json_object_set_new(order, "uses", json_integer((json_int_t)uses));
    if (has_workers)
        json_object_set_new(order, "workers", json_integer((json_int_t)workers));
    if (has_jobs)
        json_object_set_new(order, "jobs", json_integer((json_int_t)jobs));
    if (has_budget)
        json_object_set_new(order, "budget", json_real(budget));
    if (has_life)
        json_object_set_new(order, "life_s", json_integer((json_int_t)((life_ms + 999) / 1000)));
    rc = cli_call(cli, "POST", order, &answer, err, "/v1/tokens/%" PRIu64 "/adjust", id);
    json_decref(order);
    if (rc == 0)
        cli->json ? cli_print_json(answer) : print_bounds(change, answer);
    json_decref(answer);
    return rc;
}

static int run_tokens(struct cli *cli, const struct args *args, struct err *err)
{
    const bool bounds = has_uses || has_workers || has_jobs || has_budget || has_life;
    int rc = 0;
    if (role && token_role_parse(role) == TOKEN_ROLE_NONE)
        rc =
            err_set(err, -ERR_USAGE, "--new is '%.60s', expected worker, operator or viewer", role);
    else if (role && has_life && life_ms < 1000)
        rc = err_set(err, -ERR_USAGE,
                     "--expires of a new token is %gs, expected a time from 1s to 36500d",
                     (double)life_ms / 1e3);
    else if (role && ((has_uses && !uses) || (has_workers && !workers) || (has_jobs && !jobs) ||
                      (has_budget && !(budget > 0))))
        rc = err_set(
            err, -ERR_USAGE,
            "--%s of a new token is 0, which would allow nothing; leave it out for no bound",
            has_uses && !uses         ? "uses"
            : has_workers && !workers ? "workers"
            : has_jobs && !jobs       ? "jobs"
                                      : "budget");
    else if (role && change)
        rc = err_set(err, -ERR_USAGE,
                     "--new makes a token and --change changes one: give only one of them");
    else if (change && name)
        rc = err_set(err, -ERR_USAGE, "--name belongs to a new token and cannot be changed");
    else if (change && !bounds)
        rc = err_set(err, -ERR_USAGE,
                     "say what to change: --expires, --uses, --workers, --jobs or --budget");
    else if (!role && !change && (name || bounds))
        rc = err_set(err, -ERR_USAGE,
                     "--name, --expires, --uses, --workers, --jobs and --budget need --new "
                     "worker, operator or viewer, or, all but --name, --change NAME");
    if (rc < 0)
        return rc;
    return role ? make(cli, err) : change ? adjust(cli, err) : list(cli, err);
}

static const struct args_flag tokens_flags[] = {
    {"new", 0, ARGS_STR, &role, "ROLE",
     "make a token and print it: worker (may join), viewer (may look), "
     "operator (may do everything)"},
    {"change", 0, ARGS_STR, &change, "NAME|ID", "change a token's bounds; 0: no bound"},
    {"name", 0, ARGS_STR, &name, "NAME", "name of the token (default: its role and number)"},
    {"expires", 0, ARGS_DURATION_MS, &life_ms, "TIME",
     "how long it is valid from now on, such as 24h or 30d (default: for ever)",
     .max = 36500 * 8.64e7, .given = &has_life},
    {"uses", 0, ARGS_U64, &uses, "N", "how many workers may first join with it (default: any)",
     .max = UINT32_MAX, .given = &has_uses},
    {"workers", 0, ARGS_U64, &workers, "N",
     "how many of its workers may be connected at once (default: any)", .max = UINT32_MAX,
     .given = &has_workers},
    {"jobs", 0, ARGS_U64, &jobs, "N",
     "operator: how many of its jobs may run at once (default: any)", .max = UINT32_MAX,
     .given = &has_jobs},
    {"budget", 0, ARGS_DOUBLE, &budget, "DOLLARS",
     "operator: what its jobs may cost together; then they wait (default: "
     "any)",
     .max = 1e9, .given = &has_budget},
    {0},
};

const struct command command_tokens = {
    .name = "tokens",
    .what = "list the tokens, make one, or change its bounds",
    .usage = "[--new worker|viewer|operator | --change NAME|ID]",
    .about = "Lists the tokens, makes one, which is printed only once, or changes "
             "the bounds of one.  A worker needs its token only to join the first "
             "time; afterwards its own key identifies it.",
    .flags = tokens_flags,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_tokens,
};

/* ---- revoke -------------------------------------------------------------- */

static int run_revoke(struct cli *cli, const struct args *args, struct err *err)
{
    static const char worker[] = "worker:";
    const char *given = args->rest[0];
    const char *what = str_starts(given, worker) ? "workers" : "tokens";
    json_t *answer = NULL;
    uint64_t id = 0;
    int rc;
    if (str_starts(given, worker))
        rc = cli_find(cli, "worker", given + strlen(worker), &id, err);
    else
        rc = find_token(cli, given, false, &id, err);
    if (rc < 0)
        return rc;
    rc = cli_call(cli, "POST", NULL, &answer, err, "/v1/%s/%" PRIu64 "/revoke", what, id);
    if (rc == 0 && cli->json)
        cli_print_json(answer);
    else if (rc == 0)
        printf("%s is revoked\n", given);
    json_decref(answer);
    return rc;
}

const struct command command_revoke = {
    .name = "revoke",
    .what = "revoke a token with all that joined by it, or a worker's key",
    .usage = "NAME|ID|worker:NAME|worker:ID",
    .about = "Revokes a token at once and for good, closing the connections of all "
             "that use it and of all workers that joined with it; or one worker, "
             "which can join again under a new key with a valid token.",
    .rest_min = 1,
    .rest_max = 1,
    .needs = COMMAND_CONNECT | COMMAND_JSON,
    .run = run_revoke,
};
