#include "common/net/http/transfer.h"

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/net/loop.h"
#include "common/net/http/http_curl.h"
#include "common/net/http/transfer_impl.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>

#define TICK_MS 200
#define NEAR_CONNECT_MS 2000          /* short, because a neighbour is near */
#define NEAR_BYTES_PER_S (128 * 1024) /* a slower one is given up; 32 fill a third of 100 Mb/s */
#define WAIT_TRIES 3u /* a server's "ask again" waits as long as after so many failures */
#define ERROR_BODY_MAX 4096
#define SIZE_MAX_DEFAULT ((uint64_t)1 << 40)

struct xfer {
    struct loop *loop;
    struct xfer_options o;
    CURLM *multi;      /* NULL before the first transfer */
    struct pool *pool; /* NULL before the first file */
    struct loop_timer *timer, *tick;
    struct transfer_link link;
    struct list waiting, active, sockets;
    unsigned waiting_count, active_count, running;
    uint64_t next_id;
    struct xfer_counters counters;
    bool closed;
};

struct watch {
    uv_poll_t poll;
    struct list link;
    struct xfer *owner;
    curl_socket_t fd;
};

/* The work on a file that the pool does: hash, fsync, rename. */
struct transfer_verify {
    struct transfer *transfer; /* NULL: it was cancelled meanwhile */
    atomic_bool cancelled;     /* the same for the thread: the file stays a part */
    char *part, *path;
    uint8_t sha256[32];
    bool has_sha256, cached;
    struct err err;
};

static void pump(struct xfer *x);

/* ---- libcurl in the loop ---- */

static void poll_closed(uv_handle_t *h)
{
    mem_free(list_entry((uv_poll_t *)h, struct watch, poll));
}

static void unwatch(struct watch *w)
{
    list_remove(&w->link);
    uv_close((uv_handle_t *)&w->poll, poll_closed);
}

static void check_finished(struct xfer *x);

static void act(struct xfer *x, curl_socket_t fd, int what)
{
    int running;
    (void)curl_multi_socket_action(x->multi, fd, what,
                                   &running); /* check_finished() takes the results */
    check_finished(x);
}

static void on_poll(uv_poll_t *h, int status, int events)
{
    struct watch *w = list_entry(h, struct watch, poll);
    int what = status < 0 ? CURL_CSELECT_ERR : 0;
    if (events & UV_READABLE)
        what |= CURL_CSELECT_IN;
    if (events & UV_WRITABLE)
        what |= CURL_CSELECT_OUT;
    act(w->owner, w->fd, what);
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket_arg)
{
    struct xfer *x = arg;
    struct watch *w = socket_arg;
    if (x->closed)
        return 0;
    if (what == CURL_POLL_REMOVE) {
        if (w) {
            (void)curl_multi_assign(x->multi, fd, NULL); /* a known socket */
            unwatch(w);
        }
        return 0;
    }
    if (!w) {
        w = mem_alloc(sizeof(*w));
        w->owner = x;
        w->fd = fd;
        if (uv_poll_init_socket(loop_uv(x->loop), &w->poll, fd) < 0) {
            mem_free(w);
            return -1;
        }
        list_push(&x->sockets, &w->link);
        (void)curl_multi_assign(x->multi, fd, w); /* a known socket */
    }
    int events = (what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0);
    return uv_poll_start(&w->poll, events, on_poll) < 0 ? -1 : 0;
}

static int on_curl_timer(CURLM *multi, long ms, void *arg)
{
    struct xfer *x = arg;
    if (x->closed)
        return 0;
    if (ms < 0)
        loop_timer_stop(x->timer);
    else
        loop_timer_start(x->timer, (uint64_t)ms, 0);
    return 0;
}

static void on_timer(void *arg)
{
    act(arg, CURL_SOCKET_TIMEOUT, 0);
}

