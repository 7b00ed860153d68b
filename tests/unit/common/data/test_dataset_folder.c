/* Class folders with images. */
#include "tests/unit/common/data/dataset_test.h"

#include <sys/stat.h>
#include <unistd.h>

static void folder_is_cut(void **state)
{
    char *dir = scratch_new();
    fill_folder(dir, "cat", 60, png);
    fill_folder(dir, "dog", 40, jpg);
    put(dir, "cat/notes.md", "x", 1);
    put(dir, "README", "x", 1);
    put(dir, "dog/te\x1bxt.jpg", "plain text", 10);
    struct got a, b, c;
    struct dataset_report r;
    OK(cut(dir, 1, 0.1, 5, &a, &r, err));
    assert_int_equal(r.classes, 2);
    assert_int_equal(r.samples, 100);
    assert_int_equal(r.counts[0], 60);
    assert_int_equal(r.counts[1], 40);
    assert_int_equal(r.bad_count, 1);
    assert_string_equal(r.bad[0], "dog/te?xt.jpg"); /* it reaches a terminal */
    assert_int_equal(a.samples, 100);
    assert_int_equal(a.holdout, r.holdout_samples);
    assert_in_range(a.holdout, 2, 25);
    assert_int_equal(a.counts[0], 60);
    assert_in_range(a.shards, 7, 9);
    dataset_report_release(&r);
    OK(cut(dir, 1, 0.1, 5, &b, &r, err));
    dataset_report_release(&r);
    assert_memory_equal(a.digest, b.digest, HASH_BYTES);
    OK(cut(dir, 2, 0.1, 5, &c, &r, err));
    dataset_report_release(&r);
    assert_memory_not_equal(a.digest, c.digest, HASH_BYTES);
    OK(cut(dir, 2, 0, 5, &c, &r, err));
    assert_int_equal(c.holdout, 0);
    dataset_report_release(&r);
    FAILS(cut(dir, 1, 0.1, 0, &a, &r, err),
          "1 image file cannot be read, at most 0 may be left out (data.max_bad); the first is "
          "dog/te?xt.jpg: not a JPEG, PNG or WebP image");
    scratch_free(dir);
}

/* A picture may be whole and still too large: that is said, not that it is none. */
static void too_large_and_empty(void **state)
{
    char *dir = scratch_new(), *large = in(dir, "cat/large.png");
    struct got got;
    struct dataset_report r;
    fill_folder(dir, "cat", 4, png);
    put(dir, "cat/large.png", png, sizeof(png));
    assert_int_equal(truncate(large, DATASET_IMAGE_MAX + 1), 0);
    put(dir, "cat/zero.jpg", "", 0);
    OK(cut(dir, 1, 0, 2, &got, &r, err));
    assert_int_equal(r.bad_count, 2);
    for (int i = 0; i < 2; i++)
        assert_string_equal(r.bad_why[i],
                            strstr(r.bad[i], "large") ? "larger than 64 MiB" : "empty");
    dataset_report_release(&r);
    mem_free(large);
    scratch_free(dir);
}

/* The bad file that is named is one of the class that has no other. */
static void a_class_of_bad_files(void **state)
{
    char *dir = scratch_new();
    struct got got;
    struct dataset_report r;
    fill_folder(dir, "cat", 2, png);
    for (int i = 0; i < 8; i++) {
        char name[32];
        snprintf(name, sizeof(name), "cat/zero%d.jpg", i);
        put(dir, name, "", 0);
    }
    put(dir, "cat2/none.png", "", 0);
    FAILS(cut(dir, 1, 0, 20, &got, &r, err), "the first bad file is cat2/none.png: empty");
    scratch_free(dir);
}

/* A link that leads nowhere, a folder that is called like an image, a pipe. */
static void what_is_no_file_is_a_bad_image(void **state)
{
    char *dir = scratch_new(), *link, *folder = in(dir, "cat/e.png"), *pipe = in(dir, "cat/f.png");
    struct got got;
    struct dataset_report r;
    fill_folder(dir, "cat", 4, png);
    link = in(dir, "cat/dead.png");
    assert_int_equal(symlink("/nonexistent/cat.png", link), 0);
    OK(file_mkdirs(folder, 0755, err));
    assert_int_equal(mkfifo(pipe, 0644), 0);
    OK(cut(dir, 1, 0, 3, &got, &r, err));
    assert_int_equal(r.samples, 4);
    assert_int_equal(r.bad_count, 3);
    for (int i = 0; i < 3; i++) {
        assert_non_null(strstr("cat/dead.png cat/e.png cat/f.png", r.bad[i]));
        assert_non_null(strstr(r.bad_why[i], "no file"));
    }
    mem_free(folder);
    mem_free(pipe);
    dataset_report_release(&r);
    mem_free(link);
    scratch_free(dir);
}

