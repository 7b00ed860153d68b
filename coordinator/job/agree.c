#include "coordinator/job/agree.h"

#include "common/base/hash.h"
#include "common/net/blobstore.h"
#include "common/net/pool.h"
#include "coordinator/decide/failure.h"
#include "coordinator/job/assignment.h"
#include "coordinator/outer/outer_verify.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/member.h"
#include "coordinator/work/shards.h"

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

/* ---- files that are looked at -------------------------------------------------------------- */

#define SMALL_BYTES (1u << 20) /* of files that the loop reads itself */

struct look {
    struct coordinator *co;
    uint64_t task, worker; /* the worker that made the other file; 0: this one is seen by itself */
    uint8_t hash[32];      /* of the result */
    struct blob_ref file, other;
    enum alike_of of;
    struct assignment want;
    bool waits, good;
};

static int hold(const struct look *l, const struct blob_ref *b, char **ret)
{
    struct blobstore *store = l->co->blobs;
    return l->waits ? outer_hold(store, b, ret, NULL)
                    : store->ops->local(store, &b->id, false, ret, NULL);
}

/* Negative: the store does not give a file just now, which is no fault of who made it. */
static int look(void *arg)
{
    struct look *l = arg;
    char *file = NULL, *other = NULL;
    int rc = hold(l, &l->file, &file);
    if (rc == 0 && l->worker == 0)
        l->good = assignment_is(file, &l->want);
    else if (rc == 0 && (rc = hold(l, &l->other, &other)) == 0)
        l->good = alike_files(l->of, other, file);
    else if (file != NULL && (rc == -ERR_NOTFOUND || rc == -ERR_HASH))
        rc = 0; /* the other one's is gone: nothing is like it */
    outer_let_go(l->co->blobs, &l->file, file);
    outer_let_go(l->co->blobs, &l->other, other);
    return rc;
}

/* Where it is noted what the look finds; NULL: nobody asks any more. */
static struct task_look *note_of(const struct look *l)
{
    struct task *t = task_memory(state_task(&l->co->state, l->task));
    struct task_look *at = t != NULL && l->worker == 0 ? &t->sound : NULL;
    for (unsigned i = 0; t != NULL && i < t->n_told && l->worker != 0; i++)
        if (t->told[i]->worker == l->worker)
            at = &t->told[i]->look;
    return at != NULL && memcmp(at->hash, l->hash, sizeof(l->hash)) == 0 ? at : NULL;
}

static void looked(void *arg, int rc)
{
    struct look *l = arg;
    struct task_look *at = l->co->closing ? NULL : note_of(l);
    if (at != NULL)
        at->state = rc < 0 ? LOOK_NONE : l->good ? LOOK_GOOD : LOOK_BAD;
    assignment_release(&l->want);
    mem_free(l);
}

static bool is_small(const struct look *l)
{
    return l->of != ALIKE_LATENTS && l->file.size <= SMALL_BYTES && l->other.size <= SMALL_BYTES;
}

/* Takes l.  If there is no room for it, the next report begins it. */
static void begin_look(struct look *l, struct task_look *at)
{
    at->state = LOOK_RUNS;
    memcpy(at->hash, l->hash, sizeof(at->hash));
    const int rc = is_small(l) ? look(l) : -EAGAIN;
    l->waits = true;
    if (rc != -EAGAIN) {
        looked(l, rc);
    } else if (pool_submit(l->co->far, look, looked, l) < 0) {
        at->state = LOOK_NONE;
        assignment_release(&l->want);
        mem_free(l);
    }
}

static struct look *new_look(struct coordinator *co, const struct task *t,
                             const struct agree_result *r)
{
    struct look *l = mem_alloc(sizeof(*l));
    *l = (struct look){.co = co, .task = t->id, .file = *r->file, .of = r->of};
    memcpy(l->hash, r->hash, sizeof(l->hash));
    return l;
}

/* What the job's assignment must be. */
static struct assignment wanted(const struct job *j, const struct agree_result *r)
{
    struct assignment a = {
        .top = (uint32_t)j->spec.recipe.top, .n_runs = shards_cut(j), .n_sizes = r->n_sizes};
    a.runs = mem_alloc_array(a.n_runs + 1, sizeof(*a.runs));
    a.sizes = mem_alloc_array(a.n_sizes + 1, sizeof(*a.sizes));
    for (size_t i = 0; i < a.n_runs; i++)
        a.runs[i] = (struct assignment_run){j->shards[i].samples, !j->shards[i].holdout};
    memcpy(a.sizes, r->sizes, r->n_sizes * sizeof(*a.sizes));
    return a;
}

