#include "worker/link/uplink.h"

#include <pthread.h>

#include "common/base/log.h"
#include "common/net/loop.h"
#include "common/net/pbmem.h"
#include "worker/link/session.h"
#include "worker/link/upload.h"
#include "worker/order/work.h"

#define RETRY_MS 1000
#define MESSAGE_MAX (1u << 20) /* a request and its answer, unpacked */

enum job_kind { CALL, PUT, GET };

/* Fields up to the next comment: written before the loop thread knows the job. */
struct uplink_job {
    struct uplink *u;
    struct work *w; /* compute thread only */
    enum job_kind kind;
    uint64_t task_id;
    uint32_t attempt;
    uint16_t method;
    uint32_t deadline_ms;
    const ProtobufCMessageDescriptor *descriptor; /* the answer's */
    const ProtobufCMessage *request;              /* in mem */
    struct work_output out;
    struct work_need need;
    bool in_order;
    struct pbmem mem; /* the loop thread's, until the job is done */

    /* Of the loop thread. */
    struct upload *upload;
    struct fetch *fetch;
    uint64_t call; /* in flight; 0: none */

    /* Under the lock. */
    struct uplink_job *next;
    bool done, abandoned;
    int code;
    char detail[1024];
    const ProtobufCMessage *answer; /* in mem */
};

struct uplink {
    struct fetch_env env;
    struct session *session;
    struct loop_timer *retry;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct uplink_job *jobs; /* open jobs, oldest first */
    unsigned refs;           /* the owner, and posts that the loop has not handled yet */
    bool closed;
};

/* ---- both threads ---- */

/* Drops a reference; the last one frees. */
static void unref(struct uplink *u)
{
    pthread_mutex_lock(&u->lock);
    bool last = --u->refs == 0;
    pthread_mutex_unlock(&u->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&u->lock);
    pthread_cond_destroy(&u->changed);
    mem_free(u);
}

/* Frees a job that nobody knows any more. */
static void discard(struct uplink_job *j)
{
    if (j->kind == GET)
        cache_unpin(j->u->env.cache, j->need.sha256);
    pbmem_release(&j->mem);
    unref(j->u);
    mem_free(j);
}

/* ---- loop thread ---- */

static void take_out(struct uplink *u, struct uplink_job *j)
{
    struct uplink_job **at = &u->jobs;
    while (*at && *at != j)
        at = &(*at)->next;
    if (*at)
        *at = j->next;
}

/* The job's outcome; it is the compute thread's from here on. */
static void finish(struct uplink_job *j, int code, const char *detail)
{
    struct uplink *u = j->u;
    pthread_mutex_lock(&u->lock);
    take_out(u, j);
    j->done = true;
    j->code = code;
    str_copy(j->detail, sizeof(j->detail), detail);
    bool abandoned = j->abandoned;
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
    if (abandoned)
        discard(j);
}

static void pump(struct uplink *u);

static void on_moved(void *arg, int code, const char *detail)
{
    struct uplink_job *j = arg;
    struct uplink *u = j->u;
    j->upload = NULL;
    j->fetch = NULL;
    finish(j, code, detail);
    pump(u); /* the next one has the line */
}

/* The answer belongs to the connection: pack it and unpack it into ours. */
static int keep_answer(struct uplink_job *j, const ProtobufCMessage *answer)
{
    size_t size = protobuf_c_message_get_packed_size(answer);
    uint8_t *packed = mem_try(size ? size : 1);
    if (!packed)
        return -ENOMEM;
    protobuf_c_message_pack(answer, packed);
    j->answer = protobuf_c_message_unpack(j->descriptor, pbmem_allocator(&j->mem), size, packed);
    mem_free(packed);
    return j->answer ? 0 : -ERR_LIMIT;
}

static void on_answer(void *arg, const struct rpc_result *r)
{
    struct uplink_job *j = arg;
    j->call = 0;
    if (r->code == -ERR_CANCELLED)
        return; /* whoever cancelled it handles the job */
    if (r->code == 0) {
        int rc = keep_answer(j, r->reply);
        finish(j, rc, rc < 0 ? "the coordinator's answer is too large" : "");
    } else if (r->remote && !r->retryable) {
        finish(j, r->code, r->detail);
    } else {
        if (r->remote && r->code == -ERR_STALE)
            session_rejoin(j->u->session);
        loop_timer_start(j->u->retry, r->retry_after_ms ? r->retry_after_ms : RETRY_MS, 0);
    }
}

