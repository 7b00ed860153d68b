#include "worker/fit/pca.h"

#include "common/base/rng.h"
#include "worker/fit/affine.h"
#include "worker/fit/eigen.h"
#include "worker/fit/fit.h"
#include "worker/fit/gram.h"

#define OVERSAMPLE 16 /* additional directions of the random start */
#define STREAM_START 0x70636173ULL
#define RIDGE 1e-6 /* share of the largest variance added under the root of a whitening scale */

/* A pass over centred rows. */
struct pass {
    const struct fit_source *x;
    const float *mean; /* (d), or NULL: rows are not centred */
    float *rows;       /* (GRAM_ROWS,d): the block, */
    uint64_t at;       /* its first row, */
    uint32_t count;    /* and how many there are */
};

static int pass_new(const struct fit_source *x, const float *mean, struct pass *ret,
                    struct err *err)
{
    *ret = (struct pass){.x = x, .mean = mean};
    ret->rows = mem_try_array((size_t)GRAM_ROWS * x->d, sizeof(float));
    return ret->rows ? 0 : err_set(err, -ENOMEM, "no memory for a block of features");
}

/* The next block: 1, 0 after the last. */
static int pass_next(struct pass *p, struct err *err)
{
    const uint32_t d = p->x->d;
    p->at += p->count;
    if (p->at == p->x->n)
        return 0;
    p->count = p->x->n - p->at < GRAM_ROWS ? (uint32_t)(p->x->n - p->at) : GRAM_ROWS;
    int rc = p->x->read(p->x, p->at, p->count, p->rows, err);
    for (uint32_t i = 0; rc == 0 && p->mean && i < p->count; i++)
        for (uint32_t j = 0; j < d; j++)
            p->rows[(size_t)i * d + j] -= p->mean[j];
    return rc < 0 ? rc : 1;
}

static int allocate(struct pca *p, uint32_t d, uint32_t r, bool basis, struct err *err)
{
    *p = (struct pca){.d = d, .r = r};
    p->mean = mem_try_array(d, sizeof(float));
    p->scale = mem_try_array(r, sizeof(float));
    p->variance = mem_try_array(r, sizeof(double));
    if (basis)
        p->basis = mem_try_array((size_t)r * d, sizeof(float));
    if (p->mean && p->scale && p->variance && (p->basis || !basis))
        return 0;
    pca_release(p);
    return err_set(err, -ENOMEM, "no memory for %u directions of %u columns", r, d);
}

void pca_release(struct pca *p)
{
    if (!p)
        return;
    mem_free(p->mean);
    mem_free(p->basis);
    mem_free(p->scale);
    mem_free(p->variance);
    *p = (struct pca){0};
}

/* Mean of each column in f64, rounded; refuses values that are not finite. */
static int find_mean(const struct fit_source *x, float *mean, struct err *err)
{
    struct pass pass;
    double *sum = mem_try_array(x->d, sizeof(double));
    int rc = pass_new(x, NULL, &pass, err);
    if (rc == 0 && !sum)
        rc = err_set(err, -ENOMEM, "no memory for %u columns", x->d);
    while (rc == 0 && (rc = pass_next(&pass, err)) > 0) {
        uint64_t values = (uint64_t)pass.count * x->d, bad = fit_not_finite(pass.rows, values);
        for (uint32_t i = 0; i < pass.count; i++)
            for (uint32_t j = 0; j < x->d; j++)
                sum[j] += (double)pass.rows[(size_t)i * x->d + j];
        rc = bad == values
                 ? 0
                 : err_set(err, -ERR_FORMAT,
                           "the feature of row %" PRIu64 ", column %" PRIu64 " is not a number",
                           pass.at + bad / x->d, bad % x->d);
    }
    for (uint32_t j = 0; rc == 0 && j < x->d; j++)
        mean[j] = (float)(sum[j] / (double)x->n);
    mem_free(pass.rows);
    mem_free(sum);
    return rc;
}

