/* libnccl.so.2 as kernels/cuda/comm_nccl.c knows it, over host memory: the calls of a
 * nonblocking communicator return at once, a thread per communicator does them in order,
 * together with the other ranks, and an abort ends what waits for a rank that will not come.  It
 * waits for all that is queued on the cards, as freeing their memory does; aborts of one group do
 * that when all their communicators have been told to end. Two ranks connect in the first send and
 * recv between them: until both have made it, the calls of the one that has are on their way.
 *
 * A stream (fake_cards.c) is a count of what is queued on it. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 4, IN_PROGRESS = 7, F32 = 7, F64 = 8, RANKS = 16, QUEUE = 64, SLOW = 3 };
enum { ENDED_MAX = 1024 }; /* communicators that end in one group */

enum { SUM = -1, SEND = -2, RECV = -3 }; /* instead of a root */
enum { SENDER = 1, RECEIVER = 2 };

struct op {
    void *x;
    size_t n;
    int type, root, peer; /* peer: of SEND and RECV */
    atomic_int *stream;
};

struct world {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int ranks, started, here, users;
    unsigned round;
    bool over;
    struct op *ops[RANKS];
    struct op *sent[RANKS][RANKS]; /* from, to: waits to be taken */
    unsigned asked[RANKS][RANKS];  /* from, to: bits of who has asked for the connection */
};

struct ncclComm {
    struct world *world;
    int rank, slow; /* looks until calls have settled */
    pthread_t thread;
    struct op queue[QUEUE];
    unsigned head, tail;
    bool stop, wrong;
};

struct id {
    char bytes[128];
};

static struct world *latest;
static atomic_int under_way; /* calls, of all communicators */
static _Thread_local struct ncclComm *grouped[QUEUE];
static _Thread_local struct op grouped_ops[QUEUE];
static _Thread_local struct ncclComm *ended[ENDED_MAX];
static _Thread_local int depth, n_grouped, n_ended;

int ncclGetVersion(int *ret);
int ncclGetUniqueId(struct id *ret);
int ncclCommInitRankConfig(struct ncclComm **ret, int ranks, struct id id, int rank, void *config);
int ncclCommAbort(struct ncclComm *c);
int ncclCommGetAsyncError(struct ncclComm *c, int *ret);
int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, struct ncclComm *c,
                  void *stream);
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, struct ncclComm *c,
                  void *stream);
int ncclSend(const void *from, size_t n, int type, int to, struct ncclComm *c, void *stream);
int ncclRecv(void *to, size_t n, int type, int from, struct ncclComm *c, void *stream);
int ncclGroupStart(void);
int ncclGroupEnd(void);
const char *ncclGetErrorString(int result);

/* All ranks are here, or the world is over; with the lock. */
static bool meet(struct world *w)
{
    const unsigned round = w->round;
    if (!w->over && ++w->here == w->ranks) {
        w->here = 0;
        w->round++;
        pthread_cond_broadcast(&w->changed);
    }
    while (!w->over && w->round == round)
        pthread_cond_wait(&w->changed, &w->lock);
    return w->round != round;
}

static void sum(struct world *w, size_t i)
{
    const int type = w->ops[0]->type;
    float f = 0;
    double d = 0;
    for (int r = 0; r < w->ranks; r++) {
        if (type == F32)
            f = r ? f + ((float *)w->ops[r]->x)[i] : ((float *)w->ops[r]->x)[i];
        else
            d = r ? d + ((double *)w->ops[r]->x)[i] : ((double *)w->ops[r]->x)[i];
    }
    for (int r = 0; r < w->ranks; r++) {
        if (type == F32)
            ((float *)w->ops[r]->x)[i] = f;
        else
            ((double *)w->ops[r]->x)[i] = d;
    }
}

/* Rank 0 does it for all, between two meetings; with the lock. */
static void together(struct ncclComm *c, struct op *op)
{
    struct world *w = c->world;
    w->ops[c->rank] = op;
    if (!meet(w))
        return;
    for (int r = 0; r < w->ranks; r++)
        c->wrong = c->wrong || w->ops[r]->n != op->n;
    if (c->rank == 0 && !c->wrong && op->root == SUM)
        for (size_t i = 0; i < op->n; i++)
            sum(w, i);
    if (c->rank == 0 && !c->wrong && op->root >= 0)
        for (int r = 0; r < w->ranks; r++)
            memmove(w->ops[r]->x, w->ops[op->root]->x, op->n);
    (void)meet(w);
}

/* Two ranks meet; with the lock. */
static void apart(struct ncclComm *c, struct op *op)
{
    struct world *w = c->world;
    struct op **box = op->root == SEND ? &w->sent[c->rank][op->peer] : &w->sent[op->peer][c->rank];
    if (op->root == SEND) {
        *box = op;
        pthread_cond_broadcast(&w->changed);
        while (!w->over && *box)
            pthread_cond_wait(&w->changed, &w->lock);
        return;
    }
    while (!w->over && !*box)
        pthread_cond_wait(&w->changed, &w->lock);
    if (w->over)
        return;
    c->wrong = c->wrong || (*box)->n != op->n;
    if (!c->wrong)
        memcpy(op->x, (*box)->x, op->n);
    *box = NULL;
    pthread_cond_broadcast(&w->changed);
}

