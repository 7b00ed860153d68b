#include "coordinator/job/agree.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/net/blobstore.h"
#include "common/st/st.h"
#include "coordinator/decide/failure.h"
#include "coordinator/work/member.h"
#include "coordinator/work/shards.h"

#define HEADER_MAX 4096 /* bytes, of a file with one tensor */

typedef unsigned long long ull;

/* Is it one of those that made the task's result? */
static bool has_told(const struct task *t, uint64_t worker, uint64_t origin)
{
    for (unsigned i = 0; i < t->n_told; i++)
        if (t->told[i]->worker == worker || t->told[i]->origin == origin)
            return true;
    return false;
}

/* Is somebody here who could make it again, of another origin than those that did and `origin`? */
static bool others_are_here(const struct coordinator *co, const struct task *t, uint64_t origin)
{
    if (t->n_told > 0 && t->attempt - t->told[0]->attempt > AGREE_TRIES)
        return false; /* they come and go, or fail */
    for (size_t i = 0; i < co->state.n_workers; i++) {
        const struct worker *w = co->state.workers[i];
        const uint64_t from = worker_origin(w);
        if (from != origin && from != t->not_from && !has_told(t, w->id, from) &&
            member_could_do(co, w, t) && failure_count(&t->failed, w->id) < TASK_FAILURES_MAX)
            return true;
    }
    return false;
}

void agree_not_for(const struct coordinator *co, const struct task *t, uint64_t ret_workers[2],
                   uint64_t ret_from[3])
{
    unsigned n = 0;
    for (; n < t->n_told && others_are_here(co, t, 0); n++) {
        ret_workers[n] = t->told[n]->worker;
        ret_from[n] = t->told[n]->origin;
    }
    if (t->not_from != 0)
        ret_from[n] = t->not_from;
}

/* ---- which partition the samples are in ------------------------------------------------------ */

#define LOOK_ROWS 64 /* of neighbours, which are read together */

struct assignment {
    int fd; /* -1: it is none */
    uint64_t offset, n;
};

/* Of n samples, each in `top` partitions: a file of another size is not even opened. */
static struct assignment open_assignment(struct coordinator *co, const struct blob_ref *b,
                                         uint64_t n)
{
    struct assignment a = {.fd = -1};
    const struct st_tensor *x = NULL;
    struct st st = {0};
    char *path = NULL;
    const uint64_t bytes = n * sizeof(int32_t);
    if (b->size < bytes || b->size > bytes + HEADER_MAX ||
        co->blobs->ops->local(co->blobs, &b->id, false, &path, NULL) < 0)
        return a;
    if (st_open(path, &st, NULL) == 0)
        x = st_find(&st, "assign");
    if (x != NULL && x->dtype == ST_I32 && x->count == n) {
        a.fd = open(path, O_RDONLY | O_CLOEXEC);
        a.offset = x->offset;
        a.n = n;
    }
    co->blobs->ops->let_go(co->blobs, &b->id); /* which an open file outlives */
    st_release(&st);
    mem_free(path);
    return a;
}

static bool read_rows(const struct assignment *a, uint64_t first, size_t n, int32_t *out)
{
    return pread(a->fd, out, n * sizeof(*out), (off_t)(a->offset + first * sizeof(*out))) ==
           (ssize_t)(n * sizeof(*out));
}

/* How many of n entries from `first` on are equal. */
static uint64_t equal_rows(const struct assignment *a, const struct assignment *b, uint64_t first,
                           size_t n)
{
    int32_t x[LOOK_ROWS], y[LOOK_ROWS];
    uint64_t equal = 0;
    if (!read_rows(a, first, n, x) || !read_rows(b, first, n, y))
        return 0;
    for (size_t i = 0; i < n; i++)
        equal += x[i] == y[i];
    return equal;
}

static bool same_rows(const struct assignment *a, const struct assignment *b)
{
    uint64_t looked = 0, equal = 0;
    for (uint64_t at = 0; looked < AGREE_LOOKS && at < a->n; at += LOOK_ROWS) {
        uint64_t first = at;
        if (a->n > AGREE_LOOKS) {
            hash_random(&first, sizeof(first));
            first %= a->n - LOOK_ROWS + 1;
        }
        const size_t n = a->n - first < LOOK_ROWS ? (size_t)(a->n - first) : LOOK_ROWS;
        equal += equal_rows(a, b, first, n);
        looked += n;
    }
    return looked > 0 && (double)equal >= AGREE_EQUAL * (double)looked;
}

static void close_assignment(const struct assignment *a)
{
    if (a->fd >= 0)
        (void)close(a->fd);
}

/* Are about the same samples in each partition? */
static bool same_samples(struct coordinator *co, const struct job *j, const struct blob_ref *a,
                         const struct blob_ref *b)
{
    uint64_t n = 0;
    for (size_t i = 0, cut = shards_cut(j); i < cut; i++)
        n += j->shards[i].samples * (uint64_t)j->spec.recipe.top;
    const struct assignment x = open_assignment(co, a, n), y = open_assignment(co, b, n);
    const bool same = x.fd >= 0 && y.fd >= 0 && same_rows(&x, &y);
    close_assignment(&x);
    close_assignment(&y);
    return same;
}

