#include "coordinator/job/early.h"

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/net/growing.h"
#include "coordinator/job/folds.h"
#include "coordinator/job/leftover.h"
#include "coordinator/outer/outer_early.h"
#include "coordinator/outer/outer_exec.h"
#include "coordinator/work/query.h"

#define REPLICAS_MAX 32        /* each that waits for a delta has a connection */
#define BYTES_MIN (256u << 10) /* of a contribution: the delta has about as many */

/* A contribution that a lease has announced. */
struct coming {
    uint64_t task_id;
    uint32_t attempt;
    struct contribution c;
};

struct early {
    struct list link; /* in co->earlies */
    uint64_t job_id, module_id, base;
    struct blob_id id;
    char *state_dir;
    struct coming *list;
    size_t n, room;
    uint64_t mark; /* of the contributions with which it was begun; 0: it was not, or is made */
    struct growing *delta; /* as it was last fetched; NULL: nobody has */
};

static bool can_be(const struct coordinator *co, const struct job *j, const struct module_rec *m)
{
    const bool lengthened = j->comp.root_rescale && j->comp.modules[m - j->modules].paths > 1;
    return co->blobs->ops->part != NULL && !j->spec.outer.async && !query_streams(j) &&
           j->spec.outer.where != JOB_WHERE_WORKER && !lengthened && m->n_versions > 0 &&
           m->outer_task == 0 && query_replicas_through(j, m) <= REPLICAS_MAX;
}

static struct early *early_new(struct coordinator *co, const struct job *j,
                               const struct module_rec *m)
{
    struct early *e = mem_alloc(sizeof(*e));
    char *dir = outer_state_dir(j->id, m->id);
    e->job_id = j->id;
    e->module_id = m->id;
    e->base = m->version;
    e->room = query_replicas_through(j, m);
    e->list = mem_alloc_array(e->room, sizeof(*e->list));
    e->state_dir = file_join(co->opt.data_dir, dir);
    mem_free(dir);
    hash_random(e->id.sha256, sizeof(e->id.sha256));
    list_push(&co->earlies, &e->link);
    return e;
}

static void drop(struct coordinator *co, struct early *e)
{
    if (e->mark != 0 && !co->closing)
        outer_early_stop(co->outer, e->state_dir);
    growing_drop(e->delta);
    list_remove(&e->link);
    mem_free(e->state_dir);
    mem_free(e->list);
    mem_free(e);
}

static struct early *find(const struct coordinator *co, const struct module_rec *m)
{
    for (struct list *l = co->earlies.next; l != &co->earlies; l = l->next) {
        struct early *e = list_entry(l, struct early, link);
        if (e->module_id == m->id && e->base == m->version)
            return e;
    }
    return NULL;
}

static struct early *named(const struct coordinator *co, const struct blob_id *id)
{
    for (struct list *l = co->earlies.next; l != &co->earlies; l = l->next) {
        struct early *e = list_entry(l, struct early, link);
        if (blob_id_equal(&e->id, id))
            return e;
    }
    return NULL;
}

bool early_announce(struct coordinator *co, const struct task *t, const struct contribution *c,
                    struct blob_id *ret)
{
    const struct job *j = state_job(&co->state, t->job_id);
    const struct module_rec *m = j != NULL ? job_module(j, c->module_id) : NULL;
    size_t at = 0;
    if (m == NULL || t->kind != TASK_TRAIN || !query_crosses(j, t->path, m) ||
        j->paths[t->path].round + 1 >= (uint32_t)j->spec.outer.rounds || /* the last one */
        c->base_version != m->version || c->samples == 0 || c->blob.size < BYTES_MIN ||
        !can_be(co, j, m))
        return false;
    struct early *e = find(co, m);
    if (e == NULL)
        e = early_new(co, j, m);
    while (at < e->n && e->list[at].task_id != t->id)
        at++;
    if (at == e->room)
        return false;
    e->n += at == e->n;
    e->list[at] = (struct coming){.task_id = t->id, .attempt = t->attempt, .c = *c};
    *ret = e->id;
    core_touch(co);
    return true;
}

static const struct contribution *coming_of(void *arg, const struct task *t)
{
    const struct early *e = arg;
    for (size_t i = 0; i < e->n; i++)
        if (e->list[i].task_id == t->id && e->list[i].attempt == t->attempt &&
            t->state == TASK_LEASED && t->worker_id == e->list[i].c.worker_id)
            return &e->list[i].c;
    return NULL;
}

static uint64_t mix(uint64_t sum, const struct task *t, const struct contribution *c)
{
    uint64_t name;
    memcpy(&name, c->blob.sha256, sizeof(name));
    return rng_mix(rng_mix(sum, t->id), rng_mix(name, c->samples));
}

