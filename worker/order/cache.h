/* Blobs on the worker's disk: DIR/<64 hex digits>, named by their content.
 *
 *   absent ──reserve──► (transfer or writer makes the file) ──added──► present, verified
 *   present at start, not yet verified ──check──► verified | removed (-ERR_HASH)
 *   verified, file changed behind our back (size, time) ──check──► hashed again
 *
 * The sum of sizes stays under a limit, and so does the number: reserve() removes what was used
 * longest ago and is not pinned.  A task pins what it reads.  Losing the whole directory costs
 * transfers, nothing else.  What a transfer leaves (*.part) when nobody pins the blob any more is
 * in the sum, and goes like the others.
 *
 * Any thread.  What reads or removes files takes long: cache_check(), and cache_reserve() and
 * cache_make_room() where there is no room yet.  They hold no lock meanwhile. */
#ifndef WORKER_CACHE_H
#define WORKER_CACHE_H

#include "common/base/base.h"

struct cache;

#define CACHE_ENTRIES_MAX (1u << 20)
#define CACHE_PATH_MAX 4096

/* Opens or makes dir; removes what is no blob and no part of one.  limit_bytes 0: no limit but the
 * disk. */
int cache_open(const char *dir, uint64_t limit_bytes, struct cache **ret, struct err *err);
void cache_close(struct cache *c); /* accepts NULL; the files stay */

/* Where the blob's file is or would be. */
void cache_path(const struct cache *c, const uint8_t sha256[32], char ret_path[CACHE_PATH_MAX]);

/* Present (verified or not)?  Pins are counted; a pinned blob is not evicted.
 * Pinning an absent one is allowed: it holds from the moment it appears. */
bool cache_has(struct cache *c, const uint8_t sha256[32]);
void cache_pin(struct cache *c, const uint8_t sha256[32]);
void cache_unpin(struct cache *c, const uint8_t sha256[32]);

/* Worth more than others: it goes when all others that are not pinned have gone.  Counted, and
 * allowed of an absent one, as pins are. */
void cache_keep(struct cache *c, const uint8_t sha256[32]);
void cache_unkeep(struct cache *c, const uint8_t sha256[32]);

/* Is the blob there with the right content?  0, -ERR_NOTFOUND, or -ERR_HASH with a sentence: it was
 * cut short or has flipped bits, and is gone now.  size 0: any.  Reads the file unless it was
 * verified before: not on the loop thread. */
int cache_check(struct cache *c, const uint8_t sha256[32], uint64_t size, struct err *err);

/* Makes room for `bytes` more, also on the disk as far as it can: others may have filled it.
 * -ENOSPC with a sentence when what is pinned leaves too little below the limit. */
int cache_reserve(struct cache *c, uint64_t bytes, struct err *err);

/* The same on the disk alone, for `bytes` of other files: what is short then, their writer says. */
void cache_make_room(struct cache *c, uint64_t bytes);
/* How many it can make room for. */
uint64_t cache_room(struct cache *c);

/* The file at cache_path() is complete and its hash was checked by the writer.  It may be a link to
 * one that lies elsewhere, which takes no room. */
int cache_added(struct cache *c, const uint8_t sha256[32], struct err *err);

/* Forgets a blob and removes its file, pinned or not. */
void cache_remove(struct cache *c, const uint8_t sha256[32]);

/* Forgets a blob, whose file becomes `to`, to be written over: what has a place in memory and on
 * the disk already costs a fraction of a new file.  False: it is not here, or somebody has pinned
 * or keeps it, or may read it without that. */
bool cache_take(struct cache *c, const uint8_t sha256[32], const char *to);

/* From now on files are read that are not pinned: none is taken. */
void cache_lend(struct cache *c);

/* Another limit from now on; what is over it goes.  Before other threads use c. */
int cache_set_limit(struct cache *c, uint64_t limit_bytes, struct err *err);

/* Bytes of all blobs, and how many there may be. */
uint64_t cache_used_bytes(struct cache *c);
uint64_t cache_limit_bytes(const struct cache *c);

#endif
