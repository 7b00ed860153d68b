#include "worker/link/fetch.h"

#include "common/base/log.h"
#include "common/net/loop.h"
#include "common/net/pool.h"
#include "common/net/token.h"
#include "common/net/http/transfer.h"
#include "worker/order/cache.h"
#include "worker/order/work.h"

#define IN_FLIGHT_MAX 8

struct item {
    struct fetch *f;
    size_t need; /* index into the needs; SIZE_MAX: the archive */
    uint64_t id; /* the running transfer's; 0: none */
    bool again;  /* its content was wrong once */
};

/* Moved to the compute thread: files that go for an archive. */
struct room {
    struct fetch *f; /* NULL: it is over */
    struct cache *cache;
    uint64_t bytes;
};

struct fetch {
    struct fetch_env env;
    struct fetch_what what;
    fetch_done_fn done; /* NULL: cancelled */
    void *arg;
    struct item *items;
    size_t n, started, finished;
    unsigned running;
    struct room *room; /* NULL: none is being made */
    int code;
    char detail[1024];
    bool ending; /* the deferred turn frees it */
};

int fetch_resolve(const struct token *token, const char *url, char ret_url[FETCH_URL_MAX],
                  const uint8_t **ret_pin, struct err *err)
{
    const bool ours = *url == '/';
    char base[TOKEN_URL_MAX] = "";
    if (ours)
        token_http_url(token, base);
    int n = snprintf(ret_url, FETCH_URL_MAX, "%s%s", base, url);
    if (n < 0 || n >= FETCH_URL_MAX)
        return err_set(err, -ERR_LIMIT, "a ticket's URL is too long");
    *ret_pin = ours && !token->http_plain ? token->pin : NULL;
    return 0;
}

static void fetch_free(struct fetch *f)
{
    if (f->room)
        f->room->f = NULL;
    mem_free(f->items);
    mem_free(f);
}

/* Reports the outcome in a turn of its own. */
static void finish(void *arg)
{
    struct fetch *f = arg;
    fetch_done_fn done = f->done;
    void *done_arg = f->arg;
    int code = f->code;
    char detail[sizeof(f->detail)];
    str_copy(detail, sizeof(detail), f->detail);
    fetch_free(f);
    if (done)
        done(done_arg, code, detail);
}

static void end(struct fetch *f)
{
    if (f->ending)
        return;
    f->ending = true;
    loop_defer(f->env.loop, finish, f);
}

/* it: what failed; NULL: nothing of it alone. */
static void fail(struct fetch *f, const struct item *it, int code, const char *detail)
{
    if (f->code == 0) {
        if (it && it->need != SIZE_MAX && f->what.ret_blob_failed)
            *f->what.ret_blob_failed = true;
        f->code = code;
        str_copy(f->detail, sizeof(f->detail), detail);
    }
    for (size_t i = 0; i < f->started; i++) {
        uint64_t id = f->items[i].id;
        if (id)
            xfer_cancel(f->env.xfer, id);
    }
    if (f->running == 0)
        end(f);
}

static void pump(struct fetch *f);
static int launch(struct fetch *f, struct item *it, struct err *err);

/* Wrong content twice is a broken store, not a broken line: -ERR_HASH. */
static int try_again(struct fetch *f, struct item *it, const char *what, struct err *err)
{
    if (it->again || f->code < 0)
        return -ERR_HASH;
    it->again = true;
    log_warn("fetch", "%s arrived damaged: %s; fetching it again", what, err->msg);
    return launch(f, it, err);
}

static const char *item_name(const struct fetch *f, const struct item *it)
{
    return it->need == SIZE_MAX ? "the source archive" : f->what.needs[it->need].what;
}

static void on_done(void *arg, const struct xfer_result *r)
{
    struct item *it = arg;
    struct fetch *f = it->f;
    const char *what = item_name(f, it);
    it->id = 0;
    f->running--;
    struct err err = {0};
    int code = r->code;
    (void)err_set(&err, code, "%s", r->detail);
    if (code == 0 && it->need != SIZE_MAX)
        code = cache_added(f->env.cache, f->what.needs[it->need].sha256, &err);
    if (code == -ERR_HASH && (code = try_again(f, it, what, &err)) == 0)
        return;
    if (code < 0) {
        if (code == -ERR_HASH)
            (void)err_wrap(&err,
                           "the coordinator's copy of %s is damaged (it came with wrong "
                           "content twice)",
                           what);
        else
            (void)err_wrap(&err, "fetching %s", what);
        fail(f, it, code, err.msg);
        return;
    }
    f->finished++;
    pump(f);
}

