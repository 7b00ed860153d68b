#include "worker/show_plan.h"

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/job/recipe.h"
#include "worker/frozen/frozen.h"
#include "worker/pipe/planner.h"

/* The job's fields that matter. */
struct asked {
    struct job_train train;
    double estimate;
    int batch;            /* samples of a worker's step */
    const char *unfilled; /* the key that keeps frozen networks out of bubbles; NULL: none */
    int chains, blocks[COSTS_CHAINS_MAX];
};

/* What is never cut trains whole on each device, and there is nothing to plan. */
static int check_cut(const struct job_spec *spec, const struct composition *c, const char *path,
                     struct err *err)
{
    if (spec->model.tied)
        return err_set(
            err, -ERR_CONFIG,
            "%s: with model.tied the head is the embedding: such a model is not cut, and "
            "there is nothing to plan",
            path);
    return c->teacher_job == 0
               ? 0
               : err_set(err, -ERR_CONFIG,
                         "%s: a student of other models is not cut, and there is nothing to plan",
                         path);
}

static int read_asked(const char *path, struct asked *ret, struct err *err)
{
    struct job_spec spec;
    struct composition c = {0};
    struct buf text;
    int rc = file_read(path, JOB_SPEC_MAX, &text, err);
    if (rc < 0)
        return err_wrap(err, "reading the job file");
    rc = job_parse(buf_str(&text), text.len, path, &spec, err);
    if (rc < 0) {
        buf_release(&text);
        return rc;
    }
    rc = job_check_scope(buf_str(&text), text.len, path, &spec, err);
    buf_release(&text);
    if (rc == 0 && (rc = recipe_check(&spec, &c, err)) < 0)
        rc = err_wrap(err, "%s", path);
    if (rc == 0)
        rc = check_cut(&spec, &c, path, err);
    if (rc == 0)
        *ret = (struct asked){.train = spec.train,
                              .estimate = spec.model.self_condition,
                              .batch = (int)c.paths[0].batch,
                              .unfilled = !spec.train.fill          ? "train.fill: false"
                                          : spec.data.buckets.n > 0 ? "data.buckets"
                                                                    : NULL,
                              .chains = job_has_upscaler(&spec) ? 2 : 1,
                              .blocks = {spec.model.depth, spec.upscaler.depth}};
    composition_release(&c);
    job_release(&spec);
    return rc;
}

/* The profile must have a layer for each block. */
static int check_model(const struct asked *a, const struct costs *p, const char *path,
                       struct err *err)
{
    if (p->n_chains != a->chains)
        return err_set(err, -ERR_CONFIG,
                       "%s is of another model: it has %d chain%s, but the job's model has %d",
                       path, p->n_chains, p->n_chains == 1 ? "" : "s", a->chains);
    for (int c = 0; c < a->chains; c++)
        if (p->chains[c].n != a->blocks[c])
            return err_set(
                err, -ERR_CONFIG,
                "%s is of another model: it has %d layers of %s, but the job's %s has %d "
                "blocks",
                path, p->chains[c].n, p->chains[c].name, c == 0 ? "model" : "upscaler",
                a->blocks[c]);
    return 0;
}

/* Orders that a worker would choose from (worker/engine/replica.c). */
static unsigned orders_of(const struct job_train *t)
{
    unsigned orders = planner_orders(t->pipeline);
    if (t->parallel == JOB_PARALLEL_DATA)
        return PLANNER_BIT(PIPE_DATA);
    if (t->recompute)
        orders &= ~PLANNER_BIT(PIPE_SPLIT);
    if (t->parallel == JOB_PARALLEL_AUTO && t->stages == 0)
        orders |= PLANNER_BIT(PIPE_DATA);
    return orders;
}

/* The planner's options: train.accumulate, or powers of two if it is automatic. */
static struct planner_options options(const struct costs *p, const struct asked *a)
{
    const struct job_train *t = &a->train;
    const bool repeats = t->stages > 0 && p->n_devices % t->stages == 0;
    struct planner_options o = {.samples = a->batch,
                                .orders = orders_of(t),
                                .stages = t->stages,
                                .width = repeats ? 1 : 0,
                                .shard = t->shard,
                                .fill = !a->unfilled,
                                .group = FILL_GROUP,
                                .estimate = a->estimate};
    if (t->accumulate > 0)
        o.micros[o.n_micros++] = t->accumulate;
    else
        planner_powers(&o, 1, a->batch);
    return o;
}

static void show_candidate(const struct costs *p, const struct planner_candidate *c,
                           enum pipe_order o, FILE *out)
{
    char memory[STR_HUMAN_MAX];
    const char *name = pipe_plan_name(&(struct pipe_plan){.order = o, .chains = p->n_chains});
    if (!c->possible) {
        (void)fprintf(out, "%-14s %s\n", name, c->why);
        return;
    }
    (void)fprintf(out, "%-14s %6d %6d %6d %10.4g %10.4g %6.1f %% %6.1f %% %6.0f %% %10s%s\n", name,
                  pipe_places(&c->plan), c->plan.copies, c->plan.cuts[0].micros, c->plain,
                  c->seconds, 100 * c->idle_before, 100 * c->idle, 100 * c->inside,
                  str_human_bytes(c->memory, memory), c->plan.shard ? "  shared state" : "");
}

