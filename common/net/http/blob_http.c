#include "common/net/http/blob_http.h"

#include "common/base/clock.h"
#include "common/base/list.h"
#include "common/net/blobstore.h"
#include "common/net/growing.h"
#include "common/net/http/http_server.h"
#include "common/net/loop.h"
#include "common/net/pool.h"
#include "common/net/token.h"

#define AWAY_WAIT_MS 10000u /* the longest wait for a blob that is on its way to the store */
#define AWAY_LOOK_MS 20u
#define AWAY_WAITERS_MAX 64u /* further requests must come again: places for requests are few */
#define LOOKS_MAX 8u /* fewer than the pool's threads: a request in its queue sends nothing */
#define BODY_MAX ((size_t)1 << 40) /* the ticket sets the real limit */

struct blob_http {
    struct blob_http_options o;
    struct http_route routes[2];
    struct blob_http_counters counters;
    struct list waiting; /* struct waiting */
    unsigned n_waiting;
    unsigned n_looks; /* checks of the store for blobs that were put there */
    struct loop_timer *look;
};

/* One PUT, from its headers to its answer. */
struct upload {
    struct blob_http *owner;
    struct http_request *req;
    struct blob_id id;
    struct blob_writer *writer; /* NULL: nothing to store */
    uint64_t total;             /* bytes of the blob; UINT64_MAX: unknown */
    uint64_t holder;            /* of its ticket; 0: not checked yet */
    uint64_t expect_end;        /* where this piece must end; UINT64_MAX: unknown */
    bool exists, asks, follows,
        done; /* follows: the client may go to the store; done: it says that it was there */
    struct err err;
};

static void reject(struct blob_http *b, struct http_request *r, const struct err *err)
{
    b->counters.rejected++;
    http_reply_err(r, err);
}

static void note_full(const struct upload *u, int code)
{
    const struct blob_http *b = u->owner;
    const char *word;
    const unsigned status = http_reply_status(code, &word);
    if ((status == 503 || status == 507) && u->holder && b->o.on_full)
        b->o.on_full(b->o.arg, u->holder);
}

static void refuse(struct upload *u, const struct err *err)
{
    note_full(u, err->code);
    reject(u->owner, u->req, err);
}

/* Tells the client that the blob is on its way: it is to ask again, and not to give up. */
static void ask_again(struct blob_http *b, struct http_request *r, struct err *err)
{
    err->code = -EAGAIN;
    http_reply_header(r, "Skerry-Store", "wait");
    reject(b, r, err);
}

/* A GET of a blob that must be fetched from the store. */
struct bringing {
    struct blob_http *owner;
    struct http_request *req;
    struct blob_id id;
    struct err err;
};

/* A GET of a blob that is on its way to the store, or of a file that is not begun. */
struct waiting {
    struct list link;
    struct http_request *req;
    struct blob_id id;
    bool grows; /* the latter */
    uint64_t until_ms;
};

/* ---- tickets ---- */

static uint64_t now_s(void)
{
    return clock_now_ns() / CLOCK_NS_PER_S;
}

void blob_http_ticket(const struct blob_http *b, enum ticket_method method,
                      const struct blob_id *id, uint64_t max_bytes, uint64_t holder,
                      char ret_path[TICKET_PATH_MAX])
{
    struct ticket t = {
        .method = method,
        .max_bytes = max_bytes,
        .expires_s = now_s() + TICKET_LIFE_S,
        .holder = holder,
    };
    memcpy(t.sha256, id->sha256, sizeof(t.sha256));
    ticket_path(b->o.key, &t, ret_path);
}

int blob_http_check(const uint8_t key[TICKET_KEY_BYTES], struct http_request *r,
                    enum ticket_method method, const struct blob_id *id, uint64_t now_s,
                    struct ticket *ret, struct err *err)
{
    static const char *const names[] = {"m", "max", "exp", "by", "sig"};
    char query[TICKET_PATH_MAX] = "";
    size_t len = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = http_request_query(r, names[i]);
        if (!value || strlen(value) > 64)
            continue;
        int n = snprintf(query + len, sizeof(query) - len, "%s=%s&", names[i], value);
        if (n < 0 || (size_t)n >= sizeof(query) - len)
            break;
        len += (size_t)n;
    }
    return ticket_check(key, method, id->sha256, query, now_s, ret, err);
}

