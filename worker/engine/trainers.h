/* The trainer of a job on this worker (worker/external/external.h): its files unpacked, its setup
 * run once, its process started and kept from task to task of the job.
 *
 *    STATE/trainer-HASH/           a copy of trainer.files, where it runs; HASH: of files, setup
 *    STATE/trainer-HASH.ready      they are whole, and trainer.setup has been run
 *    STATE/external-J-P-R.state-N  what the optimiser of a replica kept after N steps
 *    STATE/external-J-P-R.end      with fragments: the weights that its last phase ended with
 *
 * One runs at a time; folders of TRAINERS_KEPT others stay, if they are whole.  Compute thread. */
#ifndef WORKER_TRAINERS_H
#define WORKER_TRAINERS_H

#include "common/base/base.h"
#include "worker/external/external.h"
#include "worker/order/work.h"

struct engine;
struct trainers;

#define TRAINERS_KEPT 3

/* Whose optimiser a trainer has, and at which step it stands. */
struct trainer_stand {
    uint64_t job_id;
    uint32_t path, replica;
    uint64_t step;
};

/* The blob of the job's files, if it has some, among w's needs. */
int trainers_need(struct work *w, struct err *err);

/* The trainer of w's job, started if it does not run.  -ERR_CONFIG: this worker runs none. */
int trainers_get(struct engine *e, struct work *w, struct external **ret, struct err *err);
/* The same, for version 0: one that nothing else was asked.  A restored coordinator may ask for
 * version 0 again. */
int trainers_get_new(struct engine *e, struct work *w, struct external **ret, struct err *err);
/* It has failed: the next task gets another one. */
void trainers_drop(struct engine *e);
/* Ends the running trainer, which is another job's, for the memory that it has.  False: none runs.
 */
bool trainers_yield(struct engine *e);
void trainers_free(struct trainers *t); /* accepts NULL */

/* An order to the trainer with w's samples and progress; a trainer that fails is dropped. */
int trainers_ask(struct engine *e, struct work *w, const Skerry__Trainer__V1__FromWorker *order,
                 int passed, const struct external_events *ev, struct external_done *ret,
                 struct err *err);
/* Is the task to be left?  arg: the work; for events. */
bool trainers_stopped(void *arg);
/* Tells the task's progress that the trainer is at work.  The same. */
void trainers_goes_on(void *arg);

/* The trainer has handed weights over, and external_seal() is of all of them. */
void trainers_handed(struct engine *e);
/* Loads the task's modules into the memory that the trainer shares.  -ERR_TRAINER: it has written
 * there since then, and was dropped. */
int trainers_load(struct engine *e, struct external *x, const struct work *w, struct err *err);

/* The same with a file of tensors_keep(). */
int trainers_load_kept(struct engine *e, struct external *x, const char *path, struct err *err);

/* Where the running trainer's optimiser stands; NULL: nowhere. */
const struct trainer_stand *trainers_stand(const struct engine *e);
void trainers_set_stand(struct engine *e, const struct trainer_stand *stand);

#endif
