/* Whether a worker keeps the moments of pictures on its disk (latents.h), where the job leaves that
 * to it (encoders.run: auto): in a phase of a replica, if its pictures take less time so, with
 * all the times that they come again.
 *
 * Of the samples of the phase a share lies on the disk already, the others are new.  k replicas go
 * through the partition together, and each epoch deals them a kth of it anew.  So an item (a
 * picture, or a side of one where they are mirrored) that is new in this epoch comes again q times,
 * on average: the replica's samples after this epoch, over all items.  For each sample:
 *
 *     in each step:   (1 + new * q) * encode / devices
 *     kept:           there * get + new * (encode + put + q * get)
 *
 * Items without room are encoded each time.  Pure. */
#ifndef WORKER_DATA_KEEP_H
#define WORKER_DATA_KEEP_H

#include "common/base/base.h"

#define KEEP_REASON_MAX 256

struct keep_in {
    bool filled;            /* a pipeline's bubbles run the encoder */
    double done, left;      /* samples of the replica before the phase, and from then on; left 0:
                               unknown */
    uint64_t samples;       /* of the partition; 0: unknown */
    uint32_t replicas;      /* that share it; 0: unknown */
    bool flip;              /* each sample has two sides */
    double there;           /* the share of the phase whose moments lie on the disk, 0..1 */
    uint64_t record_bytes;  /* of an item */
    uint64_t room_bytes;    /* for all of them */
    unsigned devices;       /* that encode at the same time in a step; at least 1 */
    double encode_s, put_s; /* of an item, measured */
    double get_s;
};

struct keep_decision {
    bool keep;
    double each_s, kept_s; /* predicted for a sample of the phase; 0: not asked for */
    char reason[KEEP_REASON_MAX];
};

/* Does it depend on what encoding and the disk cost, which would have to be measured?  If not, the
 * decision is not to keep them, with its reason. */
bool keep_depends(const struct keep_in *in, struct keep_decision *ret);

/* The decision, with a sentence for the worker's log. */
void keep_decide(const struct keep_in *in, struct keep_decision *ret);

#endif