static int start_curl(struct xfer *x, struct err *err)
{
    if (x->multi)
        return 0;
    http_curl_init();
    x->multi = curl_multi_init();
    if (!x->multi)
        return err_set(err, -ENOMEM, "libcurl cannot start");
    curl_multi_setopt(x->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(x->multi, CURLMOPT_SOCKETDATA, x);
    curl_multi_setopt(x->multi, CURLMOPT_TIMERFUNCTION, on_curl_timer);
    curl_multi_setopt(x->multi, CURLMOPT_TIMERDATA, x);
    curl_multi_setopt(x->multi, CURLMOPT_MAXCONNECTS, (long)x->o.max_parallel);
    return 0;
}

/* ---- the life of a transfer ---- */

static void transfer_free(struct transfer *t)
{
    transfer_close_file(t);
    loop_timer_free(t->retry);
    buf_release(&t->answer);
    mem_free(t->url);
    mem_free(t->away);
    mem_free(t->location);
    mem_free(t->path);
    mem_free(t->part);
    mem_free(t->bearer);
    mem_free(t);
}

static void end_attempt(struct transfer *t)
{
    struct xfer *x = t->owner;
    if (!t->easy)
        return;
    (void)curl_multi_remove_handle(x->multi, t->easy); /* may not have been added */
    curl_easy_cleanup(t->easy);
    curl_slist_free_all(t->headers);
    t->easy = NULL;
    t->headers = NULL;
    t->paused = false;
    x->running--;
}

/* Takes the transfer out of the tables, reports its result, frees it. */
static void finish(struct transfer *t, int code, const char *detail)
{
    struct xfer *x = t->owner;
    end_attempt(t);
    if (t->verifying) {
        t->verifying->transfer = NULL;
        atomic_store(&t->verifying->cancelled, true);
    }
    list_remove(&t->link);
    if (t->state == TRANSFER_WAITING)
        x->waiting_count--;
    else
        x->active_count--;
    struct xfer_result r = {
        .code = code,
        .detail = detail,
        .status = t->status,
        .bytes = t->moved,
        .size = t->kind == TRANSFER_GET ? t->offset : t->size,
        .existed = t->existed,
    };
    t->done(t->arg, &r);
    transfer_free(t);
}

static void on_retry(void *arg)
{
    struct transfer *t = arg;
    struct xfer *x = t->owner;
    list_remove(&t->link);
    x->active_count--;
    t->state = TRANSFER_WAITING;
    list_push_front(&x->waiting, &t->link);
    x->waiting_count++;
    pump(x);
}

static void retry_later(struct transfer *t, const struct err *err)
{
    struct xfer *x = t->owner;
    end_attempt(t);
    uint64_t reached = t->kind == TRANSFER_GET ? t->offset : t->sent_from;
    const uint64_t now = loop_now_ms(x->loop);
    t->tries = reached > t->best ? 1 : t->told_to_wait ? t->tries : t->tries + 1;
    if (reached > t->best)
        t->best = reached;
    if (t->tries <= 1) /* the first failure in a row, however long the attempt was */
        t->failed_ms = now;
    const bool spent = t->tries >= x->o.max_tries && now - t->failed_ms >= x->o.patience_ms;
    if (spent && !t->told_to_wait) {
        finish(t, err->code, err->msg);
        return;
    }
    const unsigned failed = t->told_to_wait ? WAIT_TRIES : t->tries;
    uint64_t ms = x->o.backoff_min_ms;
    for (unsigned i = 1; i < failed && ms < x->o.backoff_max_ms; i++)
        ms *= 2;
    if (ms > x->o.backoff_max_ms)
        ms = x->o.backoff_max_ms;
    uint32_t r;
    hash_random(&r, sizeof(r));
    ms = ms / 2 + (ms - ms / 2) * (r >> 16) / 65536;
    x->counters.retries++;
    t->state = TRANSFER_BACKOFF;
    if (t->kind == TRANSFER_PUT) {
        t->asking = true;
        t->sent_from = 0;
    }
    if (!t->retry)
        t->retry = loop_timer_new(x->loop, on_retry, t);
    loop_timer_start(t->retry, ms, 0);
}

/* ---- verification ---- */

static bool is_cancelled(void *arg)
{
    const struct transfer_verify *v = arg;
    return atomic_load(&v->cancelled);
}

/* True if another transfer to the same path ended first, with the same bytes. */
static bool is_there(struct transfer_verify *v)
{
    uint8_t got[HASH_BYTES];
    return hash_file_until(v->path, is_cancelled, v, got, NULL, NULL) == 0 &&
           memcmp(got, v->sha256, sizeof(got)) == 0;
}

static int flush(const char *path, struct err *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "cannot open %s", path);
    const int rc = file_sync(fd, path, err);
    close(fd);
    return rc;
}

