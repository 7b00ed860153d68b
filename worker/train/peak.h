/* The peak rate at which devices multiply matrices, as a reference for model FLOP/s.
 *
 * It is measured, not a data sheet's number: square products of random values (zeros draw less
 * power, so a card would run faster than it ever does in training) on all devices of an island at
 * once, while they are otherwise idle. */
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
 * and a twentieth on CPUs, and kept in state_dir/peak-TYPE for these devices. */
int peak_get(struct island *is, enum dtype dt, const char *state_dir, double *ret, struct err *err);
/* The devices have done more than that, as a machine may that was busy while it was measured: the
 * rate is kept in its place. */
void peak_raise(struct island *is, enum dtype dt, const char *state_dir, double rate);

#endif
