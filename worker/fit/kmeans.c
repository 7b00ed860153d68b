#include "worker/fit/kmeans.h"

#include <float.h>

#include "common/base/rng.h"
#include "worker/fit/affine.h"
#include "worker/fit/fit.h"
#include "worker/fit/histogram.h"

#define ITERATIONS 100
#define PASSES 5 /* passes over the rows, in mini-batches */
#define TOLERANCE 1e-5
#define EXTRA 10 /* further steps while empty clusters are being filled */
#define STREAM_BATCH 0x6b6d626bULL
#define STREAM_RESTART 0x6b6d7273ULL
#define SAMPLE_ROWS 16384     /* rows looked at, and */
#define SAMPLE_PER_CLUSTER 16 /* more of them per cluster */
#define TRIES_BELOW 256       /* most clusters for which several rows are tried */
#define TRIES 4
#define STREAM_START 0x6b2b2bULL
#define TICK_EVERY 64
#define BALANCE_ROUNDS 10
#define BALANCE_SCORES (32u << 20) /* scores to which prices are fitted */

/* One fit under way. */
struct run {
    struct device *dev;
    const float *x;       /* (n,d) */
    const float *weights; /* (n) or NULL */
    uint64_t n;
    uint32_t d, k;
    double total; /* weight of all rows */
    const struct kmeans_options *opt;
    const struct fit_watch *watch;
    uint64_t seed; /* the seed of this start */

    struct affine *near;
    float *centroids; /* (k,d) */
    float *bias;      /* (k) */
    uint32_t *labels; /* (n) */
    float *dist;      /* (n) squared distance to the row's centroid */
    double *sums;     /* (k,d) weighted sum of the rows of each cluster */
    double *sizes;    /* (k) */
    double inertia;
    unsigned iterations, repaired;
    bool converged, met;
};

static double weight_of(const struct run *r, uint64_t i)
{
    return r->weights ? (double)r->weights[i] : 1.0;
}

typedef float lanes __attribute__((vector_size(32)));

/* Squared distance of two rows of d values; eight partial sums, added in order. */
static float distance(const float *a, const float *b, uint32_t d)
{
    lanes sum = {0};
    uint32_t i = 0;
    for (; i + 8 <= d; i += 8) {
        lanes va, vb;
        memcpy(&va, a + i, sizeof(va));
        memcpy(&vb, b + i, sizeof(vb));
        va -= vb;
        sum += va * va;
    }
    float total = 0;
    for (unsigned j = 0; j < 8; j++)
        total += sum[j];
    for (; i < d; i++)
        total += (a[i] - b[i]) * (a[i] - b[i]);
    return total;
}

/* ---- the first centres ---- */

struct start {
    const struct run *r;
    uint64_t m;          /* rows looked at */
    float *dist;         /* (m) to the nearest centre so far */
    float *trial, *best; /* (m) the same with one more */
    struct rng rng;
};

static uint64_t row_of(const struct start *s, uint64_t i)
{
    return s->m == s->r->n ? i : i * s->r->n / s->m;
}

/* dist with one more centre; returns the weighted sum. */
static double with_centre(const struct start *s, const float *c, float *out)
{
    const struct run *r = s->r;
    double sum = 0;
    for (uint64_t i = 0; i < s->m; i++) {
        uint64_t row = row_of(s, i);
        float v = distance(r->x + row * r->d, c, r->d);
        out[i] = v < s->dist[i] ? v : s->dist[i];
        sum += weight_of(r, row) * (double)out[i];
    }
    return sum;
}

/* Draws a row by weight times dist (whose sum is `sum`), or only by weight. */
static uint64_t draw(struct start *s, double sum, bool by_distance)
{
    double at = rng_uniform_double(&s->rng) * sum, reached = 0;
    uint64_t last = 0;
    for (uint64_t i = 0; i < s->m; i++) {
        uint64_t row = row_of(s, i);
        double v = weight_of(s->r, row) * (by_distance ? (double)s->dist[i] : 1.0);
        if (v <= 0)
            continue;
        last = row;
        reached += v;
        if (reached > at)
            break;
    }
    return last;
}

