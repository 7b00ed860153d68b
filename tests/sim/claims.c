#include "tests/sim/claims.h"

#include "coordinator/job/agree.h"
#include "tests/sim/sim.h"

/* A blob that an honest worker would not have made. */
struct claim {
    uint64_t worker;
    uint8_t sha256[32];
    bool believed;
};

static struct {
    struct claim *list;
    size_t n, cap;
} all;

static uint64_t claims, believed; /* of all worlds */

#define EACH(x) for (struct claim *x = all.list; x != NULL && x < all.list + all.n; x++)

void claims_begin(void)
{
    memset(&all, 0, sizeof(all));
}

void claims_end(void)
{
    mem_free(all.list);
    claims_begin();
}

void claims_count(uint64_t *ret_claims, uint64_t *ret_believed)
{
    *ret_claims = claims;
    *ret_believed = believed;
}

bool claims_made_again(enum task_kind kind)
{
    return kind == TASK_INIT || kind == TASK_INGEST || kind == TASK_ENCODE ||
           kind == TASK_FEATURE || kind == TASK_CLUSTER || kind == TASK_SPLIT || kind == TASK_SCORE;
}

void claims_add(uint64_t worker, const uint8_t sha256[32])
{
    if (all.n == all.cap) {
        all.cap = all.cap ? all.cap * 2 : 64;
        all.list = mem_realloc(all.list, all.cap * sizeof(*all.list));
    }
    struct claim *c = &all.list[all.n++];
    *c = (struct claim){.worker = worker};
    memcpy(c->sha256, sha256, 32);
    claims++;
}

static bool is_of(const struct claim *c, const struct blob_ref *b)
{
    return blob_ref_is_set(b) && memcmp(c->sha256, b->sha256, 32) == 0;
}

static bool is_believed(const struct job *j, const struct claim *c)
{
    bool found = is_of(c, &j->partitioner) || is_of(c, &j->assignment);
    for (size_t i = 0; i < j->n_scores && !found; i++)
        found = is_of(c, &j->scores[i].blob);
    for (size_t i = 0; i < j->n_shards && !found; i++)
        found = is_of(c, &j->shards[i].blob) || is_of(c, &j->shards[i].features);
    for (uint32_t m = 0; m < j->comp.n_modules && !found; m++)
        found = j->modules[m].n_versions > 0 && is_of(c, &j->modules[m].versions[0].full);
    return found;
}

/* From how many other places than that of the liar are workers here that may have tasks? */
static unsigned places(const struct coordinator *co, uint64_t liar)
{
    const struct worker *not = state_worker(&co->state, liar);
    uint64_t from[2];
    unsigned n = 0;
    for (size_t i = 0; i < co->state.n_workers && n < 2; i++) {
        const struct worker *w = co->state.workers[i];
        const uint64_t origin = worker_origin(w);
        if (w->state != WORKER_HERE || worker_goes(w) || w->quarantined_until_ms > core_now(co) ||
            w->n_small > 0 || (not != NULL && worker_origin(not ) == origin) ||
            (n == 1 && from[0] == origin))
            continue;
        from[n++] = origin;
    }
    return n;
}

/* Had the liar another name before? */
static bool has_names(uint64_t liar)
{
    EACH(c)
    if (c->worker != liar)
        return true;
    return false;
}

/* Has a task been tried so often that it is not waited for others any more? */
static bool was_tried(const struct coordinator *co, const struct job *j)
{
    for (size_t i = 0; i < co->state.n_tasks; i++)
        if (co->state.tasks[i]->job_id == j->id && claims_made_again(co->state.tasks[i]->kind) &&
            co->state.tasks[i]->attempt > AGREE_TRIES)
            return true;
    return false;
}

void claims_look(const struct coordinator *co, bool first)
{
    EACH(c)
    for (size_t i = 0; i < co->state.n_jobs && !c->believed; i++) {
        const struct job *j = co->state.jobs[i];
        if (!is_believed(j, c))
            continue;
        c->believed = true;
        believed++;
        if (co->opt.look_again == 1 && !first && !was_tried(co, j) && !has_names(c->worker) &&
            places(co, c->worker) == 2)
            sim_fail("job %llu has a false result of worker %llu, and two others are here",
                     (unsigned long long)j->id, (unsigned long long)c->worker);
    }
}
