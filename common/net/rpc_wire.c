#include "common/net/rpc_wire.h"

#include "common/base/hash.h"
#include "common/net/conn.h"
#include "common/net/frame.h"

#define BACKOFF_PART 16

#define CODE(name) SKERRY__ENVELOPE__V1__ERROR_CODE__ERROR_CODE_##name

static const struct {
    int code;
    uint32_t wire;
} codes[] = {
    {-EINVAL, CODE(INVALID)},          {-EAGAIN, CODE(AGAIN)},
    {-ENOSPC, CODE(NO_SPACE)},         {-ETIMEDOUT, CODE(TIMED_OUT)},
    {-EEXIST, CODE(EXISTS)},           {-EBUSY, CODE(BUSY)},
    {-ERR_FORMAT, CODE(FORMAT)},       {-ERR_HASH, CODE(HASH)},
    {-ERR_AUTH, CODE(AUTH)},           {-ERR_VERSION, CODE(VERSION)},
    {-ERR_LIMIT, CODE(LIMIT)},         {-ERR_STALE, CODE(STALE)},
    {-ERR_CANCELLED, CODE(CANCELLED)}, {-ERR_REMOTE, CODE(REMOTE)},
    {-ERR_CONFIG, CODE(CONFIG)},       {-ERR_DEVICE, CODE(DEVICE)},
    {-ERR_NOTFOUND, CODE(NOT_FOUND)},  {-ERR_UNIMPLEMENTED, CODE(UNIMPLEMENTED)},
    {-ENOENT, CODE(NOT_FOUND)},
};

uint32_t rpc_code_to_wire(int code)
{
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (codes[i].code == code)
            return codes[i].wire;
    return CODE(INTERNAL);
}

int rpc_code_from_wire(uint32_t wire)
{
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (codes[i].wire == wire)
            return codes[i].code;
    return -ERR_REMOTE;
}

uint32_t rpc_backoff_ms(uint64_t outage_ms, uint32_t min_ms, uint32_t max_ms, uint16_t random)
{
    uint64_t ms = outage_ms / BACKOFF_PART;
    ms = ms < min_ms ? min_ms : ms;
    ms = ms > max_ms ? max_ms : ms;
    return (uint32_t)(ms / 2 + (ms - ms / 2) * random / 65536);
}

bool rpc_code_is_retryable(int code)
{
    return code == -EAGAIN || code == -EBUSY || code == -ETIMEDOUT || code == -ENOSPC;
}

void rpc_build_id_copy(char ret[RPC_BUILD_ID_MAX], const char *build_id)
{
    (void)str_copy(ret, RPC_BUILD_ID_MAX, build_id);
    for (char *p = ret; *p; p++)
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f)
            *p = '?'; /* the text is shown to people */
}

int rpc_proof(struct conn *c, const uint8_t secret[KEYS_SECRET_BYTES], uint8_t ret_proof[32],
              struct err *err)
{
    uint8_t material[CONN_EXPORT_BYTES];
    int rc = conn_export(c, material, err);
    if (rc < 0)
        return rc;
    hash_hmac(secret, KEYS_SECRET_BYTES, material, sizeof(material), ret_proof);
    return 0;
}

static void write_frame(uint8_t *to, uint8_t flags, uint16_t method, uint64_t id,
                        const ProtobufCMessage *msg, size_t size)
{
    struct frame f = {
        .flags = flags,
        .method = method,
        .body_len = (uint32_t)size,
        .request_id = id,
    };
    frame_write_header(&f, to);
    (void)protobuf_c_message_pack(msg, to + FRAME_HEADER_BYTES); /* writes `size` bytes */
}

int rpc_send(struct conn *c, uint8_t flags, uint16_t method, uint64_t id,
             const ProtobufCMessage *msg, uint32_t max_body, bool force)
{
    size_t size = protobuf_c_message_get_packed_size(msg);
    if (size > max_body)
        return -ERR_LIMIT;
    uint8_t *p;
    int rc = conn_reserve(c, FRAME_HEADER_BYTES + size, force, &p);
    if (rc < 0)
        return rc;
    write_frame(p, flags, method, id, msg, size);
    return 0;
}

int rpc_pack(uint8_t flags, uint16_t method, uint64_t id, const ProtobufCMessage *msg,
             uint32_t max_body, uint8_t **ret, size_t *ret_len)
{
    size_t size = protobuf_c_message_get_packed_size(msg);
    if (size > max_body)
        return -ERR_LIMIT;
    *ret_len = FRAME_HEADER_BYTES + size;
    *ret = mem_alloc(*ret_len);
    write_frame(*ret, flags, method, id, msg, size);
    return 0;
}
