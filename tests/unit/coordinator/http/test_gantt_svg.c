/* The picture of a step: a row for each device, bars in their colours, nothing that is not XML. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "coordinator/http/gantt_svg.h"

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

static int draw(const char *trace, struct buf *out, struct err *err)
{
    json_t *json = json_loads(trace, 0, NULL);
    assert_non_null(json);
    const int rc = gantt_svg(json, out, err);
    json_decref(json);
    return rc;
}

static void draws_devices_and_instructions(void **state)
{
    struct buf out;
    struct err err = {0};
    buf_init(&out, 1 << 20);
    assert_int_equal(
        draw("{\"traceEvents\": ["
             "{\"name\": \"thread_name\", \"ph\": \"M\", \"tid\": 0,"
             " \"args\": {\"name\": \"cpu, <0>\"}},"
             "{\"name\": \"thread_name\", \"ph\": \"M\", \"tid\": 1,"
             " \"args\": {\"name\": \"cpu\"}},"
             "{\"name\": \"F 0\", \"ph\": \"X\", \"tid\": 0, \"ts\": 0, \"dur\": 1000},"
             "{\"name\": \"FROZEN 0, layers 1-2, samples 0-3\", \"ph\": \"X\", \"tid\": 1,"
             " \"ts\": 500, \"dur\": 1500},"
             "{\"name\": \"W 0\", \"ph\": \"X\", \"tid\": 0, \"ts\": 1100, \"dur\": 2},"
             "{\"name\": \"SEND 0\", \"ph\": \"X\", \"tid\": 0, \"ts\": 1000, \"dur\": 1},"
             "{\"name\": \"B 0\", \"ph\": \"X\", \"tid\": 99, \"ts\": 1, \"dur\": 1}]}",
             &out, &err),
        0);
    const char *svg = buf_str(&out);
    assert_int_equal(count(svg, "#0072b2\"><title>F 0: 1 ms from 0 ms"), 1);
    assert_int_equal(
        count(svg, "#009e73\"><title>FROZEN 0, layers 1-2, samples 0-3: 1.5 ms from 0.5 ms"), 1);
    assert_int_equal(count(svg, "#56b4e9\"><title>W 0: 0.002 ms from 1.1 ms"), 1);
    assert_int_equal(count(svg, "<title>"), 3); /* a row that cannot be is left out */
    assert_int_equal(count(svg, ">F 0</text>"), 1);
    assert_int_equal(count(svg, ">W 0</text>"), 0); /* no room */
    assert_int_equal(count(svg, ">cpu, ?0?</text>"), 1);
    assert_int_equal(count(svg, ">busy 50 %</text>"), 1);
    assert_int_equal(count(svg, ">busy 75 %</text>"), 1);
    assert_int_equal(count(svg, "style"), 0); /* the page's policy allows none */
    assert_int_equal(count(svg, "</svg>"), 1);
    buf_release(&out);
}

static void refuses_what_is_no_trace(void **state)
{
    static const char *const bad[] = {
        "{}",
        "[]",
        "{\"traceEvents\": 3}",
        "{\"traceEvents\": []}",
        "{\"traceEvents\": [{\"name\": \"F\", \"ph\": \"X\", \"tid\": 0,"
        " \"ts\": 0, \"dur\": 1e-320}]}",
        "{\"traceEvents\": [1, {\"name\": \"F\", \"ph\": \"X\", \"tid\": -1,"
        " \"ts\": 1, \"dur\": 1}]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct buf out;
        struct err err = {0};
        buf_init(&out, 1 << 20);
        assert_int_equal(draw(bad[i], &out, &err), -ERR_FORMAT);
        assert_string_equal(err.msg, "the trace has no events");
        buf_release(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_devices_and_instructions),
        cmocka_unit_test(refuses_what_is_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
