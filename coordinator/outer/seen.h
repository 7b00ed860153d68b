/* Remembers files that were hashed a moment ago, while they were written or read.  Reading such a
 * file again while it is unchanged would only read the page cache and say nothing about the disk.
 *
 * A file is identified by metadata that changes when somebody writes to it or replaces it.  The
 * table has a fixed size: the oldest entry goes first.  Any thread. */
#ifndef COORDINATOR_SEEN_H
#define COORDINATOR_SEEN_H

#include "common/base/base.h"

#define SEEN_FILES 512
#define SEEN_MS 60000 /* a moment */

struct seen;

struct seen *seen_new(void);
void seen_free(struct seen *s); /* NULL is fine */

/* Notes that the file has this hash; a file whose metadata cannot be read is not noted. */
void seen_note(struct seen *s, const char *path, const uint8_t sha256[32]);
/* Whether the file was noted with this hash within SEEN_MS and is unchanged. */
bool seen_lately(struct seen *s, const char *path, const uint8_t sha256[32]);

#endif
