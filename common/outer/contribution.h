/* The worker's side of the wire: makes a blob of a phase's outer gradient.
 *
 *   u = (theta_start - theta_end) + residual        f32, one rounding per operation
 *   sent = Q(u)                                     codec.h
 *   residual' = u - sent                            exact
 *
 * Error feedback (Seide et al. 2014; Karimireddy et al. 2019): the rest that the codec
 * did not send is added to the next contribution.  sent + residual' == u to the
 * bit; over rounds the sum sent plus the residual equals the sum of the deltas
 * up to the one rounding of each `+ residual` (at most half an ulp of u).
 * Buffers (layout.h) are sent as their values in theta_end, and leave no residual.
 *
 * residual' is PENDING until the coordinator says that the contribution was applied:
 * it is written to a file of its own; residual_commit() makes it the current
 * one, residual_drop() removes it.  The old current one stays as CURRENT.spare, and
 * the next pending one is written over it: existing pages cost a fraction of new
 * ones.  Codec f32 leaves no rest, and no residual is read or written.
 *
 * A coder does the arithmetic: the CPU's own, or one that has theta_end elsewhere and
 * writes the same bits (worker/engine/contribute_card.h).
 *
 * Memory: a few MiB, whatever the size of the module. */
#ifndef COMMON_OUTER_CONTRIBUTION_H
#define COMMON_OUTER_CONTRIBUTION_H

#include "common/base/base.h"
#include "common/base/hash.h"
#include "common/outer/coding.h"

struct layout;

/* Puts elements [first, first+n) of tensor t (index and name as in `layout`) of
 * theta_end into out.  0 or a negative code with err filled. */
typedef int (*contribution_read_fn)(void *arg, const struct layout *layout, size_t t,
                                    uint64_t first, size_t n, float *out, struct err *err);

/* Elements [first, first+n) of tensor t in a coder. */
struct contribution_chunk {
    const struct layout *layout;
    size_t t, n;
    uint64_t first;
    enum codec codec; /* codec of this tensor */
    bool carried;     /* `residual` holds that of earlier rounds; else there is none */
    bool feedback;    /* residual' is wanted */

    /* The coder's memory, with room for its `size` elements. */
    float *base;      /* in: theta_start, except with f32 */
    float *residual;  /* in, and out: residual' */
    void *payload;    /* out, see coding.h */
    uint16_t *scales; /* out */
};

/* Codes chunks, several at a time: each is filled, begun and ended, in order, and then its place is
 * used again.  A chunk that was begun is ended also after a failure.  -EDOM: a value is not
 * finite or is above CODEC_ABS_MAX; other failures fill err. */
struct contribution_coder {
    size_t size; /* most elements of a chunk, a multiple of CODEC_BLOCK */
    size_t n;    /* places */
    struct contribution_chunk *chunks;
    int (*begin)(void *arg, struct contribution_chunk *c, struct err *err);
    int (*end)(void *arg, struct contribution_chunk *c, struct err *err);
    void *arg;
};

struct contribution_job {
    const char *base_path;     /* full file of the base version: theta_start */
    contribution_read_fn read; /* reads theta_end, if there is no coder */
    void *read_arg;
    int threads; /* without a coder: threads that call read() at once; 0: one */
    const struct contribution_coder *coder; /* NULL: this CPU's */
    enum codec codec;
    uint64_t module_id, base, samples;
    const char *residual_path;    /* current residual; NULL or a missing file: zero */
    const char *residual_pending; /* written unless codec is f32; NULL: error feedback off */
    const char *out_path;         /* the blob, replaced atomically */
};

struct contribution_result {
    uint8_t sha256[HASH_BYTES]; /* hash of the blob */
    uint64_t bytes;
};

/* Blocking: not for the loop thread.  -EDOM: a value is not finite; err names
 * its tensor.  On failure neither file exists. */
int contribution_write(const struct contribution_job *job, struct contribution_result *ret,
                       struct err *err);

/* The residual belongs to a base: (job, module, path, replica), one file each.
 * A missing pending file is fine (codec f32, or committed already). */
int residual_commit(const char *pending, const char *current, struct err *err);
int residual_drop(const char *pending, struct err *err);

#endif
