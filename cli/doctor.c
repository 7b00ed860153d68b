/* skerry doctor: checks this machine, and the way to the coordinator if one is known, and reports
 * faults with advice (diagnosis.h). */
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/diagnosis.h"
#include "common/base/moving.h"
#include "cli/base/program.h"
#include "cli/job/link.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/net/http/http_client.h"
#include "common/net/token.h"

#define RPC_PORT 7710 /* what coordinatord listens on by default */
#define HTTP_PORT 7711
#define PROGRAM_MS 120000 /* a program that takes longer hangs, or its device does */
#define PINGS 5
#define FIRST_PID_NAMESPACE "pid:[4026531836]" /* the number that Linux gives the machine's own */

/* Small enough for every machine, large enough for every kind of kernel. */
static const char model[] = "name: doctor\n"
                            "data: {path: none, image_size: 32}\n"
                            "model: {patch: 4, dim: 128, depth: 2, heads: 4}\n"
                            "train: {batch: 4}\n"
                            "outer: {rounds: 1, steps: 1}\n";

/* ---- this machine -------------------------------------------------------- */

static void look_at_program(struct doctor_program *p, const char *name)
{
    static const char *const args[] = {"--version", NULL};
    struct program_said said;
    struct err err = {0};
    p->name = name;
    int rc = program_run(name, args, NULL, PROGRAM_MS, &said, &err);
    p->here = rc != -ENOENT;
    if (rc < 0) {
        str_copy(p->wrong, sizeof p->wrong, err.msg);
        return;
    }
    if (said.status != 0)
        (void)program_reason(&said, name, p->wrong, sizeof p->wrong);
    if (said.status != 0 && !p->wrong[0])
        str_copy(p->wrong, sizeof p->wrong, "it ended at once");
    said.out[strcspn(said.out, "\n")] = '\0';
    str_copy(p->said, sizeof p->said, said.out);
}

static void try_device(struct doctor_device *x, const char *name)
{
    const char *const args[] = {"measure", "-", "--classes", "1", "--device", name, NULL};
    struct program_said said;
    struct err err = {0};
    json_t *o = NULL;
    if (program_run("workerd", args, model, PROGRAM_MS, &said, &err) < 0)
        str_copy(x->wrong, sizeof x->wrong, err.msg);
    else if (said.status != 0)
        (void)program_reason(&said, "workerd", x->wrong, sizeof x->wrong);
    else if (!(o = json_loads(said.out, 0, NULL)) || cli_num(o, "step_s", 0) <= 0)
        str_copy(x->wrong, sizeof x->wrong,
                 cli_str(o, "refused", "`workerd measure` said nothing"));
    str_copy(x->text, sizeof x->text, cli_str(o, "device", ""));
    if (!x->wrong[0])
        x->images_per_s = cli_num(o, "batch", 0) / cli_num(o, "step_s", 1);
    x->parameters = cli_num(o, "parameters", 0);
    x->room_bytes = (uint64_t)cli_int(o, "room_bytes", 0);
    json_decref(o);
}

static void look_at_devices(struct doctor_facts *f)
{
    struct doctor_device card = {0};
    f->card = file_exists("/dev/nvidiactl");
    if (!f->programs[0].here || f->programs[0].wrong[0])
        return; /* which another finding reports */
    try_device(&f->device, "auto");
    if (str_starts(f->device.text, "cuda")) {
        try_device(&f->cpu, "cpu");
    } else if (f->card) {
        try_device(&card, "cuda:0");
        str_copy(f->card_wrong, sizeof f->card_wrong, card.wrong);
    }
}

/* made: the folder is made when it is needed, so the nearest one above it that there is counts. */
static void look_at_place(struct doctor_place *p, const char *what, const char *path, bool made)
{
    char *at = str_dup(path), *slash;
    p->what = what;
    str_copy(p->path, sizeof p->path, path);
    while (made && !file_exists(at) && (slash = strrchr(at, '/')) && at[1])
        slash[slash == at] = '\0';
    p->writable = access(at, W_OK) == 0 && file_disk_free(at, &p->free_bytes, NULL) == 0;
    mem_free(at);
}

static void look_at_places(struct doctor_facts *f)
{
    const char *tmp = getenv("TMPDIR");
    char *work = file_cache_dir();
    look_at_place(&f->places[0], "work directories", work ? work : "~/.cache/skerry", true);
    look_at_place(&f->places[1], "temporary files", tmp && tmp[0] ? tmp : "/tmp", false);
    mem_free(work);
}

/* False also where that cannot be told. */
static bool is_outside_containers(void)
{
    char name[64] = "";
    return readlink("/proc/self/ns/pid", name, sizeof name - 1) > 0 &&
           strcmp(name, FIRST_PID_NAMESPACE) == 0;
}

static enum doctor_clock look_at_clock(void)
{
    struct timex t = {0};
    if (!is_outside_containers() || adjtimex(&t) < 0)
        return DOCTOR_CLOCK_UNKNOWN;
    return t.status & STA_UNSYNC ? DOCTOR_CLOCK_FREE : DOCTOR_CLOCK_NTP;
}

/* Whether coordinatord could listen there. */
static void try_to_bind(struct doctor_port *p)
{
    const int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(p->number)};
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(fd, (const struct sockaddr *)&any, sizeof any) < 0)
        str_copy(p->wrong, sizeof p->wrong, strerror(errno));
    if (fd >= 0)
        close(fd);
}

/* ---- the way to the coordinator ------------------------------------------ */

