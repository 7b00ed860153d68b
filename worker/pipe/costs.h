/* The costs of a model on an island, layer by layer, from which plans are made.
 *
 *     {"format": "skerry-pipeline-profile", "version": 1, "model": "dit-xl-2",
 *      "sizes": [1, 4, 16],                      samples at which layers were measured
 *      "chains": [{"name": "dit", "layers": [    trained layers, from the input to the loss
 *        {"f": [1e-3, 3e-3, 9e-3],               seconds of the forward at each size
 *         "b": [...], "w": [...],                of the backward: of its input, of its weights
 *         "add": 1e-5,                           extra of a W that adds to earlier gradients (0)
 *         "step": 1e-4,                          of the optimiser's update (0)
 *         "out_bytes": 524288,                   of a sample's output, for the next layer (0)
 *         "slot_bytes": 4194304,                 of a sample, kept from its forward to W (0)
 *         "split_bytes": 0,                      more of it where W runs apart (0)
 *         "weight_bytes": 0, "state_bytes": 0,   weights, masters, gradients; moments,
 *                                               which a stage's devices may share (0)
 *         "gradient_bytes": 0,                   of the gradients that replicas sum (0)
 *         "count": 28}],                         number of equal layers (1)
 *        "stage": {                              what each stage has beside its layers (nothing)
 *          "bytes": 0, "sample_bytes": 0,        in all; of a sample of a micro-batch
 *          "load_bytes": 0,                      of a sample of its copy's step
 *          "slot_bytes": 0, "split_bytes": 0},   of a sample in a slot, as of a layer
 *        "first": {}, "last": {}}],              more at the ends of the chain, likewise
 *      "groups": [1, 8],                         samples at which frozen layers were measured
 *      "frozen": [{"name": "vae", "out_bytes": 16384, "wanted": "first", "layers": [
 *        {"t": [1e-3, 7e-3], "weight_bytes": 0, "scratch_bytes": 0, "count": 1}]}],
 *      "devices": [{"name": "cuda:0", "speed": 1, "memory": 85899345920,
 *                   "sums_apart": 0,         1: sums do not overlap with its passes
 *                   "from_host": 2.5e10,     bytes a second from the host's memory (0: its memory)
 *                   "kind": "card",          or "host": what its operations need is counted, too
 *                   "count": 8}],
 *      "links": [{"alpha": 1e-5, "bytes_per_s": 2e10, "count": 7}]}
 *
 * Seconds are those of a device of speed 1.  Link i lies between devices i and i+1, both ways at
 * once; without links transfers are free.  Two chains are a cascade: base, then upscaler.  "frozen"
 * and "groups" may be missing.  A worker counts the bytes as its check of memory does
 * (worker/train/plan_chain.h), so that what fits by a profile fits there.  People may write such a
 * file, so unknown keys are refused.  Pure; no threads. */
#ifndef WORKER_COSTS_H
#define WORKER_COSTS_H

#include "common/base/base.h"

#define COSTS_NAME_MAX 64
#define COSTS_POINTS_MAX 16
#define COSTS_CHAINS_MAX 2
#define COSTS_LAYERS_MAX 256 /* of a chain */
#define COSTS_FROZEN_MAX 4
#define COSTS_DEVICES_MAX 64
#define COSTS_FILE_MAX (4u << 20)

/* The numbers of samples at which times were measured, ascending, at least one. */
struct costs_points {
    int n;
    int samples[COSTS_POINTS_MAX];
};

/* Seconds at each point. */
struct costs_time {
    double s[COSTS_POINTS_MAX];
};

/* A trained layer. */
struct costs_layer {
    struct costs_time f, b, w;
    double add; /* extra seconds of W in a micro-batch that is not its step's first */
    double step;
    uint64_t out_bytes, slot_bytes, split_bytes; /* per sample */
    uint64_t weight_bytes, state_bytes, gradient_bytes;
};

