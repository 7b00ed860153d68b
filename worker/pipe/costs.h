/* The costs of a model on an island, layer by layer, from which plans are made.
 *
 *     {"format": "skerry-pipeline-profile", "version": 1, "model": "dit-xl-2",
 *      "sizes": [1, 4, 16],                      samples at which layers were measured
 *      "chains": [{"name": "dit", "layers": [    trained layers, from the input to the loss
 *        {"f": [1e-3, 3e-3, 9e-3],               seconds of the forward at each size
 *         "b": [...], "w": [...],                of the backward: of its input, of its weights
 *         "add": 1e-5,                           more of a W that adds to earlier gradients (0)
 *         "step": 1e-4,                          of the optimiser's update (0)
 *         "out_bytes": 524288,                   of a sample: what the next layer gets (0)
 *         "slot_bytes": 4194304,                 of a sample: kept from its forward to W (0)
 *         "weight_bytes": 0, "state_bytes": 0,   what computes, and gradients; moments, masters (0)
 *         "gradient_bytes": 0,                   what replicas sum (0)
 *         "count": 28}]}],                       so many equal layers (1)
 *      "groups": [1, 8],                         samples at which frozen layers were measured
 *      "frozen": [{"name": "vae", "out_bytes": 16384, "wanted": "first", "layers": [
 *        {"t": [1e-3, 7e-3], "weight_bytes": 0, "scratch_bytes": 0, "count": 1}]}],
 *      "devices": [{"name": "cuda:0", "speed": 1, "memory": 85899345920,
 *                   "sums_apart": 0, "count": 8}],  1: sums take time that its passes cannot use
 *      "links": [{"alpha": 1e-5, "bytes_per_s": 2e10, "count": 7}]}
 *
 * Seconds are those of a device of speed 1.  Link i lies between devices i and i+1, both ways at
 * once; without links transfers are free.  Two chains are a cascade: base, then upscaler.  "frozen"
 * and "groups" may be missing.  Read by people as well as made by a measurement, so unknown keys
 * are refused.  Pure; no threads. */
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

/* Where times were measured, ascending, at least one. */
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
    double add; /* seconds, of a micro-batch that is not its step's first */
    double step;
    uint64_t out_bytes, slot_bytes; /* of a sample */
    uint64_t weight_bytes, state_bytes, gradient_bytes;
};

/* Trained layers, from the input to the loss. */
struct costs_chain {
    char name[COSTS_NAME_MAX + 1];
    int n;
    struct costs_layer *layers;
};

/* A layer that is not trained, and its network. */
struct costs_frozen_layer {
    struct costs_time t;
    uint64_t weight_bytes, scratch_bytes; /* scratch: of a sample that is on its way */
};

struct costs_frozen {
    char name[COSTS_NAME_MAX + 1];
    int n;
    struct costs_frozen_layer *layers;
    uint64_t out_bytes; /* of a sample */
    bool all;           /* every stage wants the output; else the first of each chain */
};

/* Where it computes; memory: bytes that the step may take. */
struct costs_device {
    char name[COSTS_NAME_MAX + 1];
    double speed;
    uint64_t memory;
    bool sums_apart; /* gradients are not summed beside its passes: a CPU has one core for both */
};

struct costs_link {
    double alpha;       /* seconds of an empty message */
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
    struct costs_link across; /* of shares (costs_share): between devices of different ones */
};

/* name is for messages.  -ERR_FORMAT: no JSON; -ERR_CONFIG: a rule is broken; -ENOMEM. */
int costs_parse(const char *name, const char *text, size_t len, struct costs *ret, struct err *err);
int costs_read(const char *path, struct costs *ret, struct err *err);
/* A file that costs_read reads. */
int costs_write(const char *path, const struct costs *p, struct err *err);
void costs_release(struct costs *p);
int costs_copy(const struct costs *p, struct costs *ret); /* layers too; -ENOMEM */

/* Seconds of `samples` samples at speed 1: on the line between the points around it; below the
 * first and above the last point in proportion to that point. */
double costs_seconds(const struct costs_points *points, const struct costs_time *time, int samples);

/* The link between any two devices: the worst of those on the way. */
struct costs_link costs_link(const struct costs *p, int a, int b);
double costs_transfer(const struct costs_link *link, uint64_t bytes); /* seconds */

/* One of `copies` equal shares of the devices, in their order, each device the worst of those that
 * stand at its place: what one of several equal pipelines has.  n_devices must be a multiple.
 * Layers stay p's: do not release ret. */
void costs_share(const struct costs *p, int copies, struct costs *ret);
/* Devices [from, from+n) by themselves.  Layers stay p's. */
void costs_some(const struct costs *p, int from, int n, struct costs *ret);

#endif
