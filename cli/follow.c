#include "cli/follow.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/show.h"
#include "common/base/clock.h"

#define POLL_MS 400
#define GONE_MS 60000 /* a coordinator that is away for longer ends the following */
#define BAR 20

struct follow {
    struct cli *cli;
    bool terminal;
    int64_t round;     /* last one printed where there is no terminal */
    char state[32];    /* last seen */
    char waiting[256]; /* last printed where there is no terminal */
    uint64_t printed_ms;
};

/* The first thing that the job waits for, as a sentence; "" when nothing. */
static void waiting_text(const json_t *job, char *out, size_t cap)
{
    const json_t *list = json_object_get(job, "waiting_for");
    const json_t *first = json_array_get(list, 0);
    char until[STR_HUMAN_MAX];

    out[0] = '\0';
    if (!first)
        return;
    long long ms = cli_int(first, "until_ms", -1);
    int n = snprintf(out, cap, "%s: %s", cli_str(first, "what", "?"), cli_str(first, "why", ""));
    if (ms >= 0 && n > 0 && (size_t)n < cap)
        n += snprintf(out + n, cap - (size_t)n, " (at most %s more)",
                      str_human_duration((uint64_t)ms, until));
    if (json_array_size(list) > 1 && n > 0 && (size_t)n < cap)
        snprintf(out + n, cap - (size_t)n, ", and %zu more", json_array_size(list) - 1);
}

static const char *fill_bar(double share, char bar[BAR + 1])
{
    for (int i = 0; i < BAR; i++)
        bar[i] = (double)i < share * BAR ? '#' : '.';
    bar[BAR] = '\0';
    return bar;
}

/* A state before or between the rounds: its tasks are the progress. */
static int describe_stage(const json_t *job, char *out, size_t cap)
{
    const json_t *stage = json_object_get(job, "stage");
    long long total = cli_int(stage, "total", 0), round = cli_int(job, "round", 0);
    char name[96], bar[BAR + 1], begun[64] = "";
    (void)show_stage(job, name, sizeof name);
    if (round > 0) /* the data are cut anew in mid-run */
        snprintf(begun, sizeof begun, "  round %lld/%lld", round, cli_int(job, "rounds", 0));
    if (total > 1)
        return snprintf(out, cap, "[%s] %s%s",
                        fill_bar((double)cli_int(stage, "done", 0) / (double)total, bar), name,
                        begun);
    return snprintf(out, cap, "%s%s%s%s", cli_str(job, "state", "?"), begun,
                    *cli_str(job, "reason", "") ? ": " : "", cli_str(job, "reason", ""));
}

static int describe(const json_t *job, char *out, size_t cap)
{
    char bar[BAR + 1], eta[STR_HUMAN_MAX], loss[32] = "", speed[48] = "", left[64] = "";
    char of[32] = "";
    long long round = cli_int(job, "round", 0), rounds = cli_int(job, "rounds", 0);
    long long step = cli_int(job, "step", 0), steps = cli_int(job, "total_steps", 0);
    double share =
        steps ? (double)step / (double)steps : (rounds ? (double)round / (double)rounds : 0.0);
    if (cli_has(job, "loss"))
        snprintf(loss, sizeof loss, "  loss %.4f", cli_num(job, "loss", 0.0));
    if (cli_num(job, "images_per_s", 0.0) > 0.0)
        snprintf(speed, sizeof speed, "  %.0f %s/s", cli_num(job, "images_per_s", 0.0),
                 show_unit(job));
    if (cli_has(job, "eta_ms"))
        snprintf(left, sizeof left, "  ETA %s", cli_duration(job, "eta_ms", eta));
    const char *state = cli_str(job, "state", "?");
    if (steps)
        snprintf(of, sizeof of, "/%lld", steps);
    if (!strcmp(state, "running"))
        return snprintf(out, cap, "[%s] round %lld/%lld  step %lld%s%s%s%s", fill_bar(share, bar),
                        round, rounds, step, of, loss, speed, left);
    if (cli_job_ended(state))
        return snprintf(out, cap, "%s after round %lld/%lld%s%s%s", state, round, rounds, loss,
                        *cli_str(job, "reason", "") ? ": " : "", cli_str(job, "reason", ""));
    return describe_stage(job, out, cap);
}

