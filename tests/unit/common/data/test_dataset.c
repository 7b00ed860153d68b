#include "common/data/dataset.h"

#include <errno.h>

#include "tests/unit/common/base/util.h"

#include "common/data/shard.h"
#include "common/base/str.h"
#include "common/data/tar.h"

static int images_open(const char *path, struct dataset **ret, struct err *err)
{
    return dataset_open(&(struct dataset_options){.path = path}, ret, err);
}

static const char png[] = "\x89PNG\r\n\x1a\nrest";
static const char jpg[] = "\xff\xd8\xff rest";

static void fill_folder(const char *dir, const char *cls, int n, const char *bytes)
{
    for (int i = 0; i < n; i++) {
        char name[64], text[64];
        snprintf(name, sizeof(name), "%s/%03d.png", cls, i);
        int len = snprintf(text, sizeof(text), "%s %s %d", bytes, cls, i);
        put(dir, name, text, (size_t)len);
    }
}

struct got {
    char *dir;
    uint32_t shards, holdout_shards, samples, holdout;
    uint32_t counts[8];
    char names[32][128];        /* name, kind and class of the first ones */
    uint8_t digest[HASH_BYTES]; /* of all shards' hashes */
    int stop_after;
};

static int on_shard(void *ctx, const struct dataset_shard *shard, struct err *ret_err)
{
    struct got *g = ctx;
    struct shard s;
    uint8_t sha[HASH_BYTES], both[2 * HASH_BYTES];
    uint64_t size;
    if (g->stop_after && (int)g->shards == g->stop_after)
        return err_set(ret_err, -ERR_CANCELLED, "enough");
    OK(hash_file(shard->path, sha, &size, err));
    assert_memory_equal(sha, shard->sha256, HASH_BYTES);
    assert_int_equal(size, shard->bytes);
    OK(shard_open(shard->path, &s, err));
    assert_int_equal(s.n, shard->samples);
    for (size_t i = 0; i < s.n; i++) {
        assert_true(s.samples[i].cls < 8);
        g->counts[s.samples[i].cls]++;
        assert_memory_equal(s.samples[i].data, strcmp(s.samples[i].ext, "png") == 0 ? png : jpg, 3);
        if (g->samples + i < COUNT(g->names))
            snprintf(g->names[g->samples + i], sizeof(g->names[0]), "%s %s %u",
                     strchr(s.samples[i].key, '-') + 1, s.samples[i].ext, s.samples[i].cls);
    }
    shard_close(&s);
    memcpy(both, g->digest, HASH_BYTES);
    memcpy(both + HASH_BYTES, sha, HASH_BYTES);
    hash_sha256(both, sizeof(both), g->digest);
    g->shards++;
    g->holdout_shards += shard->holdout;
    g->samples += shard->samples;
    g->holdout += shard->holdout ? shard->samples : 0;
    return file_remove(shard->path, ret_err);
}

static int cut(const char *path, uint64_t seed, double holdout, uint32_t max_bad, struct got *got,
               struct dataset_report *report, struct err *err)
{
    struct dataset *ds;
    char *dir = scratch_new();
    memset(got, 0, sizeof(*got));
    int rc = images_open(path, &ds, err);
    if (rc == 0) {
        struct dataset_cut opt = {.seed = seed,
                                  .holdout = holdout,
                                  .shard_samples = 16,
                                  .max_bad = max_bad,
                                  .dir = dir,
                                  .on_shard = on_shard,
                                  .ctx = got};
        rc = dataset_cut(ds, &opt, report, err);
        dataset_close(ds);
    }
    scratch_free(dir);
    return rc;
}

