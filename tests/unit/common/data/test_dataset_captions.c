/* The captions of an image dataset: where they are found, and what is refused. */
#include "tests/unit/common/data/dataset_test.h"

#include "common/data/captions.h"

static char *dir;
static struct got got;
static struct dataset_report r;

static int fresh(void **state)
{
    (void)state;
    dir = scratch_new();
    want_captions = true;
    return 0;
}

static int done(void **state)
{
    (void)state;
    scratch_free(dir);
    return 0;
}

static void text(const char *name, const char *content)
{
    put(dir, name, content, strlen(content));
}

static void image(const char *name)
{
    put(dir, name, png, sizeof(png));
}

/* Cuts the dataset `name` below the test's folder, with at most max_bad images without caption. */
static int cut_all(const char *name, uint32_t max_bad, struct err *err)
{
    char *path = in(dir, name);
    int rc = cut(path, 1, 0, max_bad, &got, &r, err);
    mem_free(path);
    return rc;
}

static void tars_say_it_in_two_ways(void **state)
{
    (void)state;
    make_tar(dir, "a.tar",
             "a.png=PNG;a.cls=1;a.json={\"pwatermark\":NaN};a.txt=one\r\n\n two ;"
             "b.png=PNG;b.cls=0;b.json={\"caption\":\"a\\nb\",\"label\":1};"
             "c.json={\"captions\":[\"x\",\" \",\"y\"],\"caption\":\"z\"};c.png=PNG;c.cls=0;"
             "d.json={\"caption\":\"json\"};d.txt=txt;d.png=PNG;d.cls=0;"
             "e.txt=txt;e.json={\"caption\":\"json\"};e.png=PNG;e.cls=0;"
             "f.png=PNG;f.cls=0;f.txt= \n;f.json={\"caption\":null}");
    OK(cut_all("a.tar", 1, err));
    assert_true(came_out(&got, "a_a png 1=one\ntwo"));
    assert_true(came_out(&got, "a_b png 0=a b"));
    assert_true(came_out(&got, "a_c png 0=x\ny"));
    assert_true(came_out(&got, "a_d png 0=txt"));
    assert_true(came_out(&got, "a_e png 0=txt"));
    assert_true(came_out(&got, "a_f png 0"));
    assert_int_equal(r.samples, 6);
    assert_int_equal(r.uncaptioned, 1);
    assert_int_equal(r.captions_cut, 0);
    assert_int_equal(r.classes, 2);
    dataset_report_release(&r);
    FAILS(cut_all("a.tar", 0, err), "'a/f' has no caption, nor have 0 before it; at most 0");
    want_captions = false;
    OK(cut_all("a.tar", 0, err));
    assert_true(came_out(&got, "a_a png 1"));
    assert_int_equal(r.uncaptioned, 0);
    dataset_report_release(&r);
}

/* Of what is opened without a wish for captions: does it have some? */
static bool leaves(const char *name)
{
    struct dataset *ds;
    char *path = in(dir, name);
    OK(images_open(path, &ds, err));
    const bool ret = dataset_leaves_captions(ds);
    dataset_close(ds);
    mem_free(path);
    return ret;
}

static void those_that_nobody_asks_for_are_noticed(void **state)
{
    (void)state;
    want_captions = false;
    make_tar(dir, "none.tar",
             "a.png=PNG;a.cls=1;a.json={\"n\":1};b.txt=no image;c.png=PNG;c.cls=0");
    assert_false(leaves("none.tar"));
    make_tar(dir, "txt.tar", "a.txt=\xff;a.png=PNG;a.cls=1"); /* whatever it holds */
    assert_true(leaves("txt.tar"));
    make_tar(dir, "one.tar", "a.png=PNG;a.cls=1;a.json={\"caption\":\"x\"}");
    assert_true(leaves("one.tar"));
    make_tar(dir, "list.tar", "a.png=PNG;a.cls=1;a.json={\"captions\":[\"x\"]}");
    assert_true(leaves("list.tar"));
    image("folder/cat/1.png");
    text("folder/cat/notes.txt", "of no image");
    text("folder/metadata.jsonl", "{\"file_name\":\"cat/1.png\",\"label\":1}");
    assert_false(leaves("folder"));
    text("folder/metadata.jsonl", "nonsense");
    assert_false(leaves("folder"));
    text("folder/metadata.jsonl", "{\"file_name\":\"cat/1.png\",\"text\":\"a cat\"}");
    assert_true(leaves("folder"));
    image("beside/cat/1.png");
    text("beside/cat/1.txt", "a cat");
    assert_true(leaves("beside"));
    want_captions = true;
    assert_false(leaves("beside")); /* they are read */
}

