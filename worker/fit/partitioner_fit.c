/* Fitting: features to z, z to levels, levels to prices, prices to the report. */
#include "worker/fit/partitioner.h"

#include "common/base/base.h"
#include "common/base/rng.h"
#include "worker/fit/affine.h"
#include "worker/fit/fit.h"
#include "worker/fit/histogram.h"
#include "worker/fit/kmeans.h"
#include "worker/fit/linear.h"
#include "worker/fit/partitioner_impl.h"

#define RESTARTS 4
#define FINE 1024
#define FULL_ROWS (1u << 20) /* most rows for full Lloyd */
#define BATCH 4096
#define FINE_ROUNDS 25 /* steps of Lloyd on fine centroids, which need not converge */
#define STREAM_PCA 0x70636131ULL
#define STREAM_FINE 0x66696e65ULL
#define STREAM_LEVEL 0x6c766c31ULL
#define FOLD 5                   /* a row in five is kept to choose the penalty */
#define FOLD_ROWS_MIN 50         /* with fewer rows the middle penalty is taken */
#define PRICE_SCORES (32u << 20) /* scores to which prices are fitted */

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

static int check(const struct partition_options *o, uint64_t n, uint32_t *ret_k, struct err *err)
{
    uint64_t k = 1;
    if (o->n_levels == 0 || o->n_levels > PARTITION_LEVELS_MAX)
        return err_set(err, -ERR_CONFIG, "the partitions have %u levels, expected 1 to %d",
                       o->n_levels, PARTITION_LEVELS_MAX);
    for (uint32_t l = 0; l < o->n_levels; l++) {
        k *= o->radix[l];
        if (k == 0 || k > PARTITION_K_MAX)
            return err_set(err, -ERR_CONFIG,
                           "with the %u parts of level %u there would be %" PRIu64
                           " partitions, expected 1 to %d",
                           o->radix[l], l, k, PARTITION_K_MAX);
    }
    if (k > n)
        return err_set(err, -ERR_CONFIG,
                       "the job asks for %" PRIu64 " partitions of only %" PRIu64
                       " samples: ask for fewer partitions, or add samples",
                       k, n);
    if (o->min_samples > n / k)
        return err_set(err, -ERR_CONFIG,
                       "%" PRIu64 " partitions of at least %" PRIu64 " samples each need %" PRIu64
                       " samples, but there are %" PRIu64
                       ": ask for fewer partitions, or add samples",
                       k, o->min_samples, k * o->min_samples, n);
    if (o->balance != 0 && !(o->balance >= 1))
        return err_set(err, -ERR_CONFIG,
                       "partition.balance, the largest partition over the mean, is %g, expected at "
                       "least 1",
                       o->balance);
    if (o->feature && strlen(o->feature) > PARTITION_FEATURE_MAX)
        return err_set(err, -ERR_LIMIT, "the name of the feature is longer than %d bytes",
                       PARTITION_FEATURE_MAX);
    *ret_k = (uint32_t)k;
    return 0;
}

/* Checks the options, makes p with its bias; report is zeroed first. */
static int open_fit(struct fitting *f, enum partition_kind kind, struct err *err)
{
    const struct partition_options *o = f->opt;
    uint32_t k = 0;
    *f->report = (struct partition_report){0};
    int rc = check(o, f->n, &k, err);
    if (rc < 0)
        return rc;
    f->p = partitioner_new(kind, o->n_levels, o->radix, o->seed);
    if (o->feature)
        (void)str_copy(f->p->feature, sizeof(f->p->feature), o->feature); /* checked */
    if (kind == PARTITION_RANDOM)
        return 0;
    f->p->bias = mem_try_array(k, sizeof(float));
    return f->p->bias ? 0 : err_set(err, -ENOMEM, "no memory for %u partitions", k);
}

/* Frees the rest and gives p to the caller, or frees it, too, if rc is negative.  Returns rc. */
static int close_fit(struct fitting *f, int rc, struct partitioner **ret)
{
    mem_free(f->z);
    if (rc < 0) {
        partitioner_free(f->p);
        partition_report_release(f->report);
        return rc;
    }
    *ret = f->p;
    return 0;
}

