#include "coordinator/outer/seen.h"

#include <pthread.h>
#include <sys/stat.h>

#include "common/base/clock.h"

struct entry {
    uint8_t sha256[32];
    uint64_t device, inode, size;
    int64_t mtime_ns;
    uint64_t at_ms; /* 0: empty */
};

struct seen {
    pthread_mutex_t lock;
    struct entry entries[SEEN_FILES];
    size_t next;
};

struct seen *seen_new(void)
{
    struct seen *s = mem_alloc(sizeof *s);
    (void)pthread_mutex_init(&s->lock, NULL); /* default attributes: cannot fail on Linux */
    return s;
}

void seen_free(struct seen *s)
{
    if (!s)
        return;
    (void)pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

static bool look(const char *path, const uint8_t sha256[32], struct entry *ret)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return false;
    *ret = (struct entry){
        .device = (uint64_t)st.st_dev,
        .inode = (uint64_t)st.st_ino,
        .size = (uint64_t)st.st_size,
        .mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
        .at_ms = clock_now_ms(),
    };
    memcpy(ret->sha256, sha256, 32);
    return true;
}

static bool is_same(const struct entry *a, const struct entry *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->mtime_ns == b->mtime_ns && memcmp(a->sha256, b->sha256, 32) == 0;
}

void seen_note(struct seen *s, const char *path, const uint8_t sha256[32])
{
    struct entry e;
    if (!look(path, sha256, &e))
        return;
    (void)pthread_mutex_lock(&s->lock); /* cannot fail: a default mutex, never held twice */
    s->entries[s->next++ % SEEN_FILES] = e;
    (void)pthread_mutex_unlock(&s->lock);
}

bool seen_lately(struct seen *s, const char *path, const uint8_t sha256[32])
{
    struct entry now;
    bool found = false;
    if (!look(path, sha256, &now))
        return false;
    (void)pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < SEEN_FILES && !found; i++)
        found = s->entries[i].at_ms > 0 && now.at_ms - s->entries[i].at_ms <= SEEN_MS &&
                is_same(&s->entries[i], &now);
    (void)pthread_mutex_unlock(&s->lock);
    return found;
}
