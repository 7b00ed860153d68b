#include "worker/fit/partitioner.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/str.h"
#include "worker/fit/affine.h"
#include "worker/fit/fit.h"
#include "worker/fit/partitioner_impl.h"

#define BLOCK_SCORES (4u << 20) /* of one block */
#define CHUNK_ROWS 8192         /* projected at a time */
#define STREAM_RANDOM 0x72616e64ULL

static const char *const names[PARTITION_KINDS] = {"kmeans", "two_level", "product", "linear",
                                                   "random"};

const char *partition_kind_name(enum partition_kind kind)
{
    return kind < PARTITION_KINDS ? names[kind] : "unknown";
}

int partition_kind_parse(const char *name, enum partition_kind *ret)
{
    for (unsigned i = 0; i < PARTITION_KINDS; i++)
        if (strcmp(name, names[i]) == 0) {
            *ret = (enum partition_kind)i;
            return 0;
        }
    return -EINVAL;
}

struct partitioner *partitioner_new(enum partition_kind kind, uint32_t n_levels,
                                    const uint32_t *radix, uint64_t seed)
{
    struct partitioner *p = mem_alloc(sizeof(*p));
    p->kind = kind;
    p->seed = seed;
    p->n_levels = n_levels;
    p->k = 1;
    for (uint32_t l = 0; l < n_levels; l++) {
        p->radix[l] = radix[l];
        p->k *= radix[l];
    }
    return p;
}

int partitioner_level(struct partitioner *p, uint32_t l, uint32_t k, uint32_t at, uint32_t d)
{
    struct partition_level *v = &p->level[l];
    *v = (struct partition_level){.k = k, .at = at, .d = d};
    v->weight = mem_try_array((size_t)k * d, sizeof(float));
    v->intercept = mem_try_array(k, sizeof(float));
    p->n_fitted = p->n_fitted > l + 1 ? p->n_fitted : l + 1;
    return v->weight && v->intercept ? 0 : -ENOMEM;
}

void partitioner_free(struct partitioner *p)
{
    if (!p)
        return;
    for (uint32_t l = 0; l < p->n_fitted; l++) {
        mem_free(p->level[l].weight);
        mem_free(p->level[l].intercept);
    }
    pca_release(&p->input);
    mem_free(p->group);
    mem_free(p->bias);
    mem_free(p);
}

void partition_report_release(struct partition_report *r)
{
    if (!r)
        return;
    mem_free(r->sizes);
    *r = (struct partition_report){0};
}

void partition_targets(const float *scores, uint64_t n, uint32_t k, uint32_t *y)
{
    for (uint64_t i = 0; i < n; i++)
        affine_top(scores + i * k, k, 1, y + i, NULL);
}

/* ---- scores of projected rows ----------------------------------------------- */

int scorer_open(struct scorer *s, const struct partitioner *p, struct device *dev, struct err *err)
{
    *s = (struct scorer){.p = p, .rows = BLOCK_SCORES / p->k};
    s->rows = s->rows > CHUNK_ROWS ? CHUNK_ROWS : s->rows;
    int rc = 0;
    for (uint32_t l = 0; rc == 0 && l < p->n_fitted; l++) {
        const struct partition_level *v = &p->level[l];
        if ((rc = affine_new(dev, v->d, v->k, &s->level[l], err)) == 0)
            rc = affine_set(s->level[l], v->weight, v->intercept, err);
        if (rc == 0 && affine_rows(s->level[l]) < s->rows)
            s->rows = affine_rows(s->level[l]);
    }
    if (rc < 0)
        return rc;
    s->piece = mem_try_array((size_t)s->rows * p->input.r, sizeof(float));
    s->y = mem_try_array((size_t)s->rows * p->k, sizeof(float));
    s->spare = mem_try_array(p->k, sizeof(float));
    if (!s->piece || !s->y || !s->spare)
        return err_set(err, -ENOMEM, "no memory for scores of %u partitions", p->k);
    return 0;
}

void scorer_close(struct scorer *s)
{
    for (uint32_t l = 0; l < PARTITION_LEVELS_MAX; l++)
        affine_free(s->level[l]);
    mem_free(s->piece);
    mem_free(s->y);
    mem_free(s->spare);
    *s = (struct scorer){0};
}

/* Columns at..at+d-1 of z, dense. */
static const float *piece_of(struct scorer *s, const float *z, uint32_t rows, uint32_t l)
{
    const struct partition_level *v = &s->p->level[l];
    const uint32_t r = s->p->input.r;
    if (v->d == r)
        return z;
    for (uint32_t i = 0; i < rows; i++)
        memcpy(s->piece + (size_t)i * v->d, z + (size_t)i * r + v->at, v->d * sizeof(float));
    return s->piece;
}

/* A row's scores so far, one per prefix, times the digits of the next level: y (prefixes*k). */
static void expand(struct scorer *s, float *y, uint32_t prefixes, const float *digit, uint32_t k)
{
    memcpy(s->spare, y, prefixes * sizeof(float));
    for (uint32_t i = 0; i < prefixes; i++)
        for (uint32_t j = 0; j < k; j++)
            y[(size_t)i * k + j] = s->spare[i] + digit[j];
}

/* The best fine centroid of each partition. */
static void gather(const struct partitioner *p, const float *fine, float *y)
{
    for (uint32_t k = 0; k < p->k; k++)
        y[k] = -3.4e38f;
    for (uint32_t f = 0; f < p->level[0].k; f++)
        if (fine[f] > y[p->group[f]])
            y[p->group[f]] = fine[f];
}

