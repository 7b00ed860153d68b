/* Inside of struct mixture, shared by mixture*.c. */
#ifndef WORKER_MIXTURE_IMPL_H
#define WORKER_MIXTURE_IMPL_H

#include "worker/net/arena.h"
#include "worker/net/dit.h"
#include "worker/kinds/task_experts.h"
#include "worker/kinds/forward.h"
#include "worker/kinds/mixture.h"

struct mixture {
    struct mixture_options opt;
    struct work *w;
    struct device *dev;
    struct mix_rule rule;
    struct task_experts experts;   /* remote: their order alone */
    struct forward forward;        /* the router */
    struct dit *router;            /* of it */
    struct dit_rows rows;          /* of it */
    const struct model_spec *spec; /* of it */
    int classes;                   /* of the router, at least as many as experts */
    struct mix *mix;

    struct arena arena;
    float *d_logits; /* (rows,classes) */

    /* Host. */
    float *logits;   /* (rows,classes) */
    float *weights;  /* (rows,K) */
    float *selected; /* (rows,K) */
    int32_t *truth;  /* (rows) the oracle's partitions */
};

/* Experts on other workers. */
struct mix_experts mixture_remote(struct mixture *m);

#endif
