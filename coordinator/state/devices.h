/* What a worker's heartbeat says of the devices it computes with: shown, never decided on. */
#ifndef COORDINATOR_DEVICES_H
#define COORDINATOR_DEVICES_H

#include <stddef.h>
#include <stdint.h>

#include "proto/skerry.pb-c.h"

#define DEVICES_MAX 64

/* As DeviceState of skerry.proto, whose marks for "unknown" it keeps. */
struct device_state {
    char name[33], model[97];
    uint64_t memory_used, memory_total;
    int32_t utilization;
    uint32_t temperature;
    float power;
    int64_t ecc_errors;
    char throttled[129], trouble[129];
};

/* Of one worker.  Zeroed: nothing is known. */
struct devices {
    struct device_state *list;
    size_t n;
    double flops, peak_flops; /* 0: unknown */
};

/* What m does not say stays as it was; what makes no sense counts as unknown. */
void devices_take(struct devices *d, const Skerry__V1__HeartbeatRequest *m);
/* The worker is gone: its devices are not seen any more, what it reached stays known. */
void devices_gone(struct devices *d);
void devices_release(struct devices *d);

/* flops / peak_flops, or NAN. */
double devices_mfu(const struct devices *d);

#endif
