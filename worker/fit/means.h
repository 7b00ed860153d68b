/* Means of a network's hidden states over runs of tokens (of patches, for images): the features by
 * which samples are partitioned.  Compute thread. */
#ifndef WORKER_MEANS_H
#define WORKER_MEANS_H

#include "common/base/base.h"

struct batch;
struct net;

struct means {
    const uint32_t *lengths; /* (count) tokens of each sample; NULL: all that the network saw */
    int first;               /* tokens in the mean `head`; 0: all */
    int chunk, n_chunks;     /* tokens of a chunk; chunks of a sample */
    float *head;             /* (count,dim) means of the first tokens, or all of a shorter sample */
    /* (count,n_chunks,dim) means of tokens [c*chunk, (c+1)*chunk); the last chunk may be short, and
     * chunks past the end are zeros.  NULL: not wanted, and only the first tokens are read. */
    float *chunks;
};

/* The means of net_hidden's states, in host memory.  -ENOMEM. */
int means_of(struct net *net, const struct batch *b, const struct means *m, struct err *err);

#endif