/* Product pieces of principal components: component i belongs to piece i mod L, so that each
 * piece has its share of the variance (in plain order the first would have nearly all). */
static int interleave(struct pca *p, uint32_t pieces, struct err *err)
{
    float *basis = mem_try_array((size_t)p->r * p->d, sizeof(float));
    float *scale = mem_try_array(p->r, sizeof(float));
    double *variance = mem_try_array(p->r, sizeof(double));
    uint32_t to = 0;
    if (!basis || !scale || !variance) {
        mem_free(basis);
        mem_free(scale);
        mem_free(variance);
        return err_set(err, -ENOMEM, "no memory for principal components");
    }
    for (uint32_t l = 0; l < pieces; l++)
        for (uint32_t i = l; i < p->r; i += pieces, to++) {
            memcpy(basis + (size_t)to * p->d, p->basis + (size_t)i * p->d, p->d * sizeof(float));
            scale[to] = p->scale[i];
            variance[to] = p->variance[i];
        }
    mem_free(p->basis);
    mem_free(p->scale);
    mem_free(p->variance);
    p->basis = basis;
    p->scale = scale;
    p->variance = variance;
    return 0;
}

/* Fits p->input to x, and makes z. */
static int project(struct fitting *f, const struct fit_source *x, bool standardise, struct err *err)
{
    const struct partition_options *o = f->opt;
    struct pca *in = &f->p->input;
    int rc = o->pca ? pca_fit(f->dev, x, o->pca, standardise, rng_mix(o->seed, STREAM_PCA),
                              f->watch, in, err)
                    : pca_columns(x, standardise, in, err);
    if (rc == 0 && f->p->kind == PARTITION_PRODUCT && in->r < f->p->n_levels)
        rc = err_set(err, -ERR_CONFIG,
                     "a product of %u levels needs as many feature columns, there are %u",
                     f->p->n_levels, in->r);
    if (rc == 0 && f->p->kind == PARTITION_PRODUCT && in->basis)
        rc = interleave(in, f->p->n_levels, err);
    if (rc < 0)
        return rc;
    double kept = 0;
    for (uint32_t i = 0; i < in->r; i++)
        kept += in->variance[i];
    f->report->explained = in->total > 0 ? kept / in->total : 1;
    f->z = mem_try_array(f->n * in->r, sizeof(float));
    if (!f->z)
        return err_set(err, -ENOMEM, "no memory for %" PRIu64 " features of %u columns", f->n,
                       in->r);
    return pca_apply(in, f->dev, x, f->z, err);
}

/* ---- prices, and the resulting sizes ---- */

/* scores (m,K) of a sample of m of the n rows, evenly spread. */
static int sample_scores(const struct partitioner *p, struct device *dev, const float *z,
                         uint64_t n, uint64_t m, float *scores, struct err *err)
{
    const uint32_t r = p->input.r;
    struct scorer s;
    int rc = scorer_open(&s, p, dev, err);
    float *rows = rc == 0 ? mem_try_array((size_t)s.rows * r, sizeof(float)) : NULL;
    if (rc == 0 && !rows)
        rc = err_set(err, -ENOMEM, "no memory for %u rows", s.rows);
    for (uint64_t at = 0; rc == 0 && at < m; at += s.rows) {
        uint32_t count = m - at < s.rows ? (uint32_t)(m - at) : s.rows;
        const float *y;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t row = m == n ? at + i : (at + i) * n / m;
            memcpy(rows + (size_t)i * r, z + row * r, r * sizeof(float));
        }
        if ((rc = scorer_block(&s, rows, count, false, &y, err)) == 0)
            memcpy(scores + at * p->k, y, (size_t)count * p->k * sizeof(float));
    }
    mem_free(rows);
    scorer_close(&s);
    return rc;
}

/* Fits the bias so that the sizes of n rows z (n,r) are between lo and hi (K), which are loads of n
 * rows; if there are many rows, on a sample of them. */
