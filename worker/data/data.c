#include "worker/data/data.h"

#include "common/base/rng.h"
#include "worker/data/data_samples.h"

#define STREAM_ORDER 0x6f72646572ULL
#define STREAM_CAPTION 0x63617074ULL

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

unsigned caption_draw(uint64_t seed, const char *name, uint64_t pass, unsigned n)
{
    const uint64_t key = data_content_key((const uint8_t *)name, strlen(name));
    struct rng r;
    rng_init(&r, seed, rng_mix(rng_mix(STREAM_CAPTION, pass), key));
    return (unsigned)rng_below(&r, n);
}

/* The shard of a range, which is opened if it is not open yet. */
static int find_shard(struct data *d, const struct data_range *r, size_t *ret, struct err *err)
{
    size_t s = 0;
    while (s < d->n_shards && memcmp(d->hashes[s], r->sha256, 32) != 0)
        s++;
    *ret = s;
    if (s < d->n_shards)
        return 0;
    int rc = shard_open(r->path, &d->shards[s], err);
    if (rc < 0)
        return rc;
    memcpy(d->hashes[s], r->sha256, 32);
    d->n_shards++;
    return 0;
}

int data_open(struct data *d, const struct data_ops *ops, const struct data_order *opt,
              const struct data_range *ranges, size_t n_ranges, struct err *err)
{
    d->ops = ops;
    d->opt = *opt;
    for (size_t i = 0; i < n_ranges; i++)
        d->total += ranges[i].count;
    if (d->total == 0 || d->total > DATA_SAMPLES_MAX)
        return err_set(err, -ERR_LIMIT, "the task names %" PRIu64 " samples, expected 1..%u",
                       d->total, DATA_SAMPLES_MAX);
    d->pass = UINT64_MAX;
    d->shards = mem_try_array(n_ranges, sizeof(*d->shards));
    d->hashes = mem_try_array(n_ranges, sizeof(*d->hashes));
    d->places = mem_try_array((size_t)d->total, sizeof(*d->places));
    d->order = mem_try_array((size_t)d->total, sizeof(*d->order));
    if (!d->shards || !d->hashes || !d->places || !d->order)
        return err_set(err, -ENOMEM, "out of memory for %" PRIu64 " samples", d->total);
    uint64_t at = 0;
    for (const struct data_range *r = ranges; r < ranges + n_ranges; r++) {
        size_t s;
        int rc = find_shard(d, r, &s, err);
        if (rc < 0)
            return rc;
        if (r->start > d->shards[s].n || r->count > d->shards[s].n - r->start)
            return err_set(err, -ERR_LIMIT,
                           "the task wants samples %u to %" PRIu64 " of shard %s,"
                           " which holds %zu",
                           r->start, (uint64_t)r->start + r->count, r->path, d->shards[s].n);
        for (uint32_t i = 0; i < r->count; i++)
            d->places[at++] = (struct data_place){(uint32_t)s, r->start + i, r->partition};
    }
    d->mixed = d->total;
    return 0;
}

void data_close(struct data *d)
{
    for (size_t i = 0; i < d->n_shards; i++)
        shard_close(&d->shards[i]);
    mem_free(d->shards);
    mem_free(d->hashes);
    mem_free(d->places);
    mem_free(d->order);
    *d = (struct data){0};
}

/* The order of a pass: a permutation inside every window. */
static void make_order(struct data *d, uint64_t pass)
{
    uint64_t window = d->opt.window ? d->opt.window : d->total;
    uint64_t stream = rng_mix(STREAM_ORDER, pass);
    for (uint64_t at = 0, n; at < d->total; at += n) {
        const uint64_t left = (at < d->mixed ? d->mixed : d->total) - at;
        n = left < window ? left : window;
        if (d->opt.shuffle && at < d->mixed)
            rng_permutation(d->opt.seed, rng_mix(stream, at), d->order + at, (size_t)n);
        else
            for (uint64_t i = 0; i < n; i++)
                d->order[at + i] = (uint32_t)i;
        for (uint64_t i = 0; i < n; i++)
            d->order[at + i] += (uint32_t)at;
    }
    d->pass = pass;
}

void data_mix(struct data *d, uint64_t mixed)
{
    d->mixed = mixed;
    d->pass = UINT64_MAX; /* no order is made yet */
}

struct data_place data_at(struct data *d, uint64_t position)
{
    uint64_t pass = position / d->total;
    if (pass != d->pass)
        make_order(d, pass);
    return d->places[d->order[position % d->total]];
}

/* Was the bad sample named already?  With tiny data several ranges of a phase have the same sample.
 */
static bool is_named(const struct data *d, const struct data_place *p)
{
    const char *key = d->shards[p->shard].samples[p->index].key;
    for (unsigned i = 0; i < d->bad_named; i++)
        if (memcmp(d->bad[i].shard_sha256, d->hashes[p->shard], 32) == 0 &&
            strncmp(d->bad[i].key, key, sizeof(d->bad[i].key) - 1) == 0)
            return true;
    return false;
}

int data_found_bad(struct data *d, const struct data_place *p, const char *what, const char *reason,
                   struct err *err)
{
    d->bad_run++;
    if (d->head < d->total && !is_named(d, p)) { /* counted once, in the first pass */
        if (d->bad_named < DATA_BAD_MAX) {
            struct data_bad *b = &d->bad[d->bad_named++];
            memcpy(b->shard_sha256, d->hashes[p->shard], 32);
            str_copy(b->key, sizeof(b->key), d->shards[p->shard].samples[p->index].key);
            str_copy(b->reason, sizeof(b->reason), reason);
        }
        d->bad_count++;
    }
    if (d->bad_run < d->total || (d->opt.may_be_empty && !d->opt.repeat))
        return 0;
    return err_set(err, -ERR_CONFIG, "none of the %" PRIu64 " %s, e.g. %s: %s", d->total, what,
                   d->bad_named ? d->bad[0].key : "?", d->bad_named ? d->bad[0].reason : reason);
}

int data_next(struct data *d, struct batch *ret, struct err *err)
{
    d->started = true;
    return d->ops->next(d, ret, err);
}

int data_seek(struct data *d, uint64_t position, struct err *err)
{
    if (d->started || (!d->opt.repeat && position > d->total))
        return err_set(err, -EINVAL, "cannot go to position %" PRIu64 " of %" PRIu64, position,
                       d->total);
    d->head = position;
    return 0;
}

uint64_t data_position(const struct data *d)
{
    return d->head;
}

uint64_t data_total(const struct data *d)
{
    return d->total;
}

uint32_t data_window(const struct data *d)
{
    return d->opt.window;
}

unsigned data_bad(const struct data *d, const struct data_bad **ret_list, unsigned *ret_named)
{
    *ret_list = d->bad;
    *ret_named = d->bad_named;
    return d->bad_count;
}

void data_free(struct data *d)
{
    if (d)
        d->ops->free(d);
}
