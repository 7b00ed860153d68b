#include "coordinator/outer/outer_early.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/blobstore.h"
#include "common/net/growing.h"
#include "common/net/loop.h"
#include "common/net/pool.h"
#include "common/outer/wire.h"
#include "coordinator/outer/outer_run.h"

#define LOOK_MS 5 /* between looks for more bytes of a contribution, or for a place to compute */
#define STALL_MS                                                                                   \
    15000u /* shorter than what a transfer of the delta waits for a byte (transfer.h) */

/* A contribution that may still be arriving. */
struct input {
    struct outer_early *early;
    struct wire_source source;
};

struct outer_early {
    struct list link; /* in exec->earlies until it was stopped and has ended, or is let go of */
    bool listed;
    unsigned shares; /* the list's, and its job's */
    bool taken;      /* by a decided step */
    struct outer_run run;
    struct input *inputs; /* one for each contribution */
    struct fold_result result;
    void (*on_end)(struct outer_step *step);
    bool computes;     /* its thread's */
    atomic_bool files; /* it has made them, and they are nobody else's */
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    bool opened; /* what the step starts from: nothing of that is mended any more */
    bool hashes; /* all of that, while it reads it */
    bool ended;
    int rc;
    struct growing *delta; /* NULL: not begun */
};

/* ---- its thread ---- */

static int stopped(const struct outer_early *e, struct err *err)
{
    return atomic_load(&e->stop) ? err_set(err, -ERR_CANCELLED, "the early step was stopped") : 0;
}

static void look_again_later(void)
{
    const struct timespec t = {.tv_nsec = LOOK_MS * 1000000};
    (void)nanosleep(&t, NULL); /* a signal only makes it shorter */
}

/* Waits until it may compute, or is stopped. */
static int enter(struct outer_early *e, struct err *err)
{
    int rc;
    while ((rc = stopped(e, err)) == 0 && sem_trywait(&e->run.exec->computing) < 0)
        look_again_later();
    e->computes = rc == 0;
    return rc;
}

static void leave(struct outer_early *e)
{
    if (e->computes)
        (void)sem_post(&e->run.exec->computing); /* at most as often as there were waits */
    e->computes = false;
}

/* Waits a moment for more, while others may compute; since_ms: of the wait. */
static int pause_for(struct outer_early *e, uint64_t since_ms, struct err *err)
{
    if (clock_now_ms() - since_ms > STALL_MS)
        return err_set(err, -ETIMEDOUT, "no byte of a contribution came for %u s", STALL_MS / 1000);
    leave(e);
    look_again_later();
    return enter(e, err);
}

static int await(void *arg, uint64_t end, struct err *err)
{
    const struct input *in = arg;
    uint64_t had = 0, since_ms = clock_now_ms();
    struct stat st;
    int rc = stopped(in->early, err);
    while (rc == 0) {
        if (fstat(in->source.fd, &st) < 0)
            return err_errno(err, "looking at a contribution");
        if ((uint64_t)st.st_size >= end)
            return 0;
        if (st.st_nlink == 0)
            return err_set(err, -ERR_STALE, "an upload was given up");
        if ((uint64_t)st.st_size > had)
            since_ms = clock_now_ms();
        had = (uint64_t)st.st_size;
        rc = pause_for(in->early, since_ms, err);
    }
    return rc;
}

/* Opens a contribution; -ERR_NOTFOUND: none of its bytes are here.  (A question how many are makes
 * an empty upload, which goes with the answer.) */
static int find_input(struct outer_early *e, const struct outer_contribution *c, int *ret_fd,
                      struct err *err)
{
    struct blobstore *store = e->run.exec->store;
    struct stat st = {0};
    uint64_t size;
    int rc = store->ops->part(store, &c->blob.id, c->holder, ret_fd, err);
    if (rc == -ERR_NOTFOUND)
        rc = store->ops->get(store, &c->blob.id, ret_fd, &size, err);
    if (rc < 0 || fstat(*ret_fd, &st) < 0 || st.st_size > 0)
        return rc;
    (void)close(*ret_fd);
    *ret_fd = -1;
    return -ERR_NOTFOUND;
}

