#include "worker/pipe/planner.h"

#include "worker/pipe/planner_impl.h"

#define FILLED 4      /* plans of an order that are filled */
#define ENOUGH 64     /* micro-batches a stage: with more, less than PLANNER_SAME could be gained */
#define ROUNDING 1e-9 /* share of a step's seconds that sums of its parts may be off */

unsigned planner_orders(enum job_pipeline asked)
{
    static const unsigned orders[] = {
        [JOB_PIPELINE_AUTO] = PLANNER_BIT(PIPE_1F1B) | PLANNER_BIT(PIPE_SPLIT) |
                              PLANNER_BIT(PIPE_DIVIDED) | PLANNER_BIT(PIPE_BIDIRECTIONAL),
        [JOB_PIPELINE_1F1B] = PLANNER_BIT(PIPE_1F1B),
        [JOB_PIPELINE_SPLIT] = PLANNER_BIT(PIPE_SPLIT),
        [JOB_PIPELINE_DIVIDED] = PLANNER_BIT(PIPE_DIVIDED),
        [JOB_PIPELINE_BIDIRECTIONAL] = PLANNER_BIT(PIPE_BIDIRECTIONAL)};
    return orders[asked];
}

void planner_powers(struct planner_options *opt, int least, int most)
{
    for (int i = 1; i <= most && opt->n_micros < PLANNER_MICROS_MAX; i *= 2)
        if (i >= least)
            opt->micros[opt->n_micros++] = i;
    if (opt->n_micros == 0)
        opt->micros[opt->n_micros++] = least;
}

/* Is the order searched?  Split is made of the fastest plans of the others. */
static bool seeks(const struct planner *s, enum pipe_order order)
{
    return planner_asks(s, order) || planner_asks(s, PIPE_SPLIT);
}

/* ---- warm-ups ---- */

/* Bytes on device d with so many slots of each of its stages. */
static uint64_t bytes_with(const struct planner *s, const struct pipe_plan *plan, int d,
                           uint64_t slots)
{
    struct pipe_plan other = *plan;
    for (int c = 0; c < plan->chains; c++)
        for (int i = 0; i < plan->cuts[c].n; i++)
            other.cuts[c].stages[i].slots = (int)slots;
    return plan_trained_bytes(&s->share, &other, d);
}

/* The number of slots, at most `most`, that fit on every device of a stage. */
static int slots_of(const struct planner *s, const struct pipe_plan *plan,
                    const struct pipe_stage *st, int most)
{
    uint64_t least = (uint64_t)most;
    for (int d = st->device; d < st->device + st->devices; d++) {
        const uint64_t all = s->share.devices[d].memory, none = bytes_with(s, plan, d, 0);
        const uint64_t slot = bytes_with(s, plan, d, 1) - none, room = all > none ? all - none : 0;
        if (slot > 0 && room / slot < least)
            least = room / slot;
        while (least > 0 && bytes_with(s, plan, d, least) > all) /* shares are rounded */
            least--;
    }
    return (int)least;
}

/* false: a stage has no slot. */
static bool set_warm(const struct planner *s, struct pipe_plan *plan, bool many)
{
    const bool joined = plan->order == PIPE_1F1B;
    for (int c = 0; c < plan->chains; c++) {
        struct pipe_cut *cut = &plan->cuts[c];
        const int all = joined ? cut->micros * plan->chains : cut->micros;
        for (int i = 0; i < cut->n; i++) {
            struct pipe_stage *st = &cut->stages[i];
            const int behind = cut->n - 1 - i, fit = slots_of(s, plan, st, cut->micros);
            st->warm = many ? 2 * behind + 1 : behind + 1;
            st->warm = st->warm < all ? st->warm : all;
            if (fit < st->warm && fit < cut->micros)
                st->warm = fit;
            if (i > 0 && cut->stages[i - 1].warm < st->warm)
                st->warm = cut->stages[i - 1].warm;
            /* Split needs slots for W at the last stages, too: as many as 1F1B's first stage. */
            st->slots = plan->order == PIPE_SPLIT ? cut->stages[0].warm : st->warm;
            st->slots = st->slots < cut->micros ? st->slots : cut->micros;
            st->slots = st->slots < fit ? st->slots : fit;
            if (st->warm < 1 || st->slots < 1)
                return false;
        }
    }
    return true;
}

/* ---- timing ---- */

