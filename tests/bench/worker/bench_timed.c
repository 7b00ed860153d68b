/* Pipelines on timed devices: CPU devices that compute a tiny model and then sleep until each
 * instruction has taken what a made-up profile says.  So threads, transfers, waiting and the
 * filling of bubbles are the real ones, on as many devices as one likes; their figures are
 * simulated ones.
 *
 * Prints figures as JSON lines, cases on stderr. */
#include "tests/unit/worker/train/real_encoders.h"

#include <time.h>

#include "common/base/clock.h"
#include "worker/pipe/fill.h"

enum { SAMPLES = 8, DEPTH = 8, WARM = 2, STEPS_TIMED = 6 };

struct timed_case {
    const char *name;
    int stages, copies, micros;
    double rho; /* frozen over trained time */
    enum pipe_order order;
    double said; /* frozen layers' times by the profile, over what they take; 0: 1 */
};

static const struct timed_case cases[] = {
    {"4 stages, 4 micro-batches, rho 0.89", 4, 1, 4, 0.89, PIPE_1F1B},
    {"4 stages, 4 micro-batches, rho 0.44", 4, 1, 4, 0.44, PIPE_1F1B},
    {"2 stages, 2 micro-batches, rho 0.44", 2, 1, 2, 0.44, PIPE_1F1B},
    {"8 stages, 4 micro-batches, rho 0.89", 8, 1, 4, 0.89, PIPE_1F1B},
    {"2 pipelines of 4 stages, 4 micro-batches, rho 0.89", 4, 2, 4, 0.89, PIPE_1F1B},
    {"4 stages, 8 micro-batches, nothing frozen", 4, 1, 8, 0, PIPE_1F1B},
    {"4 stages, 8 micro-batches, nothing frozen, split", 4, 1, 8, 0, PIPE_SPLIT},
    {"4 stages, 4 micro-batches, rho 0.44, split", 4, 1, 4, 0.44, PIPE_SPLIT},
};
enum { PLAIN = 5, SPLIT = 6 }; /* of these, that are compared */

static const struct timed_case wrong = {
    "4 stages, 4 micro-batches, rho 0.6, a wrong profile", 4, 1, 4, 0.6, PIPE_1F1B, 0.5};

static const char *const islands[] = {
    [2] = "cpu,cpu", [4] = "cpu,cpu,cpu,cpu", [8] = "cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu"};

#define LAYER_S 6e-3 /* of a layer's forward over a micro-batch, and of each backward */

/* Every layer costs in proportion to samples; frozen layers are alike. */
static void make_costs(const struct timed_case *c, const struct real_encoders *e, struct costs *p)
{
    const enum net_encoder which[] = {NET_IMAGES, NET_CAPTIONS};
    const int each = SAMPLES / c->micros;
    const double f = LAYER_S / each, trained = 3 * f * DEPTH;
    int layers = 0;
    *p = (struct costs){.sizes = {1, {1}}, .groups = {1, {1}}, .n_chains = 1};
    p->n_devices = c->stages * c->copies;
    for (int d = 0; d < p->n_devices; d++)
        p->devices[d] = (struct costs_device){.speed = 1, .memory = (uint64_t)1 << 40};
    for (int d = 0; d + 1 < p->n_devices; d++)
        p->links[d] = (struct costs_link){0, INFINITY};
    p->chains[0].n = DEPTH;
    p->chains[0].layers = mem_alloc_array(DEPTH, sizeof *p->chains[0].layers);
    for (int i = 0; i < DEPTH; i++)
        p->chains[0].layers[i] = (struct costs_layer){.f = {{f}}, .b = {{f}}, .w = {{f}}};
    for (int k = 0; k < 2; k++)
        layers += frozen_layers(e->ranks[0].of[which[k]]);
    p->n_frozen = c->rho > 0 ? 2 : 0;
    for (int k = 0; k < p->n_frozen; k++) {
        struct costs_frozen *z = &p->frozen[k];
        z->n = frozen_layers(e->ranks[0].of[which[k]]);
        z->layers = mem_alloc_array((size_t)z->n, sizeof *z->layers);
        for (int i = 0; i < z->n; i++)
            z->layers[i].t.s[0] = c->rho * trained / layers;
    }
}

/* A device of a copy. */
struct pacer {
    const struct costs *costs;
    const struct pipe_plan *plan;
    int device;
};

static double seconds_of(const struct pacer *p, const struct pipe_instr *in)
{
    const struct pipe_stage *s = &p->plan->cuts[0].stages[p->device];
    const bool split = p->plan->order == PIPE_SPLIT;
    double sum = 0;
    if (in->op == PIPE_FROZEN)
        return frozen_seconds(p->costs, p->device, in->chain, in->from, in->to, in->count);
    for (int i = s->from; i < s->to; i++) {
        const struct pipe_cost c =
            pipe_layer_cost(p->costs, 0, i, p->plan->cuts[0].micros, p->plan->cuts[0].samples);
        sum += in->op == PIPE_F   ? c.f
               : in->op == PIPE_B ? c.b + (split ? 0 : c.w)
               : in->op == PIPE_W ? (split ? c.w : 0)
                                  : 0;
    }
    return sum;
}

