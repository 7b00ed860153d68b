/* What each device of an island did in a step, as SVG: a row for each device, a bar for each
 * instruction, in the colour of its kind. */
#ifndef CLI_GANTT_SVG_H
#define CLI_GANTT_SVG_H

#include <jansson.h>

#include "common/base/base.h"

struct buf;

/* trace: Chrome's trace events as GET /v1/jobs/ID/trace has them.  Appends a complete SVG document
 * to out (bounded by its max).  -ERR_FORMAT: no events are in it; -ERR_LIMIT. */
int gantt_svg(const json_t *trace, const char *title, struct buf *out, struct err *err);

#endif
