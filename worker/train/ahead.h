/* Encoding ahead: while a step runs, the ranks of a pipeline, each on its own device, encode the
 * next step's samples: the FROZEN instructions of a list, and the data of their SEND and RECV
 * (worker/pipe/fill.h).
 *
 *     ahead_new(dev, &opt, &a, err);
 *     ahead_empty(a, &piece, err);     the states of the empty caption, once
 *     ahead_begin(a, &next, err);      the next step's samples of this copy, on each of its ranks
 *     ahead_run(a, &instr, s, err);    queues a FROZEN
 *     ahead_piece(a, &instr)           where the samples of a SEND or RECV are
 *     ahead_end(a);                    the work is done
 *
 * ahead_networks() numbers the frozen networks as instructions do.
 *
 * On the first stage (of either chain, if there are two) ahead_table() replaces the encoders before
 * the network.  It gives the samples encoded ahead, and for a dropped caption the states of the
 * empty one, which are encoded once.  A step uses them if ahead_has() all of its samples; else
 * these are encoded before it.  So results do not depend on which samples were encoded ahead, nor
 * on which device.
 *
 * The networks need not be on every device (`far`), nor on those of the first stage: a device
 * without them receives the others' results.
 *
 * All calls on the device's thread; ahead_has() on any while that is idle. */
#ifndef WORKER_AHEAD_H
#define WORKER_AHEAD_H

#include "common/base/base.h"
#include "kernels/comm.h"
#include "worker/net/net.h"
#include "worker/pipe/fill.h"

struct ahead;

struct ahead_options {
    const struct net_encoders *encoders; /* the rank's; borrowed */
    const struct model *m;               /* the whole model or a part of it; borrowed */
    int batch;                           /* most samples in a copy's step */
    bool first;                          /* a first stage */
    bool far;                            /* the networks are on other devices */
};

/* The frozen networks that run in each step, by number; returns how many.  0: none can be run in
 * pieces. */
int ahead_networks(const struct net_encoders *e, enum net_encoder ret[NET_ENCODERS]);

/* Bytes of a network's output for a sample. */
uint64_t ahead_out_bytes(const struct ahead_options *opt, enum net_encoder which);

/* The encoders of a device without the networks, for counting bytes. */
struct net_encoders ahead_far(const struct net_encoders *e);

/* Device bytes, those of the networks included, except on the first stage, where net_bytes counts
 * them. */
uint64_t ahead_bytes(const struct ahead_options *opt);

/* Opens the networks, unless they are far.  free accepts NULL. */
int ahead_new(struct device *dev, const struct ahead_options *opt, struct ahead **ret,
              struct err *err);
void ahead_free(struct ahead *a);

/* The place of the empty caption's states, of no bytes if there are no captions.  A device with the
 * networks has them encoded; elsewhere the caller must bring them before the first step. */
int ahead_empty(struct ahead *a, struct comm_piece *ret, struct err *err);

/* First stage: were all samples of b encoded ahead? */
bool ahead_has(const struct ahead *a, const struct batch *b);

/* next must stay valid until ahead_end; samples encoded before are gone.  A network whose inputs
 * the batch lacks does not run. */
int ahead_begin(struct ahead *a, const struct batch *next, struct err *err);
int ahead_run(struct ahead *a, const struct pipe_instr *in, struct stream *s, struct err *err);
struct comm_piece ahead_piece(const struct ahead *a, const struct pipe_instr *in);
void ahead_end(struct ahead *a);

/* Until the next call, sample i that the network loads is sample at[i] of the copy's; borrowed.
 * NULL, as at first: the network loads all samples of the copy. */
void ahead_rows(struct ahead *a, const unsigned *at);

const struct net_encoders *ahead_table(const struct ahead *a);

#endif
