/* Jobs and workers in text, for people.  The objects are what GET /v1/jobs/{id} and an item of
 * GET /v1/workers hold; nothing is asked of the coordinator here. */
#ifndef CLI_SHOW_H
#define CLI_SHOW_H

#include <jansson.h>

#include "common/base/base.h"

#define SHOW_TROUBLE_MAX 288

/* "rows" of a text job, else "images": what its speed counts. */
const char *show_unit(const json_t *job);
/* The stage and its tasks, "features 3/9"; only the state where it has no tasks. */
int show_stage(const json_t *job, char *out, size_t cap);
/* Its state; "paused" where a person has paused it. */
const char *show_state(const json_t *job);
/* Why it does not go on, "stalled: ..." or who paused it; "": it does.  Returns out. */
const char *show_trouble(const json_t *job, char out[SHOW_TROUBLE_MAX]);
/* A job: what it is at, its paths, partitions and figures, and what it waits for. */
void show_job(const json_t *job, FILE *out);
/* What waits, why, and how long at most. */
void show_waiting(const json_t *list, FILE *out);
/* Workers in a table, then those of their devices that are in trouble. */
void show_workers(const json_t *list, FILE *out);
/* All about a worker: its state, release, address and bytes, and how its devices are. */
void show_worker(const json_t *worker, FILE *out);

/* An amount, for people: small ones keep two digits that count.  Returns out. */
const char *show_dollars(double x, char out[STR_HUMAN_MAX]);

#endif