int agree_fetch(struct coordinator *co, const struct task *t, const struct blob_ref *assignment,
                struct err *err)
{
    for (unsigned i = 0; i <= t->n_told && t->n_told > 0; i++) {
        const struct blob_ref *b = i < t->n_told ? &t->told[i]->assignment : assignment;
        char *path = NULL;
        const int rc = co->blobs->ops->local(co->blobs, &b->id, false, &path, err);
        if (rc == -EAGAIN)
            core_bring(co, &b->id);
        if (rc == -EAGAIN)
            return rc;
        if (rc == 0)
            co->blobs->ops->let_go(co->blobs, &b->id);
        mem_free(path);
    }
    return 0;
}

/* ---- results ------------------------------------------------------------------------------ */

static bool is_alike(struct coordinator *co, const struct job *j, const struct task_told *a,
                     const struct agree_result *b)
{
    uint64_t apart = 0, all = 0;
    if (memcmp(a->hash, b->hash, sizeof(a->hash)) == 0)
        return true;
    for (size_t i = 0; i < b->n_sizes && a->n_sizes == b->n_sizes; i++) {
        apart += a->sizes[i] > b->sizes[i] ? a->sizes[i] - b->sizes[i] : b->sizes[i] - a->sizes[i];
        all += b->sizes[i];
    }
    return all > 0 && (double)apart <= AGREE_APART * (double)all &&
           same_samples(co, j, &a->assignment, b->assignment);
}

static void note(struct task *t, const struct worker *w, const struct agree_result *r)
{
    const size_t bytes = r->n_sizes * sizeof(*r->sizes);
    struct task_told *told = mem_alloc(sizeof(*told) + bytes);
    told->worker = w->id;
    told->origin = worker_origin(w);
    told->attempt = t->attempt;
    told->n_sizes = r->n_sizes;
    memcpy(told->hash, r->hash, sizeof(told->hash));
    if (r->assignment != NULL)
        told->assignment = *r->assignment;
    if (bytes > 0)
        memcpy(told->sizes, r->sizes, bytes);
    t->told[t->n_told++] = told;
}

static uint32_t bit_of(const struct task *t)
{
    return 1u << t->kind;
}

/* Two others agree on another result.  Another release may write other bytes. */
static void was_wrong(struct coordinator *co, const struct task *t, uint64_t worker)
{
    struct worker *w = state_edit_worker(&co->state, state_worker(&co->state, worker));
    if (w == NULL)
        return;
    core_say(co, t->job_id, w->id,
             "worker %llu (%s) had another result for %s task %llu than two others: it does not "
             "count",
             (ull)w->id, w->name, task_kind_name(t->kind), (ull)t->id);
    w->confirmed &= ~bit_of(t);
    if (t->kind == TASK_SPLIT && strcmp(w->version, SKERRY_VERSION) == 0)
        member_was_wrong(co, w);
    else
        member_failed(co, w);
}

/* Worker w and that of told[with] agree. */
static void decided(struct coordinator *co, struct task *t, struct worker *w, unsigned with)
{
    struct worker *other =
        state_edit_worker(&co->state, state_worker(&co->state, t->told[with]->worker));
    t->agreed = true;
    w->confirmed |= bit_of(t);
    if (other != NULL) {
        other->confirmed |= bit_of(t);
        member_succeeded(co, other, false);
    }
    for (unsigned i = 0; i < t->n_told; i++)
        if (i != with)
            was_wrong(co, t, t->told[i]->worker);
    task_forget_told(t);
}

/* Is it one of the few results of a confirmed worker that another one makes again? */
static bool is_drawn(const struct coordinator *co)
{
    uint32_t x = 0;
    if (co->opt.look_again == 0)
        return false;
    hash_random(&x, sizeof(x));
    return x % co->opt.look_again == 0;
}

bool agree_hear(struct coordinator *co, struct job *j, struct task *t,
                const struct agree_result *result)
{
    struct worker *w = worker_memory(state_worker(&co->state, t->worker_id));
    if (w == NULL || !j->spec.outer.spot_check)
        return true;
    const uint64_t own = worker_origin(w);
    for (unsigned i = 0; i < t->n_told; i++)
        if (t->told[i]->origin != own && is_alike(co, j, t->told[i], result)) {
            decided(co, t, w, i);
            return true;
        }
    if (t->n_told == 0 && (w->checked || (w->confirmed & bit_of(t))) && !result->odd &&
        !is_drawn(co))
        return true;
    const bool others = others_are_here(co, t, own), again = has_told(t, w->id, own);
    if (others && again)
        return false; /* nobody else was here when it got the task */
    if (others && t->n_told < TASK_TOLD_MAX) {
        note(t, w, result);
        return false;
    }
    if (t->n_told > again)
        core_say(co, j->id, t->worker_id,
                 "workers have different results for %s task %llu, and nobody knows which is "
                 "right: that of worker %llu counts",
                 task_kind_name(t->kind), (ull)t->id, (ull)t->worker_id);
    task_forget_told(t);
    return true;
}
