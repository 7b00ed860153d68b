/* A bounded arena as an allocator for protobuf-c.
 *
 * protobuf-c trusts its input: a 1 MiB message of empty submessages unpacks to
 * 64 MiB in half a million mallocs.  With the arena, unpacking fails when the
 * maximum is used up, and releasing is one reset.
 *
 *     struct pbmem mem;
 *     pbmem_init(&mem, 1 << 20);
 *     msg = foo__unpack(pbmem_allocator(&mem), len, data);  // NULL: bad or big
 *     ...                                                   // no foo__free_unpacked
 *     pbmem_clear(&mem);                                    // msg is gone
 *     pbmem_release(&mem);
 *
 * One thread at a time. */
#ifndef COMMON_NET_PBMEM_H
#define COMMON_NET_PBMEM_H

#include <protobuf-c/protobuf-c.h>

#include "common/base/base.h"

struct pbmem_chunk;

struct pbmem {
    ProtobufCAllocator allocator;
    struct pbmem_chunk *first, *current;
    size_t used;      /* bytes handed out since the last clear */
    size_t max_bytes; /* beyond it, allocations fail */
};

void pbmem_init(struct pbmem *m, size_t max_bytes);
void pbmem_clear(struct pbmem *m); /* keeps the first chunk (8 KiB) */
void pbmem_release(struct pbmem *m);

static inline ProtobufCAllocator *pbmem_allocator(struct pbmem *m)
{
    return &m->allocator;
}

#endif
