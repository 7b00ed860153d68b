/* The codecs of the wire: their names and the sizes of their codes.  common/outer/coding.h
 * defines the bytes; a job file names codecs, and a device may encode (kernels/kernels.h).
 * Blobs and databases hold the numbers: only add at the end. */
#ifndef COMMON_BASE_CODEC_H
#define COMMON_BASE_CODEC_H

#include "common/base/base.h"

/* By the numbers that blobs and databases hold. */
enum codec { CODEC_F32, CODEC_BF16, CODEC_INT8, CODEC_E3M0 };
#define CODEC_COUNT 4
#define CODEC_BLOCK 256 /* elements that share a scale */

extern const char *const codec_names[CODEC_COUNT + 1]; /* by number, NULL after the last */

/* The codec for snapshots of a phase whose contributions use codec c: half a byte per parameter is
 * enough for a mean of many with error feedback, but too coarse to continue from. */
static inline enum codec codec_of_part(enum codec c)
{
    return c == CODEC_E3M0 ? CODEC_INT8 : c;
}

const char *codec_name(enum codec c);               /* "int8"; "?" out of range */
int codec_parse(const char *name, enum codec *ret); /* -EINVAL */

bool codec_has_scale(enum codec c);                 /* one for each CODEC_BLOCK elements */
bool codec_is_packed(enum codec c);                 /* elements share bytes */
size_t codec_payload_bytes(enum codec c, size_t n); /* bytes of n elements */
size_t codec_scales(enum codec c, size_t n);        /* bf16 scales of n elements */
size_t codec_bytes(enum codec c, size_t n);         /* of payload and scales */

#endif
