/* Where the time of a step goes.
 *
 *     struct profile prof = { 0 };
 *     dev->profile = &prof;  step();  dev->profile = NULL;
 *     attention_s = profile_seconds(&prof, "attention_fwd");
 *
 * One record per operation and shape; matmuls carry m, n, k so that their
 * isolated time can be measured afterwards.  Belongs to the caller, no
 * allocation; beyond the last record, calls are added to a record "other". */
#ifndef KERNELS_PROFILE_H
#define KERNELS_PROFILE_H

#include <stdint.h>

#include "kernels/kernels.h"

enum { PROFILE_MAX = 256 }; /* records */

struct profile_rec {
    const char *op;  /* name of the table entry: "matmul", "adaln_fwd", … */
    int64_t m, n, k; /* matmul: as there; others: their main dims, 0 when unused */
    int kind;        /* matmul: matmul_kind; others 0 */
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

/* Used by the backends: monotonic seconds; and one finished call of dims m, n, k, kind. */
double profile_now(void);
void profile_add(struct profile *p, const char *op, const int64_t dims[4], double seconds);

/* For tests and benchmarks: the sum over the records of op; NULL: over all. */
double profile_seconds(const struct profile *p, const char *op);

#endif
