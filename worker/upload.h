/* Sending a task's outputs: for each, "do you have it?", then PUT by ticket.
 * While the connection is down it waits: call upload_resume() when joined again.
 * Loop thread. */
#ifndef WORKER_UPLOAD_H
#define WORKER_UPLOAD_H

#include <stddef.h>

#include "worker/fetch.h"

struct session;
struct upload;

/* As fetch_start: done() exactly once, never from within, unless cancelled. */
struct upload *upload_start(const struct fetch_env *env, struct session *session, struct work *w,
                            fetch_done_fn done, void *arg);
void upload_resume(struct upload *u);
void upload_cancel(struct upload *u); /* accepts NULL */

#endif
