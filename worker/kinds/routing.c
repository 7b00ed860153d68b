#include "worker/kinds/routing.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/kinds/stage.h"

/* ---- the table ------------------------------------------------------------------- */

static int allocate(struct routing *r, struct err *err)
{
    r->logp = mem_try_array(r->n * r->paths, r->columns * sizeof(float));
    r->tokens = mem_try_array(r->n, r->columns * sizeof(int32_t));
    r->bytes = mem_try_array(r->n, sizeof(int32_t));
    return r->logp && r->tokens && r->bytes
               ? 0
               : err_set(err, -ENOMEM, "no memory for the scores of %u paths", r->paths);
}

/* Scores of path p on the rows from `first` on. */
static int take(struct routing *r, const struct work *w, const Skerry__V1__Blob *blob, uint32_t p,
                uint64_t first, uint32_t n, struct err *err)
{
    struct scores s;
    char path[CACHE_PATH_MAX];
    work_blob_path(w, blob->sha256.data, path);
    int rc = scores_open(path, n, &s, err);
    if (rc < 0)
        return rc;
    if (r->columns == 0) {
        r->columns = s.columns;
        rc = allocate(r, err);
    }
    if (rc == 0 && s.columns != r->columns)
        rc = err_set(err, -ERR_FORMAT, "%s: %u columns of scores, others have %u", path, s.columns,
                     r->columns);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        for (uint32_t c = 0; c < r->columns; c++) {
            r->logp[((first + i) * r->paths + p) * r->columns + c] = scores_logp(&s, i, c);
            r->tokens[(first + i) * r->columns + c] = scores_tokens(&s, i, c);
        }
        r->bytes[first + i] = scores_bytes(&s, i);
    }
    scores_close(&s);
    return rc;
}

int routing_open(const struct work *w, const struct features *f, bool holdout, struct routing *ret,
                 struct err *err)
{
    const Skerry__V1__ClusterTask *t = w->task->cluster;
    struct routing r = {.features = f};
    size_t *at = mem_try_array(t->n_scored + 1, sizeof(*at)); /* among the scored */
    r.files = mem_try_array(t->n_scored + 1, sizeof(*r.files));
    int rc = at && r.files ? 0 : err_set(err, -ENOMEM, "no memory for %zu shards", t->n_scored);
    r.paths = t->n_scored ? (uint32_t)(t->n_scores / t->n_scored) : 0;
    for (size_t i = 0; rc == 0 && i < t->n_scored; i++) {
        if ((t->holdout[t->scored[i]] != 0) != holdout)
            continue;
        at[r.n_files] = i;
        r.files[r.n_files++] = t->scored[i];
        r.n += t->counts[t->scored[i]];
    }
    uint64_t first = 0;
    for (size_t i = 0; rc == 0 && i < r.n_files; i++) {
        const uint32_t n = t->counts[r.files[i]];
        for (uint32_t p = 0; rc == 0 && p < r.paths; p++)
            rc = take(&r, w, t->scores[p * t->n_scored + at[i]], p, first, n, err);
        first += n;
    }
    mem_free(at);
    if (rc < 0) {
        routing_release(&r);
        return rc;
    }
    *ret = r;
    return 0;
}

void routing_release(struct routing *r)
{
    mem_free(r->files);
    mem_free(r->logp);
    mem_free(r->tokens);
    mem_free(r->bytes);
    *r = (struct routing){0};
}

/* Sum of the columns from..columns-1 of path p in a row. */
static double sum_from(const struct routing *r, uint64_t row, uint32_t p, uint32_t from)
{
    const float *v = r->logp + (row * r->paths + p) * r->columns;
    double sum = 0;
    for (uint32_t c = from; c < r->columns; c++)
        sum += (double)v[c];
    return sum;
}

static uint32_t best_from(const struct routing *r, uint64_t row, uint32_t from)
{
    uint32_t best = 0;
    double most = sum_from(r, row, 0, from);
    for (uint32_t p = 1; p < r->paths; p++) {
        double v = sum_from(r, row, p, from);
        if (v > most) {
            most = v;
            best = p;
        }
    }
    return best;
}

int routing_targets(const struct routing *r, uint32_t *y, struct err *err)
{
    if (r->n == 0)
        return err_set(err, -ERR_CONFIG, "there is no sample kept for routers to learn from");
    for (uint64_t i = 0; i < r->n; i++)
        y[i] = best_from(r, i, 0);
    return 0;
}

/* ---- evaluation -------------------------------------------------------------------- */

/* What a sum of log-probabilities is shown as. */
struct measure {
    double units;
    const char *unit;
};

