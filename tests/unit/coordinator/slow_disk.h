/* A disk whose flushes wait for the test: SQLite calls the fdatasync() of the program. */
#ifndef TESTS_UNIT_COORDINATOR_SLOW_DISK_H
#define TESTS_UNIT_COORDINATOR_SLOW_DISK_H

#include <pthread.h>
#include <stdbool.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stands;
    unsigned waiting;
} slow_disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

int fdatasync(int fd)
{
    pthread_mutex_lock(&slow_disk.lock);
    slow_disk.waiting++;
    pthread_cond_broadcast(&slow_disk.changed);
    while (slow_disk.stands)
        pthread_cond_wait(&slow_disk.changed, &slow_disk.lock);
    slow_disk.waiting--;
    pthread_mutex_unlock(&slow_disk.lock);
    return fd < 0 ? -1 : 0; /* what a test writes need not outlive the machine */
}

/* From now on a flush does not end, or goes on. */
static inline void slow_disk_stand(bool stands)
{
    pthread_mutex_lock(&slow_disk.lock);
    slow_disk.stands = stands;
    pthread_cond_broadcast(&slow_disk.changed);
    pthread_mutex_unlock(&slow_disk.lock);
}

/* Until a flush waits. */
static inline void slow_disk_wait(void)
{
    pthread_mutex_lock(&slow_disk.lock);
    while (slow_disk.waiting == 0)
        pthread_cond_wait(&slow_disk.changed, &slow_disk.lock);
    pthread_mutex_unlock(&slow_disk.lock);
}

#endif
