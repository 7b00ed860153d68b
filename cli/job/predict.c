#include "cli/job/predict.h"

#include <jansson.h>

#include "cli/base/cli.h"
#include "common/base/moving.h"
#include "cli/base/program.h"
#include "common/job/family.h"

#define FLAGS_MAX 24
/* The times of a job beyond its steps, measured on one machine of two cores: for the start of
 * programs, the first step and the end; and between two phases for coding, sending, folding and
 * fetching, with the part per parameter. */
#define START_S 1.8
#define FOLD_S 0.15
#define FOLD_PARAMETER_S 2e-8

/* ---- workerd measure ---- */

/* Adds arguments with the model's sizes that depend on data and encoders. */
struct flags {
    char *items[FLAGS_MAX + 1];
    size_t n;
};

static void add(struct flags *f, const char *text)
{
    f->items[f->n++] = str_dup(text);
}

static void add_number(struct flags *f, const char *name, long long value)
{
    if (value <= 0)
        return;
    add(f, name);
    f->items[f->n++] = str_printf("%lld", value);
}

static void flags_make(struct flags *f, const struct job_file *job, uint32_t vocab,
                       const struct predict_way *way, bool router)
{
    const struct encoders *e = &job->encoders;
    *f = (struct flags){0};
    add(f, "measure");
    add(f, "-");
    if (router)
        add(f, "--router");
    if (way->size)
        add(f, "--size");
    add_number(f, "--together", way->together);
    add_number(f, "--threads", way->threads);
    add_number(f, "--classes", job->dataset ? (long long)dataset_classes(job->dataset) : 1);
    add_number(f, "--vocab", vocab);
    add_number(f, "--channels", e->channels);
    add_number(f, "--side", e->side);
    add_number(f, "--caption", router ? 0 : e->caption);
    add_number(f, "--caption-tokens", router ? 0 : e->caption_tokens);
}

static void flags_release(struct flags *f)
{
    for (size_t i = 0; i < f->n; i++)
        mem_free(f->items[i]);
}

/* Takes the program's answer, and passes on its warnings. */
static int ask(const struct flags *f, const struct buf *text, struct program_said *said,
               struct err *err)
{
    char why[512];
    int rc = program_run("workerd", (const char *const *)f->items, buf_str(text), 0, said, err);
    if (rc < 0)
        return rc;
    if (said->status != 0)
        return err_set(err, -ECHILD, "`workerd measure` failed: %s",
                       program_reason(said, "workerd", why, sizeof why));
    if (said->errors[0])
        moving_clear();
    (void)fputs(said->errors, stderr);
    return 0;
}

static int read_answer(const char *answer, struct measured_network *network, struct measured *at,
                       struct err *err)
{
    json_error_t why;
    json_t *o = json_loads(answer, 0, &why);
    if (!o)
        return err_set(err, -ERR_FORMAT, "`workerd measure` said no JSON: %s", why.text);
    str_copy(at->device, sizeof at->device, cli_str(o, "device", "?"));
    str_copy(at->refused, sizeof at->refused, cli_str(o, "refused", at->refused));
    at->cards = (int)cli_int(o, "cards", 0);
    at->room_bytes = (uint64_t)cli_int(o, "room_bytes", 0);
    *network = (struct measured_network){
        .parameters = (uint64_t)cli_int(o, "parameters", 0),
        .memory_bytes = (uint64_t)cli_int(o, "memory_bytes", 0),
        .batch = (int)cli_int(o, "batch", 1),
        .step_s = cli_num(o, "step_s", 0),
        .forward_s = cli_num(o, "forward_s", 0),
        .flops = cli_num(o, "flops", 0),
    };
    json_decref(o);
    return 0;
}

int predict_measure(const struct job_file *job, const struct composition *c, uint32_t vocab,
                    const struct predict_way *way, struct measured *ret, struct err *err)
{
    if (job_family(&job->spec)->external)
        return err_set(err, -ERR_UNIMPLEMENTED, "trainers are not measured");
    struct program_said said;
    struct measured at = {0};
    int rc = 0;
    for (int i = 0; i < COMPOSITION_NETWORKS && rc == 0; i++) {
        struct flags f;
        if (c->networks[i].n_levels == 0)
            continue;
        flags_make(&f, job, vocab, way, i > 0);
        if (!way->size)
            moving_now("measuring training steps on this machine: %s of width %d and %d blocks",
                       i > 0 ? "a router" : "a model", job->spec.model.dim, job->spec.model.depth);
        rc = ask(&f, &job->text, &said, err);
        if (rc == 0)
            rc = read_answer(said.out, &at.networks[i], &at, err);
        flags_release(&f);
    }
    moving_clear();
    if (rc == 0)
        *ret = at;
    return rc;
}