/* Waits for the first bytes of a contribution. */
static int open_input(struct outer_early *e, size_t i, struct err *err)
{
    const struct outer_contribution *c = &e->run.step->contributions[i];
    struct input *in = &e->inputs[i];
    const uint64_t since_ms = clock_now_ms();
    int rc = stopped(e, err);
    in->early = e;
    in->source = (struct wire_source){.fd = -1, .bytes = c->blob.size, .await = await, .arg = in};
    while (rc == 0) {
        const int found = find_input(e, c, &in->source.fd, err);
        if (found != -ERR_NOTFOUND)
            return found;
        rc = pause_for(e, since_ms, err);
    }
    return rc;
}

static void on_written(void *arg, const struct fold_written *w)
{
    struct outer_early *e = arg;
    (void)pthread_mutex_lock(&e->lock);
    if (e->delta == NULL && !atomic_load(&e->stop))
        e->delta = growing_new(w->fd, w->from, w->bytes);
    if (e->delta)
        growing_reach(e->delta, w->reached);
    (void)pthread_mutex_unlock(&e->lock);
}

static bool is_stopped(void *arg)
{
    return atomic_load(&((struct outer_early *)arg)->stop);
}

static void close_input(struct input *in)
{
    if (in->source.fd >= 0)
        (void)close(in->source.fd); /* read only: nothing to lose */
    in->source.fd = -1;
}

static void note_opened(struct outer_early *e, bool hashes)
{
    (void)pthread_mutex_lock(&e->lock);
    e->opened = true;
    e->hashes = hashes;
    (void)pthread_cond_broadcast(&e->changed);
    (void)pthread_mutex_unlock(&e->lock);
}

static int fold_early(struct outer_early *e, struct err *err)
{
    struct fold_input inputs[OUTER_CONTRIBUTIONS_MAX];
    const struct outer_step *s = e->run.step;
    int rc = enter(e, err);
    if (rc == 0)
        rc = outer_run_open(&e->run, err);
    const bool hashes = rc == 0 && !outer_run_is_seen(&e->run);
    note_opened(e, hashes);
    for (size_t i = 0; i < s->n_contributions && rc == 0; i++)
        rc = open_input(e, i, err);
    if (rc < 0)
        return rc;
    struct fold_step step = outer_run_fold(&e->run, inputs);
    for (size_t i = 0; i < s->n_contributions; i++) {
        inputs[i].path = "a contribution that arrives";
        inputs[i].source = &e->inputs[i].source;
    }
    step.written = on_written;
    step.written_arg = e;
    step.hash_inputs = true;
    if (hashes)
        outer_run_hash_ours(&e->run, &step);
    step.stop = is_stopped;
    step.stop_arg = e;
    return fold_run(&step, &e->result, err);
}

static void remove_files(struct outer_early *e)
{
    outer_run_discard(e->run.step);
    atomic_store(&e->files, false);
}

static int work(void *arg)
{
    struct outer_early *e = arg;
    struct err err = {0};
    const int rc = fold_early(e, &err);
    leave(e);
    atomic_store(&e->files, rc == 0);
    if (rc < 0)
        log_info("outer", "the early step of module %llu is given up: %s",
                 (unsigned long long)e->run.step->module_id, err.msg);
    outer_run_close(&e->run);
    for (size_t i = 0; i < e->run.step->n_contributions; i++)
        close_input(&e->inputs[i]);
    (void)pthread_mutex_lock(&e->lock);
    e->ended = true;
    e->rc = rc;
    if (rc < 0 && e->delta)
        growing_give_up(e->delta);
    (void)pthread_cond_broadcast(&e->changed);
    (void)pthread_mutex_unlock(&e->lock);
    return rc;
}

static int remove_work(void *arg)
{
    struct outer_early *e = arg;
    remove_files(e);
    (void)pthread_mutex_lock(&e->lock);
    e->ended = true;
    e->rc = -ERR_CANCELLED;
    (void)pthread_cond_broadcast(&e->changed);
    (void)pthread_mutex_unlock(&e->lock);
    return 0;
}

/* ---- the loop thread ---- */

static void drop(struct outer_early *e)
{
    if (--e->shares > 0)
        return;
    growing_drop(e->delta);
    (void)pthread_cond_destroy(&e->changed);
    (void)pthread_mutex_destroy(&e->lock);
    outer_step_release(e->run.step);
    mem_free(e->run.step);
    mem_free(e->inputs);
    mem_free(e);
}

static void unlist(struct outer_early *e)
{
    list_remove(&e->link);
    e->listed = false;
    drop(e);
}

static void give_up(struct outer_early *e)
{
    atomic_store(&e->stop, true);
    (void)pthread_mutex_lock(&e->lock);
    if (e->delta)
        growing_give_up(e->delta);
    (void)pthread_mutex_unlock(&e->lock);
}

