/* Sends outputs of a task, two at a time: for each, asks whether the coordinator has it, then PUTs
 * it by ticket.  Without a connection it waits: call upload_resume() when joined again.  While the
 * coordinator's port for files cannot be reached, its name not be found, or it has no room (503,
 * 507), it tries again without end; whoever started it cancels it when the task is no longer ours.
 * Loop thread. */
#ifndef WORKER_UPLOAD_H
#define WORKER_UPLOAD_H

#include "common/base/base.h"
#include "worker/link/fetch.h"

struct session;
struct upload;
struct work_output;

struct upload_what {
    uint64_t task_id; /* the task that made the outputs */
    uint32_t attempt;
    const struct work_output *outputs; /* they and their files must not change until done */
    size_t n;
    struct progress *progress; /* gets the progress; or NULL */
    /* Contributions are announced, with the samples that the report will count, and coming() is
     * called with where the delta to the module's next version can be had while it is made; may be
     * NULL. */
    uint64_t samples;
    void (*coming)(void *arg, const struct work_output *o, const char *url);
};

/* As fetch_start: done() exactly once, never from within, unless cancelled. */
struct upload *upload_start(const struct fetch_env *env, struct session *session,
                            const struct upload_what *what, fetch_done_fn done, void *arg);
void upload_resume(struct upload *u);
void upload_cancel(struct upload *u); /* accepts NULL */

#endif
