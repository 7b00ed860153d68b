/* Samples on their way through a frozen network, in pieces: a run of them through a run of layers
 * at a time, as a pipeline's bubbles have room (worker/pipe/fill.h).
 *
 *     frozen_walk_new(f, underway, &walk, err);
 *     frozen_walk_begin(walk, &io, count);
 *     frozen_walk_run(walk, 0, 4, 0, 2, stream, err);      // samples 0..3 through layers 0 and 1
 *     frozen_walk_run(walk, 0, 2, 2, layers, stream, err); // 0 and 1 are through
 *     ...
 *     frozen_walk_free(walk);
 *
 * Each sample takes the layers in order, and none overtakes the one before it; what a sample is
 * between two layers is kept apart, unless the next run goes on with the same samples.  Outputs
 * have the bits of frozen_run.
 *
 * The network's own scratch is used: between begin and the last sample's last layer nobody else may
 * run f.  All calls on the compute thread of the device. */
#ifndef WORKER_FROZEN_WALK_H
#define WORKER_FROZEN_WALK_H

#include "worker/frozen/frozen.h"

struct frozen_walk;

/* For at most `underway` samples between the first layer and the last at a time.  f is borrowed.
 * -ENOMEM.  free accepts NULL. */
int frozen_walk_new(struct frozen *f, int underway, struct frozen_walk **ret, struct err *err);
void frozen_walk_free(struct frozen_walk *w);

/* Samples [0, count) of io, which stays valid until all of them are through.  Forgets those before.
 */
int frozen_walk_begin(struct frozen_walk *w, const struct frozen_io *io, int count,
                      struct err *err);
/* Queues samples [first, first+count) through layers [from, to). */
int frozen_walk_run(struct frozen_walk *w, int first, int count, int from, int to, struct stream *s,
                    struct err *err);

#endif
