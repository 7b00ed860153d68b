/* What the tests of this folder share. */
#ifndef TESTS_UNIT_WORKER_MODEL_TABLES_H
#define TESTS_UNIT_WORKER_MODEL_TABLES_H

#include "tests/unit/worker/tiny.h"

#include <math.h>
#include <string.h>

static inline struct model *make(struct model_spec spec)
{
    struct model *m = NULL;
    OK(model_new(&spec, &m, err));
    return m;
}

static inline void moments(const float *x, uint64_t n, double *ret_std, double *ret_max)
{
    double sum = 0, sq = 0, most = 0;
    for (uint64_t i = 0; i < n; i++) {
        sum += (double)x[i];
        sq += (double)x[i] * (double)x[i];
        most = fmax(most, fabs((double)x[i]));
    }
    *ret_std = sqrt(sq / (double)n - (sum / (double)n) * (sum / (double)n));
    *ret_max = most;
}

static inline const struct model_tensor *must_find(const struct model *m, const char *name)
{
    const struct model_tensor *t = model_find(m, name);
    if (!t)
        fail_msg("no tensor %s", name);
    return t;
}

/* One field of a good spec made bad; the sentence names what is wrong. */
#define BAD(base, change, word_)                                                                   \
    {                                                                                              \
        struct model_spec s = base();                                                              \
        s.change;                                                                                  \
        struct err err = {0};                                                                      \
        struct model *m = NULL;                                                                    \
        assert_int_equal(model_new(&s, &m, &err), -ERR_CONFIG);                                    \
        if (!strstr(err.msg, word_))                                                               \
            fail_msg(#change ": \"%s\" does not say %s", err.msg, word_);                          \
        assert_null(m);                                                                            \
    }

#endif
