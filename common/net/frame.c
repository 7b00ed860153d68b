#include "common/net/frame.h"

#include <assert.h>

/* The compiler checks the layout here; bytes are moved one by one, so that the
 * wire does not depend on the host's byte order. */
struct wire_header {
    uint32_t magic;
    uint8_t major;
    uint8_t flags;
    uint16_t method;
    uint32_t body_len;
    uint8_t reserved[12];
    uint64_t request_id;
};
static_assert(sizeof(struct wire_header) == FRAME_HEADER_BYTES, "frame header is 32 bytes");
static_assert(offsetof(struct wire_header, major) == 4, "frame major");
static_assert(offsetof(struct wire_header, flags) == 5, "frame flags");
static_assert(offsetof(struct wire_header, method) == 6, "frame method");
static_assert(offsetof(struct wire_header, body_len) == 8, "frame body_len");
static_assert(offsetof(struct wire_header, reserved) == 12, "frame reserved");
static_assert(offsetof(struct wire_header, request_id) == 24, "frame request_id");
#define AT(field) offsetof(struct wire_header, field)
#define RESERVED_BYTES sizeof((struct wire_header){0}.reserved)

static void put(uint8_t *p, uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get(const uint8_t *p, unsigned bytes)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

void frame_write_header(const struct frame *f, uint8_t out[FRAME_HEADER_BYTES])
{
    put(out + AT(magic), FRAME_MAGIC, 4);
    out[AT(major)] = FRAME_MAJOR;
    out[AT(flags)] = f->flags;
    put(out + AT(method), f->method, 2);
    put(out + AT(body_len), f->body_len, 4);
    memset(out + AT(reserved), 0, RESERVED_BYTES);
    put(out + AT(request_id), f->request_id, 8);
}

long frame_parse(const uint8_t *data, size_t len, uint32_t max_body, struct frame *ret,
                 struct err *err)
{
    /* A wrong first byte is refused at once: the peer may never send 32. */
    for (size_t i = 0; i < 4 && i < len; i++)
        if (data[i] != (uint8_t)(FRAME_MAGIC >> (8 * i)))
            return err_set(err, -ERR_FORMAT, "the peer does not speak Skerry's protocol");
    if (len < FRAME_HEADER_BYTES)
        return -EAGAIN;
    if (data[AT(major)] != FRAME_MAJOR)
        return err_set(err, -ERR_VERSION,
                       "the peer frames messages as version %u, this program as %u",
                       data[AT(major)], FRAME_MAJOR);
    struct frame f = {
        .flags = data[AT(flags)],
        .method = (uint16_t)get(data + AT(method), 2),
        .body_len = (uint32_t)get(data + AT(body_len), 4),
        .request_id = get(data + AT(request_id), 8),
    };
    for (size_t i = 0; i < RESERVED_BYTES; i++)
        if (data[AT(reserved) + i] != 0)
            return err_set(err, -ERR_FORMAT, "reserved bits of a frame are set");
    if ((f.flags & ~(unsigned)(FRAME_REPLY | FRAME_ERROR)) != 0 || f.flags == FRAME_ERROR)
        return err_set(err, -ERR_FORMAT, "a frame has unknown flags 0x%x", f.flags);
    if (f.body_len > max_body)
        return err_set(err, -ERR_LIMIT, "a message of %u bytes is above the limit of %u",
                       f.body_len, max_body);
    size_t whole = (size_t)FRAME_HEADER_BYTES + f.body_len;
    if (len < whole)
        return -EAGAIN;
    f.body = data + FRAME_HEADER_BYTES;
    *ret = f;
    return (long)whole;
}
