/* Range of a blob's GET, Content-Range of its PUT: what comes is what was asked for, nothing but
 * the blob is stored, no more than the ticket allows is spoken of, and whoever follows the protocol
 * (blob_http.h) is through in the end, whatever came before. */
#include <stdio.h>

#include "common/base/hash.h"
#include "common/net/http/blob_http.h"
#include "tests/fuzz/coordinator/http/door.h"
#include "tests/unit/blobs.h"

#define TURNS_MAX 12
#define BLOB_MAX 64
#define TRIES_MAX 8

/* The blob of an input. */
static struct {
    struct blob_id id;
    uint8_t bytes[BLOB_MAX];
    size_t len;
    char url[2][TICKET_PATH_MAX]; /* to get it, to put it */
} blob;

static void make_blob(const struct coordinator *co)
{
    static uint64_t n;
    n++;
    for (size_t i = 0; i < BLOB_MAX; i++)
        blob.bytes[i] = (uint8_t)(i < 8 ? n >> (8 * i) : i);
    blob.len = 8 + message_byte() % (BLOB_MAX - 7);
    hash_sha256(blob.bytes, blob.len, blob.id.sha256);
    const uint64_t holder = access_holder_token(co->state.tokens[0].id);
    blob_http_ticket(co->blob_http, TICKET_GET, &blob.id, blob.len, holder, blob.url[0]);
    blob_http_ticket(co->blob_http, TICKET_PUT, &blob.id, blob.len, holder, blob.url[1]);
}

/* ---- headers, and what they mean ------------------------------------------------------------ */

/* Numbers that are more, and less, than the blob has; else what the input says. */
static const char *put_number(char *to)
{
    static const char *const odd[] = {"",
                                      "0",
                                      "1",
                                      "-1",
                                      "+1",
                                      " 2",
                                      "00",
                                      "9223372036854775808",
                                      "18446744073709551615",
                                      "18446744073709551616",
                                      "99999999999999999999999",
                                      "0x1"};
    const unsigned n = message_byte();
    if (n < sizeof(odd) / sizeof(odd[0]))
        (void)strcpy(to, odd[n]);
    else if (n < 16)
        (void)sprintf(to, "%zu", blob.len - 14 + n);
    else if (n < 224)
        (void)sprintf(to, "%u", n % (BLOB_MAX + 2));
    else
        (void)door_text(to, 8);
    return to;
}

/* Digits alone, of a number that fits. */
static bool is_number(const char *text, size_t len, uint64_t *ret)
{
    char digits[24];
    if (len == 0 || len > 19 || strspn(text, "0123456789") < len)
        return false;
    memcpy(digits, text, len);
    digits[len] = '\0';
    *ret = strtoull(digits, NULL, 10);
    return true;
}

/* "A-B": false: it is no such thing. */
static bool is_pair(const char *text, size_t len, uint64_t *ret_a, uint64_t *ret_b)
{
    const char *minus = memchr(text, '-', len);
    return minus != NULL && is_number(text, (size_t)(minus - text), ret_a) &&
           is_number(minus + 1, len - (size_t)(minus - text) - 1, ret_b) && *ret_a <= *ret_b;
}

/* ---- GET --------------------------------------------------------------------------------- */

static void check_part(const char *range, const struct door_said *s)
{
    unsigned long long from, to, size;
    char again[128];
    if (sscanf(s->content_range, "bytes %llu-%llu/%llu", &from, &to, &size) != 3)
        sim_fail("'%s': Content-Range is '%s'", range, s->content_range);
    (void)snprintf(again, sizeof(again), "bytes %llu-%llu/%llu", from, to, size);
    if (strcmp(again, s->content_range) != 0 || size != blob.len || to >= size || from > to ||
        s->len != to - from + 1 || memcmp(s->body, blob.bytes + from, s->len) != 0)
        sim_fail("'%s': %zu bytes come, as '%s' of %zu", range, s->len, s->content_range, blob.len);
}

static void check_get(const char *range, const struct door_said *s)
{
    uint64_t from = 0, to = 0;
    const char *pair = str_starts(range, "bytes=") ? range + 6 : "";
    if (s->status == 200 && (s->len != blob.len || memcmp(s->body, blob.bytes, s->len) != 0))
        sim_fail("'%s': other bytes come", range);
    if (s->status == 206)
        check_part(range, s);
    else if (s->status != 200 && s->status != 416)
        sim_fail("'%s': %u", range, s->status);
    if (!is_pair(pair, strlen(pair), &from, &to))
        return;
    if (s->status != (from < blob.len ? 206 : 416))
        sim_fail("'%s' of %zu bytes: %u", range, blob.len, s->status);
    char wanted[128];
    to = to < blob.len ? to : blob.len - 1;
    (void)snprintf(wanted, sizeof(wanted), "bytes %llu-%llu/%zu", (unsigned long long)from,
                   (unsigned long long)to, blob.len);
    if (s->status == 206 && strcmp(wanted, s->content_range) != 0)
        sim_fail("'%s' of %zu bytes: '%s'", range, blob.len, s->content_range);
}

