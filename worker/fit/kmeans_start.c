/* k-means++: each new centre is a row drawn in proportion to its squared distance to the
 * nearest one so far; of a few drawn the one that lowers the sum most. */
#include <errno.h>
#include <float.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/fit/fit.h"
#include "worker/fit/kmeans_impl.h"

#define SAMPLE_ROWS 16384     /* rows looked at, and */
#define SAMPLE_PER_CLUSTER 16 /* so many more per cluster */
#define TRIES_BELOW 256       /* clusters up to which several rows are tried */
#define TRIES 4
#define STREAM_START 0x6b2b2bULL
#define TICK_EVERY 64

typedef float lanes __attribute__((vector_size(32)));

float kmeans_distance(const float *a, const float *b, uint32_t d)
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

struct start {
    const struct kmeans_run *r;
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
    const struct kmeans_run *r = s->r;
    double sum = 0;
    for (uint64_t i = 0; i < s->m; i++) {
        uint64_t row = row_of(s, i);
        float v = kmeans_distance(r->x + row * r->d, c, r->d);
        out[i] = v < s->dist[i] ? v : s->dist[i];
        sum += kmeans_weight(r, row) * (double)out[i];
    }
    return sum;
}

/* A row by weight times dist (of which `sum` is the sum), or by weight alone. */
static uint64_t draw(struct start *s, double sum, bool by_distance)
{
    double at = rng_uniform_double(&s->rng) * sum, reached = 0;
    uint64_t last = 0;
    for (uint64_t i = 0; i < s->m; i++) {
        uint64_t row = row_of(s, i);
        double v = kmeans_weight(s->r, row) * (by_distance ? (double)s->dist[i] : 1.0);
        if (v <= 0)
            continue;
        last = row;
        reached += v;
        if (reached > at)
            break;
    }
    return last;
}

static int grow(struct start *s, struct kmeans_run *r, struct err *err)
{
    const unsigned tries = r->k <= TRIES_BELOW ? TRIES : 1;
    double weight = 0;
    for (uint64_t i = 0; i < s->m; i++) {
        weight += kmeans_weight(r, row_of(s, i));
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

int kmeans_start(struct kmeans_run *r, struct err *err)
{
    struct start s = {.r = r, .m = SAMPLE_ROWS + (uint64_t)SAMPLE_PER_CLUSTER * r->k};
    s.m = s.m < r->n ? s.m : r->n;
    rng_init(&s.rng, r->seed, STREAM_START);
    s.dist = mem_try_array(s.m, sizeof(float));
    s.trial = mem_try_array(s.m, sizeof(float));
    s.best = mem_try_array(s.m, sizeof(float));
    int rc = s.dist && s.trial && s.best ? 0 : err_set(err, -ENOMEM, "no memory for k-means");
    if (rc == 0)
        rc = grow(&s, r, err);
    mem_free(s.dist);
    mem_free(s.trial);
    mem_free(s.best);
    return rc;
}
