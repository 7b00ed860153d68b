#include "worker/pipe/cuts.h"

/* Most partial cuts in the search for the best ones: later ones would only be worse. */
#define NODES_MAX 400000

struct point {
    double t0, y;
};

struct points {
    struct point *items;
    int n, room;
};

/* Tables of values that are used again and again. */
struct table {
    const struct cuts_problem *c;
    int layers, devices;
    struct pipe_cost *sums; /* [r-1][l]: costs of layers 0..l-1 for u/r samples */
    double *speed;          /* [d][r-1] speed of devices d..d+r-1 */
    uint64_t *memory;       /* [d][r-1] the least of theirs, for stages */
    struct points *points;  /* [e][l][d-1] */
    bool failed;            /* no memory */
};

/* ---- a stage ---- */

static struct pipe_cost between(const struct table *t, int r, int from, int to)
{
    const struct pipe_cost *s = t->sums + (size_t)(r - 1) * (size_t)(t->layers + 1);
    struct pipe_cost c = s[to];
    c.f -= s[from].f;
    c.b -= s[from].b;
    c.w -= s[from].w;
    c.slot -= s[from].slot;
    c.split -= s[from].split;
    c.weights -= s[from].weights;
    c.state -= s[from].state;
    c.gradients -= s[from].gradients;
    return c;
}

struct stage_time {
    double c, x, y;
};

/* Bytes of layers [from, to) on device d and the r - 1 next, with `behind` later stages: as of
 * order 1F1B. */
static uint64_t stage_bytes(const struct table *t, int from, int to, int d, int r, int behind,
                            const struct pipe_cost *cost)
{
    const struct cuts_problem *c = t->c;
    const int slots = c->micros < behind + 1 ? c->micros : behind + 1;
    const struct pipe_part part = {.chain = c->chain,
                                   .from = from,
                                   .to = to,
                                   .device = d,
                                   .samples = pipe_most(c->samples, r),
                                   .load = c->micros * c->samples,
                                   .slots = slots + (c->p->devices[d].kind == COSTS_CARD),
                                   .sharers = c->shard ? r * c->copies : 1};
    const struct pipe_bytes b = pipe_part_bytes(c->p, &part, cost);
    return b.model + b.slots + b.beside;
}

/* The time of layers [from, to) on devices [d, d+r), with `behind` later stages; false: they do not
 * fit. */
static bool stage_time(const struct table *t, int from, int to, int d, int r, int behind,
                       struct stage_time *ret)
{
    const struct cuts_problem *c = t->c;
    const struct pipe_cost cost = between(t, r, from, to);
    const size_t run = (size_t)d * (size_t)t->devices + (size_t)(r - 1);
    if (r > c->samples || stage_bytes(t, from, to, d, r, behind, &cost) > t->memory[run])
        return false;
    ret->c = (cost.f + cost.b + cost.w) / t->speed[run];
    ret->y = pipe_reduce_seconds(c->p, d, r, c->copies, cost.gradients);
    ret->x = 0;
    if (to < t->layers && d + r < t->devices) {
        const uint64_t bytes = c->p->chains[c->chain].layers[to - 1].out_bytes;
        ret->x =
            2 * costs_transfer(&c->p->links[d + r - 1], bytes * (uint64_t)pipe_most(c->samples, r));
    }
    return true;
}

static bool table_open(struct table *t, const struct cuts_problem *c)
{
    const int n = c->p->chains[c->chain].n, devices = c->p->n_devices;
    const size_t d = (size_t)devices, row = (size_t)n + 1;
    *t = (struct table){.c = c, .layers = n, .devices = devices};
    t->sums = mem_try_array(d * row, sizeof *t->sums);
    t->speed = mem_try_array(d * d, sizeof *t->speed);
    t->memory = mem_try_array(d * d, sizeof *t->memory);
    t->points = mem_try_array(d * row * d, sizeof *t->points);
    if (!t->sums || !t->speed || !t->memory || !t->points)
        return false;
    for (int r = 1; r <= devices; r++)
        for (int l = 0; l < n; l++) {
            struct pipe_cost *s = t->sums + (size_t)(r - 1) * row + l;
            const struct pipe_cost one =
                pipe_layer_cost(c->p, c->chain, l, c->micros, pipe_most(c->samples, r));
            s[1] = s[0];
            pipe_cost_add(&s[1], &one);
        }
    for (int i = 0; i < devices; i++)
        for (int r = 1; r <= devices - i; r++) {
            const size_t run = (size_t)i * d + (size_t)(r - 1);
            t->speed[run] = pipe_speed(c->p, i, r);
            const uint64_t all = c->p->devices[i + r - 1].memory;
            const uint64_t common = pipe_common_bytes(c->p, i + r - 1, c->micros * c->samples);
            t->memory[run] = all - (common < all ? common : all);
            if (r > 1 && t->memory[run - 1] < t->memory[run])
                t->memory[run] = t->memory[run - 1];
        }
    return true;
}

