/* The codecs of common/base/codec.h: they code a tensor of differences in few bytes.
 *
 *   codec   payload per element        scale           bytes/param   value of a code
 *   f32     4 bytes                    none            4             itself
 *   bf16    2 bytes, round to even     none            2             itself
 *   int8    i8 in -127..127            bf16 per block  1.0078        s * q
 *   e3m0    4 bits, two in a byte      bf16 per block  0.5078        see below
 *
 * A block is CODEC_BLOCK consecutive elements of ONE tensor (the last may be
 * short); blocks never cross tensors.
 *
 * e3m0 is 1 sign bit and 3 exponent bits, no mantissa (Streaming DiLoCo,
 * 2501.18512): code = sign << 3 | m, value = m ? +-s * 2^(m-7) : 0, so a block
 * spans 0 and s/64, s/32 .. s.  Element 2j is the low nibble of byte j, element
 * 2j+1 the high one.  Rounding is to the nearest value (ties away from zero);
 * s = bf16(7/8 * max|x|): of the factors tried, 7/8 has the least square error on
 * gaussian deltas (3.72 % of the energy against 3.79 % with 1; a bf16 scale costs
 * nothing measurable against f32; power-of-two scales increase the error by up to 4 %).
 * The code for zero costs no error and keeps untouched elements untouched.
 *
 * int8 is linear: s = max|x|/127 rounded up to bf16, q = nearest even of x/s.
 *
 * Exactness, for finite |x| <= CODEC_ABS_MAX: the decoded value is exact in f32,
 * and x - decoded is computed without error (Sterbenz), so sent + residual == x
 * to the bit.  A block with max|x| < CODEC_TINY has scale 0 and sends nothing.
 *
 * All arithmetic is elementwise, without contraction: every variant (scalar,
 * AVX2, AVX-512, another machine) gives the same bits.  Pure functions, any
 * thread; input and output arrays must not overlap unless noted. */
#ifndef COMMON_OUTER_CODING_H
#define COMMON_OUTER_CODING_H

#include "common/base/base.h"
#include "common/base/codec.h"
#include "common/st/st.h"

#define CODEC_ABS_MAX 0x1p126f /* larger (or non-finite) values are refused */
#define CODEC_TINY 0x1p-90f

enum st_dtype coding_dtype(enum codec c); /* type of the payload: F32 BF16 I8 U8 */

/* Encodes n elements from the start of a block.
 *   payload  codec_payload_bytes(c, n) bytes, aligned to the element
 *   scales   codec_scales(c, n) bf16 values (ignored if there are none)
 *   q        the decoded values, as the receiver will have them; may be x itself
 * -ERR_FORMAT: an element is not finite or is above CODEC_ABS_MAX (the outputs
 * are then undefined). */
int coding_encode(enum codec c, size_t n, const float *x, void *payload, uint16_t *scales,
                  float *q);

/* x[0..n) = decoded values. */
void coding_decode(enum codec c, size_t n, const void *payload, const uint16_t *scales, float *x);

/* Do these bytes decode to finite values within range? */
bool coding_check(enum codec c, size_t n, const void *payload, const uint16_t *scales);

#endif
