/* Request bodies: what is refused, and whether the sentence helps. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "coordinator/http/http_body.h"

static const struct http_field fields[] = {
    {"count", HTTP_INT, .min = 1, .max = 1024},
    {"labels", HTTP_ARRAY, .min = 1, .max = 3},
    {"guidance", HTTP_REAL, .min = 0, .max = 100},
    {"sampler", HTTP_STRING, .min = 1, .max = 8},
    {"sha256", HTTP_SHA256},
    {"ema", HTTP_BOOL},
    {"spec", HTTP_OBJECT},
    {"name", HTTP_STRING, .required = true},
};
#define N_FIELDS (sizeof fields / sizeof fields[0])
#define HEX "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static int check(const char *text, struct err *err)
{
    json_t *body = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(body);
    int rc = http_body_check(body, "the body", fields, N_FIELDS, err);
    json_decref(body);
    return rc;
}

static void test_accepts(void **state)
{
    static const char *const good[] = {
        "{\"name\":\"\"}",
        "{\"name\":\"a\",\"count\":1}",
        "{\"name\":\"a\",\"count\":1024,\"labels\":[1,2,3],\"ema\":false,\"spec\":{}}",
        "{\"name\":\"a\",\"guidance\":4,\"sampler\":\"12345678\",\"sha256\":\"" HEX "\"}",
        "{\"name\":\"a\",\"guidance\":1.5}",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct err err = {0};
        if (check(good[i], &err) != 0)
            fail_msg("%s: %s", good[i], err.msg);
    }
}

static void test_refuses(void **state)
{
    static const struct {
        const char *body, *sentence;
    } bad[] = {
        {"[]", "must be a JSON object, not a list of 0 items"},
        {"7", "must be a JSON object, not 7"},
        {"{}", "lacks \"name\", a text"},
        {"{\"name\":7}", "\"name\" of the body must be a text, not 7"},
        {"{\"name\":null}", "must be a text, not null"},
        {"{\"name\":\"a\",\"lables\":[1]}", "did you mean \"labels\"?"},
        {"{\"name\":\"a\",\"xyzzy\":1}", "unknown key \"xyzzy\": known are count, labels"},
        {"{\"name\":\"a\",\"count\":0}", "a whole number from 1 to 1024, not 0"},
        {"{\"name\":\"a\",\"count\":1025}", "not 1025"},
        {"{\"name\":\"a\",\"count\":1.5}", "not 1.5"},
        {"{\"name\":\"a\",\"count\":\"7\"}", "not \"7\""},
        {"{\"name\":\"a\",\"count\":true}", "not true"},
        {"{\"name\":\"a\",\"labels\":[]}", "a list of 1 to 3 items, not a list of 0 items"},
        {"{\"name\":\"a\",\"labels\":{}}", "not an object"},
        {"{\"name\":\"a\",\"guidance\":-0.1}", "a number from 0 to 100"},
        {"{\"name\":\"a\",\"sampler\":\"123456789\"}", "a text of 1 to 8 bytes"},
        {"{\"name\":\"a\",\"sha256\":\"00\"}", "64 hex digits"},
        {"{\"name\":\"a\",\"sha256\":\""
         "A"
         "0112233445566778899aabbccddeeff00112233445566778899aab"
         "bccddeeff\"}",
         "64 hex digits"},
        {"{\"name\":\"a\",\"ema\":1}", "true or false, not 1"},
        {"{\"name\":\"a\",\"spec\":[]}", "an object, not a list"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err err = {0};
        int rc = check(bad[i].body, &err);
        if (rc != -EINVAL || err.code != -EINVAL || strstr(err.msg, bad[i].sentence) == NULL)
            fail_msg("%s: %d, \"%s\" lacks \"%s\"", bad[i].body, rc, err.msg, bad[i].sentence);
    }
}

static void test_empty_body_only(void **state)
{
    struct err err = {0};
    json_t *body = json_loads("{\"force\":true}", 0, NULL);
    assert_int_equal(http_body_check(body, "the body", NULL, 0, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "it must be empty"));
    assert_int_equal(http_body_check(body, "the body", NULL, 0, NULL), -EINVAL);
    json_object_clear(body);
    assert_int_equal(http_body_check(body, "the body", NULL, 0, &err), 0);
    json_decref(body);
}

static void test_long_values_are_not_echoed(void **state)
{
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    struct err err = {0};
    json_t *body = json_pack("{s:s, s:s}", "name", "a", "count", text);
    assert_int_equal(http_body_check(body, "the body", fields, N_FIELDS, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "a text of 2999 bytes"));
    json_decref(body);
    body = json_pack("{s:i}", text, 1);
    assert_int_equal(http_body_check(body, "the body", fields, N_FIELDS, &err), -EINVAL);
    assert_true(strlen(err.msg) < 400);
    json_decref(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_empty_body_only),
        cmocka_unit_test(test_long_values_are_not_echoed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
