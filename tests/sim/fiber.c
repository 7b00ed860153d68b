#include "tests/sim/fiber.h"

#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include "common/base/clock.h"

#define STACK_BYTES ((size_t)1 << 20)
#define ROUNDS_MAX 100000 /* in which all that hurry must have ended */

struct fiber {
    struct fiber *next;
    unsigned process;
    ucontext_t here, back;
    char *stack;
    sim_fn fn;
    void *arg;
    struct fiber **ret;
    const void *key; /* that it waits for; NULL: it runs, or goes on in a moment */
    uint64_t event;  /* with which it goes on; 0: only when it is woken */
    uint64_t slow_ms;
    bool woken, hurries, ended;
};

/* A thread of the program's, begun on a fiber. */
struct thread {
    struct thread *next;
    struct fiber *fiber; /* NULL: it has ended */
    void *(*fn)(void *arg);
    void *arg, *result;
};

static struct {
    struct fiber *all, *current;
    struct thread *threads;
    char **stacks; /* that nobody uses */
    size_t n_stacks, cap_stacks;
} fibers;

/* ---- stacks ---------------------------------------------------------------- */

static char *take_stack(void)
{
    if (fibers.n_stacks > 0)
        return fibers.stacks[--fibers.n_stacks];
    char *s = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (s == MAP_FAILED)
        sim_fail("no memory for a stack");
    return s;
}

static void give_stack(char *s)
{
    if (fibers.n_stacks == fibers.cap_stacks) {
        fibers.cap_stacks = fibers.cap_stacks ? 2 * fibers.cap_stacks : 16;
        fibers.stacks = mem_realloc(fibers.stacks, fibers.cap_stacks * sizeof(*fibers.stacks));
    }
    fibers.stacks[fibers.n_stacks++] = s;
}

void fiber_end(void)
{
    if (fibers.all != NULL)
        sim_fail("something still waits at the world's end");
    while (fibers.n_stacks > 0)
        (void)munmap(fibers.stacks[--fibers.n_stacks], STACK_BYTES);
    mem_free(fibers.stacks);
    fibers.stacks = NULL;
    fibers.cap_stacks = 0;
}

/* ---- switching -------------------------------------------------------------- */

static void drop(struct fiber *f)
{
    struct fiber **at = &fibers.all;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    sim_cancel(f->event);
    give_stack(f->stack);
    if (f->ret != NULL) {
        *f->ret = NULL;
        fiber_wake(f->ret);
    }
    mem_free(f);
}

static void enter(struct fiber *f)
{
    struct fiber *before = fibers.current;
    fibers.current = f;
    if (swapcontext(&f->back, &f->here) != 0)
        sim_fail("no switch to another stack");
    fibers.current = before;
    if (f->ended)
        drop(f);
}

static void leave(void)
{
    struct fiber *f = fibers.current;
    if (swapcontext(&f->here, &f->back) != 0)
        sim_fail("no switch to another stack");
}

static void go_on(void *arg)
{
    struct fiber *f = arg;
    f->event = 0;
    f->key = NULL;
    enter(f);
}

static void begin(void)
{
    struct fiber *f = fibers.current;
    f->fn(f->arg);
    f->ended = true;
    leave();
}

void fiber_new(unsigned process, sim_fn fn, void *arg, struct fiber **ret)
{
    struct fiber *f = mem_alloc(sizeof(*f));
    *f = (struct fiber){.process = process, .fn = fn, .arg = arg, .ret = ret};
    f->hurries = fibers.current != NULL && fibers.current->hurries;
    f->next = fibers.all;
    fibers.all = f;
    f->stack = take_stack();
    if (getcontext(&f->here) != 0)
        sim_fail("no switch to another stack");
    f->here.uc_stack.ss_sp = f->stack;
    f->here.uc_stack.ss_size = STACK_BYTES;
    makecontext(&f->here, begin, 0);
    if (ret != NULL)
        *ret = f;
    enter(f);
}

bool fiber_here(void)
{
    return fibers.current != NULL;
}

bool fiber_may_wait(void)
{
    return fibers.current != NULL && !fibers.current->hurries;
}

unsigned fiber_process(void)
{
    return fibers.current != NULL ? fibers.current->process : 0;
}

/* ---- waiting ---------------------------------------------------------------- */

bool fiber_wait(const void *key, uint64_t ms)
{
    struct fiber *f = fibers.current;
    f->woken = false;
    f->key = key;
    f->event = f->hurries || ms == FIBER_FOREVER ? 0 : sim_in(ms, go_on, f);
    leave(); /* who hurries is come back to by fiber_finish() */
    return f->woken;
}

