#include "cli/show/follow.h"

#include <fcntl.h>
#include <unistd.h>

#include "cli/base/cli.h"
#include "common/base/moving.h"
#include "cli/show/show.h"
#include "common/base/clock.h"

#define POLL_MS 400
#define BAR 20
#define SPEED_POLLS 32 /* speeds are averaged over about so many polls */
#define LATE_POLLS 8   /* who is late in so many polls on end is waited for */

struct follow {
    struct cli *cli;
    bool hooked;  /* somebody else reads what is polled, too */
    bool redraws; /* one line on a terminal; else each has its own */
    FILE *lines;  /* where those go */
    struct cli_away away;
    bool answers;   /* the coordinator, so that the job is known to go on */
    int64_t round;  /* last one printed where there is no terminal */
    char state[32]; /* last seen, of show_state() */
    char late[128]; /* who was late in the last poll; "": nobody */
    unsigned polls; /* in so many polls on end */
    char told[128]; /* who was waited for when a line was last printed; "": nobody */
    char gone[512]; /* what that line said of workers that are gone */
    double speed;   /* averaged, as workers report theirs one after the other; 0: not known */
};

/* What a line says, in its order; what is not known is "". */
enum part { ROUND, LOSS, SPEED, LEFT, GONE, TROUBLE, PARTS };

/* Progress in words, and as a share; without that there is no bar. */
struct progress {
    char words[PARTS][512];
    double share; /* negative: not known */
};

#define LINE_BYTES sizeof((struct progress *)NULL)->words

/* The wait of a late worker, or one that holds up the job; NULL: there is none. */
static const json_t *late_one(const json_t *job)
{
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(job, "waiting_for"), i, item)
    {
        if (json_is_true(json_object_get(item, "late")))
            return item;
    }
    return NULL;
}

/* The same, if it has been late for longer than a moment. */
static const json_t *waited_for(const struct follow *f, const json_t *job)
{
    return f->polls >= LATE_POLLS ? late_one(job) : NULL;
}

/* The first phase that has been taken from a worker that is gone, and who goes on with it. */
static void add_gone(const json_t *job, struct progress *p)
{
    const json_t *phase, *first = NULL;
    char *words = p->words[GONE];
    unsigned more = 0;
    size_t i;
    json_array_foreach(json_object_get(job, "phases"), i, phase)
    {
        if (!json_is_object(json_object_get(phase, "gone")))
            continue;
        more += first != NULL;
        first = first ? first : phase;
    }
    if (first == NULL)
        return;
    const json_t *gone = json_object_get(first, "gone");
    const long long id = cli_int(gone, "worker", 0), now = cli_int(first, "worker", 0);
    const bool lost = !strcmp(cli_str(gone, "state", ""), "lost");
    const size_t room = sizeof p->words[GONE];
    int n = snprintf(words, room, "worker %lld (%s) %s, ", id, cli_str(gone, "worker_name", "?"),
                     lost ? "is lost" : "has left");
    if (now == id)
        n += snprintf(words + n, room - (size_t)n, "its last snapshot counts");
    else if (now)
        n += snprintf(words + n, room - (size_t)n, "worker %lld (%s) continues its phase", now,
                      cli_str(first, "worker_name", "?"));
    else
        n += snprintf(words + n, room - (size_t)n, "nobody has its phase yet");
    if (more)
        (void)snprintf(words + n, room - (size_t)n, "; %u more like it", more);
}

static void add_trouble(const struct follow *f, const json_t *job, struct progress *p)
{
    const json_t *late = waited_for(f, job);
    char trouble[SHOW_TROUBLE_MAX], *words = p->words[TROUBLE];
    const size_t room = sizeof p->words[TROUBLE];
    if (*show_trouble(job, trouble)) /* the trouble already names the reason */
        snprintf(words, room, "%s", trouble);
    else if (late && cli_has(late, "worker"))
        snprintf(words, room, "waits for %s: %s", cli_str(late, "what", "?"),
                 cli_str(late, "why", ""));
    else if (late)
        snprintf(words, room, "waits: %s", cli_str(late, "why", ""));
}

static void describe_round(const struct follow *f, const json_t *job, struct progress *p)
{
    char eta[STR_HUMAN_MAX], loss[STR_HUMAN_MAX];
    long long round = cli_int(job, "round", 0), rounds = cli_int(job, "rounds", 0);
    long long steps = cli_int(job, "total_steps", 0);
    if (cli_has(job, "loss"))
        snprintf(p->words[LOSS], sizeof p->words[LOSS], "loss %s",
                 str_human_loss(cli_num(job, "loss", 0.0), loss));
    if (f->speed > 0)
        snprintf(p->words[SPEED], sizeof p->words[SPEED], "%.*f %s/s", f->speed < 10 ? 1 : 0,
                 f->speed, show_unit(job));
    if (cli_has(job, "eta_ms"))
        snprintf(p->words[LEFT], sizeof p->words[LEFT], "ETA %s", cli_duration(job, "eta_ms", eta));
    snprintf(p->words[ROUND], sizeof p->words[ROUND], "round %lld/%lld", round, rounds);
    p->share = steps    ? cli_num(job, "step", 0.0) / (double)steps
               : rounds ? (double)round / (double)rounds
                        : 0.0;
}

