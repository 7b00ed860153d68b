/* The local checkpoint of a trainer: weights, moments, the position in the schedule and the random
 * streams, and the caller's pairs (data cursor, task).
 * Loading it and continuing gives the same bits as never having stopped; on another number
 * of devices it differs as results on such numbers usually do.
 *
 * One safetensors file, replaced atomically: a crash leaves the old one or the new
 * one.  Tensors "weights.NAME", "adam_m.NAME" and "adam_v.NAME" in F32 (an older release's
 * "ema.NAME" is skipped); metadata "skerry.kind" = "checkpoint", "skerry.step",
 * "skerry.total_steps", "skerry.adam_step", "skerry.config" (a digest of sizes and options: a
 * checkpoint of another job is refused) and the caller's pairs with the prefix "user.". */
#ifndef WORKER_CHECKPOINT_H
#define WORKER_CHECKPOINT_H

#include "common/base/base.h"
#include "common/st/st.h"
#include "worker/train/train.h"

#define CHECKPOINT_PAIRS_MAX 64

/* pairs are borrowed.  local: the file is not flushed, so it may be lost with power, but not with
 * the process. */
int checkpoint_save(struct trainer *t, const char *path, const struct st_meta *pairs, size_t n,
                    bool local, struct err *err);

/* The trainer must have been made with the same model and options; batch and accumulate may
 * differ.  -ENOENT: there is no file; -ERR_FORMAT: it is broken; -ERR_CONFIG: it belongs to
 * another job or replica.  After an error the trainer is unchanged, unless the payload is not
 * finite or cannot be read: then start afresh (trainer_set, trainer_reset_moments).  ret_meta
 * (may be NULL) receives the header, for checkpoint_pair; release it by st_release. */
int checkpoint_load(struct trainer *t, const char *path, struct st *ret_meta, struct err *err);

/* The value of a caller's pair, or NULL. */
const char *checkpoint_pair(const struct st *meta, const char *key);

#endif
