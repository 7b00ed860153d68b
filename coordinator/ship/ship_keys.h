/* The key, the certificate and the secrets of a data directory as one text, a line "NAME HEX" each:
 * how they are kept in the store.  Blocking. */
#ifndef COORDINATOR_SHIP_KEYS_H
#define COORDINATOR_SHIP_KEYS_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define SHIP_KEYS_MAX ((size_t)64 << 10)

/* Appends the text to out. */
int ship_keys_read(const char *data_dir, struct buf *out, struct err *err);
/* Makes the files of it.  -ERR_FORMAT: it is no such text, or lacks one. */
int ship_keys_write(const char *data_dir, const char *text, struct err *err);
/* Of a directory that is none yet. */
void ship_keys_remove(const char *data_dir);

#endif
