#include "cli/job_show.h"

#include <math.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/table.h"
#include "common/base/str.h"

#define BAR 24
#define FIGURES_MAX 200

static bool has(const json_t *o, const char *key)
{
    return json_is_number(json_object_get(o, key));
}

static double real(const json_t *o, const char *key)
{
    return cli_num(o, key, NAN);
}

const char *job_show_unit(const json_t *job)
{
    return json_is_true(json_object_get(job, "text")) ? "rows" : "images";
}

int job_show_stage(const json_t *job, char *out, size_t cap)
{
    const json_t *stage = json_object_get(job, "stage");
    int64_t total = cli_int(stage, "total", 0);
    const char *state = cli_str(job, "state", "?");
    if (total > 0)
        return snprintf(out, cap, "%s %lld/%lld", state, (long long)cli_int(stage, "done", 0),
                        (long long)total);
    return snprintf(out, cap, "%s", state);
}

/* ---- the job itself ------------------------------------------------------ */

static void print_numbers(const json_t *job, FILE *out)
{
    char eta[STR_HUMAN_MAX];
    int64_t total = cli_int(job, "total_steps", 0);
    fprintf(out, "  round %lld/%lld  step %lld", (long long)cli_int(job, "round", 0),
            (long long)cli_int(job, "rounds", 0), (long long)cli_int(job, "step", 0));
    if (total)
        fprintf(out, "/%lld", (long long)total);
    if (has(job, "loss"))
        fprintf(out, "  loss %.4f", real(job, "loss"));
    if (has(job, "eval_loss"))
        fprintf(out, "  held-out %.4f", real(job, "eval_loss"));
    if (has(job, "bits_per_byte"))
        fprintf(out, "  bits/byte %.4f", real(job, "bits_per_byte"));
    if (real(job, "images_per_s") > 0)
        fprintf(out, "  %.0f %s/s", real(job, "images_per_s"), job_show_unit(job));
    if (has(job, "eta_ms"))
        fprintf(out, "  ETA %s", str_human_duration((uint64_t)cli_int(job, "eta_ms", 0), eta));
    fputc('\n', out);
}

static void print_data(const json_t *job, FILE *out)
{
    const json_t *data = json_object_get(job, "dataset");
    int64_t reshards = cli_int(job, "reshards", 0);
    fprintf(out, "  data: %lld samples, %lld held out, %lld shards",
            (long long)cli_int(data, "samples", 0), (long long)cli_int(data, "holdout", 0),
            (long long)cli_int(data, "shards", 0));
    size_t partitions = json_array_size(json_object_get(job, "partitions"));
    if (partitions && cli_int(job, "generation", 0) > 0)
        fprintf(out, ", in %zu partitions", partitions);
    if (reshards)
        fprintf(out, " (%lld of %lld re-routings done)", (long long)cli_int(job, "resharded", 0),
                (long long)reshards);
    fputc('\n', out);
}

static void print_wire(const json_t *job, FILE *out)
{
    const json_t *bytes = json_object_get(job, "bytes"), *net = json_object_get(job, "network");
    char up[STR_HUMAN_MAX], down[STR_HUMAN_MAX], waited[STR_HUMAN_MAX];
    fprintf(out, "  parameters: %s up, %s down",
            str_human_bytes((uint64_t)cli_int(bytes, "up", 0), up),
            str_human_bytes((uint64_t)cli_int(bytes, "down", 0), down));
    if (has(bytes, "ratio"))
        fprintf(out, ", %.3g times the bytes of fp32 data-parallel", real(bytes, "ratio"));
    if (cli_int(net, "waited_ms", 0) > 0)
        fprintf(out, "; workers waited %s for the network",
                str_human_duration((uint64_t)cli_int(net, "waited_ms", 0), waited));
    fputc('\n', out);
}

/* ---- paths --------------------------------------------------------------- */

/* Who trains the path now, "isle-a 12/50, isle-b 9/50"; else what it waits for. */
static void trainers(const json_t *job, const json_t *path, char *out, size_t cap)
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
        (void)snprintf(out + n, cap - n, "%s%.40s %lld/%lld", n ? ", " : "",
                       cli_str(phase, "worker_name", "?"),
                       (long long)cli_int(phase, "steps_done", 0),
                       (long long)cli_int(phase, "steps_total", 0));
    }
    if (out[0] == '\0') {
        const char *state = cli_str(path, "state", "");
        (void)snprintf(out, cap, "%s", strcmp(state, "running") == 0 ? "queued" : state);
    }
}

static int64_t index_of_module(const json_t *job, int64_t id)
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

