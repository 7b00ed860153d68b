/* The layout of a module: the tensors of its full file.
 *
 * A full version of a module is a plain safetensors file of f32 tensors; they
 * tile its payload, so after the header comes one flat array of `count` floats:
 *
 *   | u64 length | JSON header | tensor 0 | tensor 1 | ...        |
 *   0                          payload                            file_bytes
 *
 * Every file of a module that holds one float per parameter (full versions, EMA,
 * theta_target, momentum, residuals) begins with a copy of the same header
 * bytes, taken from version 0.  So equal parameters are equal files, and the
 * SHA-256 of a full file names the bits of a version.
 *
 * BUFFERS.  Tensors that are not trained, such as running means: the metadata "skerry.mean" and
 * "skerry.first" name them, one per line.  Contributions and deltas carry their values as f32,
 * whatever the codec; an outer step takes the mean of the values, or that of the first
 * contribution; norms and residuals leave them out.
 *
 * Immutable after opening; may be read by any thread. */
#ifndef COMMON_OUTER_LAYOUT_H
#define COMMON_OUTER_LAYOUT_H

#include "common/base/base.h"
#include "common/base/codec.h"
#include "common/st/st.h"

enum layout_role { LAYOUT_TRAINED, LAYOUT_MEAN, LAYOUT_FIRST };
#define LAYOUT_META_MEAN "skerry.mean"
#define LAYOUT_META_FIRST "skerry.first"

struct layout {
    struct st st;    /* tensors by offset, all F32 */
    uint8_t *header; /* st.payload bytes: length word and JSON */
    uint64_t count;  /* elements, those of buffers included */
    uint8_t *role;   /* enum layout_role of each tensor */
    bool buffers;    /* there are some */
};

/* Reads the header of a full file; refuses a tensor that is not F32, an empty module and a named
 * buffer that does not exist.  layout_release it ({ 0 } is fine). */
int layout_open(const char *path, struct layout *ret, struct err *err);
int layout_read(int fd, const char *path, struct layout *ret, struct err *err);
void layout_release(struct layout *l);

/* Index of the first element of tensor t in the flat array. */
uint64_t layout_first(const struct layout *l, size_t t);

/* Is tensor t not trained? */
bool layout_is_buffer(const struct layout *l, size_t t);
/* The codec of tensor t in a blob of codec c. */
enum codec layout_codec(const struct layout *l, size_t t, enum codec c);

/* A cell is a stretch of a tensor.  The cells of all tensors are numbered in order, so that a claim
 * about a whole module can be checked in a few of them. */
#define LAYOUT_CELL 4096u /* most elements: a multiple of FOLD_STRIP that divides FOLD_CHUNK */
struct layout_cell {
    uint64_t number;
    size_t tensor;
    uint64_t first;
    size_t n;
};
uint64_t layout_cells(const struct layout *l);
void layout_cell_at(const struct layout *l, uint64_t number, struct layout_cell *ret);

/* An error that names the first difference in names, shapes or order; else 0. */
int layout_same(const struct layout *a, const struct layout *b, const char *name, struct err *err);

#endif
