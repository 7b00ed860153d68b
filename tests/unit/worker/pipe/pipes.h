/* Profiles for tests of pipelines, made of few numbers. */
#ifndef TESTS_UNIT_PIPES_H
#define TESTS_UNIT_PIPES_H

#include "tests/unit/ok.h"

#include "common/base/rng.h"
#include "worker/pipe/check.h"

/* chains of n layers of f = b = w = 1 second per `samples` samples, on devices of speed 1 and
 * much memory, with free links. */
static inline struct costs pipes_profile(int chains, int n, int devices, int samples)
{
    struct costs p = {.sizes = {1, {samples}}, .groups = {1, {1}}};
    snprintf(p.model, sizeof p.model, "test");
    p.n_chains = chains;
    for (int c = 0; c < chains; c++) {
        snprintf(p.chains[c].name, sizeof p.chains[c].name, "chain-%d", c);
        p.chains[c].n = n;
        p.chains[c].layers = mem_alloc_array((size_t)n, sizeof(struct costs_layer));
        for (int i = 0; i < n; i++)
            p.chains[c].layers[i] = (struct costs_layer){
                .f = {{1}}, .b = {{1}}, .w = {{1}}, .out_bytes = 1000, .slot_bytes = 1000};
    }
    p.n_devices = devices;
    for (int d = 0; d < devices; d++) {
        p.devices[d] = (struct costs_device){.speed = 1, .memory = UINT64_C(1) << 40};
        snprintf(p.devices[d].name, sizeof p.devices[d].name, "cpu:%d", d);
    }
    for (int d = 0; d + 1 < devices; d++)
        p.links[d] = (struct costs_link){0, INFINITY};
    return p;
}

/* A chain of 20 short layers and 5 long ones, which takes `seconds` a sample: a text encoder with
 * an image encoder behind it. */
static inline void pipes_frozen(struct costs *p, double seconds)
{
    struct costs_frozen *f = &p->frozen[p->n_frozen++];
    snprintf(f->name, sizeof f->name, "frozen");
    f->n = 25;
    f->layers = mem_alloc_array(25, sizeof *f->layers);
    for (int i = 0; i < 25; i++)
        f->layers[i].t.s[0] = seconds * (i < 20 ? 0.2 / 20 : 0.8 / 5);
}

/* Stages of equal layers on a device each, divided: half of them of each chain, `micros`
 * micro-batches of `samples`, warm-ups and slots as FIFO-1F1B bounds a step by (micros + 2 stages -
 * 2) times a stage's time. */
static inline struct pipe_plan pipes_plan(const struct costs *p, enum pipe_order order, int stages,
                                          int micros, int samples)
{
    struct pipe_plan plan = {.order = order, .chains = p->n_chains, .devices = stages, .copies = 1};
    for (int c = 0; c < p->n_chains; c++) {
        struct pipe_cut *cut = &plan.cuts[c];
        const int own = order == PIPE_DIVIDED ? stages / 2 : stages;
        *cut = (struct pipe_cut){.n = own, .micros = micros, .samples = samples};
        for (int s = 0; s < own; s++) {
            const int n = p->chains[c].n, most = 2 * (own - 1 - s) + 1;
            struct pipe_stage *st = &cut->stages[s];
            *st = (struct pipe_stage){.from = n * s / own, .to = n * (s + 1) / own};
            st->device = order == PIPE_BIDIRECTIONAL && c == 1 ? stages - 1 - s
                         : order == PIPE_DIVIDED               ? c * own + s
                                                               : s;
            st->devices = 1;
            st->warm = most < p->n_chains * micros ? most : p->n_chains * micros;
            st->slots = st->warm < micros ? st->warm : micros;
        }
    }
    return plan;
}

#endif
