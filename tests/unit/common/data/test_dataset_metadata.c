/* metadata.jsonl of a folder of images. */
#include "tests/unit/common/data/dataset_test.h"

#include "common/data/dataset_impl.h"

static void gives_captions(void **state)
{
    (void)state;
    char *dir = scratch_new();
    struct got got;
    struct dataset_report r;
    static const char lines[] =
        "\xef\xbb\xbf{\"file_name\": \"b.png\", \"text\": \"a red\\nboot\"}\r\n"
        "\n"
        "{\"file_name\":\"a.png\",\"text\":[\"one\",\"two\"],\"more\":5}\n"
        "{\"file_name\":\"c.png\"}";
    want_captions = true;
    for (const char *p = "abcd"; *p; p++) {
        char name[] = "?.png";
        name[0] = *p;
        put(dir, name, png, sizeof(png));
    }
    put(dir, "metadata.jsonl", lines, sizeof(lines) - 1);
    put(dir, "metadata.csv", "x", 1);
    put(dir, "d.txt", "not asked", 9);
    OK(cut(dir, 1, 0, 2, &got, &r, err));
    assert_true(came_out(&got, "a_png png 0=one\ntwo") && came_out(&got, "b_png png 0=a red boot"));
    assert_true(came_out(&got, "c_png png 0") && came_out(&got, "d_png png 0"));
    assert_int_equal(r.uncaptioned, 2);
    dataset_report_release(&r);
    FAILS(cut(dir, 1, 0, 1, &got, &r, err), "has no caption, nor have 1 before it; at most 1");
    scratch_free(dir);
}

/* As the JSON of tars has them, where there is no text. */
static void knows_other_keys(void **state)
{
    (void)state;
    static const char lines[] = "{\"file_name\":\"a\",\"caption\":\"one\"}\n"
                                "{\"file_name\":\"b\",\"captions\":[\"two\",\"three\"]}\n"
                                "{\"file_name\":\"c\",\"text\":\"four\",\"caption\":\"five\"}\n"
                                "{\"file_name\":\"d\",\"text\":null,\"captions\":null,"
                                "\"caption\":\"six\"}\n";
    static const char wrong[] = "{\"file_name\":\"a\",\"caption\":5}";
    const struct {
        const char *name, *captions;
    } want[] = {{"a", "one"}, {"b", "two\nthree"}, {"c", "four"}, {"d", "six"}};
    struct dataset_metadata m = {0};
    OK(dataset_metadata_parse(&m, lines, sizeof(lines) - 1, "m", err));
    for (size_t i = 0; i < COUNT(want); i++)
        assert_string_equal(dataset_metadata_use(&m, want[i].name)->captions, want[i].captions);
    dataset_metadata_release(&m);
    FAILS(dataset_metadata_parse(&m, wrong, sizeof(wrong) - 1, "m", err), "line 1: \"caption\" is");
    dataset_metadata_release(&m);
}

static void knows_classes(void **state)
{
    (void)state;
    char *dir = scratch_new();
    struct got got;
    struct dataset_report r;
    static const char lines[] = "{\"file_name\":\"dog/1.png\",\"text\":\"a dog\"}\n"
                                "{\"file_name\":\"cat/1.png\",\"text\":\"a cat\"}\n";
    want_captions = true;
    put(dir, "cat/1.png", png, sizeof(png));
    put(dir, "dog/1.png", png, sizeof(png));
    put(dir, "metadata.jsonl", lines, sizeof(lines) - 1);
    OK(cut(dir, 1, 0, 0, &got, &r, err));
    assert_true(came_out(&got, "cat_1_png png 0=a cat") && came_out(&got, "dog_1_png png 1=a dog"));
    dataset_report_release(&r);
    scratch_free(dir);
}

