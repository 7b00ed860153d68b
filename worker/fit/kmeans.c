#include "worker/fit/kmeans.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/fit/affine.h"
#include "worker/fit/fit.h"
#include "worker/fit/kmeans_impl.h"

#define ITERATIONS 100
#define PASSES 5 /* of mini-batches */
#define TOLERANCE 1e-5
#define EXTRA 10 /* steps beyond the last while empty clusters are being filled */
#define STREAM_BATCH 0x6b6d626bULL
#define STREAM_RESTART 0x6b6d7273ULL

int kmeans_assign(struct kmeans_run *r, struct err *err)
{
    const uint32_t d = r->d;
    int rc = affine_set_centroids(r->near, r->centroids, r->bias, err);
    if (rc == 0)
        rc = affine_best(r->near, r->x, r->n, 1, r->labels, NULL, err);
    if (rc < 0)
        return rc;
    memset(r->sums, 0, (size_t)r->k * d * sizeof(double));
    memset(r->sizes, 0, r->k * sizeof(double));
    r->inertia = 0;
    for (uint64_t i = 0; i < r->n; i++) {
        const float *x = r->x + i * d;
        const uint32_t c = r->labels[i];
        double w = kmeans_weight(r, i), *sum = r->sums + (size_t)c * d;
        for (uint32_t j = 0; j < d; j++)
            sum[j] += w * (double)x[j];
        r->sizes[c] += w;
        r->dist[i] = kmeans_distance(x, r->centroids + (size_t)c * d, d);
        r->inertia += w * (double)r->dist[i];
    }
    return 0;
}

void kmeans_update(struct kmeans_run *r)
{
    for (uint32_t c = 0; c < r->k; c++)
        for (uint32_t j = 0; r->sizes[c] > 0 && j < r->d; j++)
            r->centroids[(size_t)c * r->d + j] =
                (float)(r->sums[(size_t)c * r->d + j] / r->sizes[c]);
}

/* Takes the clusters without rows out. */
static int shrink(struct kmeans_run *r, struct err *err)
{
    uint32_t kept = 0, *to = mem_alloc_array(r->k, sizeof(*to));
    for (uint32_t c = 0; c < r->k; c++) {
        if (r->sizes[c] <= 0)
            continue;
        memmove(r->centroids + (size_t)kept * r->d, r->centroids + (size_t)c * r->d,
                r->d * sizeof(float));
        r->sizes[kept] = r->sizes[c];
        r->bias[kept] = r->bias[c];
        to[c] = kept++;
    }
    for (uint64_t i = 0; i < r->n; i++)
        r->labels[i] = to[r->labels[i]];
    mem_free(to);
    r->k = kept;
    affine_free(r->near);
    r->near = NULL;
    return affine_new(r->dev, r->d, r->k, &r->near, err);
}

/* Full Lloyd steps until inertia stops falling; ends with labels that belong to the centroids. */
static int lloyd(struct kmeans_run *r, unsigned iterations, struct err *err)
{
    const double tolerance = r->opt->tolerance > 0 ? r->opt->tolerance : TOLERANCE;
    double before = 0;
    for (unsigned i = 0;; i++) {
        int rc = fit_tick(r->watch, "clustering", i, iterations, err);
        if (rc < 0 || (rc = kmeans_assign(r, err)) < 0)
            return rc;
        unsigned repaired = r->repaired;
        uint32_t left = kmeans_repair(r);
        bool calm = r->repaired == repaired, over = i >= iterations;
        r->converged = calm && i > 0 && before - r->inertia <= tolerance * before;
        if (left > 0 && calm && r->opt->shrink) /* every distinct row is a cluster */
            return shrink(r, err);
        if (left > 0 && calm)
            return err_set(err, -ERR_CONFIG,
                           "%u clusters of rows of which only %u are distinct: ask for fewer", r->k,
                           r->k - left);
        if ((over && calm) || r->converged)
            return 0;
        if (i >= iterations + EXTRA)
            return err_set(err, -ERR_CONFIG,
                           "%u clusters cannot all be filled: the rows are too much alike", r->k);
        before = r->inertia;
        r->iterations++;
        kmeans_update(r);
    }
}

/* Sculley's steps: a centre moves towards each row of a batch by 1 / rows it has seen. */
static void learn(struct kmeans_run *r, const float *rows, const uint64_t *which,
                  const uint32_t *labels, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        float *c = r->centroids + (size_t)labels[i] * r->d;
        double w = kmeans_weight(r, which[i]);
        r->sizes[labels[i]] += w;
        float rate = (float)(w / r->sizes[labels[i]]);
        for (uint32_t j = 0; j < r->d; j++)
            c[j] += rate * (rows[(size_t)i * r->d + j] - c[j]);
    }
}

static int mini_batches(struct kmeans_run *r, struct err *err)
{
    const uint32_t batch = r->n < r->opt->batch ? (uint32_t)r->n : r->opt->batch;
    const uint64_t steps =
        (r->opt->iterations ? r->opt->iterations : PASSES) * ((r->n + batch - 1) / batch);
    float *rows = mem_try_array((size_t)batch * r->d, sizeof(float));
    uint64_t *which = mem_try_array(batch, sizeof(*which));
    uint32_t *labels = mem_try_array(batch, sizeof(*labels));
    int rc = rows && which && labels ? 0 : err_set(err, -ENOMEM, "no memory for a mini-batch");
    struct rng rng;
    rng_init(&rng, r->seed, STREAM_BATCH);
    memset(r->sizes, 0, r->k * sizeof(double));
    for (uint64_t s = 0; rc == 0 && s < steps; s++) {
        for (uint32_t i = 0; i < batch; i++) {
            which[i] = rng_below(&rng, r->n);
            memcpy(rows + (size_t)i * r->d, r->x + which[i] * r->d, r->d * sizeof(float));
        }
        if ((rc = fit_tick(r->watch, "clustering", (uint32_t)s, (uint32_t)steps, err)) == 0)
            rc = affine_set_centroids(r->near, r->centroids, NULL, err);
        if (rc == 0)
            rc = affine_best(r->near, rows, batch, 1, labels, NULL, err);
        if (rc == 0)
            learn(r, rows, which, labels, batch);
    }
    r->iterations += (unsigned)steps;
    mem_free(rows);
    mem_free(which);
    mem_free(labels);
    return rc;
}

