/* Decides by its norm how much a contribution may weigh in an outer step.
 *
 *   usual = the larger of two: the lower median of the module's last contributions, and the median
 *           of the peers (the others of this step) if there are at least two, or no history
 *   norm <= 2 usual           folded as it is: honest phases stay below this
 *   above 2 usual             shortened to 2 usual; the caller refuses it if its direction is not
 *                             that of the others (FOLD_COS_MIN)
 *   the same, if usual is that of only one other   shortened to usual, and its weight reduced by
 *                             the same factor (alone in its step: shortened to usual^2 / norm):
 *                             either of the two may be wrong, and the longer it is the less it
 *                             counts
 *   above 10 usual            refused, unless usual is that of only one other
 *   above any phase's reach   refused, whatever the others are
 *
 * A contribution of more samples may be longer in proportion, so that a fast worker's phase, if
 * phases are bounded by time, is not refused.  The lower median cannot be raised by half of the
 * contributions.  Pure. */
#ifndef COMMON_OUTER_FOLD_JUDGE_H
#define COMMON_OUTER_FOLD_JUDGE_H

#include "common/base/base.h"

#define FOLD_NORM_CLIP 2.0
#define FOLD_NORM_REFUSE 10.0
#define FOLD_COS_MIN 0.05   /* noise has less; phases from one version have more */
#define FOLD_YOUNG 3.0      /* factor by which norms of a warm-up may still grow */
#define FOLD_HISTORY_MAX 64 /* most past contributions that count */
#define FOLD_HISTORY_MIN 2  /* fewer are no history */

/* A contribution that was folded before. */
struct fold_past {
    double norm, samples;
};

struct fold_judged {
    double norm, samples;
    double most; /* the longest norm of any phase (fold_norm_most); 0: unknown */
    /* results */
    double usual;  /* 0: unknown */
    bool known;    /* usual is not that of only one other */
    double doubt;  /* factor of its weight: below 1 only if usual is that of one other */
    double shrink; /* factor of its length: below 1 only for large ones */
    bool large;    /* above FOLD_NORM_CLIP usual */
    bool refused;
};

/* Knowledge from earlier steps, by which contributions are judged. */
struct fold_known {
    const struct fold_past *past; /* of earlier steps */
    size_t n;
    struct fold_past word; /* another one, for a single contribution without a past; norm 0: none */
    bool lenient; /* shorten above 10 usual instead of refusing, so that a module whose norms have
                     changed goes on */
};

/* Judges the n contributions of a step. */
void fold_judge(const struct fold_known *known, struct fold_judged *c, size_t n);

/* The norm that AdamW cannot exceed in `steps` steps: none moves an element further than
 * lr max(1, (1-beta1)/sqrt(1-beta2)) (Kingma and Ba 2015), besides the decay; and as much again
 * for the residual that is sent with it.  params: elements of the module. */
double fold_norm_most(double lr, double beta1, double beta2, double steps, uint64_t params);

#endif
