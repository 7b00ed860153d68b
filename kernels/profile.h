/* The time of a step, by operation and shape.
 *
 *     struct profile prof = { 0 };
 *     dev->profile = &prof;  step();  dev->profile = NULL;
 *     attention_s = profile_seconds(&prof, "attention_fwd");
 *
 * Records of matmuls have m, n and k, so that their isolated time can be
 * measured afterwards.  The caller owns it, and nothing is allocated; if all
 * records are used, calls are added to a record "other". */
#ifndef KERNELS_PROFILE_H
#define KERNELS_PROFILE_H

#include <stdint.h>

#include "kernels/kernels.h"

enum { PROFILE_MAX = 256 }; /* records */

struct profile_rec {
    const char *op;  /* name of the table entry: "matmul", "adaln_fwd", … */
    int64_t m, n, k; /* matmul: its own; other operations: main dims, 0: unused */
    int kind;        /* matmul: matmul_kind; other operations: 0 */
    int64_t calls;
    double seconds;
};

struct profile {
    int n;
    struct profile_rec rec[PROFILE_MAX];
};

static inline int matmul_kind(const struct matmul *mm)
{
    return (int)mm->layout | (int)mm->dt << 2 | (int)mm->c_dt << 3;
}

/* For the backends: monotonic seconds; add one finished call with dims m, n, k, kind. */
double profile_now(void);
void profile_add(struct profile *p, const char *op, const int64_t dims[4], double seconds);

/* For tests and benchmarks: the sum over the records of op; NULL: over all. */
double profile_seconds(const struct profile *p, const char *op);

#endif
