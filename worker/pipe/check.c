#include "worker/pipe/check.h"

struct checker {
    const struct costs *p;
    const struct pipe_plan *plan;
    const struct pipe_schedule *schedule;
    struct err *err;
};

/* ---- memory ---- */

uint64_t frozen_networks_bytes(const struct costs *p, int samples)
{
    uint64_t sum = 0;
    for (int k = 0; k < p->n_frozen; k++) {
        const struct costs_frozen *f = &p->frozen[k];
        uint64_t scratch = 0;
        for (int l = 0; l < f->n; l++) {
            sum += f->layers[l].weight_bytes;
            if (f->layers[l].scratch_bytes > scratch)
                scratch = f->layers[l].scratch_bytes;
        }
        sum += scratch * (uint64_t)samples;
    }
    return sum;
}

static bool has(const struct pipe_stage *s, int d)
{
    return d >= s->device && d < s->device + s->devices;
}

/* The samples of a copy's step, with data parallelism of a device's. */
static int load_of(const struct pipe_plan *plan, int chain, int samples)
{
    const struct pipe_cut *cut = &plan->cuts[chain];
    return cut->micros * (plan->order == PIPE_DATA ? samples : cut->samples);
}

static void add_stage(const struct costs *p, const struct pipe_plan *plan, int d, int chain, int i,
                      struct plan_memory *m)
{
    const struct pipe_stage *s = &plan->cuts[chain].stages[i];
    const struct pipe_cost cost = pipe_stage_cost(p, plan, chain, i);
    const int samples = pipe_most(plan->cuts[chain].samples, s->devices);
    const struct pipe_part part = {.chain = chain,
                                   .from = s->from,
                                   .to = s->to,
                                   .device = d,
                                   .samples = samples,
                                   .load = load_of(plan, chain, samples),
                                   .slots = s->slots + pipe_ahead(p->devices[d].kind, plan),
                                   .split = plan->order == PIPE_SPLIT,
                                   .sharers = plan->shard ? s->devices * plan->copies : 1};
    const struct pipe_bytes b = pipe_part_bytes(p, &part, &cost);
    m->model += b.model;
    m->slots += b.slots;
    m->beside += b.beside;
}

struct plan_memory plan_memory(const struct costs *p, const struct pipe_plan *plan, int d)
{
    const int load = plan->cuts[0].micros * plan->cuts[0].samples;
    struct plan_memory m = {.beside = pipe_common_bytes(p, d, plan->order == PIPE_DATA ? 0 : load)};
    for (int c = 0; c < plan->chains; c++)
        for (int i = 0; i < plan->cuts[c].n; i++)
            if (has(&plan->cuts[c].stages[i], d))
                add_stage(p, plan, d, c, i, &m);
    if (!plan->bare[d]) {
        m.frozen = frozen_networks_bytes(p, 0);
        m.scratch = frozen_networks_bytes(p, FILL_UNDERWAY) - m.frozen;
    }
    return m;
}

uint64_t plan_trained_bytes(const struct costs *p, const struct pipe_plan *plan, int d)
{
    const struct plan_memory m = plan_memory(p, plan, d);
    return m.model + m.slots + m.beside;
}

uint64_t plan_bytes(const struct costs *p, const struct pipe_plan *plan, int d)
{
    const struct plan_memory m = plan_memory(p, plan, d);
    return m.model + m.slots + m.beside + m.frozen + m.scratch;
}

static int check_memory(const struct checker *c)
{
    char need[STR_HUMAN_MAX], have[STR_HUMAN_MAX];
    for (int d = 0; d < c->schedule->n_devices; d++) {
        const uint64_t bytes = plan_bytes(c->p, c->plan, d);
        if (bytes > c->p->devices[d].memory)
            return err_set(c->err, -ENOMEM, "device %d (%s) needs %s and has %s", d,
                           c->p->devices[d].name, str_human_bytes(bytes, need),
                           str_human_bytes(c->p->devices[d].memory, have));
    }
    return 0;
}

/* ---- the work of a device ---- */

static int wrong(const struct checker *c, int d, int i, const char *why)
{
    const struct pipe_instr *in = &c->schedule->lists[d].items[i];
    return err_set(c->err, -EINVAL,
                   "instruction %d of device %d, %s of micro-batch %d in stage %d of chain %d: %s",
                   i, d, pipe_op_name(in->op), in->micro, in->stage, in->chain, why);
}

/* Checks F, B, W and REDUCE of one stage on one device. */
static int check_stage(const struct checker *c, int d, int chain, int stage)
{
    const struct pipe_list *l = &c->schedule->lists[d];
    const struct pipe_cut *cut = &c->plan->cuts[chain];
    int done[PIPE_OPS] = {0};
    for (int i = 0; i < l->n; i++) {
        const struct pipe_instr *in = &l->items[i];
        if (in->chain != chain || in->stage != stage)
            continue;
        if (in->op == PIPE_REDUCE && (done[PIPE_W] != cut->micros || done[PIPE_REDUCE]++ > 0))
            return wrong(c, d, i, "expected once, behind the last W");
        if (in->op == PIPE_E && (in->micro != done[PIPE_E]++ || done[PIPE_F] > 0))
            return wrong(c, d, i, "expected each once, in ascending order, before the first F");
        if (in->op == PIPE_F && done[PIPE_F] == 0 && done[PIPE_E] % cut->micros != 0)
            return wrong(c, d, i, "comes before what it is told");
        if (in->op != PIPE_F && in->op != PIPE_B && in->op != PIPE_W)
            continue;
        if (in->micro != done[in->op]++ || in->micro >= cut->micros)
            return wrong(c, d, i, "expected each once, in ascending order");
        if (in->op != PIPE_F && done[in->op] > done[in->op - 1])
            return wrong(c, d, i, "comes before what it needs");
        if (done[PIPE_F] - done[PIPE_W] > cut->stages[stage].slots)
            return wrong(c, d, i, "finds no free slot");
    }
    if (done[PIPE_W] != cut->micros || done[PIPE_REDUCE] != 1)
        return err_set(c->err, -EINVAL,
                       "device %d has %d of %d micro-batches of stage %d of chain %d, and %d sums",
                       d, done[PIPE_W], cut->micros, stage, chain, done[PIPE_REDUCE]);
    return 0;
}

