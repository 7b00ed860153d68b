/* INGEST of what came by URL: texts with the tokenizer of the task, by the name in the address;
 * images with their captions, when the task wants them. */
#include "tests/unit/common/base/util.h"

#include "common/base/hash.h"
#include "common/data/shard.h"
#include "common/data/tar.h"
#include "common/base/str.h"
#include "worker/kinds/kinds.h"
#include "worker/order/work.h"
#include "worker/engine/engine.h"

#define SPEC                                                                                       \
    "name: tiny\nseed: 3\n"                                                                        \
    "data: {url: [\"http://example.org/x.jsonl?key=1\"], holdout: 0.3, shard_samples: 16, "        \
    "text_field: body%s}\n"                                                                        \
    "model: {type: llama, dim: 16, depth: 1, heads: 2, context: 64}\n"                             \
    "train: {batch: 2, lr: 1e-3}\nouter: {rounds: 3, steps: 24}\n"

static const char tokenizer[] =
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"type\":"
    "\"BPE\",\"vocab\":{\"a\":0,\"b\":300,\"ab\":301},\"merges\":[\"a b\"]}}";

/* Lines of n documents of "ab" 40 times. */
static void write_lines(const char *path, int n)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    for (int i = 0; i < n; i++) {
        buf_printf(&b, "{\"body\": \"");
        for (int k = 0; k < 40; k++)
            buf_printf(&b, "ab");
        buf_printf(&b, "\"}\n");
    }
    OK(file_write_atomic(path, b.data, b.len, 0600, err));
    buf_release(&b);
}

static struct work *ingest(const char *dir, struct cache *cache, bool with_tokenizer)
{
    Skerry__V1__Task task = SKERRY__V1__TASK__INIT;
    Skerry__V1__IngestTask order = SKERRY__V1__INGEST_TASK__INIT;
    Skerry__V1__Blob blob = SKERRY__V1__BLOB__INIT;
    uint8_t sha256[HASH_BYTES];
    char spec[1024], path[CACHE_PATH_MAX];
    struct work *w;
    hash_sha256(tokenizer, strlen(tokenizer), sha256);
    snprintf(spec, sizeof(spec), SPEC, with_tokenizer ? ", tokenizer: t.json" : "");
    blob.sha256 = (ProtobufCBinaryData){HASH_BYTES, sha256};
    blob.size = strlen(tokenizer);
    blob.url = (char *)"/v1/blobs/x";
    order.url = (char *)"http://example.org/x.jsonl?key=1";
    task.id = 5;
    task.job_id = 1;
    task.kind = SKERRY__V1__TASK_KIND__TASK_KIND_INGEST;
    task.spec = spec;
    task.ingest = &order;
    task.vocab = with_tokenizer ? 302 : 257;
    task.tokenizer = with_tokenizer ? &blob : NULL;
    cache_path(cache, sha256, path);
    OK(file_write_atomic(path, tokenizer, strlen(tokenizer), 0600, err));
    OK(cache_added(cache, sha256, err));
    OK(work_new(kinds_all, &task, cache, dir, &w, err));
    w->source_path = file_join(w->temp_dir, "source.tar");
    write_lines(w->source_path, 10);
    OK(w->kind->run(NULL, w, err));
    return w;
}

static void cuts_texts(void **state)
{
    (void)state;
    char *dir = scratch_new(), *blobs = in(dir, "blobs");
    struct cache *cache;
    OK(cache_open(blobs, 0, &cache, err));
    for (int tokenized = 0; tokenized < 2; tokenized++) {
        struct work *w = ingest(dir, cache, tokenized);
        uint32_t samples[2] = {0};
        uint64_t tokens = 0;
        for (size_t i = 0; i < w->result.n_outputs; i++) {
            const struct work_output *o = &w->result.outputs[i];
            struct shard s;
            int32_t ids[65]; /* job_piece */
            OK(shard_open(o->path, &s, err));
            assert_int_equal(s.kind, SHARD_TEXT);
            assert_int_equal(s.n, o->samples);
            assert_int_equal(s.tokens, o->tokens);
            shard_tokens(&s.samples[0], ids);
            assert_true(tokenized ? ids[2] == 301 : ids[2] == 'a' || ids[2] == 'b');
            samples[o->holdout] += o->samples;
            tokens += o->tokens;
            shard_close(&s);
        }
        /* The rest of 82 bytes is a second piece, of 33; 40 tokens fit into one. */
        assert_int_equal(samples[0] + samples[1], tokenized ? 10 : 20);
        assert_true(samples[0] > 0 && samples[1] > 0);
        assert_int_equal(tokens, tokenized ? 400 : 980);
        assert_int_equal(w->result.n_classes, 0);
        assert_int_equal(w->result.samples, tokenized ? 10 : 20);
        work_free(w);
    }
    cache_close(cache);
    mem_free(blobs);
    scratch_free(dir);
}