static void show_stages(const struct costs *p, const struct planner_candidate *c, FILE *out)
{
    for (int k = 0; k < c->plan.chains; k++)
        for (int i = 0; i < c->plan.cuts[k].n; i++) {
            const struct pipe_stage *s = &c->plan.cuts[k].stages[i];
            (void)fprintf(out, "  %s layers %d to %d on %s", p->chains[k].name, s->from, s->to - 1,
                          p->devices[s->device].name);
            if (s->devices > 1)
                (void)fprintf(out, " and %d more", s->devices - 1);
            (void)fprintf(out, ": %d micro-batch%s of %d, %d in flight\n", c->plan.cuts[k].micros,
                          c->plan.cuts[k].micros == 1 ? "" : "es", c->plan.cuts[k].samples,
                          s->slots);
        }
}

/* Prints what a device of the first copy holds. */
static void show_device(const struct costs *share, const struct planner_candidate *c, int d,
                        FILE *out)
{
    char all[STR_HUMAN_MAX], slots[STR_HUMAN_MAX], weights[STR_HUMAN_MAX], scratch[STR_HUMAN_MAX];
    char model[STR_HUMAN_MAX], beside[STR_HUMAN_MAX];
    const struct plan_memory m = plan_memory(share, &c->plan, d);
    (void)fprintf(out, "  %s: %s, of which %s model and optimiser, %s slots, %s beside them",
                  share->devices[d].name, str_human_bytes(plan_bytes(share, &c->plan, d), all),
                  str_human_bytes(m.model, model), str_human_bytes(m.slots, slots),
                  str_human_bytes(m.beside, beside));
    if (share->n_frozen > 0 && c->plan.bare[d])
        (void)fprintf(out, "; no room for the frozen networks: others encode");
    else if (share->n_frozen > 0)
        (void)fprintf(out, ", %s frozen weights, %s scratch", str_human_bytes(m.frozen, weights),
                      str_human_bytes(m.scratch, scratch));
    (void)fputc('\n', out);
}

static void show_devices(const struct costs *p, const struct planner_candidate *c, FILE *out)
{
    struct costs share;
    costs_share(p, c->plan.copies, &share);
    if (c->plan.copies > 1)
        (void)fprintf(out, "  each of %d copies:\n", c->plan.copies);
    for (int d = 0; d < c->plan.devices; d++)
        show_device(&share, c, d, out);
}

static void show(const struct costs *p, const struct planner_options *opt,
                 const struct planner_result *r, FILE *out)
{
    (void)fprintf(out, "%s: %d sample%s a step on %d device%s; simulated from the profile\n\n",
                  p->model, opt->samples, opt->samples == 1 ? "" : "s", p->n_devices,
                  p->n_devices == 1 ? "" : "s");
    (void)fprintf(out, "%-14s %6s %6s %6s %10s %10s %8s %8s %8s %10s\n", "", "stages", "copies",
                  "micro", "s trained", "s a step", "bubbles", "left", "filled", "memory");
    for (enum pipe_order o = 0; o < PIPE_ORDERS; o++)
        show_candidate(p, &r->of[o], o, out);
    (void)fprintf(out, "\n%s\n", r->why);
    show_stages(p, &r->of[r->chosen], out);
    show_devices(p, &r->of[r->chosen], out);
}

/* ---- frozen networks that run before the step ---- */

/* The slowest way from the host's memory to a device; 0: a device has none. */
static double host_rate(const struct costs *p)
{
    double least = INFINITY;
    for (int d = 0; d < p->n_devices; d++)
        least = fmin(least, p->devices[d].from_host);
    return least;
}

/* Bytes of the frozen networks on a device that streams them over so many samples: two layers of
 * each, and what layers leave. */
static uint64_t streamed_bytes(const struct costs *p, int samples)
{
    uint64_t sum = 0;
    for (int k = 0; k < p->n_frozen; k++) {
        const struct costs_frozen *f = &p->frozen[k];
        uint64_t slots[FROZEN_SLOTS] = {0}, scratch = 0;
        for (int i = 0; i < f->n; i++) {
            const struct costs_frozen_layer *l = &f->layers[i];
            uint64_t *slot = &slots[i % FROZEN_SLOTS];
            *slot = l->weight_bytes > *slot ? l->weight_bytes : *slot;
            scratch = l->scratch_bytes > scratch ? l->scratch_bytes : scratch;
        }
        for (int i = 0; i < FROZEN_SLOTS; i++)
            sum += slots[i];
        sum += scratch * (uint64_t)samples;
    }
    return sum;
}