static void classes_are_not_needed(void **state)
{
    (void)state;
    struct dataset *ds;
    char *path = in(dir, "a.tar");
    make_tar(dir, "a.tar", "a.png=PNG;a.txt=one;b.png=PNG;b.txt=two");
    OK(images_open(path, &ds, err));
    assert_int_equal(dataset_classes(ds), 1);
    assert_string_equal(dataset_class(ds, 0), "all");
    dataset_close(ds);
    OK(cut_all("a.tar", 0, err));
    assert_true(came_out(&got, "a_a png 0=one") && came_out(&got, "a_b png 0=two"));
    dataset_report_release(&r);
    want_captions = false;
    FAILS(cut_all("a.tar", 0, err), "sample 'a' has no class");
    want_captions = true;
    make_tar(dir, "a.tar", "a.png=PNG;a.txt=one;b.png=PNG;b.cls=1");
    FAILS(cut_all("a.tar", 0, err), "the class '1'; the samples before it have none");
    make_tar(dir, "a.tar", "a.png=PNG;a.txt=one;a.cls=0;b.png=PNG");
    FAILS(cut_all("a.tar", 0, err), "sample 'b' has no class");
    mem_free(path);
}

static void refuses_tars(void **state)
{
    (void)state;
    make_tar(dir, "a.tar", "a.png=PNG;a.cls=0;b.png=PNG;b.cls=0;b.txt=\n");
    FAILS(cut_all("a.tar", 9, err), "a.tar has no captions: expected KEY.txt");
    make_tar(dir, "a.tar", "a.png=PNG;a.txt=\xff");
    FAILS(cut_all("a.tar", 9, err), "a.tar has no captions");
    make_tar(dir, "a.tar", "a.png=PNG;a.txt=\xff;b.png=PNG;b.txt=two");
    FAILS(cut_all("a.tar", 0, err), "image 'a/a' has no caption in UTF-8");
    OK(cut_all("a.tar", 1, err));
    assert_true(r.not_utf8 == 1 && r.uncaptioned == 1 && strcmp(r.not_utf8_first, "a/a") == 0);
    dataset_report_release(&r);
    make_tar(dir, "a.tar", "a.png=PNG;a.json={\"caption\":5}");
    FAILS(cut_all("a.tar", 9, err), "\"caption\" in a.json is neither a text nor a list of texts");
    make_tar(dir, "a.tar", "a.png=PNG;a.json={\"captions\":[\"x\",[]]}");
    FAILS(cut_all("a.tar", 9, err), "\"captions\" in a.json is neither a text nor a list");
}

