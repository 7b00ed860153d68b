/* The loop and its pools on the world's clock: common/net/loop.h and pool.h. */
#include "common/net/loop.h"

#include "common/base/list.h"
#include "tests/sim/fiber.h"
#include "tests/sim/host.h"
#include "tests/sim/sim.h"

#define JOB_MS                                                                                     \
    30 /* that a job of a pool waits, and takes, at most; sometimes a hundred times that */

struct call {
    struct list link;
    loop_fn fn;
    void *arg;
};

#define HELD_MS 20 /* until what is due is tried again, as long as the loop does not run */

struct loop {
    bool runs; /* not yet: the coordinator opens, and perhaps waits for the store */
    struct list deferred;
    uint64_t event; /* that makes the deferred calls; 0: none wait */
};

struct loop_timer {
    struct loop *loop;
    loop_fn fn;
    void *arg;
    uint64_t event, repeat_ms;
};

int loop_new(struct loop **ret, struct err *err)
{
    *ret = mem_alloc(sizeof(**ret));
    list_init(&(*ret)->deferred);
    return 0;
}

/* Those that wait now: what they defer comes in the next turn. */
static void make_calls(void *arg)
{
    struct loop *loop = arg;
    struct list calls, *l;
    list_init(&calls);
    loop->event = 0;
    if (!loop->runs) {
        loop->event = sim_in(HELD_MS, make_calls, loop);
        return;
    }
    while ((l = list_pop(&loop->deferred)) != NULL)
        list_push(&calls, l);
    while ((l = list_pop(&calls)) != NULL) {
        struct call *c = list_entry(l, struct call, link);
        c->fn(c->arg);
        mem_free(c);
    }
}

void loop_free(struct loop *loop)
{
    if (loop == NULL)
        return;
    loop->runs = true;
    while (!list_empty(&loop->deferred))
        make_calls(loop);
    sim_cancel(loop->event);
    mem_free(loop);
}

void loop_turn(struct loop *loop, bool wait)
{
    sim_cancel(loop->event);
    loop->runs = true;
    make_calls(loop);
}

/* Comes back at once: what is due happens from now on. */
void loop_run(struct loop *loop)
{
    loop->runs = true;
}

/* A coordinator ends itself when its state has gone elsewhere. */
void loop_stop(struct loop *loop)
{
    host_ends(loop);
}

void loop_assert_thread(const struct loop *loop)
{
}

uint64_t loop_now_ms(const struct loop *loop)
{
    return sim_now_ms();
}

void loop_defer(struct loop *loop, loop_fn fn, void *arg)
{
    struct call *c = mem_alloc(sizeof(*c));
    c->fn = fn;
    c->arg = arg;
    list_push(&loop->deferred, &c->link);
    if (loop->event == 0)
        loop->event = sim_in(0, make_calls, loop);
}

/* ---- timers ---- */

struct loop_timer *loop_timer_new(struct loop *loop, loop_fn fn, void *arg)
{
    struct loop_timer *t = mem_alloc(sizeof(*t));
    t->loop = loop;
    t->fn = fn;
    t->arg = arg;
    return t;
}

static void fire(void *arg)
{
    struct loop_timer *t = arg;
    if (!t->loop->runs) {
        t->event = sim_in(HELD_MS, fire, t);
        return;
    }
    t->event = t->repeat_ms ? sim_in(t->repeat_ms, fire, t) : 0;
    t->fn(t->arg);
}

void loop_timer_start(struct loop_timer *t, uint64_t after_ms, uint64_t repeat_ms)
{
    sim_cancel(t->event);
    t->repeat_ms = repeat_ms;
    t->event = sim_in(after_ms ? after_ms : 1, fire, t);
}

void loop_timer_stop(struct loop_timer *t)
{
    sim_cancel(t->event);
    t->event = 0;
}

bool loop_timer_active(const struct loop_timer *t)
{
    return t->event != 0;
}

void loop_timer_free(struct loop_timer *t)
{
    if (t == NULL)
        return;
    loop_timer_stop(t);
    mem_free(t);
}

/* ---- pools ---- */

struct job {
    struct list link;
    struct pool *pool;
    pool_work_fn work;
    pool_done_fn done;
    void *arg;
    uint64_t event;
    struct fiber *fiber; /* that it runs on */
    bool begun;
    int rc;
};

struct pool {
    struct list jobs; /* in order; the first `threads` may run */
    unsigned threads, n, max;
    unsigned process; /* whose jobs may wait for the store; 0: nobody's */
    bool stopping;
};

int pool_new(struct loop *loop, const char *name, unsigned threads, unsigned max_jobs,
             struct pool **ret, struct err *err)
{
    struct pool *p = mem_alloc(sizeof(*p));
    list_init(&p->jobs);
    p->process = fiber_process();
    p->threads = threads;
    p->max = max_jobs;
    *ret = p;
    return 0;
}

static void run_first(struct pool *p);

static void answer(void *arg)
{
    struct job *j = arg;
    struct pool *p = j->pool;
    list_remove(&j->link);
    p->n--;
    j->done(j->arg, j->rc);
    mem_free(j);
    if (!p->stopping)
        run_first(p);
}

static uint64_t some_ms(void)
{
    return sim_below(sim_chance(20) ? 100 * JOB_MS : JOB_MS);
}

static bool in_pool;
static uint64_t slow_ms; /* what the job that runs takes besides */

void sim_slow(uint64_t ms)
{
    if (fiber_here())
        fiber_add_slow(ms);
    else if (in_pool)
        slow_ms += ms;
    else
        sim_stall(ms);
}

static void work_and_wait(void *arg)
{
    struct job *j = arg;
    j->rc = j->work(j->arg);
    j->event = sim_in(some_ms() + fiber_take_slow(), answer, j);
}

/* All that a job does happens at its beginning, or between two waits for the store: a crash within
 * it is one amid its writes, and until its answer the loop does not know. */
static void work(void *arg)
{
    struct job *j = arg;
    j->event = 0;
    if (j->pool->process != 0) {
        fiber_new(j->pool->process, work_and_wait, j, &j->fiber);
        return;
    }
    in_pool = true;
    slow_ms = 0;
    j->rc = j->work(j->arg);
    in_pool = false;
    j->event = sim_in(some_ms() + slow_ms, answer, j);
}

static void run_first(struct pool *p)
{
    unsigned n = 0;
    for (struct list *l = p->jobs.next; l != &p->jobs && n < p->threads; l = l->next, n++) {
        struct job *j = list_entry(l, struct job, link);
        if (!j->begun)
            j->event = sim_in(some_ms(), work, j);
        j->begun = true;
    }
}

int pool_submit(struct pool *pool, pool_work_fn fn, pool_done_fn done, void *arg)
{
    if (pool->n >= pool->max || pool->stopping)
        return -EAGAIN;
    struct job *j = mem_alloc(sizeof(*j));
    *j = (struct job){.pool = pool, .work = fn, .done = done, .arg = arg, .rc = -ERR_CANCELLED};
    list_push(&pool->jobs, &j->link);
    pool->n++;
    run_first(pool);
    return 0;
}

unsigned pool_pending(const struct pool *pool)
{
    return pool->n;
}

bool pool_stopping(const struct pool *pool)
{
    return pool->stopping;
}

void pool_free(struct pool *pool)
{
    if (pool == NULL)
        return;
    pool->stopping = true;
    while (!list_empty(&pool->jobs)) {
        struct job *j = list_entry(pool->jobs.next, struct job, link);
        fiber_join(&j->fiber);
        sim_cancel(j->event);
        answer(j);
    }
    mem_free(pool);
}
