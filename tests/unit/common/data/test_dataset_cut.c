/* Samples to shards: the split, the shuffle's bounds, what is told on the way. */
#include "common/data/dataset_impl.h"
#include "tests/unit/common/data/dataset_test.h"

static struct cutter open_cut(const struct dataset_cut *opt)
{
    const struct dataset none = {0};
    struct cutter c;
    OK(cut_open(&c, &none, opt, err));
    return c;
}

/* About the fraction asked for, by the name and the seed alone; none of 0. */
static void holds_out_by_name(void **state)
{
    struct dataset_cut opt = {.seed = 3, .holdout = 0.25, .shard_samples = 16};
    struct cutter c = open_cut(&opt), again = open_cut(&opt);
    struct dataset_cut other = opt, zero = opt;
    other.seed = 4;
    zero.holdout = 0;
    struct cutter d = open_cut(&other), z = open_cut(&zero);
    unsigned held = 0, moved = 0;
    for (int i = 0; i < 4000; i++) {
        char key[32];
        snprintf(key, sizeof(key), "cat/%d.png", i);
        bool out = cut_is_holdout(&c, key);
        assert_int_equal(out, cut_is_holdout(&again, key));
        assert_false(cut_is_holdout(&z, key));
        held += out;
        moved += out != cut_is_holdout(&d, key);
    }
    assert_in_range(held, 900, 1100);
    assert_in_range(moved, 1300, 1700); /* 2 * 0.25 * 0.75 of all */
}

/* The first 64 bits of a SHA-256: the split of a job on record must not move. */
static void hashes_are_fixed(void **state)
{
    assert_true(cut_hash("abc") == 0xba7816bf8f01cfeaULL);
}

static void columns_are_of_one_length(void **state)
{
    struct dataset_cut opt = {.shard_samples = 16};
    const struct dataset ds = {.name = (char *)"d", .column = (char *)"dino"};
    struct cutter c = open_cut(&opt);
    struct err e = {0};
    c.err = &e;
    assert_int_equal(cut_check_dim(&c, &ds, "a", 3), 0);
    assert_int_equal(cut_check_dim(&c, &ds, "b", 3), 0);
    assert_int_equal(cut_check_dim(&c, &ds, "c", 4), -ERR_FORMAT);
    assert_string_equal(e.msg, "d: the column 'dino' of sample 'c' has 4 numbers, but the first "
                               "sample's has 3; expected the same number in each");
}

static int count_calls(void *ctx, uint64_t done, uint64_t total)
{
    struct got *g = ctx;
    assert_int_equal(total, 130);
    assert_true(done > g->holdout && (done % 64 == 0 || done == total));
    g->holdout = (uint32_t)done; /* the last one told */
    return ++g->shards == 3 && g->stop_after ? -ERR_CANCELLED : 0;
}

static int drop(void *ctx, const struct dataset_shard *shard, struct err *ret_err)
{
    (void)ctx;
    return file_remove(shard->path, ret_err);
}

static void tells_how_far_it_is(void **state)
{
    char *dir = scratch_new(), *data = in(dir, "data");
    struct dataset *ds;
    struct dataset_report r;
    struct got g = {0};
    struct dataset_cut opt = {
        .shard_samples = 50, .dir = dir, .on_shard = drop, .on_progress = count_calls, .ctx = &g};
    fill_folder(data, "cat", 130, png);
    OK(images_open(data, &ds, err));
    OK(dataset_cut(ds, &opt, &r, err));
    assert_int_equal(g.shards, 3); /* after 64, 128 and all */
    assert_int_equal(r.samples, 130);
    dataset_report_release(&r);
    g = (struct got){.stop_after = 1};
    FAILS(dataset_cut(ds, &opt, &r, err), "cutting the dataset was stopped");
    dataset_close(ds);
    mem_free(data);
    scratch_free(dir);
}

