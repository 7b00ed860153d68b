/* A worker in text: its state, speed and bytes, what it reaches of its devices, and how they
 * are.  The object is an item of GET /v1/workers. */
#ifndef CLI_WORKER_SHOW_H
#define CLI_WORKER_SHOW_H

#include <stdio.h>

#include <jansson.h>

void worker_show(const json_t *worker, FILE *out);

#endif
