#include "cli/diagnosis.h"

#include "cli/base/cli.h"

#define DISK_FAIL ((uint64_t)1 << 30) /* a worker needs at least a quarter of it for its cache */
#define DISK_WARN ((uint64_t)8 << 30) /* a few versions of a model of 500 M parameters */
#define CLOCK_WARN_MS 60000           /* with more, people cannot compare logs */
#define LINK_WARN (10e6 / 8)          /* bytes per second */
#define ROUND_TRIP_WARN_S 0.5

static const char *const words[] = {"ok", "warn", "fail"};
static const char advice_on_clock[] =
    "switch NTP on (timedatectl set-ntp true): otherwise times in logs cannot be compared, and "
    "certificates of servers with archives may be refused";

/* Adds a finding, whose text follows the format. */
__attribute__((format(printf, 5, 6))) static void add(struct diagnosis *d, const char *name,
                                                      enum verdict verdict, const char *advice,
                                                      const char *format, ...)
{
    va_list ap;
    struct finding *f = &d->items[d->n++];
    *f = (struct finding){.name = name, .verdict = verdict, .advice = advice};
    va_start(ap, format);
    (void)vsnprintf(f->found, sizeof f->found, format, ap);
    va_end(ap);
}

/* The version, which follows the program's name. */
static const char *version_of(const struct doctor_program *p)
{
    const size_t n = strlen(p->name);
    return strncmp(p->said, p->name, n) == 0 && p->said[n] == ' ' ? p->said + n + 1 : p->said;
}

static void judge_programs(const struct doctor_facts *f, struct diagnosis *d)
{
    const size_t before = d->n;
    for (int i = 0; i < DOCTOR_PROGRAMS; i++) {
        const struct doctor_program *p = &f->programs[i];
        if (!p->here)
            add(d, "programs", VERDICT_WARN, "install all three programs into one folder",
                "%s is not beside this program", p->name);
        else if (p->wrong[0])
            add(d, "programs", VERDICT_FAIL,
                "install the libraries that it names: deploy/install-deps.sh build, or the "
                "package of `make deb`",
                "%s does not start: %s", p->name, p->wrong);
        else if (strcmp(version_of(p), f->version) != 0)
            add(d, "programs", VERDICT_WARN, "install all three programs from one release",
                "%s is %s, and this is %s", p->name, version_of(p), f->version);
    }
    if (d->n == before)
        add(d, "programs", VERDICT_OK, "", "coordinatord, workerd and skerry %s start", f->version);
}

static void judge_device(const struct doctor_facts *f, struct diagnosis *d)
{
    char room[STR_HUMAN_MAX], size[STR_HUMAN_MAX], rate[STR_HUMAN_MAX];
    const struct doctor_device *x = &f->device;
    if (x->wrong[0]) {
        add(d, "device", VERDICT_FAIL, "without a device this machine can still coordinate",
            "no device can train: %s", x->wrong);
        return;
    }
    if (!x->text[0])
        return;
    add(d, "device", VERDICT_OK, "",
        "%s; trains a DiT of %s M parameters at %s images/s, and has %s for training", x->text,
        str_human_number(x->parameters / 1e6, size), str_human_number(x->images_per_s, rate),
        str_human_bytes(x->room_bytes, room));
    if (f->card && f->card_wrong[0])
        add(d, "card", VERDICT_WARN,
            "check the driver with nvidia-smi, and that this build has CUDA (make CUDA=1)",
            "a card is here and not used: %s", f->card_wrong);
}

static void judge_instructions(const struct doctor_facts *f, struct diagnosis *d)
{
    const char *text = f->cpu.text[0] ? f->cpu.text : f->device.text;
    const char *last = strrchr(text, ',');
    if (f->cpu.wrong[0])
        add(d, "instructions", VERDICT_FAIL, "see that the CPU is an x86-64 one", "%s",
            f->cpu.wrong);
    else if (!last)
        return; /* the test failed, which another finding reports */
    else if (strstr(last, "AVX"))
        add(d, "instructions", VERDICT_OK, "", "%s", last + 2);
    else
        add(d, "instructions", VERDICT_WARN,
            "training on this CPU is many times slower than with AVX2: use a card, or let this "
            "machine coordinate",
            "%s", last + 2);
}

