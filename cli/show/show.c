#include "cli/show/show.h"

#include "cli/base/cli.h"
#include "cli/base/table.h"

#define BAR 24
#define FIGURES_MAX 200

static double real(const json_t *o, const char *key)
{
    return cli_num(o, key, NAN);
}

const char *show_unit(const json_t *job)
{
    return json_is_true(json_object_get(job, "text")) ? "rows" : "images";
}

int show_stage(const json_t *job, char *out, size_t cap)
{
    const json_t *stage = json_object_get(job, "stage");
    long long total = cli_int(stage, "total", 0);
    const char *state = cli_str(job, "state", "?");
    if (total > 0)
        return snprintf(out, cap, "%s %lld/%lld", state, cli_int(stage, "done", 0), total);
    return snprintf(out, cap, "%s", state);
}

static bool is_paused(const json_t *job)
{
    return json_is_true(json_object_get(job, "paused"));
}

const char *show_state(const json_t *job)
{
    return is_paused(job) ? "paused" : cli_str(job, "state", "?");
}

const char *show_trouble(const json_t *job, char out[SHOW_TROUBLE_MAX])
{
    const char *why = cli_str(job, "stalled", "");
    (void)snprintf(out, SHOW_TROUBLE_MAX, "%s%s", *why && !is_paused(job) ? "stalled: " : "", why);
    return out;
}

/* ---- the job itself ------------------------------------------------------ */

static void print_numbers(const json_t *job, FILE *out)
{
    char eta[STR_HUMAN_MAX], loss[STR_HUMAN_MAX];
    long long total = cli_int(job, "total_steps", 0);
    fprintf(out, "  round %lld/%lld  step %lld", cli_int(job, "round", 0),
            cli_int(job, "rounds", 0), cli_int(job, "step", 0));
    if (total)
        fprintf(out, "/%lld", total);
    if (cli_has(job, "loss"))
        fprintf(out, "  loss %s", str_human_loss(real(job, "loss"), loss));
    if (cli_has(job, "eval_loss"))
        fprintf(out, "  held-out %s", str_human_loss(real(job, "eval_loss"), loss));
    if (cli_has(job, "bits_per_byte"))
        fprintf(out, "  bits/byte %s", str_human_loss(real(job, "bits_per_byte"), loss));
    if (real(job, "images_per_s") > 0)
        fprintf(out, "  %.0f %s/s", real(job, "images_per_s"), show_unit(job));
    if (cli_has(job, "eta_ms"))
        fprintf(out, "  ETA %s", cli_duration(job, "eta_ms", eta));
    fputc('\n', out);
}

static void print_data(const json_t *job, FILE *out)
{
    const json_t *data = json_object_get(job, "dataset");
    long long reshards = cli_int(job, "reshards", 0);
    fprintf(out, "  data: %lld samples, %lld held out, %lld shard%s", cli_int(data, "samples", 0),
            cli_int(data, "holdout", 0), cli_int(data, "shards", 0),
            str_plural((uint64_t)cli_int(data, "shards", 0)));
    size_t partitions = json_array_size(json_object_get(job, "partitions"));
    if (partitions && cli_int(job, "generation", 0) > 0)
        fprintf(out, ", in %zu partitions", partitions);
    if (reshards)
        fprintf(out, " (%lld of %lld re-routings done)", cli_int(job, "resharded", 0), reshards);
    fputc('\n', out);
}

static void print_bad(const json_t *job, FILE *out)
{
    const json_t *bad = json_object_get(job, "bad_samples"), *b;
    const long long n = cli_int(bad, "count", 0);
    size_t i;
    if (n <= 0)
        return;
    fprintf(out, "  left out: %lld sample%s that cannot be read\n", n, n == 1 ? "" : "s");
    json_array_foreach(json_object_get(bad, "items"), i, b)
    {
        if (i == CLI_NAMED_MAX)
            break;
        fprintf(out, "    %s: %s\n", cli_str(b, "key", "?"), cli_str(b, "reason", "?"));
    }
    if (n > (long long)i)
        fprintf(out, "    and %lld more; more names are in `skerry status %lld --json`\n",
                n - (long long)i, cli_int(job, "id", 0));
}

