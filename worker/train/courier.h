/* Transfers between the stages of a pipeline, for one rank: the SENDs and RECVs of its list
 * (worker/pipe/schedule.h), over the communicators of its island.
 *
 *     courier_init(&c, is, rank, first, net, plan, err);
 *     courier_begin(&c);                         each step: forgets the leftovers of a failed one
 *     courier_cross(&c, &instr, pieces, n);      states and gradients
 *     courier_arrive(&c, 0, PIPE_STATES, micro);   before they are read
 *     courier_release(&c);
 *
 * SEND is queued on a stream behind what is queued on the trainer's.  A RECV waits in a list: of
 * the micro-batch that is computed next it is queued when that one asks for it, which makes the
 * trainer's stream follow; those of later ones then, so that they come while it is computed.  Where
 * a recv is over when it returns they stay in the list.
 *
 * NO CIRCLES.  On a card a send ends only with its recv, which the peer queues behind what it
 * computes before.  With two chains that go opposite ways devices would wait for each other in a
 * circle if a micro-batch waited for all that was sent before it.  So it waits for what was sent
 * from its own slot alone, and the first one's RECVs are queued at the list's begin, but for those
 * of a model with an estimate, whose slots are still in use.  test_courier.c replays lists of
 * random pipelines so, and none is stuck.
 *
 * `arg` is the courier, so that struct train_peers may name the functions.  On the rank's thread.
 */
#ifndef WORKER_COURIER_H
#define WORKER_COURIER_H

#include "common/base/base.h"
#include "worker/train/island.h"
#include "worker/train/train.h"

/* RECVs that wait: of two micro-batches, from each rank of a stage. */
enum { COURIER_HELD_MAX = 2 * ISLAND_MAX };

/* A RECV that waits: where it goes, and from which device of the copy it comes. */
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
    /* Of each slot: what was last sent from there, of each kind, has gone. */
    struct mark **gone[COSTS_CHAINS_MAX][PIPE_GRADIENTS + 1];
    bool ahead;   /* a recv does not wait where it is queued */
    bool at_once; /* those of the first micro-batch are queued where their RECV stands */
    /* states, gradients, of each chain */
    struct courier_way ways[COSTS_CHAINS_MAX][PIPE_GRADIENTS + 1];
    struct courier_way back; /* velocities, of which none is held */
};

/* Of a trainer's network and a plan.  release accepts {0}, and after a failure. */
int courier_init(struct courier *c, struct island *is, int rank, int first, struct net *net,
                 const struct pipe_plan *plan, struct err *err);
void courier_release(struct courier *c);
void courier_begin(struct courier *c);

/* As struct train_peers says of them. */
int courier_cross(void *arg, const struct pipe_instr *in, const struct net_piece *pieces, int n);
int courier_arrive(void *arg, int chain, enum pipe_what what, int micro);
int courier_sent(void *arg, int chain, int micro);
int courier_feed(void *arg, const struct pipe_instr *in, const struct net_piece *piece);
int courier_gather(void *arg, void *x, int64_t n, enum comm_type type);

#endif