static int verify(void *arg)
{
    struct transfer_verify *v = arg;
    uint8_t got[HASH_BYTES];
    int rc = v->has_sha256 ? hash_file_until(v->part, is_cancelled, v, got, NULL, &v->err) : 0;
    if (rc == -ENOENT && is_there(v))
        return 0;
    if (rc == 0 && v->has_sha256 && memcmp(got, v->sha256, sizeof(got)) != 0) {
        char hex[HASH_HEX_MAX];
        rc = err_set(
            &v->err, -ERR_HASH,
            "the content that arrived for %s has the hash %s, not the one that was asked for",
            v->path, hash_hex(got, sizeof(got), hex));
        (void)unlink(v->part); /* it is useless; the next attempt begins afresh */
    }
    if (rc == 0 && !v->cached && !atomic_load(&v->cancelled))
        rc = flush(v->part, &v->err);
    if (rc == 0 && atomic_load(&v->cancelled))
        rc = -ERR_CANCELLED; /* a new transfer of it may already use the part */
    if (rc == 0)
        rc = (v->cached ? file_move : file_rename)(v->part, v->path, &v->err);
    return rc;
}

static void verified(void *arg, int rc)
{
    struct transfer_verify *v = arg;
    struct transfer *t = v->transfer;
    struct err err = v->err;
    mem_free(v->part);
    mem_free(v->path);
    mem_free(v);
    if (!t)
        return;
    struct xfer *x = t->owner;
    t->verifying = NULL;
    if (rc == -ERR_HASH && t->is_near) {
        char pin[HASH_HEX_MAX];
        log_warn("xfer", "a neighbour has sent other bytes than those of %s key=%s", t->path,
                 hash_hex(t->neighbour, sizeof(t->neighbour), pin));
        transfer_shun(t);
    }
    if (rc == -ERR_HASH && !t->refetched) {
        /* Once more from the start: a part from earlier may have been damaged here. */
        t->refetched = true;
        t->follow = t->near = false; /* the server looks at what its store has */
        t->tries = 0;
        t->best = t->offset = 0;
        retry_later(t, &err);
    } else {
        finish(t, rc, rc < 0 && err.code ? err.msg : rc < 0 ? err_text(rc) : "");
    }
    pump(x);
}

static void start_verify(struct transfer *t)
{
    struct xfer *x = t->owner;
    struct err err = {0};
    end_attempt(t);
    transfer_close_file(t);
    if (!x->pool && pool_new(x->loop, "xfer", 1, x->o.max_queued, &x->pool, &err) < 0) {
        finish(t, err.code, err.msg);
        return;
    }
    struct transfer_verify *v = mem_alloc(sizeof(*v));
    v->transfer = t;
    v->part = str_dup(t->part);
    v->path = str_dup(t->path);
    v->has_sha256 = t->has_sha256;
    v->cached = t->cached;
    memcpy(v->sha256, t->sha256, sizeof(v->sha256));
    t->verifying = v;
    t->state = TRANSFER_VERIFYING;
    if (pool_submit(x->pool, verify, verified, v) < 0)
        verified(v, -EAGAIN);
}

/* ---- running ---- */

/* Seconds of patience with a silent server; fewer for a store, which has many machines. */
static long floor_of(const struct transfer *t)
{
    const uint32_t s = XFER_AWAY_FLOOR_S << (t->away_failures < 8 ? t->away_failures : 8);
    /* The progress of a PUT is not visible while its bytes are in the kernel's buffers. */
    return (long)(t->away && t->kind == TRANSFER_GET && s < t->owner->o.floor_s
                      ? s
                      : t->owner->o.floor_s);
}

/* The least speed; that of a neighbour is higher, unless the own link is limited. */
static uint64_t least_of(const struct transfer *t)
{
    const struct xfer_options *o = &t->owner->o;
    return t->away && t->is_near && o->down_bytes_per_s == 0 ? NEAR_BYTES_PER_S
                                                             : o->min_bytes_per_s;
}

