#include "worker/order/modules.h"

#include <pthread.h>

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/job/family.h"
#include "common/outer/version.h"
#include "worker/order/cache.h"
#include "worker/order/task_model.h"
#include "worker/order/work.h"

#define FILE_MAX (16u << 10)

struct held {
    uint64_t module_id, version;
    uint8_t sha256[32];
    bool follows; /* `before` was held until then: the next version is written over it */
    uint8_t before[32];
};

struct modules {
    pthread_mutex_t lock;
    struct cache *cache;
    char *path;
    struct held held[MODULES_MAX]; /* the least recently used first */
    size_t n;
};

/* ---- held versions ---- */

/* Under the lock. */
static void remove_at(struct modules *m, size_t i)
{
    cache_unkeep(m->cache, m->held[i].sha256);
    memmove(&m->held[i], &m->held[i + 1], (m->n - i - 1) * sizeof(m->held[0]));
    m->n--;
}

static uint64_t held_bytes(const struct modules *m)
{
    uint64_t sum = 0, size;
    for (size_t i = 0; i < m->n; i++) {
        char path[CACHE_PATH_MAX];
        cache_path(m->cache, m->held[i].sha256, path);
        if (file_size(path, &size, NULL) == 0)
            sum += size;
    }
    return sum;
}

static void remember(struct modules *m, const struct held *h)
{
    struct held now = *h;
    for (size_t i = 0; i < m->n; i++)
        if (m->held[i].module_id == h->module_id) {
            now.follows = memcmp(m->held[i].sha256, h->sha256, 32) != 0;
            memcpy(now.before, m->held[i].sha256, 32);
            remove_at(m, i);
            break;
        }
    if (m->n == MODULES_MAX)
        remove_at(m, 0);
    cache_keep(m->cache, h->sha256);
    m->held[m->n++] = now;
    /* Versions of ended jobs must not fill the cache, since they would be dropped last. */
    while (m->n > 1 && held_bytes(m) > cache_limit_bytes(m->cache) / 2)
        remove_at(m, 0);
}

/* Lines of "MODULE VERSION SHA256". */
static void parse(struct modules *m, const char *text)
{
    char hex[HASH_HEX_MAX];
    struct held h;
    int used;
    while (sscanf(text, "%" SCNu64 " %" SCNu64 " %64s%n", &h.module_id, &h.version, hex, &used) ==
           3) {
        if (strlen(hex) == 64 && hash_unhex(hex, h.sha256, 32) == 0 &&
            cache_has(m->cache, h.sha256))
            remember(m, &h);
        text += used;
    }
}

static void store(struct modules *m)
{
    struct buf text;
    buf_init(&text, FILE_MAX);
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < m->n; i++) {
        char hex[HASH_HEX_MAX];
        (void)buf_printf(&text, "%" PRIu64 " %" PRIu64 " %s\n", m->held[i].module_id,
                         m->held[i].version, hash_hex(m->held[i].sha256, 32, hex));
    }
    pthread_mutex_unlock(&m->lock);
    struct err err = {0};
    /* Not flushed: after a loss of power versions are fetched again. */
    if (file_write_put(m->path, buf_str(&text), text.len, 0600, &err) < 0)
        log_warn("modules", "what is held is not remembered: %s", err.msg);
    buf_release(&text);
}

struct modules *modules_open(const char *path, struct cache *cache)
{
    struct modules *m = mem_alloc(sizeof(*m));
    m->cache = cache;
    m->path = str_dup(path);
    pthread_mutex_init(&m->lock, NULL);
    struct buf text;
    struct err ignored = {0};
    if (file_exists(path) && file_read(path, FILE_MAX, &text, &ignored) == 0) {
        parse(m, buf_str(&text));
        buf_release(&text);
    } else if (ignored.code < 0) {
        log_warn("modules", "starting without module versions: %s", ignored.msg);
    }
    return m;
}

void modules_close(struct modules *m)
{
    if (!m)
        return;
    while (m->n > 0)
        remove_at(m, m->n - 1);
    pthread_mutex_destroy(&m->lock);
    mem_free(m->path);
    mem_free(m);
}

size_t modules_held(struct modules *m, struct modules_version ret[MODULES_MAX])
{
    pthread_mutex_lock(&m->lock);
    size_t n = 0;
    for (size_t i = 0; i < m->n; i++)
        if (cache_has(m->cache, m->held[i].sha256))
            ret[n++] = (struct modules_version){m->held[i].module_id, m->held[i].version};
    pthread_mutex_unlock(&m->lock);
    return n;
}

