/* INIT: version 0 of every module of a network. */
#include "coordinator/kinds/kind.h"

#include "common/base/clock.h"
#include "common/net/blobstore.h"
#include "common/st/st.h"
#include "common/job/family.h"
#include "coordinator/job/agree.h"
#include "coordinator/job/folds.h"
#include "coordinator/job/remake.h"
#include "coordinator/kinds/result.h"
#include "coordinator/work/gc.h"

/* Asks for the module of index 0 of each level: the others begin with the same values. */
static void init_message(struct message *b, Skerry__V1__Task *msg)
{
    const struct job *j = b->job;
    uint32_t network = j->comp.paths[b->task->path].network;
    msg->n_modules = 0;
    msg->modules = message_need(b, j->comp.networks[network].n_levels * sizeof(*msg->modules));
    for (uint32_t i = 0; i < j->comp.n_modules && !b->failed; i++)
        if (j->modules[i].network == network && j->modules[i].index == 0)
            msg->modules[msg->n_modules++] = message_bare_module(b, &j->modules[i]);
    msg->warm_start = network == 0 ? message_blob_or_null(b, &j->warm_start) : NULL;
}

/* Version 0 must be plain float32 safetensors. */
static int check_full(struct coordinator *co, const struct blob_ref *ref, uint64_t *ret_params,
                      struct err *err)
{
    char *path;
    struct st st;
    uint64_t params = 0;
    int rc = co->blobs->ops->local(co->blobs, &ref->id, false, &path, err);
    if (rc == -EAGAIN)
        core_bring(co, &ref->id);
    if (rc == 0) {
        rc = st_open(path, &st, err);
        co->blobs->ops->let_go(co->blobs, &ref->id); /* its header is read */
        mem_free(path);
    }
    if (rc < 0)
        return err_wrap(err, "version 0 of a module");
    for (size_t i = 0; i < st.n_tensors && rc == 0; i++) {
        params += st.tensors[i].count;
        if (st.tensors[i].dtype != ST_F32)
            rc = err_set(err, -ERR_FORMAT, "version 0 of a module: tensor %s is %s, expected F32",
                         st.tensors[i].name, st_dtype_name(st.tensors[i].dtype));
    }
    st_release(&st);
    if (rc == 0 && params == 0)
        rc = err_set(err, -ERR_FORMAT, "version 0 of a module has no parameters");
    *ret_params = params;
    return rc;
}

/* All modules of a level start from the same values: the one that was made is version 0
 * of all of them. */
static void adopt_level(struct coordinator *co, struct job *j, const struct task *t,
                        const struct module_rec *like, const struct blob_ref *full, uint64_t params)
{
    for (uint32_t i = 0; i < j->comp.n_modules; i++) {
        struct module_rec *m = job_edit_module(j, &j->modules[i]);
        if (m->network != like->network || m->level != like->level)
            continue;
        struct version_rec v = {
            .full = *full,
            .provenance = str_printf("{\"made_by_task\":%llu,\"seed\":%llu}",
                                     (unsigned long long)t->id, (unsigned long long)j->spec.seed),
            .at_unix_ms = (int64_t)clock_wall_ms(),
        };
        m->params = params;
        if (m->n_versions > 0) {
            gc_drop(co, &m->versions[0].full);
            module_drop_first(m);
        }
        folds_adopt(co, j, m, &v);
    }
}

/* Has another worker to draw it again?  A user's program may draw other values each time. */
static bool init_waits(struct coordinator *co, struct job *j, struct task *t,
                       const struct blob_ref *made, size_t n)
{
    struct agree_result result = {0};
    remake_hash(made, n, result.hash);
    return !job_family(&j->spec)->external && !agree_hear(co, j, t, &result);
}

/* Is it made again (remake.h), and other than before? */
static bool replaces(const struct job *j, uint32_t network, const struct blob_ref *made)
{
    for (uint32_t i = 0; i < j->comp.n_modules; i++) {
        const struct module_rec *m = &j->modules[i];
        if (m->network == network && m->n_versions > 0 &&
            memcmp(m->versions[0].full.sha256, made[m->level].sha256, 32) != 0)
            return true;
    }
    return false;
}

/* One contribution per level of the task's network, to its module of index 0. */
static int init_apply(struct coordinator *co, struct job *j, struct task *t,
                      const Skerry__V1__ReportRequest *r, struct err *err)
{
    uint32_t network = j->comp.paths[t->path].network, n = j->comp.networks[network].n_levels;
    struct blob_ref made[COMPOSITION_LEVELS_MAX] = {{.size = 0}};
    const struct module_rec *of[COMPOSITION_LEVELS_MAX] = {NULL};
    uint64_t params[COMPOSITION_LEVELS_MAX];
    int rc = 0;
    if (r->n_contributions != n)
        return err_set(err, -EINVAL, "the result of INIT has %zu modules, expected %u",
                       r->n_contributions, n);
    for (size_t i = 0; i < n && rc == 0; i++) {
        const Skerry__V1__Contribution *c = r->contributions[i];
        const struct module_rec *m = job_module(j, c->module_id);
        if (m == NULL || m->network != network || m->index != 0 || of[m->level] != NULL)
            return err_set(err, -EINVAL, "module %llu was not asked for, or was reported twice",
                           (unsigned long long)c->module_id);
        of[m->level] = m;
        rc = result_blob(co, c->blob, "version 0 of a module", &made[m->level], err);
        if (rc == 0)
            rc = check_full(co, &made[m->level], &params[m->level], err);
    }
    if (rc == 0 && init_waits(co, j, t, made, n))
        rc = KIND_WAITS;
    if (rc != 0)
        return rc;
    result_rows(co, j, t, r);
    const bool first = of[0]->n_versions == 0;
    if (!first && (!replaces(j, network, made) || !remake_may(&co->state, j, network)))
        return 0; /* nothing was wrong with it */
    for (uint32_t l = 0; l < n; l++)
        adopt_level(co, j, t, of[l], &made[l], params[l]);
    if (!first)
        remake_begin_anew(co, j, network);
    return 0;
}

const struct kind kind_init = {.message = init_message, .apply = init_apply};
