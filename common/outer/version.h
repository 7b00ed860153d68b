/* Rebuilds a version from an older one.
 *
 *   theta_{v+1} = theta_v + decoded(delta)     one f32 addition per element
 *   theta_{v+1} = value                        codec f32
 *
 *   theta_now   = theta_v - decoded(contribution)    the weights of which it was made
 *   theta_now   = value                              codec f32
 *
 * The executor makes the full file by the same two lines, so the bits and the
 * SHA-256 of the file agree at every holder. */
#ifndef COMMON_OUTER_VERSION_H
#define COMMON_OUTER_VERSION_H

#include "common/base/base.h"
#include "common/base/hash.h"
#include "common/outer/coding.h"

/* full file of `from` + delta blob -> full file of from+1 at out_path (atomic, not flushed).
 * The delta's codec is taken from the blob; its module and versions are checked.
 * spare: a file to write over, which is gone then; NULL, or not there: a new file is made.
 * sha256 (may be NULL): the expected hash; -ERR_HASH: the result has another one, and
 * out_path is not made.  ret_sha256 may be NULL.  Streams; blocking. */
int version_apply_delta(const char *full_path, const char *delta_path, uint64_t module_id,
                        uint64_t from, const char *out_path, const char *spare,
                        const uint8_t sha256[HASH_BYTES], uint8_t ret_sha256[HASH_BYTES],
                        struct err *err);

/* The same for a contribution, of any codec: gives the weights of the worker that made it, except
 * for the rest that its codec left out and the residual that was sent with it. */
int version_apply_contribution(const char *full_path, const char *contribution_path,
                               uint64_t module_id, uint64_t base, const char *out_path,
                               struct err *err);

/* Are all values of a file like a full version finite?  -EDOM: err names a tensor with one that is
 * not.  Streams; blocking. */
int version_check_finite(const char *path, struct err *err);

#endif
