/* One phase of one replica: from module versions to contributions (phase.c), and the points
 * at which fragments (worker/kinds/fragment.h) take part in it:
 *
 *    start    replica_get ─► the weights of the modules ─► data
 *    step     trainer_step; at.steps and at.samples count it ─► what follows a step
 *    finish   every module's contribution, the moments
 *
 * All on the compute thread; the device has finished at each of these points. */
#ifndef WORKER_PHASE_H
#define WORKER_PHASE_H

#include "worker/kinds/engine.h"
#include "worker/kinds/task_experts.h"
#include "worker/kinds/feed.h"
#include "worker/kinds/prefetch.h"
#include "worker/kinds/replica.h"

struct err;
struct fragments;

struct phase {
    struct engine *e;
    struct work *w;
    const Skerry__V1__TrainTask *t;
    struct replica *r;             /* r->trainer; weights by trainer_net(r->trainer)->weights */
    bool resumed;                  /* goes on in the middle: at says where */
    struct task_experts *teachers; /* distillation: of each rank; else NULL */
    struct feed *feed;
    struct replica_cursor at;
    uint32_t first;    /* at.steps when this run of it began */
    uint64_t window;   /* phase_window(); 0: bounded by steps */
    uint64_t begun_ns; /* minus what ran before a cut */
    uint64_t saved_ns, save_cost_ns;
    double flops; /* of the model, in the steps since counted_ns */
    uint64_t counted_ns;
    double peak_flops; /* of the devices; 0: not known */
    struct prefetch ahead;
    struct fragments *fragments; /* NULL: all is contributed at the end */
};

/* A phase bounded by time has its samples in `window`s: shuffled inside each, so that what
 * it has used when the time is over is a prefix of its ranges and at most one window
 * that it has begun.  A few batches, at most a sixteenth of what it was given, at least
 * one batch. */
uint64_t phase_window(uint64_t total, uint64_t batch);

/* After any step: is such a phase over?  It uses up one window at least.  middle: when
 * the next step would be half made; so a phase ends at the step nearest to its time. */
bool phase_time_over(uint64_t position, uint64_t total, uint64_t window, double middle,
                     double seconds);

/* Of the seconds that a phase took those that it computed: what it waited in between is told
 * beside them (ReportRequest.waited_ms), and must not be counted twice. */
float phase_computed(double took, uint64_t waited_ms);

#endif