int scorer_block(struct scorer *s, const float *z, uint32_t rows, bool priced, const float **ret_y,
                 struct err *err)
{
    const struct partitioner *p = s->p;
    uint32_t prefixes = 1;
    for (uint32_t l = 0; l < p->n_fitted; l++) {
        const uint32_t k = p->level[l].k;
        const float *score;
        int rc = affine_block(s->level[l], piece_of(s, z, rows, l), rows, &score, err);
        if (rc < 0)
            return rc;
        for (uint32_t i = 0; i < rows; i++) {
            float *y = s->y + (size_t)i * p->k;
            const float *row = score + (size_t)i * k;
            if (p->kind == PARTITION_TWO_LEVEL)
                gather(p, row, y);
            else if (l == 0)
                memcpy(y, row, k * sizeof(float));
            else
                expand(s, y, prefixes, row, k);
        }
        prefixes *= k;
    }
    for (size_t i = 0; priced && i < rows; i++)
        for (uint32_t k = 0; k < p->k; k++)
            s->y[i * p->k + k] += p->bias[k];
    *ret_y = s->y;
    return 0;
}

/* ---- features in, partitions out ---------------------------------------------- */

/* A window of a source: what is projected at a time. */
struct window {
    const struct fit_source *x;
    uint64_t at;
};

static int read_window(const struct fit_source *s, uint64_t first, uint32_t count, float *out,
                       struct err *err)
{
    const struct window *w = s->arg;
    return w->x->read(w->x, w->at + first, count, out, err);
}

typedef void take_fn(void *arg, uint64_t row, const float *y, uint32_t k);

static int each_row(const struct partitioner *p, struct device *dev, const struct fit_source *x,
                    take_fn *take, void *arg, struct err *err)
{
    if (p->kind == PARTITION_RANDOM || x->d != p->input.d)
        return err_set(err, -ERR_CONFIG,
                       "features of %u columns where this %s partitioner knows %u", x->d,
                       partition_kind_name(p->kind), p->input.d);
    struct scorer s = {0};
    float *z = mem_try_array((size_t)CHUNK_ROWS * p->input.r, sizeof(float));
    int rc = z ? scorer_open(&s, p, dev, err) : err_set(err, -ENOMEM, "no memory for features");
    for (uint64_t at = 0; rc == 0 && at < x->n; at += CHUNK_ROWS) {
        uint32_t count = x->n - at < CHUNK_ROWS ? (uint32_t)(x->n - at) : CHUNK_ROWS;
        const struct window w = {.x = x, .at = at};
        const struct fit_source chunk = {.n = count, .d = x->d, .read = read_window, .arg = &w};
        rc = pca_apply(&p->input, dev, &chunk, z, err);
        for (uint32_t done = 0; rc == 0 && done < count; done += s.rows) {
            uint32_t rows = count - done < s.rows ? count - done : s.rows;
            const float *y;
            rc = scorer_block(&s, z + (size_t)done * p->input.r, rows, true, &y, err);
            for (uint32_t i = 0; rc == 0 && i < rows; i++)
                take(arg, at + done + i, y + (size_t)i * p->k, p->k);
        }
    }
    scorer_close(&s);
    mem_free(z);
    return rc;
}

struct tops {
    uint32_t top;
    uint32_t *index;
};

static void take_top(void *arg, uint64_t row, const float *y, uint32_t k)
{
    const struct tops *t = arg;
    affine_top(y, k, t->top, t->index + row * t->top, NULL);
}

/* top distinct partitions from a hash of the id: as good as drawn without replacement. */
static void random_top(const struct partitioner *p, uint64_t id, uint32_t top, uint32_t *index)
{
    struct rng r;
    rng_init(&r, p->seed, rng_mix(STREAM_RANDOM, id));
    for (uint32_t i = 0; i < top;) {
        uint32_t k = (uint32_t)rng_below(&r, p->k), j = 0;
        while (j < i && index[j] != k)
            j++;
        if (j == i)
            index[i++] = k;
    }
}

int partitioner_assign(const struct partitioner *p, struct device *dev, const struct fit_source *x,
                       const uint64_t *ids, uint64_t n, uint32_t top, uint32_t *index,
                       struct err *err)
{
    if (top == 0 || top > p->k)
        return err_set(err, -ERR_CONFIG, "an overlap of %u: there are %u partitions", top, p->k);
    if (p->kind == PARTITION_RANDOM) {
        if (!ids)
            return err_set(err, -EINVAL, "a random partition needs the ids of the samples");
        for (uint64_t i = 0; i < n; i++)
            random_top(p, ids[i], top, index + i * top);
        return 0;
    }
    if (!x || x->n != n)
        return err_set(err, -EINVAL, "features of %" PRIu64 " rows for %" PRIu64 " samples",
                       x ? x->n : 0, n);
    struct tops t = {.top = top, .index = index};
    return each_row(p, dev, x, take_top, &t, err);
}

static void take_scores(void *arg, uint64_t row, const float *y, uint32_t k)
{
    memcpy((float *)arg + row * k, y, k * sizeof(float));
}

int partitioner_scores(const struct partitioner *p, struct device *dev, const struct fit_source *x,
                       float *scores, struct err *err)
{
    return each_row(p, dev, x, take_scores, scores, err);
}
