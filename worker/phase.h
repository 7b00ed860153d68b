/* One phase of one replica: from module versions to contributions (phase.c), and the points
 * at which fragments (worker/fragment.h) take part in it:
 *
 *    start    replica_get ─► the weights of the modules ─► data
 *    step     trainer_step; at.steps and at.samples count it ─► what follows a step
 *    finish   every module's contribution, the moments
 *
 * All on the compute thread; the device has finished at each of these points. */
#ifndef WORKER_PHASE_H
#define WORKER_PHASE_H

#include "worker/engine.h"
#include "worker/experts.h"
#include "worker/feed.h"
#include "worker/replica.h"

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
    uint32_t first; /* at.steps when this run of it began */
    uint64_t window;
    uint64_t begun_ns; /* minus what ran before a cut */
    uint64_t saved_ns, save_cost_ns;
    double flops; /* of the model, in the steps since counted_ns */
    uint64_t counted_ns;
    double peak_flops;           /* of the devices; 0: not known */
    struct fragments *fragments; /* NULL: all is contributed at the end */
};

#endif