static struct points *at(const struct table *t, int behind, int layer, int devices)
{
    const size_t row = (size_t)behind * (size_t)(t->layers + 1) + (size_t)layer;
    return &t->points[row * (size_t)t->devices + (size_t)(devices - 1)];
}

static void table_close(struct table *t)
{
    const size_t n = (size_t)t->devices * (size_t)(t->layers + 1) * (size_t)t->devices;
    for (size_t i = 0; i < n && t->points; i++)
        mem_free(t->points[i].items);
    mem_free(t->points);
    mem_free(t->memory);
    mem_free(t->speed);
    mem_free(t->sums);
}

/* ---- P ---- */

/* Adds a point, and keeps those that no other beats in both, sorted by ascending t0 and so by
 * descending y. */
static void keep(struct table *t, struct points *s, struct point p)
{
    int low = 0, high = s->n;
    while (low < high) { /* find the first after p */
        const int mid = (low + high) / 2;
        if (s->items[mid].t0 <= p.t0)
            low = mid + 1;
        else
            high = mid;
    }
    if (low > 0 && s->items[low - 1].y <= p.y)
        return;
    low -= low > 0 && s->items[low - 1].t0 == p.t0;
    for (high = low; high < s->n && s->items[high].y >= p.y;)
        high++;
    if (s->n == s->room) {
        const int room = s->room > 0 ? 2 * s->room : 4;
        void *more = mem_try_realloc_array(s->items, (size_t)room, sizeof *s->items);
        if (!more) {
            t->failed = true;
            return;
        }
        s->items = more;
        s->room = room;
    }
    memmove(s->items + low + 1, s->items + high, (size_t)(s->n - high) * sizeof *s->items);
    s->items[low] = p;
    s->n += 1 - (high - low);
}

/* Puts a stage before all points of the rest.  Of points faster than the stage only the last
 * counts, which has the least y; of points with a shorter sum than the stage's only the first. */
static void put_before(struct table *t, const struct stage_time *s, const struct points *rest,
                       struct points *here)
{
    const double slow = fmax(s->c, s->x);
    int i = 0;
    while (i + 1 < rest->n && rest->items[i + 1].t0 <= slow)
        i++;
    for (; i < rest->n; i++) {
        keep(t, here, (struct point){fmax(slow, rest->items[i].t0), fmax(s->y, rest->items[i].y)});
        if (rest->items[i].y <= s->y)
            return;
    }
}

/* The most of `left` devices that a stage may have. */
static int widest(const struct table *t, int left)
{
    const int width = t->c->width;
    return width > 0 && width < left ? width : left;
}

static void solve_state(struct table *t, int behind, int layer, int d)
{
    struct points *here = at(t, behind, layer, d);
    struct stage_time s;
    if (behind == 0) {
        if (widest(t, d) == d && stage_time(t, layer, t->layers, t->devices - d, d, 0, &s))
            keep(t, here, (struct point){s.c, s.y});
        return;
    }
    for (int r = 1; r <= widest(t, d - behind); r++)
        for (int k = layer + 1; k <= t->layers - behind; k++) {
            const struct points *rest = at(t, behind - 1, k, d - r);
            if (rest->n > 0 && stage_time(t, layer, k, t->devices - d, r, behind, &s))
                put_before(t, &s, rest, here);
        }
}

