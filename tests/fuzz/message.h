/* Messages of protobuf that are what a fuzzer's input says: fields of a sound one become anything.
 *
 *     message_next = data, message_end = data + size;
 *     message_begin();                      before each message: all that it needs is of an arena
 *     message_change(&m.base, 4);           a field of it, or of a message within it */
#ifndef TESTS_FUZZ_MESSAGE_H
#define TESTS_FUZZ_MESSAGE_H

#include <float.h>
#include <math.h>

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

#define MESSAGE_ARENA_BYTES (8u << 20)
#define MESSAGE_PARTS_MAX                                                                          \
    8192 /* of lists in lists, which are longer than they were: or it grows huge */

static const uint8_t *message_next, *message_end; /* what is left of the input */

/* Makes of a blob another one that exists; NULL: nobody knows any. */
static void (*message_blob)(Skerry__V1__Blob *b);

/* ---- the input ------------------------------------------------------------ */

static inline uint8_t message_byte(void)
{
    return message_next < message_end ? *message_next++ : 0;
}

static inline uint64_t message_number(void)
{
    uint64_t n = 0;
    for (int i = 0; i < 8; i++)
        n = n << 8 | message_byte();
    return n;
}

/* ---- memory of one request --------------------------------------------------- */

static struct {
    uint64_t bytes[MESSAGE_ARENA_BYTES / 8];
    size_t used;  /* in words */
    size_t parts; /* the product of the lengths of lists */
} message_arena;

static inline void message_begin(void)
{
    message_arena.used = 0;
    message_arena.parts = 1;
}

static inline void *message_room(size_t size)
{
    const size_t words = (size + 7) / 8;
    if (words > MESSAGE_ARENA_BYTES / 8 - message_arena.used)
        return NULL;
    message_arena.used += words;
    return memset(&message_arena.bytes[message_arena.used - words], 0, size);
}

static inline void *message_alloc(void *arg, size_t size)
{
    return message_room(size);
}

static inline void message_free(void *arg, void *p)
{
}

static ProtobufCAllocator message_allocator = {.alloc = message_alloc, .free = message_free};

/* ---- a field becomes anything --------------------------------------------------- */

static inline uint64_t message_odd_number(uint64_t was)
{
    static const uint64_t odd[] = {0,          1,          2,          3,          64,
                                   255,        256,        4096,       65535,      65536,
                                   INT32_MAX,  UINT32_MAX, 1ull << 32, 1ull << 40, INT64_MAX,
                                   1ull << 63, UINT64_MAX};
    const unsigned n = message_byte();
    if (n < sizeof(odd) / sizeof(odd[0]))
        return odd[n];
    return n < 64 ? was + n - 40 : n < 192 ? n - 64 : message_number();
}

static inline double message_odd_real(void)
{
    static const double odd[] = {0,       -0.0,     1,       -1,      1e-300,   1e300,     -1e300,
                                 FLT_MAX, -FLT_MAX, DBL_MAX, DBL_MIN, INFINITY, -INFINITY, 1e10};
    const unsigned n = message_byte();
    return n < sizeof(odd) / sizeof(odd[0]) ? odd[n] : n < 128 ? (double)NAN : (double)n / 64 - 3;
}

static inline char *message_odd_text(void)
{
    static const char *const odd[] = {
        "",          "a",    "\xff\xfe\x80",          "\x1b[2J\r\n\"<b>{",
        "../../etc", "%s%n", "e\xcc\x81\xe2\x80\xae", "trainer evaluates"};
    const unsigned n = message_byte();
    if (n < sizeof(odd) / sizeof(odd[0]))
        return (char *)(uintptr_t)odd[n];
    const size_t len = n < 128 ? n : (size_t)(n - 127) * 600;
    char *text = message_room(len + 1);
    return text != NULL ? memset(text, n % 2 ? 'x' : 0xc3, len) : (char *)(uintptr_t) "";
}

