/* Are the pictures of a job encoded once, before its training, or in each step?
 *
 * Once costs one pass of the encoder over all pictures (two with flips), and afterwards latents
 * travel in place of pictures, which are larger.  In each step costs a pass over every picture
 * that is seen.  So what counts is how often a picture is seen.  Pure. */
#ifndef COORDINATOR_DECIDE_ENCODE_H
#define COORDINATOR_DECIDE_ENCODE_H

#include "common/base/base.h"

#define ENCODE_REASON_MAX 256

struct encode_in {
    bool asked_once, asked_step; /* the job file says so; neither: decide */
    uint64_t pictures;           /* that are trained on */
    uint64_t seen;               /* by all phases together; 0: bounded by time, not known */
    bool flip;                   /* both sides of a picture are wanted */
    bool random_crop;            /* no two passes see the same picture */
};

/* Where, with a sentence for the job's log. */
struct encode_decision {
    bool once;
    char reason[ENCODE_REASON_MAX];
};

/* Decides as the job file asks; else by how often a picture is seen. */
void encode_decide(const struct encode_in *in, struct encode_decision *ret);

#endif
