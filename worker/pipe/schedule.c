#include "worker/pipe/schedule.h"

/* A unit is a run of devices with the same stages: they do the same work, each on its share. */
struct unit {
    int stage[COSTS_CHAINS_MAX]; /* of each chain, -1: none */
    int device, devices;
    struct compute *order;
    int n, room;
    double free; /* end of its last instruction in seconds, in the search for an order */
};

struct compute {
    enum pipe_op op;
    int chain, micro;
};

struct maker {
    const struct costs *p;
    const struct pipe_plan *plan;
    struct pipe_schedule *out;
    struct unit units[COSTS_DEVICES_MAX];
    int n_units;
    bool failed; /* no memory */
};

static const char *pipe_order_name(enum pipe_order order)
{
    static const char *const names[PIPE_ORDERS] = {"data", "1f1b", "split", "divided",
                                                   "bidirectional"};
    return names[order];
}

const char *pipe_plan_name(const struct pipe_plan *plan)
{
    return plan->order == PIPE_1F1B && plan->chains > 1 ? "joined" : pipe_order_name(plan->order);
}

const char *pipe_op_name(enum pipe_op op)
{
    static const char *const names[PIPE_OPS] = {"LOAD", "F",      "B",      "W",    "E",   "SEND",
                                                "RECV", "FROZEN", "REDUCE", "CLIP", "STEP"};
    return names[op];
}

/* ---- costs ---- */

int pipe_width(const struct pipe_plan *plan)
{
    int most = 0;
    for (int i = 0; i < plan->cuts[0].n; i++)
        if (plan->cuts[0].stages[i].devices > most)
            most = plan->cuts[0].stages[i].devices;
    return most;
}

int pipe_stage_of(const struct pipe_cut *cut, int device)
{
    for (int i = 0; i < cut->n; i++)
        if (device >= cut->stages[i].device &&
            device < cut->stages[i].device + cut->stages[i].devices)
            return i;
    return -1;
}

bool pipe_begins(const struct pipe_plan *plan, int device)
{
    bool begins = false;
    for (int c = 0; c < plan->chains; c++)
        begins |= pipe_stage_of(&plan->cuts[c], device) == 0;
    return begins;
}

int pipe_places(const struct pipe_plan *plan)
{
    if (plan->order == PIPE_DATA)
        return 1;
    return plan->chains > 1 ? plan->devices : plan->cuts[0].n;
}

struct pipe_place pipe_place(const struct pipe_plan *plan, int place)
{
    const struct pipe_stage *s = &plan->cuts[0].stages[place];
    return plan->chains > 1 && plan->order != PIPE_DATA
               ? (struct pipe_place){place, 1}
               : (struct pipe_place){s->device, s->devices};
}

int pipe_place_of(const struct pipe_plan *plan, int device)
{
    return plan->chains > 1 && plan->order != PIPE_DATA ? device
                                                        : pipe_stage_of(&plan->cuts[0], device);
}

bool pipe_is_divided(const struct pipe_plan *plan)
{
    return plan->chains > 1 && plan->order != PIPE_DATA && plan->cuts[0].n < plan->devices;
}

int pipe_divide(int devices, const double work[2], const int layers[2])
{
    const int least = devices - layers[1] > 1 ? devices - layers[1] : 1;
    const int most = layers[0] < devices - 1 ? layers[0] : devices - 1;
    const int first = (int)lround(devices * work[0] / (work[0] + work[1]));
    return first < least ? least : first > most ? most : first;
}

void pipe_share(const struct pipe_cut *cut, int stage, int rank, int micro, int *first, int *count)
{
    const int64_t r = cut->stages[stage].devices;
    const int64_t samples = cut->sizes ? cut->sizes[micro] : cut->samples;
    *first = (int)(samples * rank / r);
    *count = (int)(samples * (rank + 1) / r) - *first;
}

struct pipe_cost pipe_layer_cost(const struct costs *p, int chain, int layer, int micros,
                                 int samples)
{
    const struct costs_layer *l = &p->chains[chain].layers[layer];
    return (struct pipe_cost){.f = costs_seconds(&p->sizes, &l->f, samples),
                              .b = costs_seconds(&p->sizes, &l->b, samples),
                              .w = costs_seconds(&p->sizes, &l->w, samples) +
                                   l->add * (micros - 1) / micros,
                              .step = l->step,
                              .slot = l->slot_bytes * (uint64_t)samples,
                              .split = l->split_bytes * (uint64_t)samples,
                              .weights = l->weight_bytes,
                              .state = l->state_bytes,
                              .gradients = l->gradient_bytes};
}

