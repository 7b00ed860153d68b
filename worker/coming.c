#include "worker/coming.h"

#include "common/base/file.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/pieces.h"
#include "common/net/growing.h"
#include "common/net/http/transfer.h"
#include "common/net/loop.h"
#include "common/net/pool.h"
#include "worker/link/fetch.h"
#include "worker/order/cache.h"
#include "worker/order/modules.h"
#include "worker/order/progress.h"

#define COMING_MAX 4 /* they take places of transfers, while contributions need some */

/* A delta on its way. */
struct delta {
    struct list link; /* in c->deltas until it is here or given up */
    struct coming *c; /* NULL: nobody waits for it any more */
    struct cache *cache;
    struct modules *modules;
    struct progress_beside *beside;
    uint64_t module_id, version, xfer; /* xfer 0: it has come */
    char *sent;                        /* the file as it comes */
    struct err err;
};

struct coming {
    const struct fetch_env *env;
    struct modules *modules;
    const char *tmp_dir;
    void (*on_end)(void *arg);
    void *arg;
    struct list deltas;
    unsigned n_begun;
};

struct coming *coming_new(const struct fetch_env *env, struct modules *modules, const char *tmp_dir,
                          void (*on_end)(void *arg), void *arg)
{
    struct coming *c = mem_alloc(sizeof(*c));
    *c = (struct coming){
        .env = env, .modules = modules, .tmp_dir = tmp_dir, .on_end = on_end, .arg = arg};
    list_init(&c->deltas);
    return c;
}

static void delta_free(struct delta *d)
{
    char *part = str_printf("%s.part", d->sent); /* of a transfer that was cut (transfer.h) */
    (void)file_remove(part, NULL);
    (void)file_remove(d->sent, NULL); /* it may never have been there */
    mem_free(part);
    mem_free(d->sent);
    mem_free(d);
}

static void give_up(struct delta *d)
{
    struct coming *c = d->c;
    list_remove(&d->link);
    d->c = NULL;
    if (d->xfer)
        xfer_cancel(c->env->xfer, d->xfer); /* whose end frees it */
}

void coming_stop(struct coming *c)
{
    while (c && !list_empty(&c->deltas))
        give_up(list_entry(c->deltas.next, struct delta, link));
}

void coming_free(struct coming *c)
{
    coming_stop(c);
    mem_free(c);
}

static void end(struct delta *d, int rc)
{
    struct coming *c = d->c;
    if (c && rc < 0)
        log_info("coming",
                 "the delta to version %" PRIu64 " of module %" PRIu64 " did not come early: %s",
                 d->version, d->module_id, d->err.msg);
    else if (c)
        log_info("coming",
                 "the delta to version %" PRIu64 " of module %" PRIu64 " came while it was made",
                 d->version, d->module_id);
    if (c)
        list_remove(&d->link);
    delta_free(d);
    if (c)
        c->on_end(c->arg);
}

/* A version that cannot be made now is made when a task names it. */
static void make_version(const struct delta *d, const uint8_t sha256[32])
{
    struct err err = {0};
    char *temp = str_printf("%s.version", d->sent);
    if (d->modules &&
        modules_foresee(d->modules, d->module_id, d->version - 1, sha256, temp, &err) < 0)
        log_info("coming", "version %" PRIu64 " of module %" PRIu64 " is not made early: %s",
                 d->version, d->module_id, err.msg);
    mem_free(temp);
}

static int put_in_order(struct delta *d)
{
    char to[CACHE_PATH_MAX];
    uint8_t sha256[32];
    uint64_t bytes = 0;
    char *made = str_printf("%s.whole", d->sent);
    int rc = file_size(d->sent, &bytes, &d->err);
    if (rc == 0)
        rc = cache_reserve(d->cache, bytes, &d->err);
    if (rc == 0)
        rc = growing_restore(d->sent, made, sha256, &bytes, &d->err);
    if (rc == 0) {
        cache_path(d->cache, sha256, to);
        rc = file_move(made, to, &d->err);
    }
    if (rc == 0)
        rc = cache_added(d->cache, sha256, &d->err);
    if (rc == 0)
        make_version(d, sha256);
    (void)file_remove(made, NULL); /* after a failure */
    mem_free(made);
    return rc;
}

static int restore(void *arg)
{
    struct delta *d = arg;
    progress_hear_beside(d->beside);
    const int rc = put_in_order(d);
    pieces_hear(NULL, NULL);
    return rc;
}

static void restored(void *arg, int rc)
{
    end(arg, rc);
}

static void on_come(void *arg, const struct xfer_result *r)
{
    struct delta *d = arg;
    d->xfer = 0;
    int rc = r->code;
    if (rc < 0)
        (void)err_set(&d->err, rc, "%s", r->detail);
    else if (!d->c)
        rc = -ERR_CANCELLED;
    else if (pool_submit(d->c->env->compute, restore, restored, d) < 0)
        rc = err_set(&d->err, -EAGAIN, "too many jobs wait for the compute thread");
    if (rc < 0)
        end(d, rc);
}

void coming_start(struct coming *c, uint64_t module_id, uint64_t version, const char *url)
{
    char whole[FETCH_URL_MAX];
    unsigned n = 0;
    for (struct list *l = c->deltas.next, *next; l != &c->deltas; l = next) {
        struct delta *d = list_entry(l, struct delta, link);
        next = l->next;
        if (d->module_id == module_id && d->version == version)
            return;
        if (d->module_id == module_id)
            give_up(d);
        else
            n++;
    }
    if (n >= COMING_MAX)
        return;
    struct delta *d = mem_alloc(sizeof(*d));
    *d = (struct delta){.c = c,
                        .cache = c->env->cache,
                        .modules = c->modules,
                        .beside = c->env->beside,
                        .module_id = module_id,
                        .version = version,
                        .sent = str_printf("%s/coming-%u", c->tmp_dir, c->n_begun++)};
    struct xfer_get get = {.url = whole,
                           .path = d->sent,
                           .cached = true,
                           .follow = true, /* it waits when it is told to */
                           .done = on_come,
                           .arg = d};
    list_push(&c->deltas, &d->link);
    int rc = fetch_resolve(c->env->token, url, whole, &get.pin, &d->err);
    if (rc == 0)
        rc = xfer_get(c->env->xfer, &get, &d->xfer, &d->err);
    if (rc < 0) {
        give_up(d);
        delta_free(d);
    }
}

bool coming_awaits(const struct coming *c, const Skerry__V1__Task *task)
{
    for (const struct list *l = c->deltas.next; l != &c->deltas; l = l->next) {
        const struct delta *d = list_entry(l, const struct delta, link);
        for (size_t i = 0; i < task->n_modules; i++)
            if (task->modules[i]->module_id == d->module_id &&
                task->modules[i]->version == d->version)
                return true;
    }
    return false;
}
