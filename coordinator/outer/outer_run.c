#include "coordinator/outer/outer_run.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/net/blobstore.h"
#include "common/outer/layout.h"
#include "coordinator/outer/outer_verify.h"

static const char *const names[OUTER_FILES] = {"full",   "delta",    "ema",
                                               "target", "momentum", "buffer"};
static const char *const what_old[OUTER_FILES] = {
    [OUTER_EMA] = "the EMA to start from",
    [OUTER_TARGET] = "the outer optimiser's target",
    [OUTER_MOMENTUM] = "the outer optimiser's momentum",
    [OUTER_BUFFER] = "the outer optimiser's buffer",
};

/* ---- paths ---- */

int outer_run_blob(const struct outer_exec *e, const struct blob_ref *blob, char **ret_path,
                   struct err *err)
{
    char *path = NULL;
    int rc = blob_ref_is_set(blob) ? outer_hold(e->store, blob, &path, err) : 0;
    if (rc == -ERR_NOTFOUND || rc == -ERR_HASH)
        rc = 0;
    if (rc == 0)
        *ret_path = path;
    return rc;
}

static int find_blobs(struct outer_run *r, struct err *err)
{
    const struct outer_step *s = r->step;
    const struct blob_ref *ema = &s->old[OUTER_EMA];
    int rc = outer_hold_base(r->exec->store, s, &r->in[OUTER_FULL], err);
    if (rc == 0)
        rc = outer_run_blob(r->exec, ema, &r->in[OUTER_EMA], err);
    if (rc == 0 && blob_ref_is_set(ema) && !r->in[OUTER_EMA])
        rc = outer_missing(err, what_old[OUTER_EMA], ema);
    for (size_t i = 0; rc == 0 && i < s->n_contributions; i++) {
        const struct outer_contribution *c = &s->contributions[i];
        const bool needs = c->from != s->base && c->codec == CODEC_F32;
        rc = outer_run_blob(r->exec, &c->blob, &r->blobs[i], err);
        if (rc == 0 && needs)
            rc = outer_run_blob(r->exec, &c->from_full, &r->froms[i], err);
        if (rc == 0 && needs && !r->froms[i])
            rc = outer_missing(err, "the version that a contribution starts from", &c->from_full);
    }
    return rc;
}

/* ---- state that is also in a store far away ---- */

static char *name_of(const struct outer_step *s, const char *what, uint64_t version)
{
    char *dir = outer_state_dir(s->job_id, s->module_id);
    char *name = outer_state_file(dir, what, version);
    mem_free(dir);
    return name;
}

/* Is a file of the state intact?  It is fetched if our disk is not the one to which it was written,
 * or has damaged it. */
static int check_state(const struct outer_run *r, int i, struct err *err)
{
    struct blobstore *store = r->exec->store;
    const struct blob_ref *want = &r->step->old[i];
    int rc = outer_verify(r->exec->seen, r->in[i], want, what_old[i], err);
    if (rc != -ERR_HASH || !store->ops->fetch)
        return rc;
    char *name = name_of(r->step, names[i], r->step->base);
    const bool damaged = file_exists(r->in[i]);
    rc = store->ops->fetch(store, name, r->in[i], want->sha256, want->size, err);
    mem_free(name);
    if (rc == 0 && damaged)
        log_warn("outer", "%s was damaged on the coordinator's disk and is fetched again",
                 what_old[i]);
    return rc < 0 && rc != -ERR_NOTFOUND
               ? rc
               : outer_verify(r->exec->seen, r->in[i], want, what_old[i], err);
}

static int save(const struct outer_run *r, const char *what, const char *path,
                const struct blob_ref *file, struct err *err)
{
    struct blobstore *store = r->exec->store;
    if (!store->ops->save || !blob_ref_is_set(file))
        return 0;
    char *name = name_of(r->step, what, r->step->base + 1);
    const int rc = store->ops->save(store, name, path, file->sha256, file->size, err);
    mem_free(name);
    return rc;
}

int outer_run_save_state(const struct outer_run *r, const struct blob_ref made[OUTER_FILES],
                         struct err *err)
{
    int rc = 0;
    for (int i = OUTER_TARGET; i < OUTER_FILES && rc == 0; i++)
        rc = save(r, names[i], r->out[i], &made[i], err);
    return rc;
}

int outer_run_open(struct outer_run *r, struct err *err)
{
    const struct outer_step *s = r->step;
    int rc = file_mkdirs(s->state_dir, 0700, err);
    if (rc == 0)
        rc = find_blobs(r, err);
    for (int i = OUTER_TARGET; s->stored && i < outer_blobs(true) && rc == 0; i++) {
        rc = outer_run_blob(r->exec, &s->old[i], &r->in[i], err);
        if (rc == 0 && !r->in[i])
            rc = outer_missing(err, "the outer optimiser's state", &s->old[i]);
    }
    if (rc < 0)
        return rc;
    if (!s->stored && s->base > 0 && !s->fresh)
        for (int i = OUTER_TARGET; i < (s->delay > 1 ? OUTER_FILES : OUTER_BUFFER); i++)
            r->in[i] = outer_state_file(s->state_dir, names[i], s->base);
    for (int i = 0; i < OUTER_FILES; i++)
        r->out[i] = outer_state_file(s->state_dir, names[i], s->base + 1);
    for (int i = OUTER_TARGET; i < OUTER_FILES; i++)
        r->spare[i] = outer_state_spare(s->state_dir, names[i]);
    return 0;
}

