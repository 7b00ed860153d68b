/* The discriminative router: a classifier of which path did best, and prices that give each path
 * its share. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/fit/affine.h"
#include "worker/fit/fit.h"
#include "worker/fit/linear.h"
#include "worker/fit/partitioner_impl.h"

#define FOLD 5           /* every so many rows are kept to choose the penalty */
#define FOLD_ROWS_MIN 50 /* fewer rows choose nothing: the middle one */

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

/* The rows with i % FOLD == 0 after all others, classes alike. */
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

/* The penalty that does best on rows it was not fitted to. */
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

/* Loads of n rows: as share says, or as often as the targets name each class. */
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

/* Prices for the rows z (n,r), and what comes of them. */
static int settle(struct fitting *f, const struct linear_targets *t, const float *z, uint64_t n,
                  struct err *err)
{
    double *load = mem_try_array(f->p->k, sizeof(double));
    int rc = load ? wanted(f, t, n, load, err) : err_set(err, -ENOMEM, "no memory for a histogram");
    if (rc == 0)
        rc = partitioner_price(f->p, f->dev, z, n, load, load, err);
    if (rc == 0)
        rc = partitioner_count(f->p, f->dev, z, n, f->report, err);
    if (rc == 0) {
        fitting_judge(f->report, load, load);
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
    int rc = fitting_open(&f, PARTITION_LINEAR, err);
    if (rc == 0)
        rc = fitting_project(&f, x, true, err);
    if (rc == 0)
        rc = fit_classifier(&f, targets, err);
    if (rc == 0 && routed) {
        z = mem_try_array(routed->n * f.p->input.r, sizeof(float));
        rc = z ? pca_apply(&f.p->input, dev, routed, z, err)
               : err_set(err, -ENOMEM, "no memory for %" PRIu64 " features", routed->n);
    }
    if (rc == 0)
        rc = settle(&f, targets, z ? z : f.z, z ? routed->n : f.n, err);
    mem_free(z);
    return fitting_close(&f, rc, ret);
}
