#include "worker/pipe/simulate.h"

#define UNKNOWN (-1.0)

struct machine {
    const struct costs *p;
    const struct pipe_plan *plan;
    const struct pipe_schedule *schedule;
    struct simulation *out;
    int at[COSTS_DEVICES_MAX];     /* the next item of each list */
    double now[COSTS_DEVICES_MAX]; /* when the device is free */
    int *ends[COSTS_DEVICES_MAX];  /* for each SEND the matching RECV and vice versa; -1: none */
    double *seconds[COSTS_CHAINS_MAX]; /* F, B, W of each stage */
};

bool pipe_computes(enum pipe_op op)
{
    return op != PIPE_SEND && op != PIPE_RECV && op != PIPE_REDUCE;
}

double frozen_seconds(const struct costs *p, int d, int frozen, int from, int to, int count)
{
    double sum = 0;
    for (int l = from; l < to; l++)
        sum += costs_seconds(&p->groups, &p->frozen[frozen].layers[l].t, count);
    return sum / p->devices[d].speed;
}

/* ---- transfers ---- */

static bool same_message(const struct pipe_instr *a, const struct pipe_instr *b)
{
    return a->what == b->what && a->chain == b->chain && a->micro == b->micro &&
           a->first == b->first && a->count == b->count;
}

static bool same_channel(const struct pipe_instr *a, const struct pipe_instr *b)
{
    return a->op == b->op && a->peer == b->peer && a->what == b->what && a->chain == b->chain;
}

/* Matches each SEND with the next RECV of that channel in the peer's list. */
static void match(struct machine *m, int d)
{
    const struct pipe_list *l = &m->schedule->lists[d];
    for (int i = 0; i < l->n; i++) {
        const struct pipe_instr *in = &l->items[i];
        m->ends[d][i] = -1;
        if (in->op != PIPE_SEND && in->op != PIPE_RECV)
            continue;
        /* After the mate of this channel's last message, which is usually near. */
        int from = 0;
        for (int k = i - 1; k >= 0; k--)
            if (same_channel(&l->items[k], in)) {
                from = m->ends[d][k] < 0 ? INT_MAX : m->ends[d][k] + 1;
                break;
            }
        if (in->peer < 0 || in->peer >= m->schedule->n_devices)
            continue;
        const struct pipe_list *there = &m->schedule->lists[in->peer];
        for (int k = from; k < there->n; k++) {
            const struct pipe_instr *mate = &there->items[k];
            if (mate->op == (in->op == PIPE_SEND ? PIPE_RECV : PIPE_SEND) && mate->peer == d &&
                mate->what == in->what && mate->chain == in->chain) {
                m->ends[d][i] = same_message(in, mate) ? k : -1;
                break;
            }
        }
    }
}

static uint64_t message_bytes(const struct machine *m, const struct pipe_instr *in)
{
    const uint64_t n = (uint64_t)in->count;
    if (in->what == PIPE_ENCODED)
        return n * m->p->frozen[in->chain].out_bytes;
    if (in->what == PIPE_VELOCITIES) /* an image is about as large as states */
        return n * m->p->chains[in->chain].layers[0].out_bytes;
    /* For a SEND: gradients go to the stage before, over its upper end. */
    const int below = in->what == PIPE_STATES ? in->stage : in->stage - 1;
    const struct pipe_cut *cut = &m->plan->cuts[in->chain];
    return n * m->p->chains[in->chain].layers[cut->stages[below].to - 1].out_bytes;
}

/* Makes the transfer of a SEND whose RECV was reached; sets both rows. */
static void transfer(struct machine *m, int d, int i)
{
    const struct pipe_list *l = &m->schedule->lists[d];
    const struct pipe_instr *in = &l->items[i];
    struct trace_row *rows = m->out->traces[d].rows, *row = &rows[i];
    struct trace_row *mate = &m->out->traces[in->peer].rows[m->ends[d][i]];
    const struct costs_link link = costs_link(m->p, d, in->peer);
    double start = fmax(row->start, mate->start);
    for (int k = i - 1; k >= 0; k--)
        if (same_channel(&l->items[k], in)) {
            start = fmax(start, rows[k].end);
            break;
        }
    row->end = mate->end = start + costs_transfer(&link, message_bytes(m, in));
}

