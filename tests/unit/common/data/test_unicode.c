#include "common/data/unicode.h"

#include "tests/unit/common/base/util.h"

static void decodes_strictly(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t code;
        size_t len;
    } cases[] = {
        {"a", 'a', 1},
        {"\xc3\xa9", 0xe9, 2},
        {"\xe2\x96\x81", 0x2581, 3},
        {"\xf0\x9f\x99\x82", 0x1f642, 4},
        {"\xc3", UNICODE_NONE, 1},
        {"\xc0\x80", UNICODE_NONE, 1},
        {"\xe0\x80\x80", UNICODE_NONE, 1},
        {"\xf4\x90\x80\x80", UNICODE_NONE, 1},
        {"\xff", UNICODE_NONE, 1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        size_t n = 0;
        const char *text = cases[i].text;
        assert_int_equal(unicode_decode((const uint8_t *)text, strlen(text), &n), cases[i].code);
        assert_int_equal(n, cases[i].len);
    }
}

static void knows_classes(void **state)
{
    (void)state;
    assert_true(unicode_is_letter('z') && unicode_is_letter(0x3b1) && unicode_is_letter(0x10d50));
    assert_false(unicode_is_letter('1') || unicode_is_letter(0x301) || unicode_is_letter('_'));
    assert_true(unicode_is_number('7') && unicode_is_number(0xbd) && unicode_is_number(0x2167));
    assert_true(unicode_is_space(0x85) && unicode_is_space(0x3000) && unicode_is_space('\v'));
    assert_false(unicode_is_space(0x200b) || unicode_is_space(0x1c));
    assert_true(unicode_is_word('_') && unicode_is_word(0x301) && unicode_is_word('x'));
    assert_false(unicode_is_word('-') || unicode_is_word(UNICODE_NONE));
}

typedef int (*rewrite_fn)(const uint8_t *text, size_t len, struct buf *out);

static void rewritten(rewrite_fn fn, const char *text, const char *want)
{
    struct buf out;
    buf_init(&out, 256);
    assert_int_equal(fn((const uint8_t *)text, strlen(text), &out), 0);
    assert_string_equal(buf_str(&out), want);
    buf_release(&out);
}

static void composes(void **state)
{
    (void)state;
    rewritten(unicode_nfc, "", "");
    rewritten(unicode_nfc, "plain", "plain");
    rewritten(unicode_nfc, "xe\xcc\x81y", "x\xc3\xa9y");
    rewritten(unicode_nfc, "\xe2\x84\xab", "\xc3\x85");               /* the Angstrom sign */
    rewritten(unicode_nfc, "q\xcc\x81\xcc\xa3", "q\xcc\xa3\xcc\x81"); /* marks in their order */
    rewritten(unicode_nfc,
              "e\xcc\x81\xff"
              "e\xcc\x81",
              "\xc3\xa9\xff\xc3\xa9"); /* no UTF-8 */
    /* U+0899 came after Unicode 9: it stays, and nothing moves across it. */
    rewritten(unicode_nfc, "q\xcc\x81\xe0\xa2\x99\xcc\xa3", "q\xcc\x81\xe0\xa2\x99\xcc\xa3");
}

static void makes_small(void **state)
{
    (void)state;
    rewritten(unicode_lower, "AbZ 1", "abz 1");
    rewritten(unicode_lower, "\xc3\x84\xce\xa3\xff", "\xc3\xa4\xcf\x83\xff");
    rewritten(unicode_lower, "\xc4\xb0", "i\xcc\x87");                /* one letter, two */
    rewritten(unicode_lower, "\xf0\x90\xb5\x91", "\xf0\x90\xb5\xb1"); /* U+10D51, of Unicode 16 */
    rewritten(unicode_lower, "\xea\x9f\x8e\xea\x9f\x8d", "\xea\x9f\x8f\xea\x9f\x8d");
}

static void finds_clusters(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len;
    } cases[] = {
        {"ab", 1},
        {"e\xcc\x81\xcc\xa3x", 5},
        {"\r\n", 2},
        {"a\xe0\xa2\x97z", 4},             /* U+0897, of Unicode 16 */
        {"E\xcc\xa7\xf0\x91\xad\xa2z", 7}, /* U+11B62, of Unicode 17 */
        {"\xf0\x9f\x87\xab\xf0\x9f\x87\xb7\xf0\x9f\x87\xab", 8},
        {"\xff\xcc\x81", 1},
        {"\xf3\xa0\x82\x9e\xcd\x84", 4}, /* U+E009E: unassigned, and as a control */
        {"a\xf3\xa0\x82\x9e", 1},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(unicode_grapheme((const uint8_t *)cases[i].text, strlen(cases[i].text)),
                         cases[i].len);
}

static void finds_marks(void **state)
{
    (void)state;
    assert_int_equal(unicode_mark("\xef\xbb\xbf\xef\xbb\xbf", 6), 3);
    assert_int_equal(unicode_mark("\xef\xbb\xbf", 2), 0);
    assert_int_equal(unicode_mark("abc", 3), 0);
    assert_int_equal(unicode_mark(NULL, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_strictly), cmocka_unit_test(knows_classes),
        cmocka_unit_test(composes),         cmocka_unit_test(makes_small),
        cmocka_unit_test(finds_clusters),   cmocka_unit_test(finds_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