static int set_prices(struct partitioner *p, struct device *dev, const float *z, uint64_t n,
                      const double *lo, const double *hi, struct err *err)
{
    uint64_t m = PRICE_SCORES / p->k;
    m = m < n ? m : n;
    float *scores = mem_try_array(m * p->k, sizeof(float));
    double *bounds = mem_try_array((size_t)p->k * 3, sizeof(double));
    int rc = scores && bounds
                 ? sample_scores(p, dev, z, n, m, scores, err)
                 : err_set(err, -ENOMEM, "no memory for prices of %u partitions", p->k);
    if (rc == 0) {
        const double share = (double)m / (double)n;
        for (uint32_t k = 0; k < p->k; k++) {
            bounds[k] = lo[k] * share;
            bounds[p->k + k] = hi[k] * share;
        }
        const struct histogram h = {
            .scores = scores, .n = m, .k = p->k, .lo = bounds, .hi = bounds + p->k};
        struct histogram_report report;
        rc = histogram_fit(&h, p->bias, bounds + (size_t)p->k * 2, &report, err);
    }
    mem_free(scores);
    mem_free(bounds);
    return rc;
}

/* largest, smallest and empty of report->sizes. */
static void summarise(struct partition_report *report)
{
    uint64_t most = 0;
    report->smallest = UINT64_MAX;
    report->empty = 0;
    for (uint32_t k = 0; k < report->k; k++) {
        most = report->sizes[k] > most ? report->sizes[k] : most;
        report->smallest =
            report->sizes[k] < report->smallest ? report->sizes[k] : report->smallest;
        report->empty += report->sizes[k] == 0;
    }
    report->largest = report->n ? (double)most * report->k / (double)report->n : 0;
}

/* Counts sizes, smallest, largest and empty partitions of rows z, by their first choice. */
static int count_sizes(const struct partitioner *p, struct device *dev, const float *z, uint64_t n,
                       struct partition_report *report, struct err *err)
{
    struct scorer s;
    int rc = scorer_open(&s, p, dev, err);
    mem_free(report->sizes);
    report->n = n;
    report->k = p->k;
    report->sizes = mem_try_array(p->k, sizeof(uint64_t));
    if (rc == 0 && !report->sizes)
        rc = err_set(err, -ENOMEM, "no memory for the sizes of %u partitions", p->k);
    for (uint64_t at = 0; rc == 0 && at < n; at += s.rows) {
        uint32_t rows = n - at < s.rows ? (uint32_t)(n - at) : s.rows;
        const float *y;
        rc = scorer_block(&s, z + at * p->input.r, rows, true, &y, err);
        for (uint32_t i = 0; rc == 0 && i < rows; i++) {
            uint32_t best;
            affine_top(y + (size_t)i * p->k, p->k, 1, &best, NULL);
            report->sizes[best]++;
        }
    }
    scorer_close(&s);
    if (rc == 0)
        summarise(report);
    return rc;
}

/* Sets report->met and gap: are the sizes as asked for, and if not by how much they are off. */
static void judge(struct partition_report *r, const double *lo, const double *hi)
{
    double out = 0;
    r->met = true;
    for (uint32_t k = 0; k < r->k; k++) {
        double v = (double)r->sizes[k];
        double off = v > hi[k] ? v - hi[k] : v < lo[k] ? lo[k] - v : 0;
        if (off <= 1e-9 * (double)r->n) /* rounding of a share */
            continue;
        out += off;
        r->met = false;
    }
    r->gap = out / (double)r->n;
}

/* ---- clusters ---- */

static struct kmeans_options kmeans_of(const struct fitting *f, uint32_t k, uint64_t stream)
{
    const struct partition_options *o = f->opt;
    return (struct kmeans_options){
        .k = k,
        .seed = rng_mix(o->seed, stream),
        .iterations = o->iterations,
        .restarts = o->restarts ? o->restarts : RESTARTS,
        .batch = o->batch           ? o->batch
                 : f->n > FULL_ROWS ? BATCH
                                    : 0,
    };
}

