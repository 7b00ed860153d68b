/* The column of an image dataset: where it is found, and what is refused. */
#include <errno.h>

#include "tests/unit/common/base/util.h"

#include "common/data/dataset.h"
#include "common/data/shard.h"
#include "common/base/str.h"
#include "common/data/tar.h"

static const char png[] = "\x89PNG\r\n\x1a\nrest";

/* A .npy of n floats: first, first + 1, ... */
static size_t npy(uint8_t *out, int first, int n)
{
    char header[128];
    int len = snprintf(header, sizeof(header),
                       "{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }\n", n);
    memcpy(out, "\x93NUMPY\1\0", 8);
    out[8] = (uint8_t)len;
    out[9] = 0;
    memcpy(out + 10, header, (size_t)len);
    for (int i = 0; i < n; i++) {
        float v = (float)(first + i);
        memcpy(out + 10 + len + 4 * i, &v, 4);
    }
    return 10 + (size_t)len + 4 * (size_t)n;
}

static void put_npy(const char *dir, const char *name, int first, int n)
{
    uint8_t file[512];
    size_t len = npy(file, first, n);
    put(dir, name, file, len);
}

/* Each sample's feature begins with the number in its name. */
static int on_shard(void *ctx, const struct dataset_shard *shard, struct err *ret_err)
{
    (void)ret_err;
    struct shard s;
    unsigned *n = ctx;
    OK(shard_open(shard->path, &s, err));
    assert_int_equal(s.dim, 3);
    for (size_t i = 0; i < s.n; i++, ++*n) {
        float v[3];
        int number = atoi(strstr(s.samples[i].key, "_n") + 2);
        shard_feature(&s, &s.samples[i], v);
        assert_true(v[0] == (float)number && v[2] == (float)number + 2);
    }
    shard_close(&s);
    return 0;
}

static int cut(const char *path, unsigned *n, struct err *err)
{
    struct dataset *ds;
    struct dataset_report r;
    char *dir = scratch_new();
    struct dataset_cut c = {
        .shard_samples = 16, .holdout = 0.3, .dir = dir, .on_shard = on_shard, .ctx = n};
    *n = 0;
    int rc = dataset_open(&(struct dataset_options){.path = path, .column = "dino"}, &ds, err);
    if (rc == 0) {
        rc = dataset_cut(ds, &c, &r, err);
        if (rc == 0) {
            assert_int_equal(r.dim, 3);
            dataset_report_release(&r);
        }
        dataset_close(ds);
    }
    scratch_free(dir);
    return rc;
}

static void beside_images_in_folders(void **state)
{
    (void)state;
    char *dir = scratch_new();
    unsigned n;
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof(name), "cat/n%d.png", i);
        put(dir, name, png, sizeof(png));
    }
    put(dir, "cat/n0.json", "{\"dino\": [0, 1, 2]}", 19);
    put_npy(dir, "cat/n0.npy", 50, 3); /* what has the name goes before */
    put_npy(dir, "cat/n1.dino.npy", 1, 3);
    put_npy(dir, "cat/n1.npy", 50, 3);
    put(dir, "cat/n2.json", "{\"other\": 1}", 12);
    put_npy(dir, "cat/n2.npy", 2, 3);
    FAILS(cut(dir, &n, err), "cat/n3' has no column 'dino': expected \"dino\": [numbers] in ");
    put_npy(dir, "cat/n3.npy", 3, 3);
    OK(cut(dir, &n, err));
    assert_int_equal(n, 4);

    put_npy(dir, "cat/n3.npy", 3, 4);
    FAILS(cut(dir, &n, err), "expected the same number in each");
    put(dir, "cat/n3.npy", "junk", 4);
    FAILS(cut(dir, &n, err), "n3.npy is no .npy file");
    put(dir, "cat/n3.json", "{\"dino\": \"three\"}", 17);
    FAILS(cut(dir, &n, err), "n3.json is not an array of numbers");
    char *large = mem_alloc(2 << 20);
    put(dir, "cat/n3.json", large, 2 << 20);
    FAILS(cut(dir, &n, err), "is larger than");
    mem_free(large);
    scratch_free(dir);
}

struct member {
    const char *name, *text; /* text NULL: a png, "npy": three numbers from `first` */
    int first;
};

static void write_tar(const char *path, const struct member *members)
{
    struct tar_writer *w;
    uint8_t file[512];
    OK(tar_writer_open(path, &w, err));
    for (const struct member *m = members; m->name; m++) {
        if (!m->text)
            OK(tar_writer_add(w, m->name, png, sizeof(png), err));
        else if (strcmp(m->text, "npy") == 0)
            OK(tar_writer_add(w, m->name, file, npy(file, m->first, 3), err));
        else
            OK(tar_writer_add(w, m->name, m->text, strlen(m->text), err));
    }
    OK(tar_writer_commit(w, NULL, NULL, err));
    tar_writer_free(w);
}

static void members_of_tars(void **state)
{
    (void)state;
    static const struct member good[] = {
        {"n1.png", NULL, 0},   {"n1.json", "{\"label\": 0, \"dino\": [1, 2, 3]}", 0},
        {"n1.npy", "npy", 50}, {"n2.other.npy", "npy", 50},
        {"n2.npy", "npy", 50}, {"n2.dino.npy", "npy", 2},
        {"n2.png", NULL, 0},   {"n2.cls", "0", 0},
        {"n3.cls", "1", 0},    {"n3.npy", "npy", 3},
        {"n3.png", NULL, 0},   {"n4.dino.npy", "npy", 4},
        {"n4.png", NULL, 0},   {"n4.json", "{\"label\": 0}", 0},
        {"n4.npy", "npy", 50}, {NULL, NULL, 0},
    };
    static const struct member missing[] = {
        {"n1.png", NULL, 0}, {"n1.cls", "0", 0},         {"n1.npy", "npy", 1}, {"n2.png", NULL, 0},
        {"n2.cls", "0", 0},  {"n2.other.npy", "npy", 2}, {NULL, NULL, 0},
    };
    static const struct member ragged[] = {
        {"n1.png", NULL, 0}, {"n1.json", "{\"label\": 0, \"dino\": [1, 2, 3]}", 0},
        {"n2.png", NULL, 0}, {"n2.json", "{\"label\": 0, \"dino\": [1, 2]}", 0},
        {NULL, NULL, 0},
    };
    char *dir = scratch_new(), *path = in(dir, "t.tar");
    unsigned n;
    write_tar(path, good);
    OK(cut(path, &n, err));
    assert_int_equal(n, 4);
    write_tar(path, missing);
    FAILS(cut(path, &n, err), "t.tar: sample 'n2' has no column 'dino'");
    write_tar(path, ragged);
    FAILS(cut(path, &n, err),
          "the column 'dino' of sample 't/n2' has 2 numbers, but the first sample's has 3");
    mem_free(path);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beside_images_in_folders),
        cmocka_unit_test(members_of_tars),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
