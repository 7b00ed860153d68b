/* A file that is sent while it is written: the delta of an outer step, of which the payload, from
 * `from` to the end, is written first and in order, and the beginning (header, scales) last.
 *
 *   writer (a thread)      growing_reach() ... growing_reach(bytes)   or growing_give_up()
 *   reader (the loop)      growing_read(), again when there is more
 *   receiver               growing_restore(): the file in its own order, and its hash
 *
 * It is sent as `from` (8 bytes, little-endian), the bytes from there to the end, and the
 * beginning. Nothing says that the bytes are of any use: the receiver's hash does, if somebody asks
 * for it.
 *
 * One that was cut goes on where it was, also when the file is whole by then and has become a blob:
 * what is shared here stays readable until the last share is dropped.  Its tag says that it is the
 * same file; one that is begun anew under the same name, of other contributions, has another. */
#ifndef COMMON_NET_GROWING_H
#define COMMON_NET_GROWING_H

#include <sys/types.h>

#include "common/base/base.h"

#define GROWING_TAG_MAX 33

struct growing;

/* Keeps a duplicate of fd; NULL: there is none. */
struct growing *growing_new(int fd, uint64_t from, uint64_t bytes);
struct growing *growing_share(struct growing *g);
void growing_drop(struct growing *g); /* of one share; accepts NULL */

/* Any thread.  Bytes from `from` on are there up to `reached`; all of the file, if that is its
 * size. */
void growing_reach(struct growing *g, uint64_t reached);
/* No more will come, and what came is of no use. */
void growing_give_up(struct growing *g);

/* Whether its readers are told so. */
bool growing_is_given_up(const struct growing *g);

/* Hex digits that no other has: its ETag. */
const char *growing_tag(const struct growing *g);
/* Bytes that are sent in all. */
uint64_t growing_length(const struct growing *g);
/* Up to max bytes from position pos of what is sent; 0: they are not there yet; -1: they will not
 * be. */
ssize_t growing_read(const struct growing *g, uint64_t pos, void *out, size_t max);

/* Makes the file at `to` of what was received in the file `sent`; not flushed.  -ERR_FORMAT: it is
 * no such file. */
int growing_restore(const char *sent, const char *to, uint8_t ret_sha256[32], uint64_t *ret_bytes,
                    struct err *err);

#endif
