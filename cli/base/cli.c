#include "cli/base/cli.h"

#include <time.h>

#include "common/base/moving.h"
#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/file.h"
#include "common/net/token_source.h"
#include "common/net/http/http_client.h"

#define PATH_BYTES 256 /* bytes of a call's path, which is short */
#define SLOW_MS 3000   /* a call without an answer for so long shows a message */
#define GONE_MS 60000  /* a coordinator that is away for longer is given up */

volatile sig_atomic_t cli_interrupted;

int cli_temporary(char **ret, struct err *err)
{
    const char *tmp = getenv("TMPDIR");
    char *dir = str_printf("%s/skerry-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    if (mkdtemp(dir)) {
        *ret = dir;
        return 0;
    }
    const int rc =
        err_errno(err, "making the temporary directory %s (set TMPDIR to one with space)", dir);
    mem_free(dir);
    return rc;
}

char *cli_token_path(void)
{
    char *dir = file_config_dir(), *path = dir ? file_join(dir, "token") : NULL;
    mem_free(dir);
    return path;
}

int cli_find_token(const struct cli *cli, struct token *ret, struct err *err)
{
    const char *set = getenv("SKERRY_TOKEN"), *given = cli->token ? cli->token : set;
    char *saved = NULL;

    if (cli->token && !given[0]) /* the saved one may be that of another coordinator */
        return err_set(err, -ERR_USAGE,
                       "--server is empty, expected a token or a file that holds it");
    if (!given || !given[0]) {
        saved = cli_token_path();
        if (!saved || !file_exists(saved)) {
            mem_free(saved);
            return -ERR_NOTFOUND;
        }
        given = saved;
    }
    int rc = token_source_read(given, ret, err);
    mem_free(saved);
    if (rc == 0)
        token_source_wipe(cli->token);
    return rc < 0 && given == set ? err_wrap(err, "SKERRY_TOKEN") : rc;
}

static void say_slow(void *arg, bool command)
{
    moving_clear();
    fputs(command ? "waiting for the coordinator, which answers once its disk or object "
                    "store has the data\n"
                  : "waiting for the coordinator, which has not answered for 3 s\n",
          stderr);
}

void cli_on_slow(struct cli *cli, void (*tell)(void *arg, bool command), void *arg)
{
    http_client_on_slow(cli->http, SLOW_MS, tell ? tell : say_slow, arg);
}

int cli_open(struct cli *cli, const struct token *token, struct err *err)
{
    char bearer[TOKEN_BEARER_MAX];
    token_http_url(token, cli->url);
    token_bearer(token->secret, bearer);
    int rc = http_client_new(cli->url, token->pin, bearer, &cli->http, err);
    if (rc == 0)
        http_client_heed(cli->http, &cli_interrupted);
    return rc;
}

int cli_connect(struct cli *cli, struct err *err)
{
    struct token token;
    int rc = cli_find_token(cli, &token, err);
    if (rc == -ERR_NOTFOUND)
        return err_set(err, -ERR_AUTH,
                       "no coordinator is known here; run `skerry login @FILE` with the user.token "
                       "of a coordinator's data directory, or give --server");
    if (rc < 0)
        return rc;
    if (token.role == TOKEN_ROLE_WORKER)
        return err_set(
            err, -ERR_AUTH,
            "this is a worker's token; `skerry` needs an operator's or a viewer's, such as the "
            "one that coordinatord writes to user.token in its data directory");
    cli->role = token.role;
    rc = cli_open(cli, &token, err);
    if (rc == 0)
        cli_on_slow(cli, NULL, NULL);
    return rc;
}

void cli_close(struct cli *cli)
{
    http_client_free(cli->http);
    cli->http = NULL;
    json_decref(cli->uploads);
    cli->uploads = NULL;
}

/* Another web server's or a portal's answer; of a proxy before the coordinator its errors are
 * (5xx), too, which may pass. */
static bool is_page(const struct http_response *r)
{
    return r->body != NULL && r->status < 500 && r->body[strspn(r->body, " \t\r\n")] == '<';
}

