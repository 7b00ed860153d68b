/* Moments of pictures that a worker keeps on its disk, so that the VAE's encoder runs once for
 * each picture that the worker sees (encoders.run: worker).
 *
 *     DIR/KEY.lat    one file per shard and encoder: a record for each sample, and for its mirror
 *
 * A record is a checksum and the moments' bytes; a file is as long as its last record and has holes
 * where nothing was put yet.  A record that does not match its checksum counts as missing: it is
 * computed again and replaced.  The files together have a maximum; if another would not fit, files
 * of earlier sets are removed, the longest unwritten first.  A shard that is larger than the
 * maximum, or comes after one that is not larger and had no room, is not kept until the directory
 * is opened again.
 *
 * latents_get may be called by any thread, also while another puts. */
#ifndef WORKER_DATA_LATENTS_H
#define WORKER_DATA_LATENTS_H

#include "common/base/base.h"
#include "common/base/hash.h"

struct latents;

struct latents_options {
    const char *dir;             /* made if need be */
    uint64_t max_bytes;          /* most bytes of all files in it */
    uint8_t encoder[HASH_BYTES]; /* hash of all that moments depend on, except the picture */
    size_t values;               /* bf16 numbers of a record */
    bool mirrored;               /* both sides of a picture are kept */
    bool spare;                  /* half of what the disk has free is left to others */
};

/* Several may share a directory if their calls of put do not overlap. */
int latents_open(const struct latents_options *opt, struct latents **ret, struct err *err);
void latents_close(struct latents *l); /* accepts NULL */

/* The most bytes of all files, and of one sample's moments. */
uint64_t latents_room(const struct latents *l);
size_t latents_record(const struct latents *l);
/* The share of a shard's samples from `start` on, of both sides if these are kept, that is there:
 * 0..1.  Looks at no more than LATENTS_LOOKED_AT of many. */
#define LATENTS_LOOKED_AT 256
double latents_share(const struct latents *l, const uint8_t shard_sha256[HASH_BYTES],
                     uint32_t start, uint32_t count);
/* Measures how long the disk takes for a sample's moments, with a file of a few megabytes. */
int latents_measure(const struct latents *l, double *ret_put_s, double *ret_get_s, struct err *err);

/* The sample that moments belong to. */
struct latents_place {
    const uint8_t *shard_sha256;
    uint32_t samples; /* of the shard */
    uint32_t index;   /* in the shard */
    bool mirror;
};

/* Copies (values) numbers; false: they are missing or damaged. */
bool latents_get(struct latents *l, const struct latents_place *at, uint16_t *out);
/* Keeps a copy if there is room.  A failure to write is logged once. */
void latents_put(struct latents *l, const struct latents_place *at, const uint16_t *values);

#endif
