#include "common/data/image.h"

/* vector.h needs vips.h before it. */
#include <vips/vips.h>

#include <vips/vector.h>

#include "common/base/file.h"

#define SIZE_MAX_PIXELS 4096 /* the largest side of a decoded image */

#ifdef SKERRY_TSAN
/* The image libraries are not built with tsan and GLib's locks are futexes that
 * it does not see, so every hand-over between vips's threads looks like a race. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:libvips\nrace:libglib-2.0.so\nrace:libgobject-2.0.so\nrace:libjpeg.so\n"
           "race:libpng16.so\nrace:libspng.so\nrace:libwebp\nrace:libz.so\n"
           "race:liblcms2.so\nrace:liborc-0.4.so\nmutex:libglib-2.0.so\nthread:libglib-2.0.so\n";
}
/* Thousands of suppressed reports cost minutes: do not make them at all.  The price:
 * what our own code does through memcpy and the like is not looked at either, in
 * the programs that link this file; plain accesses and locks are. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "ignore_noninstrumented_modules=1";
}
#endif

/* Swallows warnings about odd metadata of an image. */
static void be_silent(const char *domain, GLogLevelFlags level, const char *text, void *ctx)
{
    (void)domain;
    (void)level;
    (void)text;
    (void)ctx;
}

int image_init(struct err *err)
{
    g_log_set_handler("VIPS", G_LOG_LEVEL_WARNING | G_LOG_LEVEL_INFO | G_LOG_LEVEL_DEBUG, be_silent,
                      NULL);
    if (VIPS_INIT("skerry") != 0)
        return err_set(err, -ENOSYS, "cannot start libvips: %s", vips_error_buffer());
    vips_concurrency_set(1);
    vips_cache_set_max(0);
    vips_cache_set_max_mem(0);
    vips_cache_set_max_files(0);
    vips_block_untrusted_set(TRUE);
    /* liborc 0.4.33 frees its just-in-time code without a lock that holds: threads
     * that decode together end the process within some ten thousand images. */
    vips_vector_set_enabled(FALSE);
    return 0;
}

void image_exit(void)
{
    vips_shutdown();
}

void image_thread_exit(void)
{
    vips_thread_shutdown();
}

/* The last complaint, on one line; clears it.  Its buffer is the process's, so a
 * line of another thread may slip in: a wrong detail, never a wrong verdict. */
static int fail(struct err *err)
{
    char *text = vips_error_buffer_copy();
    text[strcspn(text, "\n")] = '\0';
    int rc = err_set(err, -ERR_FORMAT, "broken image: %s", *text ? text : "cannot be decoded");
    g_free(text);
    return rc;
}

enum kind { KIND_NONE, KIND_JPEG, KIND_PNG, KIND_WEBP };

static enum kind sniff(const void *data, size_t len)
{
    const uint8_t *p = data;
    if (len >= 3 && memcmp(p, "\xff\xd8\xff", 3) == 0)
        return KIND_JPEG;
    if (len >= 8 && memcmp(p, "\x89PNG\r\n\x1a\n", 8) == 0)
        return KIND_PNG;
    if (len >= 12 && memcmp(p, "RIFF", 4) == 0 && memcmp(p + 8, "WEBP", 4) == 0)
        return KIND_WEBP;
    return KIND_NONE;
}

/* Opens with one of the three loaders, `shrink` (1, 2, 4, 8) times smaller if
 * the format can do that while loading. */
static int load(const void *data, size_t len, int shrink, VipsImage **ret, struct err *err)
{
    void *bytes = (void *)(uintptr_t)data; /* vips takes void * but does not write */
    VipsImage *image = NULL;
    int rc;
    switch (sniff(data, len)) {
    case KIND_JPEG:
        rc = vips_jpegload_buffer(bytes, len, &image, "shrink", shrink, "access",
                                  VIPS_ACCESS_SEQUENTIAL, "fail_on", VIPS_FAIL_ON_TRUNCATED, NULL);
        break;
    case KIND_PNG:
        rc = vips_pngload_buffer(bytes, len, &image, "access", VIPS_ACCESS_SEQUENTIAL, "fail_on",
                                 VIPS_FAIL_ON_TRUNCATED, NULL);
        break;
    case KIND_WEBP:
        rc = vips_webpload_buffer(bytes, len, &image, "scale", 1.0 / shrink, "access",
                                  VIPS_ACCESS_SEQUENTIAL, "fail_on", VIPS_FAIL_ON_TRUNCATED, NULL);
        break;
    default:
        return err_set(err, -ERR_FORMAT, "not a JPEG, PNG or WebP image");
    }
    if (rc != 0)
        return fail(err);
    *ret = image;
    return 0;
}