/* An archive that is one of several may be held out as a whole, but need not give anything. */
static void one_of_several(void **state)
{
    char *dir = scratch_new(), *data = in(dir, "data");
    fill_folder(data, "cat", 1, png);
    for (int i = 0; i < 3; i++) {
        struct dataset *ds;
        struct dataset_report r;
        const struct dataset_cut opt = {.holdout = 1e-9,
                                        .may_hold_all = i > 0,
                                        .may_hold_none = i > 1,
                                        .shard_samples = 16,
                                        .dir = dir,
                                        .on_shard = drop};
        OK(images_open(data, &ds, err));
        if (i == 0)
            FAILS(dataset_cut(ds, &opt, &r, err), "has 1 image, held out, and none left");
        else
            OK(dataset_cut(ds, &opt, &r, err));
        assert_true(i == 0 || (r.samples == 1 && r.holdout_samples == (i == 1)));
        if (i > 0)
            dataset_report_release(&r);
        dataset_close(ds);
    }
    mem_free(data);
    scratch_free(dir);
}

/* A tar is shuffled through files of its size; a disk that is too small is told before, not when it
 * is full.  What is only looked at needs no such room, nor does a folder. */
static void room_to_shuffle(void **state)
{
    enum { TAR, FOLDER };
    static const struct {
        int source;
        uint64_t bytes;
        bool look, refused;
    } cases[] = {
        {TAR, 1000, false, false},
        {TAR, UINT64_MAX / 2, false, true},
        {TAR, UINT64_MAX / 2, true, false},
        {FOLDER, UINT64_MAX / 2, false, false},
    };
    char *dir = scratch_new(), *data = in(dir, "data"), *tar = in(dir, "a.tar");
    fill_folder(data, "cat", 2, png);
    make_tar(dir, "a.tar", "1.png=PNG;1.cls=0;2.png=PNG;2.cls=0");
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct dataset *ds;
        struct dataset_report r;
        const struct dataset_cut opt = {
            .shard_samples = 16, .dir = dir, .on_shard = drop, .look = cases[i].look};
        OK(images_open(cases[i].source == TAR ? tar : data, &ds, err));
        ds->bytes = cases[i].bytes;
        if (cases[i].refused) {
            FAILS(dataset_cut(ds, &opt, &r, err), " to shuffle, but");
        } else {
            OK(dataset_cut(ds, &opt, &r, err));
            dataset_report_release(&r);
        }
        dataset_close(ds);
    }
    mem_free(data);
    mem_free(tar);
    scratch_free(dir);
}

/* Of tars the first images of each are read, and what follows them is not. */
static void some_are_enough(void **state)
{
    char *dir = scratch_new(), *data = in(dir, "data"), *tars = in(dir, "tars");
    struct dataset *ds;
    struct dataset_report r;
    struct dataset_cut opt = {.most = 6,
                              .holdout = 1e-9,
                              .look = true,
                              .shard_samples = 50,
                              .dir = dir,
                              .on_shard = drop};
    fill_folder(data, "cat", 100, png);
    fill_folder(data, "cow", 100, png);
    fill_folder(data, "dog", 1, "text"); /* none can be read, but it is not met */
    OK(images_open(data, &ds, err));
    OK(dataset_cut(ds, &opt, &r, err));
    assert_true(r.samples == 6 && r.counts[0] > 0 && r.counts[1] > 0);
    dataset_report_release(&r);
    dataset_close(ds);
    OK(file_mkdirs(tars, 0755, err));
    make_tar(dir, "tars/a.tar",
             "1.cls=0;1.png=PNG;2.cls=0;2.png=PNG;3.cls=0;3.png=PNG;"
             "4.cls=0;4.png=text;5.cls=0;5.png=PNG");
    make_tar(dir, "tars/b.tar", "1.cls=1;1.png=PNG;2.cls=1;2.png=PNG");
    OK(images_open(tars, &ds, err));
    OK(dataset_cut(ds, &opt, &r, err));
    assert_true(r.samples == 5 && r.counts[0] == 3 && r.counts[1] == 2);
    dataset_report_release(&r);
    opt.most = 0;
    FAILS(dataset_cut(ds, &opt, &r, err), "1 image file cannot be read");
    dataset_close(ds);
    mem_free(data);
    mem_free(tars);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holds_out_by_name),
        cmocka_unit_test(hashes_are_fixed),
        cmocka_unit_test(columns_are_of_one_length),
        cmocka_unit_test(tells_how_far_it_is),
        cmocka_unit_test(one_of_several),
        cmocka_unit_test(room_to_shuffle),
        cmocka_unit_test(some_are_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