static void refuses_folders(void **state)
{
    (void)state;
    char *dir = scratch_new();
    struct dataset *ds;
    static const struct {
        const char *lines, *why;
    } bad[] = {
        {"{\"file_name\":\"a.png\",\"text\":\"x\"}\n\n{\"file_name\":\"z.png\",\"text\":\"x\"}",
         "metadata.jsonl, line 3 names 'z.png', but there is no such image"},
        {"{\"file_name\":\"a.png\",\"text\":\"x\"}\n{\"file_name\":\"a.png\",\"text\":\"y\"}",
         "line 2 names the image 'a.png', as line 1 does"},
        {"{\"file_name\":\"a.png\",\"text\":null}", "metadata.jsonl has no captions: none"},
        {"{\"file_name\":\"a.png\",\"prompt\":\"x\"}", "has a \"text\" or \"caption\""},
        {"{\"text\":\"x\"}", "line 1: expected \"file_name\""},
        {"[]", "line 1: expected \"file_name\""},
        {"{\"file_name\":\"a.png\",\"text\":7}", "line 1: \"text\" is neither a text nor"},
        {"\n{\"file_name\":", "metadata.jsonl, line 2: "},
        {"{\"file_name\":\"a.png\",\"text\":\"\xff\"}", "metadata.jsonl, line 1: "},
    };
    want_captions = true;
    put(dir, "a.png", png, sizeof(png));
    for (size_t i = 0; i < COUNT(bad); i++) {
        put(dir, "metadata.jsonl", bad[i].lines, strlen(bad[i].lines));
        FAILS(images_open(dir, &ds, err), bad[i].why);
    }
    char *path = in(dir, "metadata.jsonl");
    OK(file_remove(path, err));
    mem_free(path);
    put(dir, "metadata.csv", "file_name,text\n", 15);
    FAILS(images_open(dir, &ds, err), "metadata.csv is not read; write its rows to");
    scratch_free(dir);
}

/* What is missed may lie where nobody looks: images beside folders, or the file inside one. */
static void says_where_it_looks(void **state)
{
    (void)state;
    static const char line[] = "{\"file_name\":\"a.png\",\"text\":\"x\"}";
    char *dir = scratch_new(), *path = in(dir, "metadata.jsonl");
    struct dataset *ds;
    want_captions = true;
    put(dir, "a.png", png, sizeof(png));
    put(dir, "metadata.jsonl", line, sizeof(line) - 1);
    put(dir, "train/a.png", png, sizeof(png));
    FAILS(images_open(dir, &ds, err),
          "no such image among those of the dataset; its folders are classes, and what lies beside "
          "them is left out (1 image)");
    OK(file_remove(path, err));
    put(dir, "train/metadata.jsonl", line, sizeof(line) - 1);
    FAILS(images_open(dir, &ds, err), "train/metadata.jsonl is not read");
    mem_free(path);
    scratch_free(dir);
}

static void parses_bytes(void **state)
{
    (void)state;
    static const char lines[] =
        "{\"file_name\":\"a\",\"text\":\"x\",\"score\":NaN}\n  \n{\"file_name\":\"b\"}";
    struct dataset_metadata m = {0};
    OK(dataset_metadata_parse(&m, NULL, 0, "m", err));
    assert_int_equal(m.n, 0);
    assert_null(dataset_metadata_use(&m, "a"));
    OK(dataset_metadata_check(&m, "d", err));
    OK(dataset_metadata_parse(&m, lines, sizeof(lines) - 1, "m", err));
    assert_int_equal(m.n, 2);
    const struct dataset_line *line = dataset_metadata_use(&m, "a");
    assert_non_null(line);
    assert_true(line->number == 1 && line->len == 1 && line->used && !line->cut);
    FAILS(dataset_metadata_check(&m, "d", err), "d/metadata.jsonl, line 3 names 'b'");
    dataset_metadata_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_captions),      cmocka_unit_test(knows_other_keys),
        cmocka_unit_test(knows_classes),       cmocka_unit_test(refuses_folders),
        cmocka_unit_test(says_where_it_looks), cmocka_unit_test(parses_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
