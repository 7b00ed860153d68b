/* Decoded images by sample id: open addressing, nothing is ever replaced. */
#include "worker/data/data_cache.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

struct entry {
    uint64_t id;
    int32_t label;
    uint8_t *pixels; /* NULL: the place is free */
};

struct data_cache {
    pthread_mutex_t lock;
    size_t max_bytes, bytes;
    size_t image_bytes; /* of every entry; 0: none yet */
    struct entry *table;
    size_t cap, used; /* cap is 0 or a power of two */
};

int data_cache_new(size_t max_bytes, struct data_cache **ret, struct err *err)
{
    struct data_cache *c = mem_try_zero(sizeof(*c));
    if (!c)
        return err_set(err, -ENOMEM, "out of memory for the image cache");
    c->max_bytes = max_bytes;
    pthread_mutex_init(&c->lock, NULL);
    *ret = c;
    return 0;
}

static void clear(struct data_cache *c)
{
    for (size_t i = 0; i < c->cap; i++)
        mem_free(c->table[i].pixels);
    mem_free(c->table);
    c->table = NULL;
    c->cap = c->used = c->bytes = 0;
}

void data_cache_free(struct data_cache *c)
{
    if (!c)
        return;
    clear(c);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

size_t data_cache_bytes(struct data_cache *c)
{
    pthread_mutex_lock(&c->lock);
    size_t bytes = c->bytes;
    pthread_mutex_unlock(&c->lock);
    return bytes;
}

void data_cache_use(struct data_cache *c, size_t image_bytes)
{
    pthread_mutex_lock(&c->lock);
    if (c->image_bytes != image_bytes)
        clear(c);
    c->image_bytes = image_bytes;
    pthread_mutex_unlock(&c->lock);
}

/* The entry of id, or the free place where it belongs.  cap > used. */
static struct entry *find(const struct data_cache *c, uint64_t id)
{
    size_t i = (size_t)rng_mix(id, 0x5ca1ab1eULL) & (c->cap - 1);
    while (c->table[i].pixels && c->table[i].id != id)
        i = (i + 1) & (c->cap - 1);
    return &c->table[i];
}

bool data_cache_get(struct data_cache *c, uint64_t id, uint8_t *pixels, int32_t *ret_label)
{
    pthread_mutex_lock(&c->lock);
    const struct entry *e = c->cap ? find(c, id) : NULL;
    bool hit = e && e->pixels;
    if (hit) {
        memcpy(pixels, e->pixels, c->image_bytes);
        *ret_label = e->label;
    }
    pthread_mutex_unlock(&c->lock);
    return hit;
}

/* Keeps the table at most 3/4 full.  False without memory. */
static bool grow(struct data_cache *c)
{
    if (c->cap && c->used < c->cap / 4 * 3)
        return true;
    size_t cap = c->cap ? c->cap * 2 : 1024;
    struct entry *table = mem_try_array(cap, sizeof(*table));
    if (!table)
        return false;
    struct data_cache next = {.table = table, .cap = cap};
    for (size_t i = 0; i < c->cap; i++)
        if (c->table[i].pixels)
            *find(&next, c->table[i].id) = c->table[i];
    mem_free(c->table);
    c->table = table;
    c->cap = cap;
    return true;
}

void data_cache_put(struct data_cache *c, uint64_t id, const uint8_t *pixels, int32_t label)
{
    pthread_mutex_lock(&c->lock);
    size_t cost = c->image_bytes + 2 * sizeof(struct entry);
    if (c->bytes + cost <= c->max_bytes && grow(c)) {
        struct entry *e = find(c, id);
        uint8_t *copy = e->pixels ? NULL : mem_try(c->image_bytes);
        if (copy) {
            memcpy(copy, pixels, c->image_bytes);
            *e = (struct entry){.id = id, .label = label, .pixels = copy};
            c->used++;
            c->bytes += cost;
        }
    }
    pthread_mutex_unlock(&c->lock);
}
