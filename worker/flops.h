/* Arithmetic that a model's training takes, and how fast a device can do it at best.
 *
 * MODEL FLOPS, as in appendix B of PaLM (Chowdhery et al., 2022): two for each multiply-add
 * of the products with weights and of attention, forward once and backward twice as much.
 * What an implementation does beyond that does not count (recomputed activations, the padding
 * of a batch), nor what is no product (norms, activations, the optimiser, embeddings looked
 * up), nor a teacher's forward.  Attention is that of every token with every token of its
 * row, causal or not.
 *
 * PEAK is not a data sheet's number but what square products of the type in use reach on this
 * very device, measured once while it is idle.
 *
 *     MFU = flops_step(...) * steps / seconds / flops_peak(...) */
#ifndef WORKER_FLOPS_H
#define WORKER_FLOPS_H

#include <stdint.h>

#include "kernels/dtype.h"

struct device;
struct err;
struct model;
struct net_batch;

/* FLOPs of a forward of `samples` images, or of that many rows of `tokens` tokens (images: any
 * number). */
double flops_forward(const struct model *m, uint64_t samples, uint64_t tokens);

/* FLOPs of a training step on the batch: three forwards. */
double flops_step(const struct model *m, const struct net_batch *b);

/* FLOP/s of products of dt (sums f32) on the device, idle: the best of some tenths of a second
 * on a card, of some hundredths on a CPU.  Kept in state_dir/peak-*.json under what the device
 * says of itself, and taken from there the next time.  Uses the device: on its compute thread.
 * 0 with err: no memory, or the device failed. */
int flops_peak(struct device *dev, enum dtype dt, const char *state_dir, double *ret,
               struct err *err);

#endif