static unsigned columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 100;
}

/* Redraws two lines in place: progress, and what is waited for. */
static void draw(struct follow *f, const json_t *job)
{
    char line[512], waiting[256];
    unsigned width = columns() - 1;

    describe(job, line, sizeof line);
    waiting_text(job, waiting, sizeof waiting);
    if (f->printed_ms)
        fputs("\033[1A", stderr);
    fprintf(stderr, "\r\033[K%.*s\n\033[K%s%.*s\r", (int)width, line,
            waiting[0] ? "waits for " : "", waiting[0] ? (int)(width > 10 ? width - 10 : 0) : 0,
            waiting);
    fflush(stderr);
    f->printed_ms = clock_now_ms();
}

/* Without a terminal: a line a round, a change of state, a new reason to wait. */
static void print(struct follow *f, const json_t *job)
{
    char line[512], waiting[256];
    long long round = cli_int(job, "round", 0);
    const char *state = cli_str(job, "state", "");
    bool ended = cli_job_ended(state);
    uint64_t now = clock_now_ms();

    waiting_text(job, waiting, sizeof waiting);
    bool news = round != f->round || strcmp(state, f->state);
    /* Reasons change with every heartbeat: at most one line in ten seconds. */
    bool stuck = now - f->printed_ms > 10000;
    if (!news && !stuck)
        return;
    describe(job, line, sizeof line);
    fprintf(stderr, "%s%s%s\n", line, !ended && waiting[0] ? "  waits for " : "",
            ended ? "" : waiting);
    f->round = round;
    str_copy(f->waiting, sizeof f->waiting, waiting);
    f->printed_ms = now;
}

static void show(struct follow *f, const json_t *job)
{
    if (f->cli->json) {
        if (cli_int(job, "round", 0) != f->round || strcmp(cli_str(job, "state", ""), f->state)) {
            cli_print_json(job);
            fflush(stdout);
            f->round = cli_int(job, "round", 0);
        }
    } else if (f->terminal) {
        draw(f, job);
    } else {
        print(f, job);
    }
    str_copy(f->state, sizeof f->state, cli_str(job, "state", ""));
}

int follow_job(struct cli *cli, uint64_t id, const struct follow_hook *hook)
{
    struct follow f = {.cli = cli, .terminal = isatty(STDERR_FILENO), .round = -1};
    uint64_t seen_ms = clock_now_ms();
    int status = -1;

    while (status < 0) {
        struct err err = {0};
        json_t *job = NULL;
        if (cli_interrupted) {
            status = CLI_INTERRUPTED;
            break;
        }
        int rc = cli_call(cli, "GET", NULL, &job, &err, "/v1/jobs/%llu", (unsigned long long)id);
        if (rc == -ERR_CANCELLED) {
            status = CLI_INTERRUPTED;
        } else if (rc < 0) {
            /* A restarting coordinator is expected to come back: say so and wait. */
            if (rc == -ERR_AUTH || rc == -ERR_NOTFOUND || clock_now_ms() - seen_ms > GONE_MS) {
                status = cli_fail(&err);
            } else if (!cli->json && f.terminal) {
                fprintf(stderr, "\r\033[Kno answer from the coordinator: %.60s\r", err.msg);
            }
        } else {
            seen_ms = clock_now_ms();
            show(&f, job);
            if (hook && hook->poll)
                status = hook->poll(hook->arg, job) ? CLI_FAILED : -1;
            if (status < 0 && cli_job_ended(f.state))
                status = cli_job_exit(f.state);
            json_decref(job);
        }
        if (status < 0)
            cli_sleep_ms(POLL_MS);
    }
    if (f.terminal && !cli->json)
        fputs("\n", stderr);
    return status;
}

int follow_apart(struct cli *cli, uint64_t id)
{
    int status = follow_job(cli, id, NULL);
    if (status == CLI_INTERRUPTED)
        fprintf(stderr,
                "skerry: interrupted; job %llu goes on, `skerry cancel %llu` would stop it\n",
                (unsigned long long)id, (unsigned long long)id);
    return status;
}
