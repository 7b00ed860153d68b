#include "worker/link/share.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/net/blobstore.h"
#include "common/net/http/blob_http.h"
#include "common/net/http/http_server.h"
#include "common/net/http/transfer.h"
#include "common/net/loop.h"
#include "worker/order/cache.h"

#define CONNECTIONS_MAX 32
#define WAITERS_MAX 64u
#define WAIT_MS (XFER_AWAY_FLOOR_S * 600u) /* shorter than the asking worker's patience */
#define STALE_S 10 /* a transfer without progress for so long may have ended */
#define LOOK_MS 20u
#define TIMES_MAX 4u
#define DRAWN_SLOTS 1024u

/* How often a blob was sent to a holder of a ticket. */
struct drawn {
    uint64_t key;
    unsigned times;
};

/* A request for a blob that is still being downloaded here. */
struct waiting {
    struct list link;
    struct http_request *req;
    struct blob_id id;
    uint64_t holder;
    uint64_t until_ms;
};

struct share {
    struct share_options o;
    char site[SHARE_SITE_MAX + 1], host[SHARE_HOST_MAX + 1];
    struct http_server *server;
    struct http_route route;
    uint8_t key[TICKET_KEY_BYTES];
    struct session_share word;
    struct loop_timer *look;
    struct list waiting;
    unsigned n_waiting;
    struct drawn drawn[DRAWN_SLOTS];
};

/* ---- requests ---- */

static uint64_t his_now_s(const struct share *s)
{
    return s->word.now_s + (clock_now_ms() - s->word.told_ms) / 1000;
}

/* The count for a blob and holder; its slot may be taken over from another pair. */
static struct drawn *drawn_by(struct share *s, const struct blob_id *id, uint64_t holder)
{
    uint64_t key;
    memcpy(&key, id->sha256, sizeof(key));
    key = rng_mix(key, holder);
    struct drawn *d = &s->drawn[key % DRAWN_SLOTS];
    if (d->key != key)
        *d = (struct drawn){.key = key};
    return d;
}

static void refuse(struct http_request *r, int code, const char *why)
{
    struct err err = {0};
    (void)err_set(&err, code, "%s", why);
    if (code == -EAGAIN)
        http_reply_header(r, "Skerry-Store", "wait");
    http_reply_err(r, &err);
}

static void send_blob(struct share *s, struct http_request *r, const struct blob_id *id,
                      uint64_t holder)
{
    char path[CACHE_PATH_MAX], hex[BLOB_HEX_MAX];
    struct drawn *drawn = drawn_by(s, id, holder);
    struct stat st;
    if (drawn->times >= TIMES_MAX) {
        refuse(r, -ERR_NOTFOUND, "this worker has sent the blob often enough"); /* of this one */
        return;
    }
    cache_path(s->o.cache, id->sha256, path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        if (fd >= 0)
            (void)close(fd); /* only read */
        refuse(r, -ERR_NOTFOUND, "this worker does not have the blob any more");
        return;
    }
    drawn->times++;
    blob_id_hex(id, hex);
    http_reply_file(r, fd, (uint64_t)st.st_size, "application/octet-stream", hex);
}

/* Is it being downloaded, or here but not yet in the cache's table? */
static bool comes(const struct share *s, const struct blob_id *id)
{
    char path[CACHE_PATH_MAX];
    struct stat st;
    cache_path(s->o.cache, id->sha256, path);
    char *part = str_printf("%s.part", path);
    const bool there = stat(part, &st) == 0 || stat(path, &st) == 0; /* in this order: a rename */
    mem_free(part);
    return there && time(NULL) - st.st_mtim.tv_sec <= STALE_S;
}

/* True: it was answered. */
static bool settle(struct share *s, struct http_request *r, const struct blob_id *id,
                   uint64_t holder, uint64_t until_ms)
{
    if (cache_has(s->o.cache, id->sha256))
        send_blob(s, r, id, holder);
    else if (!comes(s, id))
        refuse(r, -ERR_NOTFOUND, "this worker does not have the blob");
    else if (loop_now_ms(s->o.loop) >= until_ms)
        refuse(r, -EAGAIN, "the blob is on its way to this worker: ask again");
    else
        return false;
    return true;
}

static void on_look(void *arg)
{
    struct share *s = arg;
    for (struct list *l = s->waiting.next; l != &s->waiting;) {
        struct waiting *w = list_entry(l, struct waiting, link);
        l = l->next;
        if (!settle(s, w->req, &w->id, w->holder, w->until_ms))
            continue;
        list_remove(&w->link);
        s->n_waiting--;
        mem_free(w);
    }
    if (list_empty(&s->waiting))
        loop_timer_stop(s->look);
}

static void wait_for(struct share *s, struct http_request *r, const struct blob_id *id,
                     uint64_t holder, uint64_t until_ms)
{
    struct waiting *w = mem_alloc(sizeof(*w));
    *w = (struct waiting){.req = r, .id = *id, .holder = holder, .until_ms = until_ms};
    list_init(&w->link);
    list_push(&s->waiting, &w->link);
    s->n_waiting++;
    if (!loop_timer_active(s->look))
        loop_timer_start(s->look, LOOK_MS, LOOK_MS);
}

