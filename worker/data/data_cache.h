/* What worker/data/data.c needs of the cache of decoded images; see worker/data/data.h
 * for its life.  Any thread. */
#ifndef WORKER_DATA_CACHE_H
#define WORKER_DATA_CACHE_H

#include "worker/data/data.h"

/* From now on images are of this size; those of another one are dropped. */
void data_cache_use(struct data_cache *c, size_t image_bytes);

/* Copies the image of a sample; false when it is not there. */
bool data_cache_get(struct data_cache *c, uint64_t id, uint8_t *pixels, int32_t *ret_label);

/* Keeps a copy while there is room. */
void data_cache_put(struct data_cache *c, uint64_t id, const uint8_t *pixels, int32_t label);

#endif
