/* The metrics of the coordinator, its jobs and its workers in the Prometheus
 * text format 0.0.4.  Every name starts with skerry_.  Loop thread. */
#ifndef COORDINATOR_HTTP_METRICS_H
#define COORDINATOR_HTTP_METRICS_H

struct blobstore;
struct buf;
struct coordinator;
struct http_counters;

/* Appends all metrics; those of workers and devices that do not fit are left out, which a comment
 * says.  -ERR_LIMIT or -ENOMEM: out is full without them.  store and http may be NULL. */
int http_metrics_write(struct coordinator *co, const struct blobstore *store,
                       const struct http_counters *http, struct buf *out);

#endif
