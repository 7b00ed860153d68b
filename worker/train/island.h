/* The devices of this worker: one, or several of a host that train one replica together.
 *
 *     island_open("cuda:0,cuda:1", 0, &is, err);
 *     island_run(is, job, arg, err);      // job(arg, rank) on every rank at once
 *     island_close(is);
 *
 * An island of one is just its device: no thread, no communicator.  In a larger one every
 * rank has a device and communicators (kernels/comm.h), rank 0 works on the caller's
 * thread and each of the others on a thread of its own.  The coordinator sees one worker;
 * all work except training uses the device of rank 0.
 *
 * Training on it: worker/train/island_train.h; overview: docs/island.md.
 *
 * All calls on the compute thread. */
#ifndef WORKER_ISLAND_H
#define WORKER_ISLAND_H

#include "common/base/base.h"
#include "kernels/comm.h"
#include "kernels/kernels.h"

struct island;

/* The most devices of an island. */
enum { ISLAND_MAX = COMM_RANKS_MAX };

/* names: one of device_open's, or several separated by commas ("cpu,cpu", "cuda:0, cuda:1";
 * spaces are allowed), or "cuda:all".  Several must be of one kind, and different cards.  threads:
 * for all CPU ranks together, 0: one per core; each rank gets its share, at least one, except a
 * cpu:N, which names its number. */
int island_open(const char *names, int threads, struct island **ret, struct err *err);
/* The same after a restart: devices that do not open are left out, as long as one does. */
int island_reopen(const char *names, int threads, struct island **ret, struct err *err);
void island_close(struct island *is); /* accepts NULL */

/* The number of its devices, one of them, and all of them. */
int island_size(const struct island *is);
struct device *island_device(const struct island *is, int rank);
struct device *const *island_devices(const struct island *is);

/* PIPELINES.  A copy of a pipeline has d ranks, where d divides the size: ranks [k*d, (k+1)*d) are
 * copy k.  Each stage has a run of width[stage] ranks.  An island is opened with one stage of
 * one rank, so that every rank is a copy.  Before each island_run the caller sets the cut; setting
 * the present one costs nothing. */
struct island_shape {
    int stages, chains; /* chains: 2 with an upscaler, each on all of these devices */
    int width[ISLAND_MAX];
};
int island_cut(struct island *is, const struct island_shape *shape, struct err *err);

/* A rank's communicators, NULL if it would be alone: with the ranks of its stage, copy by copy, and
 * with those of its copy.  They change after a failure or a cut: ask again in each job. */
struct comm *island_comm(const struct island *is, int rank);
struct comm *island_pipe(const struct island *is, int rank);
/* The communicator, in each direction, of a rank and a rank of a neighbouring stage of its copy:
 * the lower one is rank 0 there, the other is rank 1.  NULL for other pairs, and if their shares of
 * a micro-batch (pipe_share) have no sample in common.  Each chain has its own, so that its
 * transfers do not wait for the other chain's. */
enum island_way { ISLAND_UP, ISLAND_DOWN, ISLAND_WAYS };
struct comm *island_link(const struct island *is, int rank, int peer, int chain,
                         enum island_way way);

/* "cuda:0: NVIDIA H200, ...", "cuda:0,cuda:1: 2 x NVIDIA H200, ..." */
void island_text(const struct island *is, char *out, size_t size);

/* Runs job(arg, rank, err) on every rank at once and waits for all of them.  If one
 * fails, its communicator wakes the others; the error is that of the rank that failed
 * first, preceded by its device's name.  The next island_run works again. */
typedef int island_job(void *arg, int rank, struct err *err);
int island_run(struct island *is, island_job *job, void *arg, struct err *err);

/* A barrier for all ranks in a job of an island of several.  -ECONNABORTED: a rank has failed. */
int island_meet(struct island *is);

#endif
