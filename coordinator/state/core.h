/* The coordinator object: the state with its store, the servers, and the answers that wait for
 * commits.  All rooms from job up work on it; the HTTP room sees only view.h.
 *
 * The writer's thread commits while the loop runs on, so the state is ahead of the disk.  An answer
 * about the state waits for the commit that contains it:
 *
 *   core_reply(), core_when_durable(), poll_add()   for the next one that is handed over
 *   core_when_shown()                               for the one that contains what is shown, if any
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

#define TEXT_SKIP 32 /* tokens by which a text is routed: they do not count in losses */
#define CORE_COMMIT_RETRY_MS 1000
#define CORE_SLOW_MS 1000         /* a commit that takes longer is reported as slow */
#define CORE_TICK_MS 250          /* between checks of the leases */
#define CORE_GATHER_MS 20         /* changes by heartbeats within this time share a commit */
#define CORE_POINTS_MS 3000       /* and points of curves, if it is shipped */
#define CORE_SPENT_MS 1000        /* what requests cost joins a commit, at most so often */
#define CORE_SPENT_IDLE_MS 600000 /* and makes one if there is none */
#define CORE_REPLIES_MAX 65536    /* replies that wait for a commit */
#define CORE_NOTE_MS 60000        /* between two notes of the newest commit (place.h) */
#define TWINS_MAX 64
/* Grace after our restart, or after we did not listen: workers redial within 10 s. */
#define CORE_REDIAL_MS 15000

/* An answer that waits for a commit.  send() answers req; it is called when the present state has
 * been handed over.  The answer leaves when that is durable; after a failed commit send() is called
 * again. */
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
    bool shows; /* called with -EAGAIN when the commit fails */
};

/* All that waits for the same commit. */
struct held {
    struct list replies, durables, polls;
};

/* Called with every event. */
struct subscriber {
    int handle;
    event_fn fn;
    void *arg;
};

/* A process that was refused as a copy of a worker that is here: work/twins.h. */
struct twin {
    uint64_t worker_id, tried_ms;
    uint8_t instance[16];
    uint32_t tries; /* 0: the place is free */
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
    struct pool *far;    /* jobs that wait for an object store */
    struct pool *writer; /* one thread, for commits */
    struct ship *ship;   /* ships the state to the store; NULL: it is not shipped */
    struct ship *watch;  /* of a state that another may go on with; NULL: there is none */
    struct keys *keys;
    struct token worker_token, user_token;
    char user_text[TOKEN_STRING_MAX];
    char http_url[TOKEN_URL_MAX], cluster[33], cookie[16];
    uint8_t ticket_key[KEYS_SECRET_BYTES];
    struct loop_timer *tick, *retry, *sweep, *gather;
    struct held next, group; /* for the next commit; for the one under way */
    unsigned n_replies;      /* about CORE_REPLIES_MAX at most */
    void (*turn)(void *arg); /* the turn that core_touch() schedules: coordinator/turn.c */
    bool turn_scheduled, closing;
    bool writing;              /* a commit is under way: write_err and the rows are the writer's */
    bool owed;                 /* a turn was due meanwhile */
    uint64_t writing_ms;       /* when it began */
    struct err write_err;      /* why it failed */
    bool touched;              /* jobs must advance: the next turn is more than a commit */
    uint64_t requests_charged; /* requests to the store since the start: work/cost.h */
    uint64_t spent_ms;         /* when their cost was last saved */
    uint64_t points_ms;        /* since when points of curves wait for a commit; 0: none do */
    uint64_t commits_handed;   /* state.commits of the one under way */
    uint64_t noted_ms;         /* when the newest commit was noted (place.h); 0: not yet */
    bool store_ok;
    bool disk_full;        /* an upload failed for lack of space: no work until a tick finds room */
    char store_error[512]; /* why no commit succeeds */
    int store_code;        /* and the code of that */
    uint64_t started_ms;
    int64_t started_unix_ms;
    int64_t wall_lead_ms; /* of the wall clock over core_now(), at the start or its last step */
    uint64_t checked_ms;  /* when the leases were last checked */
    uint64_t awaited_ms;  /* until then, workers that hung up while we did not listen may redial */
    uint64_t told_ms;     /* when all parked workers were last told what they wait for */
    uint64_t held_ms;     /* since when the leases of silent workers are held; 0: they are not */
    struct list earlies;  /* of job/early.c */
    struct list beats;    /* heartbeats of new workers whose answers are delayed: rpc/service.c */
    uint64_t beat_ms;     /* by how long; 0: they are not */
    struct subscriber subscribers[EVENT_SUBSCRIBERS_MAX];
    int next_handle;
    struct blob_ref *garbage; /* deleted after a commit that does not name them */
    size_t n_garbage, cap_garbage;
    struct blob_ref *doomed; /* of the garbage: not named by the commit under way */
    size_t n_doomed;
    struct twin twins[TWINS_MAX];
    bool sweeping, scrubbing;
    uint8_t scrub_part;   /* the part to read next: work/scrub.h */
    uint8_t damaged[256]; /* damaged blobs found in each part */
    bool velocities_old;  /* some VELOCITY tasks no longer have a sampler */
    bool untold;          /* some modules have versions that were not handed over */
    bool told_next;       /* some modules have versions in the commit under way */
    struct traffic bytes_here;
};