/* ---- arithmetic ---- */

uint32_t predict_workers(const struct composition *c)
{
    uint32_t phases = 0;
    for (uint32_t p = 0; p < c->n_paths; p++)
        phases += c->paths[p].replicas;
    return c->elastic ? PREDICT_WORKERS : phases;
}

uint32_t predict_replicas(const struct composition *c, uint32_t path, uint64_t workers)
{
    const uint32_t most = c->paths[path].replicas;
    const uint64_t each = workers / c->n_paths > 0 ? workers / c->n_paths : 1;
    return c->elastic && each < most ? (uint32_t)each : most;
}

/* Gives phases in order to the worker that is free first; returns the end of the last one. */
static double makespan(const struct job_spec *s, const struct composition *c,
                       const struct measured *at, int workers)
{
    double *busy = mem_alloc_array((size_t)workers, sizeof *busy), last = 0;
    for (uint32_t p = 0; p < c->n_paths; p++)
        for (uint32_t r = 0; r < predict_replicas(c, p, (uint64_t)workers); r++) {
            const double step_s = at->networks[c->paths[p].network].step_s;
            int least = 0;
            for (int i = 1; i < workers; i++)
                least = busy[i] < busy[least] ? i : least;
            busy[least] += s->outer.steps ? s->outer.steps * step_s : s->outer.seconds;
            last = fmax(last, busy[least]);
        }
    mem_free(busy);
    return last;
}

/* The number of times that something is done in a job: every so many rounds, and at the end. */
static int times(const struct job_spec *s, int every)
{
    return every ? (s->outer.rounds + every - 1) / every : 1;
}

/* The paths of the main network: each has its own held-out losses and, at the end, its own grid. */
static int main_paths(const struct composition *c)
{
    int n = 0;
    for (uint32_t p = 0; p < c->n_paths; p++)
        n += c->paths[p].network == 0;
    return n;
}

static int evaluations(const struct job_spec *s)
{
    return s->data.holdout > 0 || s->data.holdout_path ? times(s, s->eval.every) : 0;
}

static int grids(const struct job_spec *s)
{
    return job_is_text(s) ? 0 : times(s, s->sample.every);
}

/* The most experts that a point of a mixture's drawing runs through. */
static int experts_of_point(const struct job_spec *s, int experts)
{
    const int strategy = s->sample.strategy;
    if (strategy == JOB_STRATEGY_TOP1 || strategy == JOB_STRATEGY_ORACLE)
        return 1;
    return strategy == JOB_STRATEGY_TOPK ? s->sample.top : experts;
}

/* Held-out samples of a loss, of all paths together: partitions share eval.samples.  A mixture's
 * are judged by the router, and again by each expert and the router. */
static double judging(const struct job_spec *s, const struct composition *c,
                      const struct measured *at, uint64_t holdout)
{
    const uint64_t most = (uint64_t)s->eval.samples;
    const double judged = (double)(holdout && holdout < most ? holdout : most);
    double each = at->networks[0].forward_s;
    if (c->mixture)
        each += main_paths(c) * at->networks[0].forward_s + 2 * at->networks[1].forward_s;
    return evaluations(s) * judged * each;
}

/* The grids of the rounds are those of the mixture, or of the first path; at the end each path has
 * one, drawn by all workers. */
static double drawing(const struct job_spec *s, const struct composition *c,
                      const struct measured *at, int workers)
{
    const int solver = s->sample.sampler == JOB_SAMPLER_HEUN ? 2 : 1, n = main_paths(c);
    const int ways = s->sample.guidance != 1 ? 2 : 1, turns = (n + workers - 1) / workers;
    const double points = (double)s->sample.count * s->sample.steps * solver;
    const double one = points * ways * at->networks[0].forward_s;
    if (job_is_text(s))
        return 0;
    if (!c->mixture)
        return (grids(s) - 1 + turns) * one;
    return grids(s) * (experts_of_point(s, n) * one + points * at->networks[1].forward_s) +
           turns * one;
}

int predict_snapshots(double phase_s, double apart_s, double sent_s)
{
    return apart_s > 0 ? (int)fmax(0, (phase_s - sent_s) / apart_s - 0.5) : 0;
}

