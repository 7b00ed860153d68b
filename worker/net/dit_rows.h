/* Forward passes of a DiT or router over any number of rows.
 *
 * Calls are cut to the DiT's batch, and fewer rows than DIT_ROWS_MIN are padded to that: products
 * of fewer rows may be summed in another order, and so a row's result has the same bits whatever
 * rows stand beside it and wherever the rows are cut.
 *
 * LABELS are classes.  For a model with captions they are numbers of encoded captions, which are
 * set before; the last caption stands for the null label.
 *
 * Compute thread. */
#ifndef WORKER_DIT_ROWS_H
#define WORKER_DIT_ROWS_H

#include "worker/net/arena.h"
#include "worker/net/dit.h"

#define DIT_ROWS_MIN 4

struct dit_rows {
    struct dit *dit;
    struct net *parts; /* the network of which dit is the first part; NULL: dit is the whole */
    int shape;         /* the rows' shape (model_shape) */
    int64_t in, out;   /* values of a row of x, of v */
    struct net_captions captions;
    struct arena arena;
    float *d_t;        /* (batch) */
    int32_t *d_labels; /* (batch) labels, or the captions' lengths */
    void *states;      /* (batch,L,D) (dt) with captions */
    float *x, *v;      /* (DIT_ROWS_MIN, in or out) */
    float *estimate;   /* (DIT_ROWS_MIN, in) if the model reads one */
    float t[DIT_ROWS_MIN];
    int32_t labels[DIT_ROWS_MIN];
    int32_t *lengths; /* host, (batch) */
};

/* Device bytes that dit_rows_open takes for a DiT or router of m and this batch. */
uint64_t dit_rows_bytes(const struct model *m, int batch, enum dtype dt);

/* d is borrowed; with a batch below DIT_ROWS_MIN nothing is padded.
 * *r must not move.  close accepts the state after a failed open, and { 0 }. */
int dit_rows_open(struct dit_rows *r, struct dit *d, struct err *err);
/* The DiT of a network; if that is in parts (net_parts.h), rows are on its first device. */
int dit_rows_open_net(struct dit_rows *r, struct net *net, struct err *err);
void dit_rows_close(struct dit_rows *r);

/* Sets the captions whose numbers labels are from now on; their arrays must live as long. */
void dit_rows_captions(struct dit_rows *r, const struct net_captions *captions);

/* Sets the shape of the rows from now on; at first it is S x S. */
void dit_rows_shape(struct dit_rows *r, int shape);

/* The number of the null label: of classes, or of captions. */
int32_t dit_rows_null(const struct dit_rows *r);

/* x (rows,Ch,S,S) and the images' estimates, or NULL, on the device; t (rows) and labels (rows;
 * NULL for a router) on the host. */
struct dit_rows_in {
    const float *x, *estimate;
    const float *t;
    const int32_t *labels;
};
/* v (rows,out) on the device = the results; waits for them.  -EINVAL for a label that is no number
 * of a set caption. */
int dit_rows_run(struct dit_rows *r, float *v, const struct dit_rows_in *in, int rows,
                 struct err *err);

#endif
