/* All cuts of a chain, one after the other, and random islands to cut it on: what the planner's
 * dynamic program is held against. */
#ifndef TESTS_UNIT_BRUTE_H
#define TESTS_UNIT_BRUTE_H

#include "tests/unit/worker/pipe/pipes.h"
#include "worker/pipe/cuts.h"

/* Layers, links, speeds and, for half of them, memories that decide. */
static inline struct costs brute_profile(struct rng *r, int layers_max, int devices_max)
{
    const int n = 1 + (int)rng_below(r, (uint64_t)layers_max);
    const int devices = 1 + (int)rng_below(r, (uint64_t)devices_max);
    struct costs p = pipes_profile(1, n, devices, 8);
    const bool links = rng_below(r, 4) != 0, tight = rng_below(r, 2) == 0;
    for (int i = 0; i < n; i++) {
        struct costs_layer *l = &p.chains[0].layers[i];
        l->f.s[0] = 0.1 + rng_uniform_double(r);
        l->b.s[0] = 0.1 + rng_uniform_double(r);
        l->w.s[0] = rng_uniform_double(r);
        l->out_bytes = rng_below(r, 3000);
        l->slot_bytes = rng_below(r, 3000);
        l->weight_bytes = rng_below(r, 100000);
        l->state_bytes = rng_below(r, 100000);
        l->gradient_bytes = rng_below(r, 100000);
    }
    for (int d = 0; d < devices; d++) {
        p.devices[d].speed = 0.5 + rng_uniform_double(r);
        if (tight)
            p.devices[d].memory =
                (uint64_t)(400000.0 * n / devices * rng_uniform_double(r)) + 100000;
        if (links && d > 0)
            p.links[d - 1] = (struct costs_link){0.2 * rng_uniform_double(r),
                                                 4e4 * (0.2 + rng_uniform_double(r))};
    }
    return p;
}

typedef void (*brute_each)(void *arg, const struct pipe_cut *cut);

static inline void brute_from(struct pipe_cut *cut, int layers, int devices, brute_each each,
                              void *arg)
{
    const int s = cut->n, from = s > 0 ? cut->stages[s - 1].to : 0;
    const int d = s > 0 ? cut->stages[s - 1].device + cut->stages[s - 1].devices : 0;
    cut->n++;
    for (int r = 1; r <= devices - d; r++)
        for (int k = from + 1; k <= layers; k++) {
            cut->stages[s] = (struct pipe_stage){.from = from, .to = k, .device = d, .devices = r};
            if (k == layers && d + r == devices)
                each(arg, cut);
            else
                brute_from(cut, layers, devices, each, arg);
        }
    cut->n--;
}

/* Every way to cut chain 0 into stages on all devices of p. */
static inline void brute_cuts(const struct costs *p, int micros, int samples, brute_each each,
                              void *arg)
{
    struct pipe_cut cut = {.micros = micros, .samples = samples};
    brute_from(&cut, p->chains[0].n, p->n_devices, each, arg);
}

/* A plan whose slots are as many as FIFO-1F1B makes use of (`few`: needs) and memory allows;
 * false: some stage does not have those that it needs. */
static inline bool brute_warm(const struct costs *p, struct pipe_plan *plan, bool few)
{
    struct pipe_cut *cut = &plan->cuts[0];
    for (int s = 0; s < cut->n; s++) {
        struct pipe_stage *st = &cut->stages[s];
        const int behind = cut->n - 1 - s,
                  least = behind + 1 < cut->micros ? behind + 1 : cut->micros;
        int most = few || 2 * behind + 1 > cut->micros ? cut->micros : 2 * behind + 1;
        most = few ? least : most;
        for (bool fits = false; !fits && most >= least; most -= !fits) {
            st->warm = st->slots = most;
            fits = st->devices <= cut->samples;
            for (int d = st->device; d < st->device + st->devices; d++)
                fits &= plan_bytes(p, plan, d) <= p->devices[d].memory;
        }
        if (most < least)
            return false;
        if (s > 0 && cut->stages[s - 1].warm < st->warm)
            st->warm = st->slots = cut->stages[s - 1].warm;
    }
    return true;
}

/* (M + 2S - 2) T0 + Y. */
static inline double brute_bound(const struct costs *p, const struct pipe_plan *plan)
{
    const struct pipe_cut *cut = &plan->cuts[0];
    double t0 = 0, y = 0;
    for (int s = 0; s < cut->n; s++) {
        const struct pipe_stage *st = &cut->stages[s];
        const struct pipe_cost c = pipe_stage_cost(p, plan, 0, s);
        t0 = fmax(t0, (c.f + c.b + c.w) / pipe_speed(p, st->device, st->devices));
        y = fmax(y, pipe_reduce_seconds(p, st->device, st->devices, plan->copies, c.gradients));
        if (s + 1 < cut->n) {
            const struct costs_link l = p->links[st->device + st->devices - 1];
            const uint64_t bytes = p->chains[0].layers[st->to - 1].out_bytes;
            t0 = fmax(
                t0, 2 * costs_transfer(&l, bytes * (uint64_t)pipe_most(cut->samples, st->devices)));
        }
    }
    return (cut->micros + 2 * cut->n - 2) * t0 + y;
}

#endif
