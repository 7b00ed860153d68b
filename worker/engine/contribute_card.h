/* A coder of contributions whose theta_end lies on a card (common/outer/contribution.h): the
 * difference, the error feedback and the codec run there, and what comes back is the payload
 * and the new residual.
 *
 *   host     read n+1 │ read n+2 │ write n │ ...         pinned memory
 *   stream 0          ┌ up ─ encode ─ down ┐             a stream a place: the copies of one
 *   stream 1                     ┌ up ─ encode ─ down    chunk pass by the next one's
 *
 * Working memory: CARD_PLACES chunks on the card and as much that is pinned, about 5 MB each.
 * On the thread that uses the device; nothing else may change the weights meanwhile. */
#ifndef WORKER_CONTRIBUTE_CARD_H
#define WORKER_CONTRIBUTE_CARD_H

#include "common/base/base.h"
#include "common/outer/contribution.h"

struct card;
struct weights;

/* Chunks under way at a time, and their elements. */
enum { CARD_PLACES = 3, CARD_CHUNK = 1 << 19 };

/* Whether the device of these weights can code. */
bool card_codes(const struct weights *w);

/* Waits for what is queued on the weights. */
int card_open(struct weights *w, enum codec codec, struct card **ret, struct err *err);
void card_close(struct card *c); /* accepts NULL */

/* The coder for contribution_write; owned by the card. */
const struct contribution_coder *card_coder(const struct card *c);

#endif
