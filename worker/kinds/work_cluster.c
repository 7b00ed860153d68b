/* CLUSTER: the features of all samples become a partitioner and the partitions of all samples.
 *
 *   without scores   by partition.method: k-means in one level or two, product, random
 *   with scores      discriminatively: a classifier of the best-scoring path on the samples
 *                    kept for routers; its bias gives each path its share of all samples
 *   evaluate         no new partitions: figures on routing held-out samples
 *
 * Fits on samples that are not held out, and assigns all samples. */

#include "common/base/base.h"
#include "common/job/family.h"
#include "worker/engine/engine.h"
#include "worker/engine/task_files.h"
#include "worker/fit/partitioner.h"
#include "worker/engine/rows.h"
#include "worker/order/task_check.h"
#include "worker/kinds/kinds.h"

_Static_assert(TASK_DIGITS_MAX <= PARTITION_LEVELS_MAX, "a task's levels fit");

/* A partition has at least 1/LEAST_SHARE of the mean size.  Cells of a product are empty if its
 * digits are correlated, and are filled arbitrarily, with enough samples for training. */
#define LEAST_SHARE 20
#define LEAST_SHARE_PRODUCT 4

static int tick(void *arg, const char *what, uint32_t done, uint32_t total, struct err *err)
{
    struct work *w = arg;
    progress_activity(&w->progress, "%s", what);
    progress_units(&w->progress, done, total);
    return work_stopped(w, err) ? -ERR_CANCELLED : 0;
}

static struct fit_watch watch_of(struct work *w)
{
    return (struct fit_watch){.tick = tick, .arg = w};
}

struct routing {
    const struct features *features; /* borrowed */
    uint32_t *files;                 /* (n_files) indices of scored feature files, ascending */
    size_t n_files;
    uint64_t n; /* their rows */
    uint32_t paths, columns;
    float *logp;     /* (n,paths,columns) */
    int32_t *tokens; /* (n,columns) */
    int32_t *bytes;  /* (n) */
};

/* ---- what paths scored, as a table
 * ------------------------------------------------------------------- */

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
    int rc = scores_read(path, n, &s, err);
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
            r->logp[((first + i) * r->paths + p) * r->columns + c] = s.logp[i * s.columns + c];
            r->tokens[(first + i) * r->columns + c] = s.tokens[i * s.columns + c];
        }
        r->bytes[first + i] = s.bytes[i];
    }
    scores_release(&s);
    return rc;
}

static void routing_release(struct routing *r)
{
    mem_free(r->files);
    mem_free(r->logp);
    mem_free(r->tokens);
    mem_free(r->bytes);
    *r = (struct routing){0};
}

