/* A DiT or router run on any number of rows, where only its answers matter: calls are cut to
 * its batch, and a few rows are filled up to DIT_ROWS_MIN.  Products of fewer rows may be
 * summed in another order; with this an answer has the same bits whatever rows stand
 * beside it and wherever they are cut.
 *
 * Compute thread. */
#ifndef WORKER_DIT_ROWS_H
#define WORKER_DIT_ROWS_H

#include <stdint.h>

#include "worker/net/arena.h"

struct dit;
struct err;
struct model;

#define DIT_ROWS_MIN 4

struct dit_rows {
    struct dit *dit;
    int64_t in, out; /* values of a row */
    struct arena arena;
    float *d_t;        /* (batch) */
    int32_t *d_labels; /* (batch) */
    float *x, *v;      /* (DIT_ROWS_MIN, in or out) */
    float t[DIT_ROWS_MIN];
    int32_t labels[DIT_ROWS_MIN];
};

/* Bytes on the device for a DiT or router of m and this batch. */
uint64_t dit_rows_bytes(const struct model *m, int batch);

/* d is borrowed; its batch should be DIT_ROWS_MIN at least, else few rows stay few.
 * *r must stay where it is.  close accepts what open left on failure, and { 0 }. */
int dit_rows_open(struct dit_rows *r, struct dit *d, struct err *err);
void dit_rows_close(struct dit_rows *r);

/* v (rows,out) = of x (rows,3,S,S), both on the device; t (rows) and labels (rows; NULL for a
 * router) on the host.  Waits for the device. */
int dit_rows_run(struct dit_rows *r, float *v, const float *x, const float *t,
                 const int32_t *labels, int rows, struct err *err);

#endif
