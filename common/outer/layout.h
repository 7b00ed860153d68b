/* What a module looks like: the tensors of its full file.
 *
 * A full version of a module is a plain safetensors file of f32 tensors; they
 * tile its payload, so behind the header lies one flat array of `count` floats:
 *
 *   | u64 length | JSON header | tensor 0 | tensor 1 | ...        |
 *   0                          payload                            file_bytes
 *
 * Every file of a module that holds one float per parameter (full versions, EMA,
 * theta_target, momentum, residuals) begins with a copy of the same header
 * bytes, taken from version 0.  So equal parameters are equal files, and the
 * SHA-256 of a full file names the bits of a version.
 *
 * Immutable after opening; may be read by any thread. */
#ifndef COMMON_OUTER_LAYOUT_H
#define COMMON_OUTER_LAYOUT_H

#include "common/base/base.h"
#include "common/st/st.h"

struct layout {
    struct st st;    /* tensors by offset, all F32 */
    uint8_t *header; /* st.payload bytes: length word and JSON */
    uint64_t count;  /* parameters */
};

/* Reads the header of a full file; a tensor that is not F32 or an empty module
 * is refused.  layout_release it ({ 0 } is fine). */
int layout_open(const char *path, struct layout *ret, struct err *err);
int layout_read(int fd, const char *path, struct layout *ret, struct err *err);
void layout_release(struct layout *l);

/* Index of the first element of tensor t in the flat array. */
uint64_t layout_first(const struct layout *l, size_t t);

/* A sentence that names the first difference in names, shapes or order, else 0. */
int layout_same(const struct layout *a, const struct layout *b, const char *name, struct err *err);

#endif