/* Queues a SEND or RECV; the second of the two makes the transfer. */
static void queue(struct machine *m, int d, int i)
{
    const struct pipe_instr *in = &m->schedule->lists[d].items[i];
    const int mate = m->ends[d][i];
    m->out->traces[d].rows[i] = (struct trace_row){.start = m->now[d], .end = UNKNOWN};
    if (mate < 0 || m->at[in->peer] <= mate)
        return;
    if (in->op == PIPE_SEND)
        transfer(m, d, i);
    else
        transfer(m, in->peer, mate);
}

/* When the first stage received the velocities for its F, if any, just before it. */
static bool told(const struct machine *m, int d, int i, double *ret)
{
    const struct pipe_instr *items = m->schedule->lists[d].items;
    const struct trace_row *rows = m->out->traces[d].rows;
    for (int k = i - 1; k >= 0 && items[k].op == PIPE_RECV && items[k].what == PIPE_VELOCITIES;
         k--) {
        if (rows[k].end < 0)
            return false;
        *ret = fmax(*ret, rows[k].end);
    }
    return true;
}

/* When all inputs of an F, E or B were received; false: unknown yet. */
static bool arrived(const struct machine *m, int d, int i, double *ret)
{
    const struct pipe_list *l = &m->schedule->lists[d];
    const struct pipe_instr *in = &l->items[i];
    const struct pipe_cut *cut = &m->plan->cuts[in->chain];
    const enum pipe_what what = in->op == PIPE_B ? PIPE_GRADIENTS : PIPE_STATES;
    int wanted;
    *ret = 0;
    if (in->op == PIPE_F && in->stage == 0)
        return told(m, d, i, ret);
    if (in->op == PIPE_B ? in->stage == cut->n - 1 : in->stage == 0)
        return true;
    int first;
    pipe_share(cut, in->stage, d - cut->stages[in->stage].device, in->micro, &first, &wanted);
    for (int k = i - 1; k >= 0 && wanted > 0; k--) {
        const struct pipe_instr *r = &l->items[k];
        if (r->op != PIPE_RECV || r->what != what || r->chain != in->chain || r->micro != in->micro)
            continue;
        if (m->out->traces[d].rows[k].end < 0)
            return false;
        *ret = fmax(*ret, m->out->traces[d].rows[k].end);
        wanted -= r->count;
    }
    return wanted <= 0;
}

/* ---- computing ---- */

/* The update, and where the optimiser's state is shared, the new weights' way. */
static double step_seconds(const struct machine *m, int d)
{
    double update = 0, gather = 0;
    for (int c = 0; c < m->plan->chains; c++)
        for (int s = 0; s < m->plan->cuts[c].n; s++) {
            const struct pipe_stage *st = &m->plan->cuts[c].stages[s];
            const int sharers = m->plan->shard ? st->devices * m->plan->copies : 1;
            if (d < st->device || d >= st->device + st->devices)
                continue;
            const struct pipe_cost cost = pipe_stage_cost(m->p, m->plan, c, s);
            update += cost.step / sharers;
            if (sharers > 1)
                gather += pipe_gather_seconds(m->p, st->device, st->devices, m->plan->copies,
                                              cost.gradients);
        }
    return update / m->p->devices[d].speed + gather;
}

/* LOAD: what is encoded before the step. */
static double load_seconds(const struct machine *m, int d)
{
    int samples = 0;
    for (int c = 0; c < m->plan->chains; c++) { /* captions of both chains are the same */
        const struct pipe_cut *cut = &m->plan->cuts[c];
        if (pipe_stage_of(cut, d) == 0)
            samples = cut->micros * pipe_most(cut->samples, cut->stages[0].devices);
    }
    return samples > 0 && m->p->groups.n > 0
               ? costs_seconds(&m->p->groups, &m->p->load, samples) / m->p->devices[d].speed
               : 0;
}

