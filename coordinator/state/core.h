/* The object that is a coordinator: the state with its store, the servers, and what waits for
 * commits.  Everything from the job room up works on it; the HTTP side sees view.h alone.
 *
 * A commit is under way on the writer's thread while the loop goes on, so the state is ahead of the
 * disk.  Whoever is to be told something of it waits for the commit that has it:
 *
 *   core_reply(), core_when_durable(), poll_add()   for the next one that is handed over
 *   core_when_shown()                               for the one that has what is shown, if need be
 */
#ifndef COORDINATOR_CORE_H
#define COORDINATOR_CORE_H

#include "common/base/base.h"
#include "common/base/list.h"
#include "common/net/blobstore.h"
#include "common/net/keys.h"
#include "common/net/loop.h"
#include "common/net/rpc.h"
#include "common/net/token.h"
#include "coordinator/state/event.h"
#include "coordinator/state/options.h"
#include "coordinator/state/persist.h"
#include "coordinator/state/state.h"
#include "coordinator/state/store.h"

struct blob_http;
struct coordinator;
struct http_api;
struct http_server;
struct http_sessions;
struct neighbours;
struct outer_exec;
struct ship;

#define TEXT_SKIP 32 /* tokens that a text is routed by: they do not count in losses */
#define CORE_COMMIT_RETRY_MS 1000
#define CORE_SLOW_MS 1000      /* a commit that takes longer is said to be slow */
#define CORE_TICK_MS 250       /* between looks at the leases */
#define CORE_GATHER_MS 20      /* heartbeats that have something to be written share a commit */
#define CORE_REPLIES_MAX 65536 /* that wait for a commit */
/* After our restart, or when we did not listen: workers dial again after up to 10 s. */
#define CORE_REDIAL_MS 15000

/* An answer that waits for a commit.  send() answers req; it is called when the state as it is has
 * been handed over, what it answers leaves when that is durable, and after a failure it is called
 * anew. */
struct reply {
    struct list link;
    struct rpc_request *req; /* NULL in tests */
    void (*send)(struct coordinator *co, struct reply *r);
    uint64_t worker_id, task_id;
    uint32_t attempt;
    bool flag;
    int code;
    char text[512];
};

/* Called after a commit. */
struct durable {
    struct list link;
    durable_fn fn;
    void *arg;
    bool shows; /* called with -EAGAIN when that fails */
};

/* What waits for the same commit. */
struct held {
    struct list replies, durables, polls;
};

/* Called with every event. */
struct subscriber {
    int handle;
    event_fn fn;
    void *arg;
};

struct coordinator {
    struct loop *loop;
    struct coordinator_options opt;
    struct state state;
    struct store *store;
    struct blobstore *blobs;
    struct blob_http *blob_http;
    struct http_server *http;
    struct http_api *api;
    struct http_sessions *sessions;
    struct rpc_server *rpc;
    struct neighbours *neighbours; /* NULL: no worker has shared yet */
    struct outer_exec *outer;
    struct pool *disk;
    struct pool *far;    /* what waits for a store far away */
    struct pool *writer; /* one thread, for commits */
    struct ship *ship;   /* the state goes to the store, too; NULL: it does not */
    struct keys *keys;
    struct token worker_token, user_token;
    char user_text[TOKEN_STRING_MAX];
    char http_url[TOKEN_URL_MAX], cluster[33], cookie[16];
    uint8_t ticket_key[KEYS_SECRET_BYTES];
    struct loop_timer *tick, *retry, *sweep, *gather;
    struct held next, group; /* for the next commit; for the one that is under way */
    unsigned n_replies;      /* CORE_REPLIES_MAX at most, about */
    void (*turn)(void *arg); /* what core_touch() asks for: coordinator/turn.c */
    bool turn_scheduled, closing;
    bool writing;         /* a commit is under way: write_err and the rows are the writer's */
    bool owed;            /* a turn was due meanwhile */
    uint64_t writing_ms;  /* since when */
    struct err write_err; /* why it fails */
    bool touched;         /* since jobs last advanced: the next turn is more than a commit */
    bool store_ok;
    bool disk_full; /* an upload failed on it: no work until a tick finds room */
    char store_error[512];
    uint64_t started_ms;
    int64_t started_unix_ms;
    uint64_t checked_ms; /* when the leases were looked at last */
    uint64_t
        awaited_ms;    /* until then workers that hung up while we did not listen may dial again */
    uint64_t told_ms;  /* when all who are parked were last told what they wait for */
    uint64_t held_ms;  /* since when the leases of silent workers are held; 0: they are not */
    struct list beats; /* heartbeats of newcomers whose answers wait: rpc/service.c */
    uint64_t beat_ms;  /* for how long; 0: they do not */
    struct subscriber subscribers[EVENT_SUBSCRIBERS_MAX];
    int next_handle;
    struct blob_ref *garbage; /* deleted after a commit that does not name them */
    size_t n_garbage, cap_garbage;
    struct blob_ref *doomed; /* of those: the commit that is under way does not */
    size_t n_doomed;
    bool sweeping, scrubbing;
    uint8_t scrub_part;   /* that is read next: job/scrub.h */
    uint8_t damaged[256]; /* blobs that it has found in each part */
    bool velocities_old;  /* some have no sampler any more */
    bool untold;          /* some modules have versions that were not handed over */
    bool told_next;       /* some have versions in the commit that is under way */
    struct traffic bytes_here;
};

