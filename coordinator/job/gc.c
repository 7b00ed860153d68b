#include "coordinator/job/gc.h"

#include "coordinator/state/blobs.h"

#include "common/net/blobstore.h"
#include "common/base/clock.h"

#include <time.h>

#define GARBAGE_MAX 65536
#define ORPHAN_S (24 * 3600) /* a dataset is named only when the last of its shards is up */

struct names {
    struct blob_id *ids;
    size_t n, cap;
};

static void name(struct names *s, const struct blob_ref *b)
{
    if (!blob_ref_is_set(b))
        return;
    if (s->n == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 256;
        s->ids = mem_realloc(s->ids, s->cap * sizeof(*s->ids));
    }
    memcpy(s->ids[s->n++].sha256, b->sha256, 32);
}

static int order(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct blob_id));
}

static void name_needed(void *arg, enum blob_role role, const struct blob_ref *b, bool needed)
{
    if (needed)
        name(arg, b);
}

/* All names, sorted. */
static void collect(const struct coordinator *co, struct names *s)
{
    memset(s, 0, sizeof(*s));
    each_blob(&co->state, 0, (int64_t)clock_wall_ms(), name_needed, s);
    if (s->n > 0)
        qsort(s->ids, s->n, sizeof(*s->ids), order);
}

static bool named(const struct names *s, const struct blob_id *id)
{
    return s->n > 0 && bsearch(id, s->ids, s->n, sizeof(*s->ids), order) != NULL;
}

void gc_drop(struct coordinator *co, const struct blob_ref *b)
{
    if (!blob_ref_is_set(b) || co->n_garbage == GARBAGE_MAX)
        return; /* the sweep finds what is not remembered here */
    if (co->n_garbage == co->cap_garbage) {
        co->cap_garbage = co->cap_garbage ? co->cap_garbage * 2 : 16;
        co->garbage = mem_realloc(co->garbage, co->cap_garbage * sizeof(*co->garbage));
    }
    co->garbage[co->n_garbage++] = *b;
}

static void drop_unneeded(void *arg, enum blob_role role, const struct blob_ref *b, bool needed)
{
    if (!needed)
        gc_drop(arg, b);
}

void gc_job_ended(struct coordinator *co, const struct job *j)
{
    each_blob(&co->state, j->id, (int64_t)clock_wall_ms(), drop_unneeded, co);
}

/* ---- on the disk pool ---- */

struct removal {
    struct coordinator *co;
    struct blobstore *store;
    struct names names; /* what must stay (sweep), or what must go */
    bool sweep;
};

static int remove_orphan(void *arg, const struct blob_id *id, const struct blob_stat *st)
{
    struct removal *r = arg;
    if (!named(&r->names, id) && time(NULL) - st->touched_s >= ORPHAN_S)
        (void)r->store->ops->remove(r->store, id, NULL); /* tried again at the next sweep */
    return 0;
}

static int removal_work(void *arg)
{
    struct removal *r = arg;
    if (r->sweep)
        return r->store->ops->list(r->store, remove_orphan, r, NULL);
    for (size_t i = 0; i < r->names.n; i++)
        (void)r->store->ops->remove(r->store, &r->names.ids[i], NULL); /* or the next sweep */
    return 0;
}

static void removal_done(void *arg, int rc)
{
    struct removal *r = arg;
    if (r->sweep)
        r->co->sweeping = false;
    mem_free(r->names.ids);
    mem_free(r);
}

static void submit(struct coordinator *co, const struct names *names, bool sweep)
{
    struct removal *r = mem_alloc(sizeof(*r));
    *r = (struct removal){co, co->blobs, *names, sweep};
    co->sweeping |= sweep;
    if (pool_submit(co->disk, removal_work, removal_done, r) < 0)
        removal_done(r, 0); /* later */
}

void gc_after_commit(struct coordinator *co)
{
    struct names keep, go = {0};
    if (co->n_garbage == 0)
        return;
    collect(co, &keep);
    for (size_t i = 0; i < co->n_garbage; i++) {
        struct blob_id id;
        memcpy(id.sha256, co->garbage[i].sha256, 32);
        if (!named(&keep, &id))
            name(&go, &co->garbage[i]);
    }
    co->n_garbage = 0;
    mem_free(keep.ids);
    if (go.n > 0)
        submit(co, &go, false);
    else
        mem_free(go.ids);
}

void gc_sweep(struct coordinator *co)
{
    struct names keep;
    if (co->sweeping || !co->store_ok)
        return;
    collect(co, &keep);
    submit(co, &keep, true);
}