/* Bytes of a stage beside those of its layers. */
struct costs_beside {
    uint64_t bytes;                   /* however many samples there are */
    uint64_t sample_bytes;            /* per sample of a micro-batch */
    uint64_t load_bytes;              /* per sample of the copy's step */
    uint64_t slot_bytes, split_bytes; /* per sample in a slot */
};

/* Trained layers, from the input to the loss. */
struct costs_chain {
    char name[COSTS_NAME_MAX + 1];
    int n;
    struct costs_layer *layers;
    struct costs_beside stage, first, last; /* of each stage; more at the ends of the chain */
};

/* A layer that is not trained, and its network. */
struct costs_frozen_layer {
    struct costs_time t;
    uint64_t weight_bytes, scratch_bytes; /* scratch: per sample in the network */
};

struct costs_frozen {
    char name[COSTS_NAME_MAX + 1];
    int n;
    struct costs_frozen_layer *layers;
    uint64_t out_bytes; /* per sample */
    bool all;           /* every stage reads the output; else the first of each chain */
};

/* What a device's memory is, and so what is needed there beside what a network says it needs. */
enum costs_kind {
    COSTS_ANY, /* nothing is known of it, nor counted */
    COSTS_HOST,
    COSTS_CARD,
};

/* Working memory of the operations, which grows with the activations, and on the host the flat copy
 * of the weights. */
uint64_t costs_workspace(enum costs_kind kind, uint64_t activations, uint64_t flat_bytes);

/* A device; memory: bytes that the step may take. */
struct costs_device {
    char name[COSTS_NAME_MAX + 1];
    double speed;
    uint64_t memory;
    bool sums_apart;  /* gradients are not summed beside its passes: a CPU has one core for both */
    double from_host; /* bytes a second from the host's memory; 0: that is the device's, too */
    enum costs_kind kind;
};

struct costs_link {
    double alpha;       /* seconds for an empty message */
    double bytes_per_s; /* infinite: transfers are free */
};

struct costs {
    char model[COSTS_NAME_MAX + 1];
    struct costs_points sizes, groups;
    int n_chains, n_frozen, n_devices;
    struct costs_chain chains[COSTS_CHAINS_MAX];
    struct costs_frozen frozen[COSTS_FROZEN_MAX];
    struct costs_device devices[COSTS_DEVICES_MAX];
    struct costs_link links[COSTS_DEVICES_MAX - 1];
    struct costs_link across; /* link between devices of different shares (costs_share) */
    /* Not of the file: seconds, at `groups`, in which a device where a chain begins encodes its
     * samples before the step, if frozen networks do not run ahead. */
    struct costs_time load;
};

/* name is for messages.  -ERR_FORMAT: not JSON; -ERR_CONFIG: a rule is broken; -ENOMEM. */
int costs_parse(const char *name, const char *text, size_t len, struct costs *ret, struct err *err);
int costs_read(const char *path, struct costs *ret, struct err *err);
/* Writes a file that costs_read reads. */
int costs_write(const char *path, const struct costs *p, struct err *err);
void costs_release(struct costs *p);
int costs_copy(const struct costs *p, struct costs *ret); /* layers too; -ENOMEM */

/* Seconds for `samples` samples at speed 1: linear between the points around it; below the first
 * point and above the last one in proportion to that point. */
double costs_seconds(const struct costs_points *points, const struct costs_time *time, int samples);

/* The link between any two devices: the worst of the links on the way. */
struct costs_link costs_link(const struct costs *p, int a, int b);
double costs_transfer(const struct costs_link *link, uint64_t bytes); /* seconds */

/* The devices of one of `copies` equal pipelines of consecutive devices; each is as bad as the
 * worst device at its place in any of them.  n_devices must be a multiple of copies.  Layers stay
 * p's: do not release ret. */
void costs_share(const struct costs *p, int copies, struct costs *ret);
/* Only devices [from, from+n).  Layers stay p's. */
void costs_some(const struct costs *p, int from, int n, struct costs *ret);

#endif