/* The monotonic clock of the loop, in ms. */
static inline uint64_t core_now(const struct coordinator *co)
{
    return loop_now_ms(co->loop);
}

/* In ms since 1970, to hold ages on record against.  A step of the clock makes nothing older:
 * forward, the time that has passed since our start counts; back, the clock does. */
int64_t core_unix_ms(const struct coordinator *co);

/* The lists of what waits. */
void core_init(struct coordinator *co);

/* Something changed: before the loop waits again, jobs advance, tasks are
 * given out, rows are committed and replies leave. */
void core_touch(struct coordinator *co);

/* Something is to be written, by which nothing advances: the next commit, soon. */
void core_gather(struct coordinator *co);

/* Queues an answer for after the next commit, which the caller has asked for or the next turn
 * brings; fill the returned struct at once. */
struct reply *core_reply_later(struct coordinator *co, struct rpc_request *req,
                               void (*send)(struct coordinator *co, struct reply *r));
/* The same, and asks for the turn: something has changed. */
struct reply *core_reply(struct coordinator *co, struct rpc_request *req,
                         void (*send)(struct coordinator *co, struct reply *r));

/* 0, or -ENOSPC / -EIO with a sentence while nothing can be made durable. */
int core_writable(struct coordinator *co, struct err *err);

/* Looks at the disk of the data dir, and remembers in disk_full. */
bool core_disk_full(struct coordinator *co);

/* Brings a blob that is far away here, on a thread; a failure shows when it is asked for again. */
void core_bring(struct coordinator *co, const struct blob_id *id);

/* Calls fn(arg, rc) after the next commit: see durable_fn. */
void core_when_durable(struct coordinator *co, durable_fn fn, void *arg);

/* For how long the commit has been under way that is; 0: none is. */
uint64_t core_writing_ms(const struct coordinator *co);
/* Is it so long that we are the ones who are late? */
bool core_stalls(const struct coordinator *co);
/* Is the record as it is durable? */
bool core_row_durable(const struct coordinator *co, const struct row_mark *row);
/* Is it durable that the workers and tasks which are not known any more are not? */
bool core_gone_durable(const struct coordinator *co);
/* Is what the state says of this job (NULL: all) durable?  Or no commit can be made, and that is
 * what is to be shown. */
bool core_is_shown(struct coordinator *co, const struct job *j);
/* false: it is.  Else fn(arg, rc) is called: 0 when it is, -EAGAIN when the commit has failed,
 * -ERR_CANCELLED when the daemon stops first. */
bool core_when_shown(struct coordinator *co, const struct job *j, durable_fn fn, void *arg);

/* Tells subscribers; e is borrowed. */
void core_event(struct coordinator *co, const struct event *e);
/* A LOG event and a line in the log. */
void core_say(struct coordinator *co, uint64_t job_id, uint64_t worker_id, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
