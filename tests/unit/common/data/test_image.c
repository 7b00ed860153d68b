#include "common/data/image.h"

#include <errno.h>
#include <pthread.h>
#include <vips/vips.h>

#include "tests/unit/common/base/util.h"

/* Left half red, right half blue, 64 x 32. */
static VipsImage *picture(void)
{
    static uint8_t rgb[32 * 64 * 3];
    for (int y = 0; y < 32; y++)
        for (int x = 0; x < 64; x++) {
            uint8_t *p = rgb + (y * 64 + x) * 3;
            p[0] = x < 32 ? 255 : 0;
            p[1] = 0;
            p[2] = x < 32 ? 0 : 255;
        }
    VipsImage *image = vips_image_new_from_memory(rgb, sizeof(rgb), 64, 32, 3, VIPS_FORMAT_UCHAR);
    assert_non_null(image);
    image->Type = VIPS_INTERPRETATION_sRGB;
    return image;
}

static void check_halves(const void *data, size_t len)
{
    uint8_t out[16 * 16 * 3];
    OK(image_decode(data, len, image_square(16), NULL, out, err));
    for (int y = 0; y < 16; y += 15) {
        const uint8_t *left = out + (y * 16 + 2) * 3, *right = out + (y * 16 + 13) * 3;
        assert_true(left[0] > 200 && left[1] < 60 && left[2] < 60);
        assert_true(right[0] < 60 && right[1] < 60 && right[2] > 200);
    }
}

static void decodes_every_format(void **state)
{
    VipsImage *image = picture(), *cmyk = NULL, *deep = NULL;
    void *bytes;
    size_t n;
    assert_int_equal(vips_jpegsave_buffer(image, &bytes, &n, "Q", 95, "no_subsample", TRUE, NULL),
                     0);
    check_halves(bytes, n);
    g_free(bytes);
    assert_int_equal(vips_pngsave_buffer(image, &bytes, &n, NULL), 0);
    check_halves(bytes, n);
    int w, h;
    OK(image_info(bytes, n, &w, &h, err));
    assert_true(w == 64 && h == 32);
    g_free(bytes);
    assert_int_equal(vips_pngsave_buffer(image, &bytes, &n, "palette", TRUE, NULL), 0);
    check_halves(bytes, n);
    g_free(bytes);
    assert_int_equal(vips_webpsave_buffer(image, &bytes, &n, "lossless", TRUE, NULL), 0);
    check_halves(bytes, n);
    g_free(bytes);
    assert_int_equal(vips_colourspace(image, &deep, VIPS_INTERPRETATION_RGB16, NULL), 0);
    assert_int_equal(vips_pngsave_buffer(deep, &bytes, &n, NULL), 0);
    check_halves(bytes, n);
    g_free(bytes);
    g_object_unref(deep);
    assert_int_equal(vips_colourspace(image, &cmyk, VIPS_INTERPRETATION_CMYK, NULL), 0);
    assert_int_equal(vips_jpegsave_buffer(cmyk, &bytes, &n, "Q", 95, NULL), 0);
    uint8_t out[8 * 8 * 3];
    OK(image_decode(bytes, n, image_square(8), NULL, out, err));
    assert_true(out[0] > out[2]);
    g_free(bytes);
    g_object_unref(cmyk);
    g_object_unref(image);
}

/* Of which a camera says that it lay on its side, as the picture is to be seen. */
static void turns_as_the_camera_says(void **state)
{
    VipsImage *image = picture(), *lying = NULL;
    void *bytes;
    size_t n;
    int w, h;
    assert_int_equal(vips_rot270(image, &lying, NULL), 0);
    vips_image_set_int(lying, VIPS_META_ORIENTATION, 6);
    for (int webp = 0; webp < 2; webp++) {
        assert_int_equal(webp ? vips_webpsave_buffer(lying, &bytes, &n, "lossless", TRUE, NULL)
                              : vips_jpegsave_buffer(lying, &bytes, &n, NULL),
                         0);
        OK(image_info(bytes, n, &w, &h, err));
        assert_true(w == 64 && h == 32);
        check_halves(bytes, n);
        g_free(bytes);
    }
    g_object_unref(lying);
    g_object_unref(image);
}

