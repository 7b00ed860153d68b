#include "worker/forget.h"

#include "common/net/pool.h"
#include "worker/workdir.h"

struct forgetting {
    const char *state_dir;
    uint64_t before;
    size_t n_going;
    uint64_t going[];
};

static int forget_work(void *arg)
{
    const struct forgetting *f = arg;
    workdir_forget(f->state_dir, f->before, f->going, f->n_going);
    return 0;
}

static void forget_done(void *arg, int rc)
{
    mem_free(arg);
}

void forget_jobs(struct forget *known, struct pool *pool, const char *state_dir,
                 const Skerry__V1__AssignReply *m)
{
    /* An earlier release tells only of those before the first that goes on. */
    const uint64_t before = m->over_before > 0 ? m->over_before : m->ended_before;
    /* Each that ends is one less that goes on, or others have begun. */
    if (before == known->before && m->n_going == known->n_going)
        return;
    *known = (struct forget){before, m->n_going};
    struct forgetting *f = mem_alloc(sizeof(*f) + m->n_going * sizeof(f->going[0]));
    *f = (struct forgetting){state_dir, before, m->n_going};
    for (size_t i = 0; i < m->n_going; i++)
        f->going[i] = m->going[i];
    if (pool_submit(pool, forget_work, forget_done, f) < 0)
        mem_free(f); /* it is tried again when the next job ends */
}
