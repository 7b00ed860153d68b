/* Removes what a worker keeps of jobs that are over, as the answers to its questions tell of them.
 */
#ifndef WORKER_FORGET_H
#define WORKER_FORGET_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

struct pool;

/* What was heard last; { 0 } at first. */
struct forget {
    uint64_t before; /* jobs with smaller numbers are over */
    size_t n_going;  /* but so many */
};

/* Where m tells of other jobs than the last answer, their files are removed on the pool. */
void forget_jobs(struct forget *f, struct pool *pool, const char *state_dir,
                 const Skerry__V1__AssignReply *m);

#endif
