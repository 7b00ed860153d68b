/* Captions: what becomes of a text, where it is cut, and taking one of several. */
#include "common/data/captions.h"

#include "tests/unit/common/base/util.h"

static struct buf all;
static bool was_cut;

static const char *added(const char *text)
{
    OK(captions_add(&all, text, strlen(text), &was_cut));
    return buf_str(&all);
}

static int fresh(void **state)
{
    (void)state;
    buf_release(&all);
    buf_init(&all, CAPTIONS_MAX);
    was_cut = false;
    return 0;
}

static void becomes_lines(void **state)
{
    (void)state;
    assert_string_equal(added("  a red\nboot \r\n"), "a red boot");
    assert_string_equal(added(" \t\n"), "a red boot");
    assert_string_equal(added("ein \xc3\xbc\tund \x7f mehr"),
                        "a red boot\nein \xc3\xbc und   mehr");
    assert_int_equal(captions_add(&all, "\xff", 1, &was_cut), -ERR_FORMAT);
    assert_int_equal(captions_add(&all, "\xc3", 1, &was_cut), -ERR_FORMAT);
    assert_int_equal(captions_count(buf_str(&all), all.len), 2);
    assert_true(captions_are_valid(buf_str(&all), all.len));
    assert_false(was_cut);
    OK(captions_add(&all, "a\0b", 3, &was_cut));
    assert_true(captions_are_valid(buf_str(&all), all.len));
}

static void reads_files(void **state)
{
    (void)state;
    static const char file[] = "\xef\xbb\xbfone\r\n\r\n two \nthree";
    OK(captions_add_lines(&all, file, sizeof(file) - 1, &was_cut));
    assert_string_equal(buf_str(&all), "one\ntwo\nthree");
    OK(captions_add_lines(&all, "", 0, &was_cut));
    OK(captions_add_lines(&all, "\xef\xbb\xbf", 3, &was_cut));
    assert_string_equal(buf_str(&all), "one\ntwo\nthree");
    assert_int_equal(captions_add_lines(&all, "four\n\xc3", 6, &was_cut), -ERR_FORMAT);
    assert_string_equal(buf_str(&all), "one\ntwo\nthree");
}

static void is_cut_between_characters(void **state)
{
    (void)state;
    char text[CAPTIONS_MAX + 8];
    memset(text, 'x', sizeof(text));
    OK(captions_add(&all, text, CAPTIONS_MAX, &was_cut));
    assert_int_equal(all.len, CAPTIONS_MAX);
    assert_false(was_cut);
    OK(captions_add(&all, "y", 1, &was_cut));
    assert_int_equal(all.len, CAPTIONS_MAX);
    assert_true(was_cut);

    fresh(NULL);
    memcpy(text + CAPTIONS_MAX - 1, "\xe2\x82\xac", 3);
    OK(captions_add(&all, text, sizeof(text), &was_cut));
    assert_int_equal(all.len, CAPTIONS_MAX - 1);
    assert_true(was_cut && captions_are_valid(buf_str(&all), all.len));

    fresh(NULL);
    OK(captions_add(&all, text, CAPTIONS_MAX - 2, &was_cut));
    OK(captions_add(&all, "\xc3\xbc", 2, &was_cut)); /* room for a line break and one byte */
    assert_int_equal(all.len, CAPTIONS_MAX - 2);
    assert_true(was_cut);
    OK(captions_add(&all, "z", 1, &was_cut));
    assert_int_equal(all.len, CAPTIONS_MAX);
    assert_true(captions_are_valid(buf_str(&all), all.len));
}

static void refuses_other_texts(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "\na", "a\n", "a\n\nb", "a\tb", "\xff", "a\x7f"};
    static char much[CAPTIONS_MAX + 1];
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(captions_are_valid(bad[i], strlen(bad[i])));
    memset(much, 'a', sizeof(much));
    assert_true(captions_are_valid(much, CAPTIONS_MAX));
    assert_false(captions_are_valid(much, CAPTIONS_MAX + 1));
}

static void gives_one_of_several(void **state)
{
    (void)state;
    static const char *const lines[] = {"one", "zwei", "t"};
    static const char text[] = "one\nzwei\nt";
    size_t len = 0;
    assert_int_equal(captions_count(text, strlen(text)), 3);
    for (unsigned i = 0; i < 3; i++) {
        const char *got = captions_get(text, strlen(text), i, &len);
        assert_int_equal(len, strlen(lines[i]));
        assert_memory_equal(got, lines[i], len);
    }
    assert_string_equal(captions_get(text, strlen(text), 3, &len), "");
    assert_int_equal(len, 0);
    assert_int_equal(captions_count(NULL, 0), 0);
    assert_string_equal(captions_get(NULL, 0, 0, &len), "");
    assert_int_equal(len, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(becomes_lines, fresh),
        cmocka_unit_test_setup(reads_files, fresh),
        cmocka_unit_test_setup(is_cut_between_characters, fresh),
        cmocka_unit_test_setup(refuses_other_texts, fresh),
        cmocka_unit_test_setup(gives_one_of_several, fresh),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    buf_release(&all);
    return failed;
}
