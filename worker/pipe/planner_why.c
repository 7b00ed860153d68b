#include "worker/pipe/planner_impl.h"

/* Cuts a chain into stages of about equally many layers, on devices [from, from+devices). */
static void cut_evenly(const struct planner *s, int chain, int n, int from, int devices,
                       struct pipe_cut *cut)
{
    const struct planner_options *o = s->opt;
    const int micros = o->micros[o->n_micros - 1], layers = s->p->chains[chain].n;
    *cut = (struct pipe_cut){.n = n, .micros = micros, .samples = pipe_most(o->samples, micros)};
    for (int i = 0; i < n; i++) {
        const int d = devices * i / n, slots = n - i < micros ? n - i : micros;
        cut->stages[i] = (struct pipe_stage){.from = layers * i / n,
                                             .to = layers * (i + 1) / n,
                                             .device = from + d,
                                             .devices = devices * (i + 1) / n - d,
                                             .slots = slots};
    }
}

/* Says how much memory the first devices would need with as many stages as asked for, or possible,
 * of about equally many layers, in the smallest micro-batches. */
static void say_needs(const struct planner *s, bool divided, char out[PLANNER_WHY_MAX])
{
    enum { SAID = 4 };
    const int devices = s->p->n_devices;
    const int layers[] = {s->p->chains[0].n, s->p->chains[s->p->n_chains - 1].n};
    const int first = divided ? pipe_divide(devices, (double[]){layers[0], layers[1]}, layers) : 0;
    struct pipe_plan plan = {.chains = s->p->n_chains, .devices = devices, .copies = 1};
    char need[STR_HUMAN_MAX], have[STR_HUMAN_MAX];
    int n = s->opt->stages > 0 && plan.chains == 1 ? s->opt->stages : devices;
    n = n < layers[0] || divided ? n : layers[0];
    n = n < layers[1] || divided ? n : layers[1];
    plan.order = divided ? PIPE_DIVIDED : PIPE_1F1B;
    for (int c = 0; c < plan.chains; c++) {
        const int own = !divided ? devices : c == 0 ? first : devices - first;
        cut_evenly(s, c, divided ? own : n, c * first, own, &plan.cuts[c]);
    }
    (void)snprintf(out, PLANNER_WHY_MAX, "no cut into stages fits; evenly cut into %d,", n);
    for (int d = 0; d < devices && d < SAID; d++) {
        const size_t at = strlen(out);
        (void)snprintf(out + at, PLANNER_WHY_MAX - at, "%s %s needs %s of %s", d > 0 ? "," : "",
                       s->p->devices[d].name,
                       str_human_bytes(plan_trained_bytes(s->p, &plan, d), need),
                       str_human_bytes(s->p->devices[d].memory, have));
    }
}

/* Says why no numbers of copies, stages and micro-batches go with the order. */
static void say_numbers(const struct planner *s, enum pipe_order o, char out[PLANNER_WHY_MAX])
{
    const int devices = s->p->n_devices, layers = s->p->chains[0].n;
    const int up = s->p->n_chains == 2 ? s->p->chains[1].n : 0;
    if (o == PIPE_DIVIDED && layers + up < devices)
        snprintf(out, PLANNER_WHY_MAX, "both chains have fewer layers than there are devices");
    else if (o != PIPE_DIVIDED && s->p->n_chains == 2 && (layers < devices || up < devices))
        snprintf(out, PLANNER_WHY_MAX, "a chain has fewer layers than there are devices");
    else
        snprintf(out, PLANNER_WHY_MAX,
                 "a step of %d cannot be divided among %d devices so that copies and micro-batches "
                 "are equal and each device has a sample of each: change train.batch, "
                 "train.accumulate or train.stages",
                 s->opt->samples, devices);
}

void planner_why_not(const struct planner *s, enum pipe_order o, struct planner_candidate *c)
{
    const int devices = s->p->n_devices;
    char *out = c->why;
    if (c->possible || *out)
        return;
    if (!planner_asks(s, o))
        snprintf(out, PLANNER_WHY_MAX, "not asked for");
    else if (o == PIPE_DATA && s->opt->stages > 1)
        snprintf(out, PLANNER_WHY_MAX, "it has one stage");
    else if (o == PIPE_DATA)
        snprintf(out, PLANNER_WHY_MAX, "%s", s->data_why);
    else if (devices == 1)
        snprintf(out, PLANNER_WHY_MAX, "one device has one stage");
    else if (o >= PIPE_DIVIDED && s->p->n_chains == 1)
        snprintf(out, PLANNER_WHY_MAX, "it is for two chains");
    else if (!(s->divides & PLANNER_BIT(o)))
        say_numbers(s, o, out);
    else
        say_needs(s, o == PIPE_DIVIDED, out);
}
