/* What the ranks of a pipeline encode of the next step's samples while this step runs, each on a
 * device of its own: the FROZEN instructions of a list, and what their SEND and RECV move
 * (worker/pipe/fill.h).
 *
 *     ahead_new(dev, &opt, &a, err);
 *     ahead_begin(a, &next, err);      the next step's samples of this copy, on each of its ranks
 *     ahead_run(a, &instr, s, err);    FROZEN: queued
 *     ahead_piece(a, &instr)           of SEND and RECV: where the samples lie
 *     ahead_end(a);                    all of it is done
 *
 * The frozen networks are numbered as instructions number them: ahead_networks().
 *
 * On the first stage ahead_table() stands in front of the network in place of the encoders.  It
 * gives what was encoded ahead where the inputs are the same bytes; where a caption was dropped the
 * states of the empty one, which are encoded once; and asks the encoders for anything else.  So
 * results do not depend on what was encoded ahead.
 *
 * All calls on the device's thread. */
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
    int batch;                           /* samples of a copy's step, at most */
    bool first;                          /* the first stage */
};

/* Which frozen networks run in each step, by number; how many.  0: none can be run in pieces. */
int ahead_networks(const struct net_encoders *e, enum net_encoder ret[NET_ENCODERS]);

/* Bytes of what one makes of a sample. */
uint64_t ahead_out_bytes(const struct ahead_options *opt, enum net_encoder which);

/* Bytes on the device, those of the networks included (but on the first stage, where net_bytes has
 * them). */
uint64_t ahead_bytes(const struct ahead_options *opt);

/* Opens the networks.  free accepts NULL. */
int ahead_new(struct device *dev, const struct ahead_options *opt, struct ahead **ret,
              struct err *err);
void ahead_free(struct ahead *a);

/* next stays valid until ahead_end; what was encoded before is gone.  A network whose inputs the
 * batch does not bring runs on nothing. */
int ahead_begin(struct ahead *a, const struct batch *next, struct err *err);
int ahead_run(struct ahead *a, const struct pipe_instr *in, struct stream *s, struct err *err);
struct comm_piece ahead_piece(const struct ahead *a, const struct pipe_instr *in);
void ahead_end(struct ahead *a);

/* Of what the network loads until the next call, sample i is sample at[i] of the copy's; borrowed.
 * NULL, as at first: they are all of the copy's. */
void ahead_rows(struct ahead *a, const unsigned *at);

const struct net_encoders *ahead_table(const struct ahead *a);

#endif