/* Draws are by name: of a long one, all of it counts. */
static void long_names_stay_apart(void **state)
{
    char *dir = scratch_new();
    struct got got;
    struct dataset_report r;
    for (char c = 'a'; c < 'c'; c++) {
        char name[160];
        snprintf(name, sizeof(name), "cat/%c%0120d.png", c, 7);
        put(dir, name, png, sizeof(png));
    }
    OK(cut(dir, 1, 0, 0, &got, &r, err));
    assert_int_equal(got.samples, 2);
    assert_string_not_equal(got.names[0], got.names[1]);
    dataset_report_release(&r);
    scratch_free(dir);
}

/* What looks like an image and is not read is counted. */
static void what_is_left_out_is_said(void **state)
{
    char *dir = scratch_new();
    struct dataset *ds;
    fill_folder(dir, "cat", 2, png);
    OK(images_open(dir, &ds, err));
    assert_null(dataset_left_out(ds));
    dataset_close(ds);
    put(dir, "cat/a.GIF", "x", 1);
    put(dir, "cat/b.gif", "x", 1);
    put(dir, "cat/a.bmp", "x", 1);
    put(dir, "cat/a.txt", "x", 1);
    put(dir, "cat/a.TXT", "x", 1); /* which would not be read as captions */
    put(dir, "cat/IMG_0001", jpg, sizeof(jpg));
    put(dir, "cat/b.jfif", jpg, sizeof(jpg));
    put(dir, "cat/c.JPE", jpg, sizeof(jpg));
    put(dir, "cat/small/a.png", png, sizeof(png));
    put(dir, "beside.png", png, sizeof(png));
    OK(images_open(dir, &ds, err));
    assert_int_equal(dataset_samples(ds), 4);
    assert_string_equal(dataset_left_out(ds),
                        "2 .gif files, 1 .bmp file, 1 folder inside class folders, 1 image beside "
                        "the class folders, 2 names of other kinds");
    dataset_close(ds);
    put(dir, "dog/small/a.png", png, sizeof(png));
    FAILS(images_open(dir, &ds, err),
          "has no images (.jpg .jpeg .jpe .jfif .png .webp) but 1 folder inside");
    scratch_free(dir);
}

static void too_many_classes(void **state)
{
    char *dir = scratch_new();
    struct dataset *ds;
    for (int i = 0; i <= DATASET_CLASSES_MAX; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%04d/a.png", i);
        put(dir, name, png, sizeof(png));
    }
    FAILS(images_open(dir, &ds, err), "has more than 4096 classes, one for each folder of images");
    scratch_free(dir);
}

static void refuses_folders(void **state)
{
    char *dir = scratch_new(), *empty = in(dir, "empty"), *flat = in(dir, "flat"),
         *holes = in(dir, "holes"), *text = in(dir, "text"), *latin = in(dir, "latin"),
         *lines = in(dir, "lines");
    struct dataset *ds;
    FAILS(images_open("/nonexistent/data", &ds, err), "there is no dataset at /nonexistent/data");
    OK(file_mkdirs(empty, 0755, err));
    FAILS(images_open(empty, &ds, err), "holds no dataset: expected a folder per class");
    put(dir, "flat/a.png", png, sizeof(png));
    FAILS(images_open(flat, &ds, err), "has images but no class folders");
    FAILS(images_open(flat, &ds, err),
          "(`skerry new` with --captions and --encoders; in a job file, "
          "`encoders`)");
    put(dir, "holes/full/a.png", png, sizeof(png));
    put(dir, "holes/void/readme.txt", "x", 1);
    FAILS(images_open(holes, &ds, err), "holes/void has no images");
    put(dir, "latin/caf\xe9/a.png", png, sizeof(png));
    FAILS(images_open(latin, &ds, err), "'caf\xe9', is not UTF-8; rename the class");
    put(dir, "lines/two\nlines/a.png", png, sizeof(png));
    FAILS(images_open(lines, &ds, err), "lines', has a line break or another control character; "
                                        "rename the class");
    put(dir, "text/good/a.png", png, sizeof(png));
    put(dir, "text/bad/a.jpg", "text", 4);
    struct got got;
    struct dataset_report r;
    FAILS(cut(text, 1, 0, 10, &got, &r, err), "class 'bad'");
    put(dir, "file.zip", "x", 1);
    char *zip = in(dir, "file.zip");
    FAILS(images_open(zip, &ds, err), "neither a folder nor a tar");
    mem_free(zip);
    mem_free(empty);
    mem_free(flat);
    mem_free(holes);
    mem_free(text);
    mem_free(latin);
    mem_free(lines);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_many_classes),
        cmocka_unit_test(folder_is_cut),
        cmocka_unit_test(what_is_no_file_is_a_bad_image),
        cmocka_unit_test(too_large_and_empty),
        cmocka_unit_test(what_is_left_out_is_said),
        cmocka_unit_test(refuses_folders),
        cmocka_unit_test(a_class_of_bad_files),
        cmocka_unit_test(long_names_stay_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
