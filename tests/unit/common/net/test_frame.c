/* Frames: what is written is read, and nothing else is. */
#include "common/net/frame.h"

#include "tests/unit/common/net/net_test.h"

static void test_frame(void **state)
{
    static const uint8_t golden[FRAME_HEADER_BYTES + 3] = {
        'S', 'K', 'R', 'Y', 1, 3, 0x34, 0x12, 3, 0, 0, 0, 0, 0, 0,   0,   0,   0,
        0,   0,   0,   0,   0, 0, 8,    7,    6, 5, 4, 3, 2, 1, 'a', 'b', 'c',
    };
    struct frame f = {.flags = FRAME_REPLY | FRAME_ERROR,
                      .method = 0x1234,
                      .body_len = 3,
                      .request_id = 0x0102030405060708ull};
    uint8_t bytes[sizeof(golden)];
    frame_write_header(&f, bytes);
    memcpy(bytes + FRAME_HEADER_BYTES, "abc", 3);
    assert_memory_equal(bytes, golden, sizeof(golden));
    struct frame got;
    for (size_t n = 0; n < sizeof(golden); n++)
        assert_int_equal(frame_parse(golden, n, 100, &got, NULL), -EAGAIN);
    assert_int_equal(frame_parse(golden, sizeof(golden), 100, &got, NULL), sizeof(golden));
    assert_int_equal(got.method, 0x1234);
    assert_true(got.request_id == f.request_id);
    assert_memory_equal(got.body, "abc", 3);
}

static void test_bad_frames(void **state)
{
    static const struct {
        unsigned at;
        uint8_t value;
        int code;
    } cases[] = {
        {0, 'X', -ERR_FORMAT}, {3, 'y', -ERR_FORMAT},  {4, 2, -ERR_VERSION},  {5, 4, -ERR_FORMAT},
        {5, 2, -ERR_FORMAT},   {8, 101, -ERR_LIMIT},   {11, 255, -ERR_LIMIT}, {12, 1, -ERR_FORMAT},
        {16, 1, -ERR_FORMAT},  {23, 255, -ERR_FORMAT},
    };
    struct frame f = {.method = 20, .body_len = 3}, got;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t bytes[FRAME_HEADER_BYTES];
        struct err err = {0};
        frame_write_header(&f, bytes);
        bytes[cases[i].at] = cases[i].value;
        assert_int_equal(frame_parse(bytes, sizeof(bytes), 100, &got, &err), cases[i].code);
        assert_true(err.msg[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frame),
        cmocka_unit_test(test_bad_frames),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
