/* Files of assignments as CLUSTER's workers make them, for tests. */
#ifndef TESTS_UNIT_ASSIGNMENT_H
#define TESTS_UNIT_ASSIGNMENT_H

#include <protobuf-c/protobuf-c.h>

#include "common/base/base.h"
#include "common/st/st.h"

struct fake_assignment {
    const uint32_t *counts; /* samples of the shards */
    const protobuf_c_boolean *holdout;
    size_t n_shards;
    uint32_t top;
    const uint64_t *sizes; /* of the partitions, which are filled one after the other */
    size_t n_sizes;
    uint64_t pass; /* files of different ones differ */
};

/* A new array of *ret_n entries. */
static inline int32_t *fake_assignment_fill(const struct fake_assignment *a, uint64_t *ret_n)
{
    uint64_t n = 0, at = 0, used = 0;
    size_t k = 0;
    for (size_t i = 0; i < a->n_shards; i++)
        n += (uint64_t)a->counts[i] * a->top;
    int32_t *x = mem_alloc_array(n + 1, sizeof(*x));
    for (size_t i = 0; i < a->n_shards; i++)
        for (uint64_t e = 0; e < (uint64_t)a->counts[i] * a->top; e++, at++) {
            for (; !a->holdout[i] && k + 1 < a->n_sizes && used == a->sizes[k]; k++)
                used = 0;
            x[at] = a->holdout[i] ? 0 : (int32_t)k;
            used += !a->holdout[i];
        }
    *ret_n = n;
    return x;
}

static inline int fake_assignment_save(const char *path, const int32_t *x, uint64_t n, uint32_t top,
                                       uint64_t pass, struct err *err)
{
    const uint64_t shape[2] = {n / top, top};
    struct st_writer *w = st_writer_new();
    st_writer_number(w, "pass", pass);
    int rc = st_writer_add(w, "assign", ST_I32, 2, shape, err);
    if (rc == 0)
        rc = st_writer_open(w, path, err);
    if (rc == 0)
        rc = st_writer_write(w, x, n * sizeof(*x), err);
    if (rc == 0)
        rc = st_writer_commit(w, NULL, NULL, err);
    st_writer_free(w);
    return rc;
}

static inline int fake_assignment_write(const char *path, const struct fake_assignment *a,
                                        struct err *err)
{
    uint64_t n;
    int32_t *x = fake_assignment_fill(a, &n);
    const int rc = fake_assignment_save(path, x, n, a->top, a->pass, err);
    mem_free(x);
    return rc;
}

#endif
