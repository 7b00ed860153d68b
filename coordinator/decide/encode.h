/* Whether a job's pictures are encoded once, before its training, or in each step.
 *
 * Encoding once costs one pass of the encoder over all pictures (two with flips); afterwards
 * workers fetch latents in place of the larger pictures.  Encoding in each step costs a pass over
 * every picture seen.  A pass takes equally long either way, so the encoder's speed cancels out:
 * what counts is how often a picture is seen, and whether the coordinator has room for the latents.
 * Nothing is known here of the workers' disks: where pictures are not encoded once, each worker
 * decides whether to keep latents on its own (worker/data/keep.h).
 *
 * A pipeline's bubbles, however, run the encoder for free.  With S stages and M micro-batches they
 * are (S - 1) / M of the training time (docs/pipeline.md), and absorb that share of an encoder that
 * takes as long as the training.  Only the remaining share is weighed.  A job that asks for a
 * pipeline without numbers counts as two stages, with as many micro-batches as an unmeasured worker
 * takes.  Where the worker decides whether to use a pipeline, bubbles count for nothing.  Pure. */
#ifndef COORDINATOR_DECIDE_ENCODE_H
#define COORDINATOR_DECIDE_ENCODE_H

#include "common/base/base.h"

#define ENCODE_REASON_MAX 256
/* Micro-batches per stage where the job leaves them to the worker (worker/engine/phase_plan.h). */
#define ENCODE_MICROS_PER_STAGE 4
#define ENCODE_SHARDS_MAX 8192 /* encoded once at most: each is a task, all open together */

struct encode_in {
    bool asked_once, asked_step; /* the job file asks for it; neither: decide here */
    uint64_t pictures, shards;   /* pictures trained on; all shards of the dataset */
    uint64_t seen;               /* pictures in all phases; 0: unknown, phases end by time */
    bool flip;                   /* each picture is also needed mirrored */
    uint64_t latents_bytes;      /* of all pictures, at most; 0: unknown */
    uint64_t disk_free;          /* bytes, where blobs are kept; UINT64_MAX: enough */
    bool random_crop;            /* no two passes see the same crop */
    bool pipeline;               /* the job asks for a pipeline with filled bubbles */
    int stages, micros;          /* the pipeline's; 0: automatic */
    int batch;                   /* samples of a step */
};

/* The decision, with a sentence for the job's log. */
struct encode_decision {
    bool impossible; /* the job asks to encode once, but has too many shards */
    bool once;
    char reason[ENCODE_REASON_MAX];
};

/* Follows the job file if it asks for one way; else weighs as above. */
void encode_decide(const struct encode_in *in, struct encode_decision *ret);

#endif
