/* Processes that ask to join as a worker that is here already: copies of its work directory, as
 * machines made from one image have.  They are refused, and ask again for as long as they run.
 *
 * Lives in memory, for the newest TWINS_MAX.  Loop thread. */
#ifndef COORDINATOR_TWINS_H
#define COORDINATOR_TWINS_H

#include "coordinator/state/core.h"

#define TWINS_QUICK 5         /* a worker that starts again may be quicker than its connection */
#define TWINS_QUICK_MS 1000   /* between its tries */
#define TWINS_AGAIN_MS 10000  /* then */
#define TWINS_FORGET_MS 60000 /* without a try */

/* Notes that the process was refused: after how many ms it may ask again.  *ret_new: it is not one
 * that was refused before. */
uint32_t twins_refuse(struct coordinator *co, const struct worker *w, const uint8_t instance[16],
                      bool *ret_new);
/* Whether the process has been refused so. */
bool twins_has(const struct coordinator *co, const struct worker *w, const uint8_t instance[16]);
/* The process is the worker now. */
void twins_admit(struct coordinator *co, const struct worker *w, const uint8_t instance[16]);
/* The number of such processes. */
unsigned twins_of(const struct coordinator *co, uint64_t worker_id);

#endif