static void print_skipped(const json_t *job, FILE *out)
{
    const long long n = cli_int(job, "skipped_steps", 0);
    if (n > 0)
        fprintf(
            out,
            "  skipped: %lld step%s whose loss or gradient was no number; if there are more and "
            "more, lower train.lr\n",
            n, str_plural((uint64_t)n));
}

static void print_wire(const json_t *job, FILE *out)
{
    const json_t *bytes = json_object_get(job, "bytes"), *net = json_object_get(job, "network");
    char up[STR_HUMAN_MAX], down[STR_HUMAN_MAX], waited[STR_HUMAN_MAX];
    fprintf(out, "  parameters: %s up, %s down", cli_bytes(bytes, "up", up),
            cli_bytes(bytes, "down", down));
    if (cli_has(bytes, "ratio"))
        fprintf(out, ", %.3g times the bytes of fp32 data-parallel", real(bytes, "ratio"));
    if (cli_int(net, "waited_ms", 0) > 0)
        fprintf(out, "; workers waited %s for the network", cli_duration(net, "waited_ms", waited));
    fputc('\n', out);
}

const char *show_dollars(double x, char out[STR_HUMAN_MAX])
{
    if (x > 0 && x < 0.0001)
        return "under $0.0001";
    (void)snprintf(out, STR_HUMAN_MAX, x > 0 && x < 0.095 ? "$%.2g" : "$%.2f", x);
    return out;
}

/* Prints the cost; nothing if no worker has a price. */
static void print_cost(const json_t *job, FILE *out)
{
    const json_t *cost = json_object_get(job, "cost");
    const bool text = cli_has(cost, "per_million_tokens");
    const double each = real(cost, text ? "per_million_tokens" : "per_million_samples");
    char total[STR_HUMAN_MAX], waiting[STR_HUMAN_MAX], rest[STR_HUMAN_MAX];
    if (!(real(cost, "total") > 0))
        return;
    fprintf(out, "  cost: %s so far", show_dollars(real(cost, "total"), total));
    if (real(cost, "waiting") > 0)
        fprintf(out, ", %s of it waiting", show_dollars(real(cost, "waiting"), waiting));
    if (each > 0)
        fprintf(out, ", %s a million %s", show_dollars(each, rest), text ? "tokens" : "samples");
    if (real(cost, "until_end") > 0)
        fprintf(out, "; about %s more", show_dollars(real(cost, "until_end"), rest));
    fputc('\n', out);
}

/* ---- paths --------------------------------------------------------------- */

/* The workers that train the path, "isle-a 12/50, isle-b 9/50", or "isle-a" where a coordinator
 * that has just started does not know how far it is; false: there are none. */
static bool trainers(const json_t *job, const json_t *path, char *out, size_t cap)
{
    const json_t *phase;
    size_t i;
    out[0] = '\0';
    json_array_foreach(json_object_get(job, "phases"), i, phase)
    {
        size_t n = strlen(out);
        if (cli_int(phase, "path", -1) != cli_int(path, "path", -2) ||
            strcmp(cli_str(phase, "state", ""), "leased") != 0 || n + 1 >= cap)
            continue;
        (void)snprintf(out + n, cap - n, "%s%.40s", n ? ", " : "",
                       cli_str(phase, "worker_name", "?"));
        n = strlen(out);
        if (cli_int(phase, "steps_total", 0) > 0)
            (void)snprintf(out + n, cap - n, " %lld/%lld", cli_int(phase, "steps_done", 0),
                           cli_int(phase, "steps_total", 0));
    }
    return out[0] != '\0';
}

