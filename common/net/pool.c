#include "common/net/pool.h"

#include "common/base/clock.h"
#include "common/base/list.h"
#include "common/net/loop.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#define STOP_LOOK_MS 5

struct job {
    struct list link;
    pool_work_fn work;
    pool_done_fn done;
    void *arg;
    int rc;
};

struct pool {
    struct loop *loop;
    uv_async_t wake;
    char name[16];
    unsigned max_jobs, pending; /* loop thread only */
    unsigned threads;
    atomic_bool stopping;
    pthread_mutex_t lock; /* guards the two lists; no callback runs under it */
    pthread_cond_t work;
    struct list waiting, finished;
    pthread_t ids[];
};

static void *thread_main(void *arg)
{
    struct pool *p = arg;
    pthread_setname_np(pthread_self(), p->name);
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (list_empty(&p->waiting) && !atomic_load(&p->stopping))
            pthread_cond_wait(&p->work, &p->lock);
        if (atomic_load(&p->stopping))
            break;
        struct job *j = list_entry(list_pop(&p->waiting), struct job, link);
        pthread_mutex_unlock(&p->lock);
        j->rc = j->work(j->arg);
        pthread_mutex_lock(&p->lock);
        list_push(&p->finished, &j->link);
        (void)uv_async_send(&p->wake); /* cannot fail on an open handle */
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void finish_all(struct pool *p)
{
    for (;;) {
        pthread_mutex_lock(&p->lock);
        struct list *l = list_pop(&p->finished);
        pthread_mutex_unlock(&p->lock);
        if (!l)
            return;
        struct job *j = list_entry(l, struct job, link);
        p->pending--;
        pool_done_fn done = j->done;
        void *arg = j->arg;
        int rc = j->rc;
        mem_free(j);
        done(arg, rc);
    }
}

static void on_wake(uv_async_t *h)
{
    finish_all(h->data);
}

static void pool_closed(uv_handle_t *h)
{
    struct pool *p = h->data;
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

static void begin_stop(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stopping, true);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
}

static void join_all(struct pool *p)
{
    begin_stop(p);
    for (unsigned i = 0; i < p->threads; i++)
        pthread_join(p->ids[i], NULL);
    p->threads = 0;
}

int pool_new(struct loop *loop, const char *name, unsigned threads, unsigned max_jobs,
             struct pool **ret, struct err *err)
{
    ASSERT_LOOP_THREAD(loop);
    struct pool *p = mem_alloc(sizeof(*p) + threads * sizeof(p->ids[0]));
    p->loop = loop;
    p->max_jobs = max_jobs;
    (void)str_copy(p->name, sizeof(p->name), name);
    atomic_init(&p->stopping, false);
    int rc = uv_async_init(loop_uv(loop), &p->wake, on_wake);
    if (rc < 0) {
        mem_free(p);
        return err_set(err, rc, "cannot make a wake-up descriptor for the pool %s: %s", name,
                       uv_strerror(rc));
    }
    p->wake.data = p;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    list_init(&p->waiting);
    list_init(&p->finished);
    for (; p->threads < threads; p->threads++) {
        rc = pthread_create(&p->ids[p->threads], NULL, thread_main, p);
        if (rc != 0) {
            join_all(p);
            uv_close((uv_handle_t *)&p->wake, pool_closed);
            return err_set(err, -rc, "cannot start a thread of the pool %s", name);
        }
    }
    *ret = p;
    return 0;
}

int pool_submit(struct pool *p, pool_work_fn work, pool_done_fn done, void *arg)
{
    ASSERT_LOOP_THREAD(p->loop);
    if (p->pending >= p->max_jobs)
        return -EAGAIN;
    struct job *j = mem_alloc(sizeof(*j));
    j->work = work;
    j->done = done;
    j->arg = arg;
    j->rc = -ERR_CANCELLED;
    p->pending++;
    pthread_mutex_lock(&p->lock);
    list_push(atomic_load(&p->stopping) ? &p->finished : &p->waiting, &j->link);
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

unsigned pool_pending(const struct pool *p)
{
    return p->pending;
}

bool pool_stopping(const struct pool *p)
{
    return atomic_load(&p->stopping);
}

bool pool_stop(struct pool *p, uint32_t ms)
{
    if (!p)
        return true;
    ASSERT_LOOP_THREAD(p->loop);
    const uint64_t until = clock_now_ms() + ms;
    begin_stop(p);
    while (p->threads > 0) {
        if (pthread_tryjoin_np(p->ids[p->threads - 1], NULL) == 0)
            p->threads--;
        else if (clock_now_ms() < until)
            (void)poll(NULL, 0, STOP_LOOK_MS);
        else
            break;
    }
    return p->threads == 0;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    ASSERT_LOOP_THREAD(p->loop);
    join_all(p);
    struct list *l;
    while ((l = list_pop(&p->waiting)))
        list_push(&p->finished, l);
    finish_all(p);
    uv_close((uv_handle_t *)&p->wake, pool_closed);
}
