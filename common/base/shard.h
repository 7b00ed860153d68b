/* A shard: the uncompressed ustar that dataset_cut writes, `KEY.jpg` followed by
 * `KEY.cls` (a decimal class index), opened for random access by sample number.
 * Strict: anything else is refused.  A pure parser over the bytes; the file
 * variant maps it.  Read-only after open: any number of threads. */
#ifndef COMMON_BASE_SHARD_H
#define COMMON_BASE_SHARD_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/file.h"

struct err;

#define SHARD_SAMPLES_MAX 65536
#define SHARD_KEY_MAX 100

struct shard_sample {
    char key[SHARD_KEY_MAX]; /* unique in the shard: names a bad image */
    uint32_t cls;
    const uint8_t *data; /* encoded image, inside the mapping */
    size_t len;
};

struct shard {
    struct file_map map;
    struct shard_sample *samples;
    size_t n;
};

int shard_open(const char *path, struct shard *ret, struct err *err);
/* Over borrowed bytes; `name` is for messages. */
int shard_parse(const void *data, size_t len, const char *name, struct shard *ret, struct err *err);
void shard_close(struct shard *s); /* { 0 } is fine */

#endif
