/* A step of an island as a file of Chrome's trace events, which Perfetto and chrome://tracing open:
 * a row for each device, a bar for each instruction of its list.
 *
 * A trace is measured or simulated (simulate.h); the names of its devices should say which. */
#ifndef WORKER_TRACE_H
#define WORKER_TRACE_H

#include "worker/pipe/simulate.h"

/* A device's list, and when each instruction of it ran. */
struct trace_device {
    const char *name;
    int chains; /* chains of the model: with two, bars name theirs */
    const struct pipe_list *list;
    const struct trace *trace;
};

/* Bars are named "F 3", with two chains "F 3 base", "SEND states 3", "FROZEN 0, layers 2-4, samples
 * 0-3", "STEP".  An error leaves no file, or the old one. */
int trace_write(const char *path, const struct trace_device *devices, int n, struct err *err);

#endif
