/* Frozen networks that a machine already has: files in a folder of the worker's owner (workerd
 * --models), found by their content whatever their names.  Compute thread. */
#ifndef WORKER_LOCAL_MODELS_H
#define WORKER_LOCAL_MODELS_H

#include "common/base/base.h"
#include "common/base/hash.h"

/* The path of a file below dir with this size and hash (mem_free it); NULL: there is none.  Reads
 * every file of that size.  Searches LOCAL_MODELS_DEPTH folders deep and follows links. */
#define LOCAL_MODELS_DEPTH 8
char *local_models_find(const char *dir, uint64_t size, const uint8_t sha256[HASH_BYTES]);

#endif
