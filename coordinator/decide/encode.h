/* Are the pictures of a job encoded once, before its training, or in each step?
 *
 * Once costs one pass of the encoder over all pictures (two with flips), and afterwards latents
 * travel in place of pictures, which are larger.  In each step costs a pass over every picture
 * that is seen.  A pass takes as long in either way, whatever the encoder's speed: what is left
 * to compare is how often a picture is seen, and whether the coordinator's disk holds the latents.
 *
 * But a pipeline's bubbles run the encoder for nothing.  With fewer micro-batches than stages they
 * are at least as long as the training (docs/pipeline.md: rho M <= S - 1), so they hold an encoder
 * that takes as long as that.  Of a job that does not ask for both as numbers it is the worker that
 * knows, and later; then it counts for nothing.  Pure. */
#ifndef COORDINATOR_DECIDE_ENCODE_H
#define COORDINATOR_DECIDE_ENCODE_H

#include "common/base/base.h"

#define ENCODE_REASON_MAX 256
#define ENCODE_SHARDS_MAX 8192 /* that are encoded once: a task each, all open together */

struct encode_in {
    bool asked_once, asked_step; /* the job file says so; neither: decide */
    uint64_t pictures, shards;   /* that are trained on; all that there are */
    uint64_t seen;               /* by all phases together; 0: bounded by time, not known */
    bool flip;                   /* both sides of a picture are wanted */
    uint64_t latents_bytes;      /* of all pictures, at most; 0: not known */
    uint64_t disk_free;          /* bytes, where blobs are kept */
    bool random_crop;            /* no two passes see the same picture */
    int stages, micros;          /* of pipelines whose bubbles are filled; 0: not known */
};

/* Where, with a sentence for the job's log. */
struct encode_decision {
    bool impossible; /* the job asks for what cannot be done */
    bool once;
    char reason[ENCODE_REASON_MAX];
};

/* Decides as the job file asks; else by bubbles, and by how often a picture is seen. */
void encode_decide(const struct encode_in *in, struct encode_decision *ret);

#endif
