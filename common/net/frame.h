/* Frames: the layout of a message on the wire.  A header of 32 bytes, little-endian:
 *
 *    0     4     5     6       8        12         24           32
 *    +-----+-----+-----+-------+--------+----------+------------+
 *    |magic|major|flags|method |body_len|reserved 0| request_id |
 *    | u32 | u8  | u8  | u16   | u32    | 12 bytes | u64        |
 *    +-----+-----+-----+-------+--------+----------+------------+
 *    then body_len bytes of protobuf.
 *
 * The parser is pure: it reads (ptr, len) and knows no socket.  A frame that
 * exceeds the limit is refused by its header alone, before its body is buffered. */
#ifndef COMMON_NET_FRAME_H
#define COMMON_NET_FRAME_H

#include "common/base/base.h"

#define FRAME_MAGIC 0x59524b53u /* "SKRY" in memory order */
#define FRAME_MAJOR 1
#define FRAME_HEADER_BYTES 32

#define FRAME_BODY_MAX_HELLO (4u << 10)    /* before authentication */
#define FRAME_BODY_MAX_DEFAULT (64u << 10) /* after */
#define FRAME_BODY_MAX (1u << 20)          /* highest that may be configured */

enum frame_flags {
    FRAME_REPLY = 1, /* answers the request of the same id */
    FRAME_ERROR = 2, /* with FRAME_REPLY: the body is an envelope Error */
};

struct frame {
    uint8_t flags;
    uint16_t method;
    uint32_t body_len;
    uint64_t request_id;
    const uint8_t *body; /* borrowed from the parsed bytes */
};

/* Writes the 32 bytes of f's header. */
void frame_write_header(const struct frame *f, uint8_t out[FRAME_HEADER_BYTES]);

/* Parses one frame at the start of (data, len).  Returns its whole length (at
 * least FRAME_HEADER_BYTES), or
 *   -EAGAIN       more bytes are needed (*ret untouched)
 *   -ERR_FORMAT   not a frame, or bits set that must be zero
 *   -ERR_VERSION  another major version
 *   -ERR_LIMIT    a body of more than max_body bytes
 * After any code but -EAGAIN the stream cannot be read on. */
long frame_parse(const uint8_t *data, size_t len, uint32_t max_body, struct frame *ret,
                 struct err *err);

#endif
