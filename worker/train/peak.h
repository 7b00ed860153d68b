/* How fast devices multiply matrices at best: what model FLOP/s are compared with.
 *
 * Not a data sheet's number, but what square products of random values (zeros would draw less
 * power, so that a card runs faster than it ever will in training) reach on these very
 * devices, all of an island at once, while they are otherwise idle. */
#ifndef WORKER_PEAK_H
#define WORKER_PEAK_H

#include "common/base/base.h"
#include "kernels/dtype.h"

struct device;
struct island;

/* FLOP/s of products of dt with f32 sums: the best of about `seconds`, with matrices as large as
 * that time and the device's memory allow.  On the device's thread, which waits. */
int peak_measure(struct device *dev, enum dtype dt, double seconds, double *ret, struct err *err);

/* The same for all devices of the island together.  Measured once, for a third of a second on cards
 * and a twentieth on CPUs, and kept in state_dir/peak-TYPE for the same devices. */
int peak_get(struct island *is, enum dtype dt, const char *state_dir, double *ret, struct err *err);

#endif