static int grow(struct start *s, struct run *r, struct err *err)
{
    const unsigned tries = r->k <= TRIES_BELOW ? TRIES : 1;
    double weight = 0;
    for (uint64_t i = 0; i < s->m; i++) {
        weight += weight_of(r, row_of(s, i));
        s->dist[i] = FLT_MAX;
    }
    uint64_t first = draw(s, weight, false);
    memcpy(r->centroids, r->x + first * r->d, r->d * sizeof(float));
    double sum = with_centre(s, r->centroids, s->dist);
    for (uint32_t k = 1; k < r->k; k++) {
        if (k % TICK_EVERY == 0) {
            int rc = fit_tick(r->watch, "first centres", k, r->k, err);
            if (rc < 0)
                return rc;
        }
        double lowest = DBL_MAX;
        uint64_t chosen = 0;
        for (unsigned t = 0; t < tries; t++) {
            uint64_t row = draw(s, sum, sum > 0);
            double now = with_centre(s, r->x + row * r->d, s->trial);
            if (now >= lowest)
                continue;
            float *swap = s->best;
            s->best = s->trial;
            s->trial = swap;
            lowest = now;
            chosen = row;
        }
        float *swap = s->best;
        s->best = s->dist;
        s->dist = swap;
        sum = lowest;
        memcpy(r->centroids + (size_t)k * r->d, r->x + chosen * r->d, r->d * sizeof(float));
    }
    return 0;
}

/* centroids = rows by k-means++: a few candidates are drawn in proportion to their squared distance
 * to the nearest centre so far, and the one that lowers the sum most is taken. */
static int choose_first(struct run *r, struct err *err)
{
    struct start s = {.r = r, .m = SAMPLE_ROWS + (uint64_t)SAMPLE_PER_CLUSTER * r->k};
    s.m = s.m < r->n ? s.m : r->n;
    rng_init(&s.rng, r->seed, STREAM_START);
    struct mem_arrays arrays = {0};
    s.dist = mem_arrays_add(&arrays, s.m, sizeof(float));
    s.trial = mem_arrays_add(&arrays, s.m, sizeof(float));
    s.best = mem_arrays_add(&arrays, s.m, sizeof(float));
    int rc = arrays.failed ? err_set(err, -ENOMEM, "no memory for k-means") : grow(&s, r, err);
    mem_arrays_free(&arrays);
    return rc;
}

/* ---- a step ---- */

/* labels, dist, sums, sizes and inertia for the present centroids and bias. */
static int assign(struct run *r, struct err *err)
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
        double w = weight_of(r, i), *sum = r->sums + (size_t)c * d;
        for (uint32_t j = 0; j < d; j++)
            sum[j] += w * (double)x[j];
        r->sizes[c] += w;
        r->dist[i] = distance(x, r->centroids + (size_t)c * d, d);
        r->inertia += w * (double)r->dist[i];
    }
    return 0;
}

/* centroids = means of their rows; a cluster without rows stays where it is. */
static void update(struct run *r)
{
    for (uint32_t c = 0; c < r->k; c++)
        for (uint32_t j = 0; r->sizes[c] > 0 && j < r->d; j++)
            r->centroids[(size_t)c * r->d + j] =
                (float)(r->sums[(size_t)c * r->d + j] / r->sizes[c]);
}

/* ---- clusters that are empty ---- */

/* The row of cluster c that is farthest from its centroid; n: all lie on it. */
static uint64_t farthest(const struct run *r, uint32_t c)
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
static uint32_t heaviest(const struct run *r, const bool *marked)
{
    uint32_t best = r->k;
    for (uint32_t c = 0; c < r->k; c++)
        if (!marked[c] && r->sizes[c] > 0 && (best == r->k || r->sizes[c] > r->sizes[best]))
            best = c;
    return best;
}