static long long index_of_module(const json_t *job, long long id)
{
    const json_t *module;
    size_t i;
    json_array_foreach(json_object_get(job, "modules"), i, module)
    {
        if (cli_int(module, "id", -1) == id)
            return cli_int(module, "index", -1);
    }
    return -1;
}

/* The indices of the path's modules by level, "0.3.1". */
static void route(const json_t *job, const json_t *path, char *out, size_t cap)
{
    const json_t *id;
    size_t i, n = 0;
    out[0] = '\0';
    json_array_foreach(json_object_get(path, "modules"), i, id)
    {
        int k = snprintf(out + n, cap - n, "%s%lld", i ? "." : "",
                         index_of_module(job, json_integer_value(id)));
        if (k < 0 || (size_t)k >= cap - n)
            return;
        n += (size_t)k;
    }
}

static void add_path(const json_t *job, const json_t *path, struct table *t)
{
    char who[256], modules[128], best[STR_HUMAN_MAX];
    const char *state = cli_str(path, "state", "");
    bool router = strcmp(cli_str(path, "network", ""), "router") == 0;
    if (!trainers(job, path, who, sizeof who))
        (void)str_copy(who, sizeof who, strcmp(state, "running") == 0 ? "queued" : state);
    route(job, path, modules, sizeof modules);
    if (router)
        table_cell(t, "router");
    else
        table_cell(t, "%lld", cli_int(path, "path", 0));
    table_cell(t, "%s", modules);
    if (cli_has(path, "partition"))
        table_cell(t, "%lld", cli_int(path, "partition", 0));
    else
        table_cell(t, json_array_size(json_object_get(job, "partitions")) ? "all" : TABLE_NONE);
    table_cell(t, "%lld", cli_int(path, "samples", 0));
    table_cell(t, "%lld/%lld", cli_int(path, "round", 0), cli_int(path, "rounds", 0));
    table_cell(t, "%s", who);
    table_loss(t, real(path, "loss"));
    table_loss(t, real(path, "eval_loss"));
    table_loss(t, real(path, "bits_per_byte"));
    if (cli_has(path, "best_round"))
        table_cell(t, "%s (%lld)", str_human_loss(real(path, "best_loss"), best),
                   cli_int(path, "best_round", 0));
    else
        table_cell(t, TABLE_NONE);
}

/* What the table would say of an only path, and the lines above do not. */
static void print_only_path(const json_t *job, FILE *out)
{
    const json_t *path = json_array_get(json_object_get(job, "path_list"), 0);
    char who[256], best[STR_HUMAN_MAX];
    if (trainers(job, path, who, sizeof who))
        fprintf(out, "  trained by %s\n", who);
    if (cli_has(path, "best_round"))
        fprintf(out, "  best held-out %s, after round %lld\n",
                str_human_loss(real(path, "best_loss"), best), cli_int(path, "best_round", 0));
}

static void print_paths(const json_t *job, FILE *out)
{
    static const char *const names[] = {"path",       ">modules",     ">partition", ">samples",
                                        ">round",     "trained by",   ">loss",      ">held-out",
                                        ">bits/byte", ">best (round)"};
    const json_t *list = json_object_get(job, "path_list"), *path;
    struct table t;
    size_t i;
    if (json_array_size(list) < 2 && json_array_size(json_object_get(job, "modules")) < 2) {
        print_only_path(job, out);
        return;
    }
    table_init(&t, names, sizeof names / sizeof names[0]);
    json_array_foreach(list, i, path) add_path(job, path, &t);
    fprintf(out, "\npaths\n");
    table_print(&t, out);
    table_release(&t);
}

/* ---- partitions, figures, waiting ---------------------------------------- */

static int64_t largest_partition(const json_t *list)
{
    const json_t *p;
    int64_t most = 0;
    size_t i;
    json_array_foreach(list, i, p)
    {
        long long n = cli_int(p, "samples", 0);
        most = n > most ? n : most;
    }
    return most;
}

