/* The local checkpoint of a trainer: weights, moments, inner EMA, position of the
 * schedule and of the random streams, and what the caller adds (data cursor, task).
 * Loading it and continuing gives the same bits as never having stopped; on another number
 * of devices the usual differences between such numbers.
 *
 * One safetensors file, replaced atomically: a crash leaves the old one or the new
 * one.  Tensors "weights.NAME", "adam_m.NAME", "adam_v.NAME" and, when on, "ema.NAME"
 * in F32; metadata "skerry.kind" = "checkpoint", "skerry.step", "skerry.total_steps",
 * "skerry.adam_step", "skerry.config" (a digest of sizes and options: a checkpoint of
 * another job is refused) and the caller's pairs with the prefix "user.". */
#ifndef WORKER_CHECKPOINT_H
#define WORKER_CHECKPOINT_H

#include "common/base/base.h"
#include "common/st/st.h"
#include "worker/train/train.h"

#define CHECKPOINT_PAIRS_MAX 64

/* pairs are borrowed.  local: not flushed, so a loss of power may lose it, but a killed process
 * does not. */
int checkpoint_save(struct trainer *t, const char *path, const struct st_meta *pairs, size_t n,
                    bool local, struct err *err);

/* The trainer must have been made with the same model and options; batch and accumulate may
 * differ.  -ENOENT: there is no file; -ERR_FORMAT: it is broken; -ERR_CONFIG: it belongs to
 * another job or replica.  The trainer is then unchanged, except after a payload that is not
 * finite or cannot be read: start it afresh (trainer_set, trainer_reset_moments).  ret_meta
 * (may be NULL) receives the header: read your pairs with checkpoint_pair; st_release it. */
int checkpoint_load(struct trainer *t, const char *path, struct st *ret_meta, struct err *err);

/* The value of a caller's pair, or NULL. */
const char *checkpoint_pair(const struct st *meta, const char *key);

#endif
