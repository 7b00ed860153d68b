/* What the planner, the schedules and filling are worth, on made-up costs and simulated devices: a
 * JSON line for each figure.  No figure here was measured on devices. */
#include <time.h>

#include "tests/unit/worker/pipe/brute.h"
#include "worker/pipe/planner.h"

#define CASES 1000
#define TIMED_CASES 1000

static void figure(const char *name, double value, const char *note)
{
    printf("{\"name\": \"%s\", \"value\": %.6g, \"note\": \"%s\"}\n", name, value, note);
    fflush(stdout);
}

static void must(int rc, const struct err *err)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", err->msg);
        exit(1);
    }
}

/* ---- the planner against all cuts ---- */

struct search {
    const struct costs *p; /* of one copy */
    struct pipe_plan plan;
    double bound, seconds;
    bool simulated;
    long cuts;
};

static double simulated(const struct costs *p, const struct pipe_plan *plan)
{
    struct pipe_schedule s;
    struct simulation run;
    struct err err = {0};
    must(schedule_make(p, plan, &s, &err), &err);
    must(simulate(p, plan, &s, &run, &err), &err);
    const double t = run.seconds;
    simulation_release(&run);
    schedule_release(&s);
    return t;
}

static void look(void *arg, const struct pipe_cut *cut)
{
    struct search *s = arg;
    s->plan.cuts[0] = *cut;
    if (!brute_warm(s->p, &s->plan, true))
        return;
    s->cuts++;
    s->bound = fmin(s->bound, brute_bound(s->p, &s->plan));
    for (int few = 0; few < 2 && s->simulated; few++) {
        (void)brute_warm(s->p, &s->plan, few);
        s->seconds = fmin(s->seconds, simulated(s->p, &s->plan));
    }
}

static void planner_wrong(void)
{
    struct rng r;
    struct err err = {0};
    char note[128];
    int wrong = 0, impossible = 0;
    long cuts = 0;
    rng_init(&r, 10, 1);
    for (int i = 0; i < CASES; i++) {
        struct cuts_found found[5];
        struct costs p = brute_profile(&r, 8, 5);
        const struct cuts_problem c = {.p = &p,
                                       .micros = 1 + (int)rng_below(&r, 16),
                                       .samples = 1 + (int)rng_below(&r, 16),
                                       .copies = 1 + (int)rng_below(&r, 2)};
        struct search s = {.p = &p,
                           .plan = {.chains = 1, .devices = p.n_devices, .copies = c.copies},
                           .bound = INFINITY};
        int n;
        brute_cuts(&p, c.micros, c.samples, look, &s);
        must(cuts_best(&c, 1, found, &n, &err), &err);
        const double got = n > 0 ? found[0].seconds : INFINITY;
        wrong += got != s.bound && !(fabs(got - s.bound) <= 1e-9 * s.bound);
        impossible += s.cuts == 0;
        cuts += s.cuts;
        costs_release(&p);
    }
    snprintf(note, sizeof note, "of %d; %ld cuts looked at, %d islands on which none fits", CASES,
             cuts, impossible);
    figure("pipeline_planner_wrong", wrong, note);
}

/* The best simulated step of all cuts, of all numbers of copies. */
static double best_of_all(const struct costs *p, int samples, int micros)
{
    struct search s = {.bound = INFINITY, .seconds = INFINITY, .simulated = true};
    for (int copies = 1; copies <= p->n_devices; copies++) {
        struct costs share;
        if (p->n_devices % copies != 0)
            continue;
        costs_share(p, copies, &share);
        s.p = &share;
        s.plan = (struct pipe_plan){
            .order = PIPE_1F1B, .chains = 1, .devices = share.n_devices, .copies = copies};
        brute_cuts(&share, micros, samples / copies / micros, look, &s);
    }
    return s.seconds;
}

