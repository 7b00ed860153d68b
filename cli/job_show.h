/* A job in text: what it is at, its paths, partitions and figures.  The objects are
 * what GET /v1/jobs/{id} answers. */
#ifndef CLI_JOB_SHOW_H
#define CLI_JOB_SHOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <jansson.h>

/* "rows" of a text job, else "images": what its speed counts. */
const char *job_show_unit(const json_t *job);
/* The stage and its tasks, "features 3/9"; only the state where it has no tasks. */
int job_show_stage(const json_t *job, char *out, size_t cap);
/* Everything, for people. */
void job_show(const json_t *job, FILE *out);

#endif
