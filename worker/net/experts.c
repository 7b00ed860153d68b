#include "worker/net/experts.h"

#include "worker/net/dit_rows.h"

enum { NOBODY = -1 };

/* Room for one network's weights. */
struct place {
    struct weights own; /* not in the first place, which has the DiT's own */
    float *w;
    bf16 *w16;
    int expert; /* or NOBODY */
    uint64_t used;
};

struct experts {
    struct experts_options opt;
    const struct model *m;
    struct device *dev;
    struct dit *dit; /* computes with the weights of one place at a time */
    struct place *places;
    int room;
    float *flat; /* host, on the way in */
    uint64_t clock;
    unsigned loads;
    struct dit_rows rows; /* runs the DiT */
};

static void use_place(struct experts *x, const struct place *p)
{
    struct weights *w = dit_weights(x->dit);
    w->w = p->w;
    w->w16 = p->w16;
}

static int make_places(struct experts *x, struct err *err)
{
    struct weights *w = dit_weights(x->dit);
    const uint64_t bytes = weights_bytes(x->m, w->dt, false);
    const uint64_t fit = x->opt.memory_bytes / bytes;
    const int room = fit < 1 ? 1 : fit > (uint64_t)x->opt.count ? x->opt.count : (int)fit;
    x->places = mem_alloc_array((size_t)room, sizeof *x->places);
    for (int i = 0; i < room; i++) {
        struct place *p = &x->places[i];
        int rc = i ? weights_init(&p->own, x->dev, x->m, w->dt, false, err) : 0;
        if (rc < 0 && rc != -ENOMEM)
            return rc;
        if (rc < 0) { /* fewer places are only slower; later allocations need some room, too */
            weights_release(&p->own);
            if (x->room > 1)
                weights_release(&x->places[--x->room].own);
            return 0;
        }
        p->w = i ? p->own.w : w->w;
        p->w16 = i ? p->own.w16 : w->w16;
        p->expert = NOBODY;
        x->room++;
    }
    return 0;
}

/* Rows of one forward. */
static int batch_of(int batch)
{
    return batch < DIT_ROWS_MIN ? DIT_ROWS_MIN : batch;
}

uint64_t experts_bytes(const struct model *m, int batch, enum dtype dt)
{
    const int rows = batch_of(batch);
    const struct net_options opt = {.mode = NET_FORWARD, .batch = rows};
    return weights_bytes(m, dt, false) + dit_bytes(m, &opt, dt) + dit_rows_bytes(m, rows, dt);
}

int experts_new(struct device *dev, const struct model *m, const struct experts_options *opt,
                struct experts **ret, struct err *err)
{
    struct experts *x = mem_alloc(sizeof *x);
    x->opt = *opt;
    x->m = m;
    x->dev = dev;
    const struct net_options dopt = {
        .mode = NET_FORWARD, .precision = opt->precision, .batch = batch_of(opt->batch)};
    int rc = dit_new(dev, m, &dopt, &x->dit, err);
    if (rc == 0)
        rc = make_places(x, err);
    if (rc == 0)
        rc = dit_rows_open(&x->rows, x->dit, err);
    if (rc == 0 && !(x->flat = model_flat_new(m)))
        rc = err_set(err, -ENOMEM, "no memory for %" PRIu64 " parameters", m->params);
    if (rc < 0) {
        experts_free(x);
        return rc;
    }
    *ret = x;
    return 0;
}

void experts_free(struct experts *x)
{
    if (!x)
        return;
    if (x->room > 0)
        use_place(x, &x->places[0]);
    for (int i = 1; i < x->room; i++)
        weights_release(&x->places[i].own);
    dit_rows_close(&x->rows);
    dit_free(x->dit);
    mem_free(x->places);
    mem_free(x->flat);
    mem_free(x);
}

static struct place *find(struct experts *x, int expert)
{
    for (int i = 0; i < x->room; i++)
        if (x->places[i].expert == expert)
            return &x->places[i];
    return NULL;
}

/* An empty place, or the least recently used one. */
static struct place *make_room(struct experts *x)
{
    struct place *best = &x->places[0];
    for (int i = 0; i < x->room; i++) {
        struct place *p = &x->places[i];
        if (p->expert == NOBODY)
            return p;
        if (p->used < best->used)
            best = p;
    }
    return best;
}

/* The DiT computes with the weights of `expert` afterwards. */
static int switch_to(struct experts *x, int expert, struct err *err)
{
    struct place *p = find(x, expert);
    int rc = 0;
    if (p) {
        use_place(x, p);
    } else {
        p = make_room(x);
        rc = x->opt.load(x->opt.arg, expert, x->flat, err);
        if (rc < 0)
            return rc;
        use_place(x, p);
        p->expert = NOBODY;
        rc = weights_set(dit_weights(x->dit), x->flat, err);
        if (rc < 0)
            return rc;
        p->expert = expert;
        x->loads++;
    }
    p->used = ++x->clock;
    return 0;
}

static int run_one(struct experts *x, const struct mix_call *c, struct err *err)
{
    int rc = x->opt.begin ? x->opt.begin(x->opt.arg, c->expert, err) : 0;
    if (rc == 0)
        rc = switch_to(x, c->expert, err);
    if (rc == 0 && c->captions)
        dit_rows_captions(&x->rows, c->captions);
    dit_rows_shape(&x->rows, c->shape);
    const struct dit_rows_in in = {.x = c->x, .t = c->t, .labels = c->labels};
    return rc < 0 ? rc : dit_rows_run(&x->rows, c->v, &in, c->rows, err);
}

static int run(void *arg, const struct mix_call *calls, int n, struct err *err)
{
    struct experts *x = arg;
    bool done[MIX_EXPERTS_MAX];
    for (int i = 0; i < n; i++) {
        done[i] = find(x, calls[i].expert) != NULL;
        int rc = done[i] ? run_one(x, &calls[i], err) : 0;
        if (rc < 0)
            return rc;
    }
    for (int i = 0; i < n; i++) {
        int rc = done[i] ? 0 : run_one(x, &calls[i], err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

struct mix_experts experts_mix(struct experts *x)
{
    return (struct mix_experts){.count = x->opt.count, .arg = x, .run = run};
}

unsigned experts_loads(const struct experts *x)
{
    return x->loads;
}

int experts_room(const struct experts *x)
{
    return x->room;
}