static int make_room(void *arg)
{
    const struct room *r = arg;
    cache_make_room(r->cache, r->bytes);
    return 0;
}

static void room_made(void *arg, int rc)
{
    struct room *r = arg;
    if (r->f)
        r->f->room = NULL;
    mem_free(r);
}

/* For the rest of an archive, whose size its server has told; what is needed has its room. */
static void ask_for_room(struct fetch *f, uint64_t bytes)
{
    if (f->room)
        return;
    f->room = mem_alloc(sizeof(*f->room));
    *f->room = (struct room){f, f->env.cache, bytes};
    if (pool_submit(f->env.compute, make_room, room_made, f->room) < 0)
        room_made(f->room, -EAGAIN); /* the next progress asks again */
}

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    struct item *it = arg;
    struct fetch *f = it->f;
    char have[STR_HUMAN_MAX], all[STR_HUMAN_MAX];
    if (it->need == SIZE_MAX && total > done)
        ask_for_room(f, total - done);
    if (f->what.progress)
        progress_activity(f->what.progress, "downloading %s (%zu of %zu): %s of %s",
                          item_name(f, it), f->finished + 1, f->n, str_human_bytes(done, have),
                          total ? str_human_bytes(total, all) : "?");
}

static int launch(struct fetch *f, struct item *it, struct err *err)
{
    char url[FETCH_URL_MAX], path[CACHE_PATH_MAX];
    struct xfer_get get = {.url = url,
                           .path = path,
                           .cached = true, /* after a restart an archive is not used */
                           .progress = on_progress,
                           .done = on_done,
                           .arg = it};
    const char *source;
    if (it->need == SIZE_MAX) {
        source = f->what.source_url;
        str_copy(path, sizeof(path), f->what.source_path);
        get.public_only = !f->env.private_sources;
        get.max_bytes = f->env.source_max_bytes;
    } else {
        const struct work_need *n = &f->what.needs[it->need];
        source = n->url;
        cache_path(f->env.cache, n->sha256, path);
        get.sha256 = n->sha256;
        get.size = n->size;
        get.follow = true;
        get.near = f->env.near;
    }
    int rc = fetch_resolve(f->env.token, source, url, &get.pin, err);
    if (rc == 0)
        rc = xfer_get(f->env.xfer, &get, &it->id, err);
    if (rc == 0)
        f->running++;
    return rc;
}

static void pump(struct fetch *f)
{
    while (f->code == 0 && f->started < f->n && f->running < IN_FLIGHT_MAX) {
        struct item *it = &f->items[f->started];
        struct err err = {0};
        if (f->what.progress)
            progress_activity(f->what.progress, "downloading %s (%zu of %zu)", item_name(f, it),
                              f->started + 1, f->n);
        int rc = launch(f, it, &err);
        if (rc == -EAGAIN && f->running > 0)
            return; /* the next completion continues */
        if (rc < 0) {
            (void)err_wrap(&err, "fetching %s", item_name(f, it));
            fail(f, it, rc, err.msg);
            return;
        }
        f->started++;
    }
    if (f->running == 0 && (f->started == f->n || f->code < 0))
        end(f);
}

struct fetch *fetch_start(const struct fetch_env *env, const struct fetch_what *what,
                          fetch_done_fn done, void *arg)
{
    struct fetch *f = mem_alloc(sizeof(*f));
    *f = (struct fetch){.env = *env, .what = *what, .done = done, .arg = arg};
    f->items = mem_alloc_array(what->n + 1, sizeof(*f->items));
    uint64_t bytes = 0;
    for (size_t i = 0; i < what->n; i++)
        if (what->needs[i].missing) {
            f->items[f->n++] = (struct item){.f = f, .need = i};
            bytes += what->needs[i].size;
        }
    if (what->source_url)
        f->items[f->n++] = (struct item){.f = f, .need = SIZE_MAX};
    struct err err = {0};
    int rc = cache_reserve(env->cache, bytes, &err);
    if (rc < 0)
        fail(f, NULL, rc, err.msg);
    else
        pump(f);
    return f;
}

void fetch_cancel(struct fetch *f)
{
    if (!f)
        return;
    f->done = NULL;
    fail(f, NULL, -ERR_CANCELLED, "cancelled");
}