/* Whether somebody answers there who has the key of the token. */
static void try_to_reach(struct doctor_port *p, const struct token *token, bool plain)
{
    char url[TOKEN_URL_MAX];
    struct token at = *token;
    struct http_client *http = NULL;
    struct err err = {0};
    at.http_port = p->number;
    at.http_plain = plain;
    token_http_url(&at, url);
    moving_now("connecting to %s", url);
    int rc = http_client_new(url, token->pin, NULL, &http, &err);
    if (rc == 0) {
        http_client_heed(http, &cli_interrupted);
        rc = http_client_connect(http, &err);
    }
    if (rc < 0) {
        str_copy(p->wrong, sizeof p->wrong, err.msg);
        p->code = err.code;
    }
    http_client_free(http);
    moving_clear();
}

/* Milliseconds since 1970 of "2026-11-21T12:53:15.042Z"; 0: it is none. */
static int64_t wall_ms(const char *iso)
{
    struct tm tm = {0};
    const char *rest = strptime(iso, "%Y-%m-%dT%H:%M:%S", &tm);
    return rest ? (int64_t)timegm(&tm) * 1000 + (*rest == '.' ? strtol(rest + 1, NULL, 10) : 0) : 0;
}

static void ask_status(struct cli *cli, struct doctor_coordinator *c)
{
    struct err err = {0};
    json_t *s = NULL;
    if (cli_call(cli, "GET", NULL, &s, &err, "/v1/status") < 0) {
        str_copy(c->wrong, sizeof c->wrong, err.msg);
        return;
    }
    str_copy(c->version, sizeof c->version, cli_str(s, "version", "?"));
    const int64_t there = wall_ms(cli_str(s, "at", ""));
    c->ahead_ms = there ? (int64_t)clock_wall_ms() - there : 0;
    json_decref(s);
}

/* The fastest of some requests that need no secret, on one connection. */
static void ping(struct cli *cli, struct doctor_coordinator *c)
{
    for (int i = 0; i < PINGS; i++) {
        struct http_response r = {0};
        const uint64_t begun = clock_now_ns();
        if (http_call(cli->http, "GET", "/healthz", NULL, 0, &r, NULL) < 0)
            return;
        http_response_release(&r);
        const double took = clock_since_s(begun);
        if (i > 0 && (i == 1 || took < c->round_trip_s)) /* the first one connects */
            c->round_trip_s = took;
    }
}

static void look_at_coordinator(struct cli *cli, const struct token *token, struct doctor_facts *f)
{
    struct doctor_coordinator *c = &f->coordinator;
    struct err err = {0};
    str_copy(c->host, sizeof c->host, token->host);
    str_copy(c->role, sizeof c->role, token_role_name(token->role));
    c->only_joins = token->role == TOKEN_ROLE_WORKER;
    f->ports[0].number = token->rpc_port;
    f->ports[1].number = token->http_port;
    try_to_reach(&f->ports[0], token, false);
    try_to_reach(&f->ports[1], token, token->http_plain);
    if (f->ports[1].wrong[0])
        return; /* which another finding reports */
    if (cli_open(cli, token, &err) < 0) {
        str_copy(c->wrong, sizeof c->wrong, err.msg);
        return;
    }
    ping(cli, c);
    if (!c->only_joins)
        ask_status(cli, c);
    if (token->role == TOKEN_ROLE_OPERATOR && !c->wrong[0] &&
        f->places[1].free_bytes > LINK_LARGE_BYTES)
        if (link_time(cli, f->places[1].path, &c->up, &c->down, &err) < 0)
            str_copy(c->link_wrong, sizeof c->link_wrong, err.msg);
}

/* ---- the command --------------------------------------------------------- */

static int run(struct cli *cli, const struct args *args, struct err *err)
{
    struct doctor_facts *f = mem_alloc(sizeof *f);
    struct diagnosis *d = mem_alloc(sizeof *d);
    struct token token;
    int rc = cli_find_token(cli, &token, err);
    if (rc < 0 && rc != -ERR_NOTFOUND)
        goto out;
    f->version = SKERRY_VERSION;
    f->coordinator.known = rc == 0;
    f->ports[0] = (struct doctor_port){.what = "workers", .number = RPC_PORT};
    f->ports[1] = (struct doctor_port){.what = "people and files", .number = HTTP_PORT};
    moving_now("looking at this machine, and training a small model for a moment");
    look_at_program(&f->programs[0], "workerd");
    look_at_program(&f->programs[1], "coordinatord");
    look_at_devices(f);
    look_at_places(f);
    f->clock = look_at_clock();
    moving_clear();
    if (rc == 0)
        look_at_coordinator(cli, &token, f);
    for (int i = 0; rc < 0 && i < DOCTOR_PORTS; i++)
        try_to_bind(&f->ports[i]);
    if (cli_interrupted) { /* what was broken off would look like a fault */
        rc = err_set(err, -ERR_CANCELLED, "interrupted");
        goto out;
    }
    diagnose(f, d);
    if (cli->json)
        cli_print_taken(diagnosis_json(d));
    else
        diagnosis_print(d, stdout);
    rc = diagnosis_worst(d) == VERDICT_FAIL ? CLI_FAILED : CLI_OK;
out:
    mem_free(d);
    mem_free(f);
    return rc;
}

const struct command command_doctor = {
    .name = "doctor",
    .what = "check this machine and its connection to the coordinator",
    .usage = "[--json]",
    .about = "Checks the programs, the device, the instruction set, disk, clock and "
             "ports.  With a token it also checks that the coordinator's ports "
             "answer with the right key; with an operator's it measures the link, by"
             " sending 8 MiB and fetching them again.  Each check says ok, warn (it "
             "works, but worse than it could) or fail (exit status 1), and what to "
             "do.",
    .needs = COMMAND_SERVER | COMMAND_JSON | COMMAND_SIGNALS,
    .run = run,
};
