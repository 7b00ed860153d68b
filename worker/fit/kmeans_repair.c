/* Clusters that are empty, too small or too large. */
#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/fit/affine.h"
#include "worker/fit/fit.h"
#include "worker/fit/histogram.h"
#include "worker/fit/kmeans_impl.h"

#define BALANCE_ROUNDS 10
#define BALANCE_SCORES (32u << 20) /* of the rows whose scores the prices are fitted to */

/* The row of cluster c that is farthest from its centroid; n when all lie on it. */
static uint64_t farthest(const struct kmeans_run *r, uint32_t c)
{
    uint64_t best = r->n;
    float most = 0;
    for (uint64_t i = 0; i < r->n; i++)
        if (r->labels[i] == c && r->dist[i] > most) {
            most = r->dist[i];
            best = i;
        }
    return best;
}

/* The heaviest cluster that is not marked. */
static uint32_t heaviest(const struct kmeans_run *r, const bool *marked)
{
    uint32_t best = r->k;
    for (uint32_t c = 0; c < r->k; c++)
        if (!marked[c] && r->sizes[c] > 0 && (best == r->k || r->sizes[c] > r->sizes[best]))
            best = c;
    return best;
}

static void move(struct kmeans_run *r, uint64_t row, uint32_t to)
{
    uint32_t from = r->labels[row];
    const float *x = r->x + row * r->d;
    double w = kmeans_weight(r, row);
    for (uint32_t j = 0; j < r->d; j++) {
        r->sums[(size_t)from * r->d + j] -= w * (double)x[j];
        r->sums[(size_t)to * r->d + j] += w * (double)x[j];
    }
    r->sizes[from] -= w;
    r->sizes[to] += w;
    r->labels[row] = to;
    r->inertia -= w * (double)r->dist[row];
    r->dist[row] = 0;
}

uint32_t kmeans_repair(struct kmeans_run *r)
{
    uint32_t left = 0;
    bool *single = NULL; /* clusters whose rows are all equal */
    for (uint32_t c = 0; c < r->k; c++) {
        if (r->sizes[c] > 0)
            continue;
        if (!single)
            single = mem_alloc_array(r->k, sizeof(bool));
        uint64_t row = r->n;
        for (uint32_t from; row == r->n && (from = heaviest(r, single)) < r->k;) {
            row = farthest(r, from);
            single[from] = row == r->n;
        }
        if (row == r->n) {
            left++;
            continue;
        }
        memcpy(r->centroids + (size_t)c * r->d, r->x + row * r->d, r->d * sizeof(float));
        move(r, row, c);
        r->repaired++;
    }
    mem_free(single);
    return left;
}

/* Rows the prices are fitted to, and what their scores need. */
struct prices {
    uint64_t m;
    float *rows;    /* (m,d); NULL: all rows, where they lie */
    float *weights; /* (m); NULL: 1 each, or the run's */
    float *scores;  /* (m,k) */
    double *lo, *hi, *load;
};

static void prices_free(struct prices *p)
{
    mem_free(p->rows);
    mem_free(p->weights);
    mem_free(p->scores);
    mem_free(p->lo);
    mem_free(p->hi);
    mem_free(p->load);
}

static int prices_new(const struct kmeans_run *r, struct prices *p, struct err *err)
{
    *p = (struct prices){.m = BALANCE_SCORES / r->k};
    p->m = p->m < r->n ? p->m : r->n;
    p->scores = mem_try_array(p->m * r->k, sizeof(float));
    p->lo = mem_try_array(r->k, sizeof(double));
    p->hi = mem_try_array(r->k, sizeof(double));
    p->load = mem_try_array(r->k, sizeof(double));
    bool part = p->m < r->n;
    if (part)
        p->rows = mem_try_array(p->m * r->d, sizeof(float));
    if (part && r->weights)
        p->weights = mem_try_array(p->m, sizeof(float));
    if (!p->scores || !p->lo || !p->hi || !p->load || (part && !p->rows) ||
        (part && r->weights && !p->weights))
        return err_set(err, -ENOMEM, "no memory to balance %u clusters", r->k);
    double share = 0, unit = 0;
    for (uint64_t i = 0; i < p->m; i++) {
        uint64_t row = part ? i * r->n / p->m : i;
        double w = kmeans_weight(r, row);
        share += w;
        unit = w > unit ? w : unit;
        if (p->rows)
            memcpy(p->rows + i * r->d, r->x + row * r->d, r->d * sizeof(float));
        if (p->weights)
            p->weights[i] = r->weights[row];
    }
    histogram_bounds(share, r->k, r->opt->balance, r->opt->least * share / r->total, unit, p->lo,
                     p->hi);
    return 0;
}

/* bias for the present centroids. */
static int prices_fit(struct kmeans_run *r, struct prices *p, struct err *err)
{
    const float *x = p->rows ? p->rows : r->x;
    int rc = affine_set_centroids(r->near, r->centroids, NULL, err);
    for (uint64_t at = 0; rc == 0 && at < p->m; at += affine_rows(r->near)) {
        uint32_t rows = affine_rows(r->near);
        rows = p->m - at < rows ? (uint32_t)(p->m - at) : rows;
        const float *y;
        if ((rc = affine_block(r->near, x + at * r->d, rows, &y, err)) == 0)
            memcpy(p->scores + at * r->k, y, (size_t)rows * r->k * sizeof(float));
    }
    if (rc < 0)
        return rc;
    const struct histogram h = {
        .scores = p->scores,
        .weights = p->rows ? p->weights : r->weights,
        .n = p->m,
        .k = r->k,
        .lo = p->lo,
        .hi = p->hi,
    };
    struct histogram_report report;
    return histogram_fit(&h, r->bias, p->load, &report, err);
}

static bool within(const struct kmeans_run *r)
{
    double top = r->opt->balance > 0 ? r->opt->balance * r->total / r->k : r->total;
    for (uint32_t c = 0; c < r->k; c++)
        if (r->sizes[c] > top * (1 + 1e-9) || r->sizes[c] < r->opt->least * (1 - 1e-9))
            return false;
    return true;
}

int kmeans_balance(struct kmeans_run *r, struct err *err)
{
    struct prices p = {0};
    if (within(r)) {
        r->met = true;
        return 0;
    }
    int rc = prices_new(r, &p, err);
    double before = 0;
    for (unsigned round = 0; rc == 0 && round < BALANCE_ROUNDS; round++) {
        if ((rc = fit_tick(r->watch, "balancing clusters", round, BALANCE_ROUNDS, err)) < 0)
            break;
        if (round > 0)
            kmeans_update(r);
        if ((rc = prices_fit(r, &p, err)) == 0)
            rc = kmeans_assign(r, err);
        r->met = rc == 0 && within(r);
        if (r->met && round > 0 && before - r->inertia <= 1e-3 * before)
            break;
        before = r->inertia;
    }
    prices_free(&p);
    return rc;
}
