#include "coordinator/kinds/kinds.h"

static const struct kind *const kinds[TASK_KINDS] = {
    [TASK_INIT] = &kind_init,         [TASK_INGEST] = &kind_ingest, [TASK_TRAIN] = &kind_train,
    [TASK_EVAL] = &kind_eval,         [TASK_SAMPLE] = &kind_sample, [TASK_FEATURE] = &kind_feature,
    [TASK_CLUSTER] = &kind_cluster,   [TASK_SPLIT] = &kind_split,   [TASK_SCORE] = &kind_score,
    [TASK_VELOCITY] = &kind_velocity, [TASK_ENCODE] = &kind_encode, [TASK_OUTER] = &kind_outer,
    [TASK_CHECK] = &kind_check,
};

int kinds_message(struct coordinator *co, const struct job *j, const struct task *t,
                  const struct worker *w, struct pbmem *mem, Skerry__V1__Task **ret,
                  struct err *err)
{
    struct message b = {.co = co, .job = j, .task = t, .worker = w, .mem = mem};
    Skerry__V1__Task *m = message_new(&b, &skerry__v1__task__descriptor);
    m->id = t->id;
    m->attempt = t->attempt;
    m->kind = (Skerry__V1__TaskKind)t->kind;
    m->lease_ms = co->opt.lease_ms;
    message_job(&b, m);
    if (kinds[t->kind] != NULL && !b.failed)
        kinds[t->kind]->message(&b, m);
    if (b.failed)
        return err_set(err, -ERR_LIMIT,
                       "task %llu does not fit a message, or its module versions "
                       "are gone",
                       (unsigned long long)t->id);
    *ret = m;
    return 0;
}

int kinds_apply(struct coordinator *co, struct job *j, struct task *t,
                const Skerry__V1__ReportRequest *r, struct err *err)
{
    const struct kind *k = kinds[t->kind];
    if (k == NULL)
        return err_set(err, -EINVAL, "a task of this kind is not reported");
    if (r->snapshot && (!k->in_parts || r->failed))
        return err_set(err, -EINVAL, "only a phase of training can be reported in parts");
    return k->apply(co, j, t, r, err);
}

uint64_t kinds_owner(const struct job *j, const struct task *t)
{
    const struct kind *k = kinds[t->kind];
    return k != NULL && k->owner != NULL ? k->owner(j, t) : 0;
}
