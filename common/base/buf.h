/* A bounded byte buffer.  It grows by doubling up to `max`, which its owner
 * chooses; an append beyond it returns -ERR_LIMIT and leaves the content as it
 * was.  The content is always followed by a NUL that does not count, so
 * buf_str() is a C string.  Not thread-safe.
 *
 *     struct buf b;
 *     buf_init(&b, 64 * 1024);
 *     buf_printf(&b, "%d", 7);
 *     buf_release(&b);
 */
#ifndef COMMON_BASE_BUF_H
#define COMMON_BASE_BUF_H

#include "common/base/base.h"

struct buf {
    uint8_t *data; /* NULL until the first append */
    size_t len;
    size_t cap;
    size_t max;
};

/* The storage is the caller's; allocates nothing. */
void buf_init(struct buf *b, size_t max);
void buf_release(struct buf *b); /* as after init, same max */
void buf_clear(struct buf *b);   /* len = 0, memory kept */

/* Return 0, -ERR_LIMIT or -ENOMEM; a failure changes nothing. */
int buf_append(struct buf *b, const void *data, size_t len);
int buf_append_str(struct buf *b, const char *s);
int buf_append_byte(struct buf *b, uint8_t byte);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Makes room for `len` more bytes at *ret: write there, then call buf_commit. */
int buf_reserve(struct buf *b, size_t len, uint8_t **ret);
void buf_commit(struct buf *b, size_t len);

/* Drops the first n bytes (n <= len). */
void buf_consume(struct buf *b, size_t n);
/* Drops what is after the first len bytes (len <= b->len). */
void buf_cut(struct buf *b, size_t len);

/* Moves the content, never NULL and NUL-terminated, to the caller (mem_free);
 * b is empty again. */
uint8_t *buf_take(struct buf *b, size_t *ret_len);

/* The content as a C string, borrowed until the next change; "" when empty. */
const char *buf_str(const struct buf *b);

#endif
