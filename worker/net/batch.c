#include "worker/net/batch.h"

uint64_t batch_units(const struct batch *b)
{
    if (!b->tokens)
        return b->count;
    uint64_t n = 0;
    for (size_t i = 0; i < (size_t)b->count * b->seq; i++)
        n += b->target[i] >= 0;
    return n;
}

unsigned batch_run(const struct batch *b, unsigned from, unsigned most)
{
    unsigned n = from < b->count ? b->count - from : 0;
    n = n < most ? n : most;
    for (unsigned i = 1; i < n; i++)
        if (batch_shape(b, from + i) != batch_shape(b, from))
            return i;
    return n;
}

void batch_slice(const struct batch *b, unsigned from, unsigned count,
                 const struct batch_sizes *sizes, struct batch *ret)
{
    *ret = *b;
    ret->count = count;
    ret->ids = b->ids ? b->ids + from : NULL;
    ret->keys = b->keys ? b->keys + from : NULL;
    if (b->tokens) {
        const size_t at = (size_t)from * b->seq;
        ret->tokens = b->tokens + at + from;
        ret->start = b->start + at;
        ret->target = b->target + at;
        ret->pos = b->pos + at;
        ret->lengths = b->lengths ? b->lengths + from : NULL;
    } else {
        ret->images = b->images ? b->images + from * sizes->image : NULL;
        ret->moments = b->moments ? b->moments + from * sizes->moments : NULL;
        ret->captions = b->captions ? b->captions + (size_t)from * sizes->caption_tokens : NULL;
        ret->caption_lengths = b->caption_lengths ? b->caption_lengths + from : NULL;
        ret->shapes = b->shapes ? b->shapes + from : NULL;
        ret->labels = b->labels ? b->labels + from : NULL;
        ret->partitions = b->partitions ? b->partitions + from : NULL;
    }
}

/* What a sample has in each array of a batch of images. */
struct column {
    size_t field, bytes;
};

int batch_hold(struct batch_held *held, const struct batch *b, const struct batch_sizes *sizes,
               struct err *err)
{
    const struct column columns[] = {
        {offsetof(struct batch, ids), sizeof *b->ids},
        {offsetof(struct batch, keys), sizeof *b->keys},
        {offsetof(struct batch, labels), sizeof *b->labels},
        {offsetof(struct batch, partitions), sizeof *b->partitions},
        {offsetof(struct batch, caption_lengths), sizeof *b->caption_lengths},
        {offsetof(struct batch, captions), sizes->caption_tokens * sizeof *b->captions},
        {offsetof(struct batch, moments), sizes->moments * sizeof *b->moments},
        {offsetof(struct batch, images), sizes->image},
        {offsetof(struct batch, shapes), sizeof *b->shapes},
    };
    const size_t n = sizeof columns / sizeof *columns;
    struct batch out = *b;
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += b->count * columns[i].bytes;
    if (bytes > held->bytes) {
        mem_free(held->memory);
        held->memory = mem_try(bytes);
        held->bytes = held->memory ? bytes : 0;
        if (!held->memory)
            return err_set(err, -ENOMEM, "no memory to keep a batch of %u images", b->count);
    }
    char *to = held->memory;
    for (size_t i = 0; i < n; i++) { /* wide values first: all of them are aligned */
        const void *from;
        memcpy(&from, (const char *)b + columns[i].field, sizeof from);
        if (!from)
            continue;
        memcpy(to, from, b->count * columns[i].bytes);
        memcpy((char *)&out + columns[i].field, &to, sizeof to);
        to += b->count * columns[i].bytes;
    }
    held->batch = out;
    return 0;
}

void batch_release(struct batch_held *held)
{
    mem_free(held->memory);
    *held = (struct batch_held){0};
}