static void judge_places(const struct doctor_facts *f, struct diagnosis *d)
{
    for (int i = 0; i < DOCTOR_PLACES; i++) {
        const struct doctor_place *p = &f->places[i];
        char room[STR_HUMAN_MAX];
        (void)str_human_bytes(p->free_bytes, room);
        if (!p->writable)
            add(d, "disk", VERDICT_FAIL,
                i == 0 ? "give workers another folder with --work-dir"
                       : "set TMPDIR to a folder that you may write to",
                "%s (%s) cannot be written to", p->path, p->what);
        else if (p->free_bytes < DISK_WARN)
            add(d, "disk", p->free_bytes < DISK_FAIL ? VERDICT_FAIL : VERDICT_WARN,
                i == 0 ? "free some space, or give workers another folder with --work-dir"
                       : "free some space, or set TMPDIR to a folder with more",
                "%s free in %s (%s)", room, p->path, p->what);
        else
            add(d, "disk", VERDICT_OK, "", "%s free in %s (%s)", room, p->path, p->what);
    }
}

/* A clock that nobody compares with a coordinator's. */
static void judge_own_clock(enum doctor_clock clock, struct diagnosis *d)
{
    if (clock == DOCTOR_CLOCK_FREE)
        add(d, "clock", VERDICT_WARN, advice_on_clock,
            "not synchronised, as far as the kernel knows");
    else
        add(d, "clock", VERDICT_OK, "",
            clock == DOCTOR_CLOCK_NTP
                ? "synchronised by NTP"
                : "not known whether it is synchronised, because a container has its host's clock");
}

static void judge_clock(const struct doctor_facts *f, struct diagnosis *d)
{
    const struct doctor_coordinator *c = &f->coordinator;
    const uint64_t away = (uint64_t)(c->ahead_ms < 0 ? -c->ahead_ms : c->ahead_ms);
    char text[STR_HUMAN_MAX];
    if (!c->version[0])
        judge_own_clock(f->clock, d);
    else if (away <= CLOCK_WARN_MS)
        add(d, "clock", VERDICT_OK, "", "less than a minute from the coordinator's");
    else
        add(d, "clock", VERDICT_WARN, advice_on_clock, "%s %s the coordinator's",
            str_human_duration(away, text), c->ahead_ms > 0 ? "ahead of" : "behind");
}

static const char *advice_on_port(const struct doctor_port *p)
{
    if (p->code == -ERR_AUTH)
        return "log in with a token of the coordinator that runs there now (`skerry "
               "login`), or run coordinatord on the data directory that this token "
               "came from";
    if (p->code == -EHOSTUNREACH)
        return "check that this machine can resolve the name; `coordinatord --host` "
               "puts another name or an address into its tokens";
    if (p->code == -ECONNRESET)
        return "something answers and breaks off: check whether another program has "
               "the port, or a proxy in between blocks TLS";
    return "open the port in firewalls between here and there, and check that "
           "coordinatord runs";
}

static void judge_ports(const struct doctor_facts *f, struct diagnosis *d)
{
    const struct doctor_coordinator *c = &f->coordinator;
    const struct doctor_port *p = f->ports;
    const size_t before = d->n;
    for (int i = 0; i < DOCTOR_PORTS; i++)
        if (p[i].wrong[0] && c->known)
            add(d, "ports", VERDICT_FAIL, advice_on_port(&p[i]), "port %u of %s, for %s: %s",
                p[i].number, c->host, p[i].what, p[i].wrong);
        else if (p[i].wrong[0])
            add(d, "ports", VERDICT_WARN,
                "if that is a coordinator, log in with its token (`skerry login`); another one "
                "here "
                "would need other ports: --rpc-port and --http-port",
                "port %u, for %s: %s", p[i].number, p[i].what, p[i].wrong);
    if (d->n == before && c->known)
        add(d, "ports", VERDICT_OK, "", "%u and %u of %s answer with the key that the token names",
            p[0].number, p[1].number, c->host);
    else if (d->n == before)
        add(d, "ports", VERDICT_OK, "", "%u and %u are free for a coordinator", p[0].number,
            p[1].number);
}