void fiber_wake(const void *key)
{
    for (struct fiber *f = fibers.all; f != NULL; f = f->next)
        if (f->key == key) {
            f->key = NULL;
            f->woken = true;
            sim_cancel(f->event);
            f->event = f->hurries ? 0 : sim_in(0, go_on, f);
        }
}

static struct fiber *next_of(unsigned process, unsigned n)
{
    for (struct fiber *f = fibers.all; f != NULL; f = f->next)
        if (f->process == process && f != fibers.current && n-- == 0)
            return f;
    return NULL;
}

/* Each of a process goes on once; false: it has none. */
static bool hurry(unsigned process)
{
    struct fiber *f;
    for (f = fibers.all; f != NULL; f = f->next)
        f->hurries |= f->process == process;
    for (unsigned n = 0; (f = next_of(process, n)) != NULL; n++) {
        sim_cancel(f->event);
        go_on(f);
    }
    return next_of(process, 0) != NULL;
}

void fiber_join(struct fiber *const *f)
{
    const unsigned process = *f != NULL ? (*f)->process : 0;
    for (unsigned n = 0; *f != NULL; n++) {
        if (n == ROUNDS_MAX)
            sim_fail("what is to end does not");
        if (fiber_here())
            (void)fiber_wait(f, FIBER_FOREVER);
        else
            (void)hurry(process);
    }
}

void fiber_finish(unsigned process)
{
    for (unsigned n = 0; hurry(process); n++)
        if (n == ROUNDS_MAX)
            sim_fail("what is to end does not");
}

void fiber_add_slow(uint64_t ms)
{
    fibers.current->slow_ms += ms;
}

uint64_t fiber_take_slow(void)
{
    const uint64_t ms = fibers.current->slow_ms;
    fibers.current->slow_ms = 0;
    return ms;
}

/* ---- threads ------------------------------------------------------------------ */

int __real_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg);
int __real_pthread_join(pthread_t id, void **ret);
int __wrap_pthread_join(pthread_t id, void **ret);
int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
                                  const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
                                  const struct timespec *until);
int __real_pthread_cond_broadcast(pthread_cond_t *cond);
int __wrap_pthread_cond_broadcast(pthread_cond_t *cond);
int __real_clock_gettime(clockid_t id, struct timespec *ret);
int __wrap_clock_gettime(clockid_t id, struct timespec *ret);

static void run_thread(void *arg)
{
    struct thread *t = arg;
    (void)fiber_wait(t, 0);
    t->result = t->fn(t->arg);
}

int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg)
{
    if (!fiber_here())
        return __real_pthread_create(ret, attr, fn, arg);
    struct thread *t = mem_alloc(sizeof(*t));
    *t = (struct thread){.next = fibers.threads, .fn = fn, .arg = arg};
    fibers.threads = t;
    *ret = (pthread_t)(uintptr_t)t;
    fiber_new(fiber_process(), run_thread, t, &t->fiber);
    return 0;
}

int __wrap_pthread_join(pthread_t id, void **ret)
{
    struct thread **at = &fibers.threads, *t;
    while (*at != NULL && (pthread_t)(uintptr_t)*at != id)
        at = &(*at)->next;
    if ((t = *at) == NULL)
        return __real_pthread_join(id, ret);
    fiber_join(&t->fiber);
    for (at = &fibers.threads; *at != t; at = &(*at)->next)
        ;
    *at = t->next;
    if (ret != NULL)
        *ret = t->result;
    mem_free(t);
    return 0;
}

static bool wait_for(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t ms)
{
    (void)pthread_mutex_unlock(lock);
    const bool woken = fiber_wait(cond, ms);
    if (pthread_mutex_trylock(lock) != 0)
        sim_fail("a fiber waits with a mutex held");
    return woken;
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock)
{
    if (!fiber_here())
        return __real_pthread_cond_wait(cond, lock);
    (void)wait_for(cond, lock, FIBER_FOREVER);
    return 0;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
                                  const struct timespec *until)
{
    struct timespec now;
    if (!fiber_here())
        return __real_pthread_cond_timedwait(cond, lock, until);
    (void)__wrap_clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t ms =
        (until->tv_sec - now.tv_sec) * 1000 + (until->tv_nsec - now.tv_nsec) / 1000000;
    return wait_for(cond, lock, ms > 0 ? (uint64_t)ms : 0) ? 0 : ETIMEDOUT;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
    fiber_wake(cond);
    return __real_pthread_cond_broadcast(cond);
}

int __wrap_clock_gettime(clockid_t id, struct timespec *ret)
{
    if (id != CLOCK_MONOTONIC)
        return __real_clock_gettime(id, ret);
    const uint64_t ns = clock_now_ns();
    ret->tv_sec = (time_t)(ns / CLOCK_NS_PER_S);
    ret->tv_nsec = (long)(ns % CLOCK_NS_PER_S);
    return 0;
}