/* Population variance of each column around mean. */
static int find_variance(const struct fit_source *x, const float *mean, double *variance,
                         struct err *err)
{
    struct pass pass;
    int rc = pass_new(x, mean, &pass, err);
    memset(variance, 0, x->d * sizeof(double));
    while (rc == 0 && (rc = pass_next(&pass, err)) > 0) {
        for (uint32_t i = 0; i < pass.count; i++)
            for (uint32_t j = 0; j < x->d; j++) {
                double v = (double)pass.rows[(size_t)i * x->d + j];
                variance[j] += v * v;
            }
        rc = 0;
    }
    for (uint32_t j = 0; j < x->d; j++)
        variance[j] /= (double)x->n;
    mem_free(pass.rows);
    return rc;
}

static int check(const struct fit_source *x, struct err *err)
{
    if (x->n == 0 || x->d == 0)
        return err_set(err, -ERR_CONFIG, "there are no features: %" PRIu64 " rows of %u columns",
                       x->n, x->d);
    if (x->d > PCA_DIM_MAX)
        return err_set(err, -ERR_LIMIT, "features of %u columns: %u are the most", x->d,
                       PCA_DIM_MAX);
    return 0;
}

int pca_columns(const struct fit_source *x, bool standardise, struct pca *ret, struct err *err)
{
    struct pca p;
    int rc = check(x, err);
    if (rc == 0 && x->d > PCA_OUT_MAX)
        rc = err_set(err, -ERR_LIMIT,
                     "features of %u columns are too wide without PCA: %u are the most", x->d,
                     PCA_OUT_MAX);
    if (rc < 0 || (rc = allocate(&p, x->d, x->d, false, err)) < 0)
        return rc;
    rc = find_mean(x, p.mean, err);
    if (rc == 0)
        rc = find_variance(x, p.mean, p.variance, err);
    if (rc < 0) {
        pca_release(&p);
        return rc;
    }
    for (uint32_t j = 0; j < p.d; j++) {
        /* A column whose variance f32 cannot resolve around such a mean is constant. */
        bool constant = p.variance[j] <= 1e-13 * (double)p.mean[j] * (double)p.mean[j];
        p.total += p.variance[j];
        p.scale[j] = !standardise ? 1 : constant ? 0 : (float)(1 / sqrt(p.variance[j]));
    }
    *ret = p;
    return 0;
}

/* g (rows of q, d) = q C: one pass.  y = x qᵀ, then the sum of yᵀ x. */
static int power_pass(const struct fit_source *x, const float *mean, struct affine *project,
                      struct gram *g, struct err *err)
{
    struct pass pass;
    int rc = pass_new(x, mean, &pass, err);
    gram_clear(g);
    while (rc == 0 && (rc = pass_next(&pass, err)) > 0) {
        rc = 0;
        for (uint32_t done = 0; rc == 0 && done < pass.count;) {
            uint32_t rows = pass.count - done;
            rows = rows < affine_rows(project) ? rows : affine_rows(project);
            const float *block = pass.rows + (size_t)done * x->d, *y;
            if ((rc = affine_block(project, block, rows, &y, err)) == 0)
                rc = gram_add(g, y, block, rows, err);
            done += rows;
        }
    }
    mem_free(pass.rows);
    return rc;
}

/* Row i of basis = sum over j of u_ij q_j, its largest entry positive. */
static void turn(struct pca *p, const double *u, uint32_t l, const double *q)
{
    for (uint32_t i = 0; i < p->r; i++) {
        float *row = p->basis + (size_t)i * p->d;
        float largest = 0;
        for (uint32_t c = 0; c < p->d; c++) {
            double sum = 0;
            if (q)
                for (uint32_t j = 0; j < l; j++)
                    sum += u[(size_t)i * l + j] * q[(size_t)j * p->d + c];
            else
                sum = u[(size_t)i * l + c];
            row[c] = (float)sum;
            if (fabsf(row[c]) > fabsf(largest))
                largest = row[c];
        }
        for (uint32_t c = 0; largest < 0 && c < p->d; c++)
            row[c] = -row[c];
    }
}

