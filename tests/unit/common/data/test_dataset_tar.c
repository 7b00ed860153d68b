/* WebDataset tars. */
#include "tests/unit/common/data/dataset_test.h"

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void tars_are_read(void **state)
{
    char *dir = scratch_new(), *range = in(dir, "p-{000..001}.tar"), *glob = in(dir, "p-*.tar");
    make_tar(dir, "p-000.tar",
             "a.cls=1;a.png=PNG;a.txt=a cat;x/b.png=PNG;x/b.cls= 0\n;x/b.width.txt=5;c.json={};"
             "c.cls=2;c.bin=1");
    make_tar(dir, "p-001.tar", "d.json={\"label\": 3, \"caption\": \"dog\"};d.png=PNG");
    const char *const paths[] = {range, glob, dir};
    for (size_t i = 0; i < COUNT(paths); i++) {
        struct dataset *ds;
        struct dataset_report r;
        struct got got;
        OK(images_open(paths[i], &ds, err));
        assert_int_equal(dataset_samples(ds), 3);
        assert_int_equal(dataset_classes(ds), 4);
        assert_string_equal(dataset_class(ds, 3), "3");
        dataset_close(ds);
        OK(cut(paths[i], 1, 0, 0, &got, &r, err));
        assert_int_equal(got.samples, 3);
        qsort(got.names, 3, sizeof(got.names[0]), by_name);
        assert_string_equal(got.names[0], "p-000_a png 1");
        assert_string_equal(got.names[1], "p-000_x_b png 0");
        assert_string_equal(got.names[2], "p-001_d png 3");
        dataset_report_release(&r);
    }
    put(dir, "classes.txt", "\xef\xbb\xbfzero\none\r\ntwo\nthree\n", 24);
    struct dataset *ds;
    OK(images_open(range, &ds, err));
    assert_string_equal(dataset_class(ds, 0), "zero"); /* without the mark of some editors */
    assert_string_equal(dataset_class(ds, 1), "one");
    dataset_close(ds);
    put(dir, "classes.txt", "zero\n\ntwo\r\n\r\nfour\n\n", 19);
    OK(images_open(range, &ds, err));
    assert_int_equal(dataset_classes(ds), 5);
    assert_string_equal(dataset_class(ds, 1), "1"); /* not named: the others stay where they are */
    assert_string_equal(dataset_class(ds, 2), "two");
    assert_string_equal(dataset_class(ds, 3), "3");
    assert_string_equal(dataset_class(ds, 4), "four");
    dataset_close(ds);
    put(dir, "classes.txt", "zero\n", 5);
    FAILS(images_open(range, &ds, err), "classes.txt names 1 classes, but a sample has class 3");
    mem_free(range);
    mem_free(glob);
    scratch_free(dir);
}

static void endings_are_in_any_case(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "t.tar");
    struct got got;
    struct dataset_report r;
    make_tar(dir, "t.tar", "a.JPG=PNG;a.CLS=cat;b.jfif=PNG;b.JSON={\"label\":\"dog\"}");
    OK(cut(path, 1, 0, 0, &got, &r, err));
    assert_true(r.samples == 2 && r.classes == 2);
    dataset_report_release(&r);
    mem_free(path);
    scratch_free(dir);
}

static void tars_with_text_classes_are_cut(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "t.tar"), members[4096] = "";
    for (int i = 0; i < 50; i++) {
        size_t n = strlen(members);
        snprintf(members + n, sizeof(members) - n, "%d.png=PNG;%d.cls=%s;", i, i,
                 i % 5 ? "dog" : "cat");
    }
    make_tar(dir, "t.tar", members);
    struct got a, b;
    struct dataset_report r;
    OK(cut(path, 9, 0.2, 0, &a, &r, err));
    assert_int_equal(r.counts[0], 10); /* cat sorts first */
    assert_int_equal(r.counts[1], 40);
    assert_int_equal(a.samples, 50);
    assert_true(a.holdout > 0);
    dataset_report_release(&r);
    OK(cut(path, 9, 0.2, 0, &b, &r, err));
    dataset_report_release(&r);
    assert_memory_equal(a.digest, b.digest, HASH_BYTES);
    mem_free(path);
    scratch_free(dir);
}

