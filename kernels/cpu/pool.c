#include "kernels/cpu/pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"

/* Spins before sleeping: about 30 us, several times the gap between two
 * operations and less than the price of a sleep and a wake-up. */
enum { SPINS = 1500 };

struct helper {
    pthread_t thread;
    struct cpu_pool *pool;
    int index;
};

struct cpu_pool {
    int threads;
    struct helper *helpers; /* threads - 1 */
    int started;

    /* The job.  Written by the caller before `round` is raised, read after. */
    cpu_task_fn *fn;
    void *arg;
    int tasks;
    _Alignas(64) atomic_int next;    /* task to claim */
    _Alignas(64) atomic_int running; /* helpers that have not finished this round */
    _Alignas(64) atomic_uint round;

    pthread_mutex_t lock; /* for sleepers only */
    pthread_cond_t wake;
    int sleepers;
    bool stop;
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

static void work(struct cpu_pool *pool, int thread)
{
    for (;;) {
        int task = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (task >= pool->tasks)
            return;
        pool->fn(pool->arg, task, thread);
    }
}

/* Waits until `round` is no longer `seen`; false when the pool is closing. */
static bool wait_round(struct cpu_pool *pool, unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&pool->round, memory_order_acquire) != seen)
            return true;
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    pool->sleepers++;
    while (!pool->stop && atomic_load_explicit(&pool->round, memory_order_acquire) == seen)
        pthread_cond_wait(&pool->wake, &pool->lock);
    pool->sleepers--;
    bool go = !pool->stop;
    pthread_mutex_unlock(&pool->lock);
    return go;
}

static void *helper_main(void *arg)
{
    struct helper *h = arg;
    struct cpu_pool *pool = h->pool;
    unsigned seen = 0;
    while (wait_round(pool, seen)) {
        seen++;
        work(pool, h->index);
        atomic_fetch_sub_explicit(&pool->running, 1, memory_order_release);
    }
    return NULL;
}

void cpu_pool_run(struct cpu_pool *pool, cpu_task_fn *fn, void *arg, int tasks)
{
    if (!pool || pool->threads == 1 || tasks <= 1) {
        for (int i = 0; i < tasks; i++)
            fn(arg, i, 0);
        return;
    }
    pool->fn = fn;
    pool->arg = arg;
    pool->tasks = tasks;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->running, pool->threads - 1, memory_order_relaxed);

    /* A helper checks the round under the lock before it sleeps, so raising it
     * under the lock cannot be missed. */
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->round, 1, memory_order_release);
    if (pool->sleepers)
        pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);

    work(pool, 0);
    /* Helpers that are still busy hold a real CPU; one that was preempted does
     * not, so after a while leave it ours. */
    for (int i = 0; atomic_load_explicit(&pool->running, memory_order_acquire) > 0; i++) {
        if (i < SPINS)
            relax();
        else
            sched_yield();
    }
}

int cpu_pool_threads(const struct cpu_pool *pool)
{
    return pool ? pool->threads : 1;
}

void cpu_pool_free(struct cpu_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->helpers[i].thread, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->helpers);
    free(pool);
}

int cpu_pool_new(int threads, struct cpu_pool **ret, struct err *err)
{
    struct cpu_pool *pool = aligned_alloc(64, sizeof *pool);
    if (!pool)
        return err_set(err, -ENOMEM, "no memory for the thread pool");
    *pool = (struct cpu_pool){.threads = threads};
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->helpers = calloc((size_t)threads, sizeof *pool->helpers);
    if (!pool->helpers) {
        cpu_pool_free(pool);
        return err_set(err, -ENOMEM, "no memory for the thread pool");
    }
    for (int i = 1; i < threads; i++) {
        struct helper *h = &pool->helpers[i - 1];
        *h = (struct helper){.pool = pool, .index = i};
        int r = pthread_create(&h->thread, NULL, helper_main, h);
        if (r) {
            cpu_pool_free(pool);
            return err_set(err, -r, "cannot start compute thread %d of %d", i + 1, threads);
        }
        pool->started++;
        char name[16];
        snprintf(name, sizeof name, "kern-%d", i % 1000);
        pthread_setname_np(h->thread, name);
    }
    *ret = pool;
    return 0;
}
