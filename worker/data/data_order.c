#include "worker/data/data_order.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/str.h"

#define STREAM_ORDER 0x6f72646572ULL

uint64_t data_sample_id(const uint8_t sha256[32], uint32_t index)
{
    uint64_t id = 0;
    for (int i = 0; i < 6; i++)
        id = id << 8 | sha256[i];
    return id << 16 | (index & 0xffff);
}

uint64_t data_content_key(const uint8_t *data, size_t len)
{
    uint64_t key = rng_mix(len, 0x636f6e74656e74);
    for (size_t at = 0; at < len; at += 8) {
        uint64_t word = 0;
        for (size_t i = 0; i < 8 && at + i < len; i++)
            word |= (uint64_t)data[at + i] << 8 * i;
        key = rng_mix(key, word);
    }
    return key;
}

/* The shard of a range: opened already, or now. */
static int find_shard(struct data_order *o, const struct data_range *r, size_t *ret,
                      struct err *err)
{
    size_t s = 0;
    while (s < o->n_shards && memcmp(o->hashes[s], r->sha256, 32) != 0)
        s++;
    *ret = s;
    if (s < o->n_shards)
        return 0;
    int rc = shard_open(r->path, &o->shards[s], err);
    if (rc < 0)
        return rc;
    memcpy(o->hashes[s], r->sha256, 32);
    o->n_shards++;
    return 0;
}

int data_order_open(struct data_order *o, const struct data_range *ranges, size_t n_ranges,
                    struct err *err)
{
    o->total = 0;
    for (size_t i = 0; i < n_ranges; i++)
        o->total += ranges[i].count;
    if (o->total == 0 || o->total > DATA_SAMPLES_MAX)
        return err_set(err, -ERR_LIMIT, "the task names %" PRIu64 " samples, expected 1..%u",
                       o->total, DATA_SAMPLES_MAX);
    o->pass = UINT64_MAX;
    o->shards = mem_try_array(n_ranges, sizeof(*o->shards));
    o->hashes = mem_try_array(n_ranges, sizeof(*o->hashes));
    o->places = mem_try_array((size_t)o->total, sizeof(*o->places));
    o->order = mem_try_array((size_t)o->total, sizeof(*o->order));
    if (!o->shards || !o->hashes || !o->places || !o->order)
        return err_set(err, -ENOMEM, "out of memory for %" PRIu64 " samples", o->total);
    uint64_t at = 0;
    for (const struct data_range *r = ranges; r < ranges + n_ranges; r++) {
        size_t s;
        int rc = find_shard(o, r, &s, err);
        if (rc < 0)
            return rc;
        if (r->start > o->shards[s].n || r->count > o->shards[s].n - r->start)
            return err_set(err, -ERR_LIMIT,
                           "the task wants samples %u to %" PRIu64 " of shard %s,"
                           " which holds %zu",
                           r->start, (uint64_t)r->start + r->count, r->path, o->shards[s].n);
        for (uint32_t i = 0; i < r->count; i++)
            o->places[at++] = (struct data_place){(uint32_t)s, r->start + i, r->partition};
    }
    return 0;
}

void data_order_close(struct data_order *o)
{
    for (size_t i = 0; i < o->n_shards; i++)
        shard_close(&o->shards[i]);
    mem_free(o->shards);
    mem_free(o->hashes);
    mem_free(o->places);
    mem_free(o->order);
    *o = (struct data_order){0};
}

/* The order of a pass: a permutation inside every window. */
static void make_order(struct data_order *o, uint64_t pass)
{
    uint64_t window = o->window ? o->window : o->total;
    uint64_t stream = rng_mix(STREAM_ORDER, pass);
    for (uint64_t at = 0; at < o->total; at += window) {
        uint64_t n = o->total - at < window ? o->total - at : window;
        if (o->shuffle)
            rng_permutation(o->seed, rng_mix(stream, at), o->order + at, (size_t)n);
        else
            for (uint64_t i = 0; i < n; i++)
                o->order[at + i] = (uint32_t)i;
        for (uint64_t i = 0; i < n; i++)
            o->order[at + i] += (uint32_t)at;
    }
    o->pass = pass;
}

struct data_place data_order_at(struct data_order *o, uint64_t position)
{
    uint64_t pass = position / o->total;
    if (pass != o->pass)
        make_order(o, pass);
    return o->places[o->order[position % o->total]];
}

int data_order_bad(struct data_order *o, uint64_t position, const struct data_place *p,
                   const char *what, const char *reason, struct err *err)
{
    o->bad_run++;
    if (position < o->total) { /* counted in the first pass */
        if (o->bad_named < DATA_BAD_MAX) {
            struct data_bad *b = &o->bad[o->bad_named++];
            memcpy(b->shard_sha256, o->hashes[p->shard], 32);
            str_copy(b->key, sizeof(b->key), o->shards[p->shard].samples[p->index].key);
            str_copy(b->reason, sizeof(b->reason), reason);
        }
        o->bad_count++;
    }
    if (o->bad_run < o->total)
        return 0;
    return err_set(err, -ERR_FORMAT, "none of the %" PRIu64 " %s, e.g. %s: %s", o->total, what,
                   o->bad_named ? o->bad[0].key : "?", o->bad_named ? o->bad[0].reason : reason);
}

int data_order_check_seek(const struct data_order *o, bool started, bool repeat, uint64_t position,
                          struct err *err)
{
    if (started || (!repeat && position > o->total))
        return err_set(err, -EINVAL, "cannot go to position %" PRIu64 " of %" PRIu64, position,
                       o->total);
    return 0;
}
