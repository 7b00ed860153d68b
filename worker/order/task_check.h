/* Checks whether this worker can run a task that came over the wire.
 *
 * Pure functions of the message: limits of proto/skerry.proto, presence of the fields that the kind
 * needs, lengths of hashes, consistency.  A message that passes may be used without further checks;
 * another is reported as a failed task with err's sentence, which names the field: -ERR_FORMAT or
 * -ERR_LIMIT. */
#ifndef WORKER_TASK_CHECK_H
#define WORKER_TASK_CHECK_H

#include "worker/order/kind.h"

#define TASK_TRACE_MAX 131072 /* bytes of ReportRequest.trace */
#define TASK_ENCODERS_MAX 256
#define TASK_FILE_NAME_MAX 128
#define TASK_CHANNELS_MAX 1024
#define TASK_INPUT_MAX 4096    /* side of latents, tokens of a caption */
#define TASK_CAPTION_MAX 65536 /* numbers of a token's state */
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
#define TASK_TOKENS_MAX 4096u /* in a text to generate */
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

/* *ret: the task's row of the list.  -ERR_UNIMPLEMENTED for a kind that is not in it. */
int task_check(const struct kind *const *kinds, const Skerry__V1__Task *task,
               const struct kind **ret, struct err *err);

/* A module's version, also one that comes while a task runs. */
int task_check_module(const Skerry__V1__ModuleRef *m, struct err *err);

/* An answer that carries a ticket: 0 or -ERR_FORMAT. */
int task_check_ticket(const Skerry__V1__TicketReply *reply, struct err *err);

/* ---- pieces of a message, for the checks of the kinds; `field` names the piece ---- */

int task_check_count(size_t n, size_t max, const char *field, struct err *err);
int task_check_text(const char *text, size_t max, const char *field, struct err *err);
/* An http or https address. */
int task_check_url(const char *url, const char *field, struct err *err);
/* A blob to fetch: hash, a believable size, and a ticket. */
int task_check_blob(const Skerry__V1__Blob *blob, const char *field, struct err *err);
/* At least one range of samples, none of them empty. */
int task_check_ranges(Skerry__V1__Range *const *ranges, size_t n, const char *field,
                      struct err *err);
/* A number of tokens that a piece of text may have; 0 is fine. */
int task_check_tokens(uint32_t tokens, const char *field, struct err *err);
/* The experts of a mixture, or teachers.  remote: their modules may be missing. */
int task_check_experts(Skerry__V1__Expert *const *list, size_t n, bool remote, const char *field,
                       struct err *err);
/* Task.partitions, for kinds that need it. */
int task_check_partitions(const Skerry__V1__Task *t, struct err *err);

#endif
