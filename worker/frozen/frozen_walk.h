/* Runs samples through a frozen network in pieces: some of the samples through some of the layers
 * at a time, as fits into a pipeline's bubbles (worker/pipe/fill.h).
 *
 *     frozen_walk_new(f, underway, &walk, err);
 *     frozen_walk_begin(walk, &io, count);
 *     frozen_walk_run(walk, 0, 4, 0, 2, stream, err);      // samples 0..3 through layers 0 and 1
 *     frozen_walk_run(walk, 0, 2, 2, layers, stream, err); // samples 0 and 1 are done
 *     ...
 *     frozen_walk_free(walk);
 *
 * Each sample takes the layers in order, and none overtakes the one before it.  The states of
 * samples between two layers are saved, unless the next run continues with the same samples.
 * Outputs have the bits of frozen_run.
 *
 * A network whose weights are in the host's memory is not walked but run whole: each piece would
 * copy them anew.
 *
 * A walk uses the network's own scratch: between begin and the last sample's last layer f may not
 * be run otherwise.  All calls on the compute thread of the device. */
#ifndef WORKER_FROZEN_WALK_H
#define WORKER_FROZEN_WALK_H

#include "worker/frozen/frozen.h"

struct frozen_walk;

/* A walk with at most `underway` samples between the first layer and the last at a time.  f is
 * borrowed.  -ENOMEM; -EINVAL: its weights are not on the device.  free accepts NULL. */
int frozen_walk_new(struct frozen *f, int underway, struct frozen_walk **ret, struct err *err);
void frozen_walk_free(struct frozen_walk *w);

/* Begins with samples [0, count) of io, which must stay valid until all of them are done.  Forgets
 * the samples before. */
int frozen_walk_begin(struct frozen_walk *w, const struct frozen_io *io, int count,
                      struct err *err);
/* Queues samples [first, first+count) through layers [from, to). */
int frozen_walk_run(struct frozen_walk *w, int first, int count, int from, int to, struct stream *s,
                    struct err *err);

#endif
