/* Snapshots of a phase: the difference between the present weights and those with which the phase
 * began, sent to the coordinator during the phase.  When this worker is lost, another one resumes
 * from the newest snapshot (docs/spot.md).
 *
 *    IDLE ─due─► SENDS (the files, in the background) ─► REPORTS ─► IDLE
 *
 * Due is one `TrainTask.snapshot_ms` after the last began, but never so often that making them
 * takes more than a fiftieth of the time, or sending them more than a quarter, nor so late in the
 * phase that it does not pay.  Failing to save is no failure of the phase.  Compute thread. */
#ifndef WORKER_SNAPSHOT_H
#define WORKER_SNAPSHOT_H

#include <stdatomic.h>

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"
#include "worker/engine/replica.h"

struct snapshots;
struct work;
struct work_output;

/* What a snapshot takes at least, by what making and sending the last one took.  Pure. */
uint64_t snapshots_pause_ns(uint32_t least_ms, uint64_t made_ns, uint64_t sent_ns);

/* Does one pay that is due, so much before the phase's end?  Where the time between two is the best
 * one, a snapshot costs as much as the losses of one interval, each of half an interval of work.
 * From now on it would spare each loss a whole one: that pays if, when it has arrived, at least
 * half an interval remains.  Pure. */
bool snapshots_pays(uint64_t left_ns, uint64_t pause_ns, uint64_t sent_ns);

struct snapshots_options {
    struct work *w;  /* a TRAIN task */
    uint64_t window; /* samples are drawn in any order within so many (data.h); 0: within all */
    /* What each of the task's modules has gained with `samples`, by contribute.h's `snapshot`. */
    int (*make)(void *arg, uint64_t samples, struct work_output *outs, struct err *err);
    void *arg;
    /* Set to what it takes from asking for one until it is sent: the step that is under way, making
     * and sending; NULL: nobody asks. */
    _Atomic uint64_t *took_ns;
};

/* make() of one of our own networks; r->flat is scratch. */
struct snapshot_net {
    struct work *w;
    struct replica *r;
};
int snapshot_net_make(void *net, uint64_t samples, struct work_output *outs, struct err *err);

/* NULL: none are wanted, or there is no uplink. */
struct snapshots *snapshots_open(const struct snapshots_options *opt);
/* What still travels is dropped.  Accepts NULL. */
void snapshots_close(struct snapshots *s);

/* After a step: begins a snapshot if one is due, and sees how the last one goes; snapshots_travel()
 * only sees that, for weights that are not at hand.  s may be NULL. */
void snapshots_step(struct snapshots *s, const struct replica_cursor *at);
void snapshots_travel(struct snapshots *s);
/* The next step begins only now, after something that is no step and seldom done, such as a local
 * checkpoint: *took_ns does not count it.  s may be NULL. */
void snapshots_go_on(struct snapshots *s);

/* The task is stopped by WORK_SAVING: what is on its way, and then what has come since, for as long
 * as it is not stopped otherwise.  s may be NULL. */
void snapshots_last(struct snapshots *s, const struct replica_cursor *at);

/* Is the message's Snapshot one of this task? */
int snapshot_check(const Skerry__V1__Task *t, struct err *err);
/* Its blobs. */
int snapshot_need(struct work *w, struct err *err);
/* Where the phase goes on, by TrainTask.resume; and module i as it was there, as a version's file.
 */
struct replica_cursor snapshot_cursor(const struct work *w);
int snapshot_module(struct work *w, size_t i, const char *out_path, struct err *err);
/* All of them, and the cursor. */
int snapshot_load(struct work *w, const struct model *m, float *flat, struct replica_cursor *ret,
                  struct err *err);

#endif
