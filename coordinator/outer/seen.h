/* Files that were hashed a moment ago, as they were written or read: while such a file is what it
 * was, reading it all again would look at the same memory and tell nothing about the disk.
 *
 * A file is known by what changes when somebody writes to it or puts another in its place.  Fixed
 * room: the oldest goes first.  Any thread. */
#ifndef COORDINATOR_SEEN_H
#define COORDINATOR_SEEN_H

#include "common/base/base.h"

#define SEEN_FILES 512
#define SEEN_MS 60000 /* a moment */

struct seen;

struct seen *seen_new(void);
void seen_free(struct seen *s); /* NULL is fine */

/* The file's bytes have this hash; one that cannot be looked at is not noted. */
void seen_note(struct seen *s, const char *path, const uint8_t sha256[32]);
/* Did they have it a moment ago, and is it the same file still? */
bool seen_lately(struct seen *s, const char *path, const uint8_t sha256[32]);

#endif