static void solve(struct table *t, int stages)
{
    for (int e = 0; e < stages; e++)
        for (int l = 0; l < t->layers - e; l++)
            for (int d = e + 1; d <= t->devices && !t->failed; d++)
                solve_state(t, e, l, d);
}

/* ---- the best of P, one after the other ---- */

/* The first stages of a cut, whose best continuation is known from P. */
struct node {
    int before;                 /* the node without the last of its stages; -1: none */
    int layer, devices, behind; /* the rest: first layer, number of last devices, stages */
    struct point p;
    double bound; /* seconds of the best cut with these first stages */
    double way;   /* seconds of a micro-batch through these stages, there and back */
};

struct tree {
    const struct table *t;
    int stages;
    struct node *nodes;
    int n, room;
    int *heap, n_heap;
    double limit; /* nodes with a larger bound are not looked at */
    bool failed;
};

static double objective(const struct tree *q, struct point a, struct point b)
{
    return (q->t->c->micros + 2 * q->stages - 2) * fmax(a.t0, b.t0) + fmax(a.y, b.y);
}

/* Lower bounds first; of equal ones those with fewer stages left, then the shorter way. */
static bool sooner(const struct tree *q, int a, int b)
{
    const struct node *x = &q->nodes[a], *y = &q->nodes[b];
    if (x->bound != y->bound)
        return x->bound < y->bound;
    if (x->behind != y->behind)
        return x->behind < y->behind;
    return x->way < y->way;
}

static void sift_up(struct tree *q, int i)
{
    while (i > 0 && sooner(q, q->heap[i], q->heap[(i - 1) / 2])) {
        const int other = q->heap[(i - 1) / 2];
        q->heap[(i - 1) / 2] = q->heap[i];
        q->heap[i] = other;
        i = (i - 1) / 2;
    }
}

static int pop(struct tree *q)
{
    const int top = q->heap[0];
    q->heap[0] = q->heap[--q->n_heap];
    for (int i = 0;;) {
        int best = i;
        for (int k = 2 * i + 1; k <= 2 * i + 2 && k < q->n_heap; k++)
            best = sooner(q, q->heap[k], q->heap[best]) ? k : best;
        if (best == i)
            return top;
        const int other = q->heap[best];
        q->heap[best] = q->heap[i];
        q->heap[i] = other;
        i = best;
    }
}

static void push(struct tree *q, struct node n)
{
    const struct points *rest = n.behind > 0 ? at(q->t, n.behind - 1, n.layer, n.devices) : NULL;
    n.bound = rest ? INFINITY : objective(q, n.p, n.p);
    for (int i = 0; rest && i < rest->n; i++)
        n.bound = fmin(n.bound, objective(q, n.p, rest->items[i]));
    if (!(n.bound <= q->limit) || q->n == NODES_MAX || q->failed)
        return;
    if (q->n == q->room) {
        const int room = q->room > 0 ? 2 * q->room : 1024;
        void *nodes = mem_try_realloc_array(q->nodes, (size_t)room, sizeof *q->nodes);
        q->nodes = nodes ? nodes : q->nodes;
        void *heap = mem_try_realloc_array(q->heap, (size_t)room, sizeof *q->heap);
        q->heap = heap ? heap : q->heap;
        q->failed = !nodes || !heap;
        if (q->failed)
            return;
        q->room = room;
    }
    q->nodes[q->n] = n;
    q->heap[q->n_heap] = q->n++;
    sift_up(q, q->n_heap++);
}

/* Adds all nodes with one more stage. */
static void grow(struct tree *q, int from)
{
    const struct table *t = q->t;
    const struct node n = q->nodes[from];
    const int behind = n.behind - 1, d = t->devices - n.devices;
    for (int r = behind == 0 ? n.devices : 1; r <= widest(t, n.devices - behind); r++)
        for (int k = behind == 0 ? t->layers : n.layer + 1; k <= t->layers - behind; k++) {
            struct stage_time s;
            if (behind > 0 && at(t, behind - 1, k, n.devices - r)->n == 0)
                continue;
            if (!stage_time(t, n.layer, k, d, r, behind, &s))
                continue;
            push(q, (struct node){.before = from,
                                  .layer = k,
                                  .devices = n.devices - r,
                                  .behind = behind,
                                  .p = {fmax(n.p.t0, fmax(s.c, s.x)), fmax(n.p.y, s.y)},
                                  .way = n.way + s.c + s.x});
        }
}

