/* The connection between a worker and a trainer: frames over a Unix stream socket, described in
 * proto/trainer.proto, and memory that both map.  Blocking, with time limits; one thread per side.
 *
 * Linked into both programs, and into libskerry: depends on nothing but the C library and
 * protobuf-c. */
#ifndef COMMON_TRAINER_CHANNEL_H
#define COMMON_TRAINER_CHANNEL_H

#include <protobuf-c/protobuf-c.h>

#include "common/base/base.h"

#define CHANNEL_FRAME_MAX (16u << 20) /* bytes of a message */
#define CHANNEL_FOREVER (-1)          /* milliseconds to wait */
#define CHANNEL_PROTOCOL 1            /* Hello.protocol */

/* Sends a whole frame, with a descriptor or without (-1); waits at most wait_ms for a peer that
 * does not read.  -EPIPE: the peer is gone; -ETIMEDOUT; -ERR_LIMIT: the message is too large. */
int channel_send(int fd, const ProtobufCMessage *m, int passed, int wait_ms, struct err *err);

/* A received frame. */
struct channel_frame {
    uint8_t *data; /* mem_free */
    size_t len;
    int passed; /* the descriptor that came with it, -1: none; the receiver's to close */
};

/* 1: a frame; 0: none has begun within wait_ms; -EPIPE: the peer is gone; -ETIMEDOUT: a frame has
 * begun but was not whole within whole_ms. */
int channel_receive(int fd, int wait_ms, int whole_ms, struct channel_frame *ret, struct err *err);

/* Makes zeroed memory of this size that can be passed to the peer; it can neither shrink nor grow.
 */
int channel_memory(const char *name, uint64_t bytes, int *ret_fd, struct err *err);

#endif