/* The monotonic clock of the loop, in ms. */
static inline uint64_t core_now(const struct coordinator *co)
{
    return loop_now_ms(co->loop);
}

/* ms since 1970, to compute ages from recorded times.  A step of the wall clock makes nothing
 * older: after a step forward the time since our start counts, after a step back the clock. */
int64_t core_unix_ms(const struct coordinator *co);

/* Initialises the lists. */
void core_init(struct coordinator *co);

/* The state has changed: schedules a turn, in which jobs advance, tasks are assigned, rows are
 * committed and replies leave. */
void core_touch(struct coordinator *co);

/* A change by which nothing advances must be written: schedules a commit within CORE_GATHER_MS. */
void core_gather(struct coordinator *co);
/* The same for points of curves; where each commit is a paid write to the store, they wait up to
 * CORE_POINTS_MS for another one. */
void core_points(struct coordinator *co);

/* Queues an answer for after the next commit, but does not schedule one; fill the returned struct
 * at once. */
struct reply *core_reply_later(struct coordinator *co, struct rpc_request *req,
                               void (*send)(struct coordinator *co, struct reply *r));
/* The same, and calls core_touch(). */
struct reply *core_reply(struct coordinator *co, struct rpc_request *req,
                         void (*send)(struct coordinator *co, struct reply *r));

/* 0, or a sentence: -ENOSPC while no commit succeeds for lack of space, -EIO while none does for
 * another reason, -EAGAIN while too much waits for one. */
int core_writable(struct coordinator *co, struct err *err);

/* What the disk of the data directory has room for: a cache of a store makes some. */
int core_disk_room(const struct coordinator *co, uint64_t *ret_bytes, struct err *err);
/* Checks the disk of the data directory, and stores the result in disk_full. */
bool core_disk_full(struct coordinator *co);

/* Fetches a blob from the object store on another thread; a failure shows when the blob is asked
 * for again. */
void core_bring(struct coordinator *co, const struct blob_id *id);

/* Calls fn(arg, rc) after the next commit: see durable_fn. */
void core_when_durable(struct coordinator *co, durable_fn fn, void *arg);

/* How long the present commit has been under way; 0: none is. */
uint64_t core_writing_ms(const struct coordinator *co);
/* Whether that is so long that delays are our fault, not the workers'. */
bool core_stalls(const struct coordinator *co);
/* Whether the present record is durable. */
bool core_row_durable(const struct coordinator *co, const struct row_mark *row);
/* Whether the removal of all forgotten workers and tasks is durable. */
bool core_gone_durable(const struct coordinator *co);
/* Whether the state of this job (NULL: of all) may be shown: it is durable, or no commit succeeds
 * and that must be shown. */
bool core_is_shown(struct coordinator *co, const struct job *j);
/* False: it may be shown now.  Else fn(arg, rc) is called later, with 0 when it may, -EAGAIN when
 * the commit has failed, -ERR_CANCELLED when the daemon stops first. */
bool core_when_shown(struct coordinator *co, const struct job *j, durable_fn fn, void *arg);

/* Tells subscribers; e is borrowed. */
void core_event(struct coordinator *co, const struct event *e);
/* Sends a LOG event and writes a line to the log. */
void core_say(struct coordinator *co, uint64_t job_id, uint64_t worker_id, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
