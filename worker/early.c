#include "worker/early.h"

#include "common/base/log.h"
#include "common/base/pieces.h"
#include "common/base/rng.h"
#include "common/net/loop.h"
#include "worker/link/fetch.h"
#include "worker/order/modules.h"
#include "worker/order/task_check.h"
#include "worker/order/work.h"

#define BLOBS_MAX 257 /* see Ahead.blobs */

/* One announcement of the coordinator. */
struct told {
    struct early *a;
    struct work *w; /* holds m and the needs */
    const Skerry__V1__Ahead *m;
    struct fetch *fetch;
    bool computing; /* the compute thread has it */
    bool dropped;   /* not wanted any more: the compute thread's answer frees it */
    struct err err;
};

struct early {
    struct early_options opt;
    struct told *now; /* NULL: nothing is fetched */
    uint64_t mark;    /* mark of the present or last fetch */
    unsigned n_begun;
};

struct early *early_new(const struct early_options *o)
{
    struct early *a = mem_alloc(sizeof(*a));
    a->opt = *o;
    return a;
}

static void told_free(struct told *t)
{
    work_free(t->w);
    mem_free(t);
}

bool early_busy(const struct early *a)
{
    return a->now != NULL;
}

static void stop(struct early *a)
{
    struct told *t = a->now;
    a->now = NULL;
    a->mark = 0;
    if (t == NULL)
        return;
    fetch_cancel(t->fetch);
    t->fetch = NULL;
    t->dropped = true;
    atomic_store(&t->w->stop, WORK_REVOKED); /* the next task waits for the compute thread */
    if (!t->computing)
        told_free(t);
}

void early_free(struct early *a)
{
    if (!a)
        return;
    stop(a);
    mem_free(a);
}

/* ---- its steps ---- */

/* Ends it; `mark` stays if everything is here, so that it is not begun again. */
static void end(struct told *t, int rc)
{
    struct early *a = t->a;
    a->now = NULL;
    if (rc < 0) {
        a->mark = 0;
        log_info("early", "what the next task may need is not here yet: %s", t->err.msg);
    }
    told_free(t);
}

/* The answer of the compute thread: false when nobody waits for it. */
static bool answered(struct told *t, int rc)
{
    const bool waited_for = !t->dropped;
    t->computing = false;
    if (!waited_for)
        told_free(t);
    else if (rc < 0)
        end(t, rc);
    return waited_for && rc == 0;
}

static void compute(struct told *t, pool_work_fn work, pool_done_fn done)
{
    t->computing = pool_submit(t->a->opt.compute, work, done, t) == 0;
    if (!t->computing)
        end(t, err_set(&t->err, -EAGAIN, "too many jobs wait for the compute thread"));
}

static int make_work(void *arg)
{
    struct told *t = arg;
    int rc = 0;
    progress_hear_beside(t->a->opt.env->beside); /* a task may come and wait for it */
    for (size_t i = 0; i < t->m->n_modules && rc == 0 && !work_stopped(t->w, &t->err); i++)
        rc = modules_make(t->a->opt.modules, t->w, t->m->modules[i], &t->err);
    pieces_hear(NULL, NULL);
    return rc;
}

static void make_done(void *arg, int rc)
{
    struct told *t = arg;
    struct early *a = t->a;
    if (!answered(t, rc))
        return;
    log_info("early", "what the next task may need is here");
    end(t, 0);
    a->opt.on_done(a->opt.arg);
}

static void on_fetched(void *arg, int code, const char *detail)
{
    struct told *t = arg;
    t->fetch = NULL;
    if (code < 0)
        end(t, err_set(&t->err, code, "%s", detail));
    else
        compute(t, make_work, make_done);
}

static int need(void *arg, const uint8_t sha256[32], uint64_t size, const char *url,
                const char *what, struct err *err)
{
    return work_need(arg, sha256, size, url, what, err);
}

static int plan_work(void *arg)
{
    struct told *t = arg;
    int rc = 0;
    progress_hear_beside(t->a->opt.env->beside);
    for (size_t i = 0; i < t->m->n_modules && rc == 0; i++)
        rc = modules_needs(t->a->opt.modules, t->m->modules[i], false, need, t->w, &t->err);
    for (size_t i = 0; i < t->m->n_blobs && rc == 0; i++)
        rc = work_need_blob(t->w, t->m->blobs[i], "a file of the job", &t->err);
    if (rc == 0)
        work_check_needs(t->w);
    pieces_hear(NULL, NULL);
    return rc;
}

static void plan_done(void *arg, int rc)
{
    struct told *t = arg;
    if (!answered(t, rc))
        return;
    const struct fetch_what what = {.needs = t->w->needs, .n = t->w->n_needs};
    t->fetch = fetch_start(t->a->opt.env, &what, on_fetched, t);
}

/* ---- announcements ---- */

static int check(const Skerry__V1__Ahead *m, struct err *err)
{
    int rc = task_check_count(m->n_modules, TASK_MODULES_MAX, "ahead.modules", err);
    if (rc == 0)
        rc = task_check_count(m->n_blobs, BLOBS_MAX, "ahead.blobs", err);
    for (size_t i = 0; i < m->n_modules && rc == 0; i++)
        rc = task_check_module(m->modules[i], err);
    for (size_t i = 0; i < m->n_blobs && rc == 0; i++)
        rc = task_check_blob(m->blobs[i], "ahead.blobs", err);
    return rc;
}

/* A hash of the message without its tickets, which differ each time. */
static uint64_t mark(const Skerry__V1__Ahead *m)
{
    uint64_t sum = m->n_blobs;
    for (size_t i = 0; i < m->n_modules; i++) {
        const Skerry__V1__ModuleRef *r = m->modules[i];
        sum = rng_mix(rng_mix(sum, r->module_id), rng_mix(r->version, r->n_deltas));
    }
    return sum | 1;
}

/* The message belongs to the connection's arena. */
static int copy(struct told *t, const Skerry__V1__Ahead *m)
{
    const size_t size = skerry__v1__ahead__get_packed_size(m);
    uint8_t *packed = mem_try(size ? size : 1);
    if (!packed)
        return err_set(&t->err, -ENOMEM, "out of memory for %zu bytes", size);
    skerry__v1__ahead__pack(m, packed);
    t->m = skerry__v1__ahead__unpack(pbmem_allocator(&t->w->mem), size, packed);
    mem_free(packed);
    return t->m ? 0 : err_set(&t->err, -ENOMEM, "out of memory for a message of %zu bytes", size);
}

static void begin(struct early *a, const Skerry__V1__Ahead *m)
{
    char name[32];
    struct told *t = mem_alloc(sizeof(*t));
    t->a = a;
    (void)snprintf(name, sizeof(name), "ahead-%u", a->n_begun++);
    int rc = check(m, &t->err);
    if (rc == 0)
        rc = work_new_bare(a->opt.env->cache, a->opt.tmp_dir, name, &t->w, &t->err);
    if (rc == 0)
        rc = copy(t, m);
    if (rc < 0) {
        end(t, rc);
        return;
    }
    a->now = t;
    log_info("early", "fetching what the next task may need");
    compute(t, plan_work, plan_done);
}

bool early_take(struct early *a, const Skerry__V1__Ahead *m)
{
    const uint64_t told = m != NULL ? mark(m) : 0;
    if (told == a->mark)
        return false;
    stop(a);
    a->mark = told;
    if (m != NULL)
        begin(a, m);
    return true;
}
