/* The coordinator: state, store, RPC, HTTP and outer executor on one loop.
 *
 *   RPC request ──► validate ──► decide (pure) ──► apply to state, queue rows ─┐
 *   HTTP command ─► view.h ─────────────────────────────────────────────────── ┤
 *   outer step done, timer ────────────────────────────────────────────────────┤
 *                                            once per turn of the loop:        ▼
 *                 jobs advance ──► parked workers get tasks ──► ONE commit ──► replies
 *                                                             (writer thread)
 *
 * The loop runs on during a commit; requests that arrive meanwhile belong to the next turn.  No
 * request is answered before the commit that contains it (invariant 3).  When a commit fails (a
 * full disk, say), replies and rows wait, new changes are refused (core_writable()), and the commit
 * is retried every second.
 * Loop thread. */
#ifndef COORDINATOR_COORDINATOR_H
#define COORDINATOR_COORDINATOR_H

#include "common/base/base.h"
#include "coordinator/state/options.h"

struct coordinator;
struct loop;

/* Loads the state, starts listening, and writes worker.token, user.token and ports.json into the
 * data directory. */
int coordinator_open(struct loop *loop, const struct coordinator_options *o,
                     struct coordinator **ret, struct err *err);

/* Commits, answers the waiting requests and closes everything.  The state on disk is as after a
 * crash. */
void coordinator_close(struct coordinator *co); /* accepts NULL */

/* Called after the loop has ended: -ERR_STALE when another coordinator has taken over this state.
 */
int coordinator_owns(struct coordinator *co, struct err *err);

/* The first operator's token; "" when it was revoked. */
const char *coordinator_user_token(const struct coordinator *co);
/* Whether the first worker token, in worker.token, is still valid: nobody has revoked it. */
bool coordinator_has_worker_token(const struct coordinator *co);
/* Whether tokens contain this machine's own host name, for want of one in opt.host or opt.listen.
 */
bool coordinator_guesses_host(const struct coordinator *co);
/* "https://host:port" of the dashboard. */
const char *coordinator_http_url(const struct coordinator *co);

#endif
