/* Are the pictures of a job encoded once, before its training, or in each step?
 *
 * Once costs one pass of the encoder over all pictures (two with flips), and afterwards latents
 * travel in place of pictures, which are larger.  In each step costs a pass over every picture
 * that is seen.  A pass takes as long in either way, whatever the encoder's speed: what is left
 * to compare is how often a picture is seen, and whether the coordinator's disk holds the latents.
 *
 * But a pipeline's bubbles run the encoder for nothing: of S stages and M micro-batches they are
 * (S - 1) / M of the training's time (docs/pipeline.md), and hold that share of an encoder that
 * takes as long as the training.  What is left over is weighed.  A job that asks for a pipeline
 * without numbers has two stages at least, and as many micro-batches as a worker takes that has
 * measured nothing.  Where it is the worker that finds out whether there is one, bubbles count for
 * nothing.  Pure. */
#ifndef COORDINATOR_DECIDE_ENCODE_H
#define COORDINATOR_DECIDE_ENCODE_H

#include "common/base/base.h"

#define ENCODE_REASON_MAX 256
/* Of a pipeline whose job leaves them to the worker (worker/engine/phase_plan.h). */
#define ENCODE_MICROS_PER_STAGE 4
#define ENCODE_SHARDS_MAX 8192 /* that are encoded once: a task each, all open together */

struct encode_in {
    bool asked_once, asked_step; /* the job file says so; neither: decide */
    uint64_t pictures, shards;   /* that are trained on; all that there are */
    uint64_t seen;               /* by all phases together; 0: bounded by time, not known */
    bool flip;                   /* both sides of a picture are wanted */
    uint64_t latents_bytes;      /* of all pictures, at most; 0: not known */
    uint64_t disk_free;          /* bytes, where blobs are kept */
    bool random_crop;            /* no two passes see the same picture */
    bool pipeline;               /* the job asks for one, whose bubbles are filled */
    int stages, micros;          /* of it; 0: automatic */
    int batch;                   /* a step's samples */
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
