/* Records shuffled on disk:
 *
 *    records ──by hash──► buckets on disk, each sorted by hash ──► in the hashes' order
 *
 * The order is that of the hashes, for any number of buckets. */

#include "common/base/base.h"
#include "common/data/dataset_impl.h"

#define BUCKET_BYTES (32u << 20) /* bytes of the source for each bucket */
#define PENDING_BYTES (256u << 10)

/* Before each record in a bucket. */
struct head {
    uint64_t hash, len;
};

void spool_init(struct spool *s, const char *dir, const char *name, uint64_t source_bytes)
{
    const uint64_t n = source_bytes / BUCKET_BYTES + 1;
    *s = (struct spool){
        .dir = dir, .name = name, .n = n < SPOOL_BUCKETS ? (unsigned)n : SPOOL_BUCKETS};
    for (unsigned i = 0; i < s->n; i++) {
        s->buckets[i].file.fd = -1;
        buf_init(&s->buckets[i].pending, 2 * PENDING_BYTES);
    }
}

void spool_release(struct spool *s)
{
    for (unsigned i = 0; i < s->n; i++) {
        file_out_abort(&s->buckets[i].file);
        buf_release(&s->buckets[i].pending);
    }
}

static int flush(struct spool_bucket *b, struct err *err)
{
    int rc = file_out_write(&b->file, b->pending.data, b->pending.len, err);
    buf_clear(&b->pending);
    return rc;
}

static int open_bucket(struct spool *s, unsigned i, struct err *err)
{
    char *path = str_printf("%s/%s-%u", s->dir, s->name, i);
    int rc = file_out_open(&s->buckets[i].file, path, 0600, err);
    mem_free(path);
    return rc;
}

/* Appends to what waits to be written, or writes what is too large to wait. */
static int append(struct spool_bucket *b, const void *data, size_t len, struct err *err)
{
    int rc = b->pending.len + len > b->pending.max ? flush(b, err) : 0;
    if (rc < 0 || len > b->pending.max)
        return rc < 0 ? rc : file_out_write(&b->file, data, len, err);
    rc = buf_append(&b->pending, data, len);
    return rc < 0 ? err_set(err, rc, "out of memory while shuffling") : 0;
}

int spool_add(struct spool *s, uint64_t hash, const void *record, size_t len, struct err *err)
{
    const unsigned i = (unsigned)((hash >> 32) * s->n >> 32); /* in the hashes' order */
    struct spool_bucket *b = &s->buckets[i];
    const struct head head = {hash, len};
    int rc = b->file.fd < 0 ? open_bucket(s, i, err) : 0;
    if (rc == 0)
        rc = append(b, &head, sizeof(head), err);
    if (rc == 0)
        rc = append(b, record, len, err);
    if (rc < 0)
        return rc;
    b->records++;
    s->records++;
    s->bytes += sizeof(head) + len;
    return b->pending.len >= PENDING_BYTES ? flush(b, err) : 0;
}

struct item {
    uint64_t hash, len;
    const uint8_t *record;
};

/* Compares by hash; equal ones keep the order of the source. */
static int by_hash(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return x->record < y->record ? -1 : x->record > y->record;
}

static void sort(struct item *items, uint64_t n, const uint8_t *p)
{
    for (uint64_t i = 0; i < n; i++) {
        struct head head;
        memcpy(&head, p, sizeof(head));
        p += sizeof(head);
        items[i] = (struct item){head.hash, head.len, p};
        p += head.len;
    }
    qsort(items, (size_t)n, sizeof(*items), by_hash);
}

static int emit_bucket(struct spool_bucket *b, spool_emit_fn *emit, void *ctx, struct err *err)
{
    struct file_map map = {0};
    int rc = flush(b, err);
    if (rc == 0) /* mapped: a bucket may be larger than the memory */
        rc = file_map_open(b->file.temp, &map, err);
    struct item *items = rc == 0 ? mem_try_array((size_t)b->records, sizeof(*items)) : NULL;
    if (rc == 0 && !items)
        rc = err_set(err, -ENOMEM, "out of memory while shuffling");
    if (rc == 0)
        sort(items, b->records, map.data);
    for (uint64_t i = 0; rc == 0 && i < b->records; i++)
        rc = emit(ctx, items[i].record, (size_t)items[i].len);
    mem_free(items);
    file_map_close(&map);
    file_out_abort(&b->file); /* the shards need its space on the disk */
    b->records = 0;
    return rc;
}

int spool_emit(struct spool *s, spool_emit_fn *emit, void *ctx, struct err *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < s->n; i++)
        if (s->buckets[i].records)
            rc = emit_bucket(&s->buckets[i], emit, ctx, err);
    s->records = s->bytes = 0;
    return rc;
}