/* True if the first two numbers of two versions are the same. */
static bool same_release(const char *a, const char *b)
{
    for (int dots = 0; *a == *b && *a; a++, b++)
        if (*a == '.' && ++dots == 2)
            return true;
    return *a == *b;
}

static void judge_coordinator(const struct doctor_facts *f, struct diagnosis *d)
{
    const struct doctor_coordinator *c = &f->coordinator;
    if (!c->known)
        add(d, "coordinator", VERDICT_OK, "", "none is known here; `skerry login` saves one");
    else if (c->wrong[0])
        add(d, "coordinator", VERDICT_FAIL,
            "check that coordinatord runs there, and that the token is its own "
            "(`skerry login`)",
            "%s", c->wrong);
    else if (c->only_joins)
        add(d, "coordinator", VERDICT_OK, "",
            "not checked, because a worker's token can only join");
    else if (!c->version[0])
        return; /* out of reach, which another finding reports */
    else if (same_release(c->version, f->version))
        add(d, "coordinator", VERDICT_OK, "", "version %s; the token is one of role %s", c->version,
            c->role);
    else
        add(d, "coordinator", VERDICT_WARN,
            "a release works with the one before and the one after: upgrade the older",
            "version %s, and this is %s", c->version, f->version);
}

static void judge_link(const struct doctor_facts *f, struct diagnosis *d)
{
    const struct doctor_coordinator *c = &f->coordinator;
    const double least = fmin(c->up, c->down);
    const bool far = c->round_trip_s > ROUND_TRIP_WARN_S, slow = least < LINK_WARN || far;
    const char *const advice =
        "`skerry check job.yaml --link RATE` says what it costs; outer.fragments and outer.delay "
        "hide it";
    char up[STR_HUMAN_MAX], down[STR_HUMAN_MAX], round_trip[STR_HUMAN_MAX];
    str_human_number(c->round_trip_s * 1e3, round_trip);
    if (c->link_wrong[0])
        add(d, "link", VERDICT_WARN, "run this again; a proxy may limit transfers", "%s",
            c->link_wrong);
    else if (least > 0)
        add(d, "link", slow ? VERDICT_WARN : VERDICT_OK, slow ? advice : "",
            "%s Mbit/s up, %s down, %s ms there and back", str_human_number(c->up * 8e-6, up),
            str_human_number(c->down * 8e-6, down), round_trip);
    else if (c->round_trip_s > 0)
        add(d, "link", far ? VERDICT_WARN : VERDICT_OK, far ? advice : "",
            "%s ms there and back; its speed is measured with an operator's token", round_trip);
}

void diagnose(const struct doctor_facts *f, struct diagnosis *ret)
{
    ret->n = 0;
    judge_programs(f, ret);
    judge_device(f, ret);
    judge_instructions(f, ret);
    judge_places(f, ret);
    judge_clock(f, ret);
    judge_ports(f, ret);
    judge_coordinator(f, ret);
    judge_link(f, ret);
}

enum verdict diagnosis_worst(const struct diagnosis *d)
{
    enum verdict worst = VERDICT_OK;
    for (size_t i = 0; i < d->n; i++)
        worst = d->items[i].verdict > worst ? d->items[i].verdict : worst;
    return worst;
}

void diagnosis_print(const struct diagnosis *d, FILE *out)
{
    for (size_t i = 0; i < d->n; i++) {
        const struct finding *f = &d->items[i];
        fprintf(out, "%-4s  %-12s  %s\n", words[f->verdict], f->name, f->found);
        if (f->advice[0])
            fprintf(out, "%20s%s\n", "-> ", f->advice);
    }
}

json_t *diagnosis_json(const struct diagnosis *d)
{
    json_t *checks = json_array();
    for (size_t i = 0; i < d->n; i++) {
        const struct finding *f = &d->items[i];
        json_array_append_new(checks, json_pack("{s:s,s:s,s:o,s:s}", "name", f->name, "verdict",
                                                words[f->verdict], "found", cli_text(f->found),
                                                "advice", f->advice));
    }
    return json_pack("{s:o}", "checks", checks);
}
