/* What the tasks of partitioning share (FEATURE, CLUSTER, SPLIT, SCORE), and EVAL with them. */
#ifndef WORKER_STAGE_H
#define WORKER_STAGE_H

#include "worker/fit/fit.h"
#include "worker/order/work.h"

struct err;
struct tokenizer;

#define STAGE_PREFIX 32 /* first tokens of a text, by which it is routed */

/* enum job_features of this job, auto resolved. */
int stage_features(const struct work *w);
/* Whether partitions are drawn by chance alone, so that nobody looks at features. */
bool stage_is_random(const struct work *w);

/* Runs of `chunk` tokens that a row of the job's texts has at most; 0 without chunks. */
uint32_t stage_columns(const struct work *w, uint32_t chunk);
/* Rows of text of one call: about so many tokens fill the device. */
unsigned stage_rows(const struct work *w);

/* Stops with the work and tells its progress. */
struct fit_watch stage_watch(struct work *w);

/* Bytes that a token stands for; special ones for none. */
size_t stage_token_bytes(const struct tokenizer *t, int32_t id);

#endif