void outer_run_close(struct outer_run *r)
{
    const struct outer_step *s = r->step;
    for (int i = 0; i < OUTER_FILES; i++) {
        if (i < outer_blobs(s->stored))
            outer_let_go(r->exec->store, &s->old[i], r->in[i]);
        else
            mem_free(r->in[i]);
        mem_free(r->out[i]);
        mem_free(r->spare[i]);
    }
    for (size_t i = 0; i < s->n_contributions; i++) {
        outer_let_go(r->exec->store, &s->contributions[i].blob, r->blobs[i]);
        outer_let_go(r->exec->store, &s->contributions[i].from_full, r->froms[i]);
    }
}

void outer_run_discard(const struct outer_step *s)
{
    static const char *const kinds[] = {"target", "momentum", "buffer", "full", "delta", "ema"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char *path = outer_state_file(s->state_dir, kinds[i], s->base + 1);
        (void)file_remove(path, NULL); /* it may not be there */
        mem_free(path);
    }
}

/* ---- checks and the fold ---- */

struct fold_origin outer_run_origin(const struct outer_run *r, size_t i)
{
    const struct outer_contribution *c = &r->step->contributions[i];
    return (struct fold_origin){c->codec, c->from, r->froms[i] ? r->froms[i] : r->in[OUTER_FULL]};
}

int outer_run_check_ours(const struct outer_run *r, struct err *err)
{
    const struct outer_step *s = r->step;
    struct layout layout = {0};
    int rc = outer_verify_base(r->exec->seen, r->exec->store, s, r->in[OUTER_FULL], err);
    if (rc == 0 && r->in[OUTER_EMA])
        rc = outer_verify_blob(r->exec->seen, r->exec->store, r->in[OUTER_EMA], &s->old[OUTER_EMA],
                               what_old[OUTER_EMA], err);
    for (int i = OUTER_TARGET; i < OUTER_FILES && rc == 0; i++)
        if (r->in[i])
            rc = check_state(r, i, err);
    if (rc < 0)
        return rc;
    rc = layout_open(r->in[OUTER_FULL], &layout, err);
    layout_release(&layout);
    return rc < 0 ? err_wrap(err, "the version to start from") : 0;
}

struct fold_step outer_fold_step(const struct outer_step *s)
{
    return (struct fold_step){
        .module_id = s->module_id,
        .base = s->base,
        .down = s->down,
        .lr = s->lr,
        .momentum = s->momentum,
        .scale = s->scale,
        .keep_norm = s->keep_norm,
        .delay = s->delay,
        .ema_decay = fold_ema_decay(s->ema_decay, s->base),
    };
}

struct fold_step outer_run_fold(const struct outer_run *r,
                                struct fold_input inputs[OUTER_CONTRIBUTIONS_MAX])
{
    const struct outer_step *s = r->step;
    struct fold_step step = outer_fold_step(s);
    for (size_t i = 0; i < s->n_contributions; i++)
        if (!s->contributions[i].refused)
            inputs[step.n_inputs++] = (struct fold_input){.path = r->blobs[i],
                                                          .origin = outer_run_origin(r, i),
                                                          .weight = s->contributions[i].weight,
                                                          .norm = s->contributions[i].norm,
                                                          .shrink = s->contributions[i].shrink};
    step.inputs = inputs;
    step.full = r->in[OUTER_FULL];
    step.ema = r->in[OUTER_EMA];
    step.target = r->in[OUTER_TARGET];
    step.mom = r->in[OUTER_MOMENTUM];
    step.buf = r->in[OUTER_BUFFER];
    step.full_out = r->out[OUTER_FULL];
    step.delta_out = r->out[OUTER_DELTA];
    step.ema_out = r->out[OUTER_EMA];
    step.target_out = r->out[OUTER_TARGET];
    step.mom_out = r->out[OUTER_MOMENTUM];
    step.buf_out = r->out[OUTER_BUFFER];
    step.target_spare = r->spare[OUTER_TARGET];
    step.mom_spare = r->spare[OUTER_MOMENTUM];
    step.buf_spare = r->spare[OUTER_BUFFER];
    return step;
}

bool outer_run_is_intact(const struct outer_run *r)
{
    bool intact = true;
    for (int i = 0; i < OUTER_FILES && intact; i++)
        intact =
            !r->in[i] || outer_verify(r->exec->seen, r->in[i], &r->step->old[i], "it", NULL) == 0;
    return intact;
}

static const uint8_t *hash_of(const struct outer_run *r, int i)
{
    return r->in[i] && r->step->old[i].size > 0 ? r->step->old[i].sha256 : NULL;
}

bool outer_run_is_seen(const struct outer_run *r)
{
    bool seen = true;
    for (int i = 0; i < OUTER_FILES && seen; i++)
        seen = !hash_of(r, i) || seen_lately(r->exec->seen, r->in[i], hash_of(r, i));
    return seen;
}

void outer_run_hash_ours(const struct outer_run *r, struct fold_step *step)
{
    step->full_is = hash_of(r, OUTER_FULL);
    step->ema_is = hash_of(r, OUTER_EMA);
    step->target_is = hash_of(r, OUTER_TARGET);
    step->mom_is = hash_of(r, OUTER_MOMENTUM);
    step->buf_is = hash_of(r, OUTER_BUFFER);
}
