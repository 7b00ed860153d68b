/* Adam's moments as sent from one worker to another: 8 bits per value, in blocks of 256 along
 * each tensor's values, as a safetensors blob:
 *
 *    NAME.m   U8 (count)      m = (byte - 128) / 127 * scale of its block
 *    NAME.ms  F32 (blocks)    largest |m| of the block
 *    NAME.v   U8 (count)      sqrt(v) = byte / 255 * scale
 *    NAME.vs  F32 (blocks)    largest sqrt(v) of the block
 *
 * metadata {"format": "skerry.moments.1", "adam_step": n}.  v is sent as its square root,
 * rounded up, so that a small v never becomes a division by zero.  Whatever the file says, no m is
 * taken for larger than Adam's can be beside its v: a step after the transfer is at most as long as
 * Adam's longest.
 *
 * Equal moments give equal bytes.  Compute thread. */
#ifndef WORKER_MOMENTS_H
#define WORKER_MOMENTS_H

#include "common/base/base.h"
#include "common/base/hash.h"

struct trainer;

/* sha256 and ret_bytes may be NULL. */
int moments_save(struct trainer *t, const char *path, uint8_t sha256[HASH_BYTES],
                 uint64_t *ret_bytes, struct err *err);

/* The file is untrusted: -ERR_FORMAT says what is wrong, and the trainer's moments are unchanged.
 * Adam's count becomes that of the blob. */
int moments_load(struct trainer *t, const char *path, struct err *err);

#endif
