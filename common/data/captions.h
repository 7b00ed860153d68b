/* The captions of one image: UTF-8 text with one caption per line, without control characters,
 * empty lines or a line break at the end; at most CAPTIONS_MAX bytes in all.  No bytes: no caption.
 * Pure functions; any threads. */
#ifndef COMMON_DATA_CAPTIONS_H
#define COMMON_DATA_CAPTIONS_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define CAPTIONS_MAX (16u << 10)

/* Adds one caption to such a text.  Line breaks and other control characters become spaces, spaces
 * at the ends are removed, and a blank rest is no caption.  A caption that does not fit into
 * CAPTIONS_MAX is cut between two characters, and *ret_cut becomes true (else it is untouched).
 * -ERR_FORMAT: it is not UTF-8; or an error of buf_append; out is then as it was. */
int captions_add(struct buf *out, const char *text, size_t len, bool *ret_cut);
/* Adds each line of a file, without a byte order mark at its beginning. */
int captions_add_lines(struct buf *out, const char *text, size_t len, bool *ret_cut);

/* Is it such a text, and not empty? */
bool captions_are_valid(const char *text, size_t len);

/* The number of captions in such a text, and caption i, inside the text; "" if there is none. */
unsigned captions_count(const char *text, size_t len);
const char *captions_get(const char *text, size_t len, unsigned i, size_t *ret_len);

#endif
