/* Prices of partitions and the sizes that come of them. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/fit/affine.h"
#include "worker/fit/histogram.h"
#include "worker/fit/partitioner_impl.h"

#define PRICE_SCORES (32u << 20) /* of the rows that prices are fitted to */

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

int partitioner_price(struct partitioner *p, struct device *dev, const float *z, uint64_t n,
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

void partitioner_summarise(struct partition_report *report)
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

int partitioner_count(const struct partitioner *p, struct device *dev, const float *z, uint64_t n,
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
        partitioner_summarise(report);
    return rc;
}