void pipe_cost_add(struct pipe_cost *sum, const struct pipe_cost *one)
{
    sum->f += one->f;
    sum->b += one->b;
    sum->w += one->w;
    sum->step += one->step;
    sum->slot += one->slot;
    sum->split += one->split;
    sum->weights += one->weights;
    sum->state += one->state;
    sum->gradients += one->gradients;
}

struct pipe_cost pipe_stage_cost(const struct costs *p, const struct pipe_plan *plan, int chain,
                                 int stage)
{
    const struct pipe_cut *cut = &plan->cuts[chain];
    const struct pipe_stage *s = &cut->stages[stage];
    struct pipe_cost sum = {0};
    for (int l = s->from; l < s->to; l++) {
        const struct pipe_cost one =
            pipe_layer_cost(p, chain, l, cut->micros, pipe_most(cut->samples, s->devices));
        pipe_cost_add(&sum, &one);
    }
    return sum;
}

struct pipe_bytes pipe_part_bytes(const struct costs *p, const struct pipe_part *part,
                                  const struct pipe_cost *cost)
{
    const struct costs_chain *c = &p->chains[part->chain];
    const enum costs_kind kind = p->devices[part->device].kind;
    const struct costs_beside none = {0}, *first = part->from == 0 ? &c->first : &none;
    const struct costs_beside *last = part->to == c->n ? &c->last : &none, *each = &c->stage;
    const uint64_t u = (uint64_t)part->samples, n = (uint64_t)part->sharers;
    const uint64_t slot = each->slot_bytes + first->slot_bytes + last->slot_bytes;
    const uint64_t split = each->split_bytes + first->split_bytes + last->split_bytes;
    struct pipe_bytes ret = {
        .model = cost->weights + (cost->state + n - 1) / n,
        .slots = (uint64_t)part->slots *
                 (cost->slot + u * slot + (part->split ? cost->split + u * split : 0)),
        .beside = each->bytes + first->bytes + last->bytes +
                  u * (each->sample_bytes + first->sample_bytes + last->sample_bytes) +
                  (uint64_t)part->load * (each->load_bytes + first->load_bytes + last->load_bytes)};
    ret.beside += costs_workspace(kind, ret.slots + ret.beside, cost->gradients) -
                  costs_workspace(kind, 0, 0);
    return ret;
}

uint64_t pipe_common_bytes(const struct costs *p, int device, int load)
{
    uint64_t sum = costs_workspace(p->devices[device].kind, 0, 0);
    for (int k = 0; k < p->n_frozen && load > 0; k++)
        sum += ((uint64_t)load + 1) * p->frozen[k].out_bytes; /* 1: the empty caption */
    return sum;
}

double pipe_speed(const struct costs *p, int device, int devices)
{
    double least = p->devices[device].speed;
    for (int d = device; d < device + devices; d++)
        least = fmin(least, p->devices[d].speed);
    return least;
}

double pipe_reduce_seconds(const struct costs *p, int device, int devices, int copies,
                           uint64_t bytes)
{
    const int n = devices * copies;
    const struct costs_link own = costs_link(p, device, device + devices - 1);
    struct costs_link l = copies > 1 ? p->across : own;
    if (n == 1 || bytes == 0)
        return 0;
    l.alpha = fmax(l.alpha, own.alpha);
    l.bytes_per_s = fmin(l.bytes_per_s, own.bytes_per_s);
    return 2 * (n - 1) * l.alpha + 2.0 * (n - 1) / n * (double)bytes / l.bytes_per_s;
}

double pipe_gather_seconds(const struct costs *p, int device, int devices, int copies,
                           uint64_t bytes)
{
    return pipe_reduce_seconds(p, device, devices, copies, bytes) / 2;
}

/* ---- lists ---- */

int schedule_insert(struct pipe_schedule *s, int d, int at, const struct pipe_instr *in)
{
    struct pipe_list *l = &s->lists[d];
    if (l->n == l->room) {
        const int room = l->room > 0 ? 2 * l->room : 64;
        void *more = mem_try_realloc_array(l->items, (size_t)room, sizeof *l->items);
        if (!more)
            return -ENOMEM;
        l->items = more;
        l->room = room;
    }
    memmove(l->items + at + 1, l->items + at, (size_t)(l->n - at) * sizeof *l->items);
    l->items[at] = *in;
    l->n++;
    return 0;
}

