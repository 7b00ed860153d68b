/* A store of objects on loopback, on a thread of its own, that can misbehave: it answers requests
 * one after another, each on a connection of its own.  It looks at no signature (the integration
 * tests ask a store that does).
 *
 *     fake_store_open(&f);              // the bucket is "blobs", addressed in the path
 *     fake_store_next(&f, "GET", FAKE_CUT, NULL);
 *     ... f.url, f.gets ...
 *     fake_store_close(&f); */
#ifndef TESTS_UNIT_COMMON_NET_S3_FAKE_STORE_H
#define TESTS_UNIT_COMMON_NET_S3_FAKE_STORE_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/common/net/net_test.h"

#define FAKE_OBJECTS 64
#define FAKE_MISHAPS 64
#define FAKE_HEAD_MAX 16384

enum fake_how {
    FAKE_REPLY, /* `text` instead of an answer */
    FAKE_CUT,   /* half of the body, then the connection is cut */
    FAKE_STALL, /* half of the body, then nothing; of a PUT or HEAD nothing at all */
    FAKE_FLIP,  /* a bit of the body is wrong */
    FAKE_LOST,  /* it is done, and its answer is lost */
    FAKE_LATER, /* nothing yet */
};

struct fake_object {
    char key[256];
    uint8_t *data;
    size_t len;
};

struct fake_mishap {
    const char *method, *text;
    enum fake_how how;
};

struct fake_store {
    int fd, stop[2];
    pthread_t thread;
    char url[64];
    _Atomic unsigned page; /* objects of a list at once */
    _Atomic bool down;     /* all requests are answered with 503 */
    _Atomic bool no_etags; /* of the parts but the first, in their list */
    _Atomic bool hasty;    /* looks whether an object is there before it reads the body of a PUT */
    _Atomic unsigned gets, puts, posts, deletes;
    void (*look)(const char *method, const char *key); /* called before each answer; NULL: nobody */
    pthread_mutex_t lock;                              /* guards what follows */
    struct fake_object objects[FAKE_OBJECTS], parts[FAKE_OBJECTS];
    char upload[256]; /* the key of the one in parts; "": none */
    struct fake_mishap mishaps[FAKE_MISHAPS];
    unsigned n_mishaps;
    char last[FAKE_HEAD_MAX]; /* the newest request's head */
    char body[4096];          /* and the beginning of its body, up to a NUL */
    int stalled[FAKE_MISHAPS];
    unsigned n_stalled;
};

/* The next request of that method (NULL: any) goes wrong; texts live as long as the store. */
static inline void fake_store_next(struct fake_store *f, const char *method, enum fake_how how,
                                   const char *text)
{
    pthread_mutex_lock(&f->lock);
    assert_true(f->n_mishaps < FAKE_MISHAPS);
    f->mishaps[f->n_mishaps++] = (struct fake_mishap){method, text, how};
    pthread_mutex_unlock(&f->lock);
}

static inline struct fake_object *fake_find(struct fake_object *list, const char *key, bool make)
{
    for (size_t i = 0; i < FAKE_OBJECTS; i++)
        if (list[i].data && strcmp(list[i].key, key) == 0)
            return &list[i];
    for (size_t i = 0; make && i < FAKE_OBJECTS; i++)
        if (!list[i].data) {
            (void)str_copy(list[i].key, sizeof(list[i].key), key);
            return &list[i];
        }
    return NULL;
}

static inline void fake_set(struct fake_object *list, const char *key, const void *data, size_t len)
{
    struct fake_object *o = fake_find(list, key, true);
    uint8_t *copy = mem_alloc(len + 1);
    memcpy(copy, data, len);
    mem_free(o->data);
    o->data = copy;
    o->len = len;
}

static inline void fake_drop(struct fake_object *o)
{
    mem_free(o->data);
    memset(o, 0, sizeof(*o));
}

/* Whether the store has an object, and of which size. */
static inline bool fake_store_has(struct fake_store *f, const char *key, size_t *ret_len)
{
    pthread_mutex_lock(&f->lock);
    struct fake_object *o = fake_find(f->objects, key, false);
    if (o && ret_len)
        *ret_len = o->len;
    pthread_mutex_unlock(&f->lock);
    return o != NULL;
}

static inline void fake_send(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len > 0) {
        const ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n <= 0)
            return; /* the client went away: it is what is tested, perhaps */
        p += n;
        len -= (size_t)n;
    }
}

static inline void fake_answer(int fd, const char *status, const char *more, const void *body,
                               size_t len, bool head_only)
{
    char head[512], date[64];
    const time_t now = time(NULL);
    struct tm tm;
    (void)strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &tm));
    (void)snprintf(head, sizeof(head),
                   "HTTP/1.1 %s\r\nDate: %s\r\nContent-Length: %zu\r\nConnection: close\r\n%s\r\n",
                   status, date, len, more);
    fake_send(fd, head, strlen(head));
    if (!head_only)
        fake_send(fd, body, len);
}

