#include "tests/sim/cache.h"

#include <stdio.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/outer/version.h"
#include "tests/sim/disk.h"
#include "tests/sim/oracle.h"
#include "tests/sim/sim.h"
#include "tests/sim/world.h"

struct held {
    uint64_t module, version;
    char *path;
};

struct cache {
    char *dir;
    struct held list[CACHE_MODULES_MAX];
    size_t n;
};

struct cache *cache_new(const char *dir)
{
    struct cache *c = mem_alloc(sizeof(*c));
    c->dir = str_dup(dir);
    return c;
}

void cache_clear(struct cache *c)
{
    for (size_t i = 0; i < c->n; i++)
        mem_free(c->list[i].path);
    c->n = 0;
}

void cache_free(struct cache *c)
{
    cache_clear(c);
    mem_free(c->dir);
    mem_free(c);
}

size_t cache_held(const struct cache *c, Skerry__V1__HeldVersion ret[CACHE_MODULES_MAX])
{
    for (size_t i = 0; i < c->n; i++) {
        skerry__v1__held_version__init(&ret[i]);
        ret[i].module_id = c->list[i].module;
        ret[i].version = c->list[i].version;
    }
    return c->n;
}

size_t cache_needs(const Skerry__V1__Task *t, const Skerry__V1__Blob **ret)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_modules; i++) {
        const Skerry__V1__ModuleRef *r = t->modules[i];
        if (r->n_deltas == 0)
            ret[n++] = r->full;
        for (size_t d = 0; d < r->n_deltas; d++)
            ret[n++] = r->deltas[d]->blob;
    }
    return n;
}

static struct held *held_of(struct cache *c, uint64_t module)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->list[i].module == module)
            return &c->list[i];
    if (c->n == CACHE_MODULES_MAX)
        sim_fail("a worker holds more than %d modules", CACHE_MODULES_MAX);
    c->list[c->n] = (struct held){.module = module};
    return &c->list[c->n++];
}

static bool move_on(struct cache *c, struct held *h, const Skerry__V1__Delta *d, const char *file,
                    const uint8_t *sha256)
{
    struct err err = {0};
    char *to = str_printf("%s/module-%llu-%llu", c->dir, (unsigned long long)h->module,
                          (unsigned long long)d->to);
    if (h->path == NULL || h->version != d->from)
        sim_fail("deltas of module %llu lead on from version %llu, which the worker does not hold",
                 (unsigned long long)h->module, (unsigned long long)d->from);
    const int rc =
        version_apply_delta(h->path, file, h->module, d->from, to, NULL, sha256, NULL, &err);
    if (rc < 0 && !world_went_back() && !oracle_remade(h->module))
        sim_fail("version %llu of module %llu is not what its delta makes of the one before: %s",
                 (unsigned long long)d->to, (unsigned long long)h->module, err.msg);
    (void)file_remove(h->path, NULL);
    mem_free(h->path);
    h->path = to;
    h->version = d->to;
    return rc == 0;
}

static bool move_all(struct cache *c, struct held *h, const Skerry__V1__ModuleRef *r,
                     char *const *files)
{
    bool right = true;
    for (size_t d = 0; d < r->n_deltas && right; d++)
        right = move_on(c, h, r->deltas[d], files[d], d + 1 == r->n_deltas ? r->sha256.data : NULL);
    if (!right) {
        mem_free(h->path);
        *h = c->list[--c->n];
    }
    return right;
}

static void take_full(struct cache *c, struct held *h, const Skerry__V1__ModuleRef *r,
                      const char *file)
{
    struct err err = {0};
    if (h->path != NULL)
        (void)file_remove(h->path, NULL);
    mem_free(h->path);
    h->path = str_printf("%s/module-%llu-%llu", c->dir, (unsigned long long)h->module,
                         (unsigned long long)r->version);
    h->version = r->version;
    if (file_rename(file, h->path, &err) < 0)
        sim_fail("%s", err.msg);
}

bool cache_build(struct cache *c, const Skerry__V1__Task *t, char *const *files, char **made)
{
    bool right = true;
    disk_elsewhere(true);
    for (size_t i = 0; i < t->n_modules && right; i++) {
        const Skerry__V1__ModuleRef *r = t->modules[i];
        struct held *h = held_of(c, r->module_id);
        if (r->n_deltas == 0)
            take_full(c, h, r, *files++);
        else if (!(right = move_all(c, h, r, files)))
            break;
        files += r->n_deltas;
        if (h->version != r->version)
            sim_fail("task %llu names version %llu of module %llu and leads to %llu",
                     (unsigned long long)t->id, (unsigned long long)r->version,
                     (unsigned long long)r->module_id, (unsigned long long)h->version);
        made[i] = str_dup(h->path);
    }
    disk_elsewhere(false);
    return right;
}
