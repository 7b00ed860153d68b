#include "worker/settle.h"

#include "common/base/log.h"
#include "common/net/pool.h"

struct settling {
    const char *state_dir;
    struct residual_word word;
    struct err err;
};

static int work(void *arg)
{
    struct settling *s = arg;
    return residual_hear(s->state_dir, &s->word, &s->err);
}

static void done(void *arg, int rc)
{
    struct settling *s = arg;
    if (rc == -ERR_CANCELLED) /* the compute thread has ended */
        rc = work(s);
    if (rc < 0)
        log_warn("agent", "error feedback of task=%" PRIu64 ": %s", s->word.task_id, s->err.msg);
    mem_free(s);
}

void settle_residual(struct pool *compute, const char *state_dir, const struct residual_word *word)
{
    struct settling *s = mem_alloc(sizeof(*s));
    *s = (struct settling){.state_dir = state_dir, .word = *word};
    if (pool_submit(compute, work, done, s) == 0)
        return;
    log_warn("agent", "error feedback of task=%" PRIu64 " is lost: too many jobs wait",
             word->task_id);
    mem_free(s);
}