static void folder_is_cut(void **state)
{
    char *dir = scratch_new();
    fill_folder(dir, "cat", 60, png);
    fill_folder(dir, "dog", 40, jpg);
    put(dir, "cat/notes.md", "x", 1);
    put(dir, "README", "x", 1);
    put(dir, "dog/text.jpg", "plain text", 10);
    struct got a, b, c;
    struct dataset_report r;
    OK(cut(dir, 1, 0.1, 5, &a, &r, err));
    assert_int_equal(r.classes, 2);
    assert_int_equal(r.samples, 100);
    assert_int_equal(r.counts[0], 60);
    assert_int_equal(r.counts[1], 40);
    assert_int_equal(r.bad_count, 1);
    assert_string_equal(r.bad[0], "dog/text.jpg");
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
    FAILS(cut(dir, 1, 0.1, 0, &a, &r, err), "1 files are no JPEG, PNG or WebP images, at most 0");
    scratch_free(dir);
}

static void refuses_folders(void **state)
{
    char *dir = scratch_new(), *empty = in(dir, "empty"), *flat = in(dir, "flat"),
         *holes = in(dir, "holes"), *text = in(dir, "text");
    struct dataset *ds;
    FAILS(images_open("/nonexistent/data", &ds, err), "there is no dataset at /nonexistent/data");
    OK(file_mkdirs(empty, 0755, err));
    FAILS(images_open(empty, &ds, err), "holds no dataset: expected a folder per class");
    put(dir, "flat/a.png", png, sizeof(png));
    FAILS(images_open(flat, &ds, err), "has images but no class folders");
    put(dir, "holes/full/a.png", png, sizeof(png));
    put(dir, "holes/void/readme.txt", "x", 1);
    FAILS(images_open(holes, &ds, err), "holes/void has no images");
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
    scratch_free(dir);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Members "name=value;name=value;..." to DIR/NAME; "PNG" stands for an image. */
static void make_tar(const char *dir, const char *name, const char *members)
{
    char *path = in(dir, name), *text = strdup(members);
    struct tar_writer *w;
    OK(tar_writer_open(path, &w, err));
    for (char *m = strtok(text, ";"); m; m = strtok(NULL, ";")) {
        char *value = strchr(m, '=');
        *value++ = '\0';
        if (strcmp(value, "PNG") == 0)
            OK(tar_writer_add(w, m, png, sizeof(png), err));
        else
            OK(tar_writer_add(w, m, value, strlen(value), err));
    }
    OK(tar_writer_commit(w, NULL, NULL, err));
    tar_writer_free(w);
    free(text);
    mem_free(path);
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
    put(dir, "classes.txt", "zero\none\r\ntwo\nthree\n", 21);
    struct dataset *ds;
    OK(images_open(range, &ds, err));
    assert_string_equal(dataset_class(ds, 1), "one");
    dataset_close(ds);
    put(dir, "classes.txt", "zero\n", 5);
    FAILS(images_open(range, &ds, err), "classes.txt names 1 classes, but a sample has class 3");
    mem_free(range);
    mem_free(glob);
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
        {"a.json={;a.png=PNG", "a.json, line 1"},
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
    scratch_free(dir);
}

/* The disk fills up, or the callback says stop: an error, nothing left behind. */
static void stops_cleanly(void **state)
{
    char *dir = scratch_new(), *out = in(dir, "out"), *data = in(dir, "data");
    fill_folder(data, "cat", 60, png);
    OK(file_mkdirs(out, 0755, err));
    struct dataset *ds;
    OK(images_open(data, &ds, err));
    struct got got = {.stop_after = 1};
    struct dataset_cut opt = {.shard_samples = 16, .dir = out, .on_shard = on_shard, .ctx = &got};
    struct dataset_report r;
    FAILS(dataset_cut(ds, &opt, &r, err), "enough");
    if (file_fault_enospc(5000)) {
        FAILS(dataset_cut(ds, &opt, &r, err), "No space left");
        file_fault_enospc(-1);
    }
    dataset_close(ds);
    mem_free(out);
    mem_free(data);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folder_is_cut), cmocka_unit_test(refuses_folders),
        cmocka_unit_test(tars_are_read), cmocka_unit_test(tars_with_text_classes_are_cut),
        cmocka_unit_test(refuses_tars),  cmocka_unit_test(stops_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
