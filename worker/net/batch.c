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