static void folders_have_files_beside(void **state)
{
    (void)state;
    image("flat/1.jpg");
    image("flat/2.png");
    text("flat/1.txt", "a red boot\nune botte rouge\n");
    text("flat/notes.txt", "nothing");
    FAILS(cut_all("flat", 0, err), "image '2.png' has no caption");
    OK(cut_all("flat", 1, err));
    assert_int_equal(r.uncaptioned, 1);
    assert_string_equal(r.uncaptioned_first, "2.png");
    assert_int_equal(r.classes, 1);
    assert_true(came_out(&got, "1_jpg png 0=a red boot\nune botte rouge"));
    assert_true(came_out(&got, "2_png png 0"));
    dataset_report_release(&r);
    image("classes/cat/1.png");
    image("classes/dog/1.png");
    text("classes/cat/1.txt", "a cat");
    text("classes/dog/1.txt", "a dog");
    OK(cut_all("classes", 0, err));
    assert_true(came_out(&got, "cat_1_png png 0=a cat") && came_out(&got, "dog_1_png png 1=a dog"));
    dataset_report_release(&r);
    text("classes/dog/1.txt", "\xc3");
    FAILS(cut_all("classes", 0, err), "image 'dog/1.png' has no caption in UTF-8");
    OK(cut_all("classes", 1, err));
    assert_true(r.not_utf8 == 1 && r.uncaptioned == 1);
    assert_string_equal(r.not_utf8_first, "dog/1.png");
    assert_true(came_out(&got, "dog_1_png png 1"));
    dataset_report_release(&r);
    want_captions = false;
    OK(cut_all("classes", 0, err));
    assert_true(came_out(&got, "dog_1_png png 1"));
    dataset_report_release(&r);
    FAILS(cut_all("flat", 0, err), "has images but no class folders");
}

static void refuses_folders(void **state)
{
    (void)state;
    static char much[DATASET_IMAGE_MAX / 32];
    image("none/1.jpg");
    FAILS(cut_all("none", 9, err), "none has no captions: expected KEY.txt");
    text("mixed/1.txt", "a red boot");
    image("mixed/1.jpg");
    image("mixed/thumbs/1.jpg"); /* by a program that shows pictures */
    FAILS(cut_all("mixed", 9, err), "left out (1 image): move the folders away");
    text("none/1.txt", "\n  \n");
    FAILS(cut_all("none", 9, err), "none has no captions: those of all its images are blank");
    want_most = 5; /* more than there are: all are read */
    FAILS(cut_all("none", 9, err), "none has no captions: those of all its images are blank");
    image("some/1.jpg");
    image("some/2.jpg"); /* another may have one */
    text("some/1.txt", " ");
    text("some/2.txt", " ");
    want_most = 1;
    OK(cut_all("some", 9, err));
    dataset_report_release(&r);
    want_most = 0;
    memset(much, 'x', sizeof(much));
    put(dir, "none/1.txt", much, sizeof(much));
    FAILS(cut_all("none", 9, err), "1.txt is larger than");
    put(dir, "none/1.txt", much, CAPTIONS_MAX + 1);
    OK(cut_all("none", 0, err));
    assert_int_equal(r.captions_cut, 1);
    dataset_report_release(&r);
}

/* What waits in the window has its captions, too. */
static void windows_keep_them(void **state)
{
    (void)state;
    struct buf members;
    buf_init(&members, 1 << 20);
    for (int i = 0; i < 200; i++)
        OK(buf_printf(&members, "s%03d.png=PNG;s%03d.txt=number %d;", i, i, i));
    make_tar(dir, "a.tar", buf_str(&members));
    OK(cut_all("a.tar", 0, err));
    assert_int_equal(r.samples, 200);
    for (size_t i = 0; i < COUNT(got.names); i++) {
        char want[32];
        snprintf(want, sizeof(want), "=number %d", atoi(got.names[i] + 3));
        assert_non_null(strstr(got.names[i], want));
    }
    dataset_report_release(&r);
    buf_release(&members);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tars_say_it_in_two_ways, fresh, done),
        cmocka_unit_test_setup_teardown(those_that_nobody_asks_for_are_noticed, fresh, done),
        cmocka_unit_test_setup_teardown(classes_are_not_needed, fresh, done),
        cmocka_unit_test_setup_teardown(refuses_tars, fresh, done),
        cmocka_unit_test_setup_teardown(folders_have_files_beside, fresh, done),
        cmocka_unit_test_setup_teardown(refuses_folders, fresh, done),
        cmocka_unit_test_setup_teardown(windows_keep_them, fresh, done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