/* Describes a state before or between the rounds, whose progress is that of its tasks. */
static void describe_stage(const json_t *job, struct progress *p)
{
    const json_t *stage = json_object_get(job, "stage");
    long long total = cli_int(stage, "total", 0), round = cli_int(job, "round", 0);
    const char *reason = cli_str(job, "reason", "");
    char name[96], begun[64] = "";
    (void)show_stage(job, name, sizeof name);
    if (round > 0) /* a re-sharding in mid-run */
        snprintf(begun, sizeof begun, "  round %lld/%lld", round, cli_int(job, "rounds", 0));
    if (total > 1) {
        p->share = (double)cli_int(stage, "done", 0) / (double)total;
        snprintf(p->words[ROUND], sizeof p->words[ROUND], "%s%s", name, begun);
    } else {
        snprintf(p->words[ROUND], sizeof p->words[ROUND], "%s%s%s%s", cli_str(job, "state", "?"),
                 begun, *reason ? ": " : "", reason);
    }
}

static void describe(const struct follow *f, const json_t *job, struct progress *p)
{
    const char *state = cli_str(job, "state", "?"), *reason = cli_str(job, "reason", "");
    char loss[STR_HUMAN_MAX + 8] = "", number[STR_HUMAN_MAX];
    *p = (struct progress){.share = -1};
    if (cli_job_ended(state) && cli_int(job, "rounds", 0) == 0) { /* set aside */
        snprintf(p->words[ROUND], sizeof p->words[ROUND], "%s: %s", state, reason);
        return;
    }
    if (cli_job_ended(state)) {
        if (cli_has(job, "loss"))
            snprintf(loss, sizeof loss, "  loss %s",
                     str_human_loss(cli_num(job, "loss", 0.0), number));
        snprintf(p->words[ROUND], sizeof p->words[ROUND], "%s after round %lld/%lld%s%s%s", state,
                 cli_int(job, "round", 0), cli_int(job, "rounds", 0), loss, *reason ? ": " : "",
                 reason);
        return;
    }
    if (!strcmp(state, "running"))
        describe_round(f, job, p);
    else
        describe_stage(job, p);
    add_gone(job, p);
    add_trouble(f, job, p);
}

/* The parts of the line but those in `without`, a bit each.  Returns its length. */
static size_t join(const struct progress *p, unsigned without, char line[LINE_BYTES])
{
    size_t n = 0;
    for (unsigned i = 0; i < PARTS; i++)
        if (*p->words[i] && !(without & 1U << i))
            n += (size_t)snprintf(line + n, LINE_BYTES - n, "%s%s", n ? "  " : "", p->words[i]);
    return n;
}

/* Redraws the line: the words, and before them a bar if there is room.  Where there is not enough
 * for the words, the speed goes first, then the loss, and the round before the time left. */
static void draw(const struct progress *p)
{
    static const enum part goes[] = {SPEED, LOSS};
    char line[LINE_BYTES], barred[sizeof "[] " + BAR + sizeof line], bar[BAR + 1] = "";
    const unsigned columns = moving_columns();
    unsigned without = 0;
    size_t n = join(p, 0, line);
    for (int i = 0; i < BAR; i++)
        bar[i] = i < p->share * BAR ? '#' : '.';
    (void)snprintf(barred, sizeof barred, "[%s] %s", bar, line);
    for (size_t i = 0; i < 2 && n > columns; i++)
        n = join(p, without |= 1U << goes[i], line);
    if (*p->words[LEFT] && strlen(p->words[ROUND]) + 2 + strlen(p->words[LEFT]) > columns)
        (void)join(p, without | 1U << ROUND, line);
    moving_draw(p->share >= 0 && strlen(barred) <= columns ? barred : line);
}

static void tell_silence(struct follow *f, const char *why)
{
    char gone[STR_HUMAN_MAX];
    struct progress p = {.share = -1};
    f->answers = false;
    if (!f->redraws) {
        cli_say_away(&f->away, why);
        return;
    }
    (void)snprintf(p.words[ROUND], sizeof p.words[ROUND],
                   "no answer from the coordinator for %s: %.400s",
                   str_human_duration(clock_now_ms() - f->away.seen_ms, gone), why);
    draw(&p);
}

static void on_slow(void *arg, bool command)
{
    tell_silence(arg, "it is there and says nothing");
}

static bool goes_on(const struct follow *f, const json_t *job)
{
    return cli_int(job, "round", 0) == f->round && !strcmp(show_state(job), f->state);
}

/* Without a terminal: prints a line for each round, change of state, who is newly waited for, and
 * who is newly gone. */
