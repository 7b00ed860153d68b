/* What the tests of datasets of images share: making one, and what comes out of a cut. */
#ifndef TESTS_UNIT_COMMON_DATA_DATASET_TEST_H
#define TESTS_UNIT_COMMON_DATA_DATASET_TEST_H

#include "common/base/str.h"
#include "common/data/dataset.h"
#include "common/data/shard.h"
#include "common/data/tar.h"
#include "tests/unit/common/base/util.h"

static bool want_captions; /* of what is opened from now on */
static uint64_t want_most; /* of the images; 0: all */

static inline int images_open(const char *path, struct dataset **ret, struct err *err)
{
    return dataset_open(&(struct dataset_options){.path = path, .captions = want_captions}, ret,
                        err);
}

static const char png[] = "\x89PNG\r\n\x1a\nrest";
static const char jpg[] = "\xff\xd8\xff rest";

static inline void fill_folder(const char *dir, const char *cls, int n, const char *bytes)
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
    double share;
    uint32_t counts[8];
    char names[32][128];        /* name, kind and class of the first ones, "=" and captions */
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
            snprintf(g->names[g->samples + i], sizeof(g->names[0]), "%s %s %u%s%.*s",
                     strchr(s.samples[i].key, '-') + 1, s.samples[i].ext, s.samples[i].cls,
                     s.samples[i].captions ? "=" : "", (int)s.samples[i].captions_len,
                     s.samples[i].captions);
    }
    shard_close(&s);
    memcpy(both, g->digest, HASH_BYTES);
    memcpy(both + HASH_BYTES, sha, HASH_BYTES);
    hash_sha256(both, sizeof(both), g->digest);
    g->shards++;
    assert_true(shard->share > g->share);
    g->share = shard->share;
    g->holdout_shards += shard->holdout;
    g->samples += shard->samples;
    g->holdout += shard->holdout ? shard->samples : 0;
    return file_remove(shard->path, ret_err);
}

/* Whether a sample of that name, kind, class and captions came out. */
static inline bool came_out(const struct got *g, const char *sample)
{
    for (size_t i = 0; i < COUNT(g->names); i++)
        if (strcmp(g->names[i], sample) == 0)
            return true;
    return false;
}

static inline int cut(const char *path, uint64_t seed, double holdout, uint32_t max_bad,
                      struct got *got, struct dataset_report *report, struct err *err)
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
                                  .most = want_most,
                                  .dir = dir,
                                  .on_shard = on_shard,
                                  .ctx = got};
        rc = dataset_cut(ds, &opt, report, err);
        dataset_close(ds);
    }
    assert_true(rc < 0 || got->share == 1 || want_most);
    scratch_free(dir);
    return rc;
}

/* Members "name=value;name=value;..." to DIR/NAME; "PNG" stands for an image. */
static inline void make_tar(const char *dir, const char *name, const char *members)
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

#endif