static bool lookup(struct modules *m, uint64_t module_id, uint64_t version, struct held *ret)
{
    bool found = false;
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < m->n && !found; i++) {
        found = m->held[i].module_id == module_id && m->held[i].version == version;
        if (found)
            *ret = m->held[i];
    }
    pthread_mutex_unlock(&m->lock);
    return found;
}

static void note(struct modules *m, const Skerry__V1__ModuleRef *ref)
{
    struct held h = {.module_id = ref->module_id, .version = ref->version}, had;
    memcpy(h.sha256, ref->sha256.data, 32);
    if (lookup(m, h.module_id, h.version, &had) && memcmp(had.sha256, h.sha256, 32) == 0)
        return;
    pthread_mutex_lock(&m->lock);
    remember(m, &h);
    pthread_mutex_unlock(&m->lock);
    store(m);
}

static void forget(struct modules *m, uint64_t module_id)
{
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < m->n; i++)
        if (m->held[i].module_id == module_id) {
            cache_remove(m->cache, m->held[i].sha256);
            remove_at(m, i);
            break;
        }
    pthread_mutex_unlock(&m->lock);
    store(m);
}

/* ---- version 0 ---- */

static bool to_be_drawn(const struct work *w, const Skerry__V1__ModuleRef *ref)
{
    return ref->version == 0 && !cache_has(w->cache, ref->sha256.data);
}

/* Puts the version into the cache if its hash is the expected one. */
static int keep_if_same(struct work *w, const struct model *m, const float *flat,
                        const Skerry__V1__ModuleRef *ref, struct err *err)
{
    char path[CACHE_PATH_MAX], to[CACHE_PATH_MAX];
    uint8_t sha256[HASH_BYTES];
    uint64_t size;
    work_temp_path(w, "version-0", path);
    int rc = model_save(m, (int)ref->level, flat, path, sha256, &size, err);
    if (rc == 0 && memcmp(sha256, ref->sha256.data, sizeof(sha256)) != 0)
        rc = err_set(err, -ERR_HASH, "what is drawn here is not version 0 of module %" PRIu64,
                     ref->module_id);
    if (rc == 0)
        rc = cache_reserve(w->cache, size, err);
    if (rc < 0)
        return rc;
    cache_path(w->cache, sha256, to);
    if (rename(path, to) < 0)
        return err_errno(err, "moving %s into the cache", path);
    return cache_added(w->cache, sha256, err);
}

/* Draws version 0 of the task's own modules from the seed if the cache lacks it: that takes less
 * time than to fetch it, and its hash says whether it is the same.  Otherwise it will be fetched.
 */
static void draw(struct work *w)
{
    const Skerry__V1__Task *t = w->task;
    const bool router = t->network == SKERRY__V1__NETWORK__NETWORK_ROUTER;
    struct model *m = NULL;
    float *flat = NULL;
    struct err err = {0};
    size_t missing = 0;
    int rc = 0;
    if (w->kind->modules == KIND_MODULES_MADE || job_family(&w->spec)->external ||
        (w->spec.model.warm_start && !router))
        return;
    for (size_t i = 0; i < t->n_modules; i++)
        missing += to_be_drawn(w, t->modules[i]);
    if (missing == 0)
        return;
    progress_activity(&w->progress, "drawing initial values");
    rc = task_model(w, t->network, &m, &err);
    if (rc == 0 && !(flat = model_flat_new(m)))
        rc = err_set(&err, -ENOMEM, "out of memory for %" PRIu64 " parameters", m->params);
    if (rc == 0)
        model_init(m, w->spec.seed, flat);
    for (size_t i = 0; rc == 0 && i < t->n_modules; i++)
        if (to_be_drawn(w, t->modules[i]) && keep_if_same(w, m, flat, t->modules[i], &err) < 0)
            log_info("modules", "%s; it is fetched", err.msg);
    if (rc < 0)
        log_info("modules", "version 0 is fetched: %s", err.msg);
    mem_free(flat);
    model_free(m);
}

/* ---- plan ---- */

/* Index of the delta with which to begin: the latest whose start version is here and
 * intact; n_deltas: there is none. */
static size_t first_delta(struct modules *m, const Skerry__V1__ModuleRef *ref, struct held *ret)
{
    for (size_t i = ref->n_deltas; i-- > 0;) {
        struct err err = {0};
        if (!lookup(m, ref->module_id, ref->deltas[i]->from, ret))
            continue;
        if (cache_check(m->cache, ret->sha256, 0, &err) == 0)
            return i;
        log_warn("modules", "module %" PRIu64 " version %" PRIu64 " cannot be used: %s",
                 ref->module_id, ret->version, err.msg);
        forget(m, ref->module_id);
    }
    return ref->n_deltas;
}

