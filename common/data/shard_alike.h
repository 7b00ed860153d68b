/* Are two shards of latents alike that two workers made of the same pictures?  Devices compute the
 * moments alike only nearly.
 *
 * Reads the files; any thread. */
#ifndef COMMON_DATA_SHARD_ALIKE_H
#define COMMON_DATA_SHARD_ALIKE_H

#include "common/base/base.h"

/* All samples must have equal names, classes, captions, features, keys and shapes.  Of `looks`
 * samples drawn by chance, or of all if they are fewer, |a - b| <= apart |b| must hold for the
 * means and for the logarithms of the variances, of each side. */
bool shard_alike(const char *a, const char *b, unsigned looks, double apart);

#endif