static void print_partitions(const json_t *job, FILE *out)
{
    static const char *const names[] = {">partition", ">samples", ">share",
                                        ">held-out",  ">tokens",  ""};
    const json_t *list = json_object_get(job, "partitions"), *p;
    const int64_t most = largest_partition(list);
    struct table t;
    size_t i;
    if (most == 0)
        return;
    table_init(&t, names, sizeof names / sizeof names[0]);
    json_array_foreach(list, i, p)
    {
        char bar[BAR + 1] = "";
        memset(bar, '#', (size_t)(cli_int(p, "samples", 0) * BAR / most));
        table_cell(&t, "%lld", cli_int(p, "partition", 0));
        table_cell(&t, "%lld", cli_int(p, "samples", 0));
        if (cli_has(p, "share"))
            table_cell(&t, "%.1f %%", 100 * real(p, "share"));
        else
            table_cell(&t, TABLE_NONE);
        table_cell(&t, "%lld", cli_int(p, "holdout_samples", 0));
        if (cli_int(p, "tokens", 0))
            table_cell(&t, "%lld", cli_int(p, "tokens", 0));
        else
            table_cell(&t, TABLE_NONE);
        table_cell(&t, "%s", bar);
    }
    fprintf(out, "\npartitions\n");
    table_print(&t, out);
    table_release(&t);
}

static void print_figures(const json_t *job, FILE *out)
{
    static const char *const names[] = {"figure", ">value", "unit", "found by", ">path", ">round"};
    const json_t *list = json_object_get(job, "figures"), *f;
    struct table t;
    size_t i;
    if (json_array_size(list) == 0)
        return;
    table_init(&t, names, sizeof names / sizeof names[0]);
    json_array_foreach(list, i, f)
    {
        if (i == FIGURES_MAX)
            break;
        table_cell(&t, "%s", cli_str(f, "name", ""));
        table_cell(&t, "%.5g", real(f, "value"));
        table_cell(&t, "%s", cli_str(f, "unit", ""));
        table_cell(&t, "%s", cli_str(f, "kind", ""));
        if (cli_has(f, "path"))
            table_cell(&t, "%lld", cli_int(f, "path", 0));
        else
            table_cell(&t, TABLE_NONE);
        table_cell(&t, "%lld", cli_int(f, "round", 0));
    }
    fprintf(out, "\nfigures\n");
    table_print(&t, out);
    if (i < json_array_size(list))
        fprintf(out, "  and %zu more; --json has all\n", json_array_size(list) - i);
    table_release(&t);
}

void show_waiting(const json_t *list, FILE *out)
{
    char until[STR_HUMAN_MAX];
    const json_t *w;
    size_t i;
    fprintf(out, "\nwaiting for\n");
    if (json_array_size(list) == 0)
        fprintf(out, "  nothing\n");
    json_array_foreach(list, i, w)
    {
        fprintf(out, "  %s: %s", cli_str(w, "what", ""), cli_str(w, "why", ""));
        if (cli_has(w, "until_ms"))
            fprintf(out, " (at most %s more)", cli_duration(w, "until_ms", until));
        fputc('\n', out);
    }
}

