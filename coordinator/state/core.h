/* The object that is a coordinator: the state with its store, the servers, and what waits for the
 * next commit.  Everything from the job room up works on it; the HTTP side sees view.h alone. */
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
struct outer_exec;

#define TEXT_SKIP 32 /* tokens that a text is routed by: they do not count in losses */
#define CORE_COMMIT_RETRY_MS 1000
#define CORE_TICK_MS 250       /* between looks at the leases */
#define CORE_GATHER_MS 20      /* heartbeats that have something to be written share a commit */
#define CORE_REPLIES_MAX 65536 /* that wait for a commit */
/* After our restart, or when we did not listen: workers dial again after up to 10 s. */
#define CORE_REDIAL_MS 15000

/* An answer that waits for the commit.  send() answers req. */
struct reply {
    struct list link;
    struct rpc_request *req;
    void (*send)(struct coordinator *co, struct reply *r);
    uint64_t worker_id, task_id;
    uint32_t attempt;
    bool flag;
    char text[512];
};

/* Called after the next commit. */
struct durable {
    struct list link;
    durable_fn fn;
    void *arg;
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
    struct outer_exec *outer;
    struct pool *disk;
    struct keys *keys;
    struct token worker_token, user_token;
    char user_text[TOKEN_STRING_MAX];
    char http_url[TOKEN_URL_MAX], cluster[33];
    uint8_t ticket_key[KEYS_SECRET_BYTES];
    struct loop_timer *tick, *retry, *sweep, *gather;
    struct list replies, durables, polls;
    unsigned n_replies;      /* CORE_REPLIES_MAX at most, about */
    void (*turn)(void *arg); /* what core_touch() asks for: coordinator/turn.c */
    bool turn_scheduled, closing;
    bool touched; /* since jobs last advanced: the next turn is more than a commit */
    bool store_ok;
    bool disk_full; /* an upload failed on it: no work until a tick finds room */
    char store_error[512];
    uint64_t started_ms;
    int64_t started_unix_ms;
    uint64_t checked_ms; /* when the leases were looked at last */
    uint64_t awaited_ms; /* until then who hung up while we did not listen may dial again */
    uint64_t told_ms;    /* when all who are parked were last told what they wait for */
    uint64_t held_ms;    /* since when the leases of silent workers are held; 0: they are not */
    struct subscriber subscribers[EVENT_SUBSCRIBERS_MAX];
    int next_handle;
    struct blob_ref *garbage; /* deleted after the next commit unless still named */
    size_t n_garbage, cap_garbage;
    bool sweeping, scrubbing;
    uint8_t scrub_part;   /* that is read next: job/scrub.h */
    uint8_t damaged[256]; /* blobs that it has found in each part */
    bool velocities_old;  /* some have no sampler any more */
    bool untold;          /* some modules have versions that no commit has */
    struct traffic bytes_here;
};

/* The monotonic clock of the loop, in ms. */
static inline uint64_t core_now(const struct coordinator *co)
{
    return loop_now_ms(co->loop);
}

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

/* Calls fn(arg, rc) after the next commit: see durable_fn. */
void core_when_durable(struct coordinator *co, durable_fn fn, void *arg);

/* Tells subscribers; e is borrowed. */
void core_event(struct coordinator *co, const struct event *e);
/* A LOG event and a line in the log. */
void core_say(struct coordinator *co, uint64_t job_id, uint64_t worker_id, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
