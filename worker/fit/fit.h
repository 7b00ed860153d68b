/* Shared by all fits on features: the source of the rows, and the callback for progress.
 * Every fit (PCA, k-means, classifiers) is a function of the rows, the options and the
 * seed; the number of threads of the device changes no bit. */
#ifndef WORKER_FIT_FIT_H
#define WORKER_FIT_FIT_H

#include "common/base/base.h"

/* Rows of a feature matrix (n,d), readable again and again and in any order. */
struct fit_source {
    uint64_t n;
    uint32_t d;
    /* out (count,d) = rows first..first+count-1; a fit returns a negative code to its caller. */
    int (*read)(const struct fit_source *s, uint64_t first, uint32_t count, float *out,
                struct err *err);
    const void *arg;
};

/* Rows in memory, x (n,d), borrowed as long as the source is used. */
void fit_source_memory(struct fit_source *ret, const float *x, uint64_t n, uint32_t d);

/* tick is called between steps that take up to seconds, on the caller's thread.  A negative
 * code, with err set, ends the fit with that code.  A watch may be NULL. */
struct fit_watch {
    int (*tick)(void *arg, const char *what, uint32_t done, uint32_t total, struct err *err);
    void *arg;
};
int fit_tick(const struct fit_watch *w, const char *what, uint32_t done, uint32_t total,
             struct err *err);

/* The index of the first value of x (n) that is not finite, or n. */
uint64_t fit_not_finite(const float *x, uint64_t n);

#endif