static void run(struct transfer *t)
{
    struct xfer *x = t->owner;
    struct err err = {0};
    int rc = start_curl(x, &err);
    if (rc == 0) {
        x->running++;
        rc = transfer_prepare(t, &err);
        if (!t->easy)
            x->running--;
    }
    if (rc < 0) {
        finish(t, rc, err.msg);
        return;
    }
    if (t->kind == TRANSFER_GET && t->size && t->offset == t->size) {
        start_verify(t); /* all bytes came before the stop */
        return;
    }
    curl_easy_setopt(t->easy, CURLOPT_USERAGENT, x->o.user_agent);
    curl_easy_setopt(t->easy, CURLOPT_CONNECTTIMEOUT_MS,
                     t->away && t->is_near ? NEAR_CONNECT_MS : (long)x->o.connect_ms);
    curl_easy_setopt(t->easy, CURLOPT_LOW_SPEED_LIMIT, (long)least_of(t));
    curl_easy_setopt(t->easy, CURLOPT_LOW_SPEED_TIME, floor_of(t));
    CURLMcode mc = curl_multi_add_handle(x->multi, t->easy);
    if (mc != CURLM_OK) {
        finish(t, -ENOMEM, curl_multi_strerror(mc));
        return;
    }
    if (!loop_timer_active(x->tick))
        loop_timer_start(x->tick, TICK_MS, TICK_MS);
}

static void start_pump(void *arg)
{
    pump(arg);
}

static void pump(struct xfer *x)
{
    while (!x->closed && x->running < x->o.max_parallel && !list_empty(&x->waiting)) {
        struct transfer *t = list_entry(list_pop(&x->waiting), struct transfer, link);
        x->waiting_count--;
        t->state = TRANSFER_RUNNING;
        list_push(&x->active, &t->link);
        x->active_count++;
        run(t);
    }
}

static void settle(struct transfer *t, CURLcode rc)
{
    struct err err = {0};
    switch (transfer_judge(t, rc, &err)) {
    case TRANSFER_DONE:
        finish(t, 0, "");
        break;
    case TRANSFER_FAILED:
        finish(t, err.code, err.msg);
        break;
    case TRANSFER_RETRY:
        retry_later(t, &err);
        break;
    case TRANSFER_AGAIN:
        end_attempt(t);
        run(t);
        break;
    case TRANSFER_VERIFY:
        start_verify(t);
        break;
    }
}

static void check_finished(struct xfer *x)
{
    int left;
    while (!x->closed) {
        CURLMsg *m = curl_multi_info_read(x->multi, &left);
        if (!m)
            break;
        struct transfer *t;
        CURLcode rc = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
        settle(t, rc);
    }
    pump(x);
}

/* ---- the limit of bandwidth ---- */

/* Moves the first transfer that got something to the end: next time it is the others' turn. */
static void rotate(struct xfer *x)
{
    struct transfer *first = NULL;
    for (struct list *l = x->active.next; l != &x->active; l = l->next) {
        struct transfer *t = list_entry(l, struct transfer, link);
        if (!first && t->moved != t->paced)
            first = t;
        t->paced = t->moved;
    }
    if (first) {
        list_remove(&first->link);
        list_push(&x->active, &first->link);
    }
}

/* Lets all paused transfers try; those without room pause again. */
static void on_pace(void *arg)
{
    struct xfer *x = arg;
    for (struct list *l = x->active.next; !x->closed && l != &x->active;) {
        struct transfer *t = list_entry(l, struct transfer, link);
        l = l->next;
        if (!t->paused || !t->easy)
            continue;
        t->paused = false;
        const CURLcode rc = curl_easy_pause(t->easy, CURLPAUSE_CONT);
        if (rc != CURLE_OK) { /* libcurl has dropped the bytes, and would go on behind them */
            settle(t, rc);
            l = x->active.next; /* anything may have happened to the list */
        }
    }
    if (!x->closed)
        act(x, CURL_SOCKET_TIMEOUT, 0);
    if (!x->closed)
        rotate(x);
}

