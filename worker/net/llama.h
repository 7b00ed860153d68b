/* A Llama decoder on a device (Touvron et al. 2023), behind struct net (worker/net/net.h):
 * RMSNorm, rotary positions, grouped-query causal attention that keeps packed documents
 * apart, SwiGLU, tied or untied head.  Names, shapes and arithmetic are those of
 * LlamaForCausalLM and its relatives (worker/model/model.h); activations and products are bf16 or
 * f32, the residual stream, norms, losses and gradients of weights f32.
 *
 *   x0 = embed[token]
 *   x  = x + o_proj(attention(rope(q), rope(k), v))      of RMSNorm(x)
 *   x  = x + down(silu(gate) * up)                       of RMSNorm(x)
 *   logits = head(RMSNorm(x))
 *
 * With qk_norm each head of q and k passes an RMSNorm before its rope; with no_rope_layer_interval
 * N every Nth block has no rope.
 *
 * q, k, v (and gate, up) lie next to each other in the flat vector, so one product
 * computes them.  The head runs over slices of rows, forward and backward at once, so
 * memory does not grow with rows times vocabulary.
 *
 * loss of a target = -log p, in nats.
 *
 * All calls on the compute thread of the device; arrays of the host.  A failed call
 * leaves the weights as they were and the activations undefined. */
#ifndef WORKER_LLAMA_H
#define WORKER_LLAMA_H

#include "common/base/base.h"
#include "kernels/kernels.h"
#include "worker/model/model.h"
#include "worker/net/net.h"

struct llama;

extern const struct net_ops llama_net_ops;

/* The decoder behind a net; NULL: a net of another kind. */
struct llama *llama_of(struct net *net);
const struct model *llama_model(const struct llama *l);
/* Links two parts of one model, made with NET_FORWARD: llama_read of the first goes on with the
 * second.  Does nothing to nets of other kinds. */
void llama_link(struct net *part, struct net *next);

/* For tests and tools: logits (rows, seq, vocab) of a batch.  (Its losses, which are negative
 * log-probabilities, come from net_loss, its states from net_hidden.) */
int llama_logits(struct llama *l, const struct batch *b, float *logits, struct err *err);

/* ---- one text at a time, token by token ---- */

/* The keys and values of a text so far, at most the model's context. */
struct llama_cache;
int llama_cache_new(struct llama *l, struct llama_cache **ret, struct err *err);
void llama_cache_free(struct llama_cache *c); /* accepts NULL; before the net */
void llama_cache_clear(struct llama_cache *c);
int llama_cache_room(const struct llama_cache *c); /* tokens that still fit */

/* Appends n ids to the text in the cache; logits (vocab) on the host = those of the next
 * token.  -EINVAL: they do not fit, or an id is not below the vocabulary. */
int llama_read(struct llama_cache *c, const uint32_t *ids, int n, float *logits, struct err *err);

#endif
