#include "worker/fit/linear.h"

#include "worker/fit/affine.h"
#include "worker/fit/fit.h"
#include "worker/fit/gram.h"

#define ITERATIONS 200
#define L2 1e-3
#define TOLERANCE 1e-4
#define PAIRS 10 /* steps and gradients that L-BFGS remembers */
#define HALVINGS 30
#define ARMIJO 1e-4

/* The objective.  Parameters are one vector: W (k,d), then b (k). */
struct loss {
    const float *x;    /* (n,d) */
    const uint32_t *y; /* (n) */
    uint64_t n;
    uint32_t d, k;
    double l2;
    struct affine *logits;
    struct gram *outer;
    float *narrow;   /* (k*d+k) the parameters in f32 */
    float *residual; /* (GRAM_ROWS,k) softmax - one-hot */
    double entropy;  /* mean of the last evaluation */
    uint64_t right;
};

static size_t size_of(const struct loss *f)
{
    return (size_t)f->k * f->d + f->k;
}

/* Softmax minus the target of one row, and its cross-entropy. */
static double row_loss(const float *logit, uint32_t y, uint32_t k, float *residual, bool *right)
{
    float best = logit[0];
    uint32_t at = 0;
    for (uint32_t j = 1; j < k; j++)
        if (logit[j] > best) {
            best = logit[j];
            at = j;
        }
    double sum = 0;
    for (uint32_t j = 0; j < k; j++) {
        residual[j] = expf(logit[j] - best);
        sum += (double)residual[j];
    }
    float scale = (float)(1 / sum);
    for (uint32_t j = 0; j < k; j++)
        residual[j] *= scale;
    residual[y] -= 1;
    *right = at == y;
    return log(sum) + (double)(best - logit[y]);
}

/* Value and gradient at p. */
static int evaluate(struct loss *f, const double *p, double *grad, double *ret, struct err *err)
{
    const size_t weights = (size_t)f->k * f->d, size = size_of(f);
    double entropy = 0, decay = 0;
    for (size_t i = 0; i < size; i++)
        f->narrow[i] = (float)p[i];
    int rc = affine_set(f->logits, f->narrow, f->narrow + weights, err);
    gram_clear(f->outer);
    memset(grad + weights, 0, f->k * sizeof(double));
    f->right = 0;
    uint32_t block = affine_rows(f->logits) < GRAM_ROWS ? affine_rows(f->logits) : GRAM_ROWS;
    for (uint64_t at = 0; rc == 0 && at < f->n; at += block) {
        uint32_t rows = f->n - at < block ? (uint32_t)(f->n - at) : block;
        const float *logit;
        if ((rc = affine_block(f->logits, f->x + at * f->d, rows, &logit, err)) < 0)
            break;
        for (uint32_t i = 0; i < rows; i++) {
            float *r = f->residual + (size_t)i * f->k;
            bool right;
            entropy += row_loss(logit + (size_t)i * f->k, f->y[at + i], f->k, r, &right);
            f->right += right;
            for (uint32_t j = 0; j < f->k; j++)
                grad[weights + j] += (double)r[j] / (double)f->n;
        }
        rc = gram_add(f->outer, f->residual, f->x + at * f->d, rows, err);
    }
    const double *outer = gram_sum(f->outer);
    for (size_t i = 0; i < weights; i++) {
        decay += p[i] * p[i];
        grad[i] = outer[i] / (double)f->n + f->l2 * p[i];
    }
    f->entropy = entropy / (double)f->n;
    *ret = f->entropy + f->l2 / 2 * decay;
    return rc;
}

/* The state of L-BFGS: point, gradient, and the last PAIRS differences of both. */
struct lbfgs {
    size_t size;
    struct mem_arrays arrays;
    double *p, *g, *next, *next_g, *dir; /* (size) */
    double *s, *y;                       /* (PAIRS,size) */
    double rho[PAIRS], alpha[PAIRS];
    unsigned held, at; /* pairs held; where the next one goes */
};