static double duration(const struct machine *m, int d, const struct pipe_instr *in)
{
    const double speed = m->p->devices[d].speed;
    if (in->op == PIPE_FROZEN)
        return frozen_seconds(m->p, d, in->chain, in->from, in->to, in->count);
    if (in->op == PIPE_E)
        return m->seconds[in->chain][3 * in->stage] / speed;
    if (in->op == PIPE_F || in->op == PIPE_B || in->op == PIPE_W)
        return m->seconds[in->chain][3 * in->stage + (int)(in->op - PIPE_F)] / speed;
    if (in->op == PIPE_LOAD)
        return load_seconds(m, d);
    return in->op == PIPE_STEP ? step_seconds(m, d) : 0;
}

/* Does the device wait at a CLIP, after which only all devices together go on? */
static bool waits(const struct machine *m, int d)
{
    const struct pipe_list *l = &m->schedule->lists[d];
    return m->at[d] < l->n && l->items[m->at[d]].op == PIPE_CLIP;
}

/* Runs what a device can run; false: nothing. */
static bool advance(struct machine *m, int d)
{
    const struct pipe_list *l = &m->schedule->lists[d];
    const int before = m->at[d];
    while (m->at[d] < l->n && !waits(m, d)) {
        const int i = m->at[d];
        const struct pipe_instr *in = &l->items[i];
        struct trace_row *row = &m->out->traces[d].rows[i];
        double from = 0;
        if ((in->op == PIPE_F || in->op == PIPE_E || in->op == PIPE_B) && !arrived(m, d, i, &from))
            break;
        if (!pipe_computes(in->op)) {
            if (in->op == PIPE_REDUCE)
                *row = (struct trace_row){.start = m->now[d], .end = UNKNOWN};
            m->at[d]++;
            if (in->op != PIPE_REDUCE)
                queue(m, d, i);
            continue;
        }
        row->start = row->ready = fmax(m->now[d], from);
        m->now[d] = row->end = row->start + duration(m, d, in);
        m->out->traces[d].busy += row->end - row->start;
        m->at[d]++;
    }
    return m->at[d] > before;
}

/* The row of a stage's REDUCE on a device; NULL: it has none. */
static struct trace_row *reduce_row(struct machine *m, int d, int chain, int stage)
{
    const struct pipe_list *l = &m->schedule->lists[d];
    for (int i = l->n - 1; i >= 0; i--)
        if (l->items[i].op == PIPE_REDUCE && l->items[i].chain == chain &&
            l->items[i].stage == stage)
            return &m->out->traces[d].rows[i];
    return NULL;
}

/* Makes the sums of a stage, after earlier ones on its devices.  A layer's gradient is final when
 * its last W is over: all layers but one are summed beside the last backward, where that is
 * possible. */
static void reduce(struct machine *m, int chain, int stage, double free[])
{
    const struct pipe_stage *s = &m->plan->cuts[chain].stages[stage];
    const struct pipe_cost cost = pipe_stage_cost(m->p, m->plan, chain, stage);
    const double last = cost.w + (m->plan->order == PIPE_SPLIT ? 0 : cost.b);
    const double all =
        pipe_reduce_seconds(m->p, s->device, s->devices, m->plan->copies, cost.gradients);
    double start = 0, end = 0;
    for (int d = s->device; d < s->device + s->devices; d++) {
        const struct trace_row *row = reduce_row(m, d, chain, stage);
        const double final = row ? row->start : 0;
        const int early = m->p->devices[d].sums_apart ? 0 : s->to - s->from - 1;
        const double beside = last / m->p->devices[d].speed * early;
        start = fmax(start, fmax(free[d], final - beside / (s->to - s->from)));
        end = fmax(end, fmax(free[d], final) + all / (s->to - s->from));
    }
    end = fmax(end, start + all);
    for (int d = s->device; d < s->device + s->devices; d++) {
        struct trace_row *row = reduce_row(m, d, chain, stage);
        if (row)
            row->end = free[d] = end;
    }
}

/* All devices are at CLIP: makes the sums, then the norm. */
static void clip(struct machine *m)
{
    double free[COSTS_DEVICES_MAX] = {0}, start = 0;
    const struct costs_link way = costs_link(m->p, 0, m->p->n_devices - 1);
    const double alpha = m->plan->copies > 1 ? fmax(way.alpha, m->p->across.alpha) : way.alpha;
    for (int c = 0; c < m->plan->chains; c++)
        for (int s = 0; s < m->plan->cuts[c].n; s++)
            reduce(m, c, s, free);
    for (int d = 0; d < m->schedule->n_devices; d++)
        start = fmax(start, fmax(m->now[d], free[d]));
    for (int d = 0; d < m->schedule->n_devices; d++) {
        m->out->traces[d].rows[m->at[d]++] = (struct trace_row){start, start + 2 * alpha, start};
        m->now[d] = start + 2 * alpha;
    }
}