static int check_ticket(const struct blob_http *b, struct http_request *r,
                        enum ticket_method method, const struct blob_id *id, struct ticket *ret,
                        struct err *err)
{
    int rc = blob_http_check(b->o.key, r, method, id, now_s(), ret, err);
    if (rc == 0 && b->o.holds && !b->o.holds(b->o.arg, ret->holder))
        rc = err_set(err, -ERR_AUTH,
                     "the worker or token that this ticket was given to has been revoked");
    return rc < 0 ? rc : http_request_trust(r, ret->holder, err);
}

static int read_id(struct http_request *r, struct blob_id *ret, struct err *err)
{
    if (blob_id_parse(http_request_param(r, "sha256"), ret) < 0)
        return err_set(err, -EINVAL, "a blob is named by 64 lower-case hex digits");
    return 0;
}

/* ---- GET ---- */

static int serve(struct blob_http *b, struct http_request *r, const struct blob_id *id,
                 struct err *err)
{
    char hex[BLOB_HEX_MAX];
    int fd;
    uint64_t size;
    int rc = b->o.store->ops->get(b->o.store, id, &fd, &size, err);
    if (rc < 0)
        return rc;
    blob_id_hex(id, hex);
    b->counters.gets++;
    if (strcmp(http_request_method(r), "HEAD") != 0) {
        b->counters.bytes_out += size;
        if (b->o.on_served)
            b->o.on_served(b->o.arg, id, size, http_request_holder(r), BLOB_BY_US);
    }
    http_reply_header(r, "Cache-Control", "private, max-age=31536000, immutable");
    http_reply_file(r, fd, size, "application/octet-stream", hex);
    return 0;
}

static int bring(void *arg)
{
    struct bringing *g = arg;
    struct blobstore *store = g->owner->o.store;
    char *path = NULL;
    const int rc = store->ops->local(store, &g->id, true, &path, &g->err);
    mem_free(path);
    return rc;
}

static void brought(void *arg, int rc)
{
    struct bringing *g = arg;
    struct blobstore *store = g->owner->o.store;
    const bool held = rc == 0;
    if (rc == 0)
        rc = serve(g->owner, g->req, &g->id, &g->err);
    else if (!g->err.code)
        (void)err_set(&g->err, rc, "the server is stopping");
    /* All other failures are the same to a client: the blob cannot be had now. */
    if (rc < 0 && rc != -ERR_NOTFOUND && rc != -ERR_CANCELLED)
        g->err.code = -EAGAIN;
    if (rc < 0)
        reject(g->owner, g->req, &g->err);
    if (held)
        store->ops->let_go(store, &g->id);
    mem_free(g);
}

static void get_far(struct blob_http *b, struct http_request *r, const struct blob_id *id)
{
    struct bringing *g = mem_alloc(sizeof(*g));
    *g = (struct bringing){.owner = b, .req = r, .id = *id};
    if (pool_submit(b->o.far, bring, brought, g) == 0)
        return;
    (void)err_set(&g->err, -EAGAIN, "too many blobs are being fetched from the store");
    reject(b, r, &g->err);
    mem_free(g);
}

/* Serves the blob from the directory, or fetches it first. */
static void get_here(struct blob_http *b, struct http_request *r, const struct blob_id *id)
{
    struct err err = {0};
    const int rc = serve(b, r, id, &err);
    if (rc == -EAGAIN)
        get_far(b, r, id);
    else if (rc < 0)
        reject(b, r, &err);
}

static int send_away(struct blob_http *b, struct http_request *r, const struct blob_id *id,
                     bool put, uint64_t size)
{
    struct blobstore *store = b->o.store;
    char *url = NULL;
    const int rc = store->ops->away(store, id, put, size, &url);
    if (rc < 0)
        return rc;
    b->counters.sent_away++;
    http_reply_header(r, "Location", url);
    http_reply_header(r, "Cache-Control", "no-store");
    http_reply_empty(r, 307);
    mem_free(url);
    return 0;
}

