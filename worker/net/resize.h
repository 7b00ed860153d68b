/* Resizes images by whole factors: down by the mean of squares of pixels, up by bilinear
 * interpolation, in integer arithmetic, so every machine makes the same bytes.
 *
 * Host memory, (side,side,3) u8; pure, any thread. */
#ifndef WORKER_RESIZE_H
#define WORKER_RESIZE_H

#include "common/base/base.h"

/* low (side/factor,side/factor,3) = high (side,side,3) made smaller; factor divides side. */
void resize_down(const uint8_t *high, int side, int factor, uint8_t *low);

/* high (side*factor,side*factor,3) = low (side,side,3) enlarged; edges repeat the outermost pixels.
 */
void resize_up(const uint8_t *low, int side, int factor, uint8_t *high);

#endif