/* Snapshots of a phase of the network, if it is the largest. */
static void snapshots(const struct job_spec *s, const struct measured_network *n,
                      const struct predict_options *opt, struct prediction *p)
{
    const double phase_s = s->outer.steps ? s->outer.steps * n->step_s : s->outer.seconds;
    double apart = job_snapshot_s(s, n->parameters), sent_s = 0;
    p->snapshot_bytes = codec_bytes(codec_of_part((enum codec)s->wire.up), n->parameters);
    if (opt->bytes_per_s)
        sent_s = (double)p->snapshot_bytes / (double)opt->bytes_per_s;
    if (apart > 0)
        apart = fmax(apart, JOB_SNAPSHOT_SENT_SHARE * sent_s);
    p->snapshot_s = apart;
    p->snapshots = predict_snapshots(phase_s, apart, sent_s);
}

/* Times that an average of a path's weights is fetched, if by another worker each: for each path's
 * loss and last grid, and of all paths for a mixture's. */
static void averages(const struct job_spec *s, const struct composition *c,
                     const struct measured_network *n, struct prediction *p)
{
    const int paths = main_paths(c), mixed = c->mixture ? paths : 0;
    p->average_bytes = codec_bytes(CODEC_F32, n->parameters);
    p->averages = evaluations(s) * (paths + mixed);
    if (grids(s) > 0)
        p->averages += mixed ? grids(s) * mixed + paths : grids(s) - 1 + paths;
}

void predict(const struct job_spec *spec, const struct composition *c, const struct measured *at,
             const struct predict_options *opt, struct prediction *ret)
{
    struct prediction p = {0};
    double through = 0;
    for (uint32_t i = 0; i < c->n_paths; i++) {
        const struct composition_path *path = &c->paths[i];
        const struct measured_network *n = &at->networks[path->network];
        const uint64_t up = codec_bytes((enum codec)spec->wire.up, n->parameters);
        const uint64_t down = codec_bytes((enum codec)spec->wire.down, n->parameters);
        const double steps =
            spec->outer.steps ? spec->outer.steps : spec->outer.seconds / n->step_s;
        const uint32_t replicas = predict_replicas(c, i, (uint64_t)opt->workers);
        p.phases += (int)replicas;
        if (up > p.up_bytes)
            snapshots(spec, n, opt, &p);
        p.up_bytes = up > p.up_bytes ? up : p.up_bytes;
        p.down_bytes = down > p.down_bytes ? down : p.down_bytes;
        through += replicas * (double)(up + down);
        if (path->network == 0)
            p.seen += (uint64_t)(replicas * path->batch * steps * spec->outer.rounds);
    }
    p.train_s = makespan(spec, c, at, opt->workers);
    const struct fragments_round r = {
        .whole = {.link_s = opt->bytes_per_s ? through / (double)opt->bytes_per_s : 0,
                  .fold_s =
                      FOLD_S + FOLD_PARAMETER_S * p.phases * (double)at->networks[0].parameters},
        .step_s = at->networks[0].step_s,
        .train_s = p.train_s,
        .bytes_per_s = opt->bytes_per_s,
        .parameters = at->networks[0].parameters,
    };
    struct exchange way = r.whole;
    fragments_choose(spec, c, &r, &p.parts);
    if (job_streams(spec) && spec->outer.steps)
        way = fragments_exchange(&r, (int)c->fragments, spec->outer.delay);
    else if (p.parts.taken)
        way = fragments_exchange(&r, p.parts.fragments, p.parts.delay);
    if (p.parts.taken) /* fragments contribute within the phase */
        p.snapshots = 0;
    averages(spec, c, &at->networks[0], &p);
    p.whole = r.whole;
    p.link_s = way.link_s;
    p.fold_s = way.fold_s;
    p.rest_s = judging(spec, c, at, opt->holdout) + drawing(spec, c, at, opt->workers);
    p.start_s = START_S + opt->data_s;
    p.total_s = p.start_s + spec->outer.rounds * (p.train_s + p.fold_s + p.link_s) + p.rest_s;
    *ret = p;
}

/* ---- for a person ---- */

static const char *seconds(double s, char out[STR_HUMAN_MAX])
{
    if (s < 10)
        (void)snprintf(out, STR_HUMAN_MAX, "%.2g s", s);
    else
        str_human_duration((uint64_t)(s * 1000), out);
    return out;
}

static void show_model(const struct measured *at, FILE *out)
{
    char need[STR_HUMAN_MAX], room[STR_HUMAN_MAX];
    const struct measured_network *n = at->networks;
    (void)fprintf(out, "model     %s M parameters",
                  str_human_number((double)n[0].parameters / 1e6, need));
    if (n[1].parameters)
        (void)fprintf(out, ", its router %s M",
                      str_human_number((double)n[1].parameters / 1e6, need));
    (void)fprintf(out, "\nmemory    %s of %s that training may take on this machine (%s)\n",
                  str_human_bytes(n[0].memory_bytes, need), str_human_bytes(at->room_bytes, room),
                  at->device);
}