/* Eigenvectors of the covariance, all of them. */
static int fit_exact(struct device *dev, const struct fit_source *x, struct pca *p, struct err *err)
{
    const uint32_t d = p->d;
    struct gram *g = NULL;
    struct pass pass = {0};
    double *values = mem_try_array(d, sizeof(double));
    int rc = values ? gram_new(dev, d, d, &g, err) : err_set(err, -ENOMEM, "no memory");
    if (rc == 0)
        rc = pass_new(x, p->mean, &pass, err);
    while (rc == 0 && (rc = pass_next(&pass, err)) > 0)
        rc = gram_add(g, pass.rows, pass.rows, pass.count, err);
    if (rc == 0) {
        double *c = gram_sum(g);
        for (size_t i = 0; i < (size_t)d * d; i++)
            c[i] /= (double)x->n;
        if ((rc = eigen_symmetric(c, d, values)) < 0)
            rc = err_set(err, rc, "eigenvectors of %u columns: %s", d, err_text(rc));
    }
    if (rc == 0) {
        for (uint32_t i = 0; i < p->r; i++)
            p->variance[i] = values[i] > 0 ? values[i] : 0;
        turn(p, gram_sum(g), d, NULL);
    }
    mem_free(pass.rows);
    mem_free(values);
    gram_free(g);
    return rc;
}

struct wide {
    uint32_t l;
    struct mem_arrays arrays;
    double *q;      /* (l,d) orthonormal rows */
    float *narrow;  /* the same, f32 */
    double *t;      /* (l,l) q C qᵀ */
    double *values; /* (l) */
    struct affine *project;
    struct gram *g;
};

static void wide_free(struct wide *w)
{
    mem_arrays_free(&w->arrays);
    affine_free(w->project);
    gram_free(w->g);
}

static int wide_new(struct device *dev, const struct pca *p, uint64_t n, uint64_t seed,
                    struct wide *w, struct err *err)
{
    uint32_t l = p->r + OVERSAMPLE;
    l = l < p->d ? l : p->d;
    l = l < n ? l : (uint32_t)n;
    size_t values = (size_t)l * p->d;
    *w = (struct wide){.l = l};
    w->q = mem_arrays_add(&w->arrays, values, sizeof(double));
    w->narrow = mem_arrays_add(&w->arrays, values, sizeof(float));
    w->t = mem_arrays_add(&w->arrays, (size_t)l * l, sizeof(double));
    w->values = mem_arrays_add(&w->arrays, l, sizeof(double));
    if (w->arrays.failed)
        return err_set(err, -ENOMEM, "no memory for %u directions of %u columns", l, p->d);
    int rc = affine_new(dev, p->d, l, &w->project, err);
    if (rc == 0)
        rc = gram_new(dev, l, p->d, &w->g, err);
    if (rc < 0)
        return rc;
    rng_fill_normal(seed, STREAM_START, 0, w->narrow, values, 0, 1);
    for (size_t i = 0; i < values; i++)
        w->q[i] = (double)w->narrow[i];
    return 0;
}

/* t = (q C) qᵀ, made symmetric: its eigenvectors turn q into the components. */
static void ritz(struct wide *w, uint32_t d, uint64_t n)
{
    const double *s = gram_sum(w->g);
    for (uint32_t i = 0; i < w->l; i++)
        for (uint32_t j = 0; j < w->l; j++) {
            double sum = 0;
            for (uint32_t c = 0; c < d; c++)
                sum += s[(size_t)i * d + c] * w->q[(size_t)j * d + c];
            w->t[(size_t)i * w->l + j] = sum / (double)n;
        }
    for (uint32_t i = 0; i < w->l; i++)
        for (uint32_t j = 0; j < i; j++) {
            double *a = w->t + (size_t)i * w->l + j, *b = w->t + (size_t)j * w->l + i;
            *a = *b = (*a + *b) / 2;
        }
}

