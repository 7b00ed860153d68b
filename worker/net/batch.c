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

/* The part of a sample in an array of a batch. */
struct column {
    size_t field, bytes;
};

/* Wide values come first, so that all columns are aligned. */
enum { COLUMNS = 14 };
static void columns_of(const struct batch *b, const struct batch_sizes *sizes,
                       struct column ret[COLUMNS])
{
    const bool text = b->tokens != NULL;
    const size_t row = (text ? b->seq : 0) * sizeof *b->tokens;
    const struct column columns[COLUMNS] = {
        {offsetof(struct batch, ids), sizeof *b->ids},
        {offsetof(struct batch, keys), sizeof *b->keys},
        {offsetof(struct batch, labels), sizeof *b->labels},
        {offsetof(struct batch, partitions), sizeof *b->partitions},
        {offsetof(struct batch, caption_lengths), sizeof *b->caption_lengths},
        {offsetof(struct batch, tokens), row + sizeof *b->tokens},
        {offsetof(struct batch, start), row},
        {offsetof(struct batch, target), row},
        {offsetof(struct batch, pos), row},
        {offsetof(struct batch, lengths), sizeof *b->lengths},
        {offsetof(struct batch, captions), text ? 0 : sizes->caption_tokens * sizeof *b->captions},
        {offsetof(struct batch, moments), text ? 0 : sizes->moments * sizeof *b->moments},
        {offsetof(struct batch, images), text ? 0 : sizes->image},
        {offsetof(struct batch, shapes), sizeof *b->shapes},
    };
    memcpy(ret, columns, sizeof columns);
}

/* at NULL: all samples, in order. */
static void copy_samples(char *to, const char *from, const unsigned *at, unsigned n, size_t bytes)
{
    if (!at)
        memcpy(to, from, n * bytes);
    for (unsigned i = 0; at && i < n; i++)
        memcpy(to + i * bytes, from + at[i] * bytes, bytes);
}

int batch_pick(struct batch_held *held, const struct batch *b, const unsigned *at, unsigned n,
               const struct batch_sizes *sizes, struct err *err)
{
    struct column columns[COLUMNS];
    struct batch out = *b;
    size_t bytes = 0;
    columns_of(b, sizes, columns);
    for (size_t i = 0; i < COLUMNS; i++)
        bytes += n * columns[i].bytes;
    if (bytes > held->bytes) {
        mem_free(held->memory);
        held->memory = mem_try(bytes);
        held->bytes = held->memory ? bytes : 0;
        if (!held->memory)
            return err_set(err, -ENOMEM, "no memory to keep a batch of %u samples", n);
    }
    char *to = held->memory;
    for (size_t i = 0; i < COLUMNS && bytes > 0; i++) {
        const void *from;
        memcpy(&from, (const char *)b + columns[i].field, sizeof from);
        if (!from)
            continue;
        copy_samples(to, from, at, n, columns[i].bytes);
        memcpy((char *)&out + columns[i].field, &to, sizeof to);
        to += n * columns[i].bytes;
    }
    out.count = n;
    held->batch = out;
    return 0;
}

int batch_hold(struct batch_held *held, const struct batch *b, const struct batch_sizes *sizes,
               struct err *err)
{
    return batch_pick(held, b, NULL, b->count, sizes, err);
}

void batch_release(struct batch_held *held)
{
    mem_free(held->memory);
    *held = (struct batch_held){0};
}