static inline ProtobufCBinaryData message_odd_bytes(void)
{
    static const size_t odd[] = {0, 1, 15, 16, 31, 32, 33, 64, 131072, 131073};
    ProtobufCBinaryData b = {.len = odd[message_byte() % (sizeof(odd) / sizeof(odd[0]))]};
    b.data = b.len > 0 ? message_room(b.len) : NULL;
    if (b.data == NULL)
        b.len = 0;
    else
        b.data[0] = message_byte();
    return b;
}

static inline size_t message_size_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 4;
    }
}

static inline void message_change(ProtobufCMessage *m, unsigned depth);

static inline void message_change_message(ProtobufCMessage **at,
                                          const ProtobufCMessageDescriptor *d, unsigned depth)
{
    const unsigned how = message_byte() % 4;
    if (how == 0 || depth == 0) {
        *at = NULL;
        return;
    }
    if (*at == NULL && (*at = message_room(d->sizeof_message)) != NULL)
        d->message_init(*at);
    if (*at == NULL)
        return;
    if (d == &skerry__v1__blob__descriptor && how == 1 && message_blob != NULL)
        message_blob((Skerry__V1__Blob *)(void *)*at);
    else
        message_change(*at, depth - 1);
}

static inline void message_change_value(const ProtobufCFieldDescriptor *f, void *at, unsigned depth)
{
    uint32_t u32;
    float real;
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
        *(char **)at = message_odd_text();
        break;
    case PROTOBUF_C_TYPE_BYTES:
        *(ProtobufCBinaryData *)at = message_odd_bytes();
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        message_change_message(at, f->descriptor, depth);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)at = message_odd_real();
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        real = (float)message_odd_real();
        memcpy(at, &real, sizeof(real));
        break;
    default:
        if (message_size_of(f->type) == 8) {
            *(uint64_t *)at = message_odd_number(*(uint64_t *)at);
        } else {
            memcpy(&u32, at, sizeof(u32));
            u32 = (uint32_t)message_odd_number(u32);
            memcpy(at, &u32, sizeof(u32));
        }
        break;
    }
}

/* Of a list: it is empty, or of other length, or one of it changes. */
static inline void message_change_list(const ProtobufCFieldDescriptor *f, ProtobufCMessage *m,
                                       unsigned depth)
{
    static const uint16_t lengths[] = {1, 2, 3, 16, 17, 64, 65, 256, 257, 1024, 4096, 4097};
    char **list = (char **)(void *)((char *)m + f->offset);
    size_t *n = (size_t *)(void *)((char *)m + f->quantifier_offset);
    const size_t size = message_size_of(f->type), had = *n;
    const unsigned how = message_byte();
    if (how < 32) {
        *n = 0;
    } else if (how < 128 || had == 0) {
        const size_t len = lengths[how % (sizeof(lengths) / sizeof(lengths[0]))];
        char *longer =
            message_arena.parts * len <= MESSAGE_PARTS_MAX ? message_room(len * size) : NULL;
        if (longer == NULL)
            return;
        message_arena.parts *= len;
        for (size_t i = 0; i < len; i++) {
            if (had > 0)
                memcpy(longer + i * size, *list + i % had * size, size);
            else if (i == 0 || f->type == PROTOBUF_C_TYPE_STRING)
                message_change_value(f, longer + i * size, depth);
            else
                memcpy(longer + i * size, longer, size);
        }
        if (f->type == PROTOBUF_C_TYPE_MESSAGE && *(void **)(void *)longer == NULL)
            return; /* of no message there is no list */
        *list = longer;
        *n = len;
    } else {
        char *at = *list + how % had * size;
        if (f->type == PROTOBUF_C_TYPE_MESSAGE)
            message_change(*(ProtobufCMessage **)(void *)at, depth);
        else
            message_change_value(f, at, depth);
    }
}

/* A field of the message, or of one within it. */
static inline void message_change(ProtobufCMessage *m, unsigned depth)
{
    const ProtobufCMessageDescriptor *d = m->descriptor;
    if (d->n_fields == 0)
        return;
    const ProtobufCFieldDescriptor *f = &d->fields[message_byte() % d->n_fields];
    if (f->label == PROTOBUF_C_LABEL_REPEATED)
        message_change_list(f, m, depth);
    else
        message_change_value(f, (char *)m + f->offset, depth);
}

#endif
