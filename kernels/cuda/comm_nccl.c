/* Ranks that are threads of this process, each with a card, over NCCL.
 *
 * NCCL's communicators are made nonblocking: no call of theirs waits for another rank, so a
 * rank that waits for one can always be woken.  It waits by asking, here: whether its own
 * calls are on their way, whether the stream has come to its end, whether NCCL found an
 * error.  A rank that fails aborts the communicators of all ranks, under the lock of each: kernels
 * that wait for a rank that will not come then end, and so does whatever waits for them.
 *
 * An abort may wait for its whole card, and so for kernels of other communicators there, which spin
 * until their own abort.  So one failure aborts all communicators of this process, in one group of
 * NCCL's, which asks all of them to end before it waits for any.  Groups do that from 2.22 on.
 *
 * Declared here are the few entries that are used, and not nccl.h: a toolkit has no NCCL, and
 * programs built with it should know how to use one. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "common/base/base.h"
#include "common/base/clock.h"
#include "kernels/cuda/comm_nccl.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/lib/lib.h"

enum { NCCL_OK = 0, NCCL_IN_PROGRESS = 7, NCCL_SUM = 0, NCCL_INT8 = 0, NCCL_F32 = 7, NCCL_F64 = 8 };
/* The config is laid out as version 2.18 has it, and says so. */
enum { NCCL_VERSION_NEEDED = 22200, NCCL_CONFIG_VERSION = 21800, NCCL_UNSET = INT_MIN };
#define NCCL_MAGIC 0xcafebeefu

#define START_NS (120 * CLOCK_NS_PER_S) /* how long the ranks may take to find each other */
#define NAP_NS 20000
#define SPINS 64 /* looks before the first nap */

struct ncclComm;
struct nccl_id {
    char bytes[128];
};
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga, min_ctas, max_ctas;
    const char *net;
    int split_share;
};

struct nccl_api {
    int (*version)(int *ret);
    int (*unique_id)(struct nccl_id *ret);
    int (*init)(struct ncclComm **ret, int ranks, struct nccl_id id, int rank,
                struct nccl_config *config);
    int (*abort)(struct ncclComm *c);
    int (*state)(struct ncclComm *c, int *ret);
    int (*all_reduce)(const void *from, void *to, size_t n, int type, int op, struct ncclComm *c,
                      cudaStream_t s);
    int (*broadcast)(const void *from, void *to, size_t n, int type, int root, struct ncclComm *c,
                     cudaStream_t s);
    int (*send)(const void *from, size_t n, int type, int to, struct ncclComm *c, cudaStream_t s);
    int (*recv)(void *to, size_t n, int type, int from, struct ncclComm *c, cudaStream_t s);
    int (*group_start)(void);
    int (*group_end)(void);
    const char *(*text)(int result);
};

static const char *const api_names[] = {"libnccl.so.2", NULL};
static const char *const api_symbols[] = {
    "ncclGetVersion",
    "ncclGetUniqueId",
    "ncclCommInitRankConfig",
    "ncclCommAbort",
    "ncclCommGetAsyncError",
    "ncclAllReduce",
    "ncclBroadcast",
    "ncclSend",
    "ncclRecv",
    "ncclGroupStart",
    "ncclGroupEnd",
    "ncclGetErrorString",
    NULL,
};

enum { API_SYMBOLS = sizeof api_symbols / sizeof *api_symbols - 1 };

struct nccl_rank {
    struct comm comm; /* first */
    struct nccl_set *set;
    pthread_mutex_t lock;    /* for handle and calls with it */
    struct ncclComm *handle; /* NULL: aborted */
};

struct nccl_set {
    struct nccl_api api;
    struct nccl_rank ranks[COMM_RANKS_MAX];
    int size, users; /* users: comms not yet freed */
    atomic_bool failed;
    struct nccl_set *next;
};

/* Those of this process. */
static struct nccl_set *sets;
static pthread_mutex_t sets_lock = PTHREAD_MUTEX_INITIALIZER; /* taken before that of a rank */

static struct nccl_rank *rank_of(struct comm *c)
{
    return (struct nccl_rank *)(void *)c;
}

static void nap(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL); /* shorter is fine */
}

static void abort_ranks(struct nccl_set *set)
{
    for (int i = 0; i < set->size; i++) {
        struct nccl_rank *r = &set->ranks[i];
        pthread_mutex_lock(&r->lock);
        if (r->handle)
            (void)set->api.abort(r->handle);
        r->handle = NULL;
        pthread_mutex_unlock(&r->lock);
    }
}

static void abort_all(const struct nccl_api *api)
{
    pthread_mutex_lock(&sets_lock);
    for (struct nccl_set *set = sets; set; set = set->next)
        atomic_store(&set->failed, true);
    (void)api->group_start();
    for (struct nccl_set *set = sets; set; set = set->next)
        abort_ranks(set);
    (void)api->group_end(); /* frees them */
    pthread_mutex_unlock(&sets_lock);
}

