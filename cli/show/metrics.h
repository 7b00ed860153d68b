/* The series of a job: GET /v1/jobs/{id}/metrics, record by record. */
#ifndef CLI_METRICS_H
#define CLI_METRICS_H

#include <jansson.h>

#include "common/base/base.h"

struct cli;

/* A MetricRecord of docs/openapi.yaml, and its line, len bytes.  A negative code ends it. */
typedef int (*metrics_fn)(void *arg, const json_t *record, const char *line, size_t len,
                          struct err *err);

/* All records behind *after in their order; *after follows them.  Pages of the coordinator's. */
int metrics_each(struct cli *cli, uint64_t job, uint64_t *after, metrics_fn fn, void *arg,
                 struct err *err);

#endif