/* A device must have no other device's stage, and the step's end once, in its place. */
static int check_device(const struct checker *c, int d)
{
    const struct pipe_list *l = &c->schedule->lists[d];
    int rc = 0, clips = 0, steps = 0;
    for (int k = 0; k < c->plan->chains; k++)
        for (int s = 0; s < c->plan->cuts[k].n && rc == 0; s++)
            rc = has(&c->plan->cuts[k].stages[s], d) ? check_stage(c, d, k, s) : 0;
    for (int i = 0; i < l->n && rc == 0; i++) {
        const struct pipe_instr *in = &l->items[i];
        const bool work = in->op == PIPE_F || in->op == PIPE_B || in->op == PIPE_W ||
                          in->op == PIPE_E || in->op == PIPE_REDUCE;
        if (work && (in->chain < 0 || in->chain >= c->plan->chains || in->stage < 0 ||
                     in->stage >= c->plan->cuts[in->chain].n ||
                     !has(&c->plan->cuts[in->chain].stages[in->stage], d)))
            return wrong(c, d, i, "the device does not have this stage");
        if ((work && clips > 0) || (in->op == PIPE_CLIP && clips++ > 0) ||
            (in->op == PIPE_STEP && (steps++ > 0 || clips == 0)))
            return wrong(c, d, i, "expected all work, then one CLIP, then one STEP");
    }
    if (rc == 0 && (clips != 1 || steps != 1))
        rc = err_set(c->err, -EINVAL, "device %d has %d CLIP and %d STEP, expected one of each", d,
                     clips, steps);
    return rc;
}

/* ---- frozen layers ---- */

/* at[s]: layers done for sample s of the step; on[s]: its device. */
static int check_frozen_list(const struct checker *c, int d, int f, int samples, int *at, int *on)
{
    const struct pipe_list *l = &c->schedule->lists[d];
    for (int i = 0; i < l->n; i++) {
        const struct pipe_instr *in = &l->items[i];
        if (in->op != PIPE_FROZEN || in->chain != f)
            continue;
        if (in->first < 0 || in->count < 1 || in->first > samples - in->count ||
            in->from >= in->to || in->to > c->p->frozen[f].n)
            return wrong(c, d, i, "no such samples or layers");
        for (int s = in->first; s < in->first + in->count; s++) {
            if (at[s] != in->from || (at[s] > 0 && on[s] != d))
                return wrong(c, d, i, "a sample is not where this begins");
            at[s] = in->to;
            on[s] = d;
        }
    }
    return 0;
}

static int check_frozen(const struct checker *c, int f)
{
    const int samples = c->plan->cuts[0].micros * c->plan->cuts[0].samples;
    int *at = mem_try_array(2 * (size_t)samples, sizeof(int)), rc = 0;
    if (!at)
        return err_set(c->err, -ENOMEM, "no memory to check a schedule");
    for (int d = 0; d < c->schedule->n_devices && rc == 0; d++)
        rc = check_frozen_list(c, d, f, samples, at, at + samples);
    bool none = true;
    for (int s = 0; s < samples; s++)
        none &= at[s] == 0;
    for (int s = 0; s < samples && rc == 0 && !none; s++)
        if (at[s] != c->p->frozen[f].n)
            rc = err_set(c->err, -EINVAL, "sample %d goes through %d of %d layers of %s", s, at[s],
                         c->p->frozen[f].n, c->p->frozen[f].name);
    mem_free(at);
    return rc;
}

/* ---- transfers ---- */

static int check_transfers(const struct checker *c)
{
    struct simulation run;
    int rc = simulate(c->p, c->plan, c->schedule, &run, c->err);
    if (rc < 0)
        return rc;
    for (int d = 0; d < run.n_devices && rc == 0; d++)
        for (int i = 0; i < run.traces[d].n && rc == 0; i++)
            if (run.traces[d].rows[i].end < 0)
                rc = wrong(c, d, i, "nobody is at the other end");
    simulation_release(&run);
    return rc;
}

int schedule_check(const struct costs *p, const struct pipe_plan *plan,
                   const struct pipe_schedule *schedule, struct err *err)
{
    const struct checker c = {p, plan, schedule, err};
    int rc = 0;
    for (int d = 0; d < schedule->n_devices && rc == 0; d++)
        rc = check_device(&c, d);
    for (int f = 0; f < p->n_frozen && rc == 0; f++)
        rc = check_frozen(&c, f);
    if (rc == 0)
        rc = check_transfers(&c);
    return rc < 0 ? rc : check_memory(&c);
}
