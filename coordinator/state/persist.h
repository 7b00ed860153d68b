/* The state as rows: the schema, what has changed as rows to be written, and loading all of them.
 *
 * persist_load() fills an empty state from the file: leases come back as they were (the holder
 * has a grace to return), what is marked (m) is zero.  Metrics are no part of the state but a
 * log beside it.  Loop thread. */
#ifndef COORDINATOR_PERSIST_H
#define COORDINATOR_PERSIST_H

#include "common/base/base.h"
#include "coordinator/state/state.h"
#include "coordinator/state/store.h"

/* The history of a job in the store is bounded, so that a job without an end has a database that
 * does not grow: of loss points, rounds and evaluations the newest are kept and ever fewer of the
 * older ones, of records of rounds job_rounds_max(), of versions those that have blobs, of ended
 * tasks TASKS_ENDED_MAX. */
#define METRIC_POINTS_MAX 20000
#define METRIC_ROUNDS_MAX 4096 /* and a quarter more between two looks */

extern const struct store_schema persist_schema;

/* Queues the rows of all that has changed since the last call (mark.h): before every commit.
 * s NULL: all is as the store has it. */
void persist_changes(struct store *s, struct state *st);

/* Queues a line of the metrics. */
void save_metric(struct store *s, uint64_t job_id, const struct metric_rec *m);
/* Keeps at most METRIC_POINTS_MAX loss points; call it when a quarter of that has come since. */
void save_points_thinned(struct store *s, const struct job *j);
/* Keeps at most METRIC_ROUNDS_MAX lines of rounds and evaluations, or 128 of each path of more than
 * 32; call it after each round of a path, of which there are so many now. */
void save_rounds_thinned(struct store *s, const struct job *j, uint32_t rounds);

/* Fills an empty state.  A row that makes no sense fails with its table and id. */
int persist_load(struct store *s, struct state *st, struct err *err);

/* The job's metrics with n > after, at most limit. */
int persist_metrics(struct store *s, uint64_t job_id, uint64_t after, size_t limit, metric_fn fn,
                    void *arg, struct err *err);
/* How many loss points the store holds.  For tests. */
uint64_t persist_metric_points(struct store *s, uint64_t job_id);

#endif
