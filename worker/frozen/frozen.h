/* A frozen network on a device: a chain of layers without gradients, made of a component
 * (common/component/component.h).
 *
 *     part            input of a sample                 output of a sample
 *     FROZEN_ENCODE   pixels (S,S,3) u8                 moments (2,Ch,s,s): mean, then logarithm
 *                                                       of the variance; s = S >> (blocks - 1)
 *     FROZEN_DECODE   latents (Ch,s,s) f32, as a        pixels (S,S,3) u8, or (3,S,S) f32 with
 *                     model trains on them              planar, not clamped
 *     FROZEN_TEXT     token ids (L) i32 and the text's  states (L,D) (dt), zero after the text's
 *                     length                            end
 *
 * Pixels are read as p / 127.5 - 1.  The decoder undoes (z - shift) * scale itself.  A CLIP's
 * states are transformers' last_hidden_state (layer -1: after the last norm), or hidden_states[-2]
 * (layer -2: the last layer's input, without that norm); its attention is causal.  A T5's states
 * are its last_hidden_state; it attends to no token after the text's end.
 *
 * Layers compute in (dt), bf16 or f32, and moments are rounded to bf16 unless `moments` says f32.
 * On the CPU a sample's output has the same bits beside any other samples, in any group.
 *
 * WHERE THE WEIGHTS ARE.  On the device, or, if they have no room there, in the host's memory
 * (struct frozen_host).  Then a layer's weights are copied to the device ahead of its use, beside
 * the computation of the layer before it, into one of FROZEN_SLOTS places that layers take in
 * turns. A pass of opt.pass samples shares these copies: all of its groups take a layer before any
 * takes the next one.  The groups and their operations are those of a network on the device, and so
 * are the bits.
 *
 * All calls on the compute thread of the device. */
#ifndef WORKER_FROZEN_H
#define WORKER_FROZEN_H

#include "common/base/base.h"
#include "common/component/component.h"
#include "kernels/kernels.h"

enum frozen_part {
    FROZEN_ENCODE, /* of a COMPONENT_VAE */
    FROZEN_DECODE, /* of a COMPONENT_VAE */
    FROZEN_TEXT,   /* a COMPONENT_CLIP or COMPONENT_T5 */
    FROZEN_PARTS,
};

struct frozen_options {
    enum frozen_part part;
    enum dtype dt;      /* type of its computation and weights */
    enum dtype moments; /* type of FROZEN_ENCODE's output */
    int group;          /* samples that run at a time, at least 1: scratch grows with it */
    int side;           /* S: a multiple of 2^(blocks - 1) */
    bool planar;        /* FROZEN_DECODE */
    int tokens;         /* L: at most the component's positions */
    int layer;          /* CLIP: -1 or -2; T5: -1 */
    int pass;           /* 0: the weights lie on the device; else they are in the host's memory, and
                         * so many samples, at least a group, share their copies */
    const struct frozen_host *host; /* with pass, for frozen_open: the weights */
};

/* The places for the weights of layers on a device that does not hold all of them: one is read
 * while the other is written. */
enum { FROZEN_SLOTS = 2 };

struct frozen;

/* Bytes that frozen_open would take on the device (weights, scratch), and bytes per sample: held
 * between two layers, and its output; and all weights, wherever they are: with opt.pass those in
 * the host's memory, of which `streamed` are copied for each pass. */
struct frozen_sizes {
    uint64_t weights, scratch, hold, out, all, streamed;
};
/* Both fail with a sentence if the component cannot do what is asked (-ERR_CONFIG). */
int frozen_bytes(const struct component *c, const struct frozen_options *opt,
                 struct frozen_sizes *ret, struct err *err);
/* Reads the weights: c is not needed afterwards.  Also -ENOMEM, or an error of reading.  close
 * accepts NULL. */
int frozen_open(struct device *dev, const struct component *c, const struct frozen_options *opt,
                struct frozen **ret, struct err *err);
void frozen_close(struct frozen *f);

/* All weights of a component as frozen_open with the same options needs them, in host memory from
 * which dev copies without staging.  Networks on several devices of one kind, each on a thread of
 * its own, may read the same.  c is not needed afterwards.  free, after the networks are closed,
 * accepts NULL; no other thread may use dev meanwhile. */
int frozen_host_new(struct device *dev, const struct component *c, const struct frozen_options *opt,
                    struct frozen_host **ret, struct err *err);
void frozen_host_free(struct frozen_host *h);

/* Bytes of a sample's input and output.  For tests, and for code that knows no shapes. */
uint64_t frozen_in_bytes(const struct frozen *f);
uint64_t frozen_out_bytes(const struct frozen *f);

/* Runs the whole chain over count samples, on a stream of its own: no work queued elsewhere may
 * still write `in` or read `out`.  The output is complete when it returns.  A VAE takes pictures of
 * any shape with no more pixels than S x S and both sides multiples of 2^(blocks - 1); those of
 * one call have one shape, and lie one after the other. */
struct frozen_io {
    const void *in;         /* host memory; latents: device memory */
    const int32_t *lengths; /* FROZEN_TEXT: (count) 1 to L each, host memory */
    void *out;              /* device memory */
    int height, width;      /* sides of the pictures in pixels; 0: S */
    uint64_t in_stride;     /* bytes from one input in host memory to the next; 0: dense */
};
int frozen_run(struct frozen *f, const struct frozen_io *io, int count, struct err *err);

/* ---- its layers: for running the chain in pieces (frozen_walk.h), and for tests ---- */

int frozen_layers(const struct frozen *f);
/* Multiply-adds of layer i for a sample.  For tests: plans use measured times. */
uint64_t frozen_layer_cost(const struct frozen *f, int i);
/* Bytes of layer i's weights. */
uint64_t frozen_layer_bytes(const struct frozen *f, int i);

#endif