/* What else a JSON says, such as a hash of 64 bits, is no matter; tars differ behind a dot, too. */
static void tars_of_others_are_read(void **state)
{
    char *dir = scratch_new();
    struct got got;
    struct dataset_report r;
    make_tar(dir, "p.0.tar", "a.png=PNG;a.json={\"hash\": 14695981039346656037, \"label\": 1}");
    make_tar(dir, "p.1.tar", "a.png=PNG;a.json={\"label\": 0, \"n\": -1}");
    OK(cut(dir, 1, 0, 0, &got, &r, err));
    assert_true(came_out(&got, "p_0_a png 1") && came_out(&got, "p_1_a png 0"));
    dataset_report_release(&r);
    scratch_free(dir);
}

/* A tar that happens to lie beside class folders. */
static void folders_beside_tars_are_named(void **state)
{
    char *dir = scratch_new();
    struct dataset *ds;
    fill_folder(dir, "cat", 2, png);
    fill_folder(dir, "dog", 2, png);
    put(dir, "notes.md", "x", 1);
    make_tar(dir, "backup.tar", "a.png=PNG");
    FAILS(
        images_open(dir, &ds, err),
        "backup.tar: sample 'a' has no class: expected a.cls, or \"label\" in a.json; left out: 2 "
        "folders beside the tars");
    make_tar(dir, "backup.tar", "a.txt=x");
    FAILS(images_open(dir, &ds, err),
          "has no images (.jpg .jpeg .jpe .jfif .png .webp); left out: 2 f");
    make_tar(dir, "backup.tar", "a.png=PNG;a.cls=1");
    OK(images_open(dir, &ds, err));
    assert_string_equal(dataset_left_out(ds), "2 folders beside the tars");
    dataset_close(ds);
    scratch_free(dir);
}

/* As in a folder: it is left out, with its reason. */
static void too_large(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "t.tar.zst");
    void *zeros = calloc(1, DATASET_IMAGE_MAX + 1);
    struct tar_writer *w;
    struct got got;
    struct dataset_report r;
    assert_non_null(zeros);
    OK(tar_writer_open_zstd(path, &w, err));
    OK(tar_writer_add(w, "a.png", png, sizeof(png), err));
    OK(tar_writer_add(w, "a.cls", "0", 1, err));
    OK(tar_writer_add(w, "b.png", zeros, DATASET_IMAGE_MAX + 1, err));
    OK(tar_writer_add(w, "b.cls", "0", 1, err));
    OK(tar_writer_add(w, "c.png", png, sizeof(png), err));
    OK(tar_writer_add(w, "c.cls", "0", 1, err));
    OK(tar_writer_commit(w, NULL, NULL, err));
    tar_writer_free(w);
    free(zeros);
    OK(cut(path, 1, 0, 1, &got, &r, err));
    assert_int_equal(got.samples, 2);
    assert_int_equal(r.bad_count, 1);
    assert_string_equal(r.bad[0], "t/b");
    assert_string_equal(r.bad_why[0], "larger than 64 MiB");
    dataset_report_release(&r);
    mem_free(path);
    scratch_free(dir);
}

#define SORTED 20000

struct first {
    uint32_t shards, counts[8]; /* of classes, in the first shard */
};

static int note_first(void *ctx, const struct dataset_shard *shard, struct err *ret_err)
{
    struct first *f = ctx;
    struct shard s;
    OK(shard_open(shard->path, &s, err));
    for (size_t i = 0; i < s.n && f->shards == 0; i++)
        f->counts[s.samples[i].cls]++;
    shard_close(&s);
    f->shards++;
    return file_remove(shard->path, ret_err);
}

static int goes_up(void *ctx, uint64_t done, uint64_t total)
{
    static uint64_t last;
    assert_int_equal(total, SORTED);
    assert_true((done >= last || last == total) && done <= total);
    last = done;
    return 0;
}

/* However long a tar is that has one class after the other, every shard has all of them; and
 * nothing is left behind. */