static inline void fake_text(int fd, const char *status, const char *text)
{
    fake_answer(fd, status, "", text, strlen(text), false);
}

/* A parameter of the query, percent-encoding undone as far as the tests need it. */
static inline bool fake_param(const char *query, const char *name, char *ret, size_t cap)
{
    const size_t n = strlen(name);
    for (const char *p = query; p && *p; p = strchr(p, '&') ? strchr(p, '&') + 1 : NULL) {
        if (strncmp(p, name, n) != 0 || p[n] != '=')
            continue;
        size_t at = 0;
        for (const char *c = p + n + 1; *c && *c != '&' && at + 1 < cap; c++) {
            unsigned byte = (unsigned char)*c;
            if (*c == '%' && sscanf(c + 1, "%2x", &byte) == 1)
                c += 2;
            ret[at++] = (char)byte;
        }
        ret[at] = '\0';
        return true;
    }
    return false;
}

static inline void fake_list(struct fake_store *f, int fd, const char *query)
{
    char prefix[256] = "", token[64] = "", *text = mem_alloc(65536);
    size_t at = 0, n = 0, i;
    (void)fake_param(query, "prefix", prefix, sizeof(prefix));
    (void)fake_param(query, "continuation-token", token, sizeof(token));
    at += (size_t)sprintf(text, "<?xml version=\"1.0\"?><ListBucketResult>");
    for (i = (size_t)atoi(token); i < FAKE_OBJECTS && n < f->page; i++)
        if (f->objects[i].data && str_starts(f->objects[i].key, prefix)) {
            at += (size_t)sprintf(text + at, "<Contents><Key>%s</Key><Size>%zu</Size></Contents>",
                                  f->objects[i].key, f->objects[i].len);
            n++;
        }
    if (i < FAKE_OBJECTS)
        at += (size_t)sprintf(text + at,
                              "<IsTruncated>true</IsTruncated>"
                              "<NextContinuationToken>%zu</NextContinuationToken>",
                              i);
    (void)sprintf(text + at, "</ListBucketResult>");
    fake_text(fd, "200 OK", text);
    mem_free(text);
}

static inline void fake_list_parts(const struct fake_store *f, int fd)
{
    char text[8192];
    size_t at = (size_t)sprintf(text, "<P>");
    for (size_t i = 0; i < FAKE_OBJECTS; i++) {
        const struct fake_object *o = &f->parts[i];
        if (!o->data)
            continue;
        at += (size_t)sprintf(text + at, "<Part><PartNumber>%s</PartNumber><Size>%zu</Size>",
                              o->key, o->len);
        if (!f->no_etags || i == 0)
            at += (size_t)sprintf(text + at, "<ETag>\"e%s\"</ETag>", o->key);
        at += (size_t)sprintf(text + at, "</Part>");
    }
    (void)sprintf(text + at, "<IsTruncated>false</IsTruncated></P>");
    fake_text(fd, "200 OK", text);
}

/* Requests of an upload in parts; false: it is none. */
static inline bool fake_parts(struct fake_store *f, int fd, const char *method, const char *key,
                              const char *query, const uint8_t *body, size_t len)
{
    char number[16] = "", id[64] = "", name[32], text[8192];
    const bool named = fake_param(query, "uploadId", id, sizeof(id));
    size_t at = 0;
    if (fake_param(query, "uploads", number, sizeof(number))) {
        if (strcmp(method, "POST") == 0) {
            (void)str_copy(f->upload, sizeof(f->upload), key);
            fake_text(fd, "200 OK", "<I><UploadId>up&amp;1</UploadId></I>");
            return true;
        }
        (void)snprintf(text, sizeof(text), "<L>%s%s%s</L>", *f->upload ? "<Upload><Key>" : "",
                       f->upload, *f->upload ? "</Key><UploadId>up&amp;1</UploadId></Upload>" : "");
        fake_text(fd, "200 OK", text);
        return true;
    }
    if (!named)
        return false;
    if (!*f->upload) {
        fake_text(fd, "404 Not Found", "<Error><Code>NoSuchUpload</Code></Error>");
        return true;
    }
    assert_string_equal(id, "up&1");
    if (strcmp(method, "PUT") == 0) {
        assert_true(fake_param(query, "partNumber", number, sizeof(number)));
        fake_set(f->parts, number, body, len);
        (void)snprintf(name, sizeof(name), "ETag: \"e%s\"\r\n", number);
        fake_answer(fd, "200 OK", name, "", 0, false);
        return true;
    }
    if (strcmp(method, "GET") == 0) {
        fake_list_parts(f, fd);
        return true;
    }
    if (strcmp(method, "DELETE") == 0) {
        for (size_t i = 0; i < FAKE_OBJECTS; i++)
            if (f->parts[i].data)
                fake_drop(&f->parts[i]);
        f->upload[0] = '\0';
        fake_text(fd, "204 No Content", "");
        return true;
    }
    uint8_t *all = mem_alloc(1 << 20);
    for (int i = 1; i < FAKE_OBJECTS; i++) {
        (void)snprintf(number, sizeof(number), "%d", i);
        struct fake_object *o = fake_find(f->parts, number, false);
        if (!o)
            break;
        memcpy(all + at, o->data, o->len);
        at += o->len;
        fake_drop(o);
    }
    fake_set(f->objects, key, all, at);
    mem_free(all);
    f->upload[0] = '\0';
    fake_text(fd, "200 OK", "<C><ETag>\"all\"</ETag></C>");
    return true;
}