/* What is behind the name in an address may be a key: it is in no error. */
static void names_no_query(void **state)
{
    (void)state;
    char *dir = scratch_new(), *blobs = in(dir, "blobs");
    struct err why = {0};
    struct cache *cache;
    OK(cache_open(blobs, 0, &cache, err));
    struct work *w = ingest(dir, cache, false);
    OK(file_write_atomic(w->source_path, "no JSON\n", 8, 0600, err));
    assert_true(w->kind->run(NULL, w, &why) < 0);
    assert_true(str_starts(why.msg, "http://example.org/x.jsonl, line 1"));
    assert_null(strstr(why.msg, "key=1"));
    work_free(w);
    cache_close(cache);
    mem_free(blobs);
    scratch_free(dir);
}

/* A task of the job, without a tokenizer, whose archive was fetched. */
static struct work *fetched(const char *dir, struct cache *cache, const char *spec, const char *url,
                            const void *data, size_t len)
{
    Skerry__V1__Task task = SKERRY__V1__TASK__INIT;
    Skerry__V1__IngestTask order = SKERRY__V1__INGEST_TASK__INIT;
    struct work *w;
    order.url = (char *)(uintptr_t)url;
    task.id = 5;
    task.job_id = 1;
    task.kind = SKERRY__V1__TASK_KIND__TASK_KIND_INGEST;
    task.spec = (char *)(uintptr_t)spec;
    task.ingest = &order;
    task.vocab = 257;
    OK(work_new(kinds_all, &task, cache, dir, &w, err));
    w->source_path = file_join(w->temp_dir, "source.tar");
    OK(file_write_atomic(w->source_path, data, len, 0600, err));
    return w;
}

/* Of several archives the first has the document that is held out if no other is. */
static void archives_of_one_document(void **state)
{
    (void)state;
    static const char *const urls[] = {"http://example.org/a.txt", "http://example.org/b.txt"};
    char *dir = scratch_new(), *blobs = in(dir, "blobs");
    struct cache *cache;
    OK(cache_open(blobs, 0, &cache, err));
    for (size_t n = 1; n <= COUNT(urls); n++) {
        char spec[1024];
        snprintf(spec, sizeof(spec),
                 "name: tiny\ndata: {url: [\"%s\"%s]}\n"
                 "model: {type: llama, dim: 16, depth: 1, heads: 2, context: 64}\n"
                 "train: {batch: 2, lr: 1e-3}\nouter: {rounds: 3, steps: 24}\n",
                 urls[0], n > 1 ? ", \"http://example.org/b.txt\"" : "");
        for (size_t i = 0; i < n; i++) {
            struct work *w = fetched(dir, cache, spec, urls[i], "one short text", 14);
            if (n == 1) {
                FAILS(w->kind->run(NULL, w, err),
                      "http://example.org/a.txt has no text left to train on: its only");
            } else {
                OK(w->kind->run(NULL, w, err));
                assert_int_equal(w->result.n_outputs, 1);
                assert_int_equal(w->result.outputs[0].holdout, i == 0);
            }
            work_free(w);
        }
    }
    cache_close(cache);
    mem_free(blobs);
    scratch_free(dir);
}

/* Ids of a tokenizer that the job does not name: only a trainer of one's own has room for them. */
static void refuses_unknown_ids(void **state)
{
    (void)state;
    static const char *const models[] = {
        "model: {type: llama, dim: 16, depth: 1, heads: 2, context: 64}\n"
        "train: {batch: 2, lr: 1e-3}\n",
        "model: {type: external, context: 64}\ntrainer: {command: ./t}\ntrain: {batch: 2}\n",
    };
    char *dir = scratch_new(), *blobs = in(dir, "blobs");
    struct cache *cache;
    uint16_t ids[4000];
    OK(cache_open(blobs, 0, &cache, err));
    for (size_t i = 0; i < COUNT(ids); i++)
        ids[i] = (uint16_t)(5000 - i);
    for (size_t i = 0; i < COUNT(models); i++) {
        char spec[1024];
        snprintf(spec, sizeof(spec),
                 "name: tiny\ndata: {url: [\"http://example.org/x.bin\"], holdout: 0%s}\n%s"
                 "outer: {rounds: 3, steps: 24}\n",
                 i ? ", kind: texts" : "", models[i]);
        struct work *w = fetched(dir, cache, spec, "http://example.org/x.bin", ids, sizeof(ids));
        if (i == 0)
            FAILS(w->kind->run(NULL, w, err),
                  "http://example.org/x.bin has token ids up to 5000: name data.tokenizer, or");
        else
            OK(w->kind->run(NULL, w, err));
        work_free(w);
    }
    cache_close(cache);
    mem_free(blobs);
    scratch_free(dir);
}

