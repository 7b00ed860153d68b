#include "cli/job/warn.h"

#include "cli/base/cli.h"
#include "cli/job/predict.h"
#include "common/data/tokenizer.h"

#define SLOWER 1.5 /* than the fastest: those that wait for it lose a third of their time */
#define NAMED 3    /* slow workers that are named */

static bool is_here(const json_t *worker)
{
    const char *state = cli_str(worker, "state", "");
    return strcmp(state, "idle") == 0 || strcmp(state, "busy") == 0;
}

static size_t count_here(const json_t *workers)
{
    const json_t *w;
    size_t i, n = 0;
    json_array_foreach(workers, i, w) n += is_here(w);
    return n;
}

__attribute__((format(printf, 2, 3))) static void say(json_t *to, const char *format, ...)
{
    char text[768];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    json_array_append_new(to, cli_text(text));
}

/* ---- disks ---- */

static void of_coordinator(const json_t *status, uint64_t bytes, const char *who, json_t *to)
{
    char has[STR_HUMAN_MAX], needs[STR_HUMAN_MAX];
    const uint64_t room = (uint64_t)cli_int(status, "disk_room_bytes", 0);
    if (cli_has(status, "disk_room_bytes") && room < bytes)
        say(to,
            "the disk of %s has room for %s, but the job needs about %s there: make room, or it "
            "stalls when that disk is full",
            who, str_human_bytes(room, has), str_human_bytes(bytes, needs));
}

static void of_workers(const json_t *workers, uint64_t bytes, json_t *to)
{
    char has[STR_HUMAN_MAX], needs[STR_HUMAN_MAX], more[64] = "";
    const json_t *w, *least = NULL;
    size_t i, small = 0;
    json_array_foreach(workers, i, w)
    {
        const uint64_t room = (uint64_t)cli_int(w, "disk_room_bytes", 0);
        if (!is_here(w) || room == 0 || room >= bytes)
            continue;
        small++;
        if (!least || room < (uint64_t)cli_int(least, "disk_room_bytes", 0))
            least = w;
    }
    if (small > 1)
        (void)snprintf(more, sizeof more, ", and %zu more worker%s too little", small - 1,
                       small == 2 ? " has" : "s have");
    if (least)
        say(to,
            "worker %lld (%s) has room for %s on the disk of its work directory, but the job needs "
            "about %s there%s: make room, or start it with a --work-dir on a larger disk",
            cli_int(least, "id", 0), cli_str(least, "name", ""),
            cli_bytes(least, "disk_room_bytes", has), str_human_bytes(bytes, needs), more);
}

void warn_of_disks(const json_t *status, const json_t *workers, const struct disk_need *need,
                   bool one_disk, json_t *to)
{
    const bool far = json_is_object(json_object_get(status, "blob_store"));
    if (one_disk) {
        of_coordinator(status, need->peak + count_here(workers) * need->worker, "this machine", to);
        return;
    }
    of_coordinator(status, far ? need->outer : need->peak, "the coordinator", to);
    of_workers(workers, need->worker, to);
}

/* ---- speeds ---- */

/* Of the fastest worker's, by what it has done and by what it could do, the greater: one of them
 * may have trained a smaller model, or in another precision.  0: not known. */
static double share_of_fastest(const json_t *w, double flops, double peak)
{
    const double did = cli_num(w, "flops", 0);
    return did > 0 ? fmax(did / flops, cli_num(w, "peak_flops", 0) / peak) : 0;
}

void warn_of_speeds(const json_t *workers, json_t *to)
{
    const json_t *w;
    char names[256] = "", fast[STR_HUMAN_MAX];
    double flops = 0, peak = 0, least = 1;
    size_t i, slow = 0;
    json_array_foreach(workers, i, w)
    {
        flops = is_here(w) ? fmax(flops, cli_num(w, "flops", 0)) : flops;
        peak = is_here(w) ? fmax(peak, cli_num(w, "peak_flops", 0)) : peak;
    }
    json_array_foreach(workers, i, w)
    {
        const double share = share_of_fastest(w, flops, peak);
        if (!is_here(w) || share <= 0 || share * SLOWER >= 1)
            continue;
        least = fmin(least, share);
        if (slow++ < NAMED) {
            const size_t n = strlen(names);
            (void)snprintf(names + n, sizeof names - n, "%sworker %lld (%s)", n ? ", " : "",
                           cli_int(w, "id", 0), cli_str(w, "name", ""));
        }
    }
    if (slow > NAMED) {
        const size_t n = strlen(names);
        (void)snprintf(names + n, sizeof names - n, " and %zu more", slow - NAMED);
    }
    if (slow > 0)
        say(to,
            "the fastest worker computes %s times as fast as the slowest, and outer.steps is the "
            "same for all, so each round waits for the slow: %s; outer.seconds in its place lets "
            "each do what it can",
            str_human_number(1 / least, fast), names);
}

/* ---- numbers ---- */

void warn_of_spares(const json_t *workers, uint32_t phases, json_t *to)
{
    const size_t n = count_here(workers);
    if (n > phases)
        say(to,
            "a round of this job has %u phase%s, so of the %zu workers here %zu %s; a larger "
            "recipe.replicas would have more of them train",
            phases, str_plural(phases), n, n - phases,
            n - phases == 1 ? "is a spare" : "are spares");
}

static void of_spares(const struct job_spec *spec, const json_t *workers, json_t *to)
{
    struct composition c;
    if (recipe_compose(spec, &c, NULL) < 0)
        return;
    if (!c.elastic)
        warn_of_spares(workers, predict_workers(&c), to);
    composition_release(&c);
}

/* ---- all ---- */

static bool need_of(const struct job_file *job, const json_t *workers, struct disk_need *ret)
{
    struct composition c;
    struct measured at;
    const uint32_t vocab = job->tokenizer ? (uint32_t)tokenizer_vocab(job->tokenizer) : 0;
    /* Shards and encoders are uploaded by now. */
    struct disk_options opt = {.workers = (int)count_here(workers),
                               .phase_s = job->spec.outer.seconds};
    if (recipe_compose(&job->spec, &c, NULL) < 0)
        return false;
    const bool known =
        predict_measure(job, &c, vocab, &(struct predict_way){.size = true}, &at, NULL) == 0;
    for (int i = 0; known && i < COMPOSITION_NETWORKS; i++)
        opt.parameters[i] = at.networks[i].parameters;
    if (known)
        disk_predict(&job->spec, &c, &opt, ret);
    composition_release(&c);
    return known;
}

json_t *warn_of_swarm(struct cli *cli, const struct job_file *job, bool one_disk)
{
    json_t *to = json_array(), *status = NULL, *list = NULL;
    struct disk_need need;
    if (cli_call(cli, "GET", NULL, &status, NULL, "/v1/status") == 0 &&
        cli_pages(cli, "/v1/workers", "after", &list, NULL) == 0) {
        const json_t *workers = json_object_get(list, "items");
        if (need_of(job, workers, &need))
            warn_of_disks(status, workers, &need, one_disk, to);
        if (job->spec.outer.steps > 0 && !job->spec.outer.async)
            warn_of_speeds(workers, to);
        of_spares(&job->spec, workers, to);
    }
    json_decref(status);
    json_decref(list);
    return to;
}

void warn_say(const json_t *warnings)
{
    const json_t *text;
    size_t i;
    json_array_foreach(warnings, i, text)(void)
        fprintf(stderr, "skerry: %s\n", json_string_value(text));
}
