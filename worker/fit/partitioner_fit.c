/* Fitting: features to z, z to levels, levels to prices, prices to the report. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/str.h"
#include "worker/fit/fit.h"
#include "worker/fit/histogram.h"
#include "worker/fit/kmeans.h"
#include "worker/fit/partitioner_impl.h"

#define RESTARTS 4
#define FINE 1024
#define FULL_ROWS (1u << 20) /* rows up to which Lloyd sees all of them */
#define BATCH 4096
#define FINE_ROUNDS 25 /* of Lloyd on fine centroids, which need not be at rest */
#define STREAM_PCA 0x70636131ULL
#define STREAM_FINE 0x66696e65ULL
#define STREAM_LEVEL 0x6c766c31ULL

static int check(const struct partition_options *o, uint64_t n, uint32_t *ret_k, struct err *err)
{
    uint64_t k = 1;
    if (o->n_levels == 0 || o->n_levels > PARTITION_LEVELS_MAX)
        return err_set(err, -ERR_CONFIG, "%u levels: 1 to %d are possible", o->n_levels,
                       PARTITION_LEVELS_MAX);
    for (uint32_t l = 0; l < o->n_levels; l++) {
        k *= o->radix[l];
        if (k == 0 || k > PARTITION_K_MAX)
            return err_set(err, -ERR_CONFIG, "level %u has %u parts: 1 to %d partitions in all", l,
                           o->radix[l], PARTITION_K_MAX);
    }
    if (k > n)
        return err_set(err, -ERR_CONFIG,
                       "%" PRIu64 " partitions of only %" PRIu64 " samples: ask for fewer", k, n);
    if (o->min_samples > n / k)
        return err_set(err, -ERR_CONFIG,
                       "%" PRIu64 " partitions of at least %" PRIu64 " samples each need %" PRIu64
                       ", there are %" PRIu64,
                       k, o->min_samples, k * o->min_samples, n);
    if (o->balance != 0 && !(o->balance >= 1))
        return err_set(err, -ERR_CONFIG,
                       "a balance of %g: the largest partition over the mean is at least 1",
                       o->balance);
    if (o->feature && strlen(o->feature) > PARTITION_FEATURE_MAX)
        return err_set(err, -ERR_LIMIT, "the name of the feature is longer than %d bytes",
                       PARTITION_FEATURE_MAX);
    *ret_k = (uint32_t)k;
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

int fitting_project(struct fitting *f, const struct fit_source *x, bool standardise,
                    struct err *err)
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
    o.restarts = 1; /* how so many fall hardly matters */
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
        uint32_t d = r / levels + (l < r % levels); /* as interleave deals them */
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

void fitting_judge(struct partition_report *r, const double *lo, const double *hi)
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

/* Counts, prices where the sizes are not as asked, counts again. */
static int settle(struct fitting *f, struct err *err)
{
    const uint32_t k = f->p->k;
    const double n = (double)f->n, least = (double)f->opt->min_samples;
    double *want = mem_try_array((size_t)k * 4, sizeof(double));
    if (!want)
        return err_set(err, -ENOMEM, "no memory for the sizes of %u partitions", k);
    double *lo = want, *hi = want + k, *in_lo = hi + k, *in_hi = in_lo + k;
    int rc = partitioner_count(f->p, f->dev, f->z, f->n, f->report, err);
    for (uint32_t i = 0; i < k; i++) {
        lo[i] = least;
        hi[i] = f->opt->balance > 0 ? f->opt->balance * n / k : n;
    }
    if (rc == 0)
        fitting_judge(f->report, lo, hi);
    if (rc == 0 && !f->report->met) {
        uint32_t empty = f->report->empty;
        histogram_bounds(n, k, f->opt->balance, least, 1, in_lo, in_hi);
        rc = partitioner_price(f->p, f->dev, f->z, f->n, in_lo, in_hi, err);
        if (rc == 0)
            rc = partitioner_count(f->p, f->dev, f->z, f->n, f->report, err);
        if (rc == 0) {
            fitting_judge(f->report, lo, hi);
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
    partitioner_summarise(r);
    r->met = r->smallest >= f->opt->min_samples &&
             (f->opt->balance <= 0 || r->largest <= f->opt->balance);
    return 0;
}

int fitting_open(struct fitting *f, enum partition_kind kind, struct err *err)
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

int fitting_close(struct fitting *f, int rc, struct partitioner **ret)
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

int partitioner_fit(struct device *dev, const struct fit_source *x, const uint64_t *ids,
                    const struct partition_options *opt, const struct fit_watch *watch,
                    struct partitioner **ret, struct partition_report *report, struct err *err)
{
    struct fitting f = {.dev = dev, .opt = opt, .watch = watch, .report = report, .n = x->n};
    if (opt->kind == PARTITION_LINEAR)
        return err_set(err, -EINVAL, "a linear router is fitted to targets");
    int rc = fitting_open(&f, opt->kind, err);
    if (rc == 0 && opt->kind == PARTITION_RANDOM)
        return fitting_close(&f, fit_random(&f, ids, err), ret);
    if (rc == 0)
        rc = fitting_project(&f, x, opt->whiten, err);
    if (rc == 0 && opt->kind == PARTITION_KMEANS)
        rc = fit_kmeans(&f, err);
    else if (rc == 0 && opt->kind == PARTITION_TWO_LEVEL)
        rc = fit_two_level(&f, err);
    else if (rc == 0)
        rc = fit_product(&f, err);
    if (rc == 0)
        rc = settle(&f, err);
    return fitting_close(&f, rc, ret);
}
