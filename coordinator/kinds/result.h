/* What results of several kinds have in common. */
#ifndef COORDINATOR_KINDS_RESULT_H
#define COORDINATOR_KINDS_RESULT_H

#include "common/base/hash.h"
#include "coordinator/job/alike.h"
#include "coordinator/state/core.h"
#include "proto/skerry.pb-c.h"

#define RESULT_SECONDS_MAX 1e9f /* no task takes longer, and their sums in ms are numbers */

/* A blob that a report names: it must be in the store and have the size it names. */
int result_blob(struct coordinator *co, const Skerry__V1__Blob *b, const char *what,
                struct blob_ref *ret, struct err *err);
/* Records the figures that came with a result. */
void result_rows(struct coordinator *co, struct job *j, const struct task *t,
                 const Skerry__V1__ReportRequest *r);

/* Notes that t's worker has the version that it has measured or drawn. */
void result_drawn(struct job *j, const struct task *t);

/* The shard of job j that a report names; the numbers that are added up are within their bounds. */
int result_shard(struct coordinator *co, const struct job *j, const Skerry__V1__ShardInfo *s,
                 struct shard_rec *ret, struct err *err);

/* Adds what a result names to the hash by which two of them are compared (agree.h). */
void result_hash_blob(struct hash *h, const struct blob_ref *b);
void result_hash_shards(struct hash *h, const struct shard_rec *made, size_t n);
/* Must another worker make the file of t's result again (agree.h)?  As kind.apply: 0: no;
 * KIND_WAITS; or negative. */
int result_file_waits(struct coordinator *co, struct job *j, struct task *t,
                      const struct blob_ref *made, enum alike_of of, struct err *err);

#endif