/* Sends the worker to a neighbour; false: there is none. */
static bool send_near(struct blob_http *b, struct http_request *r, const struct blob_id *id,
                      uint64_t holder)
{
    const char *asks = http_request_header(r, "Skerry-Near");
    struct blob_neighbour to;
    uint64_t size = 0;
    if (!b->o.neighbour || strcmp(http_request_method(r), "GET") != 0 ||
        !blobstore_has(b->o.store, id, &size) ||
        !b->o.neighbour(b->o.arg, id, size, holder, asks, &to))
        return false;
    b->counters.sent_near++;
    http_reply_header(r, "Location", to.url);
    http_reply_header(r, "Skerry-Pin", to.pin);
    http_reply_header(r, "Cache-Control", "no-store");
    const bool again = asks && strcmp(asks, BLOB_NEAR_AGAIN) == 0; /* borrowed until the answer */
    http_reply_empty(r, 307);
    if (b->o.on_served && !again)
        b->o.on_served(b->o.arg, id, size, holder, BLOB_BY_NEIGHBOUR);
    return true;
}

static int get_away(struct blob_http *b, struct http_request *r, const struct blob_id *id)
{
    uint64_t size = 0;
    if (!blobstore_has(b->o.store, id, &size))
        return -ERR_NOTFOUND;
    const uint64_t holder = http_request_holder(r); /* the answer ends the request */
    const int rc = send_away(b, r, id, false, 0);
    if (rc == 0 && b->o.on_served)
        b->o.on_served(b->o.arg, id, size, holder, BLOB_BY_STORE);
    return rc;
}

static void not_there_yet(struct blob_http *b, struct http_request *r)
{
    struct err err = {0};
    (void)err_set(&err, -EAGAIN, "the blob is on its way: ask again");
    ask_again(b, r, &err);
}

static void count_sent(void *arg, uint64_t of, uint64_t bytes)
{
    struct blob_http *b = arg;
    b->counters.bytes_out += bytes;
    b->o.on_sent(b->o.arg, of, bytes);
}

static int get_growing(struct blob_http *b, struct http_request *r, const struct blob_id *id)
{
    struct growing *g = NULL;
    struct http_tally tally = {count_sent, b, 0};
    const int rc = b->o.growing ? b->o.growing(b->o.arg, id, &g, &tally.of) : -ERR_NOTFOUND;
    if (rc < 0)
        return rc;
    b->counters.gets++;
    http_reply_growing(r, g, "application/octet-stream", &tally);
    growing_drop(g);
    return 0;
}

static void on_look(void *arg)
{
    struct blob_http *b = arg;
    for (struct list *l = b->waiting.next; l != &b->waiting;) {
        struct waiting *w = list_entry(l, struct waiting, link);
        l = l->next;
        const int rc = (w->grows ? get_growing : get_away)(b, w->req, &w->id);
        if (rc == -EAGAIN && clock_now_ms() < w->until_ms)
            continue;
        if (rc == -EAGAIN)
            not_there_yet(b, w->req);
        else if (rc < 0)
            get_here(b, w->req, &w->id);
        list_remove(&w->link);
        b->n_waiting--;
        mem_free(w);
    }
    if (list_empty(&b->waiting))
        loop_timer_stop(b->look);
}

static void wait_for(struct blob_http *b, struct http_request *r, const struct blob_id *id,
                     bool grows)
{
    const uint32_t ms = b->o.away_wait_ms ? b->o.away_wait_ms : AWAY_WAIT_MS;
    if (b->n_waiting >= AWAY_WAITERS_MAX) {
        not_there_yet(b, r);
        return;
    }
    b->n_waiting++;
    struct waiting *w = mem_alloc(sizeof(*w));
    *w = (struct waiting){.req = r, .id = *id, .grows = grows, .until_ms = clock_now_ms() + ms};
    list_init(&w->link);
    list_push(&b->waiting, &w->link);
    if (!loop_timer_active(b->look))
        loop_timer_start(b->look, AWAY_LOOK_MS, AWAY_LOOK_MS);
}

