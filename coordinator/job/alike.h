/* Are two files alike that two workers made of the same?  On equal devices they have the same
 * bytes, and nobody asks here.  On others they differ: sums are rounded in another order, or to
 * fewer bits.
 *
 * Reads blocks of them drawn by chance.  Any thread that may wait for the disk. */
#ifndef COORDINATOR_ALIKE_H
#define COORDINATOR_ALIKE_H

#include "common/base/base.h"

/* How far apart numbers may be: |a - b| / |b| of each block, or of a picture's latents. */
#define ALIKE_APART 0.05
#define ALIKE_EQUAL 0.9   /* of an assignment's entries */
#define ALIKE_BLOCK 1024  /* neighbouring entries */
#define ALIKE_BLOCKS 256  /* of a tensor, or all if they are fewer */
#define ALIKE_PICTURES 64 /* or all */

enum alike_of {
    ALIKE_BYTES,      /* nothing but the same bytes */
    ALIKE_ASSIGNMENT, /* of samples to partitions: a fit comes to rest a little elsewhere */
    ALIKE_NUMBERS,    /* features and scores: integers are equal, and f32 are near */
    ALIKE_LATENTS,    /* a shard of them */
};

/* False also where one cannot be read. */
bool alike_files(enum alike_of of, const char *a, const char *b);

#endif
