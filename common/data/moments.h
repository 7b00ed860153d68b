/* Moments of a picture in a shard of latents, member KEY.lat:
 *
 *     u64  key of the picture's bytes, which identifies the sample (data_content_key)
 *     u32  numbers of one side
 *     u16  height and
 *     u16  width of the latents
 *     u32  sides: 2 with the mirrored picture, 0: the picture could not be read
 *     u32  bytes of each side's frame
 *     ...  a zstd frame for each side: the high bytes of all its bf16 numbers, then the low ones;
 *          without sides a text that says why, or nothing
 *
 * all little-endian.  By themselves the high bytes (sign and exponent) pack to about half.
 * Pure, any thread. */
#ifndef COMMON_DATA_MOMENTS_H
#define COMMON_DATA_MOMENTS_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define MOMENTS_VALUES_MAX (1u << 22) /* numbers of a side */

struct moments {
    uint64_t key;
    uint32_t values, sides;
    uint16_t height, width;
    uint32_t bytes[2]; /* bytes of the frames; without sides: of the text */
};

/* Appends moments of m->sides sides, (sides,values) bf16 bits; m->bytes is not read.  A text must
 * be appended by the caller. */
int moments_encode(const struct moments *m, const uint16_t *values, struct buf *out);

/* Reads a member's header; false: it is no such member. */
bool moments_parse(const uint8_t *data, size_t len, struct moments *ret);
/* out (values) = a side of a parsed member; false: its frame is damaged. */
bool moments_decode(const uint8_t *data, const struct moments *m, uint32_t side, uint16_t *out);

/* The text of a parsed member without sides; "" if it has none, or none in UTF-8. */
void moments_why(const uint8_t *data, const struct moments *m, char *out, size_t size);

#endif
