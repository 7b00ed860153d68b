#include "coordinator/work/scrub.h"

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/net/pool.h"

#define DAMAGED_MAX 64 /* most damaged blobs noted in one part */

struct scrub {
    struct coordinator *co;
    struct blobstore *store;
    uint8_t part;
    struct blob_id damaged[DAMAGED_MAX];
    unsigned n;
};

static int scrub_one(void *arg, const struct blob_id *id, const struct blob_stat *st)
{
    struct scrub *w = arg;
    uint8_t got[HASH_BYTES];
    char *path = NULL;
    if (id->sha256[0] != w->part)
        return id->sha256[0] > w->part; /* blobs come in the order of their parts */
    if (w->store->ops->local(w->store, id, false, &path, NULL) < 0)
        return 0; /* the blob has just been removed */
    const int rc = hash_file(path, got, NULL, NULL);
    const bool bad = rc == 0 ? !hash_equal(got, id->sha256, sizeof(got)) : rc == -EIO;
    if (bad && w->n < DAMAGED_MAX)
        w->damaged[w->n++] = *id;
    mem_free(path);
    w->store->ops->let_go(w->store, id);
    return pool_stopping(w->co->disk);
}

static int scrub_work(void *arg)
{
    struct scrub *w = arg;
    (void)w->store->ops->list(w->store, scrub_one, w, NULL); /* if it cannot be listed, it waits */
    return 0;
}

static void scrub_done(void *arg, int rc)
{
    struct scrub *w = arg;
    struct coordinator *co = w->co;
    co->scrubbing = false;
    if (rc == 0 && !co->closing) {
        co->damaged[w->part] = (uint8_t)w->n;
        co->scrub_part = (uint8_t)(w->part + 1);
        for (unsigned i = 0; i < w->n; i++) {
            char hex[BLOB_HEX_MAX];
            blob_id_hex(&w->damaged[i], hex);
            core_say(co, 0, 0,
                     "the coordinator's disk has damaged the blob %s: put a copy back, and look at "
                     "the disk",
                     hex);
        }
    }
    mem_free(w);
}

void scrub_next(struct coordinator *co)
{
    if (co->scrubbing || co->blobs->ops->health != NULL)
        return;
    struct scrub *w = mem_alloc(sizeof(*w));
    w->co = co;
    w->store = co->blobs;
    w->part = co->scrub_part;
    co->scrubbing = true;
    if (pool_submit(co->disk, scrub_work, scrub_done, w) < 0) {
        co->scrubbing = false; /* the next time */
        mem_free(w);
    }
}