/* Reads a request's first line; the query, or NULL. */
static inline char *fake_ask(const char *head, char method[16], char path[4096], char key[256])
{
    assert_int_equal(sscanf(head, "%15s %4095s", method, path), 2);
    char *query = strchr(path, '?');
    if (query)
        *query++ = '\0';
    (void)str_copy(key, 256, str_starts(path, "/blobs/") ? path + 7 : "");
    return query;
}

/* Is what a request asks about there? */
static inline bool fake_is_there(struct fake_store *f, const char *head)
{
    char method[16], path[4096], key[256];
    (void)fake_ask(head, method, path, key);
    return fake_store_has(f, key, NULL);
}

/* True: the connection stays open. */
static inline bool fake_get(struct fake_store *f, int fd, const struct fake_object *o,
                            const char *head, const struct fake_mishap *m, bool head_only)
{
    unsigned long long from = 0, last = o->len - 1;
    const char *range = strstr(head, "\r\nRange: bytes=");
    char line[128] = "";
    if (range && sscanf(range + 15, "%llu-%llu", &from, &last) >= 1)
        (void)snprintf(line, sizeof(line), "Content-Range: bytes %llu-%llu/%zu\r\n", from, last,
                       o->len);
    uint8_t *copy = mem_alloc(o->len + 1);
    memcpy(copy, o->data, o->len);
    if (m && m->how == FAKE_FLIP)
        copy[o->len / 2] ^= 1;
    const size_t len = last + 1 - from, send_now = m && m->how != FAKE_FLIP ? len / 2 : len;
    if (send_now < len) {
        char text[128];
        (void)snprintf(text, sizeof(text), "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n",
                       *line ? "206 Partial" : "200 OK", len);
        fake_send(fd, text, strlen(text));
        fake_send(fd, copy + from, send_now);
    } else {
        fake_answer(fd, *line ? "206 Partial" : "200 OK", line, copy + from, len, head_only);
    }
    mem_free(copy);
    return m && m->how == FAKE_STALL;
}

static inline bool fake_do(struct fake_store *f, int fd, char *head, bool there,
                           const uint8_t *body, size_t len)
{
    char method[16], path[4096], key[256];
    struct fake_mishap now = {0};
    char *query = fake_ask(head, method, path, key);
    if (f->look)
        f->look(method, key);
    f->gets += strcmp(method, "GET") == 0;
    f->puts += strcmp(method, "PUT") == 0;
    f->posts += strcmp(method, "POST") == 0;
    f->deletes += strcmp(method, "DELETE") == 0;
    for (unsigned i = 0; i < f->n_mishaps && !now.method && !now.text; i++)
        if (!f->mishaps[i].method || strcmp(f->mishaps[i].method, method) == 0) {
            now = f->mishaps[i];
            now.method = method;
            memmove(&f->mishaps[i], &f->mishaps[i + 1],
                    (f->n_mishaps - i - 1) * sizeof(f->mishaps[0]));
            f->n_mishaps--;
        }
    if (now.method && now.how == FAKE_LOST)
        fd = -1; /* what is sent there goes nowhere */
    struct fake_object *o = fake_find(f->objects, key, false);
    const bool is_head = strcmp(method, "HEAD") == 0;
    if (now.method && now.how == FAKE_STALL && (is_head || strcmp(method, "PUT") == 0))
        return true;
    if (f->down)
        fake_text(fd, "503 Slow Down", "<Error><Code>SlowDown</Code></Error>");
    else if (now.text)
        fake_send(fd, now.text, strlen(now.text));
    else if (query && fake_parts(f, fd, method, key, query, body, len))
        return false;
    else if (!*key && strcmp(method, "GET") == 0)
        fake_list(f, fd, query);
    else if (strcmp(method, "PUT") == 0 && (f->hasty ? there : o != NULL) &&
             strstr(head, "\r\nif-none-match: *"))
        fake_text(fd, "412 Precondition Failed", "<Error><Code>PreconditionFailed</Code></Error>");
    else if (strcmp(method, "PUT") == 0)
        fake_set(f->objects, key, body, len),
            fake_answer(fd, "200 OK", "ETag: \"e\"\r\n", "", 0, false);
    else if (!o)
        fake_answer(fd, "404 Not Found", "", "<Error><Code>NoSuchKey</Code></Error>", 37, is_head);
    else if (strcmp(method, "DELETE") == 0)
        fake_drop(o), fake_text(fd, "204 No Content", "");
    else
        return fake_get(f, fd, o, head, now.method && now.how != FAKE_LATER ? &now : NULL, is_head);
    return false;
}