/* Level l from centroids (k,d). */
static int take_level(struct fitting *f, uint32_t l, uint32_t at, const struct kmeans *m,
                      struct err *err)
{
    struct partitioner *p = f->p;
    if (partitioner_level(p, l, m->k, at, m->d) < 0)
        return err_set(err, -ENOMEM, "no memory for %u centroids", m->k);
    memcpy(p->level[l].weight, m->centroids, (size_t)m->k * m->d * sizeof(float));
    for (uint32_t k = 0; k < m->k; k++) {
        double sum = 0;
        for (uint32_t j = 0; j < m->d; j++)
            sum += (double)m->centroids[(size_t)k * m->d + j] *
                   (double)m->centroids[(size_t)k * m->d + j];
        p->level[l].intercept[k] = (float)(-0.5 * sum);
    }
    f->report->inertia += m->inertia / (double)f->n;
    f->report->iterations += m->iterations;
    f->report->repaired += m->repaired;
    return 0;
}

static int fit_kmeans(struct fitting *f, struct err *err)
{
    struct kmeans m;
    struct kmeans_options o = kmeans_of(f, f->p->k, STREAM_LEVEL);
    o.balance = f->opt->balance;
    o.least = (double)f->opt->min_samples;
    int rc = kmeans_fit(f->dev, f->z, NULL, f->n, f->p->input.r, &o, f->watch, &m, err);
    if (rc < 0)
        return rc;
    rc = take_level(f, 0, 0, &m, err);
    memcpy(f->p->bias, m.bias, f->p->k * sizeof(float));
    kmeans_release(&m);
    return rc;
}

/* Clusters of the fine centroids, each as heavy as its rows. */
static int group_fine(struct fitting *f, const struct kmeans *fine, struct err *err)
{
    struct partitioner *p = f->p;
    struct kmeans coarse = {0};
    struct kmeans_options o = kmeans_of(f, p->k, STREAM_LEVEL);
    o.batch = 0;
    o.balance = f->opt->balance;
    float *weights = mem_try_array(fine->k, sizeof(float));
    p->group = mem_try_array(fine->k, sizeof(uint32_t));
    if (!weights || !p->group) {
        mem_free(weights);
        return err_set(err, -ENOMEM, "no memory for %u fine clusters", fine->k);
    }
    for (uint32_t i = 0; i < fine->k; i++)
        weights[i] = (float)fine->sizes[i];
    int rc =
        kmeans_fit(f->dev, fine->centroids, weights, fine->k, fine->d, &o, f->watch, &coarse, err);
    bool *used = mem_alloc_array(p->k, sizeof(bool));
    for (uint32_t i = 0; rc == 0 && i < fine->k; i++) {
        p->group[i] = coarse.labels[i];
        used[coarse.labels[i]] = true;
    }
    for (uint32_t k = 0; rc == 0 && k < p->k; k++)
        if (!used[k])
            rc = err_set(err, -ERR_CONFIG,
                         "%u partitions of %u fine clusters cannot all be filled: raise the "
                         "number of fine clusters or ask for fewer partitions",
                         p->k, fine->k);
    if (rc == 0) {
        f->report->iterations += coarse.iterations;
        f->report->repaired += coarse.repaired;
    }
    mem_free(used);
    mem_free(weights);
    kmeans_release(&coarse);
    return rc;
}

static int fit_two_level(struct fitting *f, struct err *err)
{
    const struct partition_options *opt = f->opt;
    uint64_t count = opt->fine ? opt->fine : FINE;
    if (!opt->fine && count > f->n / 4)
        count = f->n / 4;
    if (!opt->fine && count < 4ULL * f->p->k)
        count = 4ULL * f->p->k;
    if (count < f->p->k || count > PARTITION_FINE_MAX)
        return err_set(err, -ERR_CONFIG,
                       "%" PRIu64 " fine clusters for %u partitions: at least as many, and at "
                       "most %d",
                       count, f->p->k, PARTITION_FINE_MAX);
    struct kmeans fine;
    struct kmeans_options o = kmeans_of(f, (uint32_t)count, STREAM_FINE);
    o.restarts = 1; /* with many clusters the start hardly matters */
    o.iterations = o.iterations ? o.iterations : o.batch ? 0 : FINE_ROUNDS;
    o.shrink = true;
    int rc = kmeans_fit(f->dev, f->z, NULL, f->n, f->p->input.r, &o, f->watch, &fine, err);
    if (rc < 0)
        return rc;
    if (fine.k < f->p->k)
        rc = err_set(err, -ERR_CONFIG,
                     "%u partitions of samples of which only %u are distinct: ask for fewer",
                     f->p->k, fine.k);
    if (rc == 0)
        rc = take_level(f, 0, 0, &fine, err);
    if (rc == 0)
        rc = group_fine(f, &fine, err);
    kmeans_release(&fine);
    return rc;
}