/* True if this client may be sent to the store; *ret_done: it was there. */
static bool follows(const struct blob_http *b, const struct http_request *r, bool *ret_done)
{
    const char *h = b->o.store->ops->away ? http_request_header(r, "Skerry-Store") : NULL;
    *ret_done = h && strcmp(h, "done") == 0;
    return h && (*ret_done || strcmp(h, "follow") == 0);
}

static void get(void *arg, struct http_request *r)
{
    struct blob_http *b = arg;
    struct blob_id id;
    struct ticket t;
    struct err err = {0};
    int rc = read_id(r, &id, &err);
    const unsigned role = http_request_role(r);
    const bool by_ticket = rc < 0 || !(role && b->o.may_get && b->o.may_get(b->o.arg, role, &id));
    if (rc == 0 && by_ticket && role && !http_request_query(r, "sig"))
        rc = err_set(&err, -ERR_AUTH, "a token of the role %s may not read this blob",
                     token_role_name((enum token_role)role));
    else if (rc == 0 && by_ticket)
        rc = check_ticket(b, r, TICKET_GET, &id, &t, &err);
    if (rc < 0) {
        reject(b, r, &err);
        return;
    }
    const bool gets = strcmp(http_request_method(r), "GET") == 0;
    rc = by_ticket && gets ? get_growing(b, r, &id) : -ERR_NOTFOUND;
    if (rc == -EAGAIN)
        wait_for(b, r, &id, true);
    if (rc == 0 || rc == -EAGAIN)
        return;
    if (by_ticket && send_near(b, r, &id, t.holder))
        return;
    bool done;
    rc = -ERR_UNIMPLEMENTED;
    if (follows(b, r, &done) && gets)
        rc = get_away(b, r, &id);
    if (rc == -EAGAIN)
        wait_for(b, r, &id, false);
    else if (rc < 0)
        get_here(b, r, &id);
}

/* ---- PUT ---- */

/* "bytes A-B/T" or "bytes * /T" (without the space); 0, or -EINVAL. */
static int parse_content_range(const char *h, uint64_t *ret_from, uint64_t *ret_end,
                               uint64_t *ret_total, bool *ret_asks)
{
    unsigned long long from = 0, to = 0, total = 0;
    int end = 0;
    if (sscanf(h, "bytes */%llu%n", &total, &end) == 1 && end && h[end] == '\0') {
        *ret_asks = true;
    } else {
        end = 0;
        if (sscanf(h, "bytes %llu-%llu/%llu%n", &from, &to, &total, &end) != 3 || !end ||
            h[end] != '\0' || to < from || to >= total)
            return -EINVAL;
        *ret_from = from;
        *ret_end = to + 1;
    }
    *ret_total = total;
    return 0;
}

static void answer_have(struct http_request *r, uint64_t have)
{
    char text[64];
    if (have) {
        snprintf(text, sizeof(text), "bytes=0-%llu", (unsigned long long)(have - 1));
        http_reply_header(r, "Range", text);
    }
    http_reply_empty(r, 308);
}

static void answer_stored(struct http_request *r, unsigned status, const struct blob_id *id,
                          uint64_t size)
{
    char hex[BLOB_HEX_MAX];
    blob_id_hex(id, hex);
    http_reply_json(r, status, json_pack("{s:s,s:I}", "sha256", hex, "size", (json_int_t)size));
}

static void drop_writer(struct upload *u, bool keep)
{
    if (u->writer)
        u->writer->ops->abort(u->writer, keep);
    u->writer = NULL;
}

static int open_writer(struct upload *u, uint64_t max, uint64_t from, struct err *err)
{
    struct blobstore *store = u->owner->o.store;
    int rc = store->ops->put(store, &u->id, u->holder, max, &u->writer, err);
    if (rc < 0 || u->asks)
        return rc;
    uint64_t have = u->writer->size;
    if (from == 0 && have > 0) {
        /* From the start again: earlier bytes are not trusted. */
        drop_writer(u, false);
        return store->ops->put(store, &u->id, u->holder, max, &u->writer, err);
    }
    if (from != have) {
        drop_writer(u, true);
        return err_set(err, -EBUSY, "the piece starts at %llu, but %llu bytes are here",
                       (unsigned long long)from, (unsigned long long)have);
    }
    return 0;
}

