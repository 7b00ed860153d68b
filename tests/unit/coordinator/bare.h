/* A coordinator without a store, a server or a turn: for what works on its state and its clock. */
#ifndef TESTS_UNIT_COORDINATOR_BARE_H
#define TESTS_UNIT_COORDINATOR_BARE_H

#include "tests/unit/coordinator/plain.h"

#include <math.h>

#include "common/base/log.h"
#include "common/net/loop.h"
#include "coordinator/state/core.h"

static inline int bare_begin(void **state)
{
    static struct coordinator co;
    struct err err = {0};
    memset(&co, 0, sizeof(co));
    assert_int_equal(loop_new(&co.loop, &err), 0);
    state_init(&co.state);
    co.store_ok = true;
    co.turn_scheduled = true; /* so that none is asked for */
    *state = &co;
    return 0;
}

static inline int bare_end(void **state)
{
    struct coordinator *co = *state;
    state_release(&co->state);
    mem_free(co->garbage);
    loop_free(co->loop);
    return 0;
}

/* The last task that was made; NULL: there is none. */
static inline struct task *newest(struct coordinator *co)
{
    struct state *s = &co->state;
    return s->n_tasks > 0 ? state_edit_task(s, s->tasks[s->n_tasks - 1]) : NULL;
}

#endif
