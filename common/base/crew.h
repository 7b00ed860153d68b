/* Threads for one long job of the caller, cut into pieces.
 *
 *     crew_run(threads, n, fn, arg, err);   fn(arg, piece, thread, err) for each piece 0..n-1
 *
 * The caller works, too.  Pieces are begun in their order, and a thread that the machine slows
 * down takes fewer.  The threads are made for the call, so a job should take milliseconds. */
#ifndef COMMON_BASE_CREW_H
#define COMMON_BASE_CREW_H

#include "common/base/base.h"

#define CREW_MAX 16 /* most threads of a job */

/* 0, or a negative code with err filled.  thread: 0..threads-1, for its own scratch. */
typedef int (*crew_fn)(void *arg, size_t piece, unsigned thread, struct err *err);

/* The number of threads, at least 1, that a job of n pieces gets if `threads` are wanted. */
unsigned crew_size(int threads, size_t n);

/* Returns when all pieces are done or, after a failure, those that had begun: of several
 * failures that of the first piece counts.  threads: crew_size()'s. */
int crew_run(unsigned threads, size_t n, crew_fn fn, void *arg, struct err *err);

#endif
