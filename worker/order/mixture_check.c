/* The parts of a task's message about several paths: limits, presence, agreement. */
#include <inttypes.h>
#include <math.h>

#include "common/base/err.h"
#include "worker/kinds/experts.h"
#include "worker/kinds/mixture.h"
#include "worker/order/task_check.h"

static int check_refs(Skerry__V1__ModuleRef *const *refs, size_t n, const char *field,
                      struct err *err)
{
    if (n < 1 || n > TASK_MODULES_MAX)
        return err_set(err, -ERR_LIMIT, "task: %s has %zu modules, expected 1 to %d", field, n,
                       TASK_MODULES_MAX);
    for (size_t i = 0; i < n; i++) {
        int rc = validate_module(refs[i], err);
        if (rc < 0)
            return rc;
        if (refs[i]->level != i)
            return err_set(err, -ERR_FORMAT,
                           "task: module %zu of %s is of level %" PRIu32
                           "; one per level is expected, in order",
                           i, field, refs[i]->level);
    }
    return 0;
}

int experts_validate(Skerry__V1__Expert *const *list, size_t n, bool remote, const char *field,
                     struct err *err)
{
    if (n < 1 || n > MIX_EXPERTS_MAX)
        return err_set(err, -ERR_LIMIT, "task: %s has %zu experts, expected 1 to %d", field, n,
                       MIX_EXPERTS_MAX);
    for (size_t i = 0; i < n; i++) {
        int rc = remote && list[i]->n_modules == 0
                     ? 0
                     : check_refs(list[i]->modules, list[i]->n_modules, field, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int mixture_validate(const Skerry__V1__Mixture *m, struct err *err)
{
    if (!m->experts)
        return err_set(err, -ERR_FORMAT, "task: mixture.experts is missing");
    int rc = experts_validate(m->experts->expert, m->experts->n_expert, m->remote,
                              "mixture.experts", err);
    if (rc == 0)
        rc = check_refs(m->router, m->n_router, "mixture.router", err);
    if (rc < 0)
        return rc;
    if (m->strategy > JOB_STRATEGY_ORACLE)
        return err_set(err, -ERR_FORMAT, "task: mixture.strategy %" PRIu32 " is not known",
                       m->strategy);
    if (m->strategy == JOB_STRATEGY_TOPK && (m->top < 1 || m->top > m->experts->n_expert))
        return err_set(err, -ERR_LIMIT, "task: mixture.top is %" PRIu32 ", expected 1 to %zu",
                       m->top, m->experts->n_expert);
    if (m->strategy == JOB_STRATEGY_NUCLEUS && !(m->nucleus > 0 && m->nucleus <= 1))
        return err_set(err, -ERR_LIMIT, "task: mixture.nucleus is %g, expected above 0, at most 1",
                       (double)m->nucleus);
    if (m->strategy == JOB_STRATEGY_THRESHOLD && !(m->threshold >= 0 && m->threshold <= 1))
        return err_set(err, -ERR_LIMIT, "task: mixture.threshold is %g, expected 0 to 1",
                       (double)m->threshold);
    return 0;
}