void schedule_release(struct pipe_schedule *s)
{
    for (int d = 0; d < s->n_devices; d++)
        mem_free(s->lists[d].items);
    *s = (struct pipe_schedule){0};
}

int schedule_copy(const struct pipe_schedule *s, struct pipe_schedule *ret)
{
    struct pipe_schedule out = {.n_devices = s->n_devices};
    for (int d = 0; d < s->n_devices; d++) {
        const struct pipe_list *l = &s->lists[d];
        out.lists[d] = *l;
        out.lists[d].items = mem_try_array((size_t)l->room, sizeof *l->items);
        if (!out.lists[d].items) {
            schedule_release(&out);
            return -ENOMEM;
        }
        memcpy(out.lists[d].items, l->items, (size_t)l->n * sizeof *l->items);
    }
    *ret = out;
    return 0;
}

void schedule_send_early(struct pipe_schedule *s)
{
    for (int d = 0; d < s->n_devices; d++) {
        struct pipe_instr *items = s->lists[d].items;
        for (int i = 1; i < s->lists[d].n; i++)
            for (int k = i; k > 0 && items[k].op == PIPE_SEND && items[k - 1].op == PIPE_W; k--) {
                const struct pipe_instr in = items[k];
                items[k] = items[k - 1];
                items[k - 1] = in;
            }
    }
}

static void add(struct maker *m, int d, struct pipe_instr in)
{
    m->failed |= m->failed || schedule_insert(m->out, d, m->out->lists[d].n, &in) < 0;
}

/* Adds the transfers of rank `rank` of a stage with another stage: one instruction for each rank
 * there with which it shares samples. */
static void transfers(struct maker *m, const struct pipe_instr *like, int rank, int other)
{
    const struct pipe_cut *cut = &m->plan->cuts[like->chain];
    const struct pipe_stage *there = &cut->stages[other];
    int first, count, from, n;
    pipe_share(cut, like->stage, rank, like->micro, &first, &count);
    for (int q = 0; q < there->devices; q++) {
        struct pipe_instr in = *like;
        pipe_share(cut, other, q, like->micro, &from, &n);
        in.peer = there->device + q;
        in.first = first > from ? first : from;
        in.count = (first + count < from + n ? first + count : from + n) - in.first;
        if (in.count > 0)
            add(m, cut->stages[like->stage].device + rank, in);
    }
}

static void receive(struct maker *m, const struct unit *u, int rank, int chain, enum pipe_op op,
                    int micro)
{
    const int stage = u->stage[chain], from = op == PIPE_F ? stage - 1 : stage + 1;
    const struct pipe_instr in = {.op = PIPE_RECV,
                                  .what = op == PIPE_F ? PIPE_STATES : PIPE_GRADIENTS,
                                  .chain = chain,
                                  .stage = stage,
                                  .micro = micro};
    if (from >= 0 && from < m->plan->cuts[chain].n && micro < m->plan->cuts[chain].micros)
        transfers(m, &in, rank, from);
}

static void send(struct maker *m, const struct unit *u, int rank, const struct compute *c)
{
    const int stage = u->stage[c->chain], to = c->op == PIPE_F ? stage + 1 : stage - 1;
    const struct pipe_instr in = {.op = PIPE_SEND,
                                  .what = c->op == PIPE_F ? PIPE_STATES : PIPE_GRADIENTS,
                                  .chain = c->chain,
                                  .stage = stage,
                                  .micro = c->micro};
    if (to >= 0 && to < m->plan->cuts[c->chain].n)
        transfers(m, &in, rank, to);
}

/* Adds the transfer of a micro-batch's velocities, from the last stage of a pipeline to the first.
 */
static void velocities(struct maker *m, const struct unit *u, int rank, enum pipe_op op, int micro)
{
    const int last = m->plan->cuts[0].n - 1, stage = op == PIPE_SEND ? last : 0;
    const struct pipe_instr in = {
        .op = op, .what = PIPE_VELOCITIES, .stage = u->stage[0], .micro = micro};
    if (m->plan->estimate && last > 0 && u->stage[0] == stage)
        transfers(m, &in, rank, last - stage);
}

