/* INGEST of texts that came by URL: with the tokenizer of the task, by the name in
 * the address. */
#include "tests/unit/common/base/util.h"

#include "common/base/hash.h"
#include "common/data/shard.h"
#include "common/base/str.h"
#include "worker/kinds/kinds.h"
#include "worker/order/work.h"
#include "worker/kinds/engine.h"

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
            int32_t ids[64];
            OK(shard_open(o->path, &s, err));
            assert_int_equal(s.kind, SHARD_TEXT);
            assert_int_equal(s.n, o->samples);
            assert_int_equal(s.tokens, o->tokens);
            shard_tokens(&s.samples[0], ids);
            assert_int_equal(ids[2], tokenized ? 301 : 'b');
            samples[o->holdout] += o->samples;
            tokens += o->tokens;
            shard_close(&s);
        }
        /* 82 bytes make no second piece of 33; 40 tokens fit into one. */
        assert_int_equal(samples[0] + samples[1], 10);
        assert_true(samples[0] > 0 && samples[1] > 0);
        assert_int_equal(tokens, tokenized ? 400 : 640);
        assert_int_equal(w->result.n_classes, 0);
        assert_int_equal(w->result.samples, 10);
        work_free(w);
    }
    cache_close(cache);
    mem_free(blobs);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cuts_texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