int modules_needs(struct modules *m, const Skerry__V1__ModuleRef *ref, bool full_only,
                  modules_need_fn need, void *arg, struct err *err)
{
    char what[64];
    struct held base;
    if (cache_has(m->cache, ref->sha256.data)) {
        struct err damage = {0};
        if (cache_check(m->cache, ref->sha256.data, 0, &damage) == 0)
            return need(arg, ref->sha256.data, 0, "", "module", err);
        log_warn("modules", "module %" PRIu64 " version %" PRIu64 ": %s; getting it again",
                 ref->module_id, ref->version, damage.msg);
    }
    size_t first = full_only ? ref->n_deltas : first_delta(m, ref, &base);
    if (first < ref->n_deltas) {
        int rc = need(arg, base.sha256, 0, "", "module", err);
        for (size_t i = first; rc == 0 && i < ref->n_deltas; i++) {
            const Skerry__V1__Delta *d = ref->deltas[i];
            snprintf(what, sizeof(what), "delta %" PRIu64 " of module %" PRIu64, d->to,
                     ref->module_id);
            rc = need(arg, d->blob->sha256.data, d->blob->size, d->blob->url, what, err);
        }
        return rc;
    }
    if (!ref->full)
        return err_set(err, -ERR_NOTFOUND,
                       "module %" PRIu64 ": version %" PRIu64 " can only be "
                       "made from an older one, which is not here any more",
                       ref->module_id, ref->version);
    if (memcmp(ref->full->sha256.data, ref->sha256.data, 32) != 0)
        return err_set(err, -ERR_FORMAT,
                       "module %" PRIu64 ": the full blob's hash is not the version's",
                       ref->module_id);
    snprintf(what, sizeof(what), "version %" PRIu64 " of module %" PRIu64, ref->version,
             ref->module_id);
    return need(arg, ref->full->sha256.data, ref->full->size, ref->full->url, what, err);
}

static int need_of_work(void *arg, const uint8_t sha256[32], uint64_t size, const char *url,
                        const char *what, struct err *err)
{
    return work_need(arg, sha256, size, url, what, err);
}

/* Calls fn for every module that the task names, until it fails: its own, the experts and
 * the router of a mixture, the teachers. */
typedef int (*ref_fn)(struct modules *m, struct work *w, const Skerry__V1__ModuleRef *ref,
                      struct err *err);

static int each_of(struct modules *m, struct work *w, Skerry__V1__ModuleRef *const *refs, size_t n,
                   ref_fn fn, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = fn(m, w, refs[i], err);
    return rc;
}

static int each_of_experts(struct modules *m, struct work *w, Skerry__V1__Expert *const *experts,
                           size_t n, ref_fn fn, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = each_of(m, w, experts[i]->modules, experts[i]->n_modules, fn, err);
    return rc;
}

static int each_ref(struct modules *m, struct work *w, ref_fn fn, struct err *err)
{
    const Skerry__V1__Task *t = w->task;
    const Skerry__V1__Mixture *mix = t->mixture;
    if (w->kind->modules == KIND_MODULES_MADE)
        return 0;
    int rc = each_of(m, w, t->modules, t->n_modules, fn, err);
    if (rc == 0 && mix && mix->experts)
        rc = each_of_experts(m, w, mix->experts->expert, mix->experts->n_expert, fn, err);
    if (rc == 0 && mix)
        rc = each_of(m, w, mix->router, mix->n_router, fn, err);
    if (rc == 0 && t->train)
        rc = each_of_experts(m, w, t->train->teachers, t->train->n_teachers, fn, err);
    return rc;
}

static int plan_one(struct modules *m, struct work *w, const Skerry__V1__ModuleRef *ref,
                    struct err *err)
{
    return modules_needs(m, ref, w->full_only, need_of_work, w, err);
}

int modules_plan(struct modules *m, struct work *w, struct err *err)
{
    draw(w);
    return each_ref(m, w, plan_one, err);
}

/* ---- rebuild ---- */

/* The version after h is written over the one before it, which becomes `to`; NULL: over none. */
static const char *spare_of(struct modules *m, const struct held *h, const char *to)
{
    return h->follows && cache_take(m->cache, h->before, to) ? to : NULL;
}

