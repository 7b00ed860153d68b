/* A Gantt chart as SVG of the devices of an island in a step: a row for each device, with the share
 * of the step in which it computed, and a bar for each instruction, in the colour of its kind and,
 * where there is room, with its name.
 *
 * The document is self-contained.  It has no style elements or attributes, so that a page may embed
 * it and restyle its classes: paper, row, instr (a bar), name (on a bar), device (its data-row is
 * the y of its bars).  A bar's title says when the instruction ran. */
#ifndef COORDINATOR_GANTT_SVG_H
#define COORDINATOR_GANTT_SVG_H

#include <jansson.h>

#include "common/base/base.h"

struct buf;

/* trace: Chrome's trace events as a worker sent them, so untrusted.  Appends a complete SVG
 * document to out (bounded by its max).  -ERR_FORMAT: there are no events in trace; -ERR_LIMIT: out
 * is full. */
int gantt_svg(const json_t *trace, struct buf *out, struct err *err);

#endif
