/* The captions of one image: UTF-8 text, a caption a line, without control characters, without
 * empty lines and without a line break at the end; at most CAPTIONS_MAX bytes in all.  No bytes:
 * no caption.  Pure functions; any threads. */
#ifndef COMMON_DATA_CAPTIONS_H
#define COMMON_DATA_CAPTIONS_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define CAPTIONS_MAX (16u << 10)

/* Adds one caption to such a text.  Line breaks and other control characters become spaces, those
 * at the ends go, and what is blank then is no caption.  What does not fit into CAPTIONS_MAX is cut
 * between two characters, and *ret_cut becomes true (else it is untouched).  -ERR_FORMAT when it is
 * not UTF-8, and what buf_append says; out is then as it was. */
int captions_add(struct buf *out, const char *text, size_t len, bool *ret_cut);
/* Adds each line of a file; a byte order mark at its beginning is none of it. */
int captions_add_lines(struct buf *out, const char *text, size_t len, bool *ret_cut);

/* Whether the text is as above; no bytes: no. */
bool captions_are_valid(const char *text, size_t len);

/* Of such a text: how many there are, and number i of them, inside the text; "" when there is none
 * of that number. */
unsigned captions_count(const char *text, size_t len);
const char *captions_get(const char *text, size_t len, unsigned i, size_t *ret_len);

#endif
