/* Contribution and delta blobs: safetensors around a codec.
 *
 *   __metadata__  skerry.kind     contribution | delta
 *                 skerry.codec    f32 | bf16 | int8 | e3m0
 *                 skerry.module   module id
 *                 skerry.base     version from which it starts
 *                 skerry.version  (delta) version to which it leads
 *                 skerry.samples  (contribution) samples of its phase
 *                 skerry.encoding value | difference   (value: f32 only)
 *   NAME.scale    BF16 [blocks]   int8 and e3m0; all scales come first
 *   NAME          the payload: F32/BF16/I8 in the tensor's shape, U8 [(n+1)/2]
 *
 * f32 blobs carry VALUES, not differences (theta_end up, theta_{v+1} down): the
 * same size, and no subtraction loses anything.  All other codecs carry
 * differences: theta_start - theta_end + residual up, theta_target - theta_v down.
 * fold.h folds both and version.h applies both.  Buffers (layout.h) are f32 values
 * in blobs of every codec.
 *
 * The reader checks everything against the expected layout and reads payloads
 * only through wire_read, one piece at a time: memory does not grow with the
 * module. */
#ifndef COMMON_OUTER_WIRE_H
#define COMMON_OUTER_WIRE_H

#include "common/base/base.h"
#include "common/outer/coding.h"

struct buf;
struct layout;
struct file_out;

/* Up from a worker, or down from the executor. */
enum wire_kind { WIRE_CONTRIBUTION, WIRE_DELTA };

struct wire_info {
    enum wire_kind kind;
    enum codec codec;
    uint64_t module_id;
    uint64_t base;    /* version */
    uint64_t version; /* WIRE_DELTA: base + 1 */
    uint64_t samples; /* WIRE_CONTRIBUTION */
};

/* A tensor's place and codec in a blob. */
struct wire_place {
    enum codec codec;
    uint64_t payload, scale; /* file offsets; scale 0: it has none */
};

/* A blob that is still arriving.  await() returns 0 once the first `end` bytes are in fd, which
 * stays the caller's, and may wait for them. */
struct wire_source {
    int fd;
    uint64_t bytes; /* of the whole blob */
    int (*await)(void *arg, uint64_t end, struct err *err);
    void *arg;
};

/* An open blob whose header agrees with a layout. */
struct wire {
    int fd;                           /* -1 when closed */
    const struct wire_source *source; /* NULL: the blob is whole */
    char *path;
    struct wire_info info;
    size_t n_tensors;
    struct wire_place *at; /* place of each tensor, in the layout's order */
};

/* Opens and checks: kind, codec, module and base version are those in `want`
 * (samples is taken from the file), and the tensors are exactly the layout's, with
 * the right dtype and shape.  `layout` is borrowed for the call. */
int wire_open(const char *path, const struct wire_info *want, const struct layout *layout,
              struct wire *ret, struct err *err);
/* The same of a blob that is arriving, source, which is kept; path: for messages.  Scales come
 * first, so its beginning is enough to read the first tensors. */
int wire_open_source(const struct wire_source *source, const char *path,
                     const struct wire_info *want, const struct layout *layout, struct wire *ret,
                     struct err *err);
void wire_close(struct wire *b); /* { .fd = -1 } and closed ones are fine */

/* Reads n elements of tensor t from element `first` (a multiple of CODEC_BLOCK).
 * payload: codec_payload_bytes(n) bytes of the tensor's codec; scales: codec_scales(n) values. */
int wire_read(const struct wire *b, size_t t, uint64_t first, size_t n, void *payload,
              uint16_t *scales, struct err *err);

/* Reads only the metadata of any blob file, for tools. */
int wire_info_read(const char *path, struct wire_info *ret, struct err *err);

/* Appends the header of a blob, as wire_out_open() writes it, to `ret`; *ret_bytes: size of the
 * whole file. */
int wire_header(const struct wire_info *info, const struct layout *layout, struct buf *ret,
                uint64_t *ret_bytes, struct err *err);

/* Writing: open puts the header into the file, write places pieces in any order,
 * the caller commits or aborts `out` (common/base/file.h). */
struct wire_out {
    struct file_out *out;  /* borrowed */
    uint64_t bytes;        /* size of the whole file */
    struct wire_place *at; /* as in struct wire */
};
int wire_out_open(struct wire_out *b, struct file_out *out, const struct wire_info *info,
                  const struct layout *layout, struct err *err);
int wire_out_write(struct wire_out *b, size_t t, uint64_t first, size_t n, const void *payload,
                   const uint16_t *scales, struct err *err);
void wire_out_release(struct wire_out *b);

#endif
