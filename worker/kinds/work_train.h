/* TRAIN, what of it is pure: how long a phase is that is bounded by time. */
#ifndef WORKER_WORK_TRAIN_H
#define WORKER_WORK_TRAIN_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"
#include "worker/engine/engine.h"
#include "worker/engine/replica.h"

/* A phase bounded by time has its samples in `window`s: shuffled inside each, so that what it has
 * used when the time is over is a prefix of its ranges and at most one window that it has begun.  A
 * few batches, at most a sixteenth of what it was given, at least one batch. */
uint64_t phase_window(uint64_t total, uint64_t batch);

/* After any step: is such a phase over?  It uses up one window at least.  middle: when
 * the next step would be half made; so a phase ends at the step nearest to its time. */
bool phase_time_over(uint64_t position, uint64_t total, uint64_t window, double middle,
                     double seconds);

/* Samples used, as the coordinator counts them: the first ones of the ranges (data_order.window,
 * text_options.all_rows).  position: how many were read, bad ones too; with little data some were
 * read again.  window 0: the phase is bounded by steps.  A window that was begun is used once more,
 * but the first one counts as far as it was used, since a phase of no sample would be refused. */
uint64_t phase_used(uint64_t position, uint64_t total, uint64_t window);

/* Is a local checkpoint to be written in a phase that has run since begun_ns, after the `last` one
 * of any phase?  Every 10 s, but never for more than 2 % of the time. */
bool phase_save_due(uint64_t now_ns, uint64_t begun_ns, const struct engine_saved *last);

/* The share of the job that is over when a phase has done `steps`, or one bounded by time has
 * trained for `spent` seconds; 0: the schedule goes by the replica's own steps. */
double phase_done(const Skerry__V1__TrainTask *t, uint64_t steps, double spent);

/* A step that was skipped changes nothing, so some may be.  Has the phase diverged?  When
 * PHASE_SKIPS_MAX in a row were skipped; when more than that were, and more than a tenth of the
 * steps so far; ended: when all were.  It depends on the cursor alone: whoever repeats the phase,
 * or goes on with it, comes to the same. */
#define PHASE_SKIPS_MAX 5
bool phase_diverged(const struct replica_cursor *at, bool ended);

/* Seconds that a phase computed: what it waited in between is reported beside them
 * (ReportRequest.waited_ms), and must not be counted twice. */
float phase_computed(double took, uint64_t waited_ms);

#endif
