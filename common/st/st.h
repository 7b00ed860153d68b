/* safetensors: u64 LE header length | JSON header | payload.
 *
 * The reader is strict: the header has at most 16 MiB and ST_TENSORS_MAX tensors,
 * names are unique, shapes and offsets agree, the tensors tile the payload without
 * overlap or gap, and the file ends with them.  It reads only the header: callers
 * read payloads by file offset, so memory grows only with names and shapes.
 *
 * The writer is deterministic: the same declarations and payload give the same
 * bytes.  Metadata comes first, then the tensors, each in the order added; the
 * header is padded with spaces to a multiple of 8. */
#ifndef COMMON_ST_ST_H
#define COMMON_ST_ST_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/hash.h"

#define ST_RANK_MAX 8
#define ST_NAME_MAX 255
#define ST_TENSORS_MAX 65536
#define ST_META_MAX 256
#define ST_HEADER_MAX (16u << 20)

/* Types of elements in safetensors. */
enum st_dtype {
    ST_UNSPECIFIED,
    ST_BOOL,
    ST_U8,
    ST_I8,
    ST_U16,
    ST_I16,
    ST_F16,
    ST_BF16,
    ST_U32,
    ST_I32,
    ST_F32,
    ST_U64,
    ST_I64,
    ST_F64,
};
const char *st_dtype_name(enum st_dtype dtype); /* "BF16" */
size_t st_dtype_bytes(enum st_dtype dtype);     /* bytes of one element */

struct st_tensor {
    char *name;
    enum st_dtype dtype;
    unsigned rank; /* 0 is a scalar */
    uint64_t shape[ST_RANK_MAX];
    uint64_t count;  /* elements */
    uint64_t offset; /* from the start of the FILE */
    uint64_t bytes;
};

/* An entry of __metadata__. */
struct st_meta {
    char *key;
    char *value;
};

/* A parsed header; tensors by offset in the file. */
struct st {
    struct st_tensor *tensors;
    size_t n_tensors;
    struct st_meta *meta;
    size_t n_meta;
    uint64_t payload;    /* file offset of the first payload byte */
    uint64_t file_bytes; /* size of the whole file */
};

/* From memory: data holds at least the header (`len` bytes of a file of
 * file_bytes).  `name` is for messages.  Fills *ret; st_release it. */
int st_parse(const void *data, size_t len, uint64_t file_bytes, const char *name, struct st *ret,
             struct err *err);
/* From a file; st_read takes an open descriptor (pread only).  st_read_part: of a file that will
 * have file_bytes; its header must be there. */
int st_open(const char *path, struct st *ret, struct err *err);
int st_read(int fd, const char *path, struct st *ret, struct err *err);
int st_read_part(int fd, const char *path, uint64_t file_bytes, struct st *ret, struct err *err);
/* Where the header of such a file ends; its first 8 bytes must be there. */
int st_header_end(int fd, const char *path, uint64_t file_bytes, uint64_t *ret, struct err *err);
void st_release(struct st *st); /* { 0 } and NULL are fine */

const struct st_tensor *st_find(const struct st *st, const char *name); /* NULL if absent */
/* Is it one of the tensors that older releases of transformers (texts) and diffusers (a captioned
 * PixArt) saved besides the parameters, and that nothing reads? */
bool st_is_leftover(const char *name, bool texts, bool captioned);
const char *st_meta_get(const struct st *st, const char *key); /* NULL if absent */
/* A number in plain decimals; -ERR_FORMAT: there is none; err names path. */
int st_meta_number(const struct st *st, const char *path, const char *key, uint64_t *ret,
                   struct err *err);
/* The tensor, which must exist with this dtype and shape; else an error. */
int st_expect(const struct st *st, const char *name, enum st_dtype dtype, unsigned rank,
              const uint64_t *shape, const struct st_tensor **ret, struct err *err);

/* "(32, 64)"; returns out. */
#define ST_SHAPE_TEXT 192
const char *st_shape_text(unsigned rank, const uint64_t *shape, char out[ST_SHAPE_TEXT]);

/* The `count` values of a tensor of F32, BF16 or F16, as f32.  -ERR_CONFIG: another type, or a
 * value that is not finite; path is for messages. */
int st_read_f32(int fd, const char *path, const struct st_tensor *t, float *out, struct err *err);

/* Convert n values of type F32, BF16, F16, I64 or I32 to f32, where integers beyond ST_EXACT_MAX
 * are rounded; and back, to the nearest with ties to even, integers at most ST_EXACT_MAX from 0. */
#define ST_EXACT_MAX 16777216 /* f32 has every integer up to here */
void st_to_f32(enum st_dtype dtype, const void *in, size_t n, float *out);
void st_from_f32(enum st_dtype dtype, const float *in, size_t n, void *out);

/* The type of the tensor where it is used, if the file keeps it as F32 and names it in its metadata
 * ("skerry.BF16", F16, I64, I32: one name per line); else its own type. */
enum st_dtype st_dtype_at_home(const struct st *st, const struct st_tensor *t);

/* Writing: new -> meta* -> add* -> [local] -> open -> write* -> commit -> free.
 * Payload bytes come in order of the tensors, in pieces of any size.  Pieces may
 * cross tensors.  free before commit leaves no file.  Mixed element sizes are
 * legal; add wide types first if the payload is to stay aligned. */
struct st_writer;
struct st_writer *st_writer_new(void);
void st_writer_free(struct st_writer *w);
/* Adds an entry of __metadata__; an impossible one makes open fail. */
void st_writer_meta(struct st_writer *w, const char *key, const char *value);
void st_writer_number(struct st_writer *w, const char *key, uint64_t value);
/* shape is copied.  -EINVAL: a duplicate or impossible tensor. */
int st_writer_add(struct st_writer *w, const char *name, enum st_dtype dtype, unsigned rank,
                  const uint64_t *shape, struct err *err);
/* Appends the header's bytes (with the length word) to out, and gives the size of the
 * whole file; for callers that write the file themselves. */
int st_writer_header(struct st_writer *w, struct buf *out, uint64_t *ret_file_bytes,
                     struct err *err);
/* The file is only for this machine, may be lost with power, and is replaced again and again
 * (file_out_open_again): it is neither hashed nor flushed, and commit's sha256 must be NULL. */
void st_writer_local(struct st_writer *w);
int st_writer_open(struct st_writer *w, const char *path, struct err *err);
int st_writer_write(struct st_writer *w, const void *data, size_t len, struct err *err);
/* fsync + rename; fails unless every payload byte was written.  sha256 (may be
 * NULL) is the whole file's, ret_bytes (may be NULL) its size. */
int st_writer_commit(struct st_writer *w, uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes,
                     struct err *err);

#endif