static void found(const struct tree *q, const struct node *end, struct cuts_found *ret)
{
    const struct cuts_problem *c = q->t->c;
    *ret = (struct cuts_found){.cut = {.n = q->stages, .micros = c->micros, .samples = c->samples},
                               .t0 = end->p.t0,
                               .y = end->p.y,
                               .seconds = end->bound,
                               .flow = (c->micros - 1) * end->p.t0 + end->way + end->p.y};
    const struct node *n = end;
    for (int s = q->stages - 1; s >= 0; s--) {
        const struct node *before = &q->nodes[n->before];
        ret->cut.stages[s] = (struct pipe_stage){.from = before->layer,
                                                 .to = n->layer,
                                                 .device = q->t->devices - before->devices,
                                                 .devices = before->devices - n->devices};
        n = before;
    }
}

/* Finds the best cuts into `stages` stages; false: out of memory. */
static bool best_of(const struct table *t, int stages, int most, struct cuts_found *ret, int *n)
{
    struct tree q = {.t = t, .stages = stages, .limit = INFINITY};
    push(&q, (struct node){.before = -1, .devices = t->devices, .behind = stages});
    q.limit = q.n > 0 ? q.nodes[0].bound * CUTS_WORSE : 0;
    for (int got = 0; q.n_heap > 0 && got < most && !q.failed;) {
        const int i = pop(&q);
        if (q.nodes[i].behind > 0) {
            grow(&q, i);
            continue;
        }
        found(&q, &q.nodes[i], &ret[(*n)++]);
        got++;
    }
    mem_free(q.nodes);
    mem_free(q.heap);
    return !q.failed;
}

static int by_seconds(const void *a, const void *b)
{
    const struct cuts_found *x = a, *y = b;
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? -1 : 1;
    return x->flow < y->flow ? -1 : x->flow > y->flow;
}

int cuts_best(const struct cuts_problem *c, int most, struct cuts_found *ret, int *n,
              struct err *err)
{
    struct table t;
    const int devices = c->p->n_devices, layers = c->p->chains[c->chain].n;
    const int all = devices < layers ? devices : layers;
    int got = 0;
    bool good = table_open(&t, c);
    if (good)
        solve(&t, c->stages > 0 && c->stages < all ? c->stages : all);
    good = good && !t.failed;
    for (int s = 1; s <= all && good; s++)
        if (c->stages == 0 || s == c->stages)
            good = best_of(&t, s, most, ret, &got);
    table_close(&t);
    if (!good)
        return err_set(err, -ENOMEM, "no memory to plan %d layers on %d devices", layers, devices);
    qsort(ret, (size_t)got, sizeof *ret, by_seconds);
    *n = got;
    return 0;
}

/* ---- Q ---- */

struct pair {
    struct table t[2];
    bool reversed;
    double *q;     /* [d][la][lb] */
    uint16_t *way; /* the la and lb before, packed */
};

static size_t pair_at(const struct pair *q, int d, int la, int lb)
{
    const size_t na = (size_t)q->t[0].layers + 1, nb = (size_t)q->t[1].layers + 1;
    return ((size_t)d * na + (size_t)la) * nb + (size_t)lb;
}

/* The stage of chain c on device d for layers `from` to `to` in Q's counting. */
static bool pair_stage(const struct pair *q, int c, int from, int to, int d, struct stage_time *ret)
{
    const struct table *t = &q->t[c];
    const bool turned = q->reversed && c == 1;
    const int low = turned ? t->layers - to : from, high = turned ? t->layers - from : to;
    const int behind = turned ? d : t->devices - 1 - d;
    if (!stage_time(t, low, high, d, 1, behind, ret))
        return false;
    if (turned && low > 0) /* its upper neighbour is the device before, its lower one the next */
        ret->x =
            2 * costs_transfer(&t->c->p->links[d], t->c->p->chains[1].layers[low - 1].out_bytes *
                                                       (uint64_t)t->c->samples);
    else if (turned)
        ret->x = 0;
    return true;
}

