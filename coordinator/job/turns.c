#include "coordinator/job/turns.h"

/* After phases, before a CHECK. */
#define RANK_WAITS 4

/* Does it measure again what another worker has told? */
static bool is_doubted(const struct job *j, const struct task *t)
{
    const struct path_rec *p = &j->paths[t->path];
    const struct eval_doubt *d = &p->doubt;
    return t->kind == TASK_EVAL && !t->draw.mixture &&
           (t->id == p->hope.task ||
            (d->worker != 0 && (t->id == d->best_task || t->draw.version == d->version)));
}

unsigned turns_rank(const struct job *j, const struct task *t)
{
    const struct task_draw *d = task_drawing(t);
    const bool waits = d != NULL && j->state == JOB_RUNNING && !d->asked && !is_doubted(j, t) &&
                       j->paths[t->path].round <= d->version;
    return waits ? RANK_WAITS : task_traits[t->kind].rank;
}