/* ---- progress ---- */

/* The size of the file, which only the answer says where the caller does not know it; 0: not known,
 * also when the answer is a rest of the file. */
static uint64_t size_of(const struct transfer *t)
{
    curl_off_t said = 0;
    if (t->size || t->resumed || !t->easy ||
        curl_easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &said) != CURLE_OK)
        return t->size;
    return said > 0 ? (uint64_t)said : 0;
}

/* Reports progress, outside libcurl's callbacks, so that the owner may
 * cancel; gives up silent servers. */
static void on_tick(void *arg)
{
    struct xfer *x = arg;
    const uint64_t now = loop_now_ms(x->loop);
    if (x->running == 0)
        loop_timer_stop(x->tick);
    for (struct list *l = x->active.next; !x->closed && l != &x->active;) {
        struct transfer *t = list_entry(l, struct transfer, link);
        l = l->next;
        const uint64_t reached = transfer_reached(t);
        const bool news = t->progress && t->progress_shown != reached && !t->asking &&
                          t->told_ms != now; /* more may have been acknowledged since */
        if (transfer_is_unanswered(t)) {
            settle(t, CURLE_OPERATION_TIMEDOUT);
        } else if (news) {
            t->progress_shown = reached;
            t->told_ms = now;
            t->progress(t->arg, reached, size_of(t));
        } else {
            continue;
        }
        l = x->active.next; /* anything may have happened to the list */
    }
    if (!x->closed)
        pump(x);
}

/* ---- the engine ---- */

static void set_defaults(struct xfer_options *o)
{
    o->max_parallel = o->max_parallel ? o->max_parallel : 8;
    o->max_queued = o->max_queued ? o->max_queued : 4096;
    o->connect_ms = o->connect_ms ? o->connect_ms : 10000;
    o->min_bytes_per_s = o->min_bytes_per_s ? o->min_bytes_per_s : 1024;
    o->floor_s = o->floor_s ? o->floor_s : 20;
    o->max_tries = o->max_tries ? o->max_tries : 6;
    o->backoff_min_ms = o->backoff_min_ms ? o->backoff_min_ms : 250;
    o->backoff_max_ms = o->backoff_max_ms ? o->backoff_max_ms : 15000;
    o->user_agent = o->user_agent ? o->user_agent : "skerry";
}

int xfer_new(struct loop *loop, const struct xfer_options *o, struct xfer **ret, struct err *err)
{
    ASSERT_LOOP_THREAD(loop);
    struct xfer *x = mem_alloc(sizeof(*x));
    x->loop = loop;
    if (o)
        x->o = *o;
    set_defaults(&x->o);
    list_init(&x->waiting);
    list_init(&x->active);
    list_init(&x->sockets);
    x->timer = loop_timer_new(loop, on_timer, x);
    x->tick = loop_timer_new(loop, on_tick, x);
    x->link.pace = loop_timer_new(loop, on_pace, x);
    x->link.loop = loop;
    x->link.up.bytes_per_s = x->o.up_bytes_per_s;
    x->link.down.bytes_per_s = x->o.down_bytes_per_s;
    *ret = x;
    return 0;
}

static void engine_free(void *arg)
{
    struct xfer *x = arg;
    if (x->multi)
        (void)curl_multi_cleanup(x->multi); /* no handle is left in it */
    mem_free(x);
}

void xfer_free(struct xfer *x)
{
    if (!x || x->closed)
        return;
    ASSERT_LOOP_THREAD(x->loop);
    x->closed = true;
    while (!list_empty(&x->waiting) || !list_empty(&x->active)) {
        struct list *l = list_empty(&x->waiting) ? x->active.next : x->waiting.next;
        finish(list_entry(l, struct transfer, link), -ERR_CANCELLED, "cancelled");
    }
    pool_free(x->pool);
    while (!list_empty(&x->sockets))
        unwatch(list_entry(x->sockets.next, struct watch, link));
    loop_timer_free(x->timer);
    loop_timer_free(x->tick);
    loop_timer_free(x->link.pace);
    loop_defer(x->loop, engine_free, x); /* functions of this engine may be further up the stack */
}