static void keep(struct best *b, const struct timed *t)
{
    int i = b->n < BEST ? b->n++ : BEST;
    for (; i > 0 && t->plain < b->items[i - 1].plain; i--)
        if (i < BEST)
            b->items[i] = b->items[i - 1];
    if (i < BEST)
        b->items[i] = *t;
}

static int time_one(struct planner *s, struct timed *t)
{
    struct pipe_schedule schedule;
    struct simulation run;
    int rc = schedule_make(&s->share, &t->plan, &schedule, s->err);
    if (rc < 0)
        return rc;
    rc = simulate(&s->share, &t->plan, &schedule, &run, s->err);
    schedule_release(&schedule);
    if (rc < 0)
        return rc;
    t->plain = run.seconds;
    simulation_release(&run);
    return 0;
}

/* Seconds that no schedule of a plan undercuts: those of all passes on its busiest device. */
static double least_seconds(const struct planner *s, const struct pipe_plan *plan)
{
    double busy[COSTS_DEVICES_MAX] = {0}, most = 0;
    for (int c = 0; c < plan->chains; c++)
        for (int i = 0; i < plan->cuts[c].n; i++) {
            const struct pipe_stage *st = &plan->cuts[c].stages[i];
            const struct pipe_cost cost = pipe_stage_cost(&s->share, plan, c, i);
            for (int d = st->device; d < st->device + st->devices; d++) {
                busy[d] +=
                    plan->cuts[c].micros * (cost.f + cost.b + cost.w) / s->share.devices[d].speed;
                most = fmax(most, busy[d]);
            }
        }
    return most * (1 - ROUNDING);
}

/* Times a plan's orders and warm-ups, and keeps the fastest of them if it is among the best. */
static int time_plan(struct planner *s, const struct pipe_plan *plan, double bound)
{
    const bool sought = plan->order == PIPE_SPLIT || plan->order == PIPE_BIDIRECTIONAL;
    struct timed t = {.plan = *plan, .bound = bound}, best = {.plain = INFINITY};
    int *variant = &t.plan.variant;
    t.plan.shard &= pipe_shares(plan);
    if (plan->shard && !t.plan.shard && s->opt->shard == JOB_SHARD_AUTO)
        return 0; /* it was tried before those that share */
    const struct best *b = &s->best[plan->order];
    if (b->n == BEST && least_seconds(s, plan) >= b->items[BEST - 1].plain) {
        s->fitted |= plan->order != PIPE_DATA;
        return 0;
    }
    for (int many = 0; many < (plan->order == PIPE_DATA ? 1 : 2); many++) {
        if (!set_warm(s, &t.plan, many))
            continue;
        for (*variant = 0; *variant < (sought ? SCHEDULE_VARIANTS : 1); ++*variant) {
            const int rc = time_one(s, &t);
            if (rc < 0)
                return rc;
            if (t.plain < best.plain)
                best = t;
        }
    }
    s->fitted |= isfinite(best.plain) && plan->order != PIPE_DATA;
    if (isfinite(best.plain))
        keep(&s->best[plan->order], &best);
    return 0;
}

/* ---- candidates ---- */

static int by_flow(const void *a, const void *b)
{
    const struct cuts_found *x = a, *y = b;
    return x->flow < y->flow ? -1 : x->flow > y->flow;
}

static int try_pipelines(struct planner *s, const struct pipe_plan *like, int micros, int samples)
{
    const struct cuts_problem problem = {.p = &s->share,
                                         .micros = micros,
                                         .samples = samples,
                                         .copies = like->copies,
                                         .shard = like->shard,
                                         .stages = s->opt->stages,
                                         .width = s->opt->width};
    struct pipe_plan plan = *like;
    int n, rc = cuts_best(&problem, PLANNER_CUTS, s->cuts, &n, s->err);
    qsort(s->cuts, (size_t)n * (rc == 0), sizeof *s->cuts, by_flow);
    plan.order = PIPE_1F1B;
    for (int i = 0, timed = 0; i < n && timed < PLANNER_TIMED && rc == 0; i++) {
        if (s->cuts[i].cut.n == 1)
            continue;
        plan.cuts[0] = s->cuts[i].cut;
        rc = time_plan(s, &plan, s->cuts[i].seconds);
        timed++;
    }
    return rc;
}

/* Joined chains run one after the other, so each is cut as if it were alone: the balance of its own
 * stages counts, not the sum of both on a device. */