static struct measure measure_of(const struct routing *r)
{
    double bytes = 0, tokens = 0;
    for (uint64_t i = 0; i < r->n; i++) {
        bytes += r->bytes[i];
        for (uint32_t c = 0; c < r->columns; c++)
            tokens += r->tokens[i * r->columns + c];
    }
    if (bytes > 0)
        return (struct measure){bytes * log(2), "bit/byte"};
    return (struct measure){tokens > 0 ? tokens : 1, "nat/token"};
}

/* Partitions of the prefixes. */
static int route_once(const struct routing *r, struct device *dev, const struct partitioner *p,
                      uint32_t *route, struct err *err)
{
    struct features_rows rows;
    int rc = features_rows_init(&rows, r->features, r->files, r->n_files, err);
    uint64_t *ids = rc == 0 ? mem_try_array(r->n, sizeof(*ids)) : NULL;
    if (rc == 0 && !ids)
        rc = err_set(err, -ENOMEM, "no memory for %" PRIu64 " samples", r->n);
    if (rc == 0) {
        features_rows_ids(&rows, ids);
        rc = partitioner_assign(p, dev, &rows.source, ids, r->n, 1, route, err);
    }
    mem_free(ids);
    features_rows_release(&rows);
    return rc;
}

/* Chunks of rows that something follows, as a matrix. */
struct chunks {
    float *x;      /* (n,d) */
    uint64_t *row; /* (n) of the table */
    uint32_t *column;
    uint64_t n;
};

static void chunks_release(struct chunks *c)
{
    mem_free(c->x);
    mem_free(c->row);
    mem_free(c->column);
    *c = (struct chunks){0};
}

static bool follows(const struct routing *r, uint64_t row, uint32_t column)
{
    for (uint32_t c = column + 1; c < r->columns; c++)
        if (r->tokens[row * r->columns + c] > 0)
            return true;
    return false;
}

static int chunks_open(const struct routing *r, struct chunks *ret, struct err *err)
{
    struct chunks v = {0};
    const uint32_t d = r->features->d;
    uint64_t n = 0, first = 0, at = 0;
    for (uint64_t i = 0; i < r->n; i++)
        for (uint32_t c = 0; c < r->columns; c++)
            n += follows(r, i, c);
    v.x = mem_try_array(n + 1, d * sizeof(float));
    v.row = mem_try_array(n + 1, sizeof(*v.row));
    v.column = mem_try_array(n + 1, sizeof(*v.column));
    if (!v.x || !v.row || !v.column) {
        chunks_release(&v);
        return err_set(err, -ENOMEM, "no memory for %" PRIu64 " chunks", n);
    }
    for (size_t f = 0; f < r->n_files; f++) {
        const struct features_file *file = &r->features->files[r->files[f]];
        for (uint32_t i = 0; i < file->n; i++)
            for (uint32_t c = 0; c < r->columns && c < file->columns; c++) {
                if (!follows(r, first + i, c))
                    continue;
                features_chunk(r->features, r->files[f], i, c, v.x + at * d);
                v.row[at] = first + i;
                v.column[at++] = c;
            }
        first += file->n;
    }
    v.n = at;
    *ret = v;
    return 0;
}

/* A router from chunks of the rows that were kept for it: which path is best for all that
 * follows. */
static int fit_chunks(struct work *w, struct device *dev, const struct routing *train,
                      struct partitioner **ret, double *ret_accuracy, struct err *err)
{
    struct chunks c;
    struct partition_report report = {0};
    const struct fit_watch watch = stage_watch(w);
    struct partition_options opt = {.n_levels = (uint32_t)w->task->cluster->n_levels,
                                    .seed = w->spec.seed,
                                    .pca = (uint32_t)w->spec.partition.dims,
                                    .feature = "chunks"};
    int rc = chunks_open(train, &c, err);
    if (rc < 0)
        return rc;
    memcpy(opt.radix, w->task->cluster->levels, opt.n_levels * sizeof(uint32_t));
    uint32_t *y = mem_try_array(c.n + 1, sizeof(*y));
    if (!y)
        rc = err_set(err, -ENOMEM, "no memory for %" PRIu64 " chunks", c.n);
    for (uint64_t i = 0; rc == 0 && i < c.n; i++)
        y[i] = best_from(train, c.row[i], c.column[i] + 1);
    if (rc == 0) {
        struct fit_source x;
        const struct linear_targets targets = {.y = y};
        fit_source_memory(&x, c.x, c.n, train->features->d);
        rc = partitioner_fit_linear(dev, &x, &targets, &opt, &watch, ret, &report, err);
    }
    *ret_accuracy = report.accuracy;
    partition_report_release(&report);
    mem_free(y);
    chunks_release(&c);
    return rc;
}

