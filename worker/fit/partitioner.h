/* A fitted router: it finds which of K partitions a sample belongs to, from its feature.
 *
 *   x (d) -> z = scale * basis (x - mean) -> scores (K) + bias (K) -> the highest, best first
 *
 *   kind        scores of a partition
 *   kmeans      z.c - |c|²/2: the nearest of K centroids (DiPaCo 2.2, generative)
 *   two_level   the nearest of F fine centroids, each of which is in one partition (DDM 4.1)
 *   product     z is cut into L pieces; the sum over pieces of the score of that piece's centroid.
 *               partition = mixed radix of the digits, level 0 the most significant
 *   linear      W z + b: a classifier trained on each sample's best path (discriminative)
 *   random      a hash of the sample's id: the control; needs no feature
 *
 * bias is the price of a partition: size caps, the least number of samples per path and the
 * target histogram of a discriminative router are all met through it (worker/fit/histogram.h), so
 * assigning the same samples again gives the sizes that a fit reports.
 *
 * A file is a safetensors blob with the metadata "format" = "skerry.partitioner.1". */
#ifndef WORKER_FIT_PARTITIONER_H
#define WORKER_FIT_PARTITIONER_H

#include "common/base/base.h"
#include "common/base/hash.h"
#include "worker/fit/pca.h"

struct device;
struct fit_source;
struct fit_watch;

#define PARTITION_LEVELS_MAX 16
#define PARTITION_K_MAX 65536
#define PARTITION_FINE_MAX 65536
#define PARTITION_FEATURE_MAX 255

/* How the partition of a sample is found; see the table above. */
enum partition_kind {
    PARTITION_KMEANS,
    PARTITION_TWO_LEVEL,
    PARTITION_PRODUCT,
    PARTITION_LINEAR,
    PARTITION_RANDOM,
    PARTITION_KINDS,
};

/* One level's classifier; all kinds but product have one (random: none). */
struct partition_level {
    uint32_t k;       /* rows of weight: K, or F of two_level */
    uint32_t at, d;   /* the columns at..at+d-1 of z */
    float *weight;    /* (k,d) */
    float *intercept; /* (k) */
};

struct partitioner {
    enum partition_kind kind;
    uint32_t k;
    uint64_t seed; /* random: seed of the hash */
    uint32_t n_levels;
    uint32_t radix[PARTITION_LEVELS_MAX]; /* partitions of each level: K is their product */
    struct partition_level level[PARTITION_LEVELS_MAX]; /* n_fitted of them */
    uint32_t n_fitted;                                  /* product: n_levels; random: 0; else 1 */
    struct pca input;                                   /* d 0 for random */
    uint32_t *group; /* (F) the partition of each fine centroid, two_level; else NULL */
    float *bias;     /* (K); NULL for random */
    char feature[PARTITION_FEATURE_MAX + 1]; /* the caller's name of x; compared by the caller */
};

struct partition_options {
    enum partition_kind kind; /* not linear */
    uint32_t radix[PARTITION_LEVELS_MAX];
    uint32_t n_levels; /* 1 or more; K = their product */
    uint64_t seed;
    uint32_t pca;         /* dims of z; 0: x centred */
    bool whiten;          /* with pca 0: columns standardised */
    uint32_t fine;        /* two_level: F; 0: 1024, at most n/4 and at least 4 K */
    unsigned iterations;  /* 0: 100 */
    unsigned restarts;    /* 0: 4 */
    uint32_t batch;       /* mini-batch; 0: full Lloyd up to 2^20 rows, else 4096 */
    double balance;       /* 0, or >= 1: most of the largest size over the mean size */
    uint64_t min_samples; /* least size of a partition; 0: product cells may be empty */
    const char *feature;  /* or NULL */
};

struct linear_targets {
    const uint32_t *y;   /* (n) the class of each row: its best path */
    const double *share; /* (K) wanted histogram, sums to 1; NULL: that of y */
    /* All rows that are routed, for the histogram and the report; NULL: those of x.  Only few of
     * them have a target. */
    const struct fit_source *routed;
    double l2;           /* 0: the best of a few, judged on every fifth row by fits to the others */
    unsigned iterations; /* 0: 200 */
};

struct partition_report {
    uint64_t n;
    uint32_t k;
    uint64_t *sizes; /* (K) samples in each, by the first choice only */
    uint64_t smallest;
    double largest; /* largest size over the mean size */
    uint32_t empty;
    double inertia;   /* mean squared distance in z; product: summed over levels; linear: 0 */
    double explained; /* share of the variance that pca keeps; 1 without pca */
    unsigned iterations, repaired; /* repaired: empty clusters while fitting */
    double gap;                    /* size beyond the bounds, as a share of all samples */
    bool met;                      /* balance, min_samples and histogram are as asked for */
    double loss, accuracy;         /* linear */
};
void partition_report_release(struct partition_report *r);

/* Fits on all rows; ids (n) only for random, else NULL.  -ERR_CONFIG: more partitions than
 * rows or than distinct rows, min_samples times K above n, or more levels than dims. */
int partitioner_fit(struct device *dev, const struct fit_source *x, const uint64_t *ids,
                    const struct partition_options *opt, const struct fit_watch *watch,
                    struct partitioner **ret, struct partition_report *report, struct err *err);

/* Fits the discriminative router.  Of opt only radix, n_levels, seed, feature, pca and whiten are
 * read (columns are standardised in any case). */
int partitioner_fit_linear(struct device *dev, const struct fit_source *x,
                           const struct linear_targets *targets,
                           const struct partition_options *opt, const struct fit_watch *watch,
                           struct partitioner **ret, struct partition_report *report,
                           struct err *err);

void partitioner_free(struct partitioner *p); /* accepts NULL */

/* index (n,top) = the `top` best partitions of each row, best first; 1 <= top <= K.  random reads
 * ids (n), and x may then be NULL; other kinds read x. */
int partitioner_assign(const struct partitioner *p, struct device *dev, const struct fit_source *x,
                       const uint64_t *ids, uint64_t n, uint32_t top, uint32_t *index,
                       struct err *err);

/* Equal fields give equal bytes.  sha256 and ret_bytes may be NULL. */
int partitioner_write(const struct partitioner *p, const char *path, uint8_t sha256[HASH_BYTES],
                      uint64_t *ret_bytes, struct err *err);
/* The file is untrusted: -ERR_FORMAT or -ERR_LIMIT, err says what is wrong.  parse: from memory,
 * borrowed by the call; `name` is for messages. */
int partitioner_parse(const void *data, size_t len, const char *name, struct partitioner **ret,
                      struct err *err);
int partitioner_read(const char *path, struct partitioner **ret, struct err *err);

#endif
