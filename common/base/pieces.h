/* Long work, piece by piece: whoever runs it on a thread hears of each piece that it has read,
 * written, flushed or computed there, and so knows that it goes on.  Nobody hears at first. */
#ifndef COMMON_PIECES_H
#define COMMON_PIECES_H

#include "common/base/base.h"

#define PIECE_BYTES ((size_t)64 << 20) /* the largest that is read, written or flushed at once */

typedef void pieces_fn(void *arg);
/* From now on fn hears of this thread's pieces; NULL: nobody does. */
void pieces_hear(pieces_fn *fn, void *arg);
/* Does anybody hear of this thread's pieces? */
bool pieces_heard(void);
/* A piece is done. */
void pieces_done(void);

#endif
