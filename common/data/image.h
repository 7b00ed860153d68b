/* Images through libvips: JPEG, PNG, WebP of any size and pixel type to u8 RGB.
 * Only these three loaders run; the header is checked against a pixel limit
 * before anything is decoded; vips's cache is off, and it uses one thread per
 * call (callers have threads).  Functions may be called on several threads at once.
 *
 * Links to libvips: users pull it into their program. */
#ifndef COMMON_DATA_IMAGE_H
#define COMMON_DATA_IMAGE_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define IMAGE_SIDE_MAX 16384
#define IMAGE_PIXELS_MAX (64u << 20)

/* Call once per process, before threads that use images. */
int image_init(struct err *err);
void image_exit(void);
/* A thread that decoded images calls this before it ends. */
void image_thread_exit(void);

/* Pixels. */
struct image_shape {
    int width, height;
};

/* Decodes to a shape: the image is scaled to cover it and cropped, at the centre if `crop` is NULL,
 * else at a place chosen by *crop, a random number, evenly along the side that is too long; the
 * same number gives the same part of an image.  out holds height*width*3 bytes, RGB, rows from
 * the top.  Shrinks on load; alpha is flattened on white; grey, palette, CMYK, 16 bit and the
 * colours of an embedded profile become sRGB; EXIF orientation is applied.  -ERR_FORMAT: the image
 * is broken; -ERR_LIMIT: it is too large, or so narrow that it has more than IMAGE_PIXELS_MAX
 * pixels before it is cropped (out is then undefined). */
int image_decode(const void *data, size_t len, struct image_shape to, const uint32_t *crop,
                 uint8_t *out, struct err *err);

/* A square. */
static inline struct image_shape image_square(int side)
{
    return (struct image_shape){side, side};
}

/* Width and height as the image is shown, from its header. */
int image_info(const void *data, size_t len, int *ret_width, int *ret_height, struct err *err);

/* Encodes rgb (height, width, 3) to memory (appended to out) or to a file, atomically. */
int image_png(const uint8_t *rgb, int width, int height, struct buf *out, struct err *err);
int image_write_png(const char *path, const uint8_t *rgb, int width, int height, struct err *err);

/* Puts n images of size x size in rows of `columns`, with `gap` white pixels between
 * and around them, into *ret_rgb (mem_free), with its dimensions. */
int image_grid(const uint8_t *images, int n, int size, int columns, int gap, uint8_t **ret_rgb,
               int *ret_width, int *ret_height, struct err *err);

#endif
