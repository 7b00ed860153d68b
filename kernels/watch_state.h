/* The condition of a device at one moment, as kernels/device/watch.h reads it. */
#ifndef KERNELS_WATCH_STATE_H
#define KERNELS_WATCH_STATE_H

#include <stdint.h>

#define WATCH_TEXT_MAX 129

struct watch_state {
    char name[33];                  /* "cuda:0", "cpu" */
    char model[97];                 /* "NVIDIA H200", "AMD EPYC 7B13, 2 threads" */
    uint64_t memory_used;           /* bytes of all processes; on a CPU: of this process */
    uint64_t memory_total;          /* bytes; 0: unknown */
    int utilization;                /* %, 0 to 100; -1: unknown */
    unsigned temperature;           /* degrees Celsius; 0: unknown */
    float power;                    /* W; 0: unknown */
    int64_t ecc_errors;             /* uncorrected, since the driver was loaded; -1: unknown */
    char throttled[WATCH_TEXT_MAX]; /* "power cap, hardware thermal"; "": no reason */
    char trouble[WATCH_TEXT_MAX];   /* why nothing is known; "": all is well */
};

#endif
