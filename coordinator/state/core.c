#include "coordinator/state/core.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/net/pool.h"

#define FULL_DISK_BYTES (4u << 20) /* with less room than this uploads must fail */

int64_t core_unix_ms(const struct coordinator *co)
{
    const int64_t wall = (int64_t)clock_wall_ms();
    const int64_t steady = co->started_unix_ms + (int64_t)(core_now(co) - co->started_ms);
    return wall < steady ? wall : steady;
}

void core_init(struct coordinator *co)
{
    struct held *const all[] = {&co->next, &co->group};
    for (int i = 0; i < 2; i++) {
        list_init(&all[i]->replies);
        list_init(&all[i]->durables);
        list_init(&all[i]->polls);
    }
    list_init(&co->beats);
    list_init(&co->earlies);
}

int core_disk_room(const struct coordinator *co, uint64_t *ret_bytes, struct err *err)
{
    struct blob_health h = {0};
    int rc = file_disk_free(co->opt.data_dir, ret_bytes, err);
    if (rc == 0 && co->blobs->ops->health)
        co->blobs->ops->health(co->blobs, &h);
    if (rc == 0)
        *ret_bytes += h.evictable_bytes;
    return rc;
}

bool core_disk_full(struct coordinator *co)
{
    uint64_t room = 0;
    co->disk_full = file_disk_free(co->opt.data_dir, &room, NULL) == 0 && room < FULL_DISK_BYTES;
    return co->disk_full;
}

int core_writable(struct coordinator *co, struct err *err)
{
    if (!co->store_ok)
        return err_set(err, co->store_code == -ENOSPC ? -ENOSPC : -EIO,
                       "the coordinator cannot write its state: %s", co->store_error);
    if (store_full(co->store) || co->n_replies >= CORE_REPLIES_MAX)
        return err_set(err, -EAGAIN, "too much is waiting to be written, ask again");
    return 0;
}

struct bringing {
    struct blobstore *store;
    struct blob_id id;
};

static int bring(void *arg)
{
    const struct bringing *b = arg;
    char *path = NULL;
    const int rc = b->store->ops->local(b->store, &b->id, true, &path, NULL);
    if (rc == 0)
        b->store->ops->let_go(b->store, &b->id);
    mem_free(path);
    return rc;
}

static void brought(void *arg, int rc)
{
    mem_free(arg);
}

void core_bring(struct coordinator *co, const struct blob_id *id)
{
    struct bringing *b = mem_alloc(sizeof(*b));
    *b = (struct bringing){co->blobs, *id};
    if (pool_submit(co->far, bring, brought, b) < 0)
        mem_free(b); /* another request will bring it again */
}

void core_touch(struct coordinator *co)
{
    co->touched = true;
    if (co->turn_scheduled || co->closing)
        return;
    co->turn_scheduled = true;
    loop_defer(co->loop, co->turn, co);
}

void core_gather(struct coordinator *co)
{
    if (!co->turn_scheduled && !co->closing && !loop_timer_active(co->gather))
        loop_timer_start(co->gather, CORE_GATHER_MS, 0);
}

void core_points(struct coordinator *co)
{
    if (co->points_ms == 0)
        co->points_ms = core_now(co);
    if (co->ship == NULL) /* else a later tick, since their job goes on */
        core_gather(co);
}

struct reply *core_reply_later(struct coordinator *co, struct rpc_request *req,
                               void (*send)(struct coordinator *co, struct reply *r))
{
    struct reply *r = mem_alloc(sizeof(*r));
    r->req = req;
    r->send = send;
    list_push(&co->next.replies, &r->link);
    co->n_replies++;
    return r;
}

struct reply *core_reply(struct coordinator *co, struct rpc_request *req,
                         void (*send)(struct coordinator *co, struct reply *r))
{
    core_touch(co);
    return core_reply_later(co, req, send);
}

static struct durable *wait_in(struct held *w, durable_fn fn, void *arg)
{
    struct durable *d = mem_alloc(sizeof(*d));
    d->fn = fn;
    d->arg = arg;
    list_push(&w->durables, &d->link);
    return d;
}

void core_when_durable(struct coordinator *co, durable_fn fn, void *arg)
{
    (void)wait_in(&co->next, fn, arg);
    core_touch(co);
}

uint64_t core_writing_ms(const struct coordinator *co)
{
    return co->writing ? core_now(co) - co->writing_ms : 0;
}

bool core_stalls(const struct coordinator *co)
{
    return core_writing_ms(co) > CORE_TICK_MS;
}

bool core_row_durable(const struct coordinator *co, const struct row_mark *row)
{
    return !row->edited && store_has(co->store, row->commit);
}

bool core_gone_durable(const struct coordinator *co)
{
    const struct state *s = &co->state;
    return s->workers_gone.n == 0 && s->tasks_gone.n == 0 && store_has(co->store, s->gone_commit);
}

/* The commit that contains the present state of this job, or of all. */
static uint64_t commit_of(const struct coordinator *co, const struct job *j)
{
    return j ? j->row.commit : store_newest(co->store);
}

bool core_is_shown(struct coordinator *co, const struct job *j)
{
    if (!co->store_ok)
        return true;
    persist_changes(co->store, &co->state); /* now every record knows its commit */
    return store_has(co->store, commit_of(co, j));
}

bool core_when_shown(struct coordinator *co, const struct job *j, durable_fn fn, void *arg)
{
    if (core_is_shown(co, j))
        return false;
    const bool next = commit_of(co, j) == store_next(co->store);
    wait_in(next ? &co->next : &co->group, fn, arg)->shows = true;
    if (next)
        core_gather(co);
    return true;
}

void core_event(struct coordinator *co, const struct event *e)
{
    for (int i = 0; i < EVENT_SUBSCRIBERS_MAX; i++)
        if (co->subscribers[i].handle != 0)
            co->subscribers[i].fn(co->subscribers[i].arg, e);
}

void core_say(struct coordinator *co, uint64_t job_id, uint64_t worker_id, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_info("coord", "%s", text);
    core_event(co, &(struct event){
                       .kind = EVENT_LOG, .job_id = job_id, .worker_id = worker_id, .text = text});
}
