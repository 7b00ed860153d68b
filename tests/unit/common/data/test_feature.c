#include "common/data/feature.h"

#include <math.h>

#include "tests/unit/common/base/util.h"

/* A .npy with this header and payload. */
static const char *read_npy(struct feature *f, const char *header, const void *data, size_t len)
{
    uint8_t file[512];
    size_t n = strlen(header);
    memcpy(file, "\x93NUMPY\1\0", 8);
    file[8] = (uint8_t)n;
    file[9] = 0;
    memcpy(file + 10, header, n);
    memcpy(file + 10 + n, data, len);
    return feature_from_npy(file, 10 + n + len, f);
}

static void reads_npy(void **state)
{
    struct feature f = {0};
    const float four[] = {1.5f, -2};
    const double eight[] = {0.25, 1e300, 3};
    const uint16_t half[] = {0x3c00, 0xc000, 0x0001, 0x7bff};
    assert_null(read_npy(&f, "{'descr': '<f4', 'shape': (2,), }", four, sizeof(four)));
    assert_int_equal(f.n, 2);
    assert_memory_equal(f.v, four, sizeof(four));
    assert_null(read_npy(&f, "{'shape': (1, 4), 'descr': '<f2'}", half, sizeof(half)));
    assert_true(f.v[0] == 1 && f.v[1] == -2 && f.v[2] == ldexpf(1, -24) && f.v[3] == 65504);
    assert_null(read_npy(&f, "{'descr': '<f8', 'shape': (1, 1)}", eight, 8));
    assert_true(f.n == 1 && f.v[0] == 0.25f);
    assert_string_equal(read_npy(&f, "{'descr': '<f8', 'shape': (3,)}", eight, sizeof(eight)),
                        "has a number that is not finite"); /* beyond f32 */
    feature_release(&f);
    assert_null(f.v);
}

static void refuses_npy(void **state)
{
    static const struct {
        const char *header, *says;
    } cases[] = {
        {"{'descr': '<i4', 'shape': (2,)}", "of another type than f2, f4 or f8"},
        {"{'descr': '>f4', 'shape': (2,)}", "of another type than f2, f4 or f8"},
        {"{'shape': (2,)}", "of another type than f2, f4 or f8"},
        {"{'descr': '<f4'}", "holds no single row"},
        {"{'descr': '<f4', 'shape': ()}", "holds no single row"},
        {"{'descr': '<f4', 'shape': (2, 2)}", "holds no single row"},
        {"{'descr': '<f4', 'shape': (0,)}", "holds no single row"},
        {"{'descr': '<f4', 'shape': (1, 2, 1)}", "holds no single row"},
        {"{'descr': '<f4', 'shape': (99999999999999,)}", "holds no single row"},
        {"{'descr': '<f4', 'shape': (65537,)}", "has more than 65536 numbers"},
        {"{'descr': '<f4', 'shape': (3,)}", "another length than its shape says"},
    };
    const float two[] = {1, 2};
    struct feature f = {0};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *why = read_npy(&f, cases[i].header, two, sizeof(two));
        assert_non_null(why);
        assert_non_null(strstr(why, cases[i].says));
    }
    assert_string_equal(feature_from_npy("junk", 4, &f), "is no .npy file");
    assert_string_equal(feature_from_npy("\x93NUMPY\1\0\xff\xff{}", 12, &f),
                        "is a .npy file that is cut short");
    feature_release(&f);
}

static const char *read_json(struct feature *f, const char *text)
{
    json_t *array = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(array);
    const char *why = feature_from_json(array, f);
    json_decref(array);
    return why;
}

static void reads_json(void **state)
{
    struct feature f = {0};
    assert_null(read_json(&f, "[1, 2.5, -3]"));
    assert_true(f.n == 3 && f.v[0] == 1 && f.v[1] == 2.5f && f.v[2] == -3);
    assert_string_equal(read_json(&f, "[]"), "is not an array of numbers");
    assert_string_equal(read_json(&f, "\"x\""), "is not an array of numbers");
    assert_string_equal(read_json(&f, "[1, null]"), "has a number that is not finite");
    assert_string_equal(read_json(&f, "[1e300]"), "has a number that is not finite");
    feature_release(&f);
}

/* As Python writes them; a string may hold anything. */
static void takes_nan_for_null(void **state)
{
    static const struct {
        const char *text, *is;
    } cases[] = {
        {"[NaN,-Infinity,Infinity,1]", "[null,null,null,1.0]"},
        {"{\"a\":NaN,\"b\":\"NaN \\\"NaN\"}", "{\"a\":null,\"b\":\"NaN \\\"NaN\"}"},
        {"{\"a\":123456789012345678901234567890}", "{\"a\":1.2e29}"},
        {"[\"NaN\"", NULL},
        {"[NaN", NULL},
        {"[nan]", NULL},
        {"[NaNa]", NULL},
        {"\\", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        json_error_t fault = {0};
        json_t *root = feature_json(cases[i].text, strlen(cases[i].text), 0, &fault);
        char *is = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(2));
        if (cases[i].is ? !is || strcmp(is, cases[i].is) != 0 : root || !*fault.text)
            fail_msg("%s is %s", cases[i].text, is ? is : fault.text);
        free(is);
        json_decref(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_nan_for_null),
        cmocka_unit_test(reads_npy),
        cmocka_unit_test(refuses_npy),
        cmocka_unit_test(reads_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
