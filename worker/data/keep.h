/* Whether a worker keeps the moments of pictures on its disk (latents.h), where the job leaves that
 * to it (encoders.run: auto): if the rest of its phases takes less time so.
 *
 * A replica is still to train on `left` samples, of a partition that k replicas go through
 * together.  Each epoch deals it a kth of the partition anew, so of an item (a picture, or a side
 * of one where they are mirrored) it has seen nothing after E epochs with chance (1 - 1/k)^E. Items
 * that it has seen are kept if they have room.
 *
 *     in each step:   left * encode / devices
 *     kept:           new ones * (encode + put) + the others * get
 *
 * Pure. */
#ifndef WORKER_DATA_KEEP_H
#define WORKER_DATA_KEEP_H

#include "common/base/base.h"

#define KEEP_REASON_MAX 256

struct keep_in {
    bool filled;            /* a pipeline's bubbles run the encoder */
    double left;            /* samples that the replica is to train on; 0: unknown */
    uint64_t samples;       /* of the partition; 0: unknown */
    uint32_t replicas;      /* that share it; 0: unknown */
    bool flip;              /* each sample has two sides */
    double there;           /* the share of them whose moments were kept before, 0..1 */
    uint64_t record_bytes;  /* of an item */
    uint64_t room_bytes;    /* for all of them */
    unsigned devices;       /* that encode at the same time in a step; at least 1 */
    double encode_s, put_s; /* of an item, measured */
    double get_s;
};

struct keep_decision {
    bool keep;
    double each_s, kept_s; /* predicted; 0: not asked for */
    char reason[KEEP_REASON_MAX];
};

/* Does it depend on what encoding and the disk cost, which would have to be measured?  If not, the
 * decision is not to keep them, with its reason. */
bool keep_depends(const struct keep_in *in, struct keep_decision *ret);

/* The decision, with a sentence for the worker's log. */
void keep_decide(const struct keep_in *in, struct keep_decision *ret);

#endif
