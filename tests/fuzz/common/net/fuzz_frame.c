/* Frames and the envelope messages in them, as a peer may send them. */
#include "common/base/err.h"
#include "common/net/frame.h"
#include "common/net/pbmem.h"
#include "proto/envelope.pb-c.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct pbmem mem;
    struct frame f;
    struct err err;
    pbmem_init(&mem, 64 * 1024);
    while (len > 0) {
        long n = frame_parse(data, len, 4096, &f, &err);
        if (n < 0)
            break;
        if ((size_t)n > len || f.body + f.body_len > data + len)
            abort();
        (void)skerry__envelope__v1__hello__unpack(pbmem_allocator(&mem), f.body_len, f.body);
        (void)skerry__envelope__v1__error__unpack(pbmem_allocator(&mem), f.body_len, f.body);
        pbmem_clear(&mem);
        data += n;
        len -= (size_t)n;
    }
    /* And the messages without the luck of a valid header. */
    (void)skerry__envelope__v1__hello__unpack(pbmem_allocator(&mem), len, data);
    pbmem_release(&mem);
    return 0;
}
