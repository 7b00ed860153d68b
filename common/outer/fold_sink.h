/* The helper thread of a fold: hashes and writes the new full and EMA files
 * while the next chunk is folded.
 *
 *   folding thread                          helper
 *   sink_slot()  waits for a free slot ◄──  frees it
 *   fills slot->theta, slot->ema
 *   sink_push(n) ─────────────────────────► hash + pwrite, in order
 *   sink_finish() joins
 *
 * One lock, SINK_SLOTS slots, nothing else is shared. */
#ifndef COMMON_OUTER_FOLD_SINK_H
#define COMMON_OUTER_FOLD_SINK_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/hash.h"

struct err;
struct file_out;
struct layout;
struct sink;

#define SINK_SLOTS 2

struct sink_slot {
    float *theta, *ema; /* FOLD_CHUNK each; ema NULL when none is kept */
};

/* Writes the header into both files and starts the thread; ema_out NULL: no EMA.
 * The files are borrowed until sink_free. */
int sink_new(const struct layout *layout, struct file_out *full_out, struct file_out *ema_out,
             struct sink **ret, struct err *err);
/* A slot to fill, or the failure of an earlier write (err is filled). */
int sink_slot(struct sink *s, struct sink_slot *ret, struct err *err);
/* The slot last given holds the next n elements of the flat array. */
void sink_push(struct sink *s, size_t n);
/* Waits for all writes; hashes of the whole files (ema untouched if none). */
int sink_finish(struct sink *s, uint8_t full[HASH_BYTES], uint8_t ema[HASH_BYTES], struct err *err);
void sink_free(struct sink *s); /* stops the thread; accepts NULL */

#endif