/* Green as a phone stores it: (117, 251, 76) of Display P3 is the greenest of sRGB.  Read as sRGB
 * it would be paler. */
static void converts_profiles(void **state)
{
    VipsImage *green, *phone = NULL;
    uint8_t out[8 * 8 * 3];
    void *bytes;
    size_t n;
    static uint8_t rgb[8 * 8 * 3];
    for (size_t i = 1; i < sizeof(rgb); i += 3)
        rgb[i] = 255;
    green = vips_image_new_from_memory(rgb, sizeof(rgb), 8, 8, 3, VIPS_FORMAT_UCHAR);
    green->Type = VIPS_INTERPRETATION_sRGB;
    assert_int_equal(vips_icc_transform(green, &phone, "p3", "input_profile", "srgb", NULL), 0);
    for (int kind = 0; kind < 3; kind++) {
        assert_int_equal(kind == 0 ? vips_jpegsave_buffer(phone, &bytes, &n, "Q", 95, NULL)
                         : kind == 1
                             ? vips_pngsave_buffer(phone, &bytes, &n, NULL)
                             : vips_webpsave_buffer(phone, &bytes, &n, "lossless", TRUE, NULL),
                         0);
        OK(image_decode(bytes, n, image_square(8), NULL, out, err));
        assert_true(out[0] < 12 && out[1] > 248 && out[2] < 12);
        g_free(bytes);
    }
    g_object_unref(phone);
    g_object_unref(green);
}

/* Columns whose middle pixel is red. */
static int red_columns(const uint8_t *rgb)
{
    int n = 0;
    for (int x = 0; x < 16; x++)
        n += rgb[(8 * 16 + x) * 3] > 127;
    return n;
}

/* 32 x 16 pixels hold 17 squares; each is drawn by a 17th of the numbers. */
static void crops_anywhere(void **state)
{
    VipsImage *image = picture(), *tall = NULL;
    uint8_t out[16 * 16 * 3], centre[16 * 16 * 3];
    void *bytes;
    size_t n;
    assert_int_equal(vips_pngsave_buffer(image, &bytes, &n, NULL), 0);
    for (uint32_t k = 0; k < 17; k++) {
        const uint32_t first = (uint32_t)(((uint64_t)k << 32) / 17) + (k > 0),
                       last = first + 0xf0f0f0e;
        OK(image_decode(bytes, n, image_square(16), &first, out, err));
        assert_int_equal(red_columns(out), 16 - k);
        OK(image_decode(bytes, n, image_square(16), &last, out, err));
        assert_int_equal(red_columns(out), 16 - k);
    }
    const uint32_t middle = 1u << 31, end = UINT32_MAX;
    OK(image_decode(bytes, n, image_square(16), NULL, centre, err));
    OK(image_decode(bytes, n, image_square(16), &middle, out, err));
    assert_memory_equal(out, centre, sizeof(out));
    g_free(bytes);
    assert_int_equal(vips_rot90(image, &tall, NULL), 0); /* red above */
    assert_int_equal(vips_pngsave_buffer(tall, &bytes, &n, NULL), 0);
    OK(image_decode(bytes, n, image_square(16), &end, out, err));
    assert_int_equal(red_columns(out), 0);
    g_free(bytes);
    g_object_unref(tall);
    g_object_unref(image);
}

#define THREADS 8
#define IMAGES 300

struct shared_png {
    void *bytes;
    size_t n;
};

static void *decode_many(void *arg)
{
    const struct shared_png *png = arg;
    uint8_t out[16 * 16 * 3];
    uintptr_t good = 0;
    for (int i = 0; i < IMAGES; i++)
        good += image_decode(png->bytes, png->n, image_square(16), NULL, out, NULL) == 0;
    image_thread_exit();
    return (void *)good;
}