static void *comm_main(void *arg)
{
    struct ncclComm *c = arg;
    struct world *w = c->world;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (c->head == c->tail && !c->stop)
            pthread_cond_wait(&w->changed, &w->lock);
        if (c->head == c->tail)
            break;
        struct op *op = &c->queue[c->head % QUEUE];
        if (!w->over && op->root <= SEND)
            apart(c, op);
        else if (!w->over)
            together(c, op);
        atomic_fetch_sub(op->stream, 1);
        atomic_fetch_sub(&under_way, 1);
        c->head++;
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int ncclGetVersion(int *ret)
{
    const char *version = getenv("SKERRY_EMULATE_NCCL");
    *ret = version ? atoi(version) : 22809;
    return OK;
}

int ncclGetUniqueId(struct id *ret)
{
    struct world *w = calloc(1, sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    memset(ret, 0x5a, sizeof *ret);
    latest = w;
    return OK;
}

int ncclCommInitRankConfig(struct ncclComm **ret, int ranks, struct id id, int rank, void *config)
{
    const struct {
        size_t size;
        unsigned magic, version;
        int blocking;
    } *given = config;
    if (given->magic != 0xcafebeef || given->blocking != 0 || id.bytes[127] != 0x5a)
        return INVALID;
    struct ncclComm *c = calloc(1, sizeof *c);
    c->world = latest;
    c->rank = rank;
    c->slow = SLOW + rank;
    pthread_mutex_lock(&latest->lock);
    latest->ranks = ranks;
    latest->users++;
    latest->started++;
    pthread_mutex_unlock(&latest->lock);
    pthread_create(&c->thread, NULL, comm_main, c);
    *ret = c;
    return IN_PROGRESS;
}

static void reclaim(struct ncclComm *c)
{
    struct world *w = c->world;
    while (atomic_load(&under_way) > 0)
        (void)sched_yield();
    pthread_join(c->thread, NULL);
    free(c);
    pthread_mutex_lock(&w->lock);
    bool last = --w->users == 0;
    pthread_mutex_unlock(&w->lock);
    if (last)
        free(w);
}

int ncclCommAbort(struct ncclComm *c)
{
    struct world *w = c->world;
    pthread_mutex_lock(&w->lock);
    w->over = c->stop = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (depth == 0)
        reclaim(c);
    else if (n_ended == ENDED_MAX)
        abort();
    else
        ended[n_ended++] = c;
    return OK;
}

/* With the lock. */
static bool connects(const struct ncclComm *c)
{
    const struct world *w = c->world;
    bool any = false;
    for (int r = 0; r < w->ranks && !w->over; r++)
        any |= w->asked[c->rank][r] == SENDER || w->asked[r][c->rank] == RECEIVER;
    return any;
}

int ncclCommGetAsyncError(struct ncclComm *c, int *ret)
{
    pthread_mutex_lock(&c->world->lock);
    bool all = c->world->started == c->world->ranks && !connects(c);
    *ret = c->wrong ? INVALID : !all || c->slow-- > 0 ? IN_PROGRESS : OK;
    pthread_mutex_unlock(&c->world->lock);
    return OK;
}

static int queue(struct ncclComm *c, struct op op)
{
    if (depth > 0) {
        grouped[n_grouped] = c;
        grouped_ops[n_grouped++] = op;
        return OK;
    }
    pthread_mutex_lock(&c->world->lock);
    c->queue[c->tail++ % QUEUE] = op;
    c->slow = SLOW;
    if (op.root == SEND)
        c->world->asked[c->rank][op.peer] |= SENDER;
    if (op.root == RECV)
        c->world->asked[op.peer][c->rank] |= RECEIVER;
    atomic_fetch_add(op.stream, 1);
    atomic_fetch_add(&under_way, 1);
    pthread_cond_broadcast(&c->world->changed);
    pthread_mutex_unlock(&c->world->lock);
    return IN_PROGRESS;
}

int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, struct ncclComm *c,
                  void *stream)
{
    if (from != to || op != 0 || (type != F32 && type != F64))
        return INVALID;
    return queue(c, (struct op){to, n, type, SUM, 0, stream});
}

int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, struct ncclComm *c,
                  void *stream)
{
    if (from != to || type != 0)
        return INVALID;
    return queue(c, (struct op){to, n, type, root, 0, stream});
}

int ncclSend(const void *from, size_t n, int type, int to, struct ncclComm *c, void *stream)
{
    return type != 0 ? INVALID
                     : queue(c, (struct op){(void *)(uintptr_t)from, n, type, SEND, to, stream});
}

int ncclRecv(void *to, size_t n, int type, int from, struct ncclComm *c, void *stream)
{
    return type != 0 ? INVALID : queue(c, (struct op){to, n, type, RECV, from, stream});
}

int ncclGroupStart(void)
{
    depth++;
    return OK;
}

int ncclGroupEnd(void)
{
    depth--;
    for (int i = 0; i < n_grouped; i++)
        (void)queue(grouped[i], grouped_ops[i]);
    for (int i = 0; i < n_ended; i++)
        reclaim(ended[i]);
    n_grouped = n_ended = 0;
    return IN_PROGRESS;
}

const char *ncclGetErrorString(int result)
{
    return result == INVALID ? "invalid argument" : "emulated";
}