/* A mark of all contributions to the next step; 0: some are neither here nor coming. */
static uint64_t mark_of(const struct coordinator *co, const struct job *j,
                        const struct module_rec *m, struct early *e)
{
    const struct state *s = &co->state;
    uint64_t sum = 0;
    for (uint32_t p = 0; p < j->comp.n_paths; p++) {
        if (!query_crosses(j, p, m) || j->paths[p].round > m->version)
            continue;
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
            const struct task *t = query_phase(s, j, p, r);
            const struct contribution *c = query_given(t, m);
            if (query_rests(s, j, p, r))
                continue;
            if (c == NULL && t != NULL)
                c = coming_of(e, t);
            if (c == NULL)
                return 0;
            sum = mix(sum, t, c);
        }
    }
    for (size_t i = 0; i < j->n_late; i++) {
        const struct task *t = state_task(s, j->late[i]);
        const struct contribution *c = query_waits(t, m);
        sum = c != NULL ? mix(sum, t, c) : sum;
    }
    return sum;
}

/* Its thread has written its last file, which may have been after the end of the job. */
static void on_end(struct outer_step *step)
{
    struct coordinator *co = step->arg;
    const struct job *j = state_job(&co->state, step->job_id);
    if (co->closing)
        return;
    if (j != NULL && job_is_ended(j))
        folds_clean_up(co, j);
    if (j == NULL) { /* it was removed, too */
        char *dir = outer_state_dir(step->job_id, 0);
        leftover_drop(co, file_join(co->opt.data_dir, dir), 0);
        mem_free(dir);
    }
    core_touch(co); /* others wait for the place */
}

static void begin(struct coordinator *co, const struct job *j, const struct module_rec *m,
                  struct early *e)
{
    const struct folds_coming coming = {e->n, coming_of, e};
    struct outer_step *step = folds_step(co, j, m, &coming);
    const size_t n = step->n_contributions;
    step->arg = co;
    if (outer_early(co->outer, step, on_end) < 0) {
        e->mark = 0;
        return;
    }
    log_info("outer",
             "module %llu of job %llu: the step to version %llu is begun early, with %zu "
             "contributions",
             (unsigned long long)m->id, (unsigned long long)j->id,
             (unsigned long long)m->version + 1, n);
}

static bool can_be_sent(const struct early *e)
{
    return e->delta != NULL && !growing_is_given_up(e->delta);
}

/* Is it the step that has made the newest version, so that a transfer which was cut may go on? */
static bool has_made(struct coordinator *co, const struct module_rec *m, struct early *e)
{
    if (m->version != e->base + 1)
        return false;
    if (e->mark != 0)
        outer_early_stop(co->outer, e->state_dir); /* it was taken and is gone, or is useless */
    e->mark = 0;
    return can_be_sent(e);
}

static void consider(struct coordinator *co, struct early *e)
{
    const struct job *j = state_job(&co->state, e->job_id);
    const struct module_rec *m = j != NULL ? job_module(j, e->module_id) : NULL;
    if (m == NULL || job_is_ended(j) || m->version != e->base) {
        if (m == NULL || job_is_ended(j) || !has_made(co, m, e))
            drop(co, e);
        return;
    }
    if (m->outer_task != 0)
        return; /* the step is decided, and the executor has what was begun */
    const uint64_t mark = mark_of(co, j, m, e), had = e->mark;
    if (mark == had)
        return;
    if (had != 0)
        outer_early_stop(co->outer, e->state_dir);
    e->mark = outer_early_has_place(co->outer, e->job_id, e->state_dir)
                  ? mark
                  : 0; /* or in a later turn */
    if (e->mark != 0)
        begin(co, j, m, e);
}

void early_turn(struct coordinator *co)
{
    for (struct list *l = co->earlies.next, *next; l != &co->earlies; l = next) {
        next = l->next;
        consider(co, list_entry(l, struct early, link));
    }
}

int early_delta(void *arg, const struct blob_id *id, struct growing **ret, uint64_t *ret_module_id)
{
    const struct coordinator *co = arg;
    struct early *e = named(co, id);
    int rc = e == NULL ? -ERR_NOTFOUND : 0;
    if (rc == 0 && !can_be_sent(e)) {
        growing_drop(e->delta);
        e->delta = NULL;
        rc = e->mark != 0 ? outer_early_delta(co->outer, e->state_dir, &e->delta) : -EAGAIN;
    }
    if (rc < 0)
        return rc;
    *ret = growing_share(e->delta);
    *ret_module_id = e->module_id;
    return 0;
}

void early_end(struct coordinator *co)
{
    while (!list_empty(&co->earlies))
        drop(co, list_entry(co->earlies.next, struct early, link));
}