/* Seconds for so many samples; rate: bytes a second at which weights come, 0: they are there. */
static double frozen_takes(const struct costs *p, double rate, int samples)
{
    double seconds = 0;
    for (int k = 0; k < p->n_frozen; k++)
        for (int i = 0; i < p->frozen[k].n; i++) {
            const struct costs_frozen_layer *l = &p->frozen[k].layers[i];
            const double copy = rate > 0 ? (double)l->weight_bytes / rate : 0;
            seconds += fmax(copy, costs_seconds(&p->groups, &l->t, samples));
        }
    return seconds;
}

/* The frozen networks run before the step, where a chain begins: so many bytes of them lie there.
 */
static void run_before(struct costs *p, uint64_t bytes, double rate, int most)
{
    struct costs_points at = {0};
    struct costs_time load = {0};
    for (int n = 1; n <= most && at.n < COSTS_POINTS_MAX; n *= 2) {
        at.samples[at.n] = n;
        load.s[at.n++] = frozen_takes(p, rate, n);
    }
    p->groups = at;
    p->load = load;
    for (int c = 0; c < p->n_chains; c++)
        p->chains[c].layers[0].weight_bytes += bytes;
    for (; p->n_frozen > 0; p->n_frozen--)
        mem_free(p->frozen[p->n_frozen - 1].layers);
}

static void show_streamed(const struct costs *p, const struct planner_options *opt,
                          const struct pipe_plan *plan, FILE *out)
{
    char all[STR_HUMAN_MAX], need[STR_HUMAN_MAX];
    const int sharers = plan->copies * pipe_place(plan, 0).devices;
    const int samples = (opt->samples + sharers - 1) / sharers;
    const double rate = host_rate(p);
    const uint64_t bytes = frozen_networks_bytes(p, 0);
    (void)fprintf(
        out,
        "No device has room for the frozen networks (%s): they stay in the host's memory, "
        "and the first stage's devices stream them, in %s, before each step. For %d "
        "samples each that takes %.4g s, which the seconds above include; copies alone take "
        "%.4g s.\n",
        str_human_bytes(bytes, all), str_human_bytes(streamed_bytes(p, samples), need), samples,
        frozen_takes(p, rate, samples), (double)bytes / rate);
}

static void show_all(const struct asked *asked, const struct costs *p, const struct costs *costs,
                     const struct planner_options *opt, const struct planner_result *r,
                     bool streams, FILE *out)
{
    if (asked->batch != asked->train.batch)
        (void)fprintf(out, "The experts share train.batch (%d): each has %d samples a step.\n",
                      asked->train.batch, asked->batch);
    show(costs, opt, r, out);
    if (streams)
        show_streamed(p, opt, &r->of[r->chosen].plan, out);
    else if (costs->n_frozen < p->n_frozen)
        (void)fprintf(out,
                      "%s stage runs the frozen networks before each step (%s); the seconds above "
                      "include that.\n",
                      asked->chains > 1 ? "Each chain's first" : "The first", asked->unfilled);
}

int show_plan_check(const char *job_path, struct err *err)
{
    struct asked asked;
    return read_asked(job_path, &asked, err);
}

int show_plan_of(const char *job_path, const char *name, const struct costs *p, FILE *out,
                 struct err *err)
{
    struct asked asked = {0};
    struct planner_result result;
    struct costs costs;
    int rc = read_asked(job_path, &asked, err);
    if (rc == 0)
        rc = check_model(&asked, p, name, err);
    if (rc < 0)
        return rc;
    const struct planner_options opt = options(p, &asked);
    const bool frozen = p->n_frozen > 0, apart = frozen && asked.unfilled;
    if (costs_copy(p, &costs) < 0)
        return err_set(err, -ENOMEM, "no memory to plan");
    if (apart)
        run_before(&costs, frozen_networks_bytes(p, 0), 0, opt.samples);
    rc = planner_search(&costs, &opt, &result, err);
    const bool streams = rc == -ENOMEM && frozen && host_rate(p) > 0;
    if (streams) {
        costs_release(&costs);
        if (costs_copy(p, &costs) < 0)
            return err_set(err, -ENOMEM, "no memory to plan");
        run_before(&costs, streamed_bytes(p, pipe_most(opt.samples, p->n_devices)), host_rate(p),
                   opt.samples);
        rc = planner_search(&costs, &opt, &result, err);
    }
    if (rc == 0) {
        show_all(&asked, p, &costs, &opt, &result, streams, out);
        planner_release(&result);
    }
    costs_release(&costs);
    return rc;
}

int show_plan(const char *job_path, const char *profile_path, FILE *out, struct err *err)
{
    struct costs p;
    int rc = costs_read(profile_path, &p, err);
    if (rc < 0)
        return rc;
    rc = show_plan_of(job_path, profile_path, &p, out, err);
    costs_release(&p);
    return rc;
}
