/* The key, the certificate and the secrets of a data directory as one text with a line "NAME HEX"
 * for each, as they are kept in the store.  Blocking. */
#ifndef COORDINATOR_SHIP_KEYS_H
#define COORDINATOR_SHIP_KEYS_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define SHIP_KEYS_MAX ((size_t)64 << 10)

/* Appends the text to out. */
int ship_keys_read(const char *data_dir, struct buf *out, struct err *err);
/* Writes the files from the text.  -ERR_FORMAT: the text is malformed, or a file is missing in it.
 */
int ship_keys_write(const char *data_dir, const char *text, struct err *err);

#endif
