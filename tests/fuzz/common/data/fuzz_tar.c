/* Any bytes as a tar, read through libarchive, and as a shard of our own. */
#include <stdint.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/data/captions.h"
#include "common/data/shard.h"
#include "common/data/tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_tar(const uint8_t *data, size_t size)
{
    struct tar *t;
    struct tar_entry e;
    if (tar_open_memory(data, size, "fuzz", &t, NULL) < 0)
        return;
    while (tar_next(t, &e, NULL) > 0) {
        struct buf b;
        buf_init(&b, 1u << 16);
        int rc = tar_read(t, &b, NULL);
        if (rc == 0 && b.len != e.size)
            abort();
        buf_release(&b);
        if (rc < 0 && rc != -ERR_LIMIT)
            break;
    }
    tar_close(t);
}

/* Everything that a sample promises is inside the bytes, of a shard that was not unpacked. */
static void read_sample(const struct shard *s, const struct shard_sample *p, const uint8_t *data,
                        size_t size)
{
    const uint8_t *captions = (const uint8_t *)p->captions;
    if (!s->unpacked && (p->data < data || p->data + p->len > data + size))
        abort();
    if (!s->unpacked && captions && (captions < data || captions + p->captions_len > data + size))
        abort();
    if ((p->tokens > 0) != (s->kind == SHARD_TEXT))
        abort();
    if (captions && (s->kind == SHARD_TEXT || !captions_are_valid(p->captions, p->captions_len)))
        abort();
    int32_t *ids = malloc((p->tokens + 1) * sizeof(*ids));
    float *feature = malloc((s->dim + 1) * sizeof(*feature));
    if (p->tokens)
        shard_tokens(p, ids);
    for (uint32_t i = 0; i < p->tokens; i++)
        if (ids[i] < 0)
            abort();
    shard_feature(s, p, feature);
    free(feature);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct shard s;
    if (shard_parse(data, size, "fuzz", &s, NULL) == 0) {
        for (size_t i = 0; i < s.n; i++)
            read_sample(&s, &s.samples[i], data, size);
        shard_close(&s);
    }
    read_tar(data, size);
    return 0;
}
