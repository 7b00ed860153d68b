/* Files of one float per parameter, which a thread of their own hashes and writes.
 *
 *   folding thread                          helper of the sink
 *   fold_sink_slot()  waits for a free slot <--  frees it
 *   fills the slot's arrays
 *   fold_sink_push(n) -------------------------> hash + pwrite, in order
 *   fold_sink_finish() joins
 *
 * One lock, two slots, nothing else is shared.  A step (fold.h) has one sink for what everybody is
 * sent, another one for the optimiser's state: hashing is most of a fold, and no file waits for the
 * other half.  All calls but the helper's come from one thread. */
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
/* Ends the thread first; NULL is fine.  Before the files are closed. */
void fold_sink_free(struct fold_sink *s);

/* Arrays of FOLD_CHUNK to fill, NULL of files that are not kept; or the failure of an earlier
 * write. */
int fold_sink_slot(struct fold_sink *s, float *ret[FOLD_SINK_FILES], struct err *err);
/* The slot last given holds the next n elements of the flat array. */
void fold_sink_push(struct fold_sink *s, size_t n);
/* Waits for all writes; hash and size of the whole files (untouched where there is none). */
int fold_sink_finish(struct fold_sink *s, struct fold_file *const ret[FOLD_SINK_FILES],
                     struct err *err);

#endif
