/* What each device of an island did in a step, as SVG: a row for each device with the share of the
 * step in which it computed, a bar for each instruction, in the colour of its kind and, where there
 * is room, with its name.
 *
 * The document stands by itself.  Without style elements or attributes, so that a page may take it
 * over and restyle its classes: paper, row, instr (a bar), name (on a bar), device (whose data-row
 * is the y of its bars).  Of a bar its title says when it ran. */
#ifndef COORDINATOR_GANTT_SVG_H
#define COORDINATOR_GANTT_SVG_H

#include <jansson.h>

#include "common/base/base.h"

struct buf;

/* trace: Chrome's trace events as a worker sent them, and so anything.  Appends a complete SVG
 * document to out (bounded by its max).  -ERR_FORMAT: no events are in it; -ERR_LIMIT. */
int gantt_svg(const json_t *trace, struct buf *out, struct err *err);

#endif