/* route (n,columns): the first column by once, each other by the chunk before it. */
static int route_chunks(const struct routing *r, struct device *dev, const struct partitioner *p,
                        const uint32_t *once, uint32_t *route, double *ret_right, struct err *err)
{
    struct chunks c;
    struct fit_source x;
    uint64_t right = 0;
    int rc = chunks_open(r, &c, err);
    if (rc < 0)
        return rc;
    uint32_t *to = mem_try_array(c.n + 1, sizeof(*to));
    if (!to)
        rc = err_set(err, -ENOMEM, "no memory for %" PRIu64 " chunks", c.n);
    fit_source_memory(&x, c.x, c.n, r->features->d);
    if (rc == 0)
        rc = partitioner_assign(p, dev, &x, NULL, c.n, 1, to, err);
    for (uint64_t i = 0; rc == 0 && i < r->n; i++)
        for (uint32_t k = 0; k < r->columns; k++)
            route[i * r->columns + k] = once[i];
    for (uint64_t i = 0; rc == 0 && i < c.n; i++) {
        route[c.row[i] * r->columns + c.column[i] + 1] = to[i];
        right += to[i] == best_from(r, c.row[i], c.column[i] + 1);
    }
    *ret_right = c.n ? (double)right / (double)c.n : 0;
    mem_free(to);
    chunks_release(&c);
    return rc;
}

static void rows_once(struct work *w, const struct routing *r, const uint32_t *once)
{
    const struct measure m = measure_of(r);
    double routed = 0, oracle = 0, single = -HUGE_VAL;
    uint64_t right = 0;
    for (uint64_t i = 0; i < r->n; i++) {
        uint32_t best = best_from(r, i, 0);
        routed += sum_from(r, i, once[i], 0);
        oracle += sum_from(r, i, best, 0);
        right += best == once[i];
    }
    for (uint32_t p = 0; p < r->paths; p++) {
        double sum = 0;
        for (uint64_t i = 0; i < r->n; i++)
            sum += sum_from(r, i, p, 0);
        single = sum > single ? sum : single;
    }
    work_row(w, -routed / m.units, m.unit, "routed once");
    work_row(w, -oracle / m.units, m.unit, "best path in hindsight");
    work_row(w, -single / m.units, m.unit, "best single path");
    work_row(w, (double)right / (double)r->n, "", "routed to the best path");
}

static int rows_chunks(struct work *w, struct device *dev, const struct routing *train,
                       const struct routing *held, const uint32_t *once, struct err *err)
{
    const struct measure m = measure_of(held);
    struct partitioner *p = NULL;
    double sum = 0, right = 0, accuracy = 0;
    uint32_t *route = mem_try_array(held->n, held->columns * sizeof(*route));
    int rc = route ? fit_chunks(w, dev, train, &p, &accuracy, err)
                   : err_set(err, -ENOMEM, "no memory for routes");
    if (rc == 0)
        rc = route_chunks(held, dev, p, once, route, &right, err);
    for (uint64_t i = 0; rc == 0 && i < held->n; i++)
        for (uint32_t c = 0; c < held->columns; c++)
            sum += (double)held
                       ->logp[(i * held->paths + route[i * held->columns + c]) * held->columns + c];
    if (rc == 0) {
        work_row(w, -sum / m.units, m.unit, "routed every %u tokens", w->task->cluster->chunk);
        work_row(w, right, "", "chunks routed to the best path");
        work_row(w, accuracy, "", "router's accuracy on its own chunks");
    }
    partitioner_free(p);
    mem_free(route);
    return rc;
}

static bool has_chunks(const struct routing *r)
{
    bool all = r->n > 0;
    for (size_t i = 0; i < r->n_files; i++)
        all = all && r->features->files[r->files[i]].chunks;
    return all;
}

int routing_evaluate(struct work *w, struct device *dev, const struct partitioner *p,
                     const struct routing *train, const struct routing *held, struct err *err)
{
    if (held->n == 0)
        return err_set(err, -ERR_CONFIG, "there is no held-out sample to evaluate routing on");
    uint32_t *once = mem_try_array(held->n, sizeof(*once));
    int rc = once ? route_once(held, dev, p, once, err)
                  : err_set(err, -ENOMEM, "no memory for %" PRIu64 " routes", held->n);
    if (rc == 0)
        rows_once(w, held, once);
    if (rc == 0 && held->columns > 1 && has_chunks(train) && has_chunks(held) &&
        train->columns == held->columns)
        rc = rows_chunks(w, dev, train, held, once, err);
    mem_free(once);
    return rc;
}