static int fit_product(struct fitting *f, struct err *err)
{
    const uint32_t r = f->p->input.r, levels = f->p->n_levels;
    uint32_t at = 0;
    int rc = 0;
    for (uint32_t l = 0; rc == 0 && l < levels; l++) {
        uint32_t d = r / levels + (l < r % levels); /* see interleave() */
        float *piece = mem_try_array(f->n * d, sizeof(float));
        if (!piece)
            return err_set(err, -ENOMEM, "no memory for level %u", l);
        for (uint64_t i = 0; i < f->n; i++)
            memcpy(piece + i * d, f->z + i * r + at, d * sizeof(float));
        struct kmeans m;
        struct kmeans_options o = kmeans_of(f, f->p->radix[l], rng_mix(STREAM_LEVEL, l));
        rc = kmeans_fit(f->dev, piece, NULL, f->n, d, &o, f->watch, &m, err);
        if (rc < 0) {
            (void)err_wrap(err, "level %u of the product", l); /* rc says the same */
        } else {
            rc = take_level(f, l, at, &m, err);
            kmeans_release(&m);
        }
        mem_free(piece);
        at += d;
    }
    return rc;
}

/* Counts sizes, fits prices if they are not as asked for, and counts again. */
static int settle(struct fitting *f, struct err *err)
{
    const uint32_t k = f->p->k;
    const double n = (double)f->n, least = (double)f->opt->min_samples;
    double *want = mem_try_array((size_t)k * 4, sizeof(double));
    if (!want)
        return err_set(err, -ENOMEM, "no memory for the sizes of %u partitions", k);
    double *lo = want, *hi = want + k, *in_lo = hi + k, *in_hi = in_lo + k;
    int rc = count_sizes(f->p, f->dev, f->z, f->n, f->report, err);
    for (uint32_t i = 0; i < k; i++) {
        lo[i] = least;
        hi[i] = f->opt->balance > 0 ? f->opt->balance * n / k : n;
    }
    if (rc == 0)
        judge(f->report, lo, hi);
    if (rc == 0 && !f->report->met) {
        uint32_t empty = f->report->empty;
        histogram_bounds(n, k, f->opt->balance, least, 1, in_lo, in_hi);
        rc = set_prices(f->p, f->dev, f->z, f->n, in_lo, in_hi, err);
        if (rc == 0)
            rc = count_sizes(f->p, f->dev, f->z, f->n, f->report, err);
        if (rc == 0) {
            judge(f->report, lo, hi);
            f->report->repaired += empty > f->report->empty ? empty - f->report->empty : 0;
        }
    }
    mem_free(want);
    return rc;
}

static int fit_random(struct fitting *f, const uint64_t *ids, struct err *err)
{
    struct partition_report *r = f->report;
    uint32_t k = 0;
    if (!ids)
        return err_set(err, -EINVAL, "a random partition needs the ids of the samples");
    r->n = f->n;
    r->k = f->p->k;
    r->explained = 1;
    r->sizes = mem_try_array(r->k, sizeof(uint64_t));
    if (!r->sizes)
        return err_set(err, -ENOMEM, "no memory for the sizes of %u partitions", r->k);
    for (uint64_t i = 0; i < f->n; i++) {
        int rc = partitioner_assign(f->p, f->dev, NULL, ids + i, 1, 1, &k, err);
        if (rc < 0)
            return rc;
        r->sizes[k]++;
    }
    summarise(r);
    r->met = r->smallest >= f->opt->min_samples &&
             (f->opt->balance <= 0 || r->largest <= f->opt->balance);
    return 0;
}