int image_info(const void *data, size_t len, int *ret_width, int *ret_height, struct err *err)
{
    VipsImage *image = NULL;
    int rc = load(data, len, 1, &image, err);
    if (rc < 0)
        return rc;
    const bool turned = vips_image_get_orientation_swap(image);
    int width = vips_image_get_width(image), height = vips_image_get_height(image);
    g_object_unref(image);
    if (width > IMAGE_SIDE_MAX || height > IMAGE_SIDE_MAX ||
        (int64_t)width * height > IMAGE_PIXELS_MAX)
        return err_set(err, -ERR_LIMIT, "image of %d x %d pixels is too large", width, height);
    *ret_width = turned ? height : width;
    *ret_height = turned ? width : height;
    return 0;
}

/* Checks the pixels of the whole image at the size that covers the shape: all of them are made
 * before it is cropped, so a line of pixels would cost gigabytes. */
static int check_narrow(int width, int height, struct image_shape to, struct err *err)
{
    const int64_t by_width = (int64_t)to.width * to.width * height / width,
                  by_height = (int64_t)to.height * to.height * width / height;
    if (by_width <= IMAGE_PIXELS_MAX && by_height <= IMAGE_PIXELS_MAX)
        return 0;
    return err_set(err, -ERR_LIMIT, "image of %d x %d pixels is too narrow for %d x %d", width,
                   height, to.width, to.height);
}

/* All pixels in memory.  vips_thumbnail_buffer would be shorter, but its cache
 * paints the rows of a cut file black and calls that a success. */
static int load_pixels(const void *data, size_t len, struct image_shape to, VipsImage **ret,
                       struct err *err)
{
    int width = 0, height = 0, shrink = 1;
    VipsImage *image = NULL;
    int rc = image_info(data, len, &width, &height, err);
    if (rc == 0)
        rc = check_narrow(width, height, to, err);
    if (rc < 0)
        return rc;
    /* A factor of two is left for the better filter that follows. */
    while (shrink < 8 && width / (shrink * 4) >= to.width && height / (shrink * 4) >= to.height)
        shrink *= 2;
    rc = load(data, len, shrink, &image, err);
    if (rc < 0)
        return rc;
    *ret = vips_image_copy_memory(image);
    g_object_unref(image);
    return *ret ? 0 : fail(err);
}

/* Replaces *image by the result of a vips call that returned rc. */
static int replace(VipsImage **image, VipsImage *made, int rc)
{
    g_object_unref(*image);
    *image = rc == 0 ? made : NULL;
    return rc;
}

static int flatten(VipsImage **image)
{
    double white[] = {255, 255, 255};
    VipsImage *made = NULL;
    VipsArrayDouble *background = vips_array_double_new(white, (*image)->Bands > 3 ? 3 : 1);
    int rc = vips_flatten(*image, &made, "background", background, NULL);
    vips_area_unref(VIPS_AREA(background));
    return replace(image, made, rc);
}

/* Converts by the embedded profile; one that does not fit its image, or is broken, counts as none.
 */
static void apply_profile(VipsImage **image)
{
    VipsImage *made = NULL;
    if (!vips_image_get_typeof(*image, VIPS_META_ICC_NAME))
        return;
    if (vips_icc_transform(*image, &made, "srgb", "embedded", TRUE, NULL) == 0)
        (void)replace(image, made, 0);
    else
        vips_error_clear();
}

/* Converts any image to three bands of 8-bit sRGB. */
static int to_rgb(VipsImage **image)
{
    VipsImage *made = NULL;
    apply_profile(image);
    int rc = vips_image_hasalpha(*image) ? flatten(image) : 0;
    if (rc == 0 && ((*image)->Bands != 3 ||
                    vips_image_get_interpretation(*image) != VIPS_INTERPRETATION_sRGB)) {
        rc = vips_colourspace(*image, &made, VIPS_INTERPRETATION_sRGB, NULL);
        rc = replace(image, made, rc);
    }
    if (rc == 0 && (*image)->BandFmt != VIPS_FORMAT_UCHAR) {
        made = NULL;
        rc = vips_cast(*image, &made, VIPS_FORMAT_UCHAR, NULL);
        rc = replace(image, made, rc);
    }
    return rc;
}

/* Cuts out the part at the fraction `crop` of the free movement. */
static int cut(VipsImage **image, struct image_shape to, uint32_t crop)
{
    VipsImage *made = NULL;
    const int x = (*image)->Xsize - to.width, y = (*image)->Ysize - to.height;
    const int left = x > 0 ? (int)((uint64_t)crop * (uint64_t)(x + 1) >> 32) : 0;
    const int top = y > 0 ? (int)((uint64_t)crop * (uint64_t)(y + 1) >> 32) : 0;
    int rc = vips_extract_area(*image, &made, left, top, to.width, to.height, NULL);
    return replace(image, made, rc);
}