static double dot(const double *a, const double *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static int lbfgs_new(struct lbfgs *o, size_t size, struct err *err)
{
    *o = (struct lbfgs){.size = size};
    o->p = mem_arrays_add(&o->arrays, size, sizeof(double));
    o->g = mem_arrays_add(&o->arrays, size, sizeof(double));
    o->next = mem_arrays_add(&o->arrays, size, sizeof(double));
    o->next_g = mem_arrays_add(&o->arrays, size, sizeof(double));
    o->dir = mem_arrays_add(&o->arrays, size, sizeof(double));
    o->s = mem_arrays_add(&o->arrays, size * PAIRS, sizeof(double));
    o->y = mem_arrays_add(&o->arrays, size * PAIRS, sizeof(double));
    if (o->arrays.failed)
        return err_set(err, -ENOMEM, "no memory for a classifier of %zu weights", size);
    return 0;
}

/* dir = -H g by the two loops. */
static void direction(struct lbfgs *o)
{
    for (size_t i = 0; i < o->size; i++)
        o->dir[i] = -o->g[i];
    for (unsigned n = 0; n < o->held; n++) {
        unsigned j = (o->at + PAIRS - 1 - n) % PAIRS;
        const double *s = o->s + j * o->size, *y = o->y + j * o->size;
        o->alpha[j] = o->rho[j] * dot(s, o->dir, o->size);
        for (size_t i = 0; i < o->size; i++)
            o->dir[i] -= o->alpha[j] * y[i];
    }
    if (o->held > 0) {
        unsigned j = (o->at + PAIRS - 1) % PAIRS;
        const double *y = o->y + j * o->size;
        double scale = 1 / (o->rho[j] * dot(y, y, o->size));
        for (size_t i = 0; i < o->size; i++)
            o->dir[i] *= scale;
    }
    for (unsigned n = o->held; n-- > 0;) {
        unsigned j = (o->at + PAIRS - 1 - n) % PAIRS;
        const double *s = o->s + j * o->size, *y = o->y + j * o->size;
        double beta = o->rho[j] * dot(y, o->dir, o->size);
        for (size_t i = 0; i < o->size; i++)
            o->dir[i] += (o->alpha[j] - beta) * s[i];
    }
}

/* Takes next as the point; remembers the pair if it curves upwards. */
static void advance(struct lbfgs *o)
{
    double *s = o->s + o->at * o->size, *y = o->y + o->at * o->size;
    for (size_t i = 0; i < o->size; i++) {
        s[i] = o->next[i] - o->p[i];
        y[i] = o->next_g[i] - o->g[i];
    }
    double sy = dot(s, y, o->size);
    if (sy > 1e-10 * sqrt(dot(s, s, o->size) * dot(y, y, o->size))) {
        o->rho[o->at] = 1 / sy;
        o->at = (o->at + 1) % PAIRS;
        o->held += o->held < PAIRS;
    }
    double *p = o->p, *g = o->g;
    o->p = o->next;
    o->g = o->next_g;
    o->next = p;
    o->next_g = g;
}

/* Halves the step until the value falls enough; false: it does not within f32. */
static int line_search(struct lbfgs *o, struct loss *f, double *value, bool *ret_fell,
                       struct err *err)
{
    double slope = dot(o->dir, o->g, o->size), step = 1;
    *ret_fell = false;
    if (slope >= 0)
        return 0;
    if (o->held == 0) /* the scale is unknown: a step of length one at most */
        step = 1 / fmax(1, sqrt(dot(o->g, o->g, o->size)));
    for (unsigned h = 0; h < HALVINGS; h++, step /= 2) {
        double now;
        for (size_t i = 0; i < o->size; i++)
            o->next[i] = o->p[i] + step * o->dir[i];
        int rc = evaluate(f, o->next, o->next_g, &now, err);
        if (rc < 0)
            return rc;
        if (!(now <= *value + ARMIJO * step * slope))
            continue;
        *value = now;
        *ret_fell = true;
        return 0;
    }
    return 0;
}

static int minimise(struct lbfgs *o, struct loss *f, const struct linear_options *opt,
                    const struct fit_watch *watch, struct linear *m, struct err *err)
{
    const double tolerance = opt->tolerance > 0 ? opt->tolerance : TOLERANCE;
    const unsigned most = opt->iterations ? opt->iterations : ITERATIONS;
    double value;
    int rc = evaluate(f, o->p, o->g, &value, err);
    double first = sqrt(dot(o->g, o->g, o->size));
    bool fell = true;
    while (rc == 0 && fell && m->iterations < most) {
        m->converged = sqrt(dot(o->g, o->g, o->size)) <= fmax(tolerance * first, 1e-7);
        if (m->converged || (rc = fit_tick(watch, "classifier", m->iterations, most, err)) < 0)
            break;
        direction(o);
        rc = line_search(o, f, &value, &fell, err);
        if (rc == 0 && fell) {
            advance(o);
            m->iterations++;
        }
    }
    if (rc == 0) /* loss and accuracy of the point that is kept */
        rc = evaluate(f, o->p, o->g, &value, err);
    return rc;
}

static int check(const uint32_t *y, uint64_t n, uint32_t d, uint32_t k, struct err *err)
{
    if (n == 0 || d == 0 || k == 0)
        return err_set(err, -ERR_CONFIG, "a classifier of %llu rows of %u columns in %u classes",
                       (unsigned long long)n, d, k);
    for (uint64_t i = 0; i < n; i++)
        if (y[i] >= k)
            return err_set(err, -ERR_CONFIG, "row %llu has the class %u, of %u classes",
                           (unsigned long long)i, y[i], k);
    return 0;
}

static int loss_new(struct device *dev, struct loss *f, struct err *err)
{
    f->narrow = mem_try_array(size_of(f), sizeof(float));
    f->residual = mem_try_array((size_t)GRAM_ROWS * f->k, sizeof(float));
    if (!f->narrow || !f->residual)
        return err_set(err, -ENOMEM, "no memory for a classifier of %u classes", f->k);
    int rc = affine_new(dev, f->d, f->k, &f->logits, err);
    return rc < 0 ? rc : gram_new(dev, f->k, f->d, &f->outer, err);
}

static int take(const struct loss *f, struct linear *m, struct err *err)
{
    const size_t weights = (size_t)f->k * f->d;
    m->weight = mem_try_array(weights, sizeof(float));
    m->bias = mem_try_array(f->k, sizeof(float));
    if (!m->weight || !m->bias) {
        linear_release(m);
        return err_set(err, -ENOMEM, "no memory for a classifier");
    }
    memcpy(m->weight, f->narrow, weights * sizeof(float));
    memcpy(m->bias, f->narrow + weights, f->k * sizeof(float));
    m->loss = f->entropy;
    m->accuracy = (double)f->right / (double)f->n;
    return 0;
}

int linear_fit(struct device *dev, const float *x, const uint32_t *y, uint64_t n, uint32_t d,
               const struct linear_options *opt, const struct fit_watch *watch, struct linear *ret,
               struct err *err)
{
    int rc = check(y, n, d, opt->k, err);
    if (rc < 0)
        return rc;
    struct linear m = {.k = opt->k, .d = d};
    struct loss f = {
        .x = x,
        .y = y,
        .n = n,
        .d = d,
        .k = opt->k,
        .l2 = opt->l2 > 0 ? opt->l2 : L2,
    };
    struct lbfgs o = {0};
    rc = loss_new(dev, &f, err);
    if (rc == 0)
        rc = lbfgs_new(&o, size_of(&f), err);
    if (rc == 0)
        rc = minimise(&o, &f, opt, watch, &m, err);
    if (rc == 0)
        rc = take(&f, &m, err);
    if (rc == 0)
        *ret = m;
    mem_arrays_free(&o.arrays);
    mem_free(f.narrow);
    mem_free(f.residual);
    affine_free(f.logits);
    gram_free(f.outer);
    return rc;
}

void linear_release(struct linear *m)
{
    if (!m)
        return;
    mem_free(m->weight);
    mem_free(m->bias);
    m->weight = NULL;
    m->bias = NULL;
}