static uint64_t pair_bytes(const struct pair *q, int c, int from, int to, int d)
{
    const struct table *t = &q->t[c];
    const bool turned = q->reversed && c == 1;
    const int low = turned ? t->layers - to : from, high = turned ? t->layers - from : to;
    const int behind = turned ? d : t->devices - 1 - d;
    const struct pipe_cost cost = between(t, 1, low, high);
    return stage_bytes(t, low, high, d, 1, behind, &cost);
}

/* The best of all ways in which device d's layers lead to (la, lb). */
static void pair_state(struct pair *q, int d, int la, int lb)
{
    double best = INFINITY;
    const size_t here = pair_at(q, d, la, lb);
    struct stage_time a, b;
    for (int ka = la - 1; ka >= d; ka--) {
        if (!pair_stage(q, 0, ka, la, d, &a))
            continue;
        if (a.c >= best)
            break;
        for (int kb = lb - 1; kb >= d; kb--) {
            if (!pair_stage(q, 1, kb, lb, d, &b))
                continue;
            if (a.c + b.c >= best)
                break;
            const double before = d > 0         ? q->q[pair_at(q, d - 1, ka, kb)]
                                  : ka + kb > 0 ? INFINITY
                                                : 0;
            const double t = fmax(before, fmax(a.c + b.c, a.x + b.x));
            if (t >= best || pair_bytes(q, 0, ka, la, d) + pair_bytes(q, 1, kb, lb, d) >
                                 q->t[0].memory[(size_t)d * (size_t)q->t[0].devices])
                continue;
            best = t;
            q->way[2 * here] = (uint16_t)ka;
            q->way[2 * here + 1] = (uint16_t)kb;
        }
    }
    q->q[here] = best;
}

static void pair_back(const struct pair *q, struct pipe_cut ret[2])
{
    const int devices = q->t[0].devices;
    int l[2] = {q->t[0].layers, q->t[1].layers};
    for (int c = 0; c < 2; c++)
        ret[c] = (struct pipe_cut){
            .n = devices, .micros = q->t[c].c->micros, .samples = q->t[c].c->samples};
    for (int d = devices - 1; d >= 0; d--) {
        const uint16_t *way = &q->way[2 * pair_at(q, d, l[0], l[1])];
        for (int c = 0; c < 2; c++) {
            const bool turned = q->reversed && c == 1;
            struct pipe_stage *s = &ret[c].stages[turned ? devices - 1 - d : d];
            *s = (struct pipe_stage){.from = way[c], .to = l[c], .device = d, .devices = 1};
            if (turned) {
                s->from = q->t[1].layers - l[c];
                s->to = q->t[1].layers - way[c];
            }
        }
        l[0] = way[0];
        l[1] = way[1];
    }
}

int cuts_pair(const struct cuts_problem c[2], bool reversed, struct pipe_cut ret[2], double *t0,
              bool *found_any, struct err *err)
{
    struct pair q = {.reversed = reversed};
    const int devices = c[0].p->n_devices;
    bool good = table_open(&q.t[0], &c[0]);
    good = table_open(&q.t[1], &c[1]) && good;
    const int na = q.t[0].layers, nb = q.t[1].layers;
    const size_t states = pair_at(&q, devices, 0, 0);
    q.q = mem_try_array(states, sizeof *q.q);
    q.way = mem_try_array(2 * states, sizeof *q.way);
    good = good && q.q && q.way;
    *found_any = false;
    for (int d = 0; d < devices && good; d++)
        for (int la = d == devices - 1 ? na : 0; la <= na; la++)
            for (int lb = d == devices - 1 ? nb : 0; lb <= nb; lb++)
                pair_state(&q, d, la, lb);
    if (good && isfinite(q.q[pair_at(&q, devices - 1, na, nb)])) {
        *t0 = q.q[pair_at(&q, devices - 1, na, nb)];
        *found_any = true;
        pair_back(&q, ret);
    }
    mem_free(q.q);
    mem_free(q.way);
    table_close(&q.t[0]);
    table_close(&q.t[1]);
    return good ? 0 : err_set(err, -ENOMEM, "no memory to plan two chains on %d devices", devices);
}