static void plan_vs_best(void)
{
    struct rng r;
    struct err err = {0};
    double worst = 0;
    int compared = 0, slower = 0;
    char note[128];
    rng_init(&r, 10, 2);
    for (int i = 0; i < TIMED_CASES; i++) {
        struct costs p = brute_profile(&r, 8, 5);
        const int micros = 1 + (int)rng_below(&r, 16);
        struct planner_options opt = {
            .n_micros = 1,
            .micros = {micros},
            .samples = micros * p.n_devices * 2,
        };
        struct planner_result result;
        const double best = best_of_all(&p, opt.samples, micros);
        if (isfinite(best)) {
            must(planner_search(&p, &opt, &result, &err), &err);
            double got = INFINITY;
            for (enum pipe_order o = PIPE_DATA; o <= PIPE_1F1B; o++)
                if (result.of[o].possible)
                    got = fmin(got, result.of[o].plain);
            worst = fmax(worst, got / best);
            slower += got > best * (1 + 1e-9);
            compared++;
            planner_release(&result);
        }
        costs_release(&p);
    }
    snprintf(note, sizeof note, "worst of %d; %d have a faster cut", compared, slower);
    figure("pipeline_plan_vs_best", worst, note);
}

/* Seconds that a plan of 64 layers on 16 unlike devices takes to find. */
static void planning_time(void)
{
    struct rng r;
    struct err err = {0};
    struct timespec from, to;
    struct planner_result result;
    struct costs p = pipes_profile(1, 64, 16, 8);
    const struct planner_options opt = {
        .samples = 256, .n_micros = 1, .micros = {32}, .fill = true, .group = 8};
    rng_init(&r, 10, 3);
    for (int i = 0; i < 64; i++) {
        struct costs_layer *l = &p.chains[0].layers[i];
        l->f.s[0] = 0.1 + rng_uniform_double(&r);
        l->b.s[0] = 0.1 + rng_uniform_double(&r);
        l->out_bytes = rng_below(&r, 2000);
        l->gradient_bytes = rng_below(&r, 100000);
    }
    for (int d = 0; d < 16; d++)
        p.devices[d].speed = 0.5 + rng_uniform_double(&r);
    for (int d = 0; d < 15; d++)
        p.links[d] = (struct costs_link){0.01, 80000};
    pipes_frozen(&p, 0.44 * 3 * 64 / 8);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    must(planner_search(&p, &opt, &result, &err), &err);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    planner_release(&result);
    costs_release(&p);
    figure("pipeline_planner_time",
           (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec),
           "64 layers, 16 unlike devices, filled; CPU time");
}

/* ---- filling ---- */

/* A stage of 1 second forward, input and weights each, on each of S devices. */
static double filled(const struct costs *p, int stages, int micros, double share,
                     enum pipe_order order, struct pipe_schedule *ret, double *idle)
{
    struct pipe_plan plan = pipes_plan(p, order, stages, micros, 8);
    const struct fill_options opt = {.samples = 8 * micros, .group = 8, .share = share};
    double best = INFINITY;
    struct err err = {0};
    for (int s = 0; s < stages; s++)
        plan.cuts[0].stages[s].slots = plan.cuts[0].stages[0].warm;
    for (plan.variant = 0; plan.variant < (order == PIPE_SPLIT ? SCHEDULE_VARIANTS : 1);
         plan.variant++) {
        struct pipe_schedule s;
        struct fill_report report;
        must(schedule_make(p, &plan, &s, &err), &err);
        must(fill_schedule(p, &plan, &opt, &s, &report, &err), &err);
        must(schedule_check(p, &plan, &s, &err), &err);
        best = fmin(best, report.seconds);
        *idle = report.idle;
        if (ret)
            *ret = s;
        else
            schedule_release(&s);
    }
    return best;
}

struct worst {
    double limit, idle, split, filled;
    int cases;
    char at[64], at_idle[64];
};