static int enqueue(struct xfer *x, struct transfer *t, const char *url, uint64_t *ret_id,
                   struct err *err)
{
    int rc = 0;
    ASSERT_LOOP_THREAD(x->loop);
    if (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0)
        rc = err_set(err, -EINVAL, "\"%.80s\" is not a URL of http or https", url);
    else if (x->closed || x->waiting_count + x->active_count >= x->o.max_queued)
        rc = err_set(err, -EAGAIN, "too many transfers are waiting");
    if (rc < 0) {
        transfer_free(t);
        return rc;
    }
    t->owner = x;
    t->shared = &x->link;
    t->url = str_dup(url);
    t->id = ++x->next_id;
    list_push(&x->waiting, &t->link);
    x->waiting_count++;
    if (ret_id)
        *ret_id = t->id;
    loop_defer(x->loop, start_pump, x); /* not from within: the caller does not know the id yet */
    return 0;
}

static struct transfer *make(enum transfer_kind kind, const uint8_t *pin, const char *bearer,
                             xfer_done_fn done, void *arg)
{
    struct transfer *t = mem_alloc(sizeof(*t));
    t->kind = kind;
    t->fd = -1;
    t->bearer = str_dup(bearer);
    t->done = done;
    t->arg = arg;
    t->has_pin = pin != NULL;
    if (pin)
        memcpy(t->pin, pin, sizeof(t->pin));
    buf_init(&t->answer, ERROR_BODY_MAX);
    list_init(&t->link);
    return t;
}

int xfer_get(struct xfer *x, const struct xfer_get *g, uint64_t *ret_id, struct err *err)
{
    struct transfer *t = make(TRANSFER_GET, g->pin, g->bearer, g->done, g->arg);
    t->path = str_dup(g->path);
    t->part = str_printf("%s.part", g->path);
    t->size = g->size;
    t->max_bytes = g->max_bytes ? g->max_bytes : g->size ? g->size : SIZE_MAX_DEFAULT;
    t->public_only = g->public_only;
    t->follow = g->follow;
    t->near = g->near;
    t->cached = g->cached;
    t->mode = g->mode ? g->mode : 0600;
    t->progress = g->progress;
    t->has_sha256 = g->sha256 != NULL;
    if (g->sha256)
        memcpy(t->sha256, g->sha256, sizeof(t->sha256));
    return enqueue(x, t, g->url, ret_id, err);
}

int xfer_put(struct xfer *x, const struct xfer_put *p, uint64_t *ret_id, struct err *err)
{
    struct transfer *t = make(TRANSFER_PUT, p->pin, NULL, p->done, p->arg);
    t->path = str_dup(p->path);
    t->progress = p->progress;
    t->asking = true;
    t->follow = t->has_sha256 = p->sha256 != NULL;
    if (p->sha256)
        memcpy(t->sha256, p->sha256, sizeof(t->sha256));
    return enqueue(x, t, p->url, ret_id, err);
}

void xfer_hurry(struct xfer *x)
{
    ASSERT_LOOP_THREAD(x->loop);
    for (struct list *l = x->active.next; l != &x->active; l = l->next) {
        struct transfer *t = list_entry(l, struct transfer, link);
        if (t->state == TRANSFER_BACKOFF)
            loop_timer_start(t->retry, 0, 0);
    }
}

void xfer_cancel(struct xfer *x, uint64_t id)
{
    ASSERT_LOOP_THREAD(x->loop);
    struct list *lists[] = {&x->waiting, &x->active};
    for (unsigned i = 0; i < 2; i++) {
        for (struct list *l = lists[i]->next; l != lists[i]; l = l->next) {
            struct transfer *t = list_entry(l, struct transfer, link);
            if (t->id == id) {
                finish(t, -ERR_CANCELLED, "cancelled");
                loop_defer(x->loop, start_pump, x);
                return;
            }
        }
    }
}

struct xfer_counters xfer_counters(const struct xfer *x)
{
    struct xfer_counters c = x->counters;
    socket_bytes_read(&x->link.bytes, &c.bytes_in, &c.bytes_out);
    c.running = x->running;
    c.waiting = x->waiting_count + x->active_count - x->running;
    return c;
}