/* Reads the scores of the held-out shards, or of the others.  Without such shards n is 0. */
static int routing_open(const struct work *w, const struct features *f, bool holdout,
                        struct routing *ret, struct err *err)
{
    const Skerry__V1__ClusterTask *t = w->task->cluster;
    struct routing r = {.features = f};
    size_t *at = mem_try_array(t->n_scored + 1, sizeof(*at)); /* indices among the scored ones */
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

/* y (n) = the path with the highest sum in each row, the lowest of equal ones. */
static int routing_targets(const struct routing *r, uint32_t *y, struct err *err)
{
    if (r->n == 0)
        return err_set(err, -ERR_CONFIG, "there is no sample kept for routers to learn from");
    for (uint64_t i = 0; i < r->n; i++)
        y[i] = best_from(r, i, 0);
    return 0;
}

/* ---- how well ways of routing would have done
 * -------------------------------------------------------------------- */

/* The unit in which a sum of log-probabilities is shown. */
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

/* Chunks that are followed by others in their row, as a matrix. */
struct chunks {
    float *x;      /* (n,d) */
    uint64_t *row; /* (n) rows of the table */
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

/* Fits a router from a chunk to the best path for the rest of the row, on the rows kept for it. */
static int fit_chunks(struct work *w, struct device *dev, const struct routing *train,
                      struct partitioner **ret, double *ret_accuracy, struct err *err)
{
    struct chunks c;
    struct partition_report report = {0};
    const struct fit_watch watch = watch_of(w);
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

/* route (n,columns) = the first column from `once`, the others by the chunk before them. */
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

/* Rows of the task's result: bits per byte (nats per token if bytes are unknown) of the held-out
 * samples routed once by p, by hindsight, to the best single path and, with chunks, anew after each
 * chunk by a router that is fitted to `train`. */
static int routing_evaluate(struct work *w, struct device *dev, const struct partitioner *p,
                            const struct routing *train, const struct routing *held,
                            struct err *err)
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

/* ---- the task ---------------------------------------------------------------------- */

struct run {
    struct engine *e;
    struct work *w;
    const Skerry__V1__ClusterTask *t;
    struct features features;
    uint32_t *all, *fitted; /* indices of files */
    size_t n_fitted;
    struct features_rows all_rows, fit_rows;
    uint64_t *ids; /* ids of all rows; during the fit only of its rows */
    struct partitioner *p;
    struct partition_report report;
};

static int open_features(struct run *r, struct err *err)
{
    const Skerry__V1__ClusterTask *t = r->t;
    const size_t n = t->n_features;
    char *names = mem_try_array(n, CACHE_PATH_MAX);
    const char **paths = mem_try_array(n, sizeof(*paths));
    r->all = mem_try_array(n, sizeof(*r->all));
    r->fitted = mem_try_array(n, sizeof(*r->fitted));
    int rc = names && paths && r->all && r->fitted
                 ? 0
                 : err_set(err, -ENOMEM, "no memory for %zu files", n);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        char *path = names + i * CACHE_PATH_MAX;
        work_blob_path(r->w, t->features[i]->sha256.data, path);
        paths[i] = path;
        r->all[i] = (uint32_t)i;
        if (!t->holdout[i])
            r->fitted[r->n_fitted++] = (uint32_t)i;
    }
    if (rc == 0)
        rc = features_open(paths, t->counts, n, &r->features, err);
    mem_free(paths);
    mem_free(names);
    if (rc == 0)
        rc = features_rows_init(&r->all_rows, &r->features, r->all, n, err);
    if (rc == 0)
        rc = features_rows_init(&r->fit_rows, &r->features, r->fitted, r->n_fitted, err);
    if (rc == 0 && r->fit_rows.source.n == 0)
        rc = err_set(err, -ERR_CONFIG, "all samples are held out: none is left to partition");
    if (rc == 0 && !(r->ids = mem_try_array(r->features.n, sizeof(*r->ids))))
        rc = err_set(err, -ENOMEM, "no memory for %" PRIu64 " samples", r->features.n);
    return rc;
}

static void run_close(struct run *r)
{
    partitioner_free(r->p);
    partition_report_release(&r->report);
    features_rows_release(&r->all_rows);
    features_rows_release(&r->fit_rows);
    features_close(&r->features);
    mem_free(r->all);
    mem_free(r->fitted);
    mem_free(r->ids);
}

static enum partition_kind kind_of(const struct run *r)
{
    switch (r->w->spec.partition.method) {
    case JOB_METHOD_KMEANS:
        return PARTITION_KMEANS;
    case JOB_METHOD_TWO_LEVEL:
        return PARTITION_TWO_LEVEL;
    case JOB_METHOD_PRODUCT:
        return PARTITION_PRODUCT;
    case JOB_METHOD_RANDOM:
        return PARTITION_RANDOM;
    default:
        return r->t->n_levels > 1 ? PARTITION_PRODUCT : PARTITION_TWO_LEVEL;
    }
}

/* A path without samples cannot be trained, and one with hardly any is of no use. */
static struct partition_options options_of(const struct run *r)
{
    const struct job_partition *j = &r->w->spec.partition;
    const uint64_t n = r->fit_rows.source.n, k = r->w->task->partitions;
    const bool product = kind_of(r) == PARTITION_PRODUCT && r->t->n_scores == 0;
    const uint64_t least = n / k / (product ? LEAST_SHARE_PRODUCT : LEAST_SHARE);
    struct partition_options o = {
        .kind = kind_of(r),
        .n_levels = (uint32_t)r->t->n_levels,
        .seed = r->w->spec.seed,
        .pca = (uint32_t)j->dims,
        .balance = j->balance,
        .min_samples = least > 0 ? least : 1,
        .feature = job_features_name(job_features(&r->w->spec)),
    };
    memcpy(o.radix, r->t->levels, r->t->n_levels * sizeof(uint32_t));
    /* As many fine clusters as asked for, if there are four samples for each. */
    uint64_t fine = (uint64_t)j->fine;
    fine = fine > n / 4 ? n / 4 : fine;
    o.fine = (uint32_t)(fine < 4 * k ? (4 * k < n ? 4 * k : n) : fine);
    return o;
}

static int fit_features(struct run *r, struct err *err)
{
    const struct partition_options opt = options_of(r);
    const struct fit_watch watch = watch_of(r->w);
    features_rows_ids(&r->fit_rows, r->ids);
    return partitioner_fit(r->e->dev, &r->fit_rows.source, r->ids, &opt, &watch, &r->p, &r->report,
                           err);
}

static int open_previous(const struct run *r, struct partitioner **ret, struct err *err)
{
    char path[CACHE_PATH_MAX];
    work_blob_path(r->w, r->t->previous->sha256.data, path);
    int rc = partitioner_read(path, ret, err);
    if (rc == 0 && (*ret)->k != r->w->task->partitions) {
        rc = err_set(err, -ERR_FORMAT, "the previous partitioner has %u partitions, the job %u",
                     (*ret)->k, r->w->task->partitions);
        partitioner_free(*ret);
        *ret = NULL;
    }
    return rc;
}

/* share (K) = how often each path is a target, within the bounds of partitions' sizes, so that a
 * path that is behind for now still has samples to learn from. */
static void shares_of(const struct partition_options *opt, const struct run *r, const uint32_t *y,
                      uint64_t n, double *share)
{
    const uint32_t k = r->w->task->partitions;
    const double low = (double)opt->min_samples / (double)r->fit_rows.source.n;
    const double high = opt->balance > 0 ? opt->balance / k : 1;
    for (uint64_t i = 0; i < n; i++)
        share[y[i]] += 1 / (double)n;
    for (uint32_t round = 0; round < k; round++) { /* each round bounds at least one more */
        double bound = 0, rest = 0;
        for (uint32_t p = 0; p < k; p++) {
            share[p] = fmin(fmax(share[p], low), high);
            *(share[p] > low && share[p] < high ? &rest : &bound) += share[p];
        }
        for (uint32_t p = 0; p < k && rest > 0; p++)
            if (share[p] > low && share[p] < high)
                share[p] *= (1 - bound) / rest;
    }
    double sum = 0;
    for (uint32_t p = 0; p < k; p++)
        sum += share[p];
    for (uint32_t p = 0; p < k; p++)
        share[p] /= sum;
}

static int fit_scores(struct run *r, struct err *err)
{
    struct partition_options opt = options_of(r);
    const struct fit_watch watch = watch_of(r->w);
    struct routing table = {0};
    struct features_rows rows = {0};
    double *share = mem_try_array(r->w->task->partitions, sizeof(*share));
    uint32_t *y = NULL;
    int rc = share ? routing_open(r->w, &r->features, false, &table, err)
                   : err_set(err, -ENOMEM, "no memory for shares");
    if (rc == 0 && !(y = mem_try_array(table.n + 1, sizeof(*y))))
        rc = err_set(err, -ENOMEM, "no memory for %" PRIu64 " targets", table.n);
    if (rc == 0)
        rc = routing_targets(&table, y, err);
    if (rc == 0)
        shares_of(&opt, r, y, table.n, share);
    opt.min_samples = 0; /* the shares are the sizes */
    opt.balance = 0;
    if (rc == 0)
        rc = features_rows_init(&rows, &r->features, table.files, table.n_files, err);
    if (rc == 0) {
        const struct linear_targets targets = {
            .y = y, .share = share, .routed = &r->fit_rows.source};
        rc = partitioner_fit_linear(r->e->dev, &rows.source, &targets, &opt, &watch, &r->p,
                                    &r->report, err);
    }
    if (rc == 0) {
        work_row(r->w, r->report.accuracy, "", "router's accuracy");
        work_row(r->w, r->report.loss, "nat", "router's loss");
        work_row(r->w, (double)table.n, "samples", "router was fitted to");
    }
    features_rows_release(&rows);
    routing_release(&table);
    mem_free(y);
    mem_free(share);
    return rc;
}

/* Assigns all samples, and counts the training samples of each partition. */
static int assign(struct run *r, struct err *err)
{
    const uint64_t n = r->features.n;
    const uint32_t top = r->t->top, k = r->p->k;
    struct work_output *o = NULL;
    uint32_t *index = mem_try_array(n, top * sizeof(*index));
    r->w->result.sizes = mem_try_array(k, sizeof(uint64_t));
    r->w->result.n_sizes = k;
    int rc = index && r->w->result.sizes
                 ? 0
                 : err_set(err, -ENOMEM, "no memory for the partitions of %" PRIu64 " samples", n);
    features_rows_ids(&r->all_rows, r->ids);
    if (rc == 0)
        rc = partitioner_assign(r->p, r->e->dev, &r->all_rows.source, r->ids, n, top, index, err);
    for (size_t f = 0; rc == 0 && f < r->n_fitted; f++) {
        const struct features_file *file = &r->features.files[r->fitted[f]];
        for (uint64_t i = file->first * top; i < (file->first + file->n) * top; i++)
            r->w->result.sizes[index[i]]++;
    }
    if (rc == 0)
        rc = work_output_new(r->w, WORK_ASSIGNMENT, "assignment", &o, err);
    if (rc == 0)
        rc = assignment_write(o->path, index, n, top, o->sha256, &o->size, err);
    mem_free(index);
    return rc;
}

static int deliver(struct run *r, struct err *err)
{
    const struct partition_report *p = &r->report;
    struct work_output *o = NULL;
    int rc = work_output_new(r->w, WORK_RESULT, "partitioner", &o, err);
    if (rc == 0)
        rc = partitioner_write(r->p, o->path, o->sha256, &o->size, err);
    if (rc == 0)
        rc = assign(r, err);
    if (rc < 0)
        return rc;
    work_row(r->w, p->largest, "", "largest partition over the mean");
    work_row(r->w, (double)p->smallest, "samples", "smallest partition");
    work_row(r->w, (double)p->empty, "", "empty partitions");
    work_row(r->w, (double)p->repaired, "", "empty clusters repaired");
    work_row(r->w, p->gap, "", "samples beyond the sizes asked for");
    work_row(r->w, p->explained, "", "variance kept by PCA");
    r->w->result.samples = r->features.n;
    return 0;
}

static int evaluate(struct run *r, struct err *err)
{
    struct routing train = {0}, held = {0};
    struct partitioner *p = NULL;
    int rc = open_previous(r, &p, err);
    if (rc == 0)
        rc = routing_open(r->w, &r->features, false, &train, err);
    if (rc == 0)
        rc = routing_open(r->w, &r->features, true, &held, err);
    if (rc == 0)
        rc = routing_evaluate(r->w, r->e->dev, p, &train, &held, err);
    r->w->result.samples = held.n;
    routing_release(&train);
    routing_release(&held);
    partitioner_free(p);
    return rc;
}

/* ---- the message ---- */

static int check_blobs(Skerry__V1__Blob *const *blobs, size_t n, size_t max, const char *field,
                       struct err *err)
{
    int rc = task_check_count(n, max, field, err);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = task_check_blob(blobs[i], field, err);
    return rc;
}

/* The product of the levels must be the number of partitions. */
static int check_radix(const Skerry__V1__ClusterTask *c, uint32_t partitions, struct err *err)
{
    uint64_t product = 1;
    int rc = task_check_count(c->n_levels, TASK_DIGITS_MAX, "cluster.levels", err);
    for (size_t i = 0; i < c->n_levels && product <= partitions && rc == 0; i++)
        product *= c->levels[i];
    if (rc == 0 && (c->n_levels == 0 || product != partitions))
        rc = err_set(err, -ERR_FORMAT,
                     "task: cluster.levels do not multiply to %" PRIu32 " partitions", partitions);
    return rc;
}

/* There must be features of every shard. */
static int check_features(const Skerry__V1__ClusterTask *c, struct err *err)
{
    if (c->n_features == 0 || c->n_counts != c->n_features || c->n_holdout != c->n_features)
        return err_set(err, -ERR_FORMAT,
                       "task: cluster has %zu features, %zu counts and %zu holdout marks; one of "
                       "each is expected for every shard",
                       c->n_features, c->n_counts, c->n_holdout);
    for (size_t i = 0; i < c->n_counts; i++)
        if (c->counts[i] == 0 || c->counts[i] > TASK_SHARD_SAMPLES_MAX)
            return err_set(err, -ERR_LIMIT,
                           "task: cluster.counts[%zu] is %" PRIu32 ", expected 1..%u", i,
                           c->counts[i], TASK_SHARD_SAMPLES_MAX);
    return check_blobs(c->features, c->n_features, TASK_RANGES_MAX, "cluster.features", err);
}

/* There must be scores of every partition's path on every scored shard. */
static int check_scores(const Skerry__V1__ClusterTask *c, uint32_t partitions, struct err *err)
{
    int rc = task_check_count(c->n_scored, TASK_RANGES_MAX, "cluster.scored", err);
    if (rc == 0 && c->n_scores != (uint64_t)c->n_scored * partitions)
        rc = err_set(err, -ERR_FORMAT,
                     "task: cluster.scores has %zu blobs, expected %" PRIu32 " paths on %zu shards",
                     c->n_scores, partitions, c->n_scored);
    for (size_t i = 0; i < c->n_scored && rc == 0; i++)
        if (c->scored[i] >= c->n_features)
            rc = err_set(err, -ERR_LIMIT, "task: cluster.scored[%zu] is %" PRIu32 ", of %zu shards",
                         i, c->scored[i], c->n_features);
    if (rc == 0)
        rc = check_blobs(c->scores, c->n_scores, TASK_SCORES_MAX, "cluster.scores", err);
    if (rc == 0 && (c->n_scores > 0 || c->evaluate))
        rc = task_check_blob(c->previous, "cluster.previous", err);
    return rc;
}

static int check(const Skerry__V1__Task *t, struct err *err)
{
    const Skerry__V1__ClusterTask *c = t->cluster;
    int rc = task_check_partitions(t, err);
    if (rc == 0)
        rc = check_features(c, err);
    if (rc == 0)
        rc = check_radix(c, t->partitions, err);
    if (rc == 0 && (c->top == 0 || c->top > t->partitions))
        rc = err_set(err, -ERR_LIMIT, "task: cluster.top is %" PRIu32 ", of %" PRIu32 " partitions",
                     c->top, t->partitions);
    if (rc == 0)
        rc = task_check_tokens(c->chunk, "cluster.chunk", err);
    return rc < 0 ? rc : check_scores(c, t->partitions, err);
}

static int plan(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__ClusterTask *t = w->task->cluster;
    int rc = t->evaluate ? work_need_blob(w, t->previous, "the partitioner", err) : 0;
    for (size_t i = 0; rc == 0 && i < t->n_features; i++)
        rc = work_need_blob(w, t->features[i], "features", err);
    for (size_t i = 0; rc == 0 && i < t->n_scores; i++)
        rc = work_need_blob(w, t->scores[i], "scores", err);
    return rc;
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    struct run r = {.e = e, .w = w, .t = w->task->cluster};
    progress_activity(&w->progress, "clustering");
    int rc = open_features(&r, err);
    if (rc == 0 && r.t->evaluate) {
        rc = evaluate(&r, err);
    } else if (rc == 0) {
        rc = r.t->n_scores > 0 ? fit_scores(&r, err) : fit_features(&r, err);
        if (rc == 0)
            rc = deliver(&r, err);
    }
    run_close(&r);
    return rc;
}

const struct kind kind_cluster = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_CLUSTER,
    .name = "cluster",
    .part = offsetof(Skerry__V1__Task, cluster),
    .check = check,
    .plan = plan,
    .run = run,
};
