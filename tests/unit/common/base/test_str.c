#include "common/base/str.h"

#include <errno.h>

#include "tests/unit/common/base/util.h"

static void parses_u64(void **state)
{
    static const struct {
        const char *text;
        int rc;
        uint64_t value;
    } cases[] = {
        {"0", 0, 0},
        {"18446744073709551615", 0, UINT64_MAX},
        {"18446744073709551616", -ERANGE, 0},
        {"0xff", 0, 255},
        {"0x", -EINVAL, 0},
        {"", -EINVAL, 0},
        {" 1", -EINVAL, 0},
        {"1 ", -EINVAL, 0},
        {"-1", -EINVAL, 0},
        {"+1", -EINVAL, 0},
        {"1e3", -EINVAL, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint64_t v = 0;
        assert_int_equal(str_parse_u64(cases[i].text, &v), cases[i].rc);
        assert_int_equal(v, cases[i].value);
    }
    int64_t i = 0;
    assert_int_equal(str_parse_i64("-9223372036854775808", &i), 0);
    assert_true(i == INT64_MIN);
    assert_int_equal(str_parse_i64("9223372036854775808", &i), -ERANGE);
    assert_int_equal(str_parse_i64("--1", &i), -EINVAL);
}

static void parses_numbers(void **state)
{
    static const char *const bad[] = {"", ".", "e5", "1.5x", "nan", "inf", "0x10", " 1", "1,5"};
    double d;
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(str_parse_double(bad[i], &d), -EINVAL);
    assert_int_equal(str_parse_double("1e999", &d), -ERANGE);
    OK(str_parse_double("-1.5e-3", &d));
    assert_true(d == -1.5e-3);
    OK(str_parse_double(".5", &d));
    assert_true(d == 0.5);
    bool b;
    OK(str_parse_bool("Yes", &b));
    assert_true(b);
    OK(str_parse_bool("off", &b));
    assert_false(b);
    assert_int_equal(str_parse_bool("1", &b), -EINVAL);
}

static void parses_units(void **state)
{
    uint64_t v;
    OK(str_parse_bytes("1.5GiB", &v));
    assert_int_equal(v, 1610612736);
    OK(str_parse_bytes("10MB", &v));
    assert_int_equal(v, 10000000);
    assert_int_equal(str_parse_bytes("10 MB", &v), -EINVAL);
    assert_int_equal(str_parse_bytes("-1", &v), -EINVAL);
    assert_int_equal(str_parse_bytes("1e30", &v), -ERANGE);
    OK(str_parse_duration_ms("250ms", &v));
    assert_int_equal(v, 250);
    OK(str_parse_duration_ms("1.5m", &v));
    assert_int_equal(v, 90000);
    OK(str_parse_duration_ms("0", &v));
    assert_int_equal(v, 0);
    assert_int_equal(str_parse_duration_ms("2", &v), -EINVAL);
    assert_int_equal(str_parse_duration_ms("2 s", &v), -EINVAL);
    char out[STR_HUMAN_MAX];
    assert_string_equal(str_human_bytes(1536, out), "1.5 KiB");
    assert_string_equal(str_human_bytes(1048575, out), "1.0 MiB");
    assert_string_equal(str_human_bytes(UINT64_MAX, out), "16.0 EiB");
    assert_string_equal(str_human_duration(65000, out), "1m05s");
    assert_string_equal(str_human_duration(7500, out), "7.5s");
    assert_string_equal(str_human_duration(82816000, out), "23h00m");
    assert_string_equal(str_human_duration(UINT64_C(360000000), out), "4d04h");
    assert_string_equal(str_human_number(0.04, out), "0.04");
    assert_string_equal(str_human_number(98.76, out), "98.8");
    assert_string_equal(str_human_number(1300, out), "1300");
    assert_string_equal(str_human_number(1e300, out), "1e+300");
}

static void suggests(void **state)
{
    static const char *const names[] = {"batch", "lr",  "warmup", "schedule", "weight_decay",
                                        NULL,    "ema", "rounds", "top"};
    static const struct {
        const char *word, *best;
    } cases[] = {
        {"lerning_rate", "lr"},
        {"learning_rate", "lr"},
        {"bacth", "batch"},
        {"wieght_decay", "weight_decay"},
        {"shedule", "schedule"},
        {"zzzzzz", NULL},
        {"decay", "weight_decay"},
        {"round", "rounds"},
        {"foo", NULL},
        {"ena", "ema"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *hit = str_suggest(cases[i].word, names, COUNT(names));
        if (cases[i].best)
            assert_string_equal(hit, cases[i].best);
        else
            assert_null(hit);
    }
    assert_int_equal(str_distance("kitten", "sitting"), 3);
    assert_int_equal(str_distance("ab", "ba"), 1);
    assert_int_equal(str_distance("", "abc"), 3);
}

static void checks_text(void **state)
{
    assert_true(str_is_name("a.B-9_", 64));
    assert_false(str_is_name("", 64));
    assert_false(str_is_name(".hidden", 64));
    assert_false(str_is_name("a/b", 64));
    assert_false(str_is_name("abc", 2));
    assert_true(str_is_utf8("gr\xc3\xbc\xc3\x9f", 6));
    assert_false(str_is_utf8("\xc0\x80", 2));         /* overlong */
    assert_false(str_is_utf8("\xed\xa0\x80", 3));     /* surrogate */
    assert_false(str_is_utf8("\xf4\x90\x80\x80", 4)); /* beyond U+10FFFF */
    assert_false(str_is_utf8("\xe2\x82", 2));         /* cut */
    char text[] = "\xc3\xa9 \xe9 \xe2\x82";
    str_make_utf8(text);
    assert_string_equal(text, "\xc3\xa9 ? ??");
    char orders[] = "\x1b]0;\xc2\x9b\x7f a\nb\tc\r \xc2\xa0\xe9\xc2";
    str_make_plain(orders);
    assert_string_equal(orders, "?]0;??? a\nb\tc\r \xc2\xa0??");
    str_make_line(orders);
    assert_string_equal(orders, "?]0;??? a b c  \xc2\xa0??");
    assert_int_equal(str_control(""), 0);
    char small[4];
    assert_false(str_copy(small, sizeof(small), "abcdef"));
    assert_string_equal(small, "abc");
    assert_true(str_copy(small, sizeof(small), "xyz"));
    assert_true(str_ends("a.tar", ".tar") && !str_ends("tar", ".tar") && str_starts("abc", "ab"));
    char *s = str_printf("%d-%s", 4, "x");
    assert_string_equal(s, "4-x");
    mem_free(s);
    assert_null(str_dup(NULL));
}

static void knows_words(void **state)
{
    static const char words[] = "a.b ab c";
    static const char *const none[] = {"", "a", "b", "a.", "ab c", "cc", " "};
    const char *at = words, *blank = " ";
    char word[3];
    assert_true(str_has_word(words, "a.b") && str_has_word(words, "ab") &&
                str_has_word(words, "c"));
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_false(str_has_word(words, none[i]));
    assert_true(str_take_word(&at, word, sizeof word));
    assert_string_equal(word, "a."); /* cut */
    assert_true(str_take_word(&at, word, sizeof word) && strcmp(word, "ab") == 0);
    assert_true(str_take_word(&at, word, sizeof word) && strcmp(word, "c") == 0);
    assert_false(str_take_word(&at, word, sizeof word) || str_take_word(&blank, word, sizeof word));
}

static void counts_json(void **state)
{
    static const char text[] = "{\"a,[\\\"{\": [1, {}], \"b\": 2}"; /* 3 lists, 4 values */
    const size_t n = strlen(text);
    assert_false(str_json_exceeds(text, n, 3, 4));
    assert_true(str_json_exceeds(text, n, 2, 4));
    assert_true(str_json_exceeds(text, n, 3, 3));
    assert_false(str_json_exceeds("\"\\", 2, 0, 0)); /* cut short */
    assert_false(str_json_exceeds("", 0, 0, 0));
}

static void tells_losses(void **state)
{
    static const struct {
        double loss;
        const char *text;
    } cases[] = {{0.5, "0.5000"},         {-1.25, "-1.2500"}, {9999.5, "9999.5000"},
                 {32472944, "3.247e+07"}, {-1e30, "-1e+30"},  {12345, "1.234e+04"}};
    char out[STR_HUMAN_MAX];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(str_human_loss(cases[i].loss, out), cases[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parses_u64),   cmocka_unit_test(parses_numbers),
        cmocka_unit_test(parses_units), cmocka_unit_test(suggests),
        cmocka_unit_test(checks_text),  cmocka_unit_test(counts_json),
        cmocka_unit_test(tells_losses), cmocka_unit_test(knows_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
