/* Preloaded into a daemon: a disk that takes its time, a wall clock that somebody has set, and a
 * stop-watch at its loop.  The file that SKERRY_SHIM names holds two numbers, which may change at
 * any time, how often each was felt, and room for how many turns of the loop took how many
 * milliseconds. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 10000000
#define TURNS 4096

struct control {
    volatile int64_t flush_ms; /* that each flush takes */
    volatile int64_t clock_s;  /* that the wall clock is ahead */
    int64_t flushes;           /* that took so long */
    int64_t looks;             /* at such a clock */
    int64_t turns[TURNS];      /* the last: all that were longer */
};

static struct control *control(void)
{
    static struct control none, *is;
    if (is == NULL) {
        const char *path = getenv("SKERRY_SHIM");
        int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
        void *map = fd < 0 ? MAP_FAILED
                           : mmap(NULL, sizeof(none), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (fd >= 0)
            (void)close(fd);
        is = map == MAP_FAILED ? &none : map;
    }
    return is;
}

static int real_gettime(clockid_t id, struct timespec *t)
{
    static int (*next)(clockid_t, struct timespec *);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "clock_gettime");
    return next(id, t);
}

static int64_t now_ms(void)
{
    struct timespec t;
    (void)real_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void flush_slowly(void)
{
    const int64_t begun = now_ms();
    if (control()->flush_ms > 0)
        (void)__atomic_add_fetch(&control()->flushes, 1, __ATOMIC_RELAXED);
    while (now_ms() - begun < control()->flush_ms)
        (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
}

/* A turn is from one wait's end to the next one's beginning; the loop is the first thread's. */
int epoll_pwait(int fd, struct epoll_event *events, int n, int timeout, const sigset_t *signals)
{
    static int (*next)(int, struct epoll_event *, int, int, const sigset_t *);
    static int64_t woke_ms;
    const int loop = syscall(SYS_gettid) == getpid();
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "epoll_pwait");
    if (loop && woke_ms != 0) {
        const int64_t took = now_ms() - woke_ms;
        control()->turns[took < TURNS ? took : TURNS - 1]++;
    }
    int rc = next(fd, events, n, timeout, signals);
    if (loop)
        woke_ms = now_ms();
    return rc;
}

int epoll_wait(int fd, struct epoll_event *events, int n, int timeout)
{
    return epoll_pwait(fd, events, n, timeout, NULL);
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = real_gettime(id, t);
    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        t->tv_sec += control()->clock_s;
        if (control()->clock_s != 0)
            (void)__atomic_add_fetch(&control()->looks, 1, __ATOMIC_RELAXED);
    }
    return rc;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;
    int rc = clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return rc;
}

time_t time(time_t *ret)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (ret != NULL)
        *ret = now.tv_sec;
    return now.tv_sec;
}

int fsync(int fd)
{
    flush_slowly();
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    flush_slowly();
    return (int)syscall(SYS_fdatasync, fd);
}

int syncfs(int fd)
{
    flush_slowly();
    return (int)syscall(SYS_syncfs, fd);
}
