/* The state as rows: one save function per record, and loading all of them.
 *
 * save_* queues the record as it is now (store.h); it is durable after the next
 * commit.  persist_load() fills an empty state from the file: leases come back
 * as they were (the holder has a grace to return), what is marked (m) in
 * state.h is zero.  Loop thread. */
#ifndef COORDINATOR_PERSIST_H
#define COORDINATOR_PERSIST_H

#include "coordinator/state/state.h"
#include "coordinator/state/store.h"

struct err;

#define METRIC_POINTS_MAX 20000 /* loss points of a job in the store */

extern const struct store_schema persist_schema;

void save_counters(struct store *s, const struct state *st);
void save_worker(struct store *s, const struct worker *w);
void save_worker_gone(struct store *s, uint64_t worker_id);
void save_verdict(struct store *s, uint64_t worker_id, const struct verdict *v);
void save_verdict_told(struct store *s, uint64_t worker_id, uint64_t task_id);
void save_job(struct store *s, const struct job *j);
void save_job_dataset(struct store *s, const struct job *j); /* classes, shards, bad samples */
void save_job_shard(struct store *s, const struct job *j, size_t n); /* j->shards[n] */
void save_job_scores(struct store *s, const struct job *j); /* all, in place of what is there */
void save_job_score(struct store *s, const struct job *j, size_t n); /* j->scores[n] */
void save_job_row(struct store *s, const struct job *j, size_t n);   /* j->rows[n] */
void save_job_parts(struct store *s, const struct job *j);           /* modules, paths, replicas */
void save_job_gone(struct store *s, uint64_t job_id);                /* and all that hangs on it */
void save_job_bad(struct store *s, const struct job *j, size_t n);   /* j->bad[n] */
void save_ledger(struct store *s, const struct job *j, uint32_t partition);
void save_module(struct store *s, const struct job *j, const struct module_rec *m);
void save_version(struct store *s, const struct module_rec *m, const struct version_rec *v);
void save_path(struct store *s, const struct job *j, uint32_t path); /* and its replicas */
void save_task(struct store *s, const struct task *t);               /* with its contributions */
void save_task_gone(struct store *s, uint64_t task_id);
void save_round(struct store *s, const struct job *j, const struct round_rec *r);
void save_grid(struct store *s, const struct job *j, const struct grid_rec *g);
void save_grid_gone(struct store *s, uint64_t task_id);
void save_metric(struct store *s, uint64_t job_id, const struct metric_rec *m);
/* Keeps the newest loss points and ever fewer of the older ones: at most
 * METRIC_POINTS_MAX; call it when a quarter of that has come since. */
void save_metrics_thinned(struct store *s, const struct job *j);

/* Fills an empty state.  A row that makes no sense fails with its table and id. */
int persist_load(struct store *s, struct state *st, struct err *err);

/* The job's metrics with n > after, at most limit. */
int persist_metrics(struct store *s, uint64_t job_id, uint64_t after, size_t limit, metric_fn fn,
                    void *arg, struct err *err);
/* How many loss points the store holds. */
uint64_t persist_metric_points(struct store *s, uint64_t job_id);

#endif
