/* OUTER: a module's next version, made by a worker.  job/folds.c checks its result. */
#include "coordinator/kinds/kind.h"

#include "coordinator/job/folds.h"
#include "coordinator/kinds/result.h"
#include "common/outer/fold.h"
#include "coordinator/outer/outer_exec.h"

/* In ReportRequest.contributions: the version's, without a buffer, and the squares. */
#define FILES (OUTER_BUFFER + 1)

static Skerry__V1__OuterInput *input_of(struct message *b, const struct outer_step *s,
                                        const struct outer_contribution *c)
{
    Skerry__V1__OuterInput *in = message_new(b, &skerry__v1__outer_input__descriptor);
    in->blob = message_blob_or_null(b, &c->blob);
    in->codec = (char *)(uintptr_t)codec_name(c->codec); /* only read */
    in->from = c->from;
    in->from_full =
        c->from < s->base && c->codec == CODEC_F32 ? message_blob_or_null(b, &c->from_full) : NULL;
    in->weight = c->weight;
    return in;
}

static void outer_message(struct message *b, Skerry__V1__Task *msg)
{
    const struct module_rec *m = job_module(b->job, b->task->outer.module_id);
    const struct outer_step *s = m != NULL ? m->at_worker : NULL;
    Skerry__V1__OuterTask *t = message_new(b, &skerry__v1__outer_task__descriptor);
    b->failed |= s == NULL;
    if (b->failed)
        return;
    t->module_id = s->module_id;
    t->version = s->base;
    t->full = message_blob_or_null(b, &s->old[OUTER_FULL]);
    t->average = message_blob_or_null(b, &s->old[OUTER_EMA]);
    t->target = message_blob_or_null(b, &s->old[OUTER_TARGET]);
    t->momentum = message_blob_or_null(b, &s->old[OUTER_MOMENTUM]);
    t->inputs = message_need(b, s->n_contributions * sizeof(*t->inputs));
    for (size_t i = 0; i < s->n_contributions && !b->failed; i++)
        t->inputs[t->n_inputs++] = input_of(b, s, &s->contributions[i]);
    t->down = (char *)(uintptr_t)codec_name(s->down); /* only read */
    t->lr = s->lr;
    t->outer_momentum = s->momentum;
    t->ema_decay = outer_fold_step(s).ema_decay;
    t->keep_norm = s->keep_norm ? s->scale : 0;
    msg->outer = t;
}

static double row_of(const Skerry__V1__ReportRequest *r, const char *name)
{
    for (size_t i = 0; i < r->n_rows; i++)
        if (strcmp(r->rows[i]->name, name) == 0 && isfinite(r->rows[i]->value))
            return r->rows[i]->value;
    return 0;
}

static int outer_apply(struct coordinator *co, struct job *j, struct task *t,
                       const Skerry__V1__ReportRequest *r, struct err *err)
{
    struct outer_claim claim = {0};
    if (r->n_contributions == 0)
        return folds_claim(co, j, t, NULL, r->text, err);
    if (r->n_contributions != FILES)
        return err_set(err, -EINVAL, "the result of OUTER has %zu files, expected %d",
                       r->n_contributions, FILES);
    for (size_t i = 0; i < FILES; i++) {
        struct blob_ref *to = i < OUTER_BUFFER ? &claim.made[i] : &claim.squares;
        int rc = result_blob(co, r->contributions[i]->blob, "a file of the version", to, err);
        if (rc < 0)
            return rc;
    }
    claim.delta_norm = row_of(r, "delta_norm");
    claim.step_norm = row_of(r, "step_norm");
    claim.residual_norm = row_of(r, "residual_norm");
    return folds_claim(co, j, t, &claim, "", err);
}

static uint64_t outer_owner(const struct job *j, const struct task *t)
{
    const struct module_rec *m = job_module(j, t->outer.module_id);
    return m != NULL ? m->fold_for : 0;
}

const struct kind kind_outer = {
    .message = outer_message, .apply = outer_apply, .owner = outer_owner};