void show_job(const json_t *job, FILE *out)
{
    char stage[96], age[STR_HUMAN_MAX], trouble[SHOW_TROUBLE_MAX];
    (void)show_stage(job, stage, sizeof stage);
    fprintf(out, "job %lld, %s (%s): %s%s", cli_int(job, "id", 0), cli_str(job, "name", ""),
            cli_str(job, "recipe", ""), is_paused(job) ? "paused while " : "", stage);
    if (cli_int(job, "elapsed_ms", 0) > 0)
        fprintf(out, "%s %s", cli_job_ended(cli_str(job, "state", "")) ? " after" : ", for",
                cli_duration(job, "elapsed_ms", age));
    fputc('\n', out);
    if (*cli_str(job, "reason", ""))
        fprintf(out, "  %s\n", cli_str(job, "reason", ""));
    if (*show_trouble(job, trouble))
        fprintf(out, "  %s\n", trouble);
    if (cli_int(job, "rounds", 0) == 0) /* set aside: this release does not know what it was */
        return;
    print_numbers(job, out);
    print_data(job, out);
    print_bad(job, out);
    print_skipped(job, out);
    print_wire(job, out);
    print_cost(job, out);
    print_paths(job, out);
    print_partitions(job, out);
    print_figures(job, out);
    if (!cli_job_ended(cli_str(job, "state", "")))
        show_waiting(json_object_get(job, "waiting_for"), out);
}

/* ---- workers ---- */

/* "412 TFLOP/s" */
static char *human_flops(double x, char out[STR_HUMAN_MAX])
{
    static const char *const units[] = {"", "k", "M", "G", "T", "P", "E"};
    size_t u = 0;
    while (x >= 1000 && u + 1 < sizeof units / sizeof units[0]) {
        x /= 1000;
        u++;
    }
    snprintf(out, STR_HUMAN_MAX,
             x < 10    ? "%.2f %sFLOP/s"
             : x < 100 ? "%.1f %sFLOP/s"
                       : "%.0f %sFLOP/s",
             x, units[u]);
    return out;
}

static void show_rate(const json_t *w, FILE *out)
{
    char flops[STR_HUMAN_MAX], peak[STR_HUMAN_MAX];
    if (!cli_has(w, "flops"))
        return;
    fprintf(out, "  %s of model arithmetic", human_flops(cli_num(w, "flops", 0), flops));
    if (cli_has(w, "mfu"))
        fprintf(out, ", %.1f%% of the %s that products reach there", 100 * cli_num(w, "mfu", 0),
                human_flops(cli_num(w, "peak_flops", 0), peak));
    fputc('\n', out);
}

/* What of the device a person should look at; "": nothing. */
static void device_trouble(const json_t *d, char *out, size_t cap)
{
    const long long ecc = cli_int(d, "ecc_errors", 0);
    const char *throttled = cli_str(d, "throttled", ""), *trouble = cli_str(d, "trouble", "");
    char errors[64] = "";
    if (ecc > 0)
        (void)snprintf(errors, sizeof errors, "; %lld uncorrected memory error%s", ecc,
                       str_plural((uint64_t)ecc));
    (void)snprintf(out, cap, "%s%s%s%s%s", errors, *throttled ? "; held down: " : "", throttled,
                   *trouble ? "; " : "", trouble);
}

static void show_device(const json_t *d, FILE *out)
{
    char used[STR_HUMAN_MAX], total[STR_HUMAN_MAX], trouble[512];
    fprintf(out, "  %-7s %s", cli_str(d, "name", ""), cli_str(d, "model", ""));
    if (cli_has(d, "utilization"))
        fprintf(out, ", %lld%% busy", cli_int(d, "utilization", 0));
    if (cli_has(d, "memory_total"))
        fprintf(out, ", %s of %s", cli_bytes(d, "memory_used", used),
                cli_bytes(d, "memory_total", total));
    if (cli_has(d, "temperature"))
        fprintf(out, ", %lld C", cli_int(d, "temperature", 0));
    if (cli_has(d, "power"))
        fprintf(out, ", %.0f W", cli_num(d, "power", 0));
    device_trouble(d, trouble, sizeof trouble);
    fprintf(out, "%s\n", trouble);
}

static const char *doing(const json_t *w)
{
    const char *activity = cli_str(w, "activity", "");
    return *activity ? activity : cli_str(w, "reason", "");
}

