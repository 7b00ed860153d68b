/* The coordinator: state, store, RPC, HTTP and outer executor on one loop.
 *
 *   RPC request ──► validate ──► decide (pure) ──► apply to state, queue rows ─┐
 *   HTTP command ─► view.h ─────────────────────────────────────────────────── ┤
 *   outer step done, timer ────────────────────────────────────────────────────┤
 *                                            once per turn of the loop:        ▼
 *                 jobs advance ──► parked workers get tasks ──► ONE commit ──► replies
 *                                                             (writer thread)
 *
 * The loop goes on while a commit is under way, and what comes meanwhile is the next turn.  Nothing
 * is answered before the commit that has it (invariant 3).  When a commit fails (disk full) replies
 * and rows wait, new changes are refused with -ENOSPC, and the commit is tried again every second.
 * Loop thread. */
#ifndef COORDINATOR_COORDINATOR_H
#define COORDINATOR_COORDINATOR_H

#include "common/base/base.h"
#include "coordinator/state/options.h"

struct coordinator;
struct loop;

/* Loads the state, starts to listen, writes worker.token, user.token and
 * ports.json into the data dir. */
int coordinator_open(struct loop *loop, const struct coordinator_options *o,
                     struct coordinator **ret, struct err *err);

/* Commits, answers what waits, closes all.  State is as after a crash. */
void coordinator_close(struct coordinator *co); /* accepts NULL */

/* After the loop: -ERR_STALE where another coordinator goes on with this state. */
int coordinator_owns(struct coordinator *co, struct err *err);

/* The first operator's token; "": it was revoked. */
const char *coordinator_user_token(const struct coordinator *co);
/* The first token of workers lies in the data dir: it was not revoked. */
bool coordinator_has_worker_token(const struct coordinator *co);
/* Tokens lead to the name that this machine has for itself: neither opt.host nor opt.listen says
 * more. */
bool coordinator_guesses_host(const struct coordinator *co);
/* "https://host:port" of the dashboard. */
const char *coordinator_http_url(const struct coordinator *co);

#endif
