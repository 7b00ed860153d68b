#include "common/net/loop.h"

#include "common/base/list.h"
#include "common/base/log.h"

#include <pthread.h>
#include <signal.h>

#define SIGNALS 3

struct deferred {
    struct list link;
    loop_fn fn;
    void *arg;
};

struct loop {
    uv_loop_t uv;
    uv_idle_t idle; /* active while deferred calls wait, so that polling returns at once */
    uv_async_t wake;
    uv_signal_t signals[SIGNALS];
    loop_signal_fn signal_fn;
    void *signal_arg;
    struct list deferred; /* loop thread only */
    pthread_t thread;
    pthread_mutex_t lock; /* guards the fields below; no callback runs under it */
    struct list posted;
    unsigned posted_count;
    bool stopping;
};

struct loop_timer {
    uv_timer_t uv;
    struct loop *loop;
    loop_fn fn;
    void *arg;
};

static void run_list(struct list *calls)
{
    struct list *l;
    while ((l = list_pop(calls))) {
        struct deferred *d = list_entry(l, struct deferred, link);
        loop_fn fn = d->fn;
        void *arg = d->arg;
        mem_free(d);
        fn(arg);
    }
}

/* Moves the calls that are in `from` now; later ones run in the next turn. */
static void move_calls(struct list *from, struct list *to)
{
    list_init(to);
    if (list_empty(from))
        return;
    *to = *from;
    to->next->prev = to;
    to->prev->next = to;
    list_init(from);
}

static void on_idle(uv_idle_t *h)
{
    struct loop *loop = h->data;
    struct list calls;
    move_calls(&loop->deferred, &calls);
    run_list(&calls);
    if (list_empty(&loop->deferred))
        (void)uv_idle_stop(h); /* cannot fail */
}

static void on_wake(uv_async_t *h)
{
    struct loop *loop = h->data;
    struct list calls;
    pthread_mutex_lock(&loop->lock);
    move_calls(&loop->posted, &calls);
    loop->posted_count = 0;
    bool stop = loop->stopping;
    pthread_mutex_unlock(&loop->lock);
    run_list(&calls);
    if (stop)
        uv_stop(&loop->uv);
}

int loop_new(struct loop **ret, struct err *err)
{
    struct loop *loop = mem_alloc(sizeof(*loop));
    int rc = uv_loop_init(&loop->uv);
    if (rc < 0) {
        mem_free(loop);
        return err_set(err, rc, "cannot make an event loop: %s", uv_strerror(rc));
    }
    (void)uv_idle_init(&loop->uv, &loop->idle); /* cannot fail */
    rc = uv_async_init(&loop->uv, &loop->wake, on_wake);
    if (rc < 0) {
        uv_close((uv_handle_t *)&loop->idle, NULL);
        (void)uv_run(&loop->uv, UV_RUN_DEFAULT);
        (void)uv_loop_close(&loop->uv);
        mem_free(loop);
        return err_set(err, rc, "cannot make a wake-up descriptor: %s", uv_strerror(rc));
    }
    loop->idle.data = loop;
    loop->wake.data = loop;
    list_init(&loop->deferred);
    list_init(&loop->posted);
    pthread_mutex_init(&loop->lock, NULL);
    loop->thread = pthread_self();
    signal(SIGPIPE, SIG_IGN);
    *ret = loop;
    return 0;
}

void loop_free(struct loop *loop)
{
    if (!loop)
        return;
    for (int i = 0; i < SIGNALS && loop->signal_fn; i++)
        uv_close((uv_handle_t *)&loop->signals[i], NULL);
    loop->stopping = false;
    /* Deferred calls free objects that were closed in this turn, so they run first. */
    do {
        (void)uv_run(&loop->uv, UV_RUN_NOWAIT);
        on_wake(&loop->wake);
    } while (!list_empty(&loop->deferred));
    uv_close((uv_handle_t *)&loop->idle, NULL);
    uv_close((uv_handle_t *)&loop->wake, NULL);
    while (uv_run(&loop->uv, UV_RUN_DEFAULT) != 0)
        ; /* an earlier stop may end a run at once */
    int rc = uv_loop_close(&loop->uv);
    if (rc < 0) {
        log_error("loop", "a handle was left open when the loop was freed: %s", uv_strerror(rc));
        abort();
    }
    pthread_mutex_destroy(&loop->lock);
    mem_free(loop);
}

void loop_run(struct loop *loop)
{
    loop->thread = pthread_self();
    for (;;) {
        pthread_mutex_lock(&loop->lock);
        bool stop = loop->stopping;
        pthread_mutex_unlock(&loop->lock);
        if (stop)
            break;
        (void)uv_run(&loop->uv, UV_RUN_DEFAULT); /* returns at uv_stop */
    }
}