/* Code made at run time by liborc ended the process here. */
static void many_threads_decode(void **state)
{
    struct shared_png png;
    VipsImage *image = picture();
    assert_int_equal(vips_pngsave_buffer(image, &png.bytes, &png.n, NULL), 0);
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, decode_many, &png), 0);
    for (int t = 0; t < THREADS; t++) {
        void *good;
        assert_int_equal(pthread_join(threads[t], &good), 0);
        assert_int_equal((uintptr_t)good, IMAGES);
    }
    g_free(png.bytes);
    g_object_unref(image);
}

/* Grey, grey with alpha, colour with alpha: transparent is white. */
static void flattens_on_white(void **state)
{
    static const uint8_t pixels[2][4] = {{10, 0}, {10, 20, 30, 0}};
    for (int i = 0; i < 2; i++) {
        int bands = i ? 4 : 2;
        uint8_t raw[16 * 16 * 4], out[8 * 8 * 3];
        for (int p = 0; p < 256; p++)
            memcpy(raw + p * bands, pixels[i], (size_t)bands);
        VipsImage *image = vips_image_new_from_memory_copy(raw, (size_t)(256 * bands), 16, 16,
                                                           bands, VIPS_FORMAT_UCHAR);
        image->Type = i ? VIPS_INTERPRETATION_sRGB : VIPS_INTERPRETATION_B_W;
        void *bytes;
        size_t n;
        assert_int_equal(vips_pngsave_buffer(image, &bytes, &n, NULL), 0);
        OK(image_decode(bytes, n, image_square(8), NULL, out, err));
        for (size_t b = 0; b < sizeof(out); b++)
            assert_int_equal(out[b], 255);
        g_free(bytes);
        g_object_unref(image);
    }
    uint8_t grey[64], out[4 * 4 * 3];
    memset(grey, 77, sizeof(grey));
    VipsImage *image = vips_image_new_from_memory(grey, 64, 8, 8, 1, VIPS_FORMAT_UCHAR);
    image->Type = VIPS_INTERPRETATION_B_W;
    void *bytes;
    size_t n;
    assert_int_equal(vips_pngsave_buffer(image, &bytes, &n, NULL), 0);
    OK(image_decode(bytes, n, image_square(4), NULL, out, err));
    for (size_t b = 0; b < sizeof(out); b++)
        assert_in_range(out[b], 75, 79);
    g_free(bytes);
    g_object_unref(image);
}

static void refuses_broken_images(void **state)
{
    VipsImage *image = picture();
    uint8_t out[16 * 16 * 3];
    void *png, *jpg;
    size_t png_n, jpg_n;
    assert_int_equal(vips_pngsave_buffer(image, &png, &png_n, NULL), 0);
    assert_int_equal(vips_jpegsave_buffer(image, &jpg, &jpg_n, NULL), 0);
    FAILS(image_decode("hello", 5, image_square(16), NULL, out, err),
          "not a JPEG, PNG or WebP image");
    FAILS(image_decode("", 0, image_square(16), NULL, out, err), "not a JPEG, PNG or WebP image");
    FAILS(image_decode(png, png_n / 2, image_square(16), NULL, out, err), "broken image");
    FAILS(image_decode(jpg, jpg_n / 2, image_square(16), NULL, out, err), "broken image");
    FAILS(image_decode(png, 20, image_square(16), NULL, out, err), "broken image");
    FAILS(image_decode("\xff\xd8\xff\xe0 nothing follows", 20, image_square(16), NULL, out, err),
          "broken image");
    FAILS(image_decode("RIFF\x10\0\0\0WEBPVP8 xxxxxxxx", 24, image_square(16), NULL, out, err),
          "broken image");
    FAILS(image_decode(png, png_n, image_square(0), NULL, out, err), "cannot decode to 0");
    /* A header that promises 30000 x 30000 pixels, its checksum mended. */
    uint8_t bomb[] = {0x89, 'P',  'N', 'G', '\r', '\n', 0x1a, '\n', 0,    0,    0,
                      13,   'I',  'H', 'D', 'R',  0,    0,    0x75, 0x30, 0,    0,
                      0x75, 0x30, 8,   2,   0,    0,    0,    0x4d, 0xc4, 0x44, 0x56};
    struct err e = {0};
    assert_true(image_decode(bomb, sizeof(bomb), image_square(16), NULL, out, &e) < 0);
    assert_non_null(strstr(e.msg, "image"));
    g_free(png);
    g_free(jpg);
    g_object_unref(image);
    /* Side limit through a real header: 20000 x 1. */
    uint8_t *row = mem_alloc(20000 * 3);
    VipsImage *wide = vips_image_new_from_memory(row, 60000, 20000, 1, 3, VIPS_FORMAT_UCHAR);
    assert_int_equal(vips_pngsave_buffer(wide, &png, &png_n, NULL), 0);
    FAILS(image_decode(png, png_n, image_square(16), NULL, out, err),
          "20000 x 1 pixels is too large");
    g_free(png);
    g_object_unref(wide);
    mem_free(row);
}

