/* What the parts of the partitioner share. */
#ifndef WORKER_PARTITIONER_IMPL_H
#define WORKER_PARTITIONER_IMPL_H

#include "worker/fit/partitioner.h"

struct affine;

/* Scores of rows that are already projected. */
struct scorer {
    const struct partitioner *p;
    uint32_t rows; /* of one block, at most */
    struct affine *level[PARTITION_LEVELS_MAX];
    float *piece; /* (rows,d) of one level */
    float *y;     /* (rows,K) */
    float *spare; /* (K) while pieces are added */
};
int scorer_open(struct scorer *s, const struct partitioner *p, struct device *dev, struct err *err);
/* *ret_y (rows,K) of z (rows,r); bias is added when `priced`; valid until the next call. */
int scorer_block(struct scorer *s, const float *z, uint32_t rows, bool priced, const float **ret_y,
                 struct err *err);
void scorer_close(struct scorer *s);

/* p with its arrays for input (which it takes) and n_fitted levels of (k, d) set by the caller. */
struct partitioner *partitioner_new(enum partition_kind kind, uint32_t n_levels,
                                    const uint32_t *radix, uint64_t seed);
/* Arrays of level l; -ENOMEM. */
int partitioner_level(struct partitioner *p, uint32_t l, uint32_t k, uint32_t at, uint32_t d);

/* bias so that the sizes of n rows z (n,r) lie between lo and hi (K), which are loads of n rows;
 * on a sample of the rows when there are many. */
int partitioner_price(struct partitioner *p, struct device *dev, const float *z, uint64_t n,
                      const double *lo, const double *hi, struct err *err);
/* sizes, smallest, largest, empty of rows z by the nearest alone. */
int partitioner_count(const struct partitioner *p, struct device *dev, const float *z, uint64_t n,
                      struct partition_report *report, struct err *err);
/* largest, smallest and empty of report->sizes. */
void partitioner_summarise(struct partition_report *report);

/* A fit under way. */
struct fitting {
    struct device *dev;
    const struct partition_options *opt;
    const struct fit_watch *watch;
    struct partitioner *p;
    struct partition_report *report;
    float *z; /* (n,r) */
    uint64_t n;
};

/* Checks the options, makes p with its bias; report is zeroed first. */
int fitting_open(struct fitting *f, enum partition_kind kind, struct err *err);
/* p->input from x, and z. */
int fitting_project(struct fitting *f, const struct fit_source *x, bool standardise,
                    struct err *err);
/* report->met and gap: whether the sizes are as asked, and by how much they are not. */
void fitting_judge(struct partition_report *r, const double *lo, const double *hi);
/* Frees what is left and gives p away, or frees it too when rc is negative.  Returns rc. */
int fitting_close(struct fitting *f, int rc, struct partitioner **ret);

#endif