int partitioner_fit(struct device *dev, const struct fit_source *x, const uint64_t *ids,
                    const struct partition_options *opt, const struct fit_watch *watch,
                    struct partitioner **ret, struct partition_report *report, struct err *err)
{
    struct fitting f = {.dev = dev, .opt = opt, .watch = watch, .report = report, .n = x->n};
    if (opt->kind == PARTITION_LINEAR)
        return err_set(err, -EINVAL, "a linear router is fitted to targets");
    int rc = open_fit(&f, opt->kind, err);
    if (rc == 0 && opt->kind == PARTITION_RANDOM)
        return close_fit(&f, fit_random(&f, ids, err), ret);
    if (rc == 0)
        rc = project(&f, x, opt->whiten, err);
    if (rc == 0 && opt->kind == PARTITION_KMEANS)
        rc = fit_kmeans(&f, err);
    else if (rc == 0 && opt->kind == PARTITION_TWO_LEVEL)
        rc = fit_two_level(&f, err);
    else if (rc == 0)
        rc = fit_product(&f, err);
    if (rc == 0)
        rc = settle(&f, err);
    return close_fit(&f, rc, ret);
}

/* ---- the discriminative router: a classifier of the best path, and prices that give each path its
 * share ---- */

static const double penalties[] = {1e-3, 1e-2, 1e-1, 1};
#define MIDDLE 1e-2

/* Mean cross-entropy of a classifier on rows x (n,d) with classes y. */
static int entropy_of(struct device *dev, const struct linear *m, const float *x, const uint32_t *y,
                      uint64_t n, double *ret, struct err *err)
{
    struct affine *a = NULL;
    double sum = 0;
    int rc = affine_new(dev, m->d, m->k, &a, err);
    if (rc == 0)
        rc = affine_set(a, m->weight, m->bias, err);
    for (uint64_t at = 0; rc == 0 && at < n; at += affine_rows(a)) {
        uint32_t rows = n - at < affine_rows(a) ? (uint32_t)(n - at) : affine_rows(a);
        const float *logit;
        if ((rc = affine_block(a, x + at * m->d, rows, &logit, err)) < 0)
            break;
        for (uint32_t i = 0; i < rows; i++, logit += m->k) {
            double norm = 0, best = (double)logit[0];
            for (uint32_t j = 1; j < m->k; j++)
                best = (double)logit[j] > best ? (double)logit[j] : best;
            for (uint32_t j = 0; j < m->k; j++)
                norm += exp((double)logit[j] - best);
            sum += log(norm) + best - (double)logit[y[at + i]];
        }
    }
    affine_free(a);
    *ret = n ? sum / (double)n : 0;
    return rc;
}

/* Moves the rows with i % FOLD == 0 after all others, and the classes likewise. */
static void part(const float *z, const uint32_t *y, uint64_t n, uint32_t d, float *to,
                 uint32_t *to_y, uint64_t *ret_kept)
{
    uint64_t at = 0;
    for (unsigned kept = 0; kept < 2; kept++) {
        for (uint64_t i = 0; i < n; i++) {
            if ((i % FOLD == 0) != (kept == 1))
                continue;
            memcpy(to + at * d, z + i * d, d * sizeof(float));
            to_y[at++] = y[i];
        }
        if (kept == 0)
            *ret_kept = n - at;
    }
}

/* The penalty with the best result on rows that were not used in the fit. */
static int choose_penalty(struct fitting *f, const struct linear_targets *t, double *ret,
                          struct err *err)
{
    const uint32_t d = f->p->input.r;
    uint64_t kept = 0;
    double lowest = HUGE_VAL;
    *ret = t->l2 > 0 ? t->l2 : MIDDLE;
    if (t->l2 > 0 || f->n < FOLD_ROWS_MIN)
        return 0;
    float *x = mem_try_array(f->n * d, sizeof(float));
    uint32_t *y = mem_try_array(f->n, sizeof(uint32_t));
    int rc = x && y ? 0 : err_set(err, -ENOMEM, "no memory for %" PRIu64 " rows", f->n);
    if (rc == 0)
        part(f->z, t->y, f->n, d, x, y, &kept);
    for (size_t i = 0; rc == 0 && i < sizeof(penalties) / sizeof(penalties[0]); i++) {
        struct linear m = {0};
        double entropy = 0;
        const struct linear_options o = {
            .k = f->p->k, .iterations = t->iterations, .l2 = penalties[i]};
        const uint64_t fitted = f->n - kept;
        if ((rc = linear_fit(f->dev, x, y, fitted, d, &o, f->watch, &m, err)) < 0)
            break;
        rc = entropy_of(f->dev, &m, x + fitted * d, y + fitted, kept, &entropy, err);
        linear_release(&m);
        if (rc == 0 && entropy < lowest) {
            lowest = entropy;
            *ret = penalties[i];
        }
    }
    mem_free(x);
    mem_free(y);
    return rc;
}