static int try_apart(struct planner *s, const struct cuts_problem problem[2],
                     const struct pipe_plan *like, double bound)
{
    struct pipe_plan plan = *like;
    for (int c = 0; c < 2; c++) {
        struct cuts_problem alone = problem[c];
        int n;
        alone.stages = s->share.n_devices;
        alone.width = 1;
        const int rc = cuts_best(&alone, 1, s->cuts, &n, s->err);
        if (rc < 0 || n == 0)
            return rc;
        plan.cuts[c] = s->cuts[0].cut;
    }
    return time_plan(s, &plan, bound);
}

static int try_pair(struct planner *s, const struct pipe_plan *like, int micros, int samples,
                    bool reversed)
{
    struct cuts_problem problem[2];
    struct pipe_plan plan = *like;
    double t0;
    bool found;
    for (int c = 0; c < 2; c++)
        problem[c] = (struct cuts_problem){.p = &s->share,
                                           .chain = c,
                                           .micros = micros,
                                           .samples = samples,
                                           .copies = like->copies,
                                           .shard = like->shard};
    plan.order = reversed ? PIPE_BIDIRECTIONAL : PIPE_1F1B;
    if (!seeks(s, plan.order) || (s->opt->stages > 0 && s->opt->stages != s->share.n_devices))
        return 0;
    const int rc = cuts_pair(problem, reversed, plan.cuts, &t0, &found, s->err);
    if (rc < 0 || !found)
        return rc;
    const double bound = (2 * micros + 2 * s->share.n_devices - 2) * t0 / 2;
    const int apart = reversed ? 0 : try_apart(s, problem, &plan, bound);
    return apart < 0 ? apart : time_plan(s, &plan, bound);
}

/* Cuts a chain that is alone on devices [from, from+n), with a stage on each: best by its bound. */
static int cut_alone(struct planner *s, const struct cuts_problem *like, int from, int n,
                     struct cuts_found *best, bool *found)
{
    struct cuts_problem alone = *like;
    struct costs own;
    int got;
    costs_some(&s->share, from, n, &own);
    alone.p = &own;
    alone.stages = n;
    alone.width = 1;
    const int rc = cuts_best(&alone, 1, s->cuts, &got, s->err);
    *found = rc == 0 && got > 0;
    if (!*found)
        return rc;
    *best = s->cuts[0];
    for (int i = 0; i < n; i++)
        best->cut.stages[i].device += from;
    return 0;
}

/* The first chain on the first devices, the second on the others, at the same time. */
static int try_divided(struct planner *s, const struct pipe_plan *like, int micros, int samples)
{
    const int devices = s->share.n_devices;
    struct pipe_plan plan = *like;
    int rc = 0;
    plan.order = PIPE_DIVIDED;
    if (!seeks(s, plan.order) || (s->opt->stages > 0 && s->opt->stages != devices))
        return 0;
    for (int first = 1; first < devices && rc == 0; first++) {
        double bound = 0;
        bool found = true;
        for (int c = 0; c < 2 && found; c++) {
            const struct cuts_problem problem = {.chain = c,
                                                 .micros = micros,
                                                 .samples = samples,
                                                 .copies = like->copies,
                                                 .shard = like->shard};
            struct cuts_found best = {0};
            rc = cut_alone(s, &problem, c == 0 ? 0 : first, c == 0 ? first : devices - first, &best,
                           &found);
            plan.cuts[c] = best.cut;
            bound = fmax(bound, best.seconds);
        }
        if (rc == 0 && found)
            rc = time_plan(s, &plan, bound);
    }
    return rc;
}

