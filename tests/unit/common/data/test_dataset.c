/* Which source opens a path, and how a cut ends early. */
#include "tests/unit/common/data/dataset_test.h"

/* A folder that holds tars is one of tars, whatever else is in it. */
static void the_source_follows_from_the_path(void **state)
{
    char *dir = scratch_new();
    struct dataset *ds;
    fill_folder(dir, "cat", 3, png);
    OK(images_open(dir, &ds, err));
    assert_int_equal(dataset_samples(ds), 3);
    assert_string_equal(dataset_class(ds, 0), "cat");
    assert_string_equal(dataset_class(ds, 1), "?");
    dataset_close(ds);
    make_tar(dir, "x.tar", "a.png=PNG;a.cls=dog");
    OK(images_open(dir, &ds, err));
    assert_int_equal(dataset_samples(ds), 1);
    assert_string_equal(dataset_class(ds, 0), "dog");
    dataset_close(ds);
    put(dir, "t.jsonl", "{\"text\": \"abc\"}\n", 16);
    OK(dataset_open(&(struct dataset_options){.path = dir, .text = true, .context = 64}, &ds, err));
    assert_int_equal(dataset_classes(ds), 0);
    dataset_close(ds);
    dataset_close(NULL);
    scratch_free(dir);
}

static void refuses_shares(void **state)
{
    char *dir = scratch_new();
    struct dataset *ds;
    struct dataset_report r;
    fill_folder(dir, "cat", 3, png);
    OK(images_open(dir, &ds, err));
    struct dataset_cut none = {.dir = dir}, all = {.dir = dir, .shard_samples = 16, .holdout = 1};
    FAILS(dataset_cut(ds, &none, &r, err), "cannot cut shards of 0 samples");
    FAILS(dataset_cut(ds, &all, &r, err), "with a holdout of 1");
    dataset_close(ds);
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
        cmocka_unit_test(the_source_follows_from_the_path),
        cmocka_unit_test(refuses_shares),
        cmocka_unit_test(stops_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