static void start_call(struct uplink_job *j)
{
    struct uplink *u = j->u;
    int rc = session_call(u->session, j->method, j->request, j->descriptor, j->deadline_ms,
                          on_answer, j, &j->call);
    if (rc == -ERR_LIMIT)
        finish(j, rc, "the request is larger than a message may be");
    else if (rc < 0 && rc != -ENOTCONN) /* without a connection it waits for uplink_resume */
        loop_timer_start(u->retry, RETRY_MS, 0);
}

static void start_job(struct uplink_job *j)
{
    struct uplink *u = j->u;
    switch (j->kind) {
    case CALL:
        if (j->call == 0)
            start_call(j);
        break;
    case PUT:
        if (!j->upload) {
            const struct upload_what what = {
                .task_id = j->task_id, .attempt = j->attempt, .outputs = &j->out, .n = 1};
            j->upload = upload_start(&u->env, u->session, &what, on_moved, j);
        }
        break;
    case GET:
        if (!j->fetch) {
            const struct fetch_what what = {.needs = &j->need, .n = 1};
            j->fetch = fetch_start(&u->env, &what, on_moved, j);
        }
        break;
    }
}

static void cancel_job(struct uplink_job *j)
{
    upload_cancel(j->upload);
    fetch_cancel(j->fetch);
    if (j->call)
        session_cancel(j->u->session, j->call);
    j->upload = NULL;
    j->fetch = NULL;
    finish(j, -ERR_CANCELLED, "cancelled");
}

/* The job at index i, so that a walk survives changes of the list. */
static struct uplink_job *job_at(struct uplink *u, size_t i, bool *ret_abandoned)
{
    pthread_mutex_lock(&u->lock);
    struct uplink_job *j = u->jobs;
    for (; j && i > 0; i--)
        j = j->next;
    *ret_abandoned = j && j->abandoned;
    pthread_mutex_unlock(&u->lock);
    return j;
}

static void pump(struct uplink *u)
{
    struct uplink_job *j;
    bool abandoned, busy[] = {[CALL] = false, [PUT] = false, [GET] = false};
    for (size_t i = 0; (j = job_at(u, i, &abandoned)) != NULL;) {
        if (abandoned) {
            cancel_job(j); /* the next one moves up */
            continue;
        }
        if (!j->in_order || !busy[j->kind])
            start_job(j);
        if (job_at(u, i, &abandoned) != j)
            continue; /* it is done already */
        busy[j->kind] |= j->in_order;
        i++;
    }
}

static void on_retry(void *arg)
{
    pump(arg);
}

/* Handles changes by the compute thread. */
static void on_post(void *arg)
{
    struct uplink *u = arg;
    pthread_mutex_lock(&u->lock);
    bool closed = u->closed;
    pthread_mutex_unlock(&u->lock);
    if (!closed)
        pump(u);
    unref(u);
}

struct uplink *uplink_open(const struct fetch_env *env, struct session *session)
{
    struct uplink *u = mem_alloc(sizeof(*u));
    u->env = *env;
    u->session = session;
    u->refs = 1;
    u->retry = loop_timer_new(env->loop, on_retry, u);
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->changed, NULL);
    return u;
}

void uplink_drop(struct uplink *u)
{
    struct uplink_job *j;
    bool abandoned;
    while ((j = job_at(u, 0, &abandoned)) != NULL)
        cancel_job(j);
}

void uplink_close(struct uplink *u)
{
    if (!u)
        return;
    uplink_drop(u);
    loop_timer_free(u->retry);
    pthread_mutex_lock(&u->lock);
    u->closed = true;
    pthread_mutex_unlock(&u->lock);
    unref(u);
}

void uplink_resume(struct uplink *u)
{
    struct uplink_job *j;
    bool abandoned;
    pump(u);
    for (size_t i = 0; (j = job_at(u, i, &abandoned)) != NULL; i++)
        if (j->upload)
            upload_resume(j->upload);
}

void uplink_interrupt(struct uplink *u)
{
    pthread_mutex_lock(&u->lock);
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
}

/* ---- compute thread ---- */

static void post(struct uplink *u)
{
    pthread_mutex_lock(&u->lock);
    u->refs++;
    pthread_mutex_unlock(&u->lock);
    if (loop_post(u->env.loop, on_post, u) < 0)
        unref(u); /* the queue is full, and one of its posts will find the job */
}