static int run_new(struct kmeans_run *r, struct err *err)
{
    r->centroids = mem_try_array((size_t)r->k * r->d, sizeof(float));
    r->bias = mem_try_array(r->k, sizeof(float));
    r->labels = mem_try_array(r->n, sizeof(uint32_t));
    r->dist = mem_try_array(r->n, sizeof(float));
    r->sums = mem_try_array((size_t)r->k * r->d, sizeof(double));
    r->sizes = mem_try_array(r->k, sizeof(double));
    if (!r->centroids || !r->bias || !r->labels || !r->dist || !r->sums || !r->sizes)
        return err_set(err, -ENOMEM, "no memory for %u clusters of %" PRIu64 " rows", r->k, r->n);
    return affine_new(r->dev, r->d, r->k, &r->near, err);
}

static void run_free(struct kmeans_run *r)
{
    mem_free(r->centroids);
    mem_free(r->bias);
    mem_free(r->labels);
    mem_free(r->dist);
    mem_free(r->sums);
    mem_free(r->sizes);
    affine_free(r->near);
}

static int run(struct kmeans_run *r, struct err *err)
{
    int rc = run_new(r, err);
    if (rc == 0)
        rc = kmeans_start(r, err);
    if (rc == 0 && r->opt->batch > 0)
        rc = mini_batches(r, err);
    if (rc == 0)
        rc = lloyd(r,
                   r->opt->batch > 0    ? 2
                   : r->opt->iterations ? r->opt->iterations
                                        : ITERATIONS,
                   err);
    return rc;
}

static int check(const struct kmeans_run *r, struct err *err)
{
    const struct kmeans_options *o = r->opt;
    if (r->n == 0 || r->d == 0 || r->k == 0)
        return err_set(err, -ERR_CONFIG, "%u clusters of %" PRIu64 " rows of %u columns", o->k,
                       r->n, r->d);
    if (o->k > r->n && !o->shrink)
        return err_set(err, -ERR_CONFIG, "%u clusters of only %" PRIu64 " rows: ask for fewer",
                       o->k, r->n);
    if (o->balance != 0 && !(o->balance >= 1))
        return err_set(err, -ERR_CONFIG, "a balance of %g: the largest over the mean is at least 1",
                       o->balance);
    if (o->least * o->k > r->total)
        return err_set(err, -ERR_CONFIG, "%u clusters of at least %g rows each of only %g", o->k,
                       o->least, r->total);
    uint64_t values = r->n * r->d, bad = fit_not_finite(r->x, values);
    if (bad < values)
        return err_set(err, -ERR_FORMAT, "row %" PRIu64 ", column %" PRIu64 " is not a number",
                       bad / r->d, bad % r->d);
    return 0;
}

static void take(struct kmeans_run *r, struct kmeans *ret)
{
    *ret = (struct kmeans){
        .k = r->k,
        .d = r->d,
        .centroids = r->centroids,
        .bias = r->bias,
        .sizes = r->sizes,
        .labels = r->labels,
        .inertia = r->inertia,
        .iterations = r->iterations,
        .repaired = r->repaired,
        .converged = r->converged,
        .met = r->met,
    };
    for (uint32_t c = 0; c < r->k; c++) {
        double share = r->sizes[c] * r->k / r->total;
        ret->largest = share > ret->largest ? share : ret->largest;
    }
    r->centroids = NULL;
    r->bias = NULL;
    r->sizes = NULL;
    r->labels = NULL;
}

int kmeans_fit(struct device *dev, const float *x, const float *weights, uint64_t n, uint32_t d,
               const struct kmeans_options *opt, const struct fit_watch *watch, struct kmeans *ret,
               struct err *err)
{
    struct kmeans_run best = {0}, first = {.dev = dev,
                                           .x = x,
                                           .weights = weights,
                                           .n = n,
                                           .d = d,
                                           .k = opt->k < n || !opt->shrink ? opt->k : (uint32_t)n,
                                           .opt = opt,
                                           .watch = watch};
    for (uint64_t i = 0; i < n; i++)
        first.total += kmeans_weight(&first, i);
    int rc = check(&first, err);
    unsigned restarts = opt->restarts ? opt->restarts : 1;
    for (unsigned i = 0; rc == 0 && i < restarts; i++) {
        struct kmeans_run r = first;
        r.seed = rng_mix(opt->seed, rng_mix(STREAM_RESTART, i));
        rc = run(&r, err);
        if (rc == 0 && (!best.near || r.inertia < best.inertia)) {
            run_free(&best);
            best = r;
        } else {
            run_free(&r);
        }
    }
    if (rc == 0)
        rc = kmeans_balance(&best, err);
    if (rc == 0)
        take(&best, ret);
    run_free(&best);
    return rc;
}

void kmeans_release(struct kmeans *m)
{
    if (!m)
        return;
    mem_free(m->centroids);
    mem_free(m->bias);
    mem_free(m->sizes);
    mem_free(m->labels);
    *m = (struct kmeans){0};
}