/* A line of pixels, which would be scaled to 256 x 524288 before it is cropped. */
static void refuses_narrow_images(void **state)
{
    static uint8_t line[2048], out[256 * 256 * 3];
    void *png;
    size_t n;
    for (int tall = 0; tall < 2; tall++) {
        VipsImage *image = vips_image_new_from_memory(line, sizeof(line), tall ? 1 : 2048,
                                                      tall ? 2048 : 1, 1, VIPS_FORMAT_UCHAR);
        assert_int_equal(vips_pngsave_buffer(image, &png, &n, NULL), 0);
        FAILS(image_decode(png, n, image_square(256), NULL, out, err),
              tall ? "1 x 2048 pixels is too narrow for 256 x 256"
                   : "2048 x 1 pixels is too narrow for 256 x 256");
        OK(image_decode(png, n, image_square(16), NULL, out, err));
        OK(image_decode(png, n, (struct image_shape){tall ? 16 : 256, tall ? 256 : 16}, NULL, out,
                        err));
        g_free(png);
        g_object_unref(image);
    }
}

static void writes_png(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "x.png");
    uint8_t rgb[4 * 4 * 3], back[4 * 4 * 3];
    for (size_t i = 0; i < sizeof(rgb); i++)
        rgb[i] = (uint8_t)(i * 5);
    OK(image_write_png(path, rgb, 4, 4, err));
    struct buf b;
    OK(file_read(path, 1u << 20, &b, err));
    OK(image_decode(b.data, b.len, image_square(4), NULL, back, err));
    assert_memory_equal(rgb, back, sizeof(rgb));
    buf_release(&b);
    FAILS(image_png(rgb, 0, 4, &b, err), "cannot write a PNG");
    buf_init(&b, 10);
    FAILS(image_png(rgb, 4, 4, &b, err), "too small for a PNG");
    buf_release(&b);
    mem_free(path);
    scratch_free(dir);
}

static void arranges_grids(void **state)
{
    uint8_t images[3 * 2 * 2 * 3], *rgb;
    int w, h;
    for (size_t i = 0; i < sizeof(images); i++)
        images[i] = (uint8_t)(i / 12 + 1);
    OK(image_grid(images, 3, 2, 2, 1, &rgb, &w, &h, err));
    assert_true(w == 7 && h == 7);
    assert_int_equal(rgb[0], 255);
    assert_int_equal(rgb[(1 * 7 + 1) * 3], 1);
    assert_int_equal(rgb[(1 * 7 + 4) * 3], 2);
    assert_int_equal(rgb[(5 * 7 + 2) * 3 + 2], 3);
    assert_int_equal(rgb[(4 * 7 + 4) * 3], 255);
    mem_free(rgb);
    FAILS(image_grid(images, 0, 2, 2, 1, &rgb, &w, &h, err), "grid of 0");
}

static int setup(void **state)
{
    return image_init(NULL);
}

static int teardown(void **state)
{
    image_exit();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_every_format),  cmocka_unit_test(flattens_on_white),
        cmocka_unit_test(refuses_broken_images), cmocka_unit_test(writes_png),
        cmocka_unit_test(arranges_grids),        cmocka_unit_test(many_threads_decode),
        cmocka_unit_test(crops_anywhere),        cmocka_unit_test(turns_as_the_camera_says),
        cmocka_unit_test(refuses_narrow_images), cmocka_unit_test(converts_profiles),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