static void one_case(double rho, int stages, int micros, struct worst *w)
{
    struct costs p = pipes_profile(1, stages, stages, 8);
    struct pipe_plan early = pipes_plan(&p, PIPE_SPLIT, stages, micros, 8);
    struct pipe_schedule s;
    double idle, unused;
    const double pipe = 3.0 * (micros + stages - 1), work = 3.0 * micros * (1 + rho);
    pipes_frozen(&p, rho * 3 * stages / 8);
    const double with = filled(&p, stages, micros, 1, PIPE_1F1B, &s, &idle);
    const double without = filled(&p, stages, micros, 0, PIPE_1F1B, NULL, &unused);
    const double of_limit = without / with / (without / fmax(pipe, work));
    if (of_limit < w->limit) {
        w->limit = of_limit;
        snprintf(w->at, sizeof w->at, "rho %.2f, S %d, M %d", rho, stages, micros);
    }
    if (rho * micros >= stages - 1 && idle > w->idle) {
        w->idle = idle;
        snprintf(w->at_idle, sizeof w->at_idle, "rho %.2f, S %d, M %d", rho, stages, micros);
    }
    w->filled = fmax(w->filled, without / with);
    /* Split has its own orders, and the filled 1F1B whose gradients leave early. */
    double split = filled(&p, stages, micros, 1, PIPE_SPLIT, NULL, &unused);
    schedule_send_early(&s);
    struct simulation run;
    struct err err = {0};
    must(simulate(&p, &early, &s, &run, &err), &err);
    split = fmin(split, run.seconds);
    simulation_release(&run);
    w->split = fmin(w->split, with / split);
    w->cases++;
    schedule_release(&s);
    costs_release(&p);
}

static void filling(void)
{
    static const double rhos[] = {0.44, 0.89};
    struct worst w = {.limit = INFINITY, .split = INFINITY};
    char note[160];
    for (int i = 0; i < 2; i++)
        for (int s = 2; s <= 8; s *= 2)
            for (int m = s / 2; m <= 16; m++)
                one_case(rhos[i], s, m, &w);
    snprintf(note, sizeof note, "worst of %d, at %s; up to %.2f x as fast as unfilled", w.cases,
             w.at, w.filled);
    figure("pipeline_fill_vs_limit", w.limit, note);
    snprintf(note, sizeof note, "worst where rho M >= S - 1, at %s", w.at_idle);
    figure("pipeline_bubbles_left", 100 * w.idle, note);
    figure("pipeline_split_filled", w.split, "worst of the same cases");
}

/* ---- orders ---- */

static double best_order(const struct costs *p, enum pipe_order order, int micros)
{
    struct pipe_plan plan = pipes_plan(p, order, p->n_devices, micros, 8);
    double best = INFINITY;
    for (int s = 0; s < p->n_devices && order == PIPE_SPLIT; s++) {
        plan.cuts[0].stages[s].warm = p->n_devices - s; /* 1F1B's memory, to the slot */
        plan.cuts[0].stages[s].slots = p->n_devices;
    }
    for (plan.variant = 0; plan.variant < SCHEDULE_VARIANTS; plan.variant++)
        best = fmin(best, simulated(p, &plan));
    return best;
}

static void orders(void)
{
    struct costs one = pipes_profile(1, 4, 4, 8), two = pipes_profile(2, 4, 4, 8);
    figure("pipeline_split_vs_1f1b",
           best_order(&one, PIPE_1F1B, 8) / best_order(&one, PIPE_SPLIT, 8),
           "4 stages, 8 micro-batches, f = b = w");
    figure("pipeline_bidirectional",
           best_order(&two, PIPE_1F1B, 2) / best_order(&two, PIPE_BIDIRECTIONAL, 2),
           "over one chain after the other: 4 stages, 2 micro-batches each");
    costs_release(&one);
    costs_release(&two);
}

int main(void)
{
    planner_wrong();
    plan_vs_best();
    planning_time();
    filling();
    orders();
    return 0;
}