/* Adds an F, B, W or E over the rank's share of a micro-batch. */
static void add_pass(struct maker *m, const struct unit *u, int rank, const struct compute *c,
                     enum pipe_op op)
{
    struct pipe_instr in = {
        .op = op, .chain = c->chain, .stage = u->stage[c->chain], .micro = c->micro};
    pipe_share(&m->plan->cuts[c->chain], in.stage, rank, in.micro, &in.first, &in.count);
    add(m, u->device + rank, in);
}

/* Adds a pass of all micro-batches before the step; with one stage each F makes its own estimate.
 */
static void estimates(struct maker *m, const struct unit *u, int rank)
{
    const struct pipe_cut *cut = &m->plan->cuts[0];
    for (int i = 0; i < cut->micros && m->plan->estimate && cut->n > 1 && u->stage[0] >= 0; i++) {
        const struct compute e = {.op = PIPE_F, .micro = i};
        receive(m, u, rank, 0, PIPE_F, i);
        add_pass(m, u, rank, &e, PIPE_E);
        send(m, u, rank, &e);
        velocities(m, u, rank, PIPE_SEND, i);
    }
}

static void device_list(struct maker *m, const struct unit *u, int rank)
{
    const int d = u->device + rank;
    const bool split = m->plan->order == PIPE_SPLIT && m->plan->variant != SCHEDULE_EARLY;
    add(m, d, (struct pipe_instr){.op = PIPE_LOAD});
    estimates(m, u, rank);
    for (int c = 0; c < m->plan->chains; c++) {
        if (u->stage[c] < 0)
            continue;
        receive(m, u, rank, c, PIPE_F, 0);
        receive(m, u, rank, c, PIPE_B, 0);
    }
    for (int i = 0; i < u->n; i++) {
        const struct compute *o = &u->order[i];
        struct compute sent = *o;
        if (o->op != PIPE_W)
            receive(m, u, rank, o->chain, o->op, o->micro + 1);
        if (o->op == PIPE_F && o->chain == 0)
            velocities(m, u, rank, PIPE_RECV, o->micro);
        add_pass(m, u, rank, o, o->op);
        /* If B and W are one, the result of B leaves when both are done. */
        sent.op = o->op == PIPE_W ? PIPE_B : o->op;
        if (o->op == PIPE_F || (split ? o->op == PIPE_B : o->op == PIPE_W))
            send(m, u, rank, &sent);
        if (o->op == PIPE_W && o->micro == m->plan->cuts[o->chain].micros - 1)
            add(m, d,
                (struct pipe_instr){
                    .op = PIPE_REDUCE, .chain = o->chain, .stage = u->stage[o->chain]});
    }
    add(m, d, (struct pipe_instr){.op = PIPE_CLIP});
    add(m, d, (struct pipe_instr){.op = PIPE_STEP});
}

/* ---- orders ---- */

static void put(struct maker *m, struct unit *u, enum pipe_op op, int chain, int micro)
{
    if (u->n == u->room) {
        m->failed = true;
        return;
    }
    u->order[u->n++] = (struct compute){op, chain, micro};
}

/* Adds the op for micro-batch g, counted through the unit's chains one after the other. */
static void put_nth(struct maker *m, struct unit *u, enum pipe_op op, int g)
{
    int chain = 0;
    while (u->stage[chain] < 0 || g >= m->plan->cuts[chain].micros) {
        g -= u->stage[chain] < 0 ? 0 : m->plan->cuts[chain].micros;
        chain++;
    }
    put(m, u, op, chain, g);
    if (op == PIPE_B)
        put(m, u, PIPE_W, chain, g);
}

static void order_1f1b(struct maker *m, struct unit *u)
{
    int all = 0, warm = 0;
    for (int c = 0; c < m->plan->chains; c++) {
        if (u->stage[c] < 0)
            continue;
        const int w = m->plan->cuts[c].stages[u->stage[c]].warm;
        warm = warm == 0 || w < warm ? w : warm;
        all += m->plan->cuts[c].micros;
    }
    for (int i = 0; i < all + warm; i++) {
        if (i >= warm)
            put_nth(m, u, PIPE_B, i - warm);
        if (i < all)
            put_nth(m, u, PIPE_F, i);
    }
}

/* The progress of a stage in the search for an order, with the times of its ends. */
struct progress {
    int f, b, w;
    double seconds[PIPE_OPS]; /* of F, B, W */
    double *f_end, *b_end;    /* ends for each micro-batch */
    double in, out;           /* seconds of a transfer from the stage before, from the next one */
};

