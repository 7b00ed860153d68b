#include "coordinator/job/leftover.h"

#include <jansson.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/outer/fold.h"
#include "coordinator/outer/outer_exec.h"
#include "coordinator/state/blobs.h"

#define NAMES_MAX ((size_t)1 << 20) /* more copies count as if they were not there */

static const char *const kinds[] = {"target", "momentum", "buffer"};

#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* ---- what is no longer needed ---- */

struct removal {
    struct coordinator *co;
    char *dir;
    uint64_t keep; /* the version whose files stay; 0: none */
};

/* The same for the copies in a store far away.  Copies that a fault leaves go with the job. */
static void remove_copies(const struct removal *r)
{
    struct blobstore *store = r->co->blobs;
    const char *dir = r->dir + strlen(r->co->opt.data_dir);
    dir += *dir == '/'; /* the data dir may end with one */
    char *all = str_printf("%s/", dir);
    for (size_t i = 0; r->keep > 1 && i < KINDS; i++) {
        char *name = outer_state_file(dir, kinds[i], r->keep - 1);
        (void)store->ops->drop(store, name, NULL);
        mem_free(name);
    }
    if (r->keep == 0)
        (void)store->ops->drop(store, all, NULL);
    mem_free(all);
}

static int removal_work(void *arg)
{
    const struct removal *r = arg;
    if (r->co->blobs->ops->drop)
        remove_copies(r);
    return r->keep ? outer_state_prune(r->dir, r->keep, UINT64_MAX, NULL)
                   : file_remove_tree(r->dir, NULL);
}

static void removal_free(void *arg, int rc)
{
    struct removal *r = arg;
    mem_free(r->dir);
    mem_free(r);
}

static void removal_begin(void *arg, int rc)
{
    struct removal *r = arg;
    if (rc < 0 || pool_submit(r->co->disk, removal_work, removal_free, r) < 0)
        removal_free(r, 0); /* nothing depends on it, and the next pruning removes these as well */
}

void leftover_drop(struct coordinator *co, char *dir, uint64_t keep)
{
    struct removal *r = mem_alloc(sizeof(*r));
    *r = (struct removal){co, dir, keep};
    core_when_durable(co, removal_begin, r);
}

/* ---- at a start ---- */

struct copies {
    struct coordinator *co;
    struct file_names there; /* "NAME-SHA256", sorted */
    unsigned sent;
};

static int note(void *arg, const char *name)
{
    struct copies *c = arg;
    (void)file_names_add(&c->there, NAMES_MAX, str_dup(name), NULL);
    return 0;
}

/* Compares only as much as the first one has. */
static int order_begins(const void *begin, const void *name)
{
    return strncmp(begin, *(char *const *)name, strlen(begin));
}

static bool is_there(const struct copies *c, const char *begin)
{
    return c->there.n > 0 && bsearch(begin, c->there.items, c->there.n, sizeof(*c->there.items),
                                     order_begins) != NULL;
}

static int send_one(struct copies *c, const char *name, const struct blob_ref *b, struct err *err)
{
    struct blobstore *store = c->co->blobs;
    char *path = file_join(c->co->opt.data_dir, name);
    uint8_t got[HASH_BYTES];
    uint64_t size = 0;
    int rc = 0;
    if (hash_file(path, got, &size, NULL) == 0 && size == b->size &&
        hash_equal(got, b->sha256, sizeof(got))) {
        if (c->sent == 0)
            log_info("outer", "what the store lacks of the outer optimiser's state is sent to it "
                              "first, which may be gigabytes");
        rc = store->ops->save(store, name, path, b->sha256, b->size, err);
        c->sent += rc == 0;
    }
    mem_free(path);
    return rc;
}

static int complete_module(struct copies *c, const struct job *j, const struct module_rec *m,
                           struct err *err)
{
    const struct version_rec *v = module_version(m, m->version);
    if (v == NULL || blob_ref_is_set(&v->target)) /* else it is among the blobs */
        return 0;
    json_t *doc = v->provenance ? json_loads(v->provenance, 0, NULL) : NULL;
    char *dir = outer_state_dir(j->id, m->id);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < KINDS; i++) {
        struct blob_ref b;
        char hex[HASH_HEX_MAX], *name = outer_state_file(dir, kinds[i], v->version);
        if (blob_ref_read(json_object_get(json_object_get(doc, "state"), kinds[i]), &b)) {
            char *copy = str_printf("%s-%s", name, hash_hex(b.sha256, HASH_BYTES, hex));
            rc = is_there(c, copy) ? 0 : send_one(c, name, &b, err);
            mem_free(copy);
        }
        mem_free(name);
    }
    mem_free(dir);
    json_decref(doc);
    return rc;
}

/* What is left of an ended job, which stays ended for whoever owns the state after us. */
static void drop_ended(struct copies *c, const struct job *j)
{
    char *name = outer_state_dir(j->id, 0), *begin = str_printf("%s/", name);
    char *dir = file_join(c->co->opt.data_dir, name);
    if (file_is_dir(dir) || is_there(c, begin))
        leftover_drop(c->co, dir, 0);
    else
        mem_free(dir);
    mem_free(begin);
    mem_free(name);
}

static int complete_job(struct copies *c, const struct job *j, struct err *err)
{
    int rc = 0;
    for (uint32_t m = 0; rc == 0 && m < j->comp.n_modules; m++)
        rc = complete_module(c, j, &j->modules[m], err);
    return rc;
}

/* What a stop has left of steps that were begun, and are begun anew. */
static void drop_begun(const struct coordinator *co, const struct job *j)
{
    for (uint32_t m = 0; m < j->comp.n_modules; m++) {
        char *name = outer_state_dir(j->id, j->modules[m].id);
        char *dir = file_join(co->opt.data_dir, name);
        (void)outer_state_prune(dir, 0, j->modules[m].version, NULL); /* or the next time */
        mem_free(dir);
        mem_free(name);
    }
}

int leftover_resume(struct coordinator *co, struct err *err)
{
    const struct blobstore_ops *ops = co->blobs->ops;
    struct copies c = {.co = co};
    int rc = ops->saved ? ops->saved(co->blobs, "outer/", note, &c, err) : 0;
    if (c.there.n > 0)
        qsort(c.there.items, c.there.n, sizeof(*c.there.items), str_order);
    for (size_t i = 0; rc == 0 && i < co->state.n_jobs; i++) {
        const struct job *j = co->state.jobs[i];
        if (job_is_ended(j) && !j->unread)
            drop_ended(&c, j);
        else if (!job_is_ended(j))
            drop_begun(co, j);
        if (ops->save && !job_is_ended(j))
            rc = complete_job(&c, j, err);
    }
    if (c.sent > 0)
        log_info("outer", "%u file%s of the outer optimiser's state went to the store", c.sent,
                 str_plural(c.sent));
    file_names_release(&c.there);
    return rc;
}
