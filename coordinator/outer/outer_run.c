#include "coordinator/outer/outer_run.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/net/blobstore.h"
#include "common/outer/layout.h"
#include "coordinator/outer/outer_verify.h"

/* ---- paths ---- */

int outer_run_blob(const struct outer_exec *e, const struct outer_blob *blob, char **ret_path,
                   struct err *err)
{
    char *path = NULL;
    int rc = blob->bytes ? outer_hold(e->store, blob, &path, err) : 0;
    if (rc == -ERR_NOTFOUND || rc == -ERR_HASH)
        rc = 0;
    if (rc == 0)
        *ret_path = path;
    return rc;
}

static int find_blobs(struct outer_run *r, struct err *err)
{
    const struct outer_step *s = r->step;
    int rc = outer_hold_base(r->exec->store, s, &r->full, err);
    if (rc == 0)
        rc = outer_run_blob(r->exec, &s->ema, &r->ema, err);
    if (rc == 0 && s->ema.bytes && !r->ema)
        rc = outer_missing(err, "the EMA to start from", &s->ema);
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

/* Fetches a file if our disk is not the one to which it was written, or has damaged it. */
static int bring(const struct outer_run *r, const char *what, const char *path,
                 const struct outer_blob *blob, struct err *err)
{
    struct blobstore *store = r->exec->store;
    if (!path || !store->ops->fetch || outer_verify(r->exec->seen, path, blob, what, NULL) == 0)
        return 0;
    char *name = name_of(r->step, what, r->step->base);
    const bool damaged = file_exists(path);
    const int rc = store->ops->fetch(store, name, path, blob->sha256, blob->bytes, err);
    mem_free(name);
    if (rc == 0 && damaged)
        log_warn("outer",
                 "the outer optimiser's %s was damaged on the coordinator's disk and is fetched "
                 "again",
                 what);
    return rc == -ERR_NOTFOUND ? 0 : rc; /* a missing file is found when it is hashed */
}

static int save(const struct outer_run *r, const char *what, const char *path,
                const struct fold_file *file, struct err *err)
{
    struct blobstore *store = r->exec->store;
    if (!store->ops->save || file->bytes == 0)
        return 0;
    char *name = name_of(r->step, what, r->step->base + 1);
    const int rc = store->ops->save(store, name, path, file->sha256, file->bytes, err);
    mem_free(name);
    return rc;
}

static int bring_state(const struct outer_run *r, struct err *err)
{
    const struct outer_step *s = r->step;
    int rc = bring(r, "target", r->target, &s->target, err);
    if (rc == 0)
        rc = bring(r, "momentum", r->mom, &s->mom, err);
    return rc == 0 ? bring(r, "buffer", r->buf, &s->buf, err) : rc;
}

int outer_run_save_state(const struct outer_run *r, const struct fold_result *f, struct err *err)
{
    int rc = save(r, "target", r->target_out, &f->target, err);
    if (rc == 0)
        rc = save(r, "momentum", r->mom_out, &f->mom, err);
    return rc == 0 ? save(r, "buffer", r->buf_out, &f->buf, err) : rc;
}

int outer_run_open(struct outer_run *r, struct err *err)
{
    const struct outer_step *s = r->step;
    const uint64_t next = s->base + 1;
    int rc = file_mkdirs(s->state_dir, 0700, err);
    if (rc == 0)
        rc = find_blobs(r, err);
    if (rc < 0)
        return rc;
    if (s->stored) {
        rc = outer_run_blob(r->exec, &s->target, &r->target, err);
        if (rc == 0)
            rc = outer_run_blob(r->exec, &s->mom, &r->mom, err);
        if (rc == 0 && (!r->target || !r->mom))
            rc =
                outer_missing(err, "the outer optimiser's state", r->target ? &s->mom : &s->target);
        if (rc < 0)
            return rc;
    } else if (s->base > 0 && !s->fresh) {
        r->target = outer_state_file(s->state_dir, "target", s->base);
        r->mom = outer_state_file(s->state_dir, "momentum", s->base);
        r->buf = s->delay > 1 ? outer_state_file(s->state_dir, "buffer", s->base) : NULL;
    }
    r->target_out = outer_state_file(s->state_dir, "target", next);
    r->mom_out = outer_state_file(s->state_dir, "momentum", next);
    r->buf_out = outer_state_file(s->state_dir, "buffer", next);
    r->full_out = outer_state_file(s->state_dir, "full", next);
    r->delta_out = outer_state_file(s->state_dir, "delta", next);
    r->ema_out = outer_state_file(s->state_dir, "ema", next);
    return s->stored ? 0 : bring_state(r, err);
}

void outer_run_close(struct outer_run *r)
{
    const struct outer_step *s = r->step;
    if (s->stored) {
        outer_let_go(r->exec->store, &s->target, r->target);
        outer_let_go(r->exec->store, &s->mom, r->mom);
        r->target = r->mom = NULL;
    }
    char *paths[] = {r->target,  r->mom,        r->buf,     r->full_out, r->delta_out,
                     r->ema_out, r->target_out, r->mom_out, r->buf_out};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        mem_free(paths[i]);
    outer_let_go(r->exec->store, &s->full, r->full);
    outer_let_go(r->exec->store, &s->ema, r->ema);
    for (size_t i = 0; i < s->n_contributions; i++) {
        outer_let_go(r->exec->store, &s->contributions[i].blob, r->blobs[i]);
        outer_let_go(r->exec->store, &s->contributions[i].from_full, r->froms[i]);
    }
}

/* ---- checks and the fold ---- */

struct fold_origin outer_run_origin(const struct outer_run *r, size_t i)
{
    const struct outer_contribution *c = &r->step->contributions[i];
    return (struct fold_origin){c->codec, c->from, r->froms[i] ? r->froms[i] : r->full};
}

int outer_run_check_ours(const struct outer_run *r, struct err *err)
{
    const struct outer_step *s = r->step;
    struct layout layout = {0};
    int rc = outer_verify_base(r->exec->seen, r->exec->store, s, r->full, err);
    if (rc == 0 && r->ema)
        rc = outer_verify_blob(r->exec->seen, r->exec->store, r->ema, &s->ema,
                               "the EMA to start from", err);
    if (rc == 0 && r->target)
        rc =
            outer_verify(r->exec->seen, r->target, &s->target, "the outer optimiser's target", err);
    if (rc == 0 && r->mom)
        rc = outer_verify(r->exec->seen, r->mom, &s->mom, "the outer optimiser's momentum", err);
    if (rc == 0 && r->buf)
        rc = outer_verify(r->exec->seen, r->buf, &s->buf, "the outer optimiser's buffer", err);
    if (rc < 0)
        return rc;
    rc = layout_open(r->full, &layout, err);
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
    step.full = r->full;
    step.ema = r->ema;
    step.target = r->target;
    step.mom = r->mom;
    step.buf = r->buf;
    step.full_out = r->full_out;
    step.delta_out = r->delta_out;
    step.ema_out = r->ema_out;
    step.target_out = r->target_out;
    step.mom_out = r->mom_out;
    step.buf_out = r->buf_out;
    return step;
}
