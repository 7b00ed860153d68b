/* Between shard.c (reading), shard_unpack.c and shard_writer.c; not for others. */
#ifndef COMMON_BASE_SHARD_INTERNAL_H
#define COMMON_BASE_SHARD_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/data/shard.h"

/* What a sample's first member holds, by its extension; false: none of ours. */
bool shard_ext_kind(const char *ext, enum shard_kind *ret);

/* Do the bytes begin as zstd does? */
bool shard_is_packed(const void *data, size_t len);
/* All that they hold, at most SHARD_UNPACKED_MAX bytes; mem_free. */
int shard_unpack(const void *data, size_t len, const char *name, uint8_t **ret, size_t *ret_len,
                 struct err *err);

#endif