static bool has_ended(struct outer_early *e)
{
    (void)pthread_mutex_lock(&e->lock);
    const bool ended = e->ended;
    (void)pthread_mutex_unlock(&e->lock);
    return ended;
}

static void finished(void *arg, int rc);

static void set_ended(struct outer_early *e, bool ended)
{
    (void)pthread_mutex_lock(&e->lock);
    e->ended = ended;
    (void)pthread_mutex_unlock(&e->lock);
}

/* It has ended and is not wanted: its files go, on a thread, since they may be large. */
static void clear(struct outer_early *e)
{
    if (atomic_load(&e->files)) {
        set_ended(e, false); /* before the thread can say that it has */
        if (pool_submit(e->run.exec->early, remove_work, finished, e) == 0) {
            e->shares++;
            return;
        }
        remove_files(e);
        set_ended(e, true);
    }
    unlist(e);
}

/* Ends it.  While it runs it stays known, as the next one's files will have the same names. */
static void end(struct outer_early *e)
{
    e->taken = false;
    give_up(e);
    if (has_ended(e))
        clear(e);
}

static void finished(void *arg, int rc)
{
    struct outer_early *e = arg;
    if (rc == -ERR_CANCELLED &&
        atomic_load(&e->files)) /* the thread that was to remove them did not begin */
        remove_files(e);
    if (e->listed && !e->taken && atomic_load(&e->stop) &&
        (has_ended(e) || !atomic_load(&e->files)))
        clear(e);
    if (e->on_end)
        e->on_end(e->run.step);
    drop(e);
}

static struct outer_early *find(struct outer_exec *exec, const char *state_dir)
{
    for (struct list *l = exec->earlies.next; l != &exec->earlies; l = l->next) {
        struct outer_early *e = list_entry(l, struct outer_early, link);
        if (strcmp(e->run.step->state_dir, state_dir) == 0)
            return e;
    }
    return NULL;
}

bool outer_early_has_place(struct outer_exec *exec, uint64_t job_id, const char *state_dir)
{
    unsigned all = 0, of_job = 0;
    for (struct list *l = exec->earlies.next; l != &exec->earlies; l = l->next) {
        struct outer_early *e = list_entry(l, struct outer_early, link);
        const bool runs = !has_ended(e);
        all += runs;
        of_job += runs && e->run.step->job_id == job_id;
    }
    return find(exec, state_dir) == NULL && all < OUTER_EARLY_MAX && of_job < OUTER_EARLY_OF_JOB;
}

int outer_early(struct outer_exec *exec, struct outer_step *takes,
                void (*on_end)(struct outer_step *step))
{
    ASSERT_LOOP_THREAD(exec->loop);
    struct outer_early *e = mem_alloc(sizeof *e);
    e->run = (struct outer_run){.exec = exec, .step = takes};
    e->on_end = on_end;
    e->inputs = mem_alloc_array(takes->n_contributions, sizeof *e->inputs);
    for (size_t i = 0; i < takes->n_contributions; i++)
        e->inputs[i].source.fd = -1;
    (void)pthread_mutex_init(&e->lock, NULL); /* default attributes: cannot fail on Linux */
    (void)pthread_cond_init(&e->changed, NULL);
    e->shares = 1;
    if (!outer_early_has_place(exec, takes->job_id, takes->state_dir) ||
        pool_submit(exec->early, work, finished, e) < 0) {
        drop(e);
        return -EAGAIN;
    }
    e->shares++;
    e->listed = true;
    list_push(&exec->earlies, &e->link);
    return 0;
}

void outer_early_stop(struct outer_exec *exec, const char *state_dir)
{
    ASSERT_LOOP_THREAD(exec->loop);
    struct outer_early *e = find(exec, state_dir);
    if (e != NULL && !e->taken)
        end(e);
}

int outer_early_delta(struct outer_exec *exec, const char *state_dir, struct growing **ret)
{
    ASSERT_LOOP_THREAD(exec->loop);
    struct outer_early *e = find(exec, state_dir);
    if (e == NULL || atomic_load(&e->stop))
        return -ERR_NOTFOUND;
    (void)pthread_mutex_lock(&e->lock);
    const int rc = e->ended && e->rc < 0 ? -ERR_NOTFOUND : e->delta ? 0 : -EAGAIN;
    if (rc == 0)
        *ret = growing_share(e->delta);
    (void)pthread_mutex_unlock(&e->lock);
    return rc;
}

