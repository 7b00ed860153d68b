/* Inside of the coordinator: what its files share.  Not for the HTTP side. */
#ifndef COORDINATOR_CORE_H
#define COORDINATOR_CORE_H

#include "common/base/list.h"
#include "common/net/blobstore.h"
#include "common/net/keys.h"
#include "common/net/loop.h"
#include "common/net/rpc.h"
#include "common/net/token.h"
#include "coordinator/coordinator.h"
#include "coordinator/state/persist.h"
#include "coordinator/state/state.h"
#include "coordinator/state/store.h"
#include "coordinator/view/view.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct blob_http;
struct http_api;
struct http_server;
struct outer_exec;
struct Skerry__V1__Blob;

#define TEXT_SKIP 32 /* tokens that a text is routed by: they do not count in losses */
#define CORE_TICK_MS 250
#define CORE_COMMIT_RETRY_MS 1000
#define CORE_TICKET_S 3600
#define CORE_FAILED_PATIENCE_MS 10000 /* a failed task goes to another worker first */
/* Until a worker is asked again for what it had no memory for: others could do it, or not. */
#define CORE_SMALL_MS 300000
#define CORE_SMALL_ALONE_MS 10000
#define CORE_OWNER_PATIENCE_MS 2000 /* a replica waits for the worker with its moments */
#define CORE_BUSY_PATIENCE_MS 10000 /* and, while that evaluates or draws, half a round: */
#define CORE_BUSY_PATIENCE_MAX_MS 300000
#define CORE_CLOSED_MS 2000  /* for a reconnect */
#define CORE_RESUME_MS 15000 /* after our restart: workers dial again after up to 10 s */
#define CORE_PROGRESS_MIN_MS 60000
#define CORE_REPLIES_MAX 65536

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

struct durable {
    struct list link;
    view_durable_fn fn;
    void *arg;
};

struct subscriber {
    int handle;
    view_event_fn fn;
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
    struct rpc_server *rpc;
    struct outer_exec *outer;
    struct pool *disk;
    struct keys *keys;
    struct token worker_token, user_token;
    char worker_text[TOKEN_STRING_MAX], user_text[TOKEN_STRING_MAX];
    char http_url[TOKEN_URL_MAX], cluster[33];
    uint8_t ticket_key[KEYS_SECRET_BYTES];
    struct loop_timer *tick, *retry, *sweep;
    struct list replies, durables, polls;
    unsigned n_replies;
    bool turn_scheduled, closing, counters_dirty;
    bool store_ok;
    bool disk_full; /* an upload failed on it: no work until a tick finds room */
    char store_error[512];
    uint64_t started_ms;
    struct subscriber subscribers[VIEW_SUBSCRIBERS_MAX];
    int next_handle;
    struct blob_ref *garbage; /* deleted after the next commit unless still named */
    size_t n_garbage, cap_garbage;
    bool sweeping;
    bool velocities_old; /* some have no sampler any more */
    struct view_bytes bytes_here;
};

static inline uint64_t core_now(const struct coordinator *co)
{
    return loop_now_ms(co->loop);
}

/* Something changed: before the loop waits again, jobs advance, tasks are
 * given out, rows are committed and replies leave. */
void core_touch(struct coordinator *co);

/* Queues the rows of counters and ledgers that changed: before every commit. */
void core_save(struct coordinator *co);

/* Queues an answer for after the commit; fill the returned struct at once. */
struct reply *core_reply(struct coordinator *co, struct rpc_request *req,
                         void (*send)(struct coordinator *co, struct reply *r));

/* 0, or -ENOSPC / -EIO with a sentence while nothing can be made durable. */
int core_writable(struct coordinator *co, struct err *err);

/* Looks at the disk of the data dir, and remembers in disk_full. */
bool core_disk_full(struct coordinator *co);

