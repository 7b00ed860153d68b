#include "coordinator/work/gc.h"

#include "coordinator/state/blobs.h"
#include "coordinator/state/capture.h"

#include "common/net/blobstore.h"
#include "common/net/ticket.h"

#define GARBAGE_MAX 65536
#define GARBAGE_TURN 1024    /* most blobs hidden in one turn: each is a rename */
#define ORPHAN_S (24 * 3600) /* a dataset is named only once its last shard is uploaded */

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

static void name_needed(void *arg, enum blob_role role, const struct blob_ref *b,
                        enum blob_need need)
{
    if (need != BLOB_FREE)
        name(arg, b);
}

static bool is_orphan(const struct blob_stat *st, int64_t now_s)
{
    return now_s - st->touched_s >= ORPHAN_S;
}

/* Collects all names, sorted. */
static void collect(const struct coordinator *co, struct names *s)
{
    memset(s, 0, sizeof(*s));
    each_blob(&co->state, 0, core_unix_ms(co), name_needed, s);
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
        return; /* the sweep finds blobs that are not noted here */
    if (co->n_garbage == co->cap_garbage) {
        co->cap_garbage = co->cap_garbage ? co->cap_garbage * 2 : 16;
        co->garbage = mem_realloc(co->garbage, co->cap_garbage * sizeof(*co->garbage));
    }
    co->garbage[co->n_garbage++] = *b;
}

static void forget(struct blob_ref *list, size_t *n, const uint8_t sha256[32])
{
    for (size_t i = *n; i-- > 0;)
        if (memcmp(list[i].sha256, sha256, 32) == 0)
            list[i] = list[--*n];
}

void gc_keep(struct coordinator *co, const uint8_t sha256[32])
{
    forget(co->garbage, &co->n_garbage, sha256);
    forget(co->doomed, &co->n_doomed, sha256);
}

static void drop_unneeded(void *arg, enum blob_role role, const struct blob_ref *b,
                          enum blob_need need)
{
    if (need == BLOB_FREE)
        gc_drop(arg, b);
}

void gc_job_ended(struct coordinator *co, const struct job *j)
{
    each_blob(&co->state, j->id, core_unix_ms(co), drop_unneeded, co);
}

static int order_refs(const void *a, const void *b)
{
    return memcmp(((const struct blob_ref *)a)->sha256, ((const struct blob_ref *)b)->sha256, 32);
}

static void drop_held(void *arg, enum blob_role role, const struct blob_ref *b, enum blob_need need)
{
    const bool uploaded = role == BLOB_SHARD || role == BLOB_TOKENIZER || role == BLOB_ENCODER ||
                          role == BLOB_WARM_START;
    if (need != BLOB_FREE && !uploaded)
        gc_drop(arg, b);
}

uint64_t gc_job_removed(struct coordinator *co, const struct job *j, bool dry_run)
{
    const size_t from = co->n_garbage;
    uint64_t bytes = 0;
    each_blob(&co->state, j->id, core_unix_ms(co), drop_held, co);
    if (co->n_garbage > from)
        qsort(&co->garbage[from], co->n_garbage - from, sizeof(*co->garbage), order_refs);
    for (size_t i = from; i < co->n_garbage; i++) /* a blob may have several names */
        if (i == from || order_refs(&co->garbage[i - 1], &co->garbage[i]) != 0)
            bytes += co->garbage[i].size;
    if (dry_run)
        co->n_garbage = from;
    return bytes;
}

/* ---- on the disk pool ---- */

struct sweep {
    struct coordinator *co;
    struct blobstore *store;
    struct names keep, found; /* found: old blobs that had no name when the sweep began */
    int64_t now_s;
    bool all; /* else only hidden blobs */
};

static int find_orphan(void *arg, const struct blob_id *id, const struct blob_stat *st)
{
    struct sweep *w = arg;
    struct blob_ref b = {.size = 1};
    memcpy(b.sha256, id->sha256, 32);
    if (!named(&w->keep, id) && is_orphan(st, w->now_s))
        name(&w->found, &b);
    return w->found.n == GARBAGE_MAX; /* the rest at the next sweep */
}