/* A device has no more micro-batches than samples. */
static int try_data(struct planner *s, const struct pipe_plan *like, int micros)
{
    struct pipe_plan plan = *like;
    char need[STR_HUMAN_MAX], have[STR_HUMAN_MAX];
    const int each = pipe_most(s->opt->samples, plan.devices);
    micros = micros < each ? micros : each;
    const int samples = pipe_most(s->opt->samples, micros);
    if (micros == s->data_micros)
        return 0;
    s->data_micros = micros;
    plan.order = PIPE_DATA;
    double bound = 0;
    for (int c = 0; c < plan.chains; c++) {
        plan.cuts[c] = (struct pipe_cut){.n = 1, .micros = micros, .samples = samples};
        plan.cuts[c].stages[0] = (struct pipe_stage){
            .to = s->p->chains[c].n, .devices = plan.devices, .warm = 1, .slots = 1};
        const struct pipe_cost cost = pipe_stage_cost(&s->share, &plan, c, 0);
        bound += micros * (cost.f + cost.b + cost.w) / pipe_speed(&s->share, 0, plan.devices) +
                 pipe_reduce_seconds(&s->share, 0, plan.devices, 1, cost.gradients);
        if (plan.shard)
            bound += pipe_gather_seconds(&s->share, 0, plan.devices, 1, cost.gradients);
    }
    for (int d = 0; d < plan.devices; d++) {
        const uint64_t bytes = plan_trained_bytes(&s->share, &plan, d);
        if (bytes <= s->share.devices[d].memory)
            continue;
        snprintf(
            s->data_why, sizeof s->data_why,
            "the whole model%s with a micro-batch of %d needs %s on each device, and device %d "
            "(%s) has %s",
            plan.shard ? " (its optimiser's state shared out)" : "",
            pipe_most(samples, plan.devices), str_human_bytes(bytes, need), d,
            s->share.devices[d].name, str_human_bytes(s->share.devices[d].memory, have));
        return 0;
    }
    return time_plan(s, &plan, bound);
}

/* Leaves room for frozen networks on the last device, whose stage has the fewest slots. */
static void leave_room(struct planner *s)
{
    uint64_t *memory = &s->share.devices[s->share.n_devices - 1].memory;
    const uint64_t need = s->apart ? frozen_networks_bytes(s->p, FILL_UNDERWAY) : 0;
    *memory -= need < *memory ? need : *memory;
}

/* The orders for which a copy's devices can be divided: each has a layer, and a sample of each
 * micro-batch. */
static unsigned divides(const struct planner *s, int samples)
{
    const int devices = s->share.n_devices, stages = s->opt->stages, layers = s->p->chains[0].n;
    if (s->p->n_chains == 1) {
        const int most = devices < layers ? devices : layers, n = stages > 0 ? stages : most;
        const int width = s->opt->width > 0 && s->opt->width < samples ? s->opt->width : samples;
        return n > 1 && n <= most && n * width >= devices
                   ? PLANNER_BIT(PIPE_1F1B) | PLANNER_BIT(PIPE_SPLIT)
                   : 0;
    }
    const int up = s->p->chains[1].n;
    if (stages > 0 && stages != devices)
        return 0;
    return (layers < devices || up < devices
                ? 0
                : PLANNER_BIT(PIPE_1F1B) | PLANNER_BIT(PIPE_BIDIRECTIONAL) |
                      PLANNER_BIT(PIPE_SPLIT)) |
           (layers + up < devices ? 0 : PLANNER_BIT(PIPE_DIVIDED) | PLANNER_BIT(PIPE_SPLIT));
}

/* Tries all plans with these numbers of copies and micro-batches. */
static int try_all(struct planner *s, int copies, int micros, bool shard)
{
    const int own = s->opt->samples / copies, samples = own / micros;
    const struct pipe_plan like = {.chains = s->p->n_chains,
                                   .devices = s->p->n_devices / copies,
                                   .copies = copies,
                                   .shard = shard};
    int rc = 0;
    costs_share(s->p, copies, &s->share);
    leave_room(s);
    if (copies == 1 && planner_asks(s, PIPE_DATA) && s->opt->stages < 2)
        rc = try_data(s, &like, micros);
    if (like.devices < 2 || rc < 0 || s->opt->orders == PLANNER_BIT(PIPE_DATA) ||
        (s->fitted && micros > ENOUGH * like.devices))
        return rc;
    s->divides |= divides(s, samples);
    if (s->p->n_chains == 1)
        return try_pipelines(s, &like, micros, samples);
    rc = try_pair(s, &like, micros, samples, false);
    if (rc == 0)
        rc = try_divided(s, &like, micros, samples);
    return rc < 0 ? rc : try_pair(s, &like, micros, samples, true);
}

/* A copy with fewer samples than micro-batches has as many of these as samples. */
static int search(struct planner *s, bool shard)
{
    const struct planner_options *o = s->opt;
    int rc = 0;
    s->data_micros = 0;
    for (int copies = s->p->n_devices; copies >= 1 && rc == 0; copies--) {
        if (s->p->n_devices % copies != 0 || o->samples % copies != 0)
            continue;
        const int own = o->samples / copies;
        s->fitted = false;
        for (int i = 0, last = 0; i < o->n_micros && rc == 0; i++) {
            const int micros = o->micros[i] < own ? o->micros[i] : own;
            if (own % micros != 0 || micros == last)
                continue;
            last = micros;
            s->fits++;
            rc = try_all(s, copies, micros, shard);
        }
    }
    return rc;
}

