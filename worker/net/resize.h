/* Images in whole steps: smaller by the mean of squares, larger by bilinear interpolation, in whole
 * numbers, so every machine makes the same bytes.
 *
 * Host memory, (side,side,3) u8; pure, any thread. */
#ifndef WORKER_RESIZE_H
#define WORKER_RESIZE_H

#include "common/base/base.h"

/* low (side/factor,side/factor,3) = of high (side,side,3); factor divides side. */
void resize_down(const uint8_t *high, int side, int factor, uint8_t *low);

/* high (side*factor,side*factor,3) = of low (side,side,3); at the edges as the outermost pixels. */
void resize_up(const uint8_t *low, int side, int factor, uint8_t *high);

#endif
