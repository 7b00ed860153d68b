/* Shards that were compressed: all of one at once. */
#include <errno.h>
#include <string.h>
#include <zstd.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/data/shard_internal.h"

#define FIRST_BYTES (64u << 10)

bool shard_is_packed(const void *data, size_t len)
{
    static const uint8_t magic[] = {0x28, 0xb5, 0x2f, 0xfd};
    return len >= sizeof(magic) && memcmp(data, magic, sizeof(magic)) == 0;
}

static int grow(ZSTD_outBuffer *out, const char *name, struct err *err)
{
    if (out->size == SHARD_UNPACKED_MAX)
        return err_set(err, -ERR_LIMIT, "shard %s unpacks to more than %u MiB", name,
                       SHARD_UNPACKED_MAX >> 20);
    const size_t size = out->size ? 2 * out->size : FIRST_BYTES;
    void *more = mem_try_realloc_array(out->dst, size, 1);
    if (!more)
        return err_set(err, -ENOMEM, "out of memory while unpacking shard %s", name);
    out->dst = more;
    out->size = size;
    return 0;
}

static int unpack(ZSTD_DCtx *z, ZSTD_inBuffer *in, ZSTD_outBuffer *out, const char *name,
                  struct err *err)
{
    size_t left = 1; /* 0: a frame is complete, and all of it was handed out */
    while (left > 0 || in->pos < in->size) {
        int rc = out->pos == out->size ? grow(out, name, err) : 0;
        if (rc < 0)
            return rc;
        left = ZSTD_decompressStream(z, out, in);
        if (ZSTD_isError(left))
            return err_set(err, -ERR_FORMAT, "shard %s, byte %zu: %s", name, in->pos,
                           ZSTD_getErrorName(left));
        if (left > 0 && in->pos == in->size && out->pos < out->size)
            return err_set(err, -ERR_FORMAT, "shard %s, byte %zu: cut short", name, in->pos);
    }
    return 0;
}

int shard_unpack(const void *data, size_t len, const char *name, uint8_t **ret, size_t *ret_len,
                 struct err *err)
{
    ZSTD_inBuffer in = {.src = data, .size = len};
    ZSTD_outBuffer out = {0};
    ZSTD_DCtx *z = ZSTD_createDCtx();
    int rc = z ? unpack(z, &in, &out, name, err)
               : err_set(err, -ENOMEM, "out of memory while unpacking shard %s", name);
    ZSTD_freeDCtx(z);
    if (rc < 0) {
        mem_free(out.dst);
        return rc;
    }
    *ret = out.dst;
    *ret_len = out.pos;
    return 0;
}
