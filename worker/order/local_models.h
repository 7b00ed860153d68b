/* Frozen networks that a machine has already: a folder of the worker's owner (workerd --models), in
 * which files are found by their content, whatever they are called there and however deep they
 * lie.  Compute thread. */
#ifndef WORKER_LOCAL_MODELS_H
#define WORKER_LOCAL_MODELS_H

#include "common/base/base.h"
#include "common/base/hash.h"

/* The path of a file below dir with this size and hash (mem_free); NULL: there is none.  Reads
 * every file of that size.  Looks LOCAL_MODELS_DEPTH folders deep; links are followed. */
#define LOCAL_MODELS_DEPTH 8
char *local_models_find(const char *dir, uint64_t size, const uint8_t sha256[HASH_BYTES]);

#endif
