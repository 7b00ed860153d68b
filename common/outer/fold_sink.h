/* Files of one float per parameter, hashed and written by a thread of their own: those of an outer
 * step (fold.h) and the version that is rebuilt from a delta (version.h).
 *
 *   folding thread                          helper of the sink
 *   fold_sink_slot()  waits for a free slot <--  frees it
 *   fills the slot's arrays
 *   fold_sink_push(n) -------------------------> hash + pwrite, in order
 *   fold_sink_finish() joins
 *
 * Only one lock and two slots are shared.  A step has one sink for the files that holders
 * get and another for the optimiser's state: hashing is most of a fold, and so the two halves do
 * not wait for each other.  All calls except the helper's come from one thread. */
#ifndef COMMON_OUTER_FOLD_SINK_H
#define COMMON_OUTER_FOLD_SINK_H

#include "common/base/base.h"
#include "common/outer/fold.h"

#define FOLD_SINK_FILES 3

struct file_out;
struct layout;
struct fold_sink;

/* Writes the header into the files (NULL: not kept), which stay the caller's, and starts the
 * thread. */
int fold_sink_new(const struct layout *layout, struct file_out *const outs[FOLD_SINK_FILES],
                  struct fold_sink **ret, struct err *err);
/* Ends the thread; call it before the files are closed.  NULL is fine. */
void fold_sink_free(struct fold_sink *s);

/* Arrays of FOLD_CHUNK to fill, NULL for files that are not kept; or the failure of an earlier
 * write. */
int fold_sink_slot(struct fold_sink *s, float *ret[FOLD_SINK_FILES], struct err *err);
/* The slot last given holds the next n elements of the flat array. */
void fold_sink_push(struct fold_sink *s, size_t n);
/* Waits for all writes; gives hash and size of the whole files (untouched for those not kept). */
int fold_sink_finish(struct fold_sink *s, struct fold_file *const ret[FOLD_SINK_FILES],
                     struct err *err);

#endif