/* The indices of its modules by level, "0.3.1". */
static void route(const json_t *job, const json_t *path, char *out, size_t cap)
{
    const json_t *id;
    size_t i, n = 0;
    out[0] = '\0';
    json_array_foreach(json_object_get(path, "modules"), i, id)
    {
        int k = snprintf(out + n, cap - n, "%s%lld", i ? "." : "",
                         (long long)index_of_module(job, json_integer_value(id)));
        if (k < 0 || (size_t)k >= cap - n)
            return;
        n += (size_t)k;
    }
}

static void add_path(const json_t *job, const json_t *path, struct table *t)
{
    char who[256], modules[128];
    bool router = strcmp(cli_str(path, "network", ""), "router") == 0;
    trainers(job, path, who, sizeof who);
    route(job, path, modules, sizeof modules);
    if (router)
        table_cell(t, "router");
    else
        table_cell(t, "%lld", (long long)cli_int(path, "path", 0));
    table_cell(t, "%s", modules);
    if (has(path, "partition"))
        table_cell(t, "%lld", (long long)cli_int(path, "partition", 0));
    else
        table_cell(t, "all");
    table_cell(t, "%lld", (long long)cli_int(path, "samples", 0));
    table_cell(t, "%lld/%lld", (long long)cli_int(path, "round", 0),
               (long long)cli_int(path, "rounds", 0));
    table_cell(t, "%s", who);
    table_real(t, real(path, "loss"), 4);
    table_real(t, real(path, "eval_loss"), 4);
    table_real(t, real(path, "bits_per_byte"), 4);
    if (has(path, "best_round"))
        table_cell(t, "%.4f (%lld)", real(path, "best_loss"),
                   (long long)cli_int(path, "best_round", 0));
    else
        table_cell(t, TABLE_NONE);
}

static void print_paths(const json_t *job, FILE *out)
{
    static const char *const names[] = {"path",       ">modules",     ">partition", ">samples",
                                        ">round",     "trained by",   ">loss",      ">held-out",
                                        ">bits/byte", ">best (round)"};
    const json_t *path;
    struct table t;
    size_t i;
    table_init(&t, names, sizeof names / sizeof names[0]);
    json_array_foreach(json_object_get(job, "path_list"), i, path) add_path(job, path, &t);
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
        int64_t n = cli_int(p, "samples", 0);
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
        table_cell(&t, "%lld", (long long)cli_int(p, "partition", 0));
        table_cell(&t, "%lld", (long long)cli_int(p, "samples", 0));
        if (has(p, "share"))
            table_cell(&t, "%.1f %%", 100 * real(p, "share"));
        else
            table_cell(&t, TABLE_NONE);
        table_cell(&t, "%lld", (long long)cli_int(p, "holdout_samples", 0));
        if (cli_int(p, "tokens", 0))
            table_cell(&t, "%lld", (long long)cli_int(p, "tokens", 0));
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
        if (has(f, "path"))
            table_cell(&t, "%lld", (long long)cli_int(f, "path", 0));
        else
            table_cell(&t, TABLE_NONE);
        table_cell(&t, "%lld", (long long)cli_int(f, "round", 0));
    }
    fprintf(out, "\nfigures\n");
    table_print(&t, out);
    if (i < json_array_size(list))
        fprintf(out, "  and %zu more; --json has all\n", json_array_size(list) - i);
    table_release(&t);
}

static void print_waiting(const json_t *job, FILE *out)
{
    const json_t *list = json_object_get(job, "waiting_for"), *w;
    size_t i;
    if (json_array_size(list) == 0)
        return;
    fprintf(out, "\nwaiting for\n");
    json_array_foreach(list, i, w)
    {
        fprintf(out, "  %s: %s\n", cli_str(w, "what", ""), cli_str(w, "why", ""));
    }
}

void job_show(const json_t *job, FILE *out)
{
    char stage[96], age[STR_HUMAN_MAX];
    (void)job_show_stage(job, stage, sizeof stage);
    fprintf(out, "job %lld, %s (%s): %s", (long long)cli_int(job, "id", 0),
            cli_str(job, "name", ""), cli_str(job, "recipe", ""), stage);
    if (cli_int(job, "elapsed_ms", 0) > 0)
        fprintf(out, "%s %s", cli_job_ended(cli_str(job, "state", "")) ? " after" : ", for",
                str_human_duration((uint64_t)cli_int(job, "elapsed_ms", 0), age));
    fputc('\n', out);
    if (*cli_str(job, "reason", ""))
        fprintf(out, "  %s\n", cli_str(job, "reason", ""));
    print_numbers(job, out);
    print_data(job, out);
    print_wire(job, out);
    print_paths(job, out);
    print_partitions(job, out);
    print_figures(job, out);
    print_waiting(job, out);
}
