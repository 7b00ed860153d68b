/* Between shard.c (reading) and shard_writer.c; not for others. */
#ifndef COMMON_BASE_SHARD_INTERNAL_H
#define COMMON_BASE_SHARD_INTERNAL_H

#include <stdbool.h>

#include "common/base/shard.h"

/* What a sample's first member holds, by its extension; false: none of ours. */
bool shard_ext_kind(const char *ext, enum shard_kind *ret);

#endif