/* Do the steps read and write the same, as far as it is known before contributions are judged? */
static bool alike(const struct outer_step *a, const struct outer_step *b)
{
    bool same = a->base == b->base && a->fresh == b->fresh && a->stored == b->stored &&
                a->to_store == b->to_store && !b->claimed && a->down == b->down && a->lr == b->lr &&
                a->momentum == b->momentum && a->ema_decay == b->ema_decay &&
                a->scale == b->scale && a->keep_norm == b->keep_norm && a->delay == b->delay &&
                a->n_contributions == b->n_contributions;
    for (int i = 0; same && i < OUTER_FILES; i++)
        same = blob_ref_equal(&a->old[i], &b->old[i]);
    for (size_t i = 0; same && i < a->n_contributions; i++) {
        const struct outer_contribution *x = &a->contributions[i], *y = &b->contributions[i];
        same = blob_ref_equal(&x->blob, &y->blob) && x->codec == y->codec && x->from == y->from &&
               blob_ref_equal(&x->from_full, &y->from_full);
    }
    return same;
}

struct outer_early *outer_early_of(struct outer_exec *exec, const struct outer_step *step)
{
    struct outer_early *e = find(exec, step->state_dir);
    if (e == NULL)
        return NULL;
    e->taken = true;
    if (!alike(e->run.step, step))
        give_up(e);
    return e;
}

void outer_early_let_go(struct outer_early *e)
{
    if (e && (!has_ended(e) || atomic_load(&e->files)))
        end(e);
    else if (e)
        unlist(e);
}

void outer_early_stop_all(struct outer_exec *exec)
{
    for (struct list *l = exec->earlies.next, *next; l != &exec->earlies; l = next) {
        struct outer_early *e = list_entry(l, struct outer_early, link);
        next = l->next;
        if (e->taken)
            give_up(e);
        else
            end(e);
    }
}

/* ---- the executor's threads ---- */

/* Waits until it has ended, or has found what it starts from. */
static void await_change(struct outer_early *e, bool opened)
{
    (void)pthread_mutex_lock(&e->lock);
    while (!e->ended && !(opened && e->opened))
        (void)pthread_cond_wait(&e->changed, &e->lock);
    (void)pthread_mutex_unlock(&e->lock);
}

bool outer_early_await_open(const struct outer_run *r)
{
    if (!r->early)
        return false;
    await_change(r->early, true);
    (void)pthread_mutex_lock(&r->early->lock);
    const bool failed = r->early->ended && r->early->rc < 0;
    (void)pthread_mutex_unlock(&r->early->lock);
    return !failed && !is_stopped(r->early);
}

bool outer_early_hashes(const struct outer_run *r)
{
    (void)pthread_mutex_lock(&r->early->lock);
    const bool hashes = r->early->hashes;
    (void)pthread_mutex_unlock(&r->early->lock);
    return hashes;
}

/* Are all contributions folded as they are, with the weights of the early step? */
static bool same_weights(const struct outer_step *early, const struct outer_step *s)
{
    bool same = true;
    for (size_t i = 0; same && i < s->n_contributions; i++) {
        const struct outer_contribution *c = &s->contributions[i];
        same = !c->refused && c->shrink == 1 && c->weight == early->contributions[i].weight;
    }
    return same;
}

int outer_early_take(const struct outer_run *r, const struct fold_step *step,
                     struct fold_result *ret, struct err *err)
{
    struct outer_early *e = r->early;
    uint8_t read[HASH_BYTES];
    int rc = !step || is_stopped(e) || !same_weights(e->run.step, r->step) ? -ERR_STALE : 0;
    if (rc == 0) /* meanwhile it goes on */
        rc = fold_hash_inputs(step, read, err);
    if (rc < 0)
        give_up(e);
    await_change(e, false);
    rc = rc < 0 ? rc : e->rc;
    if (rc == 0 && is_stopped(e))
        rc = -ERR_STALE;
    if (rc == 0 && memcmp(read, e->result.inputs, sizeof read) != 0)
        rc = -ERR_HASH;
    if (rc < 0 && atomic_load(&e->files))
        remove_files(e); /* they would take the room of those that are made now */
    if (rc < 0)
        give_up(e);
    else
        *ret = e->result;
    atomic_store(&e->files, false); /* they are the step's */
    return rc;
}