/* -EBUSY while calls of this rank are on their way; an error has ended the set. */
static int look(struct nccl_rank *r, struct err *err)
{
    int state = NCCL_OK, rc = NCCL_OK;
    pthread_mutex_lock(&r->lock);
    /* Set before the first abort, as others' work may end with it. */
    bool aborted = !r->handle || atomic_load(&r->set->failed);
    if (!aborted)
        rc = r->set->api.state(r->handle, &state);
    pthread_mutex_unlock(&r->lock);
    if (aborted)
        return err_set(err, -ECONNABORTED, "another device of the island failed");
    if (rc == NCCL_OK && state == NCCL_IN_PROGRESS)
        return -EBUSY;
    if (rc == NCCL_OK && state == NCCL_OK)
        return 0;
    abort_all(&r->set->api);
    return err_set(err, -ERR_DEVICE, "NCCL failed on %s: %s", r->comm.dev->name,
                   r->set->api.text(rc == NCCL_OK ? state : rc));
}

/* Waits until the calls of this rank are queued on their streams. */
static int settle(struct nccl_rank *r, struct err *err)
{
    int rc;
    for (int i = 0; (rc = look(r, err)) == -EBUSY; i++)
        if (i >= SPINS)
            nap();
    return rc;
}

static cudaStream_t stream_of(struct comm *c, struct stream *s)
{
    cudaSetDevice(cuda_state(c->dev)->index);
    return s ? s->handle : cuda_state(c->dev)->main.handle;
}

/* Takes the result of a group of calls: started, or an error, which aborts the other ranks, too. */
static int started(struct nccl_rank *r, bool aborted, int result)
{
    if (aborted)
        return -ECONNABORTED;
    if (result != NCCL_OK && result != NCCL_IN_PROGRESS) {
        abort_all(&r->set->api);
        return -ERR_DEVICE;
    }
    return settle(r, NULL);
}

/* One call for each piece, queued together. */
typedef int one_call(const struct nccl_rank *r, const struct comm_piece *p, int arg,
                     cudaStream_t s);

static int grouped(struct comm *c, const struct comm_piece *pieces, size_t n, one_call *call,
                   int arg, struct stream *s)
{
    struct nccl_rank *r = rank_of(c);
    const struct nccl_api *api = &r->set->api;
    cudaStream_t handle = stream_of(c, s);
    int rc = NCCL_OK;
    pthread_mutex_lock(&r->lock);
    bool aborted = !r->handle;
    if (!aborted) {
        rc = api->group_start();
        for (size_t i = 0; i < n && (rc == NCCL_OK || rc == NCCL_IN_PROGRESS); i++)
            rc = call(r, &pieces[i], arg, handle);
        int end = api->group_end();
        rc = rc == NCCL_OK || rc == NCCL_IN_PROGRESS ? end : rc;
    }
    pthread_mutex_unlock(&r->lock);
    return started(r, aborted, rc);
}

static int reduce_one(const struct nccl_rank *r, const struct comm_piece *p, int type,
                      cudaStream_t s)
{
    return r->set->api.all_reduce(p->x, p->x, p->n, type, NCCL_SUM, r->handle, s);
}

static int all_reduce(struct comm *c, const struct comm_piece *pieces, size_t n,
                      enum comm_type type, struct stream *s)
{
    return grouped(c, pieces, n, reduce_one, type == COMM_F32 ? NCCL_F32 : NCCL_F64, s);
}

static int send_one(const struct nccl_rank *r, const struct comm_piece *p, int to, cudaStream_t s)
{
    return r->set->api.send(p->x, p->n, NCCL_INT8, to, r->handle, s);
}

static int send(struct comm *c, const struct comm_piece *pieces, size_t n, int to, struct stream *s)
{
    return to < 0 || to >= c->size ? -EINVAL : grouped(c, pieces, n, send_one, to, s);
}

static int recv_one(const struct nccl_rank *r, const struct comm_piece *p, int from, cudaStream_t s)
{
    return r->set->api.recv(p->x, p->n, NCCL_INT8, from, r->handle, s);
}

static int recv(struct comm *c, const struct comm_piece *pieces, size_t n, int from,
                struct stream *s)
{
    return from < 0 || from >= c->size ? -EINVAL : grouped(c, pieces, n, recv_one, from, s);
}

static int broadcast(struct comm *c, void *x, uint64_t bytes, int root, struct stream *s)
{
    struct nccl_rank *r = rank_of(c);
    cudaStream_t handle = stream_of(c, s);
    int rc = NCCL_OK;
    if (root < 0 || root >= c->size)
        return -EINVAL;
    pthread_mutex_lock(&r->lock);
    bool aborted = !r->handle;
    if (!aborted)
        rc = r->set->api.broadcast(x, x, bytes, NCCL_INT8, root, r->handle, handle);
    pthread_mutex_unlock(&r->lock);
    return started(r, aborted, rc);
}

