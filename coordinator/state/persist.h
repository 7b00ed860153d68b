/* The state as database rows: the schema, queueing of changed rows, and loading.
 *
 * persist_load() fills an empty state from the file: leases return as they were (their holders have
 * a grace period to reconnect), fields marked (m) are zero.  Metrics are not part of the state but
 * a log beside it.  Loop thread. */
#ifndef COORDINATOR_PERSIST_H
#define COORDINATOR_PERSIST_H

#include "common/base/base.h"
#include "coordinator/state/state.h"
#include "coordinator/state/store.h"

/* A job's history in the store is bounded, so that the database of an endless job does not grow. Of
 * loss points, rounds and evaluations the newest are kept, and ever fewer of the older ones; of
 * round records job_rounds_max(), of versions those that have blobs, of ended tasks
 * TASKS_ENDED_MAX. */
#define METRIC_POINTS_MAX 20000
#define METRIC_ROUNDS_MAX 4096 /* and a quarter more between two thinnings */

/* state.request_dollars as a counter, a whole number. */
#define PERSIST_SPENT "request_picodollars"
#define PERSIST_SPENT_UNIT 1e-12

extern const struct store_schema persist_schema;

/* Queues the rows of all records changed since the last call (mark.h); called before every commit.
 * s NULL: queues nothing, since the store has them all. */
void persist_changes(struct store *s, struct state *st);

/* Queues request_dollars, which grows too often for each change to be a row. */
void persist_spent(struct store *s, const struct state *st);
/* Counts the commit that will have the queued rows, if there are any. */
void persist_count(struct store *s, struct state *st);

/* Queues a record of the metrics, but a point of a curve only at the next persist_points(). */
void save_metric(struct store *s, struct job *j, const struct metric_rec *m);
/* The same as persist_changes(), with the points of curves that wait. */
void persist_points(struct store *s, struct state *st);
/* Thins loss points to METRIC_POINTS_MAX; call it when a quarter of that has been added. */
void save_points_thinned(struct store *s, const struct job *j);
/* Thins records of rounds and evaluations to METRIC_ROUNDS_MAX, or to 128 per path with more than
 * 32 paths; call it after each round of a path, of which there are `rounds` now. */
void save_rounds_thinned(struct store *s, const struct job *j, uint32_t rounds);

/* Fills an empty state.  A job with an invalid row, or with rows that contradict each other,
 * becomes unread (job.h).  On an invalid row that is of no job it fails and names the table and the
 * id. */
int persist_load(struct store *s, struct state *st, struct err *err);

/* The job's metrics with n > after, at most limit. */
int persist_metrics(struct store *s, uint64_t job_id, uint64_t after, size_t limit, metric_fn fn,
                    void *arg, struct err *err);

#endif