static int put_begin(void *arg, struct http_request *r, void **ret_sink)
{
    struct blob_http *b = arg;
    struct upload *u = mem_alloc(sizeof(*u));
    struct err err = {0};
    struct ticket t;
    uint64_t from = 0;
    u->owner = b;
    u->req = r;
    u->total = u->expect_end = UINT64_MAX;
    int rc = read_id(r, &u->id, &err);
    if (rc == 0)
        rc = check_ticket(b, r, TICKET_PUT, &u->id, &t, &err);
    if (rc == 0) {
        u->holder = t.holder;
        rc = http_request_limit(r, t.max_bytes, &err);
    }
    const char *h = http_request_header(r, "Content-Range");
    if (rc == 0 && h && parse_content_range(h, &from, &u->expect_end, &u->total, &u->asks) < 0)
        rc = err_set(&err, -EINVAL,
                     "Content-Range must be \"bytes A-B/TOTAL\" or \"bytes */TOTAL\"");
    if (rc == 0 && h && u->total > t.max_bytes)
        rc = err_set(&err, -ERR_LIMIT, "the ticket allows %llu bytes, not %llu",
                     (unsigned long long)t.max_bytes, (unsigned long long)u->total);
    if (rc == 0) {
        u->exists = blobstore_has(b->o.store, &u->id, &u->total);
        u->follows = u->asks && follows(b, r, &u->done);
        if (!u->exists && !u->follows)
            rc = open_writer(u, t.max_bytes, from, &err);
    }
    if (rc < 0) {
        if (rc == -EBUSY && u->asks)
            ask_again(b, r, &err);
        else
            refuse(u, &err);
        mem_free(u);
        return rc;
    }
    *ret_sink = u;
    return 0;
}

static int put_data(void *arg, struct http_request *r, void *sink, const void *data, size_t len)
{
    struct blob_http *b = arg;
    struct upload *u = sink;
    b->counters.bytes_in += len;
    if (u->exists || u->asks)
        return 0;
    return u->writer->ops->write(u->writer, data, len, &u->err);
}

static void put_abort(void *arg, struct http_request *r, void *sink)
{
    struct upload *u = sink;
    drop_writer(u, u->err.code != -ERR_LIMIT);
    mem_free(u);
}

static int commit(void *arg)
{
    struct upload *u = arg;
    struct blob_writer *w = u->writer;
    u->writer = NULL;
    return w->ops->commit(w, u->total, &u->err);
}

static void committed(void *arg, int rc)
{
    struct upload *u = arg;
    struct blob_http *b = u->owner;
    if (rc < 0) {
        drop_writer(u, true); /* the pool was stopped before it began */
        if (!u->err.code)
            (void)err_set(&u->err, rc, "the server is stopping");
        if (rc == -ERR_HASH && u->asks) /* those of earlier requests: they are to come again */
            answer_have(u->req, 0);
        else
            refuse(u, &u->err);
    } else {
        uint64_t size = 0;
        (void)blobstore_has(b->o.store, &u->id, &size); /* the blob was just put there */
        b->counters.puts++;
        answer_stored(u->req, 201, &u->id, size);
        if (b->o.on_stored)
            b->o.on_stored(b->o.arg, &u->id, size, true);
    }
    mem_free(u);
}

/* Takes u, with its writer. */
static void store_here(struct upload *u)
{
    if (pool_submit(u->owner->o.pool, commit, committed, u) == 0)
        return;
    (void)err_set(&u->err, -EAGAIN, "too many uploads are being stored");
    drop_writer(u, true);
    refuse(u, &u->err);
    mem_free(u);
}

/* Says what is here; bytes that came whole before are stored now.  Takes u, with its writer. */
static void answer_question(struct upload *u)
{
    const uint64_t have = u->writer->size;
    if (have > 0 && have == u->total) {
        store_here(u);
        return;
    }
    drop_writer(u, true);
    answer_have(u->req, have);
    mem_free(u);
}