int cli_call(struct cli *cli, const char *method, const json_t *body, json_t **ret, struct err *err,
             const char *format, ...)
{
    struct http_response response = {0};
    json_error_t what;
    char path[PATH_BYTES], *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(path, sizeof path, format, ap);
    va_end(ap);
    int rc = http_call(cli->http, method, path, text, text ? strlen(text) : 0, &response, err);
    free(text);
    if (err && (rc == -ECONNREFUSED || rc == -EHOSTUNREACH || rc == -ETIMEDOUT)) {
        const struct err why = *err;
        return err_set(err, rc,
                       "%s; check that coordinatord runs there (`skerry doctor` tests the "
                       "connection), or, if it has moved, run `skerry login` with its new "
                       "user.token",
                       why.msg);
    }
    if (rc < 0)
        return rc;
    if (is_page(&response)) {
        http_response_release(&response);
        return err_set(err, -EHOSTUNREACH,
                       "%s answers with a web page, as no coordinator does: another server has the "
                       "address, or a portal on the way wants a login in a browser first",
                       cli->url);
    }
    cli->answered = true;
    rc = http_response_check(&response, err);
    if (response.status == 401) /* the server's message speaks of headers */
        rc = err_set(err, rc,
                     "the coordinator refuses this token: it was revoked, has expired, or "
                     "belongs to another coordinator; run `skerry login @FILE` with one that"
                     " is valid");
    if (rc == 0 && ret) {
        *ret = json_loadb(response.body, response.len, JSON_REJECT_DUPLICATES, &what);
        if (!*ret)
            rc = err_set(err, -ERR_FORMAT, "the coordinator's answer to %s %s is not JSON: %s",
                         method, path, what.text);
    }
    http_response_release(&response);
    return rc;
}

bool cli_may_come_back(int rc, uint64_t seen_ms)
{
    switch (rc) {
    case -ERR_AUTH:
    case -ERR_NOTFOUND:
    case -ERR_CANCELLED:
    case -ERR_LIMIT:
    case -ERR_USAGE:
    case -EINVAL:
    case -EBUSY:
    case -ENOSPC:
        return false;
    default:
        return clock_now_ms() - seen_ms <= GONE_MS;
    }
}

void cli_say_away(struct cli_away *away, const char *why)
{
    const time_t since = (time_t)((clock_wall_ms() - (clock_now_ms() - away->seen_ms)) / 1000);
    char at[32];
    struct tm tm;
    if (away->said)
        return;
    away->said = true;
    (void)strftime(at, sizeof at, "%H:%M:%S", localtime_r(&since, &tm));
    fprintf(stderr, "no answer from the coordinator since %s, waiting for it for a minute: %s\n",
            at, why);
}

void cli_say_back(struct cli_away *away)
{
    char gone[STR_HUMAN_MAX];
    if (away->said)
        fprintf(stderr, "the coordinator is back after %s\n",
                str_human_duration(clock_now_ms() - away->seen_ms, gone));
    *away = (struct cli_away){clock_now_ms(), false};
}

int cli_fail(const struct err *err)
{
    moving_clear();
    fprintf(stderr, "skerry: %s\n", err->msg[0] ? err->msg : err_text(err->code));
    if (cli_interrupted)
        return CLI_INTERRUPTED; /* whatever was interrupted */
    switch (-err->code) {
    case ERR_AUTH:
    case ECONNREFUSED:
    case ECONNRESET:
    case ETIMEDOUT:
    case EHOSTUNREACH:
        return CLI_UNREACHABLE;
    case ERR_USAGE:
        return CLI_USAGE;
    case ERR_CONFIG:
        return CLI_REFUSED;
    case ERR_CANCELLED:
        return CLI_INTERRUPTED;
    default:
        return CLI_FAILED;
    }
}

void cli_print_json(const json_t *value)
{
    json_dumpf(value, stdout, JSON_COMPACT);
    putchar('\n');
}

void cli_print_taken(json_t *value)
{
    cli_print_json(value);
    json_decref(value);
}

json_t *cli_text(const char *s)
{
    char *plain = str_dup(s);
    str_make_utf8(plain);
    json_t *text = json_string(plain);
    mem_free(plain);
    return text;
}

const char *cli_str(const json_t *object, const char *key, const char *fallback)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : fallback;
}

long long cli_int(const json_t *object, const char *key, long long fallback)
{
    const json_t *v = json_object_get(object, key);
    return json_is_integer(v) ? json_integer_value(v) : fallback;
}

double cli_num(const json_t *object, const char *key, double fallback)
{
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) ? json_number_value(v) : fallback;
}

bool cli_has(const json_t *object, const char *key)
{
    return json_is_number(json_object_get(object, key));
}

const char *cli_bytes(const json_t *object, const char *key, char out[STR_HUMAN_MAX])
{
    return str_human_bytes((uint64_t)cli_int(object, key, 0), out);
}

