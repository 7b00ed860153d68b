/* Sums over the memory of threads.  All ranks meet, each publishes its pieces, then
 * each sums its share of every piece over the ranks, rank 0 first, and stores the sum at all
 * of them; no rank leaves before the last has finished.
 *
 * What one rank sends to another is copied into a letter, and from there when it is taken. */
#include "kernels/cpu/comm_local.h"

#include <pthread.h>

#include "common/base/base.h"
#include "kernels/kernels.h"

struct view {
    const struct comm_piece *pieces;
    size_t n;
};

struct letter {
    struct letter *next;
    uint64_t bytes, room;
    unsigned char data[];
};

/* Messages from one rank to another. */
struct box {
    struct letter *first, *last;
    struct letter *spare; /* one to use again */
};

struct hall {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int size, users; /* users: comms not yet freed */
    int here;        /* ranks that wait for the rest */
    unsigned round;
    bool failed;
    struct view views[COMM_RANKS_MAX];
    struct box boxes[COMM_RANKS_MAX][COMM_RANKS_MAX]; /* from, to */
};

struct local {
    struct comm comm; /* first */
    struct hall *hall;
};

static struct hall *hall_of(struct comm *c)
{
    return ((struct local *)(void *)c)->hall;
}

/* Waits until all ranks are here. */
static int meet(struct hall *h)
{
    pthread_mutex_lock(&h->lock);
    const unsigned round = h->round;
    if (!h->failed && ++h->here == h->size) {
        h->here = 0;
        h->round++;
        pthread_cond_broadcast(&h->changed);
    }
    while (!h->failed && h->round == round)
        pthread_cond_wait(&h->changed, &h->lock);
    /* A rank that was already let go when another failed still goes. */
    int rc = h->round == round ? -ECONNABORTED : 0;
    pthread_mutex_unlock(&h->lock);
    return rc;
}

/* Waits until all ranks have finished: none leaves while another may still read its pieces, not
 * even after a failure. */
static void part(struct hall *h)
{
    pthread_mutex_lock(&h->lock);
    const unsigned round = h->round;
    if (++h->here == h->size) {
        h->here = 0;
        h->round++;
        pthread_cond_broadcast(&h->changed);
    }
    while (h->round == round)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
}

static void fail(struct comm *c)
{
    struct hall *h = hall_of(c);
    pthread_mutex_lock(&h->lock);
    h->failed = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

static int failed(struct comm *c)
{
    struct hall *h = hall_of(c);
    pthread_mutex_lock(&h->lock);
    bool yes = h->failed;
    pthread_mutex_unlock(&h->lock);
    return yes ? -ECONNABORTED : 0;
}

/* Elements whose sums stay in the first cache.  Compilers make vectors of a loop whose number of
 * turns they know. */
enum { BLOCK = 1024 };

static inline void add_f32(float *restrict sum, const float *restrict x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        sum[i] += x[i];
}

static void sum_f32(const struct hall *h, size_t piece, uint64_t from, uint64_t to)
{
    float sum[BLOCK];
    for (; from < to; from += BLOCK) {
        const uint64_t n = to - from < BLOCK ? to - from : BLOCK;
        memcpy(sum, (const float *)h->views[0].pieces[piece].x + from, n * sizeof *sum);
        for (int r = 1; r < h->size; r++) {
            const float *x = (const float *)h->views[r].pieces[piece].x + from;
            if (n == BLOCK)
                add_f32(sum, x, BLOCK);
            else
                add_f32(sum, x, n);
        }
        for (int r = 0; r < h->size; r++)
            memcpy((float *)h->views[r].pieces[piece].x + from, sum, n * sizeof *sum);
    }
}

static void sum_f64(const struct hall *h, size_t piece, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++) {
        double sum = ((const double *)h->views[0].pieces[piece].x)[i];
        for (int r = 1; r < h->size; r++)
            sum += ((const double *)h->views[r].pieces[piece].x)[i];
        for (int r = 0; r < h->size; r++)
            ((double *)h->views[r].pieces[piece].x)[i] = sum;
    }
}

/* The begin of rank r's share of n elements; shares begin on cache lines. */
static uint64_t share(uint64_t n, int r, int size)
{
    return r == size ? n : n / 16 * (uint64_t)r / (uint64_t)size * 16;
}

static bool same_sizes(const struct hall *h)
{
    for (int r = 1; r < h->size; r++) {
        if (h->views[r].n != h->views[0].n)
            return false;
        for (size_t i = 0; i < h->views[0].n; i++)
            if (h->views[r].pieces[i].n != h->views[0].pieces[i].n)
                return false;
    }
    return true;
}

static int all_reduce(struct comm *c, const struct comm_piece *pieces, size_t n,
                      enum comm_type type, struct stream *s)
{
    struct hall *h = hall_of(c);
    h->views[c->rank] = (struct view){pieces, n};
    int rc = meet(h);
    if (rc < 0)
        return rc;
    bool same = same_sizes(h); /* all ranks see the same */
    for (size_t i = 0; same && i < n; i++) {
        const uint64_t from = share(pieces[i].n, c->rank, c->size);
        const uint64_t to = share(pieces[i].n, c->rank + 1, c->size);
        if (type == COMM_F32)
            sum_f32(h, i, from, to);
        else
            sum_f64(h, i, from, to);
    }
    part(h);
    return same ? 0 : -EINVAL;
}

