/* The file of a step: a bar for each instruction, under the name that a person reads. */
#include "worker/pipe/trace.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>

#include "tests/unit/common/base/util.h"

static char *top;

static int setup(void **state)
{
    top = scratch_new();
    return 0;
}

static int teardown(void **state)
{
    scratch_free(top);
    return 0;
}

/* Bars with the times 1 to 2 s, 2 to 4 s, 3 to 6 s and so on. */
static json_t *write_and_read(const char *name, int chains, struct pipe_instr *items, int n,
                              int measured)
{
    struct trace_row rows[16];
    for (int i = 0; i < n; i++)
        rows[i] = (struct trace_row){.start = i + 1, .end = 2 * (i + 1), .ready = 100};
    const struct pipe_list list = {.items = items, .n = n};
    const struct trace trace = {.rows = rows, .n = measured};
    const struct trace_device devices[] = {{"idle", chains, &list, &(struct trace){0}},
                                           {name, chains, &list, &trace}};
    char *path = in(top, "trace.json");
    OK(trace_write(path, devices, 2, err));
    json_t *doc = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(doc);
    mem_free(path);
    assert_string_equal(json_string_value(json_object_get(doc, "displayTimeUnit")), "ms");
    return doc;
}

static void expect_row(const json_t *event, int device, const char *name)
{
    const json_t *args = json_object_get(event, "args");
    assert_string_equal(json_string_value(json_object_get(event, "name")), "thread_name");
    assert_string_equal(json_string_value(json_object_get(event, "ph")), "M");
    assert_int_equal(json_integer_value(json_object_get(event, "pid")), 0);
    assert_int_equal(json_integer_value(json_object_get(event, "tid")), device);
    assert_string_equal(json_string_value(json_object_get(args, "name")), name);
}

/* The bars of the second device have these names, in order. */
static void expect_bars(json_t *doc, const char *device, const char *const *names, size_t n)
{
    const json_t *events = json_object_get(doc, "traceEvents");
    assert_int_equal(json_array_size(events), n + 2);
    expect_row(json_array_get(events, 0), 0, "idle");
    expect_row(json_array_get(events, 1), 1, device);
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(events, i + 2);
        assert_string_equal(json_string_value(json_object_get(e, "name")), names[i]);
        assert_string_equal(json_string_value(json_object_get(e, "ph")), "X");
        assert_int_equal(json_integer_value(json_object_get(e, "pid")), 0);
        assert_int_equal(json_integer_value(json_object_get(e, "tid")), 1);
        assert_true(json_real_value(json_object_get(e, "ts")) == 1e6 * (double)(i + 1));
        assert_true(json_real_value(json_object_get(e, "dur")) == 1e6 * (double)(i + 1));
    }
    json_decref(doc);
}

static void names(void **state)
{
    struct pipe_instr items[] = {
        {.op = PIPE_LOAD},
        {.op = PIPE_F, .micro = 3, .chain = 1},
        {.op = PIPE_B, .micro = 0},
        {.op = PIPE_W, .micro = 12},
        {.op = PIPE_E, .micro = 1},
        {.op = PIPE_SEND, .what = PIPE_STATES, .micro = 3},
        {.op = PIPE_RECV, .what = PIPE_GRADIENTS, .micro = 2},
        {.op = PIPE_RECV, .what = PIPE_VELOCITIES, .micro = 4},
        {.op = PIPE_SEND, .what = PIPE_ENCODED, .first = 4, .count = 3},
        {.op = PIPE_FROZEN, .chain = 1, .from = 2, .to = 5, .first = 0, .count = 4},
        {.op = PIPE_REDUCE},
        {.op = PIPE_CLIP},
        {.op = PIPE_STEP},
    };
    static const char *const one[] = {"LOAD",
                                      "F 3",
                                      "B 0",
                                      "W 12",
                                      "E 1",
                                      "SEND states 3",
                                      "RECV gradients 2",
                                      "RECV velocities 4",
                                      "SEND encoded, samples 4-6",
                                      "FROZEN 1, layers 2-4, samples 0-3",
                                      "REDUCE",
                                      "CLIP",
                                      "STEP"};
    expect_bars(write_and_read("cuda:0, \"measured\"", 1, items, COUNT(items), COUNT(items)),
                "cuda:0, \"measured\"", one, COUNT(one));
    /* Two chains: passes and what they carry name theirs; frozen networks are no chains. */
    static const char *const two[] = {"LOAD",
                                      "F 3 upscaler",
                                      "B 0 base",
                                      "W 12 base",
                                      "E 1 base",
                                      "SEND states 3 base",
                                      "RECV gradients 2 base",
                                      "RECV velocities 4 base",
                                      "SEND encoded, samples 4-6",
                                      "FROZEN 1, layers 2-4, samples 0-3"};
    expect_bars(write_and_read("b", 2, items, 10, 10), "b", two, COUNT(two));
}

/* Of a step that was not measured to its end there is what was measured. */
static void a_part(void **state)
{
    struct pipe_instr items[] = {{.op = PIPE_LOAD}, {.op = PIPE_STEP}, {.op = PIPE_CLIP}};
    static const char *const all[] = {"LOAD", "STEP", "CLIP"};
    expect_bars(write_and_read("a", 1, items, 3, 2), "a", all, 2);
    expect_bars(write_and_read("a", 1, items, 2, 3), "a", all, 2);
}

static void an_old_file_stays(void **state)
{
    struct err e = {0};
    char *path = in(top, "trace.json");
    put(top, "trace.json/in the way", "x", 1);
    assert_true(trace_write(path, NULL, 0, &e) < 0);
    assert_non_null(strstr(e.msg, "trace.json"));
    char *file = in(path, "in the way");
    assert_true(file_exists(file));
    mem_free(file);
    mem_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names, setup, teardown),
        cmocka_unit_test_setup_teardown(a_part, setup, teardown),
        cmocka_unit_test_setup_teardown(an_old_file_stays, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
