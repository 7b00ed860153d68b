/* CHECK: repeats a phase of another worker, to compare them (coordinator/job/spot_check.h). */
#include "coordinator/kinds/kind.h"

#include "coordinator/job/spot_check.h"
#include "coordinator/kinds/result.h"
#include "coordinator/kinds/train.h"

/* As the phase's own message: the phase began with only its versions, and leaves nothing behind. */
static void check_message(struct message *b, Skerry__V1__Task *msg)
{
    kind_train.message(b, msg);
    if (b->failed)
        return;
    msg->train->moments = NULL;
    msg->train->send_moments = false;
    msg->train->n_ahead = 0;
    msg->train->snapshot_ms = 0;
}

static int check_apply(struct coordinator *co, struct job *j, struct task *t,
                       const Skerry__V1__ReportRequest *r, struct err *err)
{
    const uint32_t levels = composition_levels(&j->comp, t->path);
    struct contribution *made = mem_alloc_array(levels, sizeof(*made));
    int rc = r->n_contributions == levels
                 ? 0
                 : err_set(err, -EINVAL, "the report has %zu contributions, expected %u",
                           r->n_contributions, levels);
    for (uint32_t l = 0; l < levels && rc == 0; l++) {
        const Skerry__V1__Contribution *c = r->contributions[l];
        const struct module_rec *m = &j->modules[j->comp.paths[t->path].modules[l]];
        made[l] = (struct contribution){.module_id = m->id,
                                        .base_version = t->train.round,
                                        .samples = r->samples,
                                        .worker_id = t->worker_id};
        if (c->module_id != m->id || c->base_version != t->train.round)
            rc = err_set(
                err, -EINVAL,
                "contribution %u starts from version %llu of module %llu, expected the phase's own",
                l, (unsigned long long)c->base_version, (unsigned long long)c->module_id);
        if (rc == 0)
            rc = result_blob(co, c->blob, "the contribution", &made[l].blob, err);
    }
    for (uint32_t l = 0; l < levels && rc == 0; l++)
        task_add_contribution(t, &made[l]);
    if (rc == 0)
        spot_check_hear(co, j, t);
    mem_free(made);
    return rc;
}

const struct kind kind_check = {.message = check_message, .apply = check_apply};