struct search {
    struct maker *m;
    struct progress *at[COSTS_CHAINS_MAX];
    double *ends;
    bool fused;    /* B and W are one */
    double linger; /* share of its own time that a W waits for better work */
    bool forward;  /* F goes before a B that can begin at the same time */
    bool slower;   /* an F, too, waits for a B */
};

struct choice {
    double start, key;
    enum pipe_op op;
    int chain, unit;
};

static double link_seconds(const struct maker *m, int chain, int stage)
{
    const struct pipe_cut *cut = &m->plan->cuts[chain];
    const struct pipe_stage *a = &cut->stages[stage], *b = &cut->stages[stage + 1];
    const struct costs_link l = costs_link(m->p, a->device, b->device);
    const int most = pipe_most(cut->samples, a->devices > b->devices ? a->devices : b->devices);
    return costs_transfer(&l, m->p->chains[chain].layers[a->to - 1].out_bytes * (uint64_t)most);
}

static void stage_seconds(const struct search *s, int chain, int stage, struct progress *at)
{
    const struct pipe_cut *cut = &s->m->plan->cuts[chain];
    const struct pipe_stage *st = &cut->stages[stage];
    const double layers = st->to - st->from;
    struct pipe_cost cost = {.f = layers, .b = layers, .w = layers};
    double speed = 1;
    if (s->m->p) {
        cost = pipe_stage_cost(s->m->p, s->m->plan, chain, stage);
        speed = pipe_speed(s->m->p, st->device, st->devices);
        at->in = stage > 0 ? link_seconds(s->m, chain, stage - 1) : 0;
        at->out = stage + 1 < cut->n ? link_seconds(s->m, chain, stage) : 0;
    }
    at->seconds[PIPE_F] = cost.f / speed;
    at->seconds[PIPE_B] = (cost.b + (s->fused ? cost.w : 0)) / speed;
    at->seconds[PIPE_W] = cost.w / speed;
}

static int search_open(struct search *s)
{
    const struct pipe_plan *plan = s->m->plan;
    size_t stages = 0, ends = 0;
    for (int c = 0; c < plan->chains; c++) {
        stages += (size_t)plan->cuts[c].n;
        ends += 2 * (size_t)plan->cuts[c].n * (size_t)plan->cuts[c].micros;
    }
    struct progress *at = s->at[0] = mem_try_array(stages, sizeof *at);
    double *end = s->ends = mem_try_array(ends, sizeof *end);
    if (!at || !end)
        return -ENOMEM;
    for (int c = 0; c < plan->chains; c++) {
        const struct pipe_cut *cut = &plan->cuts[c];
        s->at[c] = at;
        for (int i = 0; i < cut->n; i++, at++) {
            stage_seconds(s, c, i, at);
            at->f_end = end;
            at->b_end = end + cut->micros;
            end += 2 * cut->micros;
        }
    }
    return 0;
}

/* When the unit's next F, B or W of a chain can begin; false: not known yet, or not allowed. */
static bool ready(const struct search *s, int chain, int stage, enum pipe_op op, double *ret)
{
    const struct pipe_cut *cut = &s->m->plan->cuts[chain];
    const struct pipe_stage *st = &cut->stages[stage];
    const struct progress *at = &s->at[chain][stage];
    *ret = 0;
    if (op == PIPE_W)
        return !s->fused && at->w < at->b;
    if (op == PIPE_F) {
        const int w = s->fused ? at->b : at->w;
        if (at->f == cut->micros || at->f - at->b >= st->warm || at->f - w >= st->slots)
            return false;
        if (stage > 0 && at[-1].f <= at->f)
            return false;
        *ret = stage > 0 ? at[-1].f_end[at->f] + at->in : 0;
        return true;
    }
    if (at->b == at->f || (stage + 1 < cut->n && at[1].b <= at->b))
        return false;
    *ret = stage + 1 < cut->n ? at[1].b_end[at->b] + at->out : at->f_end[at->b];
    return true;
}

/* Compares the unit's op with the best candidate for being next. */
static void consider(const struct search *s, int unit, int chain, enum pipe_op op,
                     struct choice *best)
{
    const struct unit *u = &s->m->units[unit];
    const struct progress *at = &s->at[chain][u->stage[chain]];
    struct choice c = {.op = op, .chain = chain, .unit = unit};
    double from;
    if (!ready(s, chain, u->stage[chain], op, &from))
        return;
    c.start = fmax(from, u->free);
    c.key = c.start;
    if (op == PIPE_W)
        c.key += s->linger * at->seconds[op];
    if (op == PIPE_F && s->slower)
        c.key += s->linger * at->seconds[op];
    /* Of equal ones, those for which others wait go first. */
    c.key += 1e-9 * at->seconds[PIPE_F] * (op == PIPE_W ? 3 : (op == PIPE_F) != s->forward ? 1 : 0);
    if (best->unit < 0 || c.key < best->key)
        *best = c;
}

