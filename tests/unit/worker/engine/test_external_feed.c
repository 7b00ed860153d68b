/* What a trainer gets of a task's samples: whole batches, as the shards have them. */
#include "worker/engine/external_feed.h"

#include <unistd.h>

#include "common/data/shard.h"
#include "tests/unit/worker/shards.h"
#include "worker/order/cache.h"

#define MANY 5000
#define BATCH 7
#define LONG (1u << 20) /* tokens */

static char *top;
static struct cache *cache;
static struct test_shard pictures, words;

static struct work work_of(bool text)
{
    struct work w = {.cache = cache};
    const char *spec = text ? "name: x\ndata: {path: d}\n"
                              "model: {type: llama, dim: 16, depth: 1, heads: 2}\n"
                              "train: {batch: 4}\nouter: {rounds: 1, steps: 1}\n"
                            : "name: x\ndata: {path: d, image_size: 8}\n"
                              "model: {type: dit, dim: 16, depth: 1, heads: 2, patch: 2}\n"
                              "train: {batch: 4}\nouter: {rounds: 1, steps: 1}\n";
    OK(job_parse(spec, strlen(spec), "job", &w.spec, err));
    return w;
}

static int open_range(struct work *w, const struct test_shard *s, uint32_t start, uint32_t count,
                      const struct data_order *order, uint32_t batch, uint64_t most,
                      struct external_feed **ret, struct err *err)
{
    Skerry__V1__Blob blob = SKERRY__V1__BLOB__INIT;
    Skerry__V1__Range range = SKERRY__V1__RANGE__INIT, *list = &range;
    blob.sha256 = (ProtobufCBinaryData){32, (uint8_t *)(uintptr_t)s->sha256};
    range.shard = &blob;
    range.start = start;
    range.count = count;
    return external_feed_open(w, &list, 1, order, batch, most, ret, err);
}

static const struct data_order in_order;

/* The next portion, of n samples: their bytes (mem_free). */
static uint8_t *next(struct external_feed *f, size_t n, bool last, Skerry__Trainer__V1__Samples *m)
{
    int fd = -2;
    skerry__trainer__v1__samples__init(m);
    OK(external_feed_next(f, m, &fd, err));
    assert_int_equal(m->n_ends, n);
    assert_int_equal(m->n_classes, n);
    assert_int_equal(m->last, last);
    if (n == 0) {
        assert_int_equal(fd, -1);
        return NULL;
    }
    const uint64_t bytes = m->ends[n - 1];
    assert_int_equal(lseek(fd, 0, SEEK_END), bytes);
    uint8_t *data = mem_alloc(bytes);
    OK(file_pread_all(fd, data, bytes, 0, "samples", err));
    (void)close(fd);
    return data;
}

static void pictures_as_they_are(void **state)
{
    struct work w = work_of(false);
    struct external_feed *f = NULL;
    struct shard shard;
    Skerry__Trainer__V1__Samples m;
    OK(shard_open(pictures.path, &shard, err));
    OK(open_range(&w, &pictures, 1, 10, &in_order, 4, 0, &f, err));
    assert_int_equal(external_feed_total(f), 10);
    uint8_t *data = next(f, 10, true, &m);
    for (unsigned i = 0; i < 10; i++) {
        const struct shard_sample *s = &shard.samples[1 + i];
        const uint64_t at = i > 0 ? m.ends[i - 1] : 0;
        assert_int_equal(m.ends[i] - at, s->len);
        assert_memory_equal(data + at, s->data, s->len);
        assert_int_equal(m.classes[i], (i + 1) % 5);
    }
    assert_int_equal(external_feed_position(f), 10);
    assert_null(next(f, 0, true, &m)); /* a trainer may ask again */
    mem_free(data);
    external_feed_close(f);

    /* Some of them, from the middle; beyond the end there is nothing. */
    OK(open_range(&w, &pictures, 0, 12, &in_order, 4, 6, &f, err));
    assert_int_equal(external_feed_total(f), 6);
    external_feed_seek(f, 5);
    data = next(f, 1, true, &m);
    assert_memory_equal(data, shard.samples[5].data, shard.samples[5].len);
    mem_free(data);
    external_feed_seek(f, 7);
    assert_int_equal(external_feed_position(f), 6);
    assert_null(next(f, 0, true, &m));
    external_feed_close(f);
    OK(open_range(&w, &pictures, 0, 12, &in_order, 4, 13, &f, err));
    assert_int_equal(external_feed_total(f), 12);
    external_feed_close(f);
    external_feed_close(NULL);
    shard_close(&shard);
    job_release(&w.spec);
}

/* A portion ends with a batch, though it then has more than its size. */
static void portions(void **state)
{
    struct work w = work_of(true);
    struct external_feed *f = NULL;
    Skerry__Trainer__V1__Samples m;
    OK(open_range(&w, &words, 0, MANY, &in_order, BATCH, 0, &f, err));
    const size_t n = (4096 / BATCH + 1) * BATCH; /* 4096 is no multiple of it */
    uint8_t *data = next(f, n, false, &m);
    for (unsigned i = 0; i < n; i++) {
        int32_t id;
        memcpy(&id, data + 4 * i, 4);
        assert_int_equal(id, i % 251);
        assert_int_equal(m.ends[i], 4 * (i + 1));
    }
    mem_free(data);
    data = next(f, MANY - n, true, &m);
    int32_t id;
    memcpy(&id, data, 4);
    assert_int_equal(id, n % 251);
    mem_free(data);
    external_feed_close(f);

    OK(open_range(&w, &words, 0, MANY, &in_order, 0, 0, &f, err)); /* batches of one */
    mem_free(next(f, 4096, false, &m));
    external_feed_close(f);
    OK(open_range(&w, &words, 0, MANY, &in_order, 6000, 0, &f, err)); /* not a whole one */
    mem_free(next(f, MANY, true, &m));
    external_feed_close(f);

    /* Of large samples there are as many as fill 32 MiB. */
    OK(open_range(&w, &words, MANY, 10, &in_order, 1, 0, &f, err));
    mem_free(next(f, 8, false, &m));
    mem_free(next(f, 2, true, &m));
    external_feed_close(f);
    OK(open_range(&w, &words, MANY, 10, &in_order, 3, 0, &f, err));
    mem_free(next(f, 9, false, &m));
    external_feed_close(f);
    job_release(&w.spec);
}