static int fit_classifier(struct fitting *f, const struct linear_targets *t, struct err *err)
{
    struct partitioner *p = f->p;
    struct linear m = {0};
    struct linear_options o = {.k = p->k, .iterations = t->iterations};
    int rc = choose_penalty(f, t, &o.l2, err);
    if (rc == 0)
        rc = linear_fit(f->dev, f->z, t->y, f->n, p->input.r, &o, f->watch, &m, err);
    if (rc < 0)
        return rc;
    if (partitioner_level(p, 0, p->k, 0, p->input.r) < 0) {
        rc = err_set(err, -ENOMEM, "no memory for a classifier");
    } else {
        memcpy(p->level[0].weight, m.weight, (size_t)p->k * p->input.r * sizeof(float));
        memcpy(p->level[0].intercept, m.bias, p->k * sizeof(float));
        f->report->iterations = m.iterations;
        f->report->loss = m.loss;
        f->report->accuracy = m.accuracy;
    }
    linear_release(&m);
    return rc;
}

/* Loads of n rows: by `share`, or by how often the targets name each class. */
static int wanted(const struct fitting *f, const struct linear_targets *t, uint64_t n, double *load,
                  struct err *err)
{
    const uint32_t k = f->p->k;
    double sum = 0;
    for (uint64_t i = 0; !t->share && i < f->n; i++)
        load[t->y[i]] += (double)n / (double)f->n;
    for (uint32_t c = 0; t->share && c < k; c++) {
        if (!(t->share[c] >= 0))
            return err_set(err, -ERR_CONFIG, "class %u shall have a share of %g", c, t->share[c]);
        sum += t->share[c];
    }
    if (t->share && fabs(sum - 1) > 1e-3)
        return err_set(err, -ERR_CONFIG, "the shares of the classes sum to %g, not 1", sum);
    for (uint32_t c = 0; t->share && c < k; c++)
        load[c] = t->share[c] / sum * (double)n;
    return 0;
}

/* Fits prices to the rows z (n,r), and reports the result. */
static int settle_shares(struct fitting *f, const struct linear_targets *t, const float *z,
                         uint64_t n, struct err *err)
{
    double *load = mem_try_array(f->p->k, sizeof(double));
    int rc = load ? wanted(f, t, n, load, err) : err_set(err, -ENOMEM, "no memory for a histogram");
    if (rc == 0)
        rc = set_prices(f->p, f->dev, z, n, load, load, err);
    if (rc == 0)
        rc = count_sizes(f->p, f->dev, z, n, f->report, err);
    if (rc == 0) {
        judge(f->report, load, load);
        f->report->met = f->report->gap <= 0.01;
    }
    mem_free(load);
    return rc;
}

int partitioner_fit_linear(struct device *dev, const struct fit_source *x,
                           const struct linear_targets *targets,
                           const struct partition_options *opt, const struct fit_watch *watch,
                           struct partitioner **ret, struct partition_report *report,
                           struct err *err)
{
    struct fitting f = {.dev = dev, .opt = opt, .watch = watch, .report = report, .n = x->n};
    const struct fit_source *routed = targets->routed;
    float *z = NULL;
    int rc = open_fit(&f, PARTITION_LINEAR, err);
    if (rc == 0)
        rc = project(&f, x, true, err);
    if (rc == 0)
        rc = fit_classifier(&f, targets, err);
    if (rc == 0 && routed) {
        z = mem_try_array(routed->n * f.p->input.r, sizeof(float));
        rc = z ? pca_apply(&f.p->input, dev, routed, z, err)
               : err_set(err, -ENOMEM, "no memory for %" PRIu64 " features", routed->n);
    }
    if (rc == 0)
        rc = settle_shares(&f, targets, z ? z : f.z, z ? routed->n : f.n, err);
    mem_free(z);
    return close_fit(&f, rc, ret);
}