void show_worker(const json_t *w, FILE *out)
{
    char age[STR_HUMAN_MAX], up[STR_HUMAN_MAX], down[STR_HUMAN_MAX];
    const json_t *data = json_object_get(json_object_get(w, "bytes"), "data"), *device;
    size_t i;
    fprintf(out, "worker %lld, %s: %s%s%s\n", cli_int(w, "id", 0), cli_str(w, "name", ""),
            cli_str(w, "state", ""), *doing(w) ? ", " : "", doing(w));
    fprintf(out, "  version %s at %s", cli_str(w, "version", "?"), cli_str(w, "address", "?"));
    if (cli_has(w, "token"))
        fprintf(out, ", joined with token %lld", cli_int(w, "token", 0));
    if (cli_has(w, "heartbeat_age_ms"))
        fprintf(out, ", heard of %s ago", cli_duration(w, "heartbeat_age_ms", age));
    fprintf(out, "\n  data: %s up, %s down\n", cli_bytes(data, "up", up),
            cli_bytes(data, "down", down));
    const long long strikes = cli_int(w, "strikes", 0), broke = cli_int(w, "device_failures", 0);
    if (strikes > 0)
        fprintf(out, "  in quarantine %lld time%s\n", strikes, str_plural((uint64_t)strikes));
    if (broke > 0)
        fprintf(out, "  its device broke %lld time%s\n", broke, str_plural((uint64_t)broke));
    if (json_is_true(json_object_get(w, "allows_trainers")))
        fprintf(out, "  it runs trainers that come with jobs\n");
    if (cli_has(w, "images_per_s"))
        fprintf(out, "  %.1f samples/s\n", real(w, "images_per_s"));
    show_rate(w, out);
    json_array_foreach(json_object_get(w, "devices"), i, device) show_device(device, out);
}

/* Do the workers run different releases? */
static bool versions_differ(const json_t *list)
{
    const char *first = cli_str(json_array_get(list, 0), "version", "");
    const json_t *w;
    size_t i;
    json_array_foreach(list, i, w)
    {
        if (strcmp(cli_str(w, "version", ""), first) != 0)
            return true;
    }
    return false;
}

static void add_worker(const json_t *w, bool versions, struct table *t)
{
    char age[STR_HUMAN_MAX];
    table_cell(t, "%lld", cli_int(w, "id", 0));
    table_cell(t, "%s", cli_str(w, "name", ""));
    table_cell(t, "%s", versions ? cli_str(w, "version", "") : TABLE_NONE);
    table_cell(t, "%s", cli_str(w, "state", ""));
    table_real(t, real(w, "images_per_s"), 1);
    if (cli_has(w, "mfu"))
        table_cell(t, "%.0f %%", 100 * real(w, "mfu"));
    else
        table_cell(t, TABLE_NONE);
    table_cell(t, "%s",
               cli_has(w, "heartbeat_age_ms") ? cli_duration(w, "heartbeat_age_ms", age)
                                              : TABLE_NONE);
    table_cell(t, "%s", doing(w));
}

static void print_troubles(const json_t *w, FILE *out)
{
    const json_t *d;
    char trouble[512];
    size_t i;
    json_array_foreach(json_object_get(w, "devices"), i, d)
    {
        device_trouble(d, trouble, sizeof trouble);
        if (trouble[0])
            fprintf(out, "  worker %lld (%s), %s: %s\n", cli_int(w, "id", 0),
                    cli_str(w, "name", ""), cli_str(d, "name", ""), trouble + strlen("; "));
    }
}

void show_workers(const json_t *list, FILE *out)
{
    static const char *const names[] = {">worker",    "name",     "version",    "state",
                                        ">samples/s", ">of peak", ">heartbeat", "doing"};
    const bool versions = versions_differ(list);
    const json_t *w;
    struct table t;
    size_t i;
    table_init(&t, names, sizeof names / sizeof names[0]);
    json_array_foreach(list, i, w) add_worker(w, versions, &t);
    table_print(&t, out);
    table_release(&t);
    json_array_foreach(list, i, w) print_troubles(w, out);
}