static int sweep_work(void *arg)
{
    struct sweep *w = arg;
    if (w->all) {
        capture_tidy(w->co->opt.data_dir);
        (void)w->store->ops->list(w->store, find_orphan, w, NULL); /* or the next sweep */
    }
    return w->store->ops->tidy(w->store, w->now_s - TICKET_LIFE_S, NULL);
}

/* Meanwhile an orphan may have been promised to a worker, which touches it, or have got a name: it
 * is checked again here, and once more after the next commit. */
static void sweep_done(void *arg, int rc)
{
    struct sweep *w = arg;
    struct coordinator *co = w->co;
    for (size_t i = 0; i < w->found.n && !co->closing; i++) {
        struct blob_stat st;
        struct blob_ref b;
        if (w->store->ops->stat(w->store, &w->found.ids[i], &st, NULL) < 0 ||
            !is_orphan(&st, w->now_s))
            continue;
        b.size = st.size;
        memcpy(b.sha256, w->found.ids[i].sha256, 32);
        gc_drop(co, &b);
        core_touch(co);
    }
    if (w->all)
        co->sweeping = false;
    mem_free(w->keep.ids);
    mem_free(w->found.ids);
    mem_free(w);
}

/* Takes keep. */
static void submit(struct coordinator *co, const struct names *keep, bool all)
{
    struct sweep *w = mem_alloc(sizeof(*w));
    *w = (struct sweep){co, co->blobs, *keep, {0}, core_unix_ms(co) / 1000, all};
    co->sweeping |= all;
    if (pool_submit(co->disk, sweep_work, sweep_done, w) < 0)
        sweep_done(w, 0); /* later */
}

/* ---- with a commit ---- */

static void spare(void *arg, enum blob_role role, const struct blob_ref *b, enum blob_need need)
{
    const struct coordinator *co = arg;
    struct blob_ref *at =
        need != BLOB_FREE && blob_ref_is_set(b)
            ? bsearch(b, co->doomed, co->n_doomed, sizeof(*co->doomed), order_refs)
            : NULL;
    if (at != NULL)
        at->size = 0;
}

/* Spares the doomed blobs that the state names. */
static void spare_named(struct coordinator *co)
{
    size_t n = 0;
    qsort(co->doomed, co->n_doomed, sizeof(*co->doomed), order_refs);
    for (size_t i = 0; i < co->n_doomed; i++) /* each once */
        if (n == 0 || order_refs(&co->doomed[n - 1], &co->doomed[i]) != 0)
            co->doomed[n++] = co->doomed[i];
    co->n_doomed = n;
    each_blob(&co->state, 0, core_unix_ms(co), spare, co);
    n = 0;
    for (size_t i = 0; i < co->n_doomed; i++)
        if (co->doomed[i].size > 0)
            co->doomed[n++] = co->doomed[i];
    co->n_doomed = n;
}

void gc_hand(struct coordinator *co)
{
    if (co->n_garbage == 0)
        return;
    if (co->doomed == NULL)
        co->doomed = mem_alloc_array(GARBAGE_TURN, sizeof(*co->doomed));
    while (co->n_garbage > 0 && co->n_doomed < GARBAGE_TURN)
        co->doomed[co->n_doomed++] = co->garbage[--co->n_garbage];
    spare_named(co);
}

/* Decides and hides in one step, so that nobody is promised a blob that goes. */
void gc_after_commit(struct coordinator *co)
{
    size_t hidden = 0;
    if (co->n_doomed > 0)
        spare_named(co);
    for (; co->n_doomed > 0; co->n_doomed--) {
        const struct blob_id *id = &co->doomed[co->n_doomed - 1].id;
        hidden += co->blobs->ops->hide(co->blobs, id, NULL) == 0; /* or the next sweep */
    }
    if (hidden > 0)
        submit(co, &(struct names){0}, false);
    if (co->n_garbage > 0)
        core_touch(co);
}

void gc_take_back(struct coordinator *co)
{
    while (co->n_doomed > 0)
        gc_drop(co, &co->doomed[--co->n_doomed]);
}

void gc_sweep(struct coordinator *co)
{
    struct names keep;
    if (co->sweeping || !co->store_ok)
        return;
    collect(co, &keep);
    submit(co, &keep, true);
}
