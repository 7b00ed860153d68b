/* Event files: framing to the byte, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/show/event_file.h"
#include "common/base/clock.h"
#include "common/base/file.h"

static char dir[64];

static int open_dir(void **state)
{
    (void)snprintf(dir, sizeof dir, "/tmp/skerry-events.XXXXXX");
    clock_fake_set(1500000000); /* 1.5 s */
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    clock_fake_clear();
    return file_remove_tree(dir, NULL);
}

/* Vectors of RFC 3720, B.4, and the usual check value. */
static void crc32c(void **state)
{
    uint8_t bytes[32] = {0};
    assert_int_equal(event_crc32c("", 0), 0);
    assert_int_equal(event_crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(event_crc32c(bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, 32);
    assert_int_equal(event_crc32c(bytes, 32), 0x62a8ab43);
    for (uint8_t i = 0; i < 32; i++)
        bytes[i] = i;
    assert_int_equal(event_crc32c(bytes, 32), 0x46dd794e);
}

/* As TensorBoard's own writer frames the same events (tensorboard 2.21). */
static void a_file_to_the_byte(void **state)
{
    static const uint8_t expected[] = {
#include "tests/unit/cli/show/event_file.inc"
    };
    struct event_file f;
    struct err err = {0};
    struct buf got;
    char *path = file_join(dir, "a");
    assert_int_equal(event_file_open(&f, path, &err), 0);
    assert_int_equal(event_scalar(&f, "loss/round", 300, 0.5, &err), 0);
    assert_int_equal(event_scalar(&f, "zero", -1, 0, &err), 0);
    assert_int_equal(event_text(&f, "t", 2, "x", &err), 0);
    assert_int_equal(event_file_sync(&f, &err), 0);
    assert_int_equal(f.bytes, sizeof expected);
    event_file_close(&f);
    event_file_close(&f);
    assert_int_equal(file_read(path, 4096, &got, &err), 0);
    assert_int_equal(got.len, sizeof expected);
    assert_memory_equal(got.data, expected, sizeof expected);
    buf_release(&got);
    assert_int_equal(event_file_open(&f, path, &err), -EEXIST);
    assert_int_equal(f.fd, -1);
    mem_free(path);
}

static void the_size_of_a_picture(void **state)
{
    uint8_t png[24] = "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\1\2\0\0\0\7";
    int32_t w = 0, h = 0;
    assert_int_equal(event_png_size(png, sizeof png, &w, &h), 0);
    assert_int_equal(w, 258);
    assert_int_equal(h, 7);
    assert_int_equal(event_png_size(png, sizeof png - 1, &w, &h), -ERR_FORMAT);
    png[23] = 0;
    assert_int_equal(event_png_size(png, sizeof png, &w, &h), -ERR_FORMAT);
    png[20] = 0x80;
    assert_int_equal(event_png_size(png, sizeof png, &w, &h), -ERR_FORMAT);
    png[20] = 0, png[23] = 1, png[1] = 'p';
    assert_int_equal(event_png_size(png, sizeof png, &w, &h), -ERR_FORMAT);
}

static void what_is_refused_leaves_the_file_as_it_was(void **state)
{
    struct event_file f;
    struct err err = {0};
    char *path = file_join(dir, "b"), *text = mem_alloc(EVENT_BYTES_MAX + 1);
    uint64_t size;
    memset(text, 'a', EVENT_BYTES_MAX);
    assert_int_equal(event_file_open(&f, path, &err), 0);
    const uint64_t before = f.bytes;
    assert_int_equal(event_text(&f, "t", 1, text, &err), -ERR_LIMIT);
    assert_int_equal(event_image(&f, "i", 1, "GIF89a", 6, &err), -ERR_FORMAT);
    assert_int_equal(f.bytes, before);
    event_file_close(&f);
    assert_int_equal(file_size(path, &size, &err), 0);
    assert_int_equal(size, before);
    mem_free(text);
    mem_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c),
        cmocka_unit_test(a_file_to_the_byte),
        cmocka_unit_test(the_size_of_a_picture),
        cmocka_unit_test(what_is_refused_leaves_the_file_as_it_was),
    };
    return cmocka_run_group_tests(tests, open_dir, remove_dir);
}