static void get(void)
{
    char range[128], a[32], b[32];
    const unsigned how = message_byte() % 8;
    if (how == 0)
        (void)door_text(range, sizeof(range));
    else if (how == 1)
        (void)snprintf(range, sizeof(range), "bytes=-%s", put_number(a));
    else if (how == 2)
        (void)snprintf(range, sizeof(range), "bytes=%s-", put_number(a));
    else
        (void)snprintf(range, sizeof(range), "bytes=%s-%s", put_number(a), put_number(b));
    const struct http_header h = {"Range", range};
    check_get(range, door_ask(&(struct http_ask){
                         .method = "GET", .target = blob.url[0], .headers = &h, .n_headers = 1}));
}

/* ---- PUT ----------------------------------------------------------------------------------- */

static const struct door_said *put(const char *range, size_t from, size_t len)
{
    const struct door_said *s = door_ask(&(struct http_ask){.method = "PUT",
                                                            .target = blob.url[1],
                                                            .range = range,
                                                            .body = blob.bytes + from,
                                                            .len = len});
    if (s->have > blob.len)
        sim_fail("'%s': %llu bytes are there, of %zu", range ? range : "",
                 (unsigned long long)s->have, blob.len);
    return s;
}

/* A size that the ticket does not allow. */
static bool is_too_much(const char *range)
{
    uint64_t a, b, total;
    const char *slash = strrchr(range, '/');
    if (!str_starts(range, "bytes ") || slash == NULL ||
        strspn(slash + 1, "0123456789") != strlen(slash + 1) || slash[1] == '\0')
        return false;
    const char *of = range + 6;
    const bool sound = (slash == of + 1 && *of == '*') || is_pair(of, (size_t)(slash - of), &a, &b);
    return sound && (!is_number(slash + 1, strlen(slash + 1), &total) || total > blob.len);
}

static void put_something(void)
{
    char range[128], a[32], b[32], c[32];
    const unsigned how = message_byte() % 8;
    if (how == 0)
        (void)door_text(range, sizeof(range));
    else if (how < 3)
        (void)snprintf(range, sizeof(range), "bytes */%s", put_number(a));
    else
        (void)snprintf(range, sizeof(range), "bytes %s-%s/%s", put_number(a), put_number(b),
                       put_number(c));
    const size_t from = message_byte() % blob.len;
    const struct door_said *s = put(range, from, message_byte() % (blob.len - from + 1));
    const bool there = blobstore_has(world_coordinator()->blobs, &blob.id, NULL);
    if (is_too_much(range) && (s->status < 400 || s->status >= 500))
        sim_fail("'%s' with a ticket for %zu bytes: %u", range, blob.len, s->status);
    if ((s->status == 200 || s->status == 201) != there && s->status < 400)
        sim_fail("'%s': %u, and the blob is%s there", range, s->status, there ? "" : " not");
}

/* As a client does (common/net/http/transfer.c). */
static void put_all(void)
{
    char range[128];
    for (unsigned i = 0; i < TRIES_MAX; i++) {
        (void)snprintf(range, sizeof(range), "bytes */%zu", blob.len);
        const struct door_said *s = put(range, 0, 0);
        const size_t have = (size_t)s->have;
        if (s->status == 308) {
            (void)snprintf(range, sizeof(range), "bytes %zu-%zu/%zu", have, blob.len - 1, blob.len);
            s = put(have > 0 && have < blob.len ? range : NULL, have < blob.len ? have : 0,
                    have < blob.len ? blob.len - have : blob.len);
        }
        if (s->status == 200 || s->status == 201)
            return;
        /* 409: the connection was cut, and more had come than was asked. */
        if (s->status != 422 && s->status != 503 && s->status != 308 && s->status != 409)
            sim_fail("the rest of a blob is answered with %u: %.*s", s->status, (int)s->len,
                     s->body);
    }
    sim_fail("a blob cannot be put");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct coordinator *co = door_open();
    message_next = data;
    message_end = data + size;
    make_blob(co);
    for (unsigned i = 0; i < TURNS_MAX / 2 && message_next < message_end; i++)
        put_something();
    put_all();
    for (unsigned i = 0; i < TURNS_MAX && message_next < message_end; i++)
        get();
    if (co->blobs->ops->remove(co->blobs, &blob.id, NULL) < 0)
        sim_fail("a blob cannot be removed");
    http_end(); /* all is answered */
    return 0;
}