static void sorted_tars_are_mixed(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "t.tar"), *out = in(dir, "out");
    struct tar_writer *w;
    struct dataset *ds;
    OK(tar_writer_open(path, &w, err));
    for (int i = 0; i < SORTED; i++) {
        char name[32], cls[2] = {(char)('0' + i / (SORTED / 8)), '\0'};
        snprintf(name, sizeof(name), "%05d.png", i);
        OK(tar_writer_add(w, name, png, sizeof(png), err));
        snprintf(name, sizeof(name), "%05d.cls", i);
        OK(tar_writer_add(w, name, cls, 1, err));
    }
    OK(tar_writer_commit(w, NULL, NULL, err));
    tar_writer_free(w);
    OK(file_mkdirs(out, 0700, err));
    OK(images_open(path, &ds, err));
    for (int look = 0; look < 2; look++) {
        struct first f = {0};
        struct dataset_report r;
        struct file_names left;
        const struct dataset_cut opt = {.shard_samples = 1000,
                                        .look = look,
                                        .dir = out,
                                        .on_shard = note_first,
                                        .on_progress = goes_up,
                                        .ctx = &f};
        OK(dataset_cut(ds, &opt, &r, err));
        assert_int_equal(f.shards, SORTED / 1000);
        for (int i = 0; i < 8; i++) {
            assert_in_range(f.counts[i], 80, 170); /* 125 in the mean */
            assert_int_equal(r.counts[i], SORTED / 8);
        }
        dataset_report_release(&r);
        OK(file_list(out, 10, &left, err));
        assert_int_equal(left.n, 0);
        file_names_release(&left);
    }
    dataset_close(ds);
    mem_free(out);
    mem_free(path);
    scratch_free(dir);
}

static void refuses_tars(void **state)
{
    static const struct {
        const char *members, *says;
    } cases[] = {
        {"a.png=PNG;b.png=PNG", "sample 'a' has no class"},
        {"a.png=PNG;a.cls=1;b.png=PNG;b.cls=cat", "numbers and texts are mixed"},
        {"a.png=PNG;a.jpg=PNG;a.cls=1", "sample 'a' has two images"},
        {"a.png=PNG;a.cls=99999", "class 99999, at most 4095"},
        {"a.txt=hello", "has no images"},
        {"a.json={;a.png=PNG", "t.tar: a.json, line 1"},
        {"a.png=PNG;a.cls=caf\xe9", "t.tar: the name of class 0, 'caf\xe9', is not UTF-8"},
    };
    char *dir = scratch_new(), *path = in(dir, "t.tar");
    struct dataset *ds;
    for (size_t i = 0; i < COUNT(cases); i++) {
        make_tar(dir, "t.tar", cases[i].members);
        FAILS(images_open(path, &ds, err), cases[i].says);
    }
    make_tar(dir, "t.tar", "a.png=PNG;a.cls=1;b.png=PNG;b.cls=1");
    struct buf b;
    OK(file_read(path, 1u << 20, &b, err));
    put(dir, "t.tar", b.data, 2560 + 4);
    FAILS(images_open(path, &ds, err), "t.tar is cut short");
    buf_release(&b);
    mem_free(path);
    path = in(dir, "q-{00..zz}.tar");
    FAILS(images_open(path, &ds, err), "expected a range such as {000..011}");
    mem_free(path);
    path = in(dir, "q-{00..02}.tar");
    FAILS(images_open(path, &ds, err), "q-00.tar");
    mem_free(path);
    path = in(dir, "zzz*.tar");
    FAILS(images_open(path, &ds, err), "no file matches");
    mem_free(path);
    fill_folder(dir, "pets/cat", 1, png);
    path = in(dir, "pe*");
    FAILS(images_open(path, &ds, err), "pets, a folder: give it by its name, without a pattern");
    mem_free(path);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(endings_are_in_any_case),        cmocka_unit_test(tars_are_read),
        cmocka_unit_test(tars_with_text_classes_are_cut), cmocka_unit_test(tars_of_others_are_read),
        cmocka_unit_test(folders_beside_tars_are_named),  cmocka_unit_test(too_large),
        cmocka_unit_test(sorted_tars_are_mixed),          cmocka_unit_test(refuses_tars),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