/* Tells subscribers; e is borrowed. */
void core_event(struct coordinator *co, const struct view_event *e);
/* A LOG event and a line in the log. */
void core_say(struct coordinator *co, uint64_t job_id, uint64_t worker_id, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* A blob lost a reference: it is deleted after the commit if nobody else names it. */
void core_garbage(struct coordinator *co, const struct blob_ref *b);
/* Deletes what only a running job needs. */
void gc_job_ended(struct coordinator *co, const struct job *j);
void gc_after_commit(struct coordinator *co);
/* Removes blobs that nobody names and that are older than a day. */
void gc_sweep(struct coordinator *co);

/* ---- member.c: who is here ---- */

void member_heard(struct coordinator *co, struct worker *w);
/* Judges leases; what is lost goes back. */
void member_check(struct coordinator *co);
void member_lost(struct coordinator *co, struct worker *w, enum worker_state to,
                 const char *reason);
/* The connection of w is gone (kept for CORE_CLOSED_MS). */
void member_closed(struct coordinator *co, struct worker *w);
void member_succeeded(struct coordinator *co, struct worker *w);
/* Counts a failure; quarantines after several in a row. */
void member_failed(struct coordinator *co, struct worker *w);
/* w has no memory for tasks like t: until then it is offered none. */
void member_note_small(struct coordinator *co, struct worker *w, const struct task *t,
                       uint64_t until_ms);
/* Has w said so, not long ago? */
bool member_is_small(const struct coordinator *co, const struct worker *w, const struct task *t);
/* Is somebody here, other than w, who has not? */
bool member_others_fit(const struct coordinator *co, const struct worker *w, const struct task *t);
bool member_may_work(struct coordinator *co, const struct worker *w, uint64_t *ret_until_ms,
                     char reason[REASON_MAX]);
void member_verdict(struct coordinator *co, uint64_t worker_id, uint64_t task_id, bool accepted,
                    const char *reason);
struct lease_decision;
void member_lease(const struct coordinator *co, const struct worker *w, struct lease_decision *ret);
/* Answers a parked long poll without a task. */
void member_unpark(struct coordinator *co, struct worker *w, const char *why);

/* ---- tasks.c: one task's life ---- */

struct task *task_make(struct coordinator *co, struct job *j, enum task_kind kind);
void task_lease(struct coordinator *co, struct task *t, struct worker *w);
/* Back to pending with the next attempt. */
void task_requeue(struct coordinator *co, struct task *t, const char *reason);
void task_end(struct coordinator *co, struct task *t, enum task_state state, const char *reason);
/* Which of the job's networks it is about. */
uint32_t task_network(const struct job *j, const struct task *t);
/* Its worker has no memory for it: to others; counted as a failure when nobody here could
 * begin it and no phase of its path was ever done. */
void task_too_large(struct coordinator *co, struct task *t, const char *reason);
/* Its worker's device broke: to another at once, not counted as a failure. */
void task_lost_device(struct coordinator *co, struct task *t, const char *reason);
/* A worker reported failure. */
void task_failed(struct coordinator *co, struct task *t, bool retryable, const char *reason);
/* Settles what the task holds in its ledger: `done` samples are done. */
void task_settle(struct coordinator *co, struct task *t, uint64_t done);
#define RANGES_TAKEN_MAX 2048 /* of a TRAIN task: with tickets it must fit a frame of 1 MiB */
/* Takes samples for a TRAIN task; false: none to be had. */
bool task_take_samples(struct coordinator *co, struct job *j, struct task *t);
/* Drops the oldest ended tasks of a job beyond TASKS_ENDED_MAX. */
void tasks_prune(struct coordinator *co, struct job *j);

/* ---- submit.c: what a person may ask for ---- */

int flow_submit(struct coordinator *co, const struct view_submit *s, uint64_t *ret_id,
                struct err *err);

/* ---- flow.c: a job's life ---- */

void flow_advance(struct coordinator *co); /* all jobs, as far as they go */
void flow_enter(struct coordinator *co, struct job *j, enum job_state state, const char *reason);
void flow_end(struct coordinator *co, struct job *j, enum job_state state, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Removes the outer optimiser's files of an ended job, unless a step still runs. */
void flow_clean_up(struct coordinator *co, const struct job *j);
/* Open tasks of the job of a kind. */
size_t flow_open_tasks(const struct coordinator *co, const struct job *j, enum task_kind kind);

/* ---- shards.c: the samples of a job ---- */

struct shards_sum {
    uint64_t shards, samples, tokens;
};

/* Of the current generation: what paths of this partition train on, or what is held out. */
struct shards_sum shards_sum(const struct job *j, uint32_t partition, bool holdout);
/* Shards of generation 0: they come first. */
size_t shards_cut(const struct job *j);
/* Samples that so many steps take from shards like these: images, or pieces of text. */
uint64_t shards_of_steps(const struct job_spec *spec, uint32_t batch, uint64_t steps,
                         const struct shards_sum *sum);
/* Is the dataset as it was cut enough for the job?  One sentence if not. */
int shards_check(const struct job *j, struct err *err);
/* Sets the first training shards aside, if the job fits routers. */
void shards_keep_for_routers(struct coordinator *co, struct job *j);
/* Ledgers and sizes of the partitions, over the current generation.  A partition that cannot
 * fill a phase is named, and nothing has changed. */
int shards_make_ledgers(struct job *j, struct err *err);
/* Lets shards of older generations go as soon as no open task reads them. */
void shards_drop_old(struct coordinator *co, struct job *j);

/* ---- stage.c: partitioning as tasks ---- */

#define STAGE_BLOBS_MAX 2048 /* features and scores of a CLUSTER task: they fit a frame */

/* INITIALISING is through: FEATURE tasks.  Tried again at the next turn when there is no
 * room for the tasks. */
void stage_begin(struct coordinator *co, struct job *j);
/* From FEATURES, SCORING, CLUSTERING or SPLITTING to the next, when its tasks are done. */
void stage_advance(struct coordinator *co, struct job *j);
/* RUNNING: paths wait at this round for their new shards; UINT32_MAX: none to come. */
uint32_t stage_barrier(const struct job *j);
/* All paths stand at the barrier: SCORE tasks. */
void stage_reshard(struct coordinator *co, struct job *j);
/* FINISHING: SCORE tasks of what is held out, then one CLUSTER task; false: nothing to do. */
bool stage_score_held_out(struct coordinator *co, struct job *j);
bool stage_evaluate_routing(struct coordinator *co, struct job *j);
/* Tasks done and to do of the state that the job is in; 0 of 0: it has no such tasks. */
void stage_progress(const struct coordinator *co, const struct job *j, uint32_t *ret_done,
                    uint32_t *ret_total);
/* Shards with scores, ascending, in a new array of *ret_n; NULL: none. */
uint32_t *stage_scored(const struct job *j, size_t *ret_n);

/* ---- draw.c: evaluations and samples ---- */

struct task *draw_eval(struct coordinator *co, struct job *j, uint32_t path, uint32_t round);
/* All main paths with the router: the losses of every strategy. */
struct task *draw_eval_mixture(struct coordinator *co, struct job *j, uint32_t round);
/* path UINT32_MAX: as the job is sampled, its mixture or path 0. */
struct task *draw_sample(struct coordinator *co, struct job *j, uint32_t path, uint32_t round,
                         const struct view_sample_request *ask);
/* What is due after a path has closed a round. */
void draw_after_round(struct coordinator *co, struct job *j, uint32_t path);
/* At the end, when the last evaluations are known. */
void draw_last(struct coordinator *co, struct job *j);

/* ---- rounds.c: phases ---- */

void rounds_advance(struct coordinator *co, struct job *j);
bool rounds_finished(const struct job *j);
/* How long a phase bounded by time is that begins now: outer.seconds.  Asynchronous ones
 * that share modules end together: half of that to half as much again. */
uint32_t rounds_seconds(struct coordinator *co, const struct job *j, const struct task *t);
/* Do contributions come while their phase goes on, and replicas keep their weights? */
bool rounds_stream(const struct job *j);
bool path_crosses(const struct job *j, uint32_t path, const struct module_rec *m);

/* ---- folds.c: outer steps ---- */

/* Takes m's next outer step if it is time for it. */
void folds_consider(struct coordinator *co, struct job *j, struct module_rec *m);
void module_adopt(struct coordinator *co, struct job *j, struct module_rec *m,
                  const struct version_rec *v); /* takes v->provenance */
/* What a task has given to a module's version; NULL: nothing. */
struct contribution *task_contribution(const struct task *t, uint64_t module, uint64_t base);
/* Contributions expected and there for m's next version. */
struct outer_count {
    uint32_t expected, arrived, leased;
};
void rounds_count(struct coordinator *co, const struct job *j, const struct module_rec *m,
                  struct outer_count *ret);
/* Is everything that m's next version waits for being worked on?  If not, nobody must
 * keep a worker from other tasks by waiting for it. */
bool rounds_coming(const struct coordinator *co, const struct job *j, const struct module_rec *m);

/* ---- assign.c, taskmsg.c ---- */

/* Gives tasks to parked workers. */
void assign_parked(struct coordinator *co);
/* ---- report.c ---- */

struct Skerry__V1__ReportRequest;

/* Applies a report that fits its lease; 0, or -ERR_STALE / -EINVAL with the
 * reason that the worker is told. */
int report_apply(struct coordinator *co, struct worker *w,
                 const struct Skerry__V1__ReportRequest *r, struct err *err);

/* ---- report_stage.c ---- */

int report_blob(struct coordinator *co, const struct Skerry__V1__Blob *b, const char *what,
                struct blob_ref *ret, struct err *err);
int report_feature(struct coordinator *co, struct job *j, struct task *t,
                   const struct Skerry__V1__ReportRequest *r, struct err *err);
int report_cluster(struct coordinator *co, struct job *j, struct task *t,
                   const struct Skerry__V1__ReportRequest *r, struct err *err);
int report_split(struct coordinator *co, struct job *j, struct task *t,
                 const struct Skerry__V1__ReportRequest *r, struct err *err);
int report_score(struct coordinator *co, struct job *j, struct task *t,
                 const struct Skerry__V1__ReportRequest *r, struct err *err);
/* Keeps figures that came with a result. */
void report_rows(struct coordinator *co, struct job *j, const struct task *t,
                 const struct Skerry__V1__ReportRequest *r);

/* ---- poll.c: requests that wait within a task ---- */

struct poll;
/* Answers p->req and returns true, or leaves it and returns false.  last: the time is up,
 * answer.  The lease stands. */
typedef bool (*poll_fn)(struct coordinator *co, struct poll *p, bool last);

struct poll {
    struct list link;
    struct rpc_request *req;
    poll_fn answer;
    uint64_t worker_id, task_id, until_ms;
    uint32_t attempt;
    uint64_t module_id, version, held; /* VERSION */
    uint64_t velocity;                 /* EVALUATE: the VELOCITY task */
};

/* Parks req for at most wait_ms (30 s): answer is called at every turn. */
struct poll *poll_add(struct coordinator *co, struct rpc_request *req, uint32_t wait_ms,
                      poll_fn answer);
void poll_turn(struct coordinator *co);
void poll_stop(struct coordinator *co); /* answers all */
/* The task's lease as (worker, attempt) still stands. */
struct task *poll_task(struct coordinator *co, const struct poll *p);

/* ---- live_version.c: versions while a TRAIN task runs ---- */

struct Skerry__V1__VersionRequest;
/* Answers req when the version is there, when nobody works on it, or in the end. */
void live_version(struct coordinator *co, struct worker *w, struct rpc_request *req,
                  const struct Skerry__V1__VersionRequest *m);

/* ---- live.c: text and velocities while a SAMPLE task runs ---- */

struct Skerry__V1__StreamRequest;
struct Skerry__V1__EvaluateRequest;
int live_stream(struct coordinator *co, struct worker *w, const struct Skerry__V1__StreamRequest *m,
                struct err *err);
/* Answers req, now or later. */
void live_evaluate(struct coordinator *co, struct worker *w, struct rpc_request *req,
                   const struct Skerry__V1__EvaluateRequest *m);
/* A remote sampler has ended: VELOCITY tasks made for it are cancelled, and forgotten by
 * the next turn. */
void live_task_ended(struct coordinator *co, const struct task *parent);
void live_turn(struct coordinator *co);

/* ---- metrics.c ---- */

struct Skerry__V1__LossPoint;
void metrics_points(struct coordinator *co, struct job *j, const struct task *t,
                    struct Skerry__V1__LossPoint *const *points, size_t n);
void metrics_eval(struct coordinator *co, struct job *j, const struct task *t);
void metrics_round(struct coordinator *co, struct job *j, const struct round_rec *r);
/* A blob of ours was served. */
void metrics_served(struct coordinator *co, const struct blob_id *id, uint64_t bytes);
/* A contribution has come up. */
void metrics_uploaded(struct coordinator *co, struct job *j, const struct task *t,
                      const struct contribution *c);

/* ---- view_jobs.c, view_paths.c ---- */

double view_job_bits_per_byte(const struct job *j); /* NAN: no texts, or not evaluated */

struct view_sample view_sample_of(const struct grid_rec *g);

/* ---- service.c ---- */

extern const struct rpc_method service_methods[];
extern const unsigned service_method_count;
void service_peer_closed(struct coordinator *co, struct rpc_peer *peer);

#endif