static void print(struct follow *f, const json_t *job, const struct progress *p)
{
    const json_t *late = waited_for(f, job);
    const char *who = late ? cli_str(late, "what", "") : "";
    char line[LINE_BYTES];
    const bool gone = *p->words[GONE] && strcmp(p->words[GONE], f->gone) != 0;
    if (goes_on(f, job) && (!*who || !strcmp(who, f->told)) && !gone)
        return;
    (void)join(p, 0, line);
    fprintf(f->lines, "%s\n", line);
    (void)fflush(f->lines); /* follow() sees a failure */
    str_copy(f->told, sizeof f->told, who);
    str_copy(f->gone, sizeof f->gone, p->words[GONE]);
}

static void note_late(struct follow *f, const json_t *job)
{
    const json_t *late = late_one(job);
    const char *who = late ? cli_str(late, "what", "") : "";
    f->polls = !*who ? 0 : strcmp(who, f->late) != 0 ? 1 : f->polls + 1;
    str_copy(f->late, sizeof f->late, who);
}

static void show(struct follow *f, const json_t *job)
{
    const double speed = cli_num(job, "images_per_s", 0.0);
    struct progress p;
    if (json_is_true(json_object_get(job, "paused")) && !(speed > 0))
        f->speed = 0;
    if (speed > 0)
        f->speed += f->speed > 0 ? (speed - f->speed) / SPEED_POLLS : speed;
    note_late(f, job);
    describe(f, job, &p);
    if (f->cli->json) {
        if (!goes_on(f, job)) {
            cli_print_json(job);
            fflush(stdout);
        }
    } else if (f->redraws) {
        draw(&p);
    } else {
        print(f, job, &p);
    }
    f->round = cli_int(job, "round", 0);
    str_copy(f->state, sizeof f->state, show_state(job));
}

/* Its history, which may be large, is only for what is printed as data, and its samples for that
 * and for hooks. */
static int read_job(const struct follow *f, uint64_t id, json_t **ret, struct err *err)
{
    const unsigned long long n = id;
    int rc = cli_call(f->cli, "GET", NULL, ret, err, "/v1/jobs/%llu?history=0%s", n,
                      f->hooked ? "" : "&samples=0");
    if (rc < 0 || !f->cli->json || goes_on(f, *ret))
        return rc;
    json_decref(*ret);
    return cli_call(f->cli, "GET", NULL, ret, err, "/v1/jobs/%llu", n);
}

/* lines: where they go if they are not redrawn, as only those on stderr are. */
static int follow(struct cli *cli, uint64_t id, const struct follow_hook *hook, FILE *lines,
                  bool *ret_answers)
{
    struct follow f = {.cli = cli,
                       .hooked = hook != NULL,
                       .redraws = !cli->json && lines == stderr && moving_redraws(),
                       .lines = lines,
                       .away.seen_ms = clock_now_ms(),
                       .answers = true,
                       .round = -1};
    int status = -1;

    cli_on_slow(cli, on_slow, &f);
    while (status < 0) {
        struct err err = {0};
        json_t *job = NULL;
        if (cli_interrupted) {
            status = CLI_INTERRUPTED;
            break;
        }
        const int rc = read_job(&f, id, &job, &err);
        if (rc == -ERR_CANCELLED) {
            status = CLI_INTERRUPTED;
        } else if (rc < 0) {
            /* A restarting coordinator is expected to come back: say so and wait. */
            if (!cli_may_come_back(rc, f.away.seen_ms))
                status = cli_fail(&err);
            else if (hook && hook->poll(hook->arg, NULL))
                status = CLI_FAILED;
            else
                tell_silence(&f, err.msg);
        } else {
            f.answers = true;
            cli_say_back(&f.away);
            show(&f, job);
            if (hook && hook->poll(hook->arg, job))
                status = CLI_FAILED;
            if (status < 0 && cli_job_ended(f.state))
                status = cli_job_exit(f.state);
            if (status < 0 && lines == stdout && ferror(stdout))
                status = CLI_OK; /* main() says that nothing can be written */
            json_decref(job);
        }
        if (status < 0)
            cli_sleep_ms(POLL_MS);
    }
    cli_on_slow(cli, NULL, NULL);
    moving_keep();
    *ret_answers = f.answers;
    return status;
}

int follow_job(struct cli *cli, uint64_t id, const struct follow_hook *hook)
{
    bool answers;
    return follow(cli, id, hook, stderr, &answers);
}

/* Standard output, unless that is a terminal, or was closed from the start (file_first()). */
static FILE *lines_apart(void)
{
    const int flags = fcntl(STDOUT_FILENO, F_GETFL);
    const bool writable = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
    return writable && !isatty(STDOUT_FILENO) ? stdout : stderr;
}

int follow_apart(struct cli *cli, uint64_t id, const struct follow_hook *hook)
{
    bool answers;
    int status = follow(cli, id, hook, lines_apart(), &answers);
    if (status == CLI_INTERRUPTED && answers)
        fprintf(stderr,
                "skerry: interrupted; job %llu goes on, `skerry cancel %llu` would stop it\n",
                (unsigned long long)id, (unsigned long long)id);
    else if (status == CLI_INTERRUPTED)
        fprintf(stderr,
                "skerry: interrupted; the coordinator does not answer, so it is not known whether "
                "job %llu goes on\n",
                (unsigned long long)id);
    return status;
}
