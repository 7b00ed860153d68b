/* A DiT or router on any number of rows, where only the answers matter.
 *
 * Calls are cut to the DiT's batch, and a few rows are filled up to DIT_ROWS_MIN.  Products of
 * fewer rows may be summed in another order; with this an answer has the same bits whatever
 * rows stand beside it and wherever they are cut.
 *
 * LABELS are classes; of a model with captions they are numbers of encoded captions, which are set
 * before and of which the last one stands for the null label.
 *
 * Compute thread. */
#ifndef WORKER_DIT_ROWS_H
#define WORKER_DIT_ROWS_H

#include "worker/net/arena.h"
#include "worker/net/dit.h"

#define DIT_ROWS_MIN 4

struct dit_rows {
    struct dit *dit;
    struct net *parts; /* of which it is the first; NULL: it is the whole */
    int shape;         /* of the rows (model_shape) */
    int64_t in, out;   /* values of one */
    struct net_captions captions;
    struct arena arena;
    float *d_t;        /* (batch) */
    int32_t *d_labels; /* (batch), with captions their lengths */
    void *states;      /* (batch,L,D) (dt) with captions */
    float *x, *v;      /* (DIT_ROWS_MIN, in or out) */
    float *estimate;   /* (DIT_ROWS_MIN, in) of a model that reads one */
    float t[DIT_ROWS_MIN];
    int32_t labels[DIT_ROWS_MIN];
    int32_t *lengths; /* host, (batch) */
};

/* Bytes on the device for a DiT or router of m and this batch. */
uint64_t dit_rows_bytes(const struct model *m, int batch, enum dtype dt);

/* d is borrowed; its batch should be DIT_ROWS_MIN at least, else few rows stay few.
 * *r must stay where it is.  close accepts what open left on failure, and { 0 }. */
int dit_rows_open(struct dit_rows *r, struct dit *d, struct err *err);
/* The DiT of a network, whole or in parts (net_parts.h); rows are on its first device then. */
int dit_rows_open_net(struct dit_rows *r, struct net *net, struct err *err);
void dit_rows_close(struct dit_rows *r);

/* What labels are numbers of from now on; what it points to must live as long. */
void dit_rows_captions(struct dit_rows *r, const struct net_captions *captions);

/* Of what shape rows are from now on; before: S x S. */
void dit_rows_shape(struct dit_rows *r, int shape);

/* The number that stands for no label: of what it is told. */
int32_t dit_rows_null(const struct dit_rows *r);

/* Rows of x (rows,Ch,S,S) and the estimates of their images, or NULL, on the device; t (rows) and
 * labels (rows; NULL for a router) on the host. */
struct dit_rows_in {
    const float *x, *estimate;
    const float *t;
    const int32_t *labels;
};
/* v (rows,out) on the device.  Waits for it.  -EINVAL for a label that no caption was set for. */
int dit_rows_run(struct dit_rows *r, float *v, const struct dit_rows_in *in, int rows,
                 struct err *err);

#endif
