/* A large file on its way, told of on stderr: at most five times a second on a terminal, in a line
 * that is redrawn, and every five seconds elsewhere.
 *
 *     struct moving m = moving_begin("downloading the model");
 *     rc = http_get_file(http, path, file, sha256, moving_show, &m, err);
 *     moving_end(&m);
 */
#ifndef CLI_MOVING_H
#define CLI_MOVING_H

#include "common/base/base.h"

struct moving {
    const char *what;
    bool to_terminal, drawn;
    uint64_t begun_ms, shown_ms;
};

struct moving moving_begin(const char *what);
/* An xfer_progress_fn; total 0: not known.  A file that is there within the first interval is not
 * told of. */
void moving_show(void *moving, uint64_t done, uint64_t total);
/* Leaves no line on a terminal. */
void moving_end(struct moving *m);

#endif
