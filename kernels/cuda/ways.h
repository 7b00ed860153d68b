/* The fastest way found for each product on this card, kept on disk, so that a program that
 * starts again times nothing.
 *
 * One file for each card, driver and cuBLASLt: $XDG_CACHE_HOME/skerry/products-*, or in
 * ~/.cache/skerry.  Programs may share it, since entries are only appended, one at a time; an
 * entry that was cut off or has another format is skipped, and of several with one key the last
 * counts.  A file of 4096 keys is emptied for the next one.  A file that another user owns or may
 * write is not read.  Without a folder or room nothing is kept, and no error is returned.  Not for
 * several threads. */
#ifndef KERNELS_CUDA_WAYS_H
#define KERNELS_CUDA_WAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WAYS_KEY = 128, WAYS_ALGO = 64 }; /* most bytes */

struct ways_entry {
    uint64_t sum; /* checksum of the fields below */
    unsigned char key[WAYS_KEY];
    int32_t way, pad;
    unsigned char algo[WAYS_ALGO];
};

struct ways;

/* card, driver and library name the file.  NULL: no memory, or no folder for it. */
struct ways *ways_open(const char *card, int driver, size_t library);
void ways_close(struct ways *w); /* accepts NULL */

/* The entry with the key, or NULL; valid until the next ways_add.  w may be NULL. */
const struct ways_entry *ways_find(const struct ways *w, const void *key, size_t bytes);
void ways_add(struct ways *w, const void *key, size_t bytes, int way, const void *algo,
              size_t algo_bytes);

#endif
