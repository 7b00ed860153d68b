/* Arithmetic that the training of a model takes.
 *
 * MODEL FLOPS, as in appendix B of PaLM (Chowdhery et al., 2022): two for each multiply-add
 * of the products with weights and of attention, forward once and backward twice as much.
 * What an implementation does beyond that does not count (recomputed activations, the padding
 * of a row), nor what is no product (norms, activations, the optimiser, embeddings looked
 * up), nor a teacher's forward.  Attention is that of every token with every token of its
 * text, causal or not; texts packed into one row are texts of their own.
 *
 *     MFU = flops_step(m, &batch) * steps / seconds / peak      // worker/train/peak.h
 *
 * Pure, any thread. */
#ifndef WORKER_FLOPS_H
#define WORKER_FLOPS_H

#include "common/base/base.h"

struct model;
struct batch;

/* A forward of `samples` images, or texts of `tokens` tokens (images: any number). */
double flops_forward(const struct model *m, uint64_t samples, uint64_t tokens);

/* A training step on the batch: three forwards. */
double flops_step(const struct model *m, const struct batch *b);

#endif
