#include "kernels/cpu/team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <strings.h>

#include "common/base/base.h"

/* Looks before sleeping.  Active: about 30 us, several times the gap between two
 * operations and less than the price of a sleep and a wake-up.  Passive, where
 * others want the cores. */
enum { ACTIVE = 1500, PASSIVE = 15 };

struct helper {
    pthread_t thread;
    struct cpu_team *team;
    int index;
};

struct cpu_team {
    int threads;
    int spins;
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

static void work(struct cpu_team *team, int thread)
{
    for (;;) {
        int task = atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed);
        if (task >= team->tasks)
            return;
        team->fn(team->arg, task, thread);
    }
}

/* Waits until `round` is no longer `seen`; false when the team is closing. */
static bool wait_round(struct cpu_team *team, unsigned seen)
{
    for (int i = 0; i < team->spins; i++) {
        if (atomic_load_explicit(&team->round, memory_order_acquire) != seen)
            return true;
        relax();
    }
    pthread_mutex_lock(&team->lock);
    team->sleepers++;
    while (!team->stop && atomic_load_explicit(&team->round, memory_order_acquire) == seen)
        pthread_cond_wait(&team->wake, &team->lock);
    team->sleepers--;
    bool go = !team->stop;
    pthread_mutex_unlock(&team->lock);
    return go;
}

static void *helper_main(void *arg)
{
    struct helper *h = arg;
    struct cpu_team *team = h->team;
    unsigned seen = 0;
    while (wait_round(team, seen)) {
        seen++;
        work(team, h->index);
        atomic_fetch_sub_explicit(&team->running, 1, memory_order_release);
    }
    return NULL;
}

void cpu_team_run(struct cpu_team *team, cpu_task_fn *fn, void *arg, int tasks)
{
    if (!team || team->threads == 1 || tasks <= 1) {
        for (int i = 0; i < tasks; i++)
            fn(arg, i, 0);
        return;
    }
    team->fn = fn;
    team->arg = arg;
    team->tasks = tasks;
    atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    atomic_store_explicit(&team->running, team->threads - 1, memory_order_relaxed);

    /* A helper checks the round under the lock before it sleeps, so raising it
     * under the lock cannot be missed. */
    pthread_mutex_lock(&team->lock);
    atomic_fetch_add_explicit(&team->round, 1, memory_order_release);
    if (team->sleepers)
        pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->lock);

    work(team, 0);
    /* Helpers that are still busy hold a real CPU; one that was preempted does
     * not, so after a while leave it ours. */
    for (int i = 0; atomic_load_explicit(&team->running, memory_order_acquire) > 0; i++) {
        if (i < team->spins)
            relax();
        else
            sched_yield();
    }
}

int cpu_team_threads(const struct cpu_team *team)
{
    return team ? team->threads : 1;
}

void cpu_team_free(struct cpu_team *team)
{
    if (!team)
        return;
    pthread_mutex_lock(&team->lock);
    team->stop = true;
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->lock);
    for (int i = 0; i < team->started; i++)
        pthread_join(team->helpers[i].thread, NULL);
    pthread_cond_destroy(&team->wake);
    pthread_mutex_destroy(&team->lock);
    free(team->helpers);
    free(team);
}

int cpu_team_new(int threads, struct cpu_team **ret, struct err *err)
{
    struct cpu_team *team = aligned_alloc(64, sizeof *team);
    if (!team)
        return err_set(err, -ENOMEM, "no memory for the thread team");
    const char *policy = getenv("OMP_WAIT_POLICY");
    *team = (struct cpu_team){
        .threads = threads,
        .spins = policy && strcasecmp(policy, "passive") == 0 ? PASSIVE : ACTIVE,
    };
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->wake, NULL);
    team->helpers = calloc((size_t)threads, sizeof *team->helpers);
    if (!team->helpers) {
        cpu_team_free(team);
        return err_set(err, -ENOMEM, "no memory for the thread team");
    }
    for (int i = 1; i < threads; i++) {
        struct helper *h = &team->helpers[i - 1];
        *h = (struct helper){.team = team, .index = i};
        int r = pthread_create(&h->thread, NULL, helper_main, h);
        if (r) {
            cpu_team_free(team);
            return err_set(err, -r, "cannot start compute thread %d of %d", i + 1, threads);
        }
        team->started++;
        char name[16];
        snprintf(name, sizeof name, "kern-%d", i % 1000);
        pthread_setname_np(h->thread, name);
    }
    *ret = team;
    return 0;
}