static bool is_seen(const struct task_look *at, const uint8_t hash[32])
{
    return at->state > LOOK_RUNS && memcmp(at->hash, hash, sizeof(at->hash)) == 0;
}

static bool sizes_are_near(const struct task_told *a, const struct agree_result *b)
{
    uint64_t apart = 0, all = 0;
    if (a->n_sizes != b->n_sizes)
        return false;
    for (size_t i = 0; i < b->n_sizes; i++) {
        apart += a->sizes[i] > b->sizes[i] ? a->sizes[i] - b->sizes[i] : b->sizes[i] - a->sizes[i];
        all += b->sizes[i];
    }
    return (double)apart <= AGREE_APART * (double)all;
}

static bool must_compare(const struct task_told *a, const struct agree_result *b)
{
    return b->of != ALIKE_BYTES && memcmp(a->hash, b->hash, sizeof(a->hash)) != 0 &&
           sizes_are_near(a, b);
}

/* Is the result of use by itself? */
static int look_at_it(struct coordinator *co, const struct job *j, struct task *t,
                      const struct agree_result *r, struct err *err)
{
    if (r->of != ALIKE_ASSIGNMENT)
        return 0;
    if (!is_seen(&t->sound, r->hash) && t->sound.state != LOOK_RUNS) {
        struct look *l = new_look(co, t, r);
        l->want = wanted(j, r);
        begin_look(l, &t->sound);
    }
    if (!is_seen(&t->sound, r->hash))
        return err_set(err, -EAGAIN, "the assignment is being looked at");
    return t->sound.state == LOOK_GOOD
               ? 0
               : err_set(err, -EINVAL,
                         "the assignment cannot be read, or has other sizes than were reported");
}

int agree_look(struct coordinator *co, const struct job *j, struct task *t,
               const struct agree_result *r, struct err *err)
{
    int rc = look_at_it(co, j, t, r, err);
    for (unsigned i = 0; rc == 0 && i < t->n_told; i++) {
        struct task_told *told = t->told[i];
        if (!must_compare(told, r))
            continue;
        if (!is_seen(&told->look, r->hash) && told->look.state != LOOK_RUNS) {
            struct look *l = new_look(co, t, r);
            l->worker = told->worker;
            l->other = told->file;
            begin_look(l, &told->look);
        }
        if (!is_seen(&told->look, r->hash))
            rc = err_set(err, -EAGAIN, "it is compared with what another worker made");
    }
    return rc;
}

/* ---- results ------------------------------------------------------------------------------ */

static bool is_alike(const struct task_told *a, const struct agree_result *b)
{
    return memcmp(a->hash, b->hash, sizeof(a->hash)) == 0 ||
           (must_compare(a, b) && is_seen(&a->look, b->hash) && a->look.state == LOOK_GOOD);
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
    if (r->file != NULL)
        told->file = *r->file;
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

/* Forgets what was made, and its files but for that of the result which counts. */
static void forget(struct coordinator *co, struct task *t)
{
    for (unsigned i = 0; i < t->n_told; i++)
        gc_drop(co, &t->told[i]->file);
    task_forget_told(t);
}

/* Worker w has made result r, and that of told[with] agrees.  So may the other: what is near both
 * need not be near each other. */
static void decided(struct coordinator *co, struct task *t, struct worker *w, unsigned with,
                    const struct agree_result *r)
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
        if (i != with && !is_alike(t->told[i], r))
            was_wrong(co, t, t->told[i]->worker);
    forget(co, t);
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

void agree_doubt(struct coordinator *co, const struct job *j, struct task *t,
                 const uint8_t hash[32])
{
    const struct worker *w = state_worker(&co->state, t->worker_id);
    struct agree_result result = {.of = ALIKE_BYTES};
    memcpy(result.hash, hash, sizeof(result.hash));
    task_forget_told(t);
    if (w != NULL && j->spec.outer.spot_check)
        note(t, w, &result);
}

bool agree_hear(struct coordinator *co, struct job *j, struct task *t,
                const struct agree_result *result)
{
    struct worker *w = worker_memory(state_worker(&co->state, t->worker_id));
    if (w == NULL || !j->spec.outer.spot_check)
        return true;
    const uint64_t own = worker_origin(w);
    for (unsigned i = 0; i < t->n_told; i++)
        if (t->told[i]->origin != own && is_alike(t->told[i], result)) {
            decided(co, t, w, i, result);
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
    forget(co, t);
    return true;
}