void loop_turn(struct loop *loop, bool wait)
{
    loop->thread = pthread_self();
    (void)uv_run(&loop->uv, wait ? UV_RUN_ONCE : UV_RUN_NOWAIT);
}

void loop_stop(struct loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    loop->stopping = true;
    pthread_mutex_unlock(&loop->lock);
    (void)uv_async_send(&loop->wake); /* cannot fail on an open handle */
}

uv_loop_t *loop_uv(struct loop *loop)
{
    return &loop->uv;
}

void loop_assert_thread(const struct loop *loop)
{
    if (!pthread_equal(loop->thread, pthread_self())) {
        log_error("loop", "a function of the loop thread was called on another thread");
        abort();
    }
}

uint64_t loop_now_ms(const struct loop *loop)
{
    return uv_now(&loop->uv);
}

void loop_defer(struct loop *loop, loop_fn fn, void *arg)
{
    ASSERT_LOOP_THREAD(loop);
    struct deferred *d = mem_alloc(sizeof(*d));
    d->fn = fn;
    d->arg = arg;
    if (list_empty(&loop->deferred))
        (void)uv_idle_start(&loop->idle, on_idle); /* cannot fail */
    list_push(&loop->deferred, &d->link);
}

int loop_post(struct loop *loop, loop_fn fn, void *arg)
{
    struct deferred *d = mem_alloc(sizeof(*d));
    d->fn = fn;
    d->arg = arg;
    pthread_mutex_lock(&loop->lock);
    bool full = loop->posted_count >= LOOP_POST_MAX;
    if (!full) {
        list_push(&loop->posted, &d->link);
        loop->posted_count++;
    }
    pthread_mutex_unlock(&loop->lock);
    if (full) {
        mem_free(d);
        return -EAGAIN;
    }
    (void)uv_async_send(&loop->wake); /* cannot fail on an open handle */
    return 0;
}

static void on_signal(uv_signal_t *h, int signo)
{
    struct loop *loop = h->data;
    loop->signal_fn(loop->signal_arg, signo);
}

int loop_on_signals(struct loop *loop, loop_signal_fn fn, void *arg, struct err *err)
{
    static const int numbers[SIGNALS] = {SIGINT, SIGTERM, SIGHUP};
    ASSERT_LOOP_THREAD(loop);
    bool first = !loop->signal_fn;
    loop->signal_fn = fn;
    loop->signal_arg = arg;
    if (!first)
        return 0;
    for (int i = 0; i < SIGNALS; i++) {
        (void)uv_signal_init(&loop->uv, &loop->signals[i]); /* cannot fail after the first */
        loop->signals[i].data = loop;
    }
    for (int i = 0; i < SIGNALS; i++) {
        struct sigaction now;
        if (numbers[i] == SIGHUP && sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN)
            continue; /* as under nohup */
        int rc = uv_signal_start(&loop->signals[i], on_signal, numbers[i]);
        if (rc < 0)
            return err_set(err, rc, "cannot watch signal %d: %s", numbers[i], uv_strerror(rc));
        uv_unref((uv_handle_t *)&loop->signals[i]);
    }
    return 0;
}

static void on_timer(uv_timer_t *h)
{
    struct loop_timer *t = h->data;
    t->fn(t->arg);
}

struct loop_timer *loop_timer_new(struct loop *loop, loop_fn fn, void *arg)
{
    ASSERT_LOOP_THREAD(loop);
    struct loop_timer *t = mem_alloc(sizeof(*t));
    (void)uv_timer_init(&loop->uv, &t->uv); /* cannot fail */
    t->uv.data = t;
    t->loop = loop;
    t->fn = fn;
    t->arg = arg;
    return t;
}

void loop_timer_start(struct loop_timer *t, uint64_t after_ms, uint64_t repeat_ms)
{
    ASSERT_LOOP_THREAD(t->loop);
    /* A timer that re-arms itself with 0 would keep libuv 1.44 in its timers for ever. */
    if (after_ms == 0)
        after_ms = 1;
    (void)uv_timer_start(&t->uv, on_timer, after_ms, repeat_ms); /* fails only when closing */
}

void loop_timer_stop(struct loop_timer *t)
{
    (void)uv_timer_stop(&t->uv); /* cannot fail */
}

bool loop_timer_active(const struct loop_timer *t)
{
    return uv_is_active((const uv_handle_t *)&t->uv) != 0;
}

static void timer_closed(uv_handle_t *h)
{
    mem_free(h->data);
}

void loop_timer_free(struct loop_timer *t)
{
    if (!t)
        return;
    ASSERT_LOOP_THREAD(t->loop);
    uv_close((uv_handle_t *)&t->uv, timer_closed);
}