int image_decode(const void *data, size_t len, struct image_shape to, const uint32_t *crop,
                 uint8_t *out, struct err *err)
{
    if (to.width < 1 || to.height < 1 || to.width > SIZE_MAX_PIXELS || to.height > SIZE_MAX_PIXELS)
        return err_set(err, -EINVAL, "cannot decode to %d x %d pixels", to.width, to.height);
    VipsImage *full = NULL, *image = NULL;
    int rc = load_pixels(data, len, to, &full, err);
    if (rc < 0)
        return rc;
    rc = vips_thumbnail_image(full, &image, to.width, "height", to.height, "crop",
                              crop ? VIPS_INTERESTING_ALL : VIPS_INTERESTING_CENTRE, "size",
                              VIPS_SIZE_BOTH, NULL);
    g_object_unref(full);
    if (rc == 0 && crop)
        rc = cut(&image, to, *crop);
    if (rc == 0)
        rc = to_rgb(&image);
    if (rc != 0) {
        if (image)
            g_object_unref(image);
        return fail(err);
    }
    size_t bytes = 0;
    void *pixels = NULL;
    if (image->Xsize == to.width && image->Ysize == to.height && image->Bands == 3)
        pixels = vips_image_write_to_memory(image, &bytes);
    rc = pixels && bytes == (size_t)to.width * (size_t)to.height * 3 ? 0 : fail(err);
    if (rc == 0)
        memcpy(out, pixels, bytes);
    g_free(pixels);
    g_object_unref(image);
    return rc;
}

int image_png(const uint8_t *rgb, int width, int height, struct buf *out, struct err *err)
{
    if (width < 1 || height < 1 || width > IMAGE_SIDE_MAX || height > IMAGE_SIDE_MAX)
        return err_set(err, -EINVAL, "cannot write a PNG of %d x %d pixels", width, height);
    size_t bytes = (size_t)width * (size_t)height * 3;
    VipsImage *image = vips_image_new_from_memory(rgb, bytes, width, height, 3, VIPS_FORMAT_UCHAR);
    if (!image)
        return fail(err);
    image->Type = VIPS_INTERPRETATION_sRGB;
    void *png = NULL;
    size_t png_bytes = 0;
    int rc = vips_pngsave_buffer(image, &png, &png_bytes, "strip", TRUE, NULL);
    g_object_unref(image);
    if (rc != 0)
        return fail(err);
    rc = buf_append(out, png, png_bytes);
    g_free(png);
    return rc < 0 ? err_set(err, rc, "the buffer is too small for a PNG of %zu bytes", png_bytes)
                  : 0;
}

int image_write_png(const char *path, const uint8_t *rgb, int width, int height, struct err *err)
{
    struct buf png;
    buf_init(&png, SIZE_MAX / 2);
    int rc = image_png(rgb, width, height, &png, err);
    if (rc == 0)
        rc = file_write_atomic(path, png.data, png.len, 0644, err);
    buf_release(&png);
    return rc;
}

int image_grid(const uint8_t *images, int n, int size, int columns, int gap, uint8_t **ret_rgb,
               int *ret_width, int *ret_height, struct err *err)
{
    if (n < 1 || size < 1 || columns < 1 || gap < 0 || n > 65536 || size > SIZE_MAX_PIXELS ||
        gap > 256)
        return err_set(err, -EINVAL, "cannot make a grid of %d images", n);
    if (columns > n)
        columns = n;
    int rows = (n + columns - 1) / columns;
    size_t width = (size_t)columns * (size_t)(size + gap) + (size_t)gap;
    size_t height = (size_t)rows * (size_t)(size + gap) + (size_t)gap;
    if (width > IMAGE_SIDE_MAX || height > IMAGE_SIDE_MAX)
        return err_set(err, -ERR_LIMIT, "a grid of %zu x %zu pixels is too large", width, height);
    uint8_t *rgb = mem_try(width * height * 3);
    if (!rgb)
        return err_set(err, -ENOMEM, "out of memory for a grid of %zu x %zu pixels", width, height);
    memset(rgb, 255, width * height * 3);
    size_t row_bytes = (size_t)size * 3;
    for (int i = 0; i < n; i++) {
        size_t x = (size_t)gap + (size_t)(i % columns) * (size_t)(size + gap);
        size_t y = (size_t)gap + (size_t)(i / columns) * (size_t)(size + gap);
        const uint8_t *src = images + (size_t)i * row_bytes * (size_t)size;
        for (int r = 0; r < size; r++)
            memcpy(rgb + ((y + (size_t)r) * width + x) * 3, src + (size_t)r * row_bytes, row_bytes);
    }
    *ret_rgb = rgb;
    *ret_width = (int)width;
    *ret_height = (int)height;
    return 0;
}