static void move(struct run *r, uint64_t row, uint32_t to)
{
    uint32_t from = r->labels[row];
    const float *x = r->x + row * r->d;
    double w = weight_of(r, row);
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

/* Each empty cluster takes a row; sizes, sums and labels follow.  Returns the number that stay
 * empty for lack of distinct rows, and adds the others to repaired. */
static uint32_t fill_empty(struct run *r)
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

/* ---- clusters that are too small or too large ---- */

/* Rows the prices are fitted to, and what their scores need. */
struct prices {
    uint64_t m;
    float *rows;    /* (m,d); NULL: all rows, in place */
    float *weights; /* (m); NULL: 1 each, or the run's */
    float *scores;  /* (m,k) */
    double *lo, *hi, *load;
    struct mem_arrays arrays;
};

static int prices_new(const struct run *r, struct prices *p, struct err *err)
{
    *p = (struct prices){.m = BALANCE_SCORES / r->k};
    p->m = p->m < r->n ? p->m : r->n;
    bool part = p->m < r->n;
    p->scores = mem_arrays_add(&p->arrays, p->m * r->k, sizeof(float));
    p->lo = mem_arrays_add(&p->arrays, r->k, sizeof(double));
    p->hi = mem_arrays_add(&p->arrays, r->k, sizeof(double));
    p->load = mem_arrays_add(&p->arrays, r->k, sizeof(double));
    if (part)
        p->rows = mem_arrays_add(&p->arrays, p->m * r->d, sizeof(float));
    if (part && r->weights)
        p->weights = mem_arrays_add(&p->arrays, p->m, sizeof(float));
    if (p->arrays.failed)
        return err_set(err, -ENOMEM, "no memory to balance %u clusters", r->k);
    double share = 0, unit = 0;
    for (uint64_t i = 0; i < p->m; i++) {
        uint64_t row = part ? i * r->n / p->m : i;
        double w = weight_of(r, row);
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
static int prices_fit(struct run *r, struct prices *p, struct err *err)
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

static bool within(const struct run *r)
{
    double top = r->opt->balance > 0 ? r->opt->balance * r->total / r->k : r->total;
    for (uint32_t c = 0; c < r->k; c++)
        if (r->sizes[c] > top * (1 + 1e-9) || r->sizes[c] < r->opt->least * (1 - 1e-9))
            return false;
    return true;
}

/* Sets bias so that the sizes keep balance and least, moving the centroids along. */
static int balance(struct run *r, struct err *err)
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
            update(r);
        if ((rc = prices_fit(r, &p, err)) == 0)
            rc = assign(r, err);
        r->met = rc == 0 && within(r);
        if (r->met && round > 0 && before - r->inertia <= 1e-3 * before)
            break;
        before = r->inertia;
    }
    mem_arrays_free(&p.arrays);
    return rc;
}

/* ---- the fit ---- */

/* Removes the clusters without rows. */
static int shrink(struct run *r, struct err *err)
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
static int lloyd(struct run *r, unsigned iterations, struct err *err)
{
    const double tolerance = r->opt->tolerance > 0 ? r->opt->tolerance : TOLERANCE;
    double before = 0;
    for (unsigned i = 0;; i++) {
        int rc = fit_tick(r->watch, "clustering", i, iterations, err);
        if (rc < 0 || (rc = assign(r, err)) < 0)
            return rc;
        unsigned repaired = r->repaired;
        uint32_t left = fill_empty(r);
        bool calm = r->repaired == repaired, over = i >= iterations;
        r->converged = calm && i > 0 && before - r->inertia <= tolerance * before;
        if (left > 0 && calm && r->opt->shrink) /* every distinct row is a cluster */
            return shrink(r, err);
        if (left > 0 && calm)
            return err_set(err, -ERR_CONFIG,
                           "%u clusters cannot be made of rows of which only %u are distinct: ask "
                           "for fewer clusters",
                           r->k, r->k - left);
        if ((over && calm) || r->converged)
            return 0;
        if (i >= iterations + EXTRA)
            return err_set(err, -ERR_CONFIG,
                           "%u clusters cannot all be filled, because the rows are too much alike: "
                           "ask for fewer clusters",
                           r->k);
        before = r->inertia;
        r->iterations++;
        update(r);
    }
}

/* Sculley's steps: a centre moves towards each row of a batch by 1 / (rows that it has seen). */
static void learn(struct run *r, const float *rows, const uint64_t *which, const uint32_t *labels,
                  uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        float *c = r->centroids + (size_t)labels[i] * r->d;
        double w = weight_of(r, which[i]);
        r->sizes[labels[i]] += w;
        float rate = (float)(w / r->sizes[labels[i]]);
        for (uint32_t j = 0; j < r->d; j++)
            c[j] += rate * (rows[(size_t)i * r->d + j] - c[j]);
    }
}