/* Sends the client to the store, or takes the bytes here (through_us, or it must not go there). */
static void offer(struct upload *u, bool through_us)
{
    struct err err = {0};
    if (through_us || send_away(u->owner, u->req, &u->id, true, u->total) < 0) {
        const int rc = open_writer(u, u->total, 0, &err);
        if (rc == -EBUSY)
            ask_again(u->owner, u->req, &err);
        else if (rc < 0)
            refuse(u, &err);
        else {
            answer_question(u);
            return;
        }
    }
    mem_free(u);
}

static int look(void *arg)
{
    struct upload *u = arg;
    struct blobstore *store = u->owner->o.store;
    return store->ops->found(store, &u->id, u->total, &u->err);
}

static void looked(void *arg, int rc)
{
    struct upload *u = arg;
    struct blob_http *b = u->owner;
    b->n_looks--;
    if (rc == -ERR_CANCELLED) {
        (void)err_set(&u->err, rc, "the server is stopping");
        reject(b, u->req, &u->err);
    } else if (rc == -EBUSY) {
        ask_again(b, u->req, &u->err);
    } else if (rc == -ERR_HASH || rc == -ENOSPC) {
        refuse(u, &u->err);
    } else if (rc < 0) { /* the store does not answer, which is not the client's failure */
        offer(u, rc != -ERR_NOTFOUND);
        return;
    } else {
        b->counters.puts++;
        answer_stored(u->req, 200, &u->id, u->total);
        if (b->o.on_stored)
            b->o.on_stored(b->o.arg, &u->id, u->total, false);
    }
    mem_free(u);
}

static void put_away(struct upload *u)
{
    struct blob_http *b = u->owner;
    if (!u->done) {
        offer(u, false);
    } else if (b->n_looks >= LOOKS_MAX || pool_submit(b->o.far, look, looked, u) < 0) {
        (void)err_set(&u->err, -EAGAIN, "too many uploads are being looked for in the store");
        ask_again(b, u->req, &u->err);
        mem_free(u);
    } else {
        b->n_looks++;
    }
}

static void put_done(void *arg, struct http_request *r)
{
    struct upload *u = http_request_sink(r);
    if (u->exists) {
        answer_stored(r, 200, &u->id, u->total);
        mem_free(u);
        return;
    }
    if (u->follows) {
        put_away(u);
        return;
    }
    uint64_t have = u->writer->size;
    bool short_piece = u->expect_end != UINT64_MAX && have != u->expect_end && !u->err.code;
    if (u->asks && !u->err.code) {
        answer_question(u);
        return;
    }
    if (u->err.code || short_piece || (u->total != UINT64_MAX && have < u->total)) {
        drop_writer(u, u->err.code != -ERR_LIMIT);
        if (u->err.code)
            refuse(u, &u->err);
        else
            answer_have(r, have);
        mem_free(u);
        return;
    }
    store_here(u);
}

/* ---- */

int blob_http_open(struct http_server *server, const struct blob_http_options *o,
                   struct blob_http **ret, struct err *err)
{
    static const struct http_upload upload = {put_begin, put_data, put_abort};
    struct blob_http *b = mem_alloc(sizeof(*b));
    b->o = *o;
    list_init(&b->waiting);
    b->look = loop_timer_new(o->loop, on_look, b);
    b->routes[0] = (struct http_route){"GET", "/v1/blobs/{sha256}", 0, 0, get, NULL, b};
    b->routes[1] =
        (struct http_route){"PUT", "/v1/blobs/{sha256}", 0, BODY_MAX, put_done, &upload, b};
    http_server_routes(server, b->routes, 2);
    *ret = b;
    return 0;
}

void blob_http_close(struct blob_http *b)
{
    struct list *l;
    if (!b)
        return;
    while ((l = list_pop(&b->waiting)) != NULL) {
        struct waiting *w = list_entry(l, struct waiting, link);
        http_reply_error(w->req, 503, "unavailable", "the server is stopping");
        mem_free(w);
    }
    loop_timer_free(b->look);
    mem_free(b);
}

struct blob_http_counters blob_http_counters(const struct blob_http *b)
{
    return b->counters;
}
