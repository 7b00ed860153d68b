#include "worker/net/experts.h"

#include "worker/net/dit_rows.h"

enum { NOBODY = -1 };

/* Room for one network's weights. */
struct place {
    struct weights w;
    int expert; /* or NOBODY */
    uint64_t used;
};

struct experts {
    struct experts_options opt;
    const struct model *m;
    struct device *dev;
    struct place *places;
    int room;
    float *flat; /* host, on the way in */
    uint64_t clock;
    unsigned loads;
    /* Its chains compute with the weights of one place at a time. */
    struct dit *dit[MODEL_CHAINS];
    struct dit_rows rows[MODEL_CHAINS];
};

static void use_place(struct experts *x, const struct place *p)
{
    for (int i = 0; i < model_n_chains(&x->m->spec); i++) {
        struct weights *w = dit_weights(x->dit[i]);
        w->w = p->w.w;
        w->w16 = p->w.w16;
    }
}

static int make_place(struct experts *x, struct err *err)
{
    struct place *p = &x->places[x->room];
    const enum dtype dt = net_dtype(x->dev, x->opt.precision);
    int rc = weights_init(&p->w, x->dev, x->m, dt, false, err);
    p->expert = NOBODY;
    if (rc < 0)
        weights_release(&p->w);
    else
        x->room++;
    return rc;
}

static int make_places(struct experts *x, int room, struct err *err)
{
    while (x->room < room) {
        int rc = make_place(x, err);
        if (rc == -ENOMEM) { /* fewer places are only slower; later allocations need some, too */
            if (x->room > 1)
                weights_release(&x->places[--x->room].w);
            return 0;
        }
        if (rc < 0)
            return rc;
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
    uint64_t bytes = weights_bytes(m, dt, false);
    for (int i = 0; i < model_n_chains(&m->spec); i++)
        bytes +=
            dit_bytes(model_chain(m, i), &opt, dt) + dit_rows_bytes(model_chain(m, i), rows, dt);
    return bytes;
}

/* The networks' arithmetic, at first with the weights of the first place. */
static int make_chains(struct experts *x, struct err *err)
{
    const struct net_options opt = {
        .mode = NET_FORWARD, .precision = x->opt.precision, .batch = batch_of(x->opt.batch)};
    int rc = 0;
    for (int i = 0; i < model_n_chains(&x->m->spec) && rc == 0; i++)
        rc = dit_new_within(&x->places[0].w, model_chain(x->m, i), &opt, &x->dit[i], err);
    return rc;
}

int experts_new(struct device *dev, const struct model *m, const struct experts_options *opt,
                struct experts **ret, struct err *err)
{
    struct experts *x = mem_alloc(sizeof *x);
    x->opt = *opt;
    x->m = m;
    x->dev = dev;
    const uint64_t fit =
        opt->memory_bytes / weights_bytes(m, net_dtype(dev, opt->precision), false);
    const int room = fit < 1 ? 1 : fit > (uint64_t)opt->count ? opt->count : (int)fit;
    x->places = mem_alloc_array((size_t)room, sizeof *x->places);
    int rc = make_place(x, err);
    if (rc == 0)
        rc = make_chains(x, err);
    if (rc == 0)
        rc = make_places(x, room, err);
    for (int i = 0; i < model_n_chains(&m->spec) && rc == 0; i++)
        rc = dit_rows_open(&x->rows[i], x->dit[i], err);
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
    for (int i = 0; i < MODEL_CHAINS; i++) {
        dit_rows_close(&x->rows[i]);
        dit_free(x->dit[i]);
    }
    for (int i = 0; i < x->room; i++)
        weights_release(&x->places[i].w);
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

/* The chains compute with the weights of `expert` afterwards. */
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
        rc = weights_set(&p->w, x->flat, err);
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
    struct dit_rows *rows = &x->rows[c->chain];
    if (rc == 0 && c->captions)
        dit_rows_captions(rows, c->captions);
    dit_rows_shape(rows, c->shape);
    const struct dit_rows_in in = {
        .x = c->x, .estimate = c->beside, .t = c->t, .labels = c->labels};
    return rc < 0 ? rc : dit_rows_run(rows, c->v, &in, c->rows, err);
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
