#include "common/base/crew.h"

#include <pthread.h>

struct crew {
    crew_fn fn;
    void *arg;
    size_t n;
    pthread_mutex_t lock; /* guards the fields below */
    size_t next, failed;  /* failed: the first failed piece; n: none */
    int rc;
    struct err err;
};

struct member {
    struct crew *crew;
    pthread_t id;
    unsigned thread;
};

/* A piece that has not begun; n: there is none, or a piece has failed. */
static size_t claim(struct crew *c)
{
    (void)pthread_mutex_lock(&c->lock); /* a default mutex, never held twice: cannot fail */
    const size_t piece = c->rc < 0 ? c->n : c->next;
    c->next += piece < c->n;
    (void)pthread_mutex_unlock(&c->lock);
    return piece;
}

static void note_failure(struct crew *c, size_t piece, int rc, const struct err *err)
{
    (void)pthread_mutex_lock(&c->lock);
    if (piece < c->failed) {
        c->failed = piece;
        c->rc = rc;
        c->err = *err;
    }
    (void)pthread_mutex_unlock(&c->lock);
}

static void *work(void *arg)
{
    struct member *m = arg;
    struct crew *c = m->crew;
    for (size_t piece; (piece = claim(c)) < c->n;) {
        struct err err = {0};
        const int rc = c->fn(c->arg, piece, m->thread, &err);
        if (rc < 0)
            note_failure(c, piece, rc, &err);
    }
    return NULL;
}

unsigned crew_size(int threads, size_t n)
{
    const size_t most = n < CREW_MAX ? n : CREW_MAX;
    if (threads < 2 || most < 2)
        return 1;
    return (size_t)threads < most ? (unsigned)threads : (unsigned)most;
}

int crew_run(unsigned threads, size_t n, crew_fn fn, void *arg, struct err *err)
{
    struct crew c = {.fn = fn, .arg = arg, .n = n, .failed = n};
    struct member members[CREW_MAX];
    unsigned others = 0;
    (void)pthread_mutex_init(&c.lock, NULL); /* default attributes: cannot fail on Linux */
    for (unsigned i = 1; i < threads && i < CREW_MAX; i++) {
        struct member *m = &members[others];
        *m = (struct member){.crew = &c, .thread = i};
        if (pthread_create(&m->id, NULL, work, m) != 0)
            break; /* the other threads do the work */
        others++;
    }
    (void)work(&(struct member){.crew = &c});
    for (unsigned i = 0; i < others; i++)
        (void)pthread_join(members[i].id, NULL); /* it is ours and joined once */
    (void)pthread_mutex_destroy(&c.lock);
    if (c.rc < 0 && err)
        *err = c.err;
    return c.rc;
}
