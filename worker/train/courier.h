/* Transfers between the stages of a pipeline, for one rank: the SENDs and RECVs of its list
 * (worker/pipe/schedule.h), over the communicators of its island.
 *
 *     courier_init(&c, is, rank, first, net, plan, err);
 *     courier_begin(&c);                          before each step: forgets a failed one's rest
 *     courier_cross(&c, &instr, pieces, n);       states and gradients
 *     courier_arrive(&c, 0, PIPE_STATES, micro);  before they are read
 *     courier_release(&c);
 *
 * A SEND is queued on a stream of its own, behind the work on the trainer's stream.  A RECV is held
 * in a list.  It is queued when its micro-batch asks for it, and the trainer's stream then waits
 * for it; the RECVs of later micro-batches are queued at that time, too, so that they arrive while
 * this one is computed.  If a recv returns only when it is over (CPU), the later ones stay in the
 * list.
 *
 * NO CIRCLES.  On a card a send ends only with its recv, which the peer queues behind its earlier
 * computing.  With two chains in opposite directions devices would wait for each other in a
 * circle if a micro-batch waited for all sends before it.  So it waits only for those from its own
 * slot, and the RECVs of the first micro-batch are queued at the beginning of the list, except in a
 * model with an estimate, whose slots are still in use.  test_courier.c replays the lists of random
 * pipelines this way, and none gets stuck.
 *
 * `arg` is the courier: struct train_peers names these functions.  On the rank's thread. */
#ifndef WORKER_COURIER_H
#define WORKER_COURIER_H

#include "common/base/base.h"
#include "worker/train/island.h"
#include "worker/train/train.h"

/* Held RECVs: those of two micro-batches, from each rank of a stage. */
enum { COURIER_HELD_MAX = 2 * ISLAND_MAX };

/* A held RECV: its destination, and the device of the copy from which it comes. */
struct courier_held {
    struct comm_piece pieces[NET_PIECES_MAX];
    int n, micro, peer;
};

/* Transfers of one kind. */
struct courier_way {
    struct stream *in, *out;
    struct courier_held held[COURIER_HELD_MAX];
    int n_held;
};

struct courier {
    struct island *is;
    int rank, first;   /* first: the rank of its copy's device 0 */
    struct weights *w; /* the trainer's */
    int slots[COSTS_CHAINS_MAX];
    /* For each slot: the last send of each kind from there has ended. */
    struct mark **gone[COSTS_CHAINS_MAX][PIPE_GRADIENTS + 1];
    bool ahead;   /* queueing a recv does not wait for it */
    bool at_once; /* the first micro-batch's RECVs are queued in place, not held */
    /* States and gradients of each chain. */
    struct courier_way ways[COSTS_CHAINS_MAX][PIPE_GRADIENTS + 1];
    struct courier_way back; /* velocities, which are never held */
};

/* For a trainer's network and a plan.  release accepts {0} and the state after a failed init. */
int courier_init(struct courier *c, struct island *is, int rank, int first, struct net *net,
                 const struct pipe_plan *plan, struct err *err);
void courier_release(struct courier *c);
void courier_begin(struct courier *c);

/* See struct train_peers. */
int courier_cross(void *arg, const struct pipe_instr *in, const struct net_piece *pieces, int n);
int courier_arrive(void *arg, int chain, enum pipe_what what, int micro);
int courier_sent(void *arg, int chain, int micro);
int courier_feed(void *arg, const struct pipe_instr *in, const struct net_piece *piece);
int courier_gather(void *arg, void *x, int64_t n, enum comm_type type);

#endif