/* ---- the whole ---- */

static int stuck(const struct machine *m, struct err *err)
{
    for (int d = 0; d < m->schedule->n_devices; d++) {
        const struct pipe_list *l = &m->schedule->lists[d];
        if (m->at[d] >= l->n || waits(m, d))
            continue;
        const struct pipe_instr *in = &l->items[m->at[d]];
        return err_set(err, -EDEADLK,
                       "the schedule is stuck: device %d waits before instruction %d, %s of "
                       "micro-batch %d in stage %d of chain %d, for what nobody will send",
                       d, m->at[d], pipe_op_name(in->op), in->micro, in->stage, in->chain);
    }
    return err_set(err, -EDEADLK, "the schedule is stuck: some devices have a CLIP, others none");
}

static int run(struct machine *m, struct err *err)
{
    const int n = m->schedule->n_devices;
    for (;;) {
        bool more = false, over = true;
        int clips = 0;
        for (int d = 0; d < n; d++)
            more |= advance(m, d);
        for (int d = 0; d < n; d++) {
            const struct pipe_list *l = &m->schedule->lists[d];
            over &= m->at[d] == l->n;
            clips += waits(m, d);
        }
        if (over)
            return 0;
        if (clips == n)
            clip(m);
        else if (!more)
            return stuck(m, err);
    }
}

static void measure(struct machine *m)
{
    struct simulation *out = m->out;
    double busy = 0;
    for (int d = 0; d < out->n_devices; d++) {
        busy += out->traces[d].busy;
        out->seconds = fmax(out->seconds, m->now[d]);
        for (int i = 0; i < out->traces[d].n; i++)
            out->seconds = fmax(out->seconds, out->traces[d].rows[i].end);
    }
    out->idle = out->seconds > 0 ? 1 - busy / (out->n_devices * out->seconds) : 0;
}

static bool open_machine(struct machine *m)
{
    bool good = true;
    m->out->n_devices = m->schedule->n_devices;
    for (int d = 0; d < m->schedule->n_devices; d++) {
        const size_t n = (size_t)m->schedule->lists[d].n;
        m->out->traces[d].n = (int)n;
        m->out->traces[d].rows = mem_try_array(n, sizeof(struct trace_row));
        m->ends[d] = mem_try_array(n, sizeof(int));
        good &= m->out->traces[d].rows && m->ends[d];
        if (m->ends[d])
            match(m, d);
    }
    for (int c = 0; c < m->plan->chains; c++) {
        const int n = m->plan->cuts[c].n;
        m->seconds[c] = mem_try_array(3 * (size_t)n, sizeof(double));
        good &= m->seconds[c] != NULL;
        for (int s = 0; s < n && m->seconds[c]; s++) {
            const struct pipe_cost cost = pipe_stage_cost(m->p, m->plan, c, s);
            memcpy(m->seconds[c] + 3 * s, (double[]){cost.f, cost.b, cost.w}, 3 * sizeof(double));
        }
    }
    return good;
}

int simulate(const struct costs *p, const struct pipe_plan *plan,
             const struct pipe_schedule *schedule, struct simulation *ret, struct err *err)
{
    struct simulation out = {0};
    struct machine m = {.p = p, .plan = plan, .schedule = schedule, .out = &out};
    int rc = open_machine(&m) ? run(&m, err) : err_set(err, -ENOMEM, "no memory for a simulation");
    if (rc == 0)
        measure(&m);
    for (int d = 0; d < schedule->n_devices; d++)
        mem_free(m.ends[d]);
    for (int c = 0; c < plan->chains; c++)
        mem_free(m.seconds[c]);
    if (rc < 0)
        simulation_release(&out);
    else
        *ret = out;
    return rc;
}

void simulation_release(struct simulation *s)
{
    for (int d = 0; d < s->n_devices; d++)
        mem_free(s->traces[d].rows);
    *s = (struct simulation){0};
}