/* From when the instruction could compute: what it waited for is behind it. */
static void pace(void *arg, const struct pipe_instr *in, uint64_t ready_ns)
{
    const double seconds = seconds_of(arg, in);
    const uint64_t until = ready_ns + (uint64_t)(seconds * 1e9);
    const struct timespec at = {.tv_sec = (time_t)(until / CLOCK_NS_PER_S),
                                .tv_nsec = (long)(until % CLOCK_NS_PER_S)};
    if (seconds > 0 && clock_now_ns() < until)
        (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static double predict(const struct costs *costs, const struct pipe_plan *plan)
{
    const struct fill_options opt = {
        .samples = SAMPLES / plan->copies, .group = FILL_GROUP, .share = 1};
    struct fill_report report;
    struct pipe_schedule s;
    struct costs share;
    costs_share(costs, plan->copies, &share);
    OK(schedule_make(&share, plan, &s, err));
    OK(fill_schedule(&share, plan, &opt, &s, &report, err));
    schedule_release(&s);
    return report.seconds;
}

/* The fastest list of a split plan. */
static void choose_split(const struct costs *costs, struct pipe_plan *plan)
{
    double least = INFINITY;
    int best = 0;
    pipe_plan_split(plan);
    for (plan->variant = 0; plan->variant < SCHEDULE_VARIANTS; plan->variant++) {
        const double seconds = predict(costs, plan);
        best = seconds < least ? plan->variant : best;
        least = fmin(least, seconds);
    }
    plan->variant = best;
}

struct inputs_of_step {
    uint8_t pixels[2 * SAMPLES * 3 * TINY_PIXELS * TINY_PIXELS];
    int32_t captions[2 * SAMPLES * 5], lengths[2 * SAMPLES];
};

/* Mean seconds of a step whose next one is known, or is not and so is encoded before it. */
static double run(struct island_trainer *t, const struct model_spec *spec, bool told)
{
    struct inputs_of_step *x = mem_alloc(sizeof *x);
    struct step_result r;
    uint64_t begun = 0;
    for (int i = 0; i < WARM + STEPS_TIMED; i++) {
        tiny_captions(spec, (uint64_t)i * SAMPLES, 2 * SAMPLES, x->pixels, x->captions, x->lengths);
        const struct batch both = {.count = 2 * SAMPLES,
                                   .images = x->pixels,
                                   .captions = x->captions,
                                   .caption_lengths = x->lengths};
        const struct batch_sizes sizes = {.image = 3 * TINY_PIXELS * TINY_PIXELS,
                                          .caption_tokens = 5};
        struct batch now, next;
        batch_slice(&both, 0, SAMPLES, &sizes, &now);
        batch_slice(&both, SAMPLES, SAMPLES, &sizes, &next);
        begun = i == WARM ? clock_now_ns() : begun;
        OK(island_trainer_step(t, &now, told ? &next : NULL, &r, err));
    }
    const double seconds = (double)(clock_now_ns() - begun) / 1e9 / STEPS_TIMED;
    mem_free(x);
    return seconds;
}

/* What the profile says. */
static void say_costs(const struct timed_case *c, const struct costs *real, struct costs *ret)
{
    if (costs_copy(real, ret) < 0)
        fail_msg("no memory");
    for (int k = 0; k < ret->n_frozen; k++)
        for (int i = 0; i < ret->frozen[k].n; i++)
            ret->frozen[k].layers[i].t.s[0] *= c->said > 0 ? c->said : 1;
}

/* Until bubbles are filled by what steps took, if the profile is wrong. */
static void refill(const struct timed_case *c, struct island_trainer *t,
                   const struct model_spec *spec)
{
    while (c->said > 0 && island_trainer_refill(t)->state != REFILL_DONE)
        (void)run(t, spec, true);
}

/* ret: seconds of a step, filled and not, as predicted by a right profile, and filled again. */
static void measure(const struct timed_case *c, double ret[4])
{
    const int n = c->stages * c->copies;
    struct model_spec spec = tiny_captioned();
    struct train_options o = options();
    struct real_encoders *e = mem_alloc(sizeof *e);
    struct pacer pacers[8];
    struct island *is = NULL;
    struct island_trainer *t;
    struct pipe_plan plan;
    struct costs costs, share, said;
    spec.depth = DEPTH;
    struct model *m = make_model(&spec);
    float *flat = tiny_weights(m, 21);
    o.batch = SAMPLES;
    o.accumulate = c->micros;
    o.label_dropout = 0;
    OK(island_open(islands[n], n, &is, err));
    real_encoders_open(e, is);
    o.encoders = e->tables;
    make_costs(c, e, &costs);
    say_costs(c, &costs, &said);
    costs_share(&costs, c->copies, &share);
    OK(island_even_plan(is, m, c->stages, c->micros, JOB_PIPELINE_AUTO, &plan, err));
    plan.cuts[0].micros = c->micros;
    plan.cuts[0].samples = SAMPLES / c->copies / c->micros;
    if (c->order == PIPE_SPLIT)
        choose_split(&costs, &plan);
    OK(island_trainer_new(is, m, &o, &plan, &said, &t, err));
    OK(trainer_set(island_trainer_first(t), flat, err));
    OK(island_trainer_follow(t, ISLAND_ALL, err));
    for (int k = 0; k < n; k++) {
        pacers[k] = (struct pacer){&share, &plan, k % c->stages};
        trainer_set_pace(island_trainer_rank(t, k), pace, &pacers[k]);
    }
    ret[0] = run(t, &spec, true);
    ret[1] = run(t, &spec, false);
    ret[2] = predict(&costs, &plan);
    refill(c, t, &spec);
    ret[3] = c->said > 0 ? run(t, &spec, true) : ret[0];
    island_trainer_free(t);
    real_encoders_close(e);
    island_close(is);
    costs_release(&costs);
    costs_release(&said);
    model_free(m);
    mem_free(flat);
    mem_free(e);
}

/* Bytes of the device that needs most, of a DiT so deep on so many stages, of whose copies each has
 * a share of the optimiser's state. */
static uint64_t need(int depth, int stages, int copies)
{
    struct model_spec spec = {.channels = 4,
                              .image = 16,
                              .patch = 2,
                              .dim = 384,
                              .depth = depth,
                              .heads = 6,
                              .mlp = 1536,
                              .classes = 10,
                              .cut = {.n_levels = 1}};
    struct train_options o = options();
    uint64_t most = 0;
    o.batch = 4;
    o.accumulate = 4;
    o.sharers = copies;
    struct model *m = make_model(&spec);
    for (int s = 0; s < stages; s++) {
        const struct model_part run = {depth * s / stages, depth * (s + 1) / stages};
        struct model *part;
        OK(model_part_new(m, &run, &part, err));
        o.slots = stages - s;
        const uint64_t bytes = trainer_bytes(part, &o, DT_F32);
        most = bytes > most ? bytes : most;
        model_free(part);
    }
    model_free(m);
    return most;
}

/* The deepest that a device of 1 GiB holds its part of. */
static int deepest(int stages, int copies)
{
    int depth = stages;
    while (need(depth + 1, stages, copies) <= (uint64_t)1 << 30)
        depth++;
    return depth;
}

static void print_largest(void)
{
    const int one = deepest(1, 1), data = deepest(1, 8), half = deepest(2, 4), cut = deepest(8, 1);
    printf(
        "{\"name\": \"pipeline_largest_model\", \"value\": %.3g, \"note\": \"blocks of 2.7 M "
        "parameters: %d on one device; on 8: %d by data parallelism, %d in 4 pipelines of 2, both "
        "with shared state, %d in a pipeline of 8\"}\n",
        (double)half / one, one, data, half, cut);
}

/* A profile by which frozen layers take half as long as they do. */
static void print_refilled(void)
{
    double s[4];
    measure(&wrong, s);
    (void)fprintf(stderr, "%-52s %.3f s a step, %.3f filled again; %.3f with a right one\n",
                  wrong.name, s[0], s[3], s[2]);
    printf("{\"name\": \"pipeline_timed_refilled\", \"value\": %.4g, \"note\": \"%.3g before "
           "bubbles are filled again\"}\n",
           s[3] / s[2], s[0] / s[2]);
}

int main(void)
{
    double worst = 0, filled = 0, plain = 0, split = 0;
    const char *which = "";
    for (size_t i = 0; i < COUNT(cases); i++) {
        double s[4];
        measure(&cases[i], s);
        const double off = fmax(s[0] / s[2], s[2] / s[0]);
        (void)fprintf(stderr, "%-52s %.3f s a step, %.3f predicted; %.3f encoded before it\n",
                      cases[i].name, s[0], s[2], s[1]);
        filled = i == 0 ? s[1] / s[0] : filled;
        plain = i == PLAIN ? s[0] : plain;
        split = i == SPLIT ? s[0] : split;
        which = off > worst ? cases[i].name : which;
        worst = fmax(worst, off);
    }
    printf("{\"name\": \"pipeline_timed_filled\", \"value\": %.4g, \"note\": \"%s, over encoding "
           "before the step on all devices\"}\n",
           filled, cases[0].name);
    printf("{\"name\": \"pipeline_timed_split\", \"value\": %.4g, \"note\": \"over 1F1B: %s, f = b "
           "= w\"}\n",
           plain / split, cases[PLAIN].name);
    printf("{\"name\": \"pipeline_timed_predicted\", \"value\": %.4g, \"note\": \"worst of %zu: "
           "%s\"}\n",
           worst, COUNT(cases), which);
    print_refilled();
    print_largest();
    return 0;
}