static int mini_batches(struct run *r, struct err *err)
{
    const uint32_t batch = r->n < r->opt->batch ? (uint32_t)r->n : r->opt->batch;
    const uint64_t steps =
        (r->opt->iterations ? r->opt->iterations : PASSES) * ((r->n + batch - 1) / batch);
    struct mem_arrays arrays = {0};
    float *rows = mem_arrays_add(&arrays, (size_t)batch * r->d, sizeof(float));
    uint64_t *which = mem_arrays_add(&arrays, batch, sizeof(*which));
    uint32_t *labels = mem_arrays_add(&arrays, batch, sizeof(*labels));
    int rc = arrays.failed ? err_set(err, -ENOMEM, "no memory for a mini-batch") : 0;
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
    mem_arrays_free(&arrays);
    return rc;
}

static int run_new(struct run *r, struct err *err)
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

static void run_free(struct run *r)
{
    mem_free(r->centroids);
    mem_free(r->bias);
    mem_free(r->labels);
    mem_free(r->dist);
    mem_free(r->sums);
    mem_free(r->sizes);
    affine_free(r->near);
}

static int fit_once(struct run *r, struct err *err)
{
    int rc = run_new(r, err);
    if (rc == 0)
        rc = choose_first(r, err);
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

static int check(const struct run *r, struct err *err)
{
    const struct kmeans_options *o = r->opt;
    if (r->n == 0 || r->d == 0 || r->k == 0)
        return err_set(err, -ERR_CONFIG, "%u clusters of %" PRIu64 " rows of %u columns", o->k,
                       r->n, r->d);
    if (o->k > r->n && !o->shrink)
        return err_set(err, -ERR_CONFIG,
                       "%u clusters cannot be made of only %" PRIu64
                       " rows: ask for fewer clusters",
                       o->k, r->n);
    if (o->balance != 0 && !(o->balance >= 1))
        return err_set(err, -ERR_CONFIG,
                       "the balance of the clusters, the largest size over the mean size, is %g, "
                       "expected at least 1",
                       o->balance);
    if (o->least * o->k > r->total)
        return err_set(err, -ERR_CONFIG,
                       "%u clusters of at least %g rows each cannot be made of only %g rows: ask "
                       "for fewer or smaller clusters",
                       o->k, o->least, r->total);
    uint64_t values = r->n * r->d, bad = fit_not_finite(r->x, values);
    if (bad < values)
        return err_set(err, -ERR_FORMAT, "row %" PRIu64 ", column %" PRIu64 " is not a number",
                       bad / r->d, bad % r->d);
    return 0;
}

static void take(struct run *r, struct kmeans *ret)
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
    struct run best = {0}, first = {.dev = dev,
                                    .x = x,
                                    .weights = weights,
                                    .n = n,
                                    .d = d,
                                    .k = opt->k < n || !opt->shrink ? opt->k : (uint32_t)n,
                                    .opt = opt,
                                    .watch = watch};
    for (uint64_t i = 0; i < n; i++)
        first.total += weight_of(&first, i);
    int rc = check(&first, err);
    unsigned restarts = opt->restarts ? opt->restarts : 1;
    for (unsigned i = 0; rc == 0 && i < restarts; i++) {
        struct run r = first;
        r.seed = rng_mix(opt->seed, rng_mix(STREAM_RESTART, i));
        rc = fit_once(&r, err);
        if (rc == 0 && (!best.near || r.inertia < best.inertia)) {
            run_free(&best);
            best = r;
        } else {
            run_free(&r);
        }
    }
    if (rc == 0)
        rc = balance(&best, err);
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