static bool commit(struct search *s)
{
    struct choice best = {.unit = -1};
    for (int u = 0; u < s->m->n_units; u++)
        for (int c = 0; c < s->m->plan->chains; c++)
            for (enum pipe_op op = PIPE_F; op <= PIPE_W && s->m->units[u].stage[c] >= 0; op++)
                consider(s, u, c, op, &best);
    if (best.unit < 0)
        return false;
    struct unit *u = &s->m->units[best.unit];
    struct progress *at = &s->at[best.chain][u->stage[best.chain]];
    u->free = best.start + at->seconds[best.op];
    if (best.op == PIPE_F) {
        at->f_end[at->f] = u->free;
        put(s->m, u, PIPE_F, best.chain, at->f++);
    } else if (best.op == PIPE_B) {
        at->b_end[at->b] = u->free;
        put(s->m, u, PIPE_B, best.chain, at->b++);
        if (s->fused)
            put(s->m, u, PIPE_W, best.chain, at->w++);
    } else {
        put(s->m, u, PIPE_W, best.chain, at->w++);
    }
    return true;
}

/* Orders all units' work by simulation, taking what can begin first. */
static void order_search(struct maker *m)
{
    const int variant = m->plan->variant;
    struct search s = {.m = m,
                       .fused = m->plan->order != PIPE_SPLIT,
                       .linger = variant % 3 * 0.5,
                       .forward = variant >= 3};
    s.slower = s.fused;
    if (search_open(&s) < 0)
        m->failed = true;
    while (!m->failed && commit(&s))
        ;
    mem_free(s.at[0]);
    mem_free(s.ends);
}

/* ---- a plan's schedule ---- */

static struct unit *unit_of(struct maker *m, const struct pipe_stage *s)
{
    for (int i = 0; i < m->n_units; i++)
        if (m->units[i].device == s->device)
            return &m->units[i];
    struct unit *u = &m->units[m->n_units++];
    *u = (struct unit){.device = s->device, .devices = s->devices};
    for (int c = 0; c < COSTS_CHAINS_MAX; c++)
        u->stage[c] = -1;
    return u;
}

static void make_units(struct maker *m)
{
    for (int c = 0; c < m->plan->chains; c++)
        for (int i = 0; i < m->plan->cuts[c].n; i++) {
            struct unit *u = unit_of(m, &m->plan->cuts[c].stages[i]);
            u->stage[c] = i;
            u->room += 3 * m->plan->cuts[c].micros;
        }
    for (int i = 0; i < m->n_units; i++) {
        struct unit *u = &m->units[i];
        u->order = mem_try_array((size_t)u->room, sizeof *u->order);
        m->failed |= !u->order;
    }
}

void pipe_plan_split(struct pipe_plan *plan)
{
    plan->order = PIPE_SPLIT;
    for (int c = 0; c < plan->chains; c++)
        for (int i = 0; i < plan->cuts[c].n; i++)
            plan->cuts[c].stages[i].slots = plan->cuts[c].stages[0].slots;
}

int schedule_make(const struct costs *p, const struct pipe_plan *plan, struct pipe_schedule *ret,
                  struct err *err)
{
    const bool sought = plan->order == PIPE_BIDIRECTIONAL ||
                        (plan->order == PIPE_SPLIT && plan->variant != SCHEDULE_EARLY);
    struct pipe_schedule out = {.n_devices = plan->devices};
    struct maker m = {.p = p, .plan = plan, .out = &out};
    make_units(&m);
    if (sought)
        order_search(&m);
    else
        for (int i = 0; i < m.n_units && !m.failed; i++)
            order_1f1b(&m, &m.units[i]);
    for (int i = 0; i < m.n_units; i++) {
        for (int rank = 0; rank < m.units[i].devices && !m.failed; rank++)
            device_list(&m, &m.units[i], rank);
        mem_free(m.units[i].order);
    }
    if (m.failed) {
        schedule_release(&out);
        return err_set(err, -ENOMEM, "no memory for the schedule of %d devices", plan->devices);
    }
    *ret = out;
    return 0;
}