static void write_images(const char *path)
{
    struct tar_writer *w;
    OK(tar_writer_open(path, &w, err));
    for (int i = 0; i < 20; i++) {
        char name[16], text[32];
        snprintf(name, sizeof(name), "%02d.png", i);
        OK(tar_writer_add(w, name, "\x89PNG\r\n\x1a\n", 8, err));
        if (i == 7)
            continue;
        snprintf(name, sizeof(name), "%02d.txt", i);
        int len = snprintf(text, sizeof(text), "number %d\nor %d", i, i);
        OK(tar_writer_add(w, name, text, (size_t)len, err));
    }
    OK(tar_writer_commit(w, NULL, NULL, err));
    tar_writer_free(w);
}

static void check_captions(const char *path)
{
    struct shard s;
    OK(shard_open(path, &s, err));
    for (size_t i = 0; i < s.n; i++) {
        const struct shard_sample *x = &s.samples[i];
        char want[32], caption[32] = "";
        assert_true(str_starts(shard_name(x), "x_")); /* of the archive, not of its copy */
        const int number = atoi(shard_name(x) + 2);
        snprintf(want, sizeof(want), "number %d\nor %d", number, number);
        assert_int_equal(!x->captions, number == 7);
        if (!x->captions)
            continue;
        assert_in_range(x->captions_len, 1, sizeof(caption) - 1);
        memcpy(caption, x->captions, x->captions_len);
        assert_string_equal(caption, want);
    }
    shard_close(&s);
}

static void cuts_captioned_images(void **state)
{
    (void)state;
    static char spec[] =
        "name: tiny\ndata: {url: [\"http://example.org/x.tar\"], image_size: 8, holdout: 0.3, "
        "shard_samples: 16}\nmodel: {dim: 16, depth: 1, heads: 2}\n"
        "train: {batch: 2, lr: 1e-3}\nouter: {rounds: 3, steps: 24}\n";
    char *dir = scratch_new(), *blobs = in(dir, "blobs");
    Skerry__V1__Task task = SKERRY__V1__TASK__INIT;
    Skerry__V1__IngestTask order = SKERRY__V1__INGEST_TASK__INIT;
    struct cache *cache;
    struct work *w;
    OK(cache_open(blobs, 0, &cache, err));
    order.url = (char *)"http://example.org/x.tar";
    task.id = 5;
    task.job_id = 1;
    task.kind = SKERRY__V1__TASK_KIND__TASK_KIND_INGEST;
    task.spec = spec;
    task.ingest = &order;
    for (int captions = 0; captions < 2; captions++) {
        order.captions = captions;
        OK(work_new(kinds_all, &task, cache, dir, &w, err));
        w->source_path = file_join(w->temp_dir, "source.tar");
        write_images(w->source_path);
        if (!captions) {
            FAILS(w->kind->run(NULL, w, err),
                  "example.org/x.tar: sample '00' has no class: expected");
        } else {
            OK(w->kind->run(NULL, w, err));
            assert_int_equal(w->result.samples, 20);
            assert_int_equal(w->result.uncaptioned, 1);
            assert_int_equal(w->result.n_classes, 1);
            assert_string_equal(w->result.classes[0], "all");
            for (size_t i = 0; i < w->result.n_outputs; i++)
                check_captions(w->result.outputs[i].path);
            atomic_store(&w->stop, WORK_REVOKED); /* an archive is read twice: in the first pass */
            FAILS(w->kind->run(NULL, w, err), "looking through the dataset was stopped");
        }
        work_free(w);
    }
    cache_close(cache);
    mem_free(blobs);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_texts),
        cmocka_unit_test(names_no_query),
        cmocka_unit_test(archives_of_one_document),
        cmocka_unit_test(refuses_unknown_ids),
        cmocka_unit_test(cuts_captioned_images),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
