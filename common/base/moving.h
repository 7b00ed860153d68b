/* What a program that a person has called says on stderr while it works.  On a terminal this is one
 * line, which is redrawn in place and never wider than the terminal; elsewhere each has a line of
 * its own, and there are few of them.
 *
 *     struct moving m = moving_begin("downloading the model");
 *     rc = http_get_file(http, path, file, sha256, moving_show, &m, err);
 *     moving_clear();
 */
#ifndef COMMON_BASE_MOVING_H
#define COMMON_BASE_MOVING_H

#include "common/base/base.h"

/* False for files, pipes, and terminals that cannot redraw (TERM=dumb). */
bool moving_redraws(void);
/* Columns of the terminal that a line may fill. */
unsigned moving_columns(void);
/* Draws the line in place of the one before, as much of it as fits. */
void moving_draw(const char *line);
/* Draws what is being done for some seconds; elsewhere than on such a terminal says nothing. */
__attribute__((format(printf, 1, 2))) void moving_now(const char *format, ...);
/* Removes the drawn line, so that something else can be said; keep leaves it and begins another.
 * Neither does anything where no line is drawn. */
void moving_clear(void);
void moving_keep(void);

/* Something that takes long, such as a large file on its way. */
struct moving {
    const char *what;
    uint64_t begun_ms, shown_ms;
};

struct moving moving_begin(const char *what);
/* Is it time to say how far it is?  Five times a second on a terminal, every five seconds
 * elsewhere; so what ends sooner is not told of. */
bool moving_due(struct moving *m);
/* Says it: draws it, or prints a line. */
void moving_say(const char *line);
/* An xfer_progress_fn; total 0: not known. */
void moving_show(void *moving, uint64_t done, uint64_t total);

/* The same of bytes that are counted here: the caller sets what and total, and adds. */
struct moving_bytes {
    struct moving moving;
    uint64_t done, total;
};
void moving_add(struct moving_bytes *m, uint64_t bytes);

#endif
