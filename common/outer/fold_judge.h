/* What a contribution may weigh in an outer step, by its norm.
 *
 *   usual = the larger of two: the lower median of the module's last contributions, and the median
 *           of the peers (the others of this step) where there are at least two, or no history
 *   norm <= 2 usual           folded as it is: all that honest phases do lies here
 *   above                     made shorter, to 2 usual; the caller refuses what does not point with
 *                             the others (FOLD_COS_MIN)
 *   the same, by one other alone   made shorter, to usual, and its weight by the same factor (alone
 *                             in its step: to usual^2 / norm): nobody knows which of the two is
 *                             right, and the longer it is the less it counts
 *   above 10 usual            refused, if usual is more than the word of one other
 *   above what a phase can do   refused, whatever others are
 *
 * Of two norms the one behind more samples may be longer in their proportion, so that a phase that
 * is bounded by time may be that of a fast worker.  The lower median: half of the contributions
 * cannot raise it.  Pure. */
#ifndef COMMON_OUTER_FOLD_JUDGE_H
#define COMMON_OUTER_FOLD_JUDGE_H

#include "common/base/base.h"

#define FOLD_NORM_CLIP 2.0
#define FOLD_NORM_REFUSE 10.0
#define FOLD_COS_MIN 0.05   /* noise has less; phases from one version have more */
#define FOLD_YOUNG 3.0      /* norms of a warm-up may still grow so much */
#define FOLD_HISTORY_MAX 64 /* contributions that are looked back at */
#define FOLD_HISTORY_MIN 2  /* fewer say nothing */

/* A contribution that was folded before. */
struct fold_past {
    double norm, samples;
};

struct fold_judged {
    double norm, samples;
    double most; /* that a phase can do; 0: unknown */
    /* results */
    double usual;  /* 0: nothing is known */
    bool known;    /* usual is more than the word of one other */
    double doubt;  /* what its weight is multiplied by: 1 but for one other's word */
    double shrink; /* what it is multiplied by: 1 but for large ones */
    bool large;    /* above FOLD_NORM_CLIP usual */
    bool refused;
};

/* What contributions are judged by beside each other. */
struct fold_known {
    const struct fold_past *past; /* of the steps before */
    size_t n;
    struct fold_past word; /* one other, for a step that has but one and no past; norm 0: none */
    bool lenient; /* what is above 10 usual is made shorter instead, so that a module whose norms
                     have changed goes on */
};

/* Judges the n contributions of a step. */
void fold_judge(const struct fold_known *known, struct fold_judged *c, size_t n);

/* The norm that AdamW cannot exceed in so many steps: none moves an element further than
 * lr max(1, (1-beta1)/sqrt(1-beta2)) (Kingma and Ba 2015), beside the decay; and as much again
 * for the residual that goes with it.  params: elements of the module. */
double fold_norm_most(double lr, double beta1, double beta2, double steps, uint64_t params);

#endif