const char *cli_duration(const json_t *object, const char *key, char out[STR_HUMAN_MAX])
{
    return str_human_duration((uint64_t)cli_int(object, key, 0), out);
}

bool cli_job_ended(const char *state)
{
    return !strcmp(state, "done") || !strcmp(state, "failed") || !strcmp(state, "cancelled");
}

int cli_job_exit(const char *state)
{
    if (!strcmp(state, "done"))
        return CLI_OK;
    return !strcmp(state, "cancelled") ? CLI_JOB_CANCELLED : CLI_JOB_FAILED;
}

static uint64_t signalled_ms; /* when the last signal that counted came; 0: never */

static void on_signal(int signo)
{
    const uint64_t now = clock_now_ms();
    if (!cli_interrupted && signalled_ms && now - signalled_ms < SIGNAL_ONCE_MS)
        return;
    signalled_ms = now;
    cli_interrupted = signo;
}

void cli_catch_signals(void)
{
    signalled_ms = 0;
    struct sigaction action = {.sa_handler = on_signal};
    struct sigaction before;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL); /* ignored under nohup */
}

void cli_sleep_ms(unsigned ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    if (!cli_interrupted)
        nanosleep(&t, NULL);
}

static bool is_over(const char *state)
{
    return cli_job_ended(state) || !strcmp(state, "lost") || !strcmp(state, "left");
}

int cli_find(struct cli *cli, const char *what, const char *given, uint64_t *ret, struct err *err)
{
    const char *command = strcmp(what, "job") == 0 ? "status" : "workers";
    unsigned n[2] = {0, 0}; /* of those that go on, and of those that are over */
    uint64_t id[2];
    char path[32];
    json_t *answer = NULL;
    const json_t *item;
    size_t i;
    if (given[0] != '0' && str_parse_u64(given, ret) == 0)
        return 0; /* while "007" may be a name */
    (void)snprintf(path, sizeof path, "/v1/%ss", what);
    const int rc = cli_pages(cli, path, "after", &answer, err);
    if (rc < 0)
        return rc;
    json_array_foreach(json_object_get(answer, "items"), i, item)
    {
        const int over = is_over(cli_str(item, "state", ""));
        if (strcmp(cli_str(item, "name", ""), given) != 0)
            continue;
        n[over]++;
        id[over] = (uint64_t)cli_int(item, "id", 0);
    }
    json_decref(answer);
    const int over = n[0] == 0;
    if (n[over] == 0)
        return err_set(err, -ERR_NOTFOUND, "there is no %s '%s'; `skerry %s` lists them", what,
                       given, command);
    if (n[over] > 1)
        return err_set(err, -ERR_USAGE,
                       "%u %ss have the name '%s'; give the id of one, as `skerry %s` lists them",
                       n[over], what, given, command);
    *ret = id[over];
    return 0;
}

int cli_job_id(struct cli *cli, const struct args *args, uint64_t *ret, struct err *err)
{
    json_t *jobs;

    if (args->n_rest > 0)
        return cli_find(cli, "job", args->rest[0], ret, err);
    int rc = cli_call(cli, "GET", NULL, &jobs, err, "/v1/jobs");
    if (rc < 0)
        return rc;
    json_t *items = json_object_get(jobs, "items");
    size_t n = json_array_size(items);
    if (n > 0)
        *ret = (uint64_t)cli_int(json_array_get(items, n - 1), "id", 0);
    json_decref(jobs);
    return n > 0 ? 0
                 : err_set(err, -ERR_NOTFOUND, "there is no job yet; `skerry submit` starts one");
}

int cli_threads_each(int workers)
{
    const int each = cores_usable() / workers;
    return each > 0 ? each : 1;
}

char *cli_own_folder(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return str_dup("/usr/local/bin");
    path[n] = '\0';
    *strrchr(path, '/') = '\0';
    return str_dup(path);
}

int cli_pages(struct cli *cli, const char *path, const char *cursor, json_t **ret, struct err *err)
{
    const char join = strchr(path, '?') ? '&' : '?';
    json_t *items = json_array();
    json_int_t at = 0;
    int rc;
    do {
        json_t *page = NULL;
        rc = cli_call(cli, "GET", NULL, &page, err, "%s%c%s=%lld", path, join, cursor,
                      (long long)at);
        json_array_extend(items, json_object_get(page, "items"));
        at = json_integer_value(json_object_get(page, "next"));
        json_decref(page);
    } while (rc == 0 && at > 0);
    if (rc == 0)
        *ret = json_pack("{s:O}", "items", items);
    json_decref(items);
    return rc;
}
