#include "common/net/s3/promises.h"

#include "common/base/clock.h"

static struct promise *find(const struct promises *p, const struct blob_id *id)
{
    for (size_t i = 0; i < p->n; i++)
        if (memcmp(&p->list[i].id, id, sizeof(*id)) == 0)
            return &p->list[i];
    return NULL;
}

static void drop(struct promises *p, struct promise *one)
{
    p->bytes -= one->size;
    *one = p->list[--p->n];
}

bool promises_add(struct promises *p, const struct blob_id *id, uint64_t size, uint64_t most_bytes)
{
    struct promise *had = find(p, id);
    const uint64_t others = p->bytes - (had ? had->size : 0);
    if ((!had && p->n == PROMISES_MAX) || size > most_bytes || others > most_bytes - size)
        return false;
    if (had)
        drop(p, had);
    if (!p->list)
        p->list = mem_alloc_array(PROMISES_MAX, sizeof(*p->list));
    p->list[p->n++] = (struct promise){*id, size, (int64_t)(clock_wall_ms() / 1000)};
    p->bytes += size;
    return true;
}

void promises_drop(struct promises *p, const struct blob_id *id)
{
    struct promise *had = find(p, id);
    if (had)
        drop(p, had);
}

bool promises_take_old(struct promises *p, int64_t before_s, struct blob_id *ret)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->list[i].at_s < before_s) {
            *ret = p->list[i].id;
            drop(p, &p->list[i]);
            return true;
        }
    return false;
}

void promises_release(struct promises *p)
{
    mem_free(p->list);
    *p = (struct promises){0};
}
