#include "coordinator/job/leftover.h"

#include "common/base/file.h"
#include "common/outer/fold.h"
#include "coordinator/outer/outer_exec.h"

struct removal {
    struct coordinator *co;
    char *dir;
    uint64_t keep; /* the version whose files stay; 0: none */
};

/* The same for the copies in a store far away.  Copies that a fault leaves go with the job. */
static void remove_copies(const struct removal *r)
{
    static const char *const kinds[] = {"target", "momentum", "buffer"};
    struct blobstore *store = r->co->blobs;
    const char *dir = r->dir + strlen(r->co->opt.data_dir);
    dir += *dir == '/'; /* the data dir may end with one */
    char *all = str_printf("%s/", dir);
    for (size_t i = 0; r->keep > 1 && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
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
    return r->keep ? outer_state_prune(r->dir, r->keep, NULL) : file_remove_tree(r->dir, NULL);
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

void leftover_resume(struct coordinator *co)
{
    for (size_t i = 0; i < co->state.n_jobs; i++) {
        char *name = outer_state_dir(co->state.jobs[i]->id, 0);
        char *dir = file_join(co->opt.data_dir, name);
        if (job_is_ended(co->state.jobs[i]) && !co->state.jobs[i]->unread && file_is_dir(dir))
            leftover_drop(co, dir, 0);
        else
            mem_free(dir);
        mem_free(name);
    }
}