static void on_get(void *arg, struct http_request *r)
{
    struct share *s = arg;
    struct blob_id id;
    struct ticket t;
    struct err err = {0};
    int rc = 0;
    if (blob_id_parse(http_request_param(r, "sha256"), &id) < 0)
        rc = err_set(&err, -EINVAL, "a blob is named by 64 lower-case hex digits");
    if (rc == 0)
        rc = blob_http_check(s->key, r, TICKET_GET, &id, his_now_s(s), &t, &err);
    if (rc == 0)
        rc = http_request_trust(r, t.holder, &err);
    if (rc < 0) {
        http_reply_err(r, &err);
        return;
    }
    const uint64_t now = loop_now_ms(s->o.loop);
    const uint64_t until_ms = s->n_waiting < WAITERS_MAX ? now + WAIT_MS : now;
    if (!settle(s, r, &id, t.holder, until_ms))
        wait_for(s, r, &id, t.holder, until_ms);
}

/* ---- addresses ---- */

/* The address from which packets to a host leave; nothing is sent. */
static int find_address(const char *host, char ret[SHARE_HOST_MAX + 1], struct err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *list = NULL;
    struct sockaddr_storage own;
    socklen_t len = sizeof(own);
    int fd = -1;
    const int code = getaddrinfo(host, "9", &hints, &list);
    if (code == 0)
        fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool found = fd >= 0 && connect(fd, list->ai_addr, list->ai_addrlen) == 0 &&
                       getsockname(fd, (struct sockaddr *)&own, &len) == 0 &&
                       getnameinfo((struct sockaddr *)&own, len, ret, SHARE_HOST_MAX + 1, NULL, 0,
                                   NI_NUMERICHOST) == 0;
    if (fd >= 0)
        (void)close(fd);
    if (list != NULL)
        freeaddrinfo(list);
    return found ? 0
                 : err_set(err, -ERR_CONFIG,
                           "--share: which of this machine's addresses neighbours should dial is "
                           "not known, as no way leads to %s: name one with --share-at",
                           host);
}

/* "HOST[:PORT]", "[IPv6][:PORT]" */
static int parse_at(const char *at, char ret_host[SHARE_HOST_MAX + 1], uint16_t *ret_port)
{
    const bool v6 = at[0] == '[';
    const char *host = at + v6, *end = v6 ? strchr(at, ']') : at + strcspn(at, ":");
    uint8_t address[16];
    uint64_t port = 0;
    if (end == NULL || end - host > SHARE_HOST_MAX)
        return -EINVAL;
    memcpy(ret_host, host, (size_t)(end - host));
    ret_host[end - host] = '\0';
    end += v6;
    if (inet_pton(v6 ? AF_INET6 : AF_INET, ret_host, address) != 1 ||
        (*end != '\0' && (*end != ':' || str_parse_u64(end + 1, &port) < 0 || port > UINT16_MAX)))
        return -EINVAL;
    *ret_port = (uint16_t)port;
    return 0;
}

static int listen_at(struct share *s, uint16_t port, struct err *err)
{
    const struct http_server_options o = {.host = s->host,
                                          .port = port,
                                          .keys = s->o.keys,
                                          .max_connections = CONNECTIONS_MAX,
                                          .arg = s};
    const int rc = http_server_open(s->o.loop, &o, &s->server, err);
    if (rc < 0)
        return err_wrap(err, "--share: neighbours cannot be served at %s, port %u (--share-at)",
                        s->host, port);
    s->route = (struct http_route){"GET", "/v1/blobs/{sha256}", 0, 0, on_get, NULL, s};
    http_server_routes(s->server, &s->route, 1);
    s->word = (struct session_share){
        .site = s->site, .host = s->host, .port = http_server_port(s->server), .key = s->key};
    log_info("share", "workers of site %s get what is here at %s, port %u", s->site, s->host,
             http_server_port(s->server));
    return 0;
}

static int check_site(const char *site, struct err *err)
{
    if (!str_is_name(site, SHARE_SITE_MAX))
        return err_set(err, -EINVAL,
                       "--share %s: expected the name of a site, 1 to %d of A-Z, a-z, 0-9, '.', "
                       "'_' and '-', neither '.' nor '-' first",
                       site, SHARE_SITE_MAX);
    return 0;
}

int share_open(const struct share_options *o, struct share **ret, struct err *err)
{
    struct share *s = mem_alloc(sizeof(*s));
    uint16_t port = 0;
    s->o = *o;
    list_init(&s->waiting);
    s->look = loop_timer_new(o->loop, on_look, s);
    hash_random(s->key, sizeof(s->key));
    int rc = check_site(o->site, err);
    if (rc == 0 && o->at != NULL && parse_at(o->at, s->host, &port) < 0)
        rc = err_set(err, -EINVAL,
                     "--share-at %s: expected an address of this machine, such as 10.0.0.7, "
                     "10.0.0.7:7720 or [fd00::7]:7720",
                     o->at);
    if (rc == 0 && o->at == NULL)
        rc = find_address(o->coordinator, s->host, err);
    if (rc == 0) {
        (void)str_copy(s->site, sizeof(s->site), o->site);
        rc = listen_at(s, port, err);
    }
    cache_lend(o->cache); /* what is sent is not pinned */
    if (rc < 0) {
        share_close(s);
        return rc;
    }
    *ret = s;
    return 0;
}

void share_close(struct share *s)
{
    struct list *l;
    if (s == NULL)
        return;
    while ((l = list_pop(&s->waiting)) != NULL) {
        struct waiting *w = list_entry(l, struct waiting, link);
        refuse(w->req, -ERR_NOTFOUND, "this worker leaves");
        mem_free(w);
    }
    http_server_close(s->server);
    loop_timer_free(s->look);
    mem_free(s);
}

struct session_share *share_word(struct share *s)
{
    return &s->word;
}
