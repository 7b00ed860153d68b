/* The codecs of the wire: their names and how large what they make is.  common/outer/coding.h
 * has what the bytes mean; a job file names codecs, a device may encode (kernels/kernels.h).
 * A blob and a database hold the numbers: only add at the end. */
#ifndef COMMON_BASE_CODEC_H
#define COMMON_BASE_CODEC_H

#include "common/base/base.h"

/* By the numbers that blobs and databases hold. */
enum codec { CODEC_F32, CODEC_BF16, CODEC_INT8, CODEC_E3M0 };
#define CODEC_COUNT 4
#define CODEC_BLOCK 256 /* elements that share a scale */

extern const char *const codec_names[CODEC_COUNT + 1]; /* by number, NULL behind the last */

/* Of a snapshot of a phase, where contributions have codec c: half a byte a parameter is enough for
 * a mean of many with error feedback, and too coarse to go on from. */
static inline enum codec codec_of_part(enum codec c)
{
    return c == CODEC_E3M0 ? CODEC_INT8 : c;
}

const char *codec_name(enum codec c);               /* "int8"; "?" out of range */
int codec_parse(const char *name, enum codec *ret); /* -EINVAL */

bool codec_has_scale(enum codec c);                 /* one for each CODEC_BLOCK elements */
bool codec_is_packed(enum codec c);                 /* elements share bytes */
size_t codec_payload_bytes(enum codec c, size_t n); /* what n elements take */
size_t codec_scales(enum codec c, size_t n);        /* bf16 scales of n elements */

#endif
