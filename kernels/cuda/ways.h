/* What was found to be fastest for a product on this card, kept on disk, so that a program that
 * starts again times nothing.
 *
 * One file for each card, driver and cuBLASLt: $XDG_CACHE_HOME/skerry/products-*, or in
 * ~/.cache/skerry.  It is only added to, an entry at a time, so that programs may share it; an
 * entry that was cut off or is of another format is passed over.  A file of somebody else, or one
 * that others may write, is not read.  Nowhere to keep it, or no room left: nothing is kept, and
 * nobody is told.  Not for several threads. */
#ifndef KERNELS_CUDA_WAYS_H
#define KERNELS_CUDA_WAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WAYS_KEY = 128, WAYS_ALGO = 64 }; /* bytes at most */

struct ways_entry {
    uint64_t sum; /* of what follows */
    unsigned char key[WAYS_KEY];
    int32_t way, pad;
    unsigned char algo[WAYS_ALGO];
};

struct ways;

/* card, driver and library name the file.  NULL: no memory, or nowhere to keep it. */
struct ways *ways_open(const char *card, int driver, size_t library);
void ways_close(struct ways *w); /* accepts NULL */

/* What was kept under the key last, or NULL; valid until the next call of ways_add.  w may be NULL.
 */
const struct ways_entry *ways_find(const struct ways *w, const void *key, size_t bytes);
void ways_add(struct ways *w, const void *key, size_t bytes, int way, const void *algo,
              size_t algo_bytes);

#endif