static inline bool fake_serve(struct fake_store *f, int fd);

/* While the rest of a body is still to come another request may be answered. */
static inline void fake_meanwhile(struct fake_store *f, int fd)
{
    struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = f->fd, .events = POLLIN}};
    while (poll(p, 2, -1) > 0 && !p[0].revents) {
        const int other = accept(f->fd, NULL, NULL);
        if (other >= 0 && !fake_serve(f, other))
            close(other);
    }
}

/* True: the connection stays open. */
static inline bool fake_serve(struct fake_store *f, int fd)
{
    uint8_t *all = mem_alloc(1 << 20);
    size_t len = 0, need = SIZE_MAX;
    bool there = false;
    char *end = NULL;
    while (len < need) {
        if (end)
            fake_meanwhile(f, fd);
        const ssize_t n = recv(fd, all + len, (1 << 20) - 1 - len, 0);
        if (n <= 0)
            break;
        len += (size_t)n;
        all[len] = '\0';
        if (!end && (end = strstr((char *)all, "\r\n\r\n"))) {
            const char *h = strcasestr((char *)all, "\r\nContent-Length: ");
            need =
                (size_t)(end + 4 - (char *)all) + (h && h < end ? strtoull(h + 18, NULL, 10) : 0);
            there = fake_is_there(f, (const char *)all);
        }
    }
    bool stays = false;
    if (end && len >= need) {
        const size_t at = (size_t)(end + 4 - (char *)all);
        end[2] = '\0';
        pthread_mutex_lock(&f->lock);
        (void)str_copy(f->last, sizeof(f->last), (char *)all);
        (void)str_copy(f->body, sizeof(f->body), (char *)all + at);
        stays = fake_do(f, fd, (char *)all, there, all + at, need - at);
        if (stays)
            f->stalled[f->n_stalled++] = fd;
        pthread_mutex_unlock(&f->lock);
    }
    mem_free(all);
    return stays;
}

static inline void *fake_thread(void *arg)
{
    struct fake_store *f = arg;
    struct pollfd p[2] = {{.fd = f->fd, .events = POLLIN}, {.fd = f->stop[0], .events = POLLIN}};
    for (;;) {
        if (poll(p, 2, -1) > 0 && p[1].revents)
            return NULL;
        const int fd = accept(f->fd, NULL, NULL);
        if (fd >= 0 && !fake_serve(f, fd))
            close(fd);
    }
}

static inline void fake_store_open(struct fake_store *f)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    memset(f, 0, sizeof(*f));
    f->page = 2;
    pthread_mutex_init(&f->lock, NULL);
    f->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(f->fd, 64), 0);
    assert_int_equal(getsockname(f->fd, (struct sockaddr *)&a, &len), 0);
    (void)snprintf(f->url, sizeof(f->url), "http://127.0.0.1:%u", ntohs(a.sin_port));
    assert_int_equal(pipe(f->stop), 0);
    assert_int_equal(pthread_create(&f->thread, NULL, fake_thread, f), 0);
    setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
}

/* Returns when it has answered all that was asked before, also by clients that are gone. */
static inline void fake_store_settle(struct fake_store *f)
{
    static const char ask[] = "GET /blobs/none HTTP/1.1\r\n\r\n";
    struct sockaddr_in a;
    socklen_t len = sizeof(a);
    char answer[256];
    assert_int_equal(getsockname(f->fd, (struct sockaddr *)&a, &len), 0);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, len), 0);
    fake_send(fd, ask, strlen(ask));
    while (recv(fd, answer, sizeof(answer), 0) > 0)
        ;
    close(fd);
}

static inline void fake_store_close(struct fake_store *f)
{
    close(f->stop[1]);
    pthread_join(f->thread, NULL);
    close(f->stop[0]);
    close(f->fd);
    for (unsigned i = 0; i < f->n_stalled; i++)
        close(f->stalled[i]);
    for (size_t i = 0; i < FAKE_OBJECTS; i++) {
        fake_drop(&f->objects[i]);
        fake_drop(&f->parts[i]);
    }
    pthread_mutex_destroy(&f->lock);
}

#endif