/* The fastest cuts of another order with W split off. */
static int split_of(struct planner *s, const struct best *from)
{
    int rc = 0;
    for (int i = 0; i < from->n && rc == 0; i++) {
        struct pipe_plan plan = from->items[i].plan;
        plan.order = PIPE_SPLIT;
        costs_share(s->p, plan.copies, &s->share);
        leave_room(s);
        rc = time_plan(s, &plan, from->items[i].bound);
    }
    return rc;
}

static int search_split(struct planner *s)
{
    int rc = 0;
    for (enum pipe_order o = PIPE_1F1B; o < PIPE_ORDERS && planner_asks(s, PIPE_SPLIT) && rc == 0;
         o++)
        if (o != PIPE_SPLIT)
            rc = split_of(s, &s->best[o]);
    return rc;
}

/* ---- filling ---- */

static uint64_t most_bytes(const struct planner *s, const struct pipe_plan *plan)
{
    uint64_t most = 0;
    for (int d = 0; d < plan->devices; d++) {
        const uint64_t bytes = plan_bytes(&s->share, plan, d);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Takes a filled plan as the order's candidate if it is the fastest, and then keeps *schedule. */
static void offer(struct planner *s, const struct timed *t, struct pipe_schedule *schedule,
                  const struct fill_report *report, struct planner_candidate *c)
{
    if (c->possible && c->seconds <= report->seconds) {
        schedule_release(schedule);
        return;
    }
    schedule_release(&c->schedule);
    *c = (struct planner_candidate){.possible = true,
                                    .plan = t->plan,
                                    .bound = t->bound,
                                    .plain = report->before,
                                    .seconds = report->seconds,
                                    .idle_before = report->idle_before,
                                    .idle = report->idle,
                                    .inside = report->inside,
                                    .memory = most_bytes(s, &t->plan),
                                    .schedule = *schedule};
}

/* Makes and fills the lists of a plan; on failure there are none. */
static int make_filled(struct planner *s, const struct pipe_plan *plan, struct pipe_schedule *ret,
                       struct fill_report *report, struct err *err)
{
    const struct fill_options opt = {.samples = plan->cuts[0].micros * plan->cuts[0].samples,
                                     .group = s->opt->group,
                                     .share = s->opt->fill ? 1 : 0};
    int rc = schedule_make(&s->share, plan, ret, err);
    if (rc < 0)
        return rc;
    rc = fill_schedule(&s->share, plan, &opt, ret, report, err);
    if (rc < 0)
        schedule_release(ret);
    return rc;
}

static int filled_seconds(struct planner *s, const struct pipe_plan *plan, double *ret)
{
    struct pipe_schedule schedule;
    struct fill_report report;
    const int rc = make_filled(s, plan, &schedule, &report, s->err);
    if (rc < 0)
        return rc;
    schedule_release(&schedule);
    *ret = report.seconds;
    return 0;
}

static int fill_one(struct planner *s, struct timed *t, struct planner_candidate *c)
{
    struct pipe_schedule schedule;
    struct fill_report report;
    struct err why = {0};
    costs_share(s->p, t->plan.copies, &s->share);
    int rc = fill_place(&s->share, &t->plan, &why);
    if (rc == 0)
        rc = make_filled(s, &t->plan, &schedule, &report, &why);
    if (rc < 0) {
        if (!c->possible)
            str_copy(c->why, sizeof c->why, why.msg);
        return rc == -ENOSPC ? 0 : err_set(s->err, rc, "%s", why.msg);
    }
    offer(s, t, &schedule, &report, c);
    return 0;
}

/* Sends gradients before W, and times that. */
static int early(struct planner *s, const struct pipe_plan *plan, struct pipe_schedule *schedule,
                 double *seconds, double *idle)
{
    struct simulation run;
    schedule_send_early(schedule);
    const int rc = simulate(&s->share, plan, schedule, &run, s->err);
    if (rc < 0) {
        schedule_release(schedule);
        return rc;
    }
    *seconds = run.seconds;
    *idle = run.idle;
    simulation_release(&run);
    return 0;
}

static bool fits(const struct planner *s, const struct pipe_plan *plan)
{
    bool all = true;
    for (int d = 0; d < plan->devices; d++)
        all &= plan_bytes(&s->share, plan, d) <= s->share.devices[d].memory;
    return all;
}

/* A filled 1F1B whose gradients leave before W: it is never slower, but needs more memory. */
static int split_filled(struct planner *s, const struct planner_candidate *from,
                        struct planner_candidate *c)
{
    struct timed t = {.plan = from->plan, .bound = from->bound};
    struct pipe_schedule plain, filled;
    struct fill_report report = {.inside = from->inside};
    if (!from->possible || s->p->n_chains > 1 || !planner_asks(s, PIPE_SPLIT))
        return 0;
    t.plan.order = PIPE_SPLIT;
    t.plan.variant = SCHEDULE_EARLY;
    costs_share(s->p, t.plan.copies, &s->share);
    int rc = schedule_make(&s->share, &t.plan, &plain, s->err);
    if (rc < 0 || (rc = early(s, &t.plan, &plain, &report.before, &report.idle_before)) < 0)
        return rc;
    schedule_release(&plain);
    if (schedule_copy(&from->schedule, &filled) < 0)
        return err_set(s->err, -ENOMEM, "no memory for a schedule");
    if ((rc = early(s, &t.plan, &filled, &report.seconds, &report.idle)) < 0)
        return rc;
    if (fits(s, &t.plan))
        offer(s, &t, &filled, &report, c);
    else
        schedule_release(&filled);
    return 0;
}

/* The time of an estimate.  With one stage it is all forwards, which a second chain waits for; else
 * the simulator's time, with frozen layers in their places. */
static int estimate_seconds(struct planner *s, const struct pipe_plan *plan, double *ret)
{
    struct pipe_plan with = *plan;
    double seconds, without;
    if (plan->cuts[0].n == 1) {
        *ret = plan->cuts[0].micros * pipe_stage_cost(&s->share, plan, 0, 0).f /
               pipe_speed(&s->share, 0, plan->devices);
        return 0;
    }
    with.estimate = true;
    int rc = filled_seconds(s, plan, &without);
    if (rc == 0)
        rc = filled_seconds(s, &with, &seconds);
    if (rc == 0)
        *ret = seconds - without;
    return rc;
}

static int add_estimate(struct planner *s, struct planner_candidate *c)
{
    int rc = s->opt->estimate > 0 ? estimate_seconds(s, &c->plan, &c->estimate) : 0;
    c->least = c->seconds + (s->opt->estimate < 1 ? 0 : c->estimate);
    c->seconds += s->opt->estimate * c->estimate;
    return rc;
}

static int fill_all(struct planner *s, struct planner_result *r)
{
    int rc = 0;
    for (enum pipe_order o = 0; o < PIPE_ORDERS && rc == 0; o++) {
        struct planner_candidate *c = &r->of[o];
        for (int i = 0; i < s->best[o].n && i < FILLED && rc == 0; i++)
            rc = fill_one(s, &s->best[o].items[i], c);
        if (rc == 0 && o == PIPE_SPLIT)
            rc = split_filled(s, &r->of[PIPE_1F1B], c);
        costs_share(s->p, c->possible ? c->plan.copies : 1, &s->share);
        if (rc == 0 && c->possible)
            rc = schedule_check(&s->share, &c->plan, &c->schedule, s->err);
        if (rc == 0 && c->possible)
            rc = add_estimate(s, c);
    }
    for (enum pipe_order o = PIPE_1F1B; o < PIPE_ORDERS; o++) /* they were needed for split */
        if (!planner_asks(s, o)) {
            schedule_release(&r->of[o].schedule);
            r->of[o] = (struct planner_candidate){0};
        }
    return rc;
}

/* ---- the choice ---- */

/* Says what would fit without the requested number of stages. */
static void say_would(const struct planner *s, char *out, size_t size)
{
    struct planner_options any = *s->opt;
    struct planner_result r;
    any.stages = 0;
    if (s->opt->stages == 0 || planner_search(s->p, &any, &r, NULL) < 0)
        return;
    const int n = pipe_places(&r.of[r.chosen].plan);
    if (n == 1)
        (void)snprintf(out, size, "; data parallelism would do");
    else
        (void)snprintf(out, size, "; %d stages would do", n);
    planner_release(&r);
}

static void describe(const struct planner_candidate *c, char out[64])
{
    const int n = pipe_places(&c->plan);
    if (c->plan.order == PIPE_DATA)
        snprintf(out, 64, "data parallelism");
    else
        snprintf(out, 64, "%s with %d stages%s", pipe_plan_name(&c->plan), n,
                 c->plan.copies > 1 ? " in copies" : "");
}

/* Says why neither data parallelism nor the simplest requested order is possible. */
static int refuse(const struct planner *s, const struct planner_result *r)
{
    const unsigned wanted = s->opt->orders == 0 ? UINT_MAX : s->opt->orders;
    const int code = s->data_micros > 0 || (s->divides & wanted) ? -ENOMEM : -ERR_CONFIG;
    const char *data = planner_asks(s, PIPE_DATA) ? r->of[PIPE_DATA].why : "";
    enum pipe_order pipe = PIPE_1F1B;
    char would[40] = "";
    while (pipe < PIPE_ORDERS && !planner_asks(s, pipe))
        pipe++;
    say_would(s, would, sizeof would);
    return err_set(s->err, code, "no plan: %s%s%s%s", data,
                   pipe == PIPE_ORDERS ? ""
                   : *data             ? "; as a pipeline: "
                                       : "",
                   pipe == PIPE_ORDERS ? "" : r->of[pipe].why, would);
}

static int choose(const struct planner *s, struct planner_result *r)
{
    static const enum pipe_order simplest[PIPE_ORDERS] = {PIPE_DATA, PIPE_1F1B, PIPE_DIVIDED,
                                                          PIPE_BIDIRECTIONAL, PIPE_SPLIT};
    double least = INFINITY;
    int fastest = 0, chosen = -1;
    for (int o = 0; o < PIPE_ORDERS; o++)
        if (r->of[o].possible && r->of[o].seconds < least) {
            least = r->of[o].seconds;
            fastest = o;
        }
    for (int i = PIPE_ORDERS - 1; i >= 0; i--) {
        const struct planner_candidate *c = &r->of[simplest[i]];
        if (c->possible && c->seconds <= least * (1 + PLANNER_SAME))
            chosen = (int)simplest[i];
    }
    if (chosen < 0)
        return refuse(s, r);
    char name[64], other[64];
    const struct planner_candidate *c = &r->of[chosen], *f = &r->of[fastest];
    describe(c, name);
    describe(f, other);
    r->chosen = (enum pipe_order)chosen;
    if (chosen != fastest)
        snprintf(
            r->why, sizeof r->why,
            "%s takes %.4g s a step; %s would take %.4g s, which is within %.0f %%, and is less "
            "simple",
            name, c->seconds, other, f->seconds, 100 * PLANNER_SAME);
    else if (chosen == PIPE_DATA)
        snprintf(r->why, sizeof r->why, "%s takes %.4g s a step, and nothing takes less", name,
                 c->seconds);
    else if (r->of[PIPE_DATA].possible)
        snprintf(r->why, sizeof r->why, "%s takes %.4g s a step, data parallelism %.4g s", name,
                 c->seconds, r->of[PIPE_DATA].seconds);
    else
        snprintf(r->why, sizeof r->why,
                 "%s takes %.4g s a step; data parallelism cannot be: %.180s", name, c->seconds,
                 r->of[PIPE_DATA].why);
    return 0;
}

static int check_options(const struct planner *s)
{
    const struct planner_options *o = s->opt;
    const int devices = s->p->n_devices;
    if (devices == 1 && (o->stages > 1 || !planner_asks(s, PIPE_DATA)))
        return err_set(s->err, -ERR_CONFIG, "a pipeline needs two devices, and there is one");
    if (o->stages > devices)
        return err_set(s->err, -ERR_CONFIG, "%d stages are more than %d devices: ask for fewer",
                       o->stages, devices);
    const bool divided = s->p->n_chains == 2 && planner_asks(s, PIPE_DIVIDED);
    const struct costs_chain *c = s->p->chains;
    const int least = s->p->n_chains == 2 && c[1].n < c[0].n;
    const int layers = divided ? c[0].n + c[1].n : c[least].n;
    return o->stages <= layers
               ? 0
               : err_set(s->err, -ERR_CONFIG, "%d stages are more than the %d layers of %s",
                         o->stages, layers, divided ? "both chains" : c[least].name);
}

static bool nothing_found(const struct planner *s)
{
    bool none = true;
    for (enum pipe_order o = 0; o < PIPE_ORDERS; o++)
        none &= s->best[o].n == 0;
    return none;
}

static bool none_possible(const struct planner_result *r)
{
    bool none = true;
    for (enum pipe_order o = 0; o < PIPE_ORDERS; o++)
        none &= !r->of[o].possible;
    return none;
}

/* Searches with shared state where that is asked for, or what is whole does not fit. */
static int search_shared(struct planner *s)
{
    int rc = search(s, s->opt->shard == JOB_SHARD_OPTIMIZER);
    if (rc == 0 && s->opt->shard == JOB_SHARD_AUTO &&
        (nothing_found(s) || (s->best[PIPE_DATA].n == 0 && planner_asks(s, PIPE_DATA))))
        rc = search(s, true);
    return rc;
}

/* Searches cuts that leave room for the frozen networks, for which the fastest cuts have none. */
static int search_apart(struct planner *s, struct planner_result *r)
{
    s->apart = true;
    memset(s->best, 0, sizeof s->best);
    int rc = search_shared(s);
    if (rc == 0)
        rc = search_split(s);
    return rc < 0 ? rc : fill_all(s, r);
}

static int plan_all(struct planner *s, struct planner_result *r)
{
    int rc = check_options(s);
    if (rc == 0)
        rc = search_shared(s);
    if (rc == 0 && s->fits == 0)
        rc = err_set(s->err, -ERR_CONFIG,
                     "%d samples a step cannot be divided into %d equal micro-batches: take a "
                     "train.accumulate that divides them, or auto",
                     s->opt->samples, s->opt->micros[0]);
    if (rc == 0)
        rc = search_split(s);
    if (rc == 0)
        rc = fill_all(s, r);
    if (rc == 0 && s->p->n_frozen > 0 && none_possible(r))
        rc = search_apart(s, r);
    for (enum pipe_order o = 0; o < PIPE_ORDERS && rc == 0; o++)
        planner_why_not(s, o, &r->of[o]);
    return rc < 0 ? rc : choose(s, r);
}

int planner_search(const struct costs *p, const struct planner_options *opt,
                   struct planner_result *ret, struct err *err)
{
    struct planner *s = mem_try_zero(sizeof *s);
    struct planner_result *r = mem_try_zero(sizeof *r);
    int rc = -ENOMEM;
    if (s && r) {
        *s = (struct planner){.p = p, .opt = opt, .err = err};
        s->cuts = mem_try_array((size_t)p->n_devices * PLANNER_CUTS, sizeof *s->cuts);
    }
    if (!s || !r || !s->cuts)
        (void)err_set(err, -ENOMEM, "no memory to plan");
    else
        rc = plan_all(s, r);
    if (rc < 0 && r)
        planner_release(r);
    else if (rc == 0)
        *ret = *r;
    if (s)
        mem_free(s->cuts);
    mem_free(s);
    mem_free(r);
    return rc;
}

int planner_time(const struct costs *p, const struct planner_options *opt,
                 const struct pipe_plan *plan, struct planner_candidate *ret, struct err *err)
{
    struct planner *s = mem_try_zero(sizeof *s);
    struct planner_result *r = mem_try_zero(sizeof *r);
    struct planner_options own = *opt;
    struct timed t = {.plan = *plan};
    int rc = s && r ? 0 : err_set(err, -ENOMEM, "no memory to time a plan");
    own.orders = PLANNER_BIT(plan->order);
    if (t.plan.order == PIPE_SPLIT && t.plan.variant == SCHEDULE_EARLY) { /* it is made of 1F1B */
        t.plan.order = PIPE_1F1B;
        t.plan.variant = 0;
    }
    if (rc == 0) {
        *s = (struct planner){.p = p, .opt = &own, .err = err};
        s->best[t.plan.order].items[0] = t;
        s->best[t.plan.order].n = 1;
        rc = fill_all(s, r);
    }
    if (rc == 0 && !r->of[plan->order].possible)
        rc = err_set(err, -ENOMEM, "%s", r->of[plan->order].why);
    if (rc == 0) {
        *ret = r->of[plan->order];
        ret->schedule = (struct pipe_schedule){0};
    }
    if (r)
        planner_release(r);
    mem_free(s);
    mem_free(r);
    return rc;
}

void planner_release(struct planner_result *r)
{
    for (int o = 0; o < PIPE_ORDERS; o++)
        schedule_release(&r->of[o].schedule);
    *r = (struct planner_result){0};
}
