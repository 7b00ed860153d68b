/* Is a file an assignment of a job's samples to partitions that SPLIT can follow?
 *
 * Reads all of it.  Any thread that may wait for the disk. */
#ifndef COORDINATOR_ASSIGNMENT_H
#define COORDINATOR_ASSIGNMENT_H

#include "common/base/base.h"

/* Neighbouring samples, all of them trained on or none. */
struct assignment_run {
    uint64_t samples;
    bool trained;
};

/* What it must be. */
struct assignment {
    uint32_t top; /* partitions of each sample */
    struct assignment_run *runs;
    size_t n_runs;
    uint64_t *sizes; /* of the partitions: samples that are trained on */
    size_t n_sizes;
};

/* False also where it cannot be read. */
bool assignment_is(const char *path, const struct assignment *a);
void assignment_release(struct assignment *a); /* frees its arrays */

#endif
