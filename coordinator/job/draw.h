/* EVAL and SAMPLE tasks: what they look at, and when they are due.  Called at the end of rounds, by
 * flow.c at the end of a job, and for a person; results come back to coordinator/kinds. */
#ifndef COORDINATOR_DRAW_H
#define COORDINATOR_DRAW_H

#include "coordinator/state/state.h"

struct coordinator;

/* What a person asks to be drawn.  Zero and NAN mean: as the job says.  n_labels 0: cycle over the
 * classes. */
struct draw_request {
    uint32_t count, steps, columns;
    double guidance;
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

/* The held-out loss of a path; as the others, NULL: there is nothing to look at, or no room. */
struct task *draw_eval(struct coordinator *co, struct job *j, uint32_t path, uint32_t round);
/* path UINT32_MAX: as the job is sampled, its mixture or path 0. */
struct task *draw_sample(struct coordinator *co, struct job *j, uint32_t path, uint32_t round,
                         const struct draw_request *ask);
/* What is due after a path has closed a round. */
void draw_after_round(struct coordinator *co, struct job *j, uint32_t path);
/* At the end, when the last evaluations are known. */
void draw_last(struct coordinator *co, struct job *j);

#endif