/* After n windows exactly the samples of the first n windows were passed on. */
static void shuffled(void **state)
{
    enum { WINDOW = 100, ALL = 250 };
    struct work w = work_of(true);
    const struct data_order order = {.shuffle = true, .seed = 4, .window = WINDOW};
    struct external_feed *f = NULL;
    Skerry__Trainer__V1__Samples m;
    uint8_t *got[2];
    for (int again = 0; again < 2; again++) {
        OK(open_range(&w, &words, 0, ALL, &order, 1, 0, &f, err));
        external_feed_seek(f, again ? WINDOW : 0);
        got[again] = next(f, ALL - (again ? WINDOW : 0), true, &m);
        external_feed_close(f);
    }
    unsigned seen[ALL] = {0}, moved = 0;
    for (unsigned i = 0; i < ALL; i++) {
        int32_t id;
        memcpy(&id, got[0] + 4 * i, 4);
        assert_int_equal(id / WINDOW, i / WINDOW);
        seen[id]++;
        moved += (unsigned)id != i;
    }
    for (unsigned i = 0; i < ALL; i++)
        assert_int_equal(seen[i], 1);
    assert_true(moved > ALL / 2);
    assert_memory_equal(got[1], got[0] + 4 * WINDOW, 4 * (ALL - WINDOW)); /* resumed alike */
    mem_free(got[0]);
    mem_free(got[1]);
    job_release(&w.spec);
}

static void refused(void **state)
{
    struct work w = work_of(false);
    struct external_feed *f = NULL;
    struct test_shard none = {.sha256 = {1}};
    FAILS(open_range(&w, &pictures, 5, 10, &in_order, 4, 0, &f, err), "which holds 12");
    FAILS(open_range(&w, &pictures, 5, 0, &in_order, 4, 0, &f, err), "names 0 samples");
    assert_true(open_range(&w, &none, 0, 1, &in_order, 4, 0, &f, &(struct err){0}) < 0);
    assert_null(f);
    job_release(&w.spec);
}

static void kinds(void **state)
{
    static const char nothing[] = "name: x\ndata: {kind: none}\nmodel: {type: external}\n"
                                  "trainer: {command: ./train}\ntrain: {batch: 4}\n"
                                  "outer: {rounds: 3, steps: 6}\n";
    struct work w = work_of(false);
    assert_int_equal(external_feed_kind(&w), SKERRY__TRAINER__V1__SAMPLE_KIND__SAMPLE_KIND_IMAGE);
    job_release(&w.spec);
    w = work_of(true);
    assert_int_equal(external_feed_kind(&w), SKERRY__TRAINER__V1__SAMPLE_KIND__SAMPLE_KIND_TEXT);
    job_release(&w.spec);
    OK(job_parse(nothing, sizeof(nothing) - 1, "job", &w.spec, err));
    assert_int_equal(external_feed_kind(&w), SKERRY__TRAINER__V1__SAMPLE_KIND__SAMPLE_KIND_NONE);
    job_release(&w.spec);
}

/* ---- shards ---- */

/* Many texts of a token, whose id is their number, then ten of a million. */
static void make_words(void)
{
    static uint32_t ids[LONG];
    struct shard_writer *w;
    struct shard_info info;
    struct buf room;
    words.path = in(top, "words");
    w = shard_writer_new(words.path);
    buf_init(&room, 8 << 20);
    for (unsigned i = 0; i < MANY + 10; i++) {
        const unsigned n = i < MANY ? 1 : LONG;
        struct shard_sample s = {.ext = "tok", .tokens = n};
        ids[0] = i % 251;
        buf_clear(&room);
        OK(shard_encode_tokens(ids, n, &room));
        s.data = room.data;
        s.len = room.len;
        (void)snprintf(s.key, sizeof(s.key), "t%u", i);
        OK(shard_writer_add(w, &s, 0, err));
    }
    OK(shard_writer_finish(w, &info, err));
    memcpy(words.sha256, info.sha256, 32);
    shard_writer_free(w);
    buf_release(&room);
}

static void to_cache(const struct test_shard *s)
{
    char path[CACHE_PATH_MAX];
    cache_path(cache, s->sha256, path);
    assert_int_equal(link(s->path, path), 0);
    OK(cache_added(cache, s->sha256, err));
}

static int setup(void **state)
{
    OK(image_init(err));
    top = scratch_new();
    char *blobs = in(top, "blobs");
    OK(cache_open(blobs, 0, &cache, err));
    mem_free(blobs);
    pictures = shard_make(top, 0, 12, 5, -1);
    make_words();
    to_cache(&pictures);
    to_cache(&words);
    return 0;
}

static int teardown(void **state)
{
    cache_close(cache);
    mem_free(pictures.path);
    mem_free(words.path);
    scratch_free(top);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_as_they_are),
        cmocka_unit_test(portions),
        cmocka_unit_test(shuffled),
        cmocka_unit_test(refused),
        cmocka_unit_test(kinds),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
