/* What must hold, whatever happens.
 *
 * The oracle remembers what the coordinator has told the outside: that is what it has promised.
 * After every event its records must agree with themselves and with that; after every restart the
 * files must, too.
 *
 *   results     one that was acknowledged is on record as done, for good
 *   jobs        a submission or cancellation that was acknowledged stays; nothing else ends a job
 *   versions    only grow; one that was told has the same bits for ever (0: once somebody has
 *               trained from it), and is made of contributions that were acknowledged, each once
 *   lies        none is of what a worker has made wrong on purpose
 *   claims      archives, latents, scores, partitions and versions 0 are what honest workers make
 *               of them, where all are compared and two honest workers from other places are here
 *   ledger      every sample of an epoch is done, leased or pending; as many are done as the done
 *               phases have used
 *   late        what came when its round was closed waits for a version or is refused
 *   fences      a lease has one holder and a holder one lease; a task is done once
 *   indexes     find what a look at all tasks and workers finds
 *   blobs       what is on record as needed is there, whole
 *   shown       what was read over HTTP is never taken back: rounds and versions do not fall,
 *               attempts neither, what has ended or was revoked stays that, and no number that was
 *               told is given to something else
 *   revoked     who was has no place, no lease, and no use of his tickets
 *   undone      only what is worse than what it was undone for, where nobody lies of that
 *   history     versions, rounds and ended tasks on record are as many as are kept, however many
 *               there were */
#ifndef TESTS_SIM_ORACLE_H
#define TESTS_SIM_ORACLE_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

struct coordinator;

/* remembers: so much of each, the newest; 0: all, and only then the ledgers add up exactly. */
void oracle_begin(size_t remembers);
void oracle_end(void);
/* The coordinator's state goes back to that of a backup: what was promised since then is void, and
 * what was told before it the oracle does not tell from that. */
void oracle_forget(void);
/* Nobody lies of held-out losses, and no person undoes a version: eval.guard alone does. */
void oracle_guards(void);

/* ---- what the outside was told ---- */
void oracle_accepted(uint64_t worker, const Skerry__V1__ReportRequest *r, unsigned kind,
                     uint64_t job);
void oracle_task(uint64_t worker, const Skerry__V1__Task *t);
/* The same of a version of a module that came while it has the task. */
void oracle_module(uint64_t worker, const Skerry__V1__Task *t, const Skerry__V1__ModuleRef *r);
void oracle_verdict(uint64_t worker, const Skerry__V1__Applied *a);
/* A file of an outer step that its maker knows to be false. */
void oracle_false(const uint8_t sha256[32]);
void oracle_submitted(uint64_t job);
void oracle_cancelled(uint64_t job);
void oracle_revoked(bool worker, uint64_t id); /* else a token */
/* A document of the API, or the data of an event, by what it tells of jobs, tasks, modules ... */
void oracle_shown(const char *json, size_t len);

/* ---- what must hold ---- */
void oracle_look(struct coordinator *co);
/* The same, and what the files say. */
void oracle_look_closely(struct coordinator *co);
/* Nothing is left to be done: nothing may be left over. */
void oracle_look_at_end(struct coordinator *co);

struct oracle_figures {
    uint64_t results, verdicts, refused, versions, restored, looks, shown, revoked;
    uint64_t folded_late, parts; /* contributions in versions: late ones, last snapshots */
    uint64_t steps, lies;        /* outer steps of workers; files of such that were false */
    uint64_t checks;             /* phases that were done once more */
    uint64_t claims, believed;   /* false blobs of results that others can make; that counted */
    uint64_t remade;             /* versions 0 that fitted no network, and were made again */
};
struct oracle_figures oracle_figures(void); /* of all worlds */

/* Have other bytes taken the place of the module's version 0 (remake.h)?  A worker may hold the
 * first ones. */
bool oracle_remade(uint64_t module);

#endif