/* Waits for the stream, which ends by itself, or because a failure aborted its operations. */
static int wait(struct comm *c, struct stream *s, struct err *err)
{
    struct nccl_rank *r = rank_of(c);
    cudaStream_t handle = stream_of(c, s);
    int rc = 0;
    for (int i = 0; rc == 0 || rc == -EBUSY; i++) {
        cudaError_t e = cudaStreamQuery(handle);
        if (e != cudaErrorNotReady)
            break;
        (void)cudaGetLastError(); /* or the next launch might take it for its own */
        rc = look(r, err);
        if (i >= SPINS)
            nap();
    }
    if (rc == 0 || rc == -EBUSY)
        rc = settle(r, err);
    int sync = c->dev->ops->sync(c->dev, s, rc < 0 ? NULL : err);
    return rc < 0 ? rc : sync;
}

static void fail(struct comm *c)
{
    abort_all(&rank_of(c)->set->api);
}

static int failed(struct comm *c)
{
    return atomic_load(&rank_of(c)->set->failed) ? -ECONNABORTED : 0;
}

static void set_join(struct nccl_set *set)
{
    pthread_mutex_lock(&sets_lock);
    set->next = sets;
    sets = set;
    pthread_mutex_unlock(&sets_lock);
}

/* Its work is over, or has never begun. */
static void set_free(struct nccl_set *set)
{
    pthread_mutex_lock(&sets_lock);
    for (struct nccl_set **at = &sets; *at; at = &(*at)->next) {
        if (*at == set) {
            *at = set->next;
            break;
        }
    }
    pthread_mutex_unlock(&sets_lock);
    abort_ranks(set);
    for (int i = 0; i < set->size; i++)
        pthread_mutex_destroy(&set->ranks[i].lock);
    free(set);
}

static void release(struct comm *c)
{
    struct nccl_set *set = rank_of(c)->set;
    if (--set->users == 0)
        set_free(set);
}

static const struct comm_ops nccl_ops = {
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .send = send,
    .recv = recv,
    .wait = wait,
    .abort = fail,
    .failed = failed,
    .free = release,
};

static int api_open(struct nccl_api *api, struct err *err)
{
    static const struct lib lib = {"NCCL 2.22 or newer", api_names, api_symbols};
    void *found[API_SYMBOLS];
    _Static_assert(sizeof found == sizeof *api, "one name for each entry");
    int version = 0;
    int rc = lib_open(&lib, found, err);
    if (rc < 0)
        return rc;
    memcpy(api, found, sizeof found);
    int result = api->version(&version);
    if (result != NCCL_OK || version < NCCL_VERSION_NEEDED)
        return err_set(err, -ERR_DEVICE, "NCCL 2.22 or newer is needed and version code %d found",
                       version);
    return 0;
}

/* Starts all ranks; they find each other in the background. */
static int start(struct nccl_set *set)
{
    struct nccl_id id;
    int rc = set->api.unique_id(&id);
    if (rc != NCCL_OK)
        return rc;
    rc = set->api.group_start();
    for (int i = 0; i < set->size && (rc == NCCL_OK || rc == NCCL_IN_PROGRESS); i++) {
        struct nccl_rank *r = &set->ranks[i];
        struct nccl_config config = {
            .size = sizeof config,
            .magic = NCCL_MAGIC,
            .version = NCCL_CONFIG_VERSION,
            .blocking = 0,
            .cga = NCCL_UNSET,
            .min_ctas = NCCL_UNSET,
            .max_ctas = NCCL_UNSET,
            .split_share = NCCL_UNSET,
        };
        cudaSetDevice(cuda_state(r->comm.dev)->index);
        rc = set->api.init(&r->handle, set->size, id, i, &config);
    }
    int end = set->api.group_end();
    return rc == NCCL_OK || rc == NCCL_IN_PROGRESS ? end : rc;
}

static int find_each_other(struct nccl_set *set, struct err *err)
{
    const uint64_t until = clock_now_ns() + START_NS;
    for (int i = 0; i < set->size;) {
        int rc = look(&set->ranks[i], err);
        if (rc == 0)
            i++;
        else if (rc != -EBUSY)
            return rc;
        else if (clock_now_ns() > until)
            return err_set(err, -ERR_DEVICE, "NCCL does not connect the %d cards of the island",
                           set->size);
        else
            nap();
    }
    return 0;
}

int comm_nccl_open(struct device *const *devs, int n, struct comm **ret_comms, struct err *err)
{
    struct nccl_set *set = calloc(1, sizeof *set);
    if (!set)
        return err_set(err, -ENOMEM, "no memory for %d ranks", n);
    set->size = set->users = n;
    for (int i = 0; i < n; i++) {
        set->ranks[i] = (struct nccl_rank){.comm = {&nccl_ops, devs[i], i, n}, .set = set};
        pthread_mutex_init(&set->ranks[i].lock, NULL);
    }
    int rc = api_open(&set->api, err);
    if (rc == 0) {
        int result = start(set);
        if (result != NCCL_OK && result != NCCL_IN_PROGRESS)
            rc = err_set(err, -ERR_DEVICE, "NCCL does not start on %d cards: %s", n,
                         set->api.text(result));
    }
    if (rc == 0) {
        set_join(set);
        rc = find_each_other(set, err);
    }
    if (rc < 0) {
        set_free(set);
        return rc;
    }
    for (int i = 0; i < n; i++)
        ret_comms[i] = &set->ranks[i].comm;
    return 0;
}