static int broadcast(struct comm *c, void *x, uint64_t bytes, int root, struct stream *s)
{
    struct hall *h = hall_of(c);
    const struct comm_piece piece = {x, bytes};
    if (root < 0 || root >= c->size)
        return -EINVAL;
    h->views[c->rank] = (struct view){&piece, 1};
    int rc = meet(h);
    if (rc < 0)
        return rc;
    bool same = same_sizes(h);
    if (same && c->rank != root && bytes)
        memcpy(x, h->views[root].pieces[0].x, bytes);
    part(h);
    return same ? 0 : -EINVAL;
}

/* A letter with room for it, used before or new; NULL: no memory. */
static struct letter *letter_for(struct hall *h, struct box *b, uint64_t bytes)
{
    pthread_mutex_lock(&h->lock);
    struct letter *l = b->spare;
    if (l && l->room >= bytes)
        b->spare = NULL;
    else
        l = NULL;
    pthread_mutex_unlock(&h->lock);
    if (!l) {
        l = malloc(sizeof *l + bytes);
        if (l)
            l->room = bytes;
    }
    return l;
}

static uint64_t bytes_of(const struct comm_piece *pieces, size_t n)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += pieces[i].n;
    return bytes;
}

static int send(struct comm *c, const struct comm_piece *pieces, size_t n, int to, struct stream *s)
{
    struct hall *h = hall_of(c);
    if (to < 0 || to >= c->size)
        return -EINVAL;
    struct box *b = &h->boxes[c->rank][to];
    struct letter *l = letter_for(h, b, bytes_of(pieces, n));
    if (!l)
        return -ENOMEM;
    l->next = NULL;
    l->bytes = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(l->data + l->bytes, pieces[i].x, pieces[i].n);
        l->bytes += pieces[i].n;
    }
    pthread_mutex_lock(&h->lock);
    if (b->first)
        b->last->next = l;
    else
        b->first = l;
    b->last = l;
    pthread_cond_broadcast(&h->changed);
    int rc = h->failed ? -ECONNABORTED : 0;
    pthread_mutex_unlock(&h->lock);
    return rc;
}

static int recv(struct comm *c, const struct comm_piece *pieces, size_t n, int from,
                struct stream *s)
{
    struct hall *h = hall_of(c);
    if (from < 0 || from >= c->size)
        return -EINVAL;
    struct box *b = &h->boxes[from][c->rank];
    pthread_mutex_lock(&h->lock);
    while (!h->failed && !b->first)
        pthread_cond_wait(&h->changed, &h->lock);
    struct letter *l = h->failed ? NULL : b->first;
    if (l)
        b->first = l->next;
    pthread_mutex_unlock(&h->lock);
    if (!l)
        return -ECONNABORTED;
    const bool same = l->bytes == bytes_of(pieces, n);
    for (uint64_t i = 0, at = 0; same && i < n; i++) {
        memcpy(pieces[i].x, l->data + at, pieces[i].n);
        at += pieces[i].n;
    }
    pthread_mutex_lock(&h->lock);
    struct letter *old = b->spare;
    b->spare = l;
    pthread_mutex_unlock(&h->lock);
    free(old);
    return same ? 0 : -EINVAL;
}

static int wait(struct comm *c, struct stream *s, struct err *err)
{
    int rc = failed(c);
    if (rc < 0)
        return err_set(err, rc, "another device of the island failed");
    return c->dev->ops->sync(c->dev, s, err);
}

static void release(struct comm *c)
{
    struct hall *h = hall_of(c);
    free(c);
    pthread_mutex_lock(&h->lock);
    bool last = --h->users == 0;
    pthread_mutex_unlock(&h->lock);
    if (!last)
        return;
    for (int i = 0; i < COMM_RANKS_MAX * COMM_RANKS_MAX; i++) {
        struct box *b = &h->boxes[i / COMM_RANKS_MAX][i % COMM_RANKS_MAX];
        for (struct letter *l = b->first, *next; l; l = next) {
            next = l->next;
            free(l);
        }
        free(b->spare);
    }
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

static const struct comm_ops local_ops = {
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .send = send,
    .recv = recv,
    .wait = wait,
    .abort = fail,
    .failed = failed,
    .free = release,
};

int comm_local_open(struct device *const *devs, int n, struct comm **ret_comms, struct err *err)
{
    struct hall *h = calloc(1, sizeof *h);
    struct local *made[COMM_RANKS_MAX] = {0};
    bool ok = h != NULL;
    for (int i = 0; i < n && ok; i++)
        ok = (made[i] = calloc(1, sizeof *made[i])) != NULL;
    if (!ok) {
        for (int i = 0; i < n; i++)
            free(made[i]);
        free(h);
        return err_set(err, -ENOMEM, "no memory for %d ranks", n);
    }
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    h->size = h->users = n;
    for (int i = 0; i < n; i++) {
        *made[i] = (struct local){{&local_ops, devs[i], i, n}, h};
        ret_comms[i] = &made[i]->comm;
    }
    return 0;
}
