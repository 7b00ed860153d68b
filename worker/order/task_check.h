/* Is a task that came over the wire one that this worker can run?
 *
 * A pure function of the message and the parsed job: limits of
 * proto/skerry.proto, presence of what the kind needs, lengths of hashes,
 * consistency with the job.  What passes may be used without further checks;
 * what does not is reported as a failed task with the sentence in err. */
#ifndef WORKER_TASK_CHECK_H
#define WORKER_TASK_CHECK_H

#include "proto/skerry.pb-c.h"

struct err;

#define TASK_SPEC_MAX (32u << 10)
#define TASK_MODULES_MAX 64
#define TASK_DELTAS_MAX 16
#define TASK_AHEAD_MAX 64
#define TASK_RANGES_MAX 4096
#define TASK_CLASSES_MAX 4096
#define TASK_LABELS_MAX 1024
#define TASK_URL_MAX 2048
#define TASK_NAME_MAX 256
#define TASK_SHARD_SAMPLES_MAX 65536
#define TASK_STEPS_MAX 1000000u
#define TASK_SECONDS_MAX 86400u
#define TASK_SIDE_MAX 16384u /* pixels of a sample grid's side */
#define TASK_VOCAB_MAX (1u << 20)
#define TASK_PROMPT_MAX 8192u
#define TASK_TOKENS_MAX 4096u /* of a text to generate */
#define TASK_TEXT_MAX 65536u  /* bytes of ReportRequest.text */
#define TASK_STREAM_MAX 4096u /* bytes of StreamRequest.text */
#define TASK_SCORES_MAX 65536
#define TASK_BLOCKS_MAX 256
#define TASK_DIGITS_MAX 16 /* levels of a product of partitions */
#define TASK_PARTITIONS_MAX 1024
#define TASK_BATCH_MAX 65536u
#define TASK_PIECE_MAX (1u << 20)  /* tokens of a piece of text */
#define TASK_ROWS_MAX (1ull << 28) /* samples of a dataset: 4096 shards of 65536 */
#define TASK_BLOB_MAX (1ull << 42)

/* -ERR_FORMAT or -ERR_LIMIT with a sentence that names the field;
 * -ERR_UNIMPLEMENTED for a kind that this version does not know. */
int validate_task(const Skerry__V1__Task *task, struct err *err);

/* The same for a module's version that comes while a task runs. */
int validate_module(const Skerry__V1__ModuleRef *m, struct err *err);

/* The same for answers that carry a ticket: 0 or -ERR_FORMAT. */
int validate_ticket(const Skerry__V1__TicketReply *reply, struct err *err);

#endif
