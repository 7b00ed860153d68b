/* The arithmetic of training a model.
 *
 * MODEL FLOPS, as in appendix B of PaLM (Chowdhery et al., 2022): two for each multiply-add
 * in products with weights and in attention, and a backward counts as two forwards.
 * Not counted are an implementation's extra work (recomputed activations, the padding
 * of a row), whatever is no product (norms, activation functions, the optimiser, embedding
 * look-ups), and a teacher's forward.  Attention counts every token with every token of its
 * text, causal or not; texts packed into one row count as separate texts.
 *
 *     MFU = flops_step(m, &batch) * steps / seconds / peak      // worker/train/peak.h
 *
 * Pure, any thread. */
#ifndef WORKER_FLOPS_H
#define WORKER_FLOPS_H

#include "common/base/base.h"

struct model;
struct batch;

/* A forward of `samples` images, or texts of `tokens` tokens (not read for images). */
double flops_forward(const struct model *m, uint64_t samples, uint64_t tokens);

/* A training step on the batch: three times its forward. */
double flops_step(const struct model *m, const struct batch *b);

#endif