static struct uplink_job *job_new(struct uplink *u, struct work *w, enum job_kind kind)
{
    struct uplink_job *j = mem_alloc(sizeof(*j));
    j->u = u;
    j->w = w;
    j->kind = kind;
    j->task_id = w->task->id;
    j->attempt = w->task->attempt;
    pbmem_init(&j->mem, MESSAGE_MAX);
    return j;
}

static struct uplink_job *submit(struct uplink_job *j)
{
    struct uplink *u = j->u;
    pthread_mutex_lock(&u->lock);
    struct uplink_job **at = &u->jobs;
    while (*at)
        at = &(*at)->next;
    *at = j;
    u->refs++;
    pthread_mutex_unlock(&u->lock);
    post(u);
    return j;
}

struct uplink_job *uplink_call(struct uplink *u, struct work *w, uint16_t method,
                               const ProtobufCMessage *msg, const ProtobufCMessageDescriptor *reply,
                               uint32_t deadline_ms)
{
    struct uplink_job *j = job_new(u, w, CALL);
    size_t size = protobuf_c_message_get_packed_size(msg);
    uint8_t *packed = mem_alloc(size + 1);
    protobuf_c_message_pack(msg, packed);
    j->method = method;
    j->descriptor = reply;
    j->deadline_ms = deadline_ms;
    j->request = protobuf_c_message_unpack(msg->descriptor, pbmem_allocator(&j->mem), size, packed);
    mem_free(packed);
    return submit(j);
}

struct uplink_job *uplink_put(struct uplink *u, struct work *w, const char *path,
                              const uint8_t sha256[32], uint64_t size, bool in_order)
{
    struct uplink_job *j = job_new(u, w, PUT);
    str_copy(j->out.path, sizeof(j->out.path), path);
    memcpy(j->out.sha256, sha256, 32);
    j->out.size = size;
    j->in_order = in_order;
    return submit(j);
}

struct uplink_job *uplink_get(struct uplink *u, struct work *w, const uint8_t sha256[32],
                              uint64_t size, const char *url, const char *what, bool in_order)
{
    struct uplink_job *j = job_new(u, w, GET);
    memcpy(j->need.sha256, sha256, 32);
    j->need.size = size;
    j->in_order = in_order;
    str_copy(j->need.what, sizeof(j->need.what), what);
    char *kept = pbmem_allocator(&j->mem)->alloc(&j->mem, strlen(url) + 1);
    if (kept)
        str_copy(kept, strlen(url) + 1, url);
    j->need.url = kept ? kept : "";
    cache_pin(u->env.cache, sha256);
    struct err damage = {0};
    j->need.missing = cache_check(u->env.cache, sha256, size, &damage) < 0;
    if (damage.code < 0 && damage.code != -ERR_NOTFOUND)
        log_warn("uplink", "%s: %s; fetching it again", what, damage.msg);
    if (j->need.missing) /* here: to remove files may take long */
        (void)cache_reserve(u->env.cache, size, NULL);
    return submit(j);
}

bool uplink_done(struct uplink_job *j)
{
    pthread_mutex_lock(&j->u->lock);
    bool done = j->done;
    pthread_mutex_unlock(&j->u->lock);
    return done;
}

static bool gives_up(const struct uplink_job *j, bool saving, struct err *err)
{
    if (saving && atomic_load(&j->w->stop) == WORK_SAVING)
        return false;
    return work_stopped(j->w, err);
}

static int wait_for(struct uplink_job *j, bool saving, struct err *err)
{
    bool stopped = false;
    pthread_mutex_lock(&j->u->lock);
    while (!j->done && !(stopped = gives_up(j, saving, err)))
        pthread_cond_wait(&j->u->changed, &j->u->lock);
    pthread_mutex_unlock(&j->u->lock);
    if (stopped)
        return -ERR_CANCELLED;
    return j->code < 0 ? err_set(err, j->code, "%s", j->detail) : 0;
}

int uplink_wait(struct uplink_job *j, struct err *err)
{
    return wait_for(j, false, err);
}

int uplink_wait_saving(struct uplink_job *j, struct err *err)
{
    return wait_for(j, true, err);
}

const ProtobufCMessage *uplink_reply(const struct uplink_job *j)
{
    return j->answer;
}

void uplink_free(struct uplink_job *j)
{
    if (!j)
        return;
    struct uplink *u = j->u;
    pthread_mutex_lock(&u->lock);
    bool done = j->done;
    j->abandoned = true;
    pthread_mutex_unlock(&u->lock);
    if (done)
        discard(j);
    else
        post(u);
}