static int rebuild_one(struct modules *m, struct work *w, const Skerry__V1__ModuleRef *ref,
                       struct err *err)
{
    struct held base;
    size_t first = first_delta(m, ref, &base);
    if (first == ref->n_deltas)
        return err_set(err, -ERR_HASH, "module %" PRIu64 ": the version to start from is gone",
                       ref->module_id);
    char from[CACHE_PATH_MAX], delta[CACHE_PATH_MAX], to[CACHE_PATH_MAX], spare[CACHE_PATH_MAX];
    cache_path(m->cache, base.sha256, from);
    work_temp_path(w, "spare", spare);
    for (size_t i = first; i < ref->n_deltas; i++) {
        bool last = i + 1 == ref->n_deltas;
        uint64_t size;
        char name[64];
        int rc = file_size(from, &size, err);
        if (rc == 0 && last)
            rc = cache_reserve(m->cache, size, err);
        if (rc < 0)
            return rc;
        cache_make_room(m->cache, size);
        snprintf(name, sizeof(name), "module-%" PRIu64 "-%" PRIu64, ref->module_id,
                 ref->deltas[i]->to);
        work_temp_path(w, name, to);
        if (last)
            cache_path(m->cache, ref->sha256.data, to);
        cache_path(m->cache, ref->deltas[i]->blob->sha256.data, delta);
        rc = version_apply_delta(from, delta, ref->module_id, ref->deltas[i]->from, to,
                                 last ? spare_of(m, &base, spare) : NULL,
                                 last ? ref->sha256.data : NULL, NULL, err);
        if (rc < 0)
            return rc;
        if (i > first)
            (void)file_remove(from, NULL); /* after a failure it goes with the task */
        str_copy(from, sizeof(from), to);
    }
    return cache_added(m->cache, ref->sha256.data, err);
}

/* Makes the version's file in the cache. */
static int make_file(struct modules *m, struct work *w, const Skerry__V1__ModuleRef *ref,
                     struct err *err)
{
    if (cache_has(m->cache, ref->sha256.data))
        return 0;
    int rc = rebuild_one(m, w, ref, err);
    if (rc != -ERR_HASH && rc != -ERR_FORMAT)
        return rc;
    forget(m, ref->module_id);
    return err->code = -ERR_HASH;
}

static int have_one(struct modules *m, struct work *w, const Skerry__V1__ModuleRef *ref,
                    struct err *err)
{
    int rc = make_file(m, w, ref, err);
    /* From now on this file is one of the needs, so that it stays. */
    return rc < 0 ? rc : work_need(w, ref->sha256.data, 0, "", "module", err);
}

int modules_make(struct modules *m, struct work *w, const Skerry__V1__ModuleRef *ref,
                 struct err *err)
{
    int rc = have_one(m, w, ref, err);
    if (rc == 0)
        note(m, ref);
    return rc;
}

int modules_rebuild(struct modules *m, struct work *w, struct err *err)
{
    const Skerry__V1__Task *t = w->task;
    int rc = each_ref(m, w, have_one, err);
    /* Averages, best versions and other jobs' modules are no base for later versions. */
    for (size_t i = 0; rc == 0 && t->train && i < t->n_modules; i++)
        note(m, t->modules[i]);
    return rc;
}

/* Makes the version after h of its delta; both are pinned. */
static int foresee(struct modules *m, const struct held *h, const uint8_t delta[32],
                   const char *temp, struct err *err)
{
    char from[CACHE_PATH_MAX], path[CACHE_PATH_MAX], to[CACHE_PATH_MAX];
    uint8_t sha256[HASH_BYTES];
    uint64_t size;
    cache_path(m->cache, h->sha256, from);
    cache_path(m->cache, delta, path);
    int rc = cache_check(m->cache, h->sha256, 0, err);
    if (rc == 0)
        rc = file_size(from, &size, err);
    if (rc == 0)
        rc = cache_reserve(m->cache, size, err);
    if (rc < 0)
        return rc;
    char *spare = str_printf("%s.spare", temp);
    rc = version_apply_delta(from, path, h->module_id, h->version, temp, spare_of(m, h, spare),
                             NULL, sha256, err);
    (void)file_remove(spare, NULL); /* it may not have been opened */
    mem_free(spare);
    if (rc < 0)
        return rc;
    cache_path(m->cache, sha256, to);
    rc = file_move(temp, to, err);
    if (rc < 0)
        (void)file_remove(temp, NULL); /* already failing */
    return rc < 0 ? rc : cache_added(m->cache, sha256, err);
}

int modules_foresee(struct modules *m, uint64_t module_id, uint64_t from, const uint8_t delta[32],
                    const char *temp, struct err *err)
{
    struct held h;
    if (!lookup(m, module_id, from, &h))
        return err_set(err, -ERR_NOTFOUND,
                       "version %" PRIu64 " of module %" PRIu64 " is not held here", from,
                       module_id);
    cache_pin(m->cache, h.sha256);
    cache_pin(m->cache, delta);
    const int rc = foresee(m, &h, delta, temp, err);
    cache_unpin(m->cache, delta);
    cache_unpin(m->cache, h.sha256);
    return rc;
}