static void show_round(const struct job_spec *s, const struct predict_options *opt,
                       const struct prediction *p, FILE *out)
{
    char train[STR_HUMAN_MAX], link[STR_HUMAN_MAX], up[STR_HUMAN_MAX], down[STR_HUMAN_MAX];
    char left[STR_HUMAN_MAX], all[STR_HUMAN_MAX], rate[STR_HUMAN_MAX];
    (void)fprintf(out, "a round   %d phase%s on %d worker%s %s this machine: %s\n", p->phases,
                  p->phases > 1 ? "s" : "", opt->workers, opt->workers > 1 ? "s" : "",
                  opt->here ? "on" : "like", seconds(p->train_s + p->fold_s, train));
    (void)fprintf(out, "network   %s up (%s) and %s down (%s) for each phase",
                  str_human_bytes(p->up_bytes, up), codec_name((enum codec)s->wire.up),
                  str_human_bytes(p->down_bytes, down), codec_name((enum codec)s->wire.down));
    if (opt->bytes_per_s)
        (void)fprintf(out,
                      "; through the coordinator's link of %s Mbit/s they make a round wait for "
                      "%s, %.0f %% of the time",
                      str_human_number((double)opt->bytes_per_s * 8e-6, rate),
                      seconds(p->link_s, link),
                      100 * p->link_s / (p->link_s + p->fold_s + p->train_s));
    (void)fputc('\n', out);
    if (p->snapshots > 0)
        (void)fprintf(out,
                      "          %d snapshot%s of %s up (%s) in each phase, %s apart: %.2g times "
                      "its contribution\n",
                      p->snapshots, str_plural((uint64_t)p->snapshots),
                      str_human_bytes(p->snapshot_bytes, up),
                      codec_name(codec_of_part((enum codec)s->wire.up)),
                      seconds(p->snapshot_s, left),
                      p->snapshots * (double)p->snapshot_bytes / (double)p->up_bytes);
    if (p->averages > 0)
        (void)fprintf(
            out,
            "          %s down for each held-out loss and grid of samples, %d in the job, "
            "unless the same worker has it\n",
            str_human_bytes(p->average_bytes, down), p->averages);
    if (p->parts.fragments)
        (void)fprintf(
            out,
            "fragments `outer: {fragments: %d, delay: %d, mix: 0.5}` would leave %s of the "
            "%s between\n          two rounds; `skerry submit` %s%s\n",
            p->parts.fragments, p->parts.delay, seconds(p->parts.left_s, left),
            seconds(p->whole.link_s + p->whole.fold_s, all),
            p->parts.taken ? "takes them over such links" : "does not take them by itself: ",
            p->parts.taken ? "" : p->parts.why);
}

/* A default that was measured for narrower models only. */
static void show_rate(const struct job_spec *s, FILE *out)
{
    const double tokens = (double)s->train.batch * s->model.context;
    const bool warm = s->model.warm_start != NULL;
    if (s->model.dim > JOB_LR_MEASURED &&
        s->train.lr == job_lr(job_is_text(s), warm, s->model.dim, tokens))
        (void)fprintf(out,
                      "train.lr  is %.2g by default, a guess for a width of %d: it was measured up "
                      "to %d;\n          lower it if the loss jumps\n",
                      s->train.lr, s->model.dim, JOB_LR_MEASURED);
}

void predict_show(const struct job_spec *spec, const struct measured *at,
                  const struct predict_options *opt, const struct prediction *p, uint64_t samples,
                  FILE *out)
{
    char total[STR_HUMAN_MAX], step[STR_HUMAN_MAX], rate[STR_HUMAN_MAX];
    show_model(at, out);
    show_rate(spec, out);
    if (at->refused[0]) {
        (void)fprintf(out, "time      not known, because it does not fit here: %s\n", at->refused);
        return;
    }
    const struct measured_network *n = at->networks;
    (void)fprintf(out, "a step    %s s: %s %s/s\n", str_human_number(n->step_s, step),
                  str_human_number(n->batch / n->step_s, rate),
                  job_is_text(spec) ? "rows" : "images");
    show_round(spec, opt, p, out);
    (void)fprintf(out, "the job   %d round%s, about %s; %llu %s are seen", spec->outer.rounds,
                  str_plural((uint64_t)spec->outer.rounds), seconds(p->total_s, total),
                  (unsigned long long)p->seen, job_is_text(spec) ? "rows" : "images");
    if (samples && !job_is_text(spec))
        (void)fprintf(out, ", each %.3g times", (double)p->seen / (double)samples);
    (void)fputc('\n', out);
}
