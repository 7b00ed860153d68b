/* Events and their subscribers. */
#ifndef COORDINATOR_EVENT_H
#define COORDINATOR_EVENT_H

#include "common/base/base.h"

struct grid_rec;
struct metric_rec;
struct round_rec;

enum event_kind {
    EVENT_JOB = 1,
    EVENT_WORKER,
    EVENT_ROUND,
    EVENT_LOSS,
    EVENT_SAMPLE,
    EVENT_LOG,
    EVENT_TEXT /* a running SAMPLE task has written more text */
};

/* An event; the subscriber looks up the details. */
struct event {
    enum event_kind kind;
    uint64_t job_id, worker_id, task_id;
    const struct round_rec *round;   /* ROUND */
    const struct metric_rec *metric; /* LOSS */
    const struct grid_rec *sample;   /* SAMPLE */
    const char *text;                /* a sentence; LOSS: ""; TEXT: the new piece */
    uint64_t offset;                 /* TEXT: bytes of text before this piece */
};

#define EVENT_SUBSCRIBERS_MAX 8
/* Must not call commands. */
typedef void (*event_fn)(void *arg, const struct event *e);

/* Called on the loop thread once all changes made before the request are durable (rc 0), never
 * before the request has returned.  rc -ERR_CANCELLED: the daemon stops first.  A full disk delays
 * it. */
typedef void (*durable_fn)(void *arg, int rc);

#endif
