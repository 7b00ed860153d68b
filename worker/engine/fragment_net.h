/* Fragments (worker/engine/fragment.h) of one of our networks: its weights by way of a host vector.
 * Compute thread. */
#ifndef WORKER_FRAGMENT_NET_H
#define WORKER_FRAGMENT_NET_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

struct model;
struct weights;
struct work;
struct work_output;

/* What contribute and merge of fragments_options are given. */
struct fragment_net {
    struct work *w;
    const char *state_dir; /* residuals */
    const struct model *model;
    float *flat;             /* host vector, scratch between the calls */
    struct weights *weights; /* the replica's, where a card codes them: see contribute.h */
    /* The weights of one level, from and to the replica. */
    int (*get)(void *arg, int level, float *flat, struct err *err);
    int (*set)(void *arg, int level, const float *flat, struct err *err);
    void *arg;
};

/* For fragments_options, whose arg is a fragment_net. */
int fragment_net_contribute(void *net, const Skerry__V1__ModuleRef *base, uint64_t samples,
                            struct work_output *ret, struct err *err);
/* The same. */
int fragment_net_merge(void *net, uint32_t level, const char *path, double mix, struct err *err);

#endif