static int fit_wide(struct device *dev, const struct fit_source *x, uint64_t seed,
                    const struct fit_watch *watch, struct pca *p, struct err *err)
{
    struct wide w = {0};
    int rc = wide_new(dev, p, x->n, seed, &w, err);
    const size_t values = (size_t)w.l * p->d;
    for (unsigned pass = 0; rc == 0 && pass < PCA_PASSES; pass++) {
        if ((rc = fit_tick(watch, "principal components", pass, PCA_PASSES, err)) < 0)
            break;
        if (pass > 0)
            memcpy(w.q, gram_sum(w.g), values * sizeof(double));
        eigen_orthonormal(w.q, w.l, p->d);
        for (size_t i = 0; i < values; i++)
            w.narrow[i] = (float)w.q[i];
        if ((rc = affine_set(w.project, w.narrow, NULL, err)) == 0)
            rc = power_pass(x, p->mean, w.project, w.g, err);
    }
    if (rc == 0) {
        ritz(&w, p->d, x->n);
        if ((rc = eigen_symmetric(w.t, w.l, w.values)) < 0)
            rc = err_set(err, rc, "principal components of %u columns: %s", p->d, err_text(rc));
    }
    if (rc == 0) {
        for (uint32_t i = 0; i < p->r; i++)
            p->variance[i] = w.values[i] > 0 ? w.values[i] : 0;
        turn(p, w.t, w.l, w.q);
    }
    wide_free(&w);
    return rc;
}

/* The total variance over all columns. */
static int find_total(const struct fit_source *x, struct pca *p, struct err *err)
{
    double *variance = mem_try_array(x->d, sizeof(double));
    if (!variance)
        return err_set(err, -ENOMEM, "no memory for %u columns", x->d);
    int rc = find_variance(x, p->mean, variance, err);
    for (uint32_t j = 0; j < x->d; j++)
        p->total += variance[j];
    mem_free(variance);
    return rc;
}

int pca_fit(struct device *dev, const struct fit_source *x, uint32_t r, bool whiten, uint64_t seed,
            const struct fit_watch *watch, struct pca *ret, struct err *err)
{
    struct pca p;
    int rc = check(x, err);
    if (rc == 0 && (r == 0 || r > PCA_OUT_MAX))
        rc = err_set(err, -ERR_CONFIG, "%u principal components: 1 to %u are possible", r,
                     PCA_OUT_MAX);
    if (rc < 0)
        return rc;
    r = r < x->d ? r : x->d;
    r = r < x->n ? r : (uint32_t)x->n;
    if ((rc = allocate(&p, x->d, r, true, err)) < 0)
        return rc;
    rc = find_mean(x, p.mean, err);
    if (rc == 0)
        rc = find_total(x, &p, err);
    if (rc == 0)
        rc = fit_tick(watch, "principal components", 0, PCA_PASSES, err);
    if (rc == 0)
        rc =
            x->d <= PCA_EXACT ? fit_exact(dev, x, &p, err) : fit_wide(dev, x, seed, watch, &p, err);
    if (rc < 0) {
        pca_release(&p);
        return rc;
    }
    double ridge = RIDGE * p.variance[0];
    for (uint32_t i = 0; i < r; i++)
        p.scale[i] = whiten && ridge > 0 ? (float)(1 / sqrt(p.variance[i] + ridge)) : 1;
    *ret = p;
    return 0;
}

int pca_apply(const struct pca *p, struct device *dev, const struct fit_source *x, float *z,
              struct err *err)
{
    struct pass pass = {0};
    struct affine *a = NULL;
    if (x->d != p->d)
        return err_set(err, -ERR_CONFIG, "features of %u columns where the router knows %u", x->d,
                       p->d);
    int rc = pass_new(x, p->mean, &pass, err);
    if (rc == 0 && p->basis && (rc = affine_new(dev, p->d, p->r, &a, err)) == 0)
        rc = affine_set(a, p->basis, NULL, err);
    while (rc == 0 && (rc = pass_next(&pass, err)) > 0) {
        rc = 0;
        for (uint32_t done = 0; rc == 0 && done < pass.count;) {
            uint32_t rows = pass.count - done;
            if (a && rows > affine_rows(a))
                rows = affine_rows(a);
            const float *y = pass.rows + (size_t)done * p->d;
            if (a)
                rc = affine_block(a, y, rows, &y, err);
            for (uint32_t i = 0; rc == 0 && i < rows; i++)
                for (uint32_t j = 0; j < p->r; j++)
                    z[(pass.at + done + i) * p->r + j] = y[(size_t)i * p->r + j] * p->scale[j];
            done += rows;
        }
    }
    mem_free(pass.rows);
    affine_free(a);
    return rc;
}
