/* Makes EVAL and SAMPLE tasks when they are due.  Called at the end of rounds, by flow.c at the end
 * of a job, and for a person's request; coordinator/kinds takes the results. */
#ifndef COORDINATOR_DRAW_H
#define COORDINATOR_DRAW_H

#include "coordinator/state/state.h"

struct coordinator;

/* A person's request for samples.  Zero and NAN mean: as the job says, unless said otherwise.
 * n_labels 0: cycle over the classes. */
struct draw_request {
    uint32_t count, steps, columns;
    double guidance; /* NAN: as the job says; 0: as if there were no labels */
    bool has_seed;
    uint64_t seed;
    const char *sampler;    /* "euler", "heun" or NULL */
    int ema;                /* 1, 0, or -1: as the job says */
    const uint32_t *labels; /* class indices, borrowed for the call */
    size_t n_labels;        /* at most VIEW_LABELS_MAX */
    /* mixtures */
    const char *strategy; /* as sample.strategy of the job file, or NULL */
    uint32_t top;
    double nucleus, threshold;
    bool remote;   /* experts stay on their workers */
    bool has_path; /* one path is drawn from, not the mixture */
    uint32_t path;
    /* texts */
    const char *prompt; /* or NULL */
    uint32_t tokens;
    double temperature; /* NAN: as the job says; 0: the likeliest token */
    double top_p;
};

/* A task for the held-out loss of a path.  NULL, as below: there is nothing to evaluate, no room
 * for a task, or no worker here with the memory for it (but a person's request waits for one). */
struct task *draw_eval(struct coordinator *co, struct job *j, uint32_t path, uint32_t round);
/* path UINT32_MAX: the job's default, its mixture or path 0. */
struct task *draw_sample(struct coordinator *co, struct job *j, uint32_t path, uint32_t round,
                         const struct draw_request *ask);
/* For a worker that is about to get t: an evaluation or samples of a path's version that is gone by
 * now are of its newest one instead, and measure no older loss again. */
void draw_renew(struct job *j, struct task *t);
/* Makes the tasks that are due after a path has closed a round. */
void draw_after_round(struct coordinator *co, struct job *j, uint32_t path);
/* Makes those of the job's end, once the last evaluations are known: at most two more than it has
 * paths. */
void draw_last(struct coordinator *co, struct job *j);

#endif
