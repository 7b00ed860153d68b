/* A worker as the coordinator sees it: it follows the protocol of worker/link and worker/agent, and
 * computes nothing.  An evil one has a key of its own like the others and lies, a sly one in
 * outer steps alone.
 *
 *   start -> dial -> JOIN -> ASSIGN -> steps (HEARTBEAT beside them, snapshots) -> TICKET, PUT ->
 *   REPORT until it is answered -> ASSIGN ... */
#ifndef TESTS_SIM_WORKER_H
#define TESTS_SIM_WORKER_H

#include "common/base/base.h"

struct worker_sim;

enum worker_sim_heart { WORKER_SIM_HONEST, WORKER_SIM_EVIL, WORKER_SIM_SLY };

/* scratch: a directory of its own for files. */
struct worker_sim *worker_sim_new(unsigned number, enum worker_sim_heart heart,
                                  const char *scratch);
void worker_sim_free(struct worker_sim *w);
bool worker_sim_runs(const struct worker_sim *w);

/* Its process begins, if there is none. */
void worker_sim_start(struct worker_sim *w);
/* It ends at once; silently: with its machine.  What it had is gone, but for its key if `keep`. */
void worker_sim_kill(struct worker_sim *w, bool silently, bool keep);
/* It stands still: a stopped process, or a slow disk. */
void worker_sim_pause(struct worker_sim *w, uint64_t ms);
/* Its connection is cut, or one of its directions is dead for a while. */
void worker_sim_cut(struct worker_sim *w);
void worker_sim_block(struct worker_sim *w, bool up, bool down, uint64_t ms);
/* It is told that its machine goes: it says so, then leaves. */
void worker_sim_notice(struct worker_sim *w, uint64_t ms);
/* Its number; 0: it has none. */
uint64_t worker_sim_id(const struct worker_sim *w);
/* It was revoked: what it has may not be good for anything. */
void worker_sim_intrude(struct worker_sim *w);
/* From now on it is honest, but for a sly one, without which all must go on, too. */
void worker_sim_reform(struct worker_sim *w);

#endif
