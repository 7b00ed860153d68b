#include "tests/sim/store.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/net/blobstore.h"
#include "common/net/s3/blob_s3_impl.h"
#include "common/net/s3/client.h"
#include "tests/sim/disk.h"
#include "tests/sim/fiber.h"
#include "tests/sim/sim.h"

#define WAY_MS 60
#define LATE_MS 60000 /* that a request is done later than anybody waits for it, at most */
#define LOG_KEY "p/state/log/"
#define BLOB_KEY "p/blobs/"
#define PROCESSES_MAX 1024
#define CUT_ALL UINT32_MAX
#define OBJECT_MAX ((size_t)64 << 20)
/* As the client's own. */
#define TRIES 6
#define WAIT_MS 100
#define STALL_S 5

struct object {
    char *key;
    uint8_t *data;
    size_t len;
};

/* An entry of the log as it was first written. */
struct entry {
    char *key;
    uint8_t sha256[HASH_BYTES];
};

struct s3 {
    unsigned process, tries;
    uint64_t patience_ms;
    bool stopping;
    uint64_t requests, repeats;
    int64_t failing_since_unix_ms;
};

static struct {
    struct object *all;
    size_t n, cap;
    struct entry *entries;
    size_t n_entries, cap_entries;
    char **excused; /* keys that a late delete took */
    size_t n_excused, cap_excused;
    unsigned bad, cut, with_disk; /* cut: a process, or CUT_ALL */
    uint64_t most_ms;
    bool gone[PROCESSES_MAX];
} store;

/* ---- objects ---------------------------------------------------------------- */

static struct object *find(const char *key)
{
    for (size_t i = 0; i < store.n; i++)
        if (strcmp(store.all[i].key, key) == 0)
            return &store.all[i];
    return NULL;
}

static void drop(struct object *o)
{
    mem_free(o->key);
    mem_free(o->data);
    *o = store.all[--store.n];
}

static void set(const char *key, const void *data, size_t len)
{
    struct object *o = find(key);
    if (o != NULL)
        drop(o);
    if (store.n == store.cap) {
        store.cap = store.cap ? 2 * store.cap : 256;
        store.all = mem_realloc(store.all, store.cap * sizeof(*store.all));
    }
    o = &store.all[store.n++];
    *o = (struct object){str_dup(key), memcpy(mem_alloc(len + 1), len > 0 ? data : "", len), len};
}

static void excuse(const char *key)
{
    if (store.n_excused == store.cap_excused) {
        store.cap_excused = store.cap_excused ? 2 * store.cap_excused : 16;
        store.excused = mem_realloc(store.excused, store.cap_excused * sizeof(*store.excused));
    }
    store.excused[store.n_excused++] = str_dup(key);
}

static bool is_excused(const char *key)
{
    for (size_t i = 0; i < store.n_excused; i++)
        if (strcmp(store.excused[i], key) == 0)
            return true;
    return false;
}

/* Are these the bytes that the entry was first written with? */
static bool is_first(const char *key, const void *data, size_t len)
{
    uint8_t hash[HASH_BYTES];
    hash_sha256(data, len, hash);
    for (size_t i = 0; i < store.n_entries; i++)
        if (strcmp(store.entries[i].key, key) == 0)
            return memcmp(store.entries[i].sha256, hash, sizeof(hash)) == 0;
    if (store.n_entries == store.cap_entries) {
        store.cap_entries = store.cap_entries ? 2 * store.cap_entries : 256;
        store.entries = mem_realloc(store.entries, store.cap_entries * sizeof(*store.entries));
    }
    struct entry *e = &store.entries[store.n_entries++];
    e->key = str_dup(key);
    memcpy(e->sha256, hash, sizeof(hash));
    return true;
}

/* ---- requests ---------------------------------------------------------------- */

enum what { PUT, PUT_NEW, GET, LIST, DELETE };

/* Whoever asks waits for `answered`; once they have given up the request frees itself. */
struct request {
    enum what what;
    struct s3 *of; /* NULL: nobody waits for it any more */
    unsigned process;
    char *key; /* or a prefix */
    void *data;
    size_t len;
    int rc;
    struct buf got;       /* of GET */
    struct object *found; /* of LIST: names and sizes */
    size_t n_found;
    bool done, answered, silent, given_up;
};

static void free_request(struct request *r)
{
    for (size_t i = 0; i < r->n_found; i++)
        mem_free(r->found[i].key);
    mem_free(r->found);
    mem_free(r->key);
    mem_free(r->data);
    buf_release(&r->got);
    mem_free(r);
}

static void do_list(struct request *r)
{
    r->found = mem_alloc_array(store.n + 1, sizeof(*r->found));
    for (size_t i = 0; i < store.n; i++)
        if (str_starts(store.all[i].key, r->key))
            r->found[r->n_found++] =
                (struct object){str_dup(store.all[i].key), NULL, store.all[i].len};
}

static void do_put(struct request *r)
{
    const bool first = !str_starts(r->key, LOG_KEY) || is_first(r->key, r->data, r->len);
    set(r->key, r->data, r->len);
    if (str_starts(r->key, LOG_KEY))
        sim_say("process %u has written %s%s", r->process, r->key,
                r->silent || r->given_up ? ", and does not hear of it" : "");
    if (!first && !r->given_up && !r->silent && !store.gone[r->process])
        sim_fail("%s is taken for written, and was first written with other bytes", r->key);
}

static void do_it(struct request *r)
{
    struct object *o = r->what != LIST ? find(r->key) : NULL;
    r->done = true;
    if (r->what == LIST)
        do_list(r);
    else if (r->what == PUT_NEW && o != NULL)
        r->rc = -EEXIST;
    else if (r->what == PUT || r->what == PUT_NEW)
        do_put(r);
    else if (r->what == GET && o != NULL)
        r->rc = buf_append(&r->got, o->data, o->len);
    else if (r->what == GET)
        r->rc = -ERR_NOTFOUND;
    else if (o != NULL) {
        if ((r->given_up || r->silent) && str_starts(r->key, BLOB_KEY))
            excuse(r->key);
        drop(o);
    }
}

static void come_back(void *arg)
{
    struct request *r = arg;
    r->answered = true;
    if (r->given_up)
        free_request(r);
    else
        fiber_wake(r->of);
}

static uint64_t way(void)
{
    return sim_below(store.most_ms > 0 && sim_chance(300) ? store.most_ms : WAY_MS);
}

static void arrive(void *arg)
{
    struct request *r = arg;
    do_it(r);
    if (r->given_up)
        free_request(r);
    else if (!r->silent)
        (void)sim_in(way(), come_back, r);
}

static void refuse(void *arg)
{
    struct request *r = arg;
    r->rc = -EAGAIN;
    r->done = true;
    come_back(r);
}

/* Nothing of it ever arrives. */
static void vanish(void *arg)
{
    struct request *r = arg;
    r->done = true;
    if (r->given_up)
        free_request(r);
}

static bool is_over(const struct s3 *c)
{
    return c->stopping || store.gone[c->process] ||
           (c->process == store.with_disk && disk_crashed());
}

static bool is_cut(const struct s3 *c)
{
    return store.cut == CUT_ALL || (store.cut != 0 && store.cut == c->process);
}

static void send(const struct s3 *c, struct request *r)
{
    enum { LOST, LATE, UNTOLD, REFUSED, WELL };
    const unsigned fate = is_cut(c) ? LOST : sim_chance(store.bad) ? sim_below(WELL) : WELL;
    r->silent = fate <= UNTOLD;
    if (fate == LOST)
        (void)sim_in(LATE_MS, vanish, r);
    else if (fate == LATE)
        (void)sim_in(c->patience_ms + sim_below(LATE_MS), arrive, r);
    else
        (void)sim_in(way(), fate == REFUSED ? refuse : arrive, r);
}

/* Until it is answered, or for as long as the client has patience. */
static void wait_for(const struct s3 *c, const struct request *r)
{
    const uint64_t until = sim_now_ms() + c->patience_ms;
    while (!r->answered && !is_over(c) && fiber_may_wait() && sim_now_ms() < until)
        (void)fiber_wait(c, until - sim_now_ms());
}

/* One try.  The answer, which whoever asks must free, or NULL with the reason. */
static struct request *ask_once(struct s3 *c, const struct request *like, int *ret_rc)
{
    struct request *r = mem_alloc(sizeof(*r));
    *r = *like;
    r->of = c;
    r->process = c->process;
    r->key = str_dup(like->key);
    r->data = memcpy(mem_alloc(like->len + 1), like->len > 0 ? like->data : "", like->len);
    buf_init(&r->got, OBJECT_MAX);
    c->requests++;
    if (fiber_may_wait()) {
        send(c, r);
        wait_for(c, r);
    } else if (!is_cut(c)) {
        do_it(r);
        r->answered = true;
    } else {
        r->done = r->silent = true;
    }
    *ret_rc = !r->answered ? -EAGAIN : r->rc;
    if (r->answered)
        return r;
    r->given_up = true;
    r->of = NULL;
    if (r->done && r->silent)
        free_request(r);
    return NULL;
}

static int fail(const struct s3 *c, const struct request *like, int rc, struct err *err)
{
    if (rc == -ERR_CANCELLED)
        return err_set(err, rc, "the coordinator is stopping");
    if (rc == -ERR_NOTFOUND || rc == -EEXIST)
        return err_set(err, rc, "the store has %s %s", rc == -EEXIST ? "already" : "no", like->key);
    return err_set(err, rc, "the store does not answer");
}

/* *ret (may be NULL): the answer. */
static int ask(struct s3 *c, const struct request *like, struct request **ret, struct err *err)
{
    struct request *r = NULL;
    int rc = -ERR_CANCELLED;
    if (is_over(c) && fiber_here()) /* whoever asks again and again lets others end it */
        (void)fiber_wait(c, 1);
    for (unsigned n = 0; n < c->tries && !is_over(c); n++) {
        if (n > 0 && fiber_may_wait())
            (void)fiber_wait(c, (uint64_t)WAIT_MS << n);
        c->repeats += n > 0;
        r = ask_once(c, like, &rc);
        if (rc != -EAGAIN)
            break;
        if (r != NULL)
            free_request(r);
        r = NULL;
    }
    if (r == NULL && is_over(c))
        rc = -ERR_CANCELLED;
    if (rc != -EAGAIN)
        c->failing_since_unix_ms = 0;
    else if (c->failing_since_unix_ms == 0)
        c->failing_since_unix_ms = (int64_t)clock_wall_ms();
    if (rc == 0 && ret != NULL)
        *ret = r;
    else if (r != NULL)
        free_request(r);
    return rc < 0 ? fail(c, like, rc, err) : 0;
}

/* ---- client.h ------------------------------------------------------------------ */

int s3_split(const char *url, char ret_bucket[64], char **ret_prefix, struct err *err)
{
    (void)str_copy(ret_bucket, 64, "sim");
    *ret_prefix = str_dup(url + strlen("s3://sim/"));
    return 0;
}

int s3_open(const struct s3_options *o, struct s3 **ret, struct err *err)
{
    struct s3 *c = mem_alloc(sizeof(*c));
    *c = (struct s3){.process = fiber_process(),
                     .tries = o->tries ? o->tries : TRIES,
                     .patience_ms = 1000ull * (o->first_stall_s ? o->first_stall_s : STALL_S)};
    *ret = c;
    return 0;
}

void s3_stop(struct s3 *c)
{
    c->stopping = true;
    fiber_wake(c);
}

void s3_close(struct s3 *c)
{
    mem_free(c);
}

const char *s3_where(const struct s3 *c)
{
    return "https://store.example.org/sim";
}

struct s3_health s3_health(struct s3 *c)
{
    struct s3_health h = {.requests = c->requests,
                          .repeats = c->repeats,
                          .failing_since_unix_ms = c->failing_since_unix_ms};
    if (h.failing_since_unix_ms != 0)
        (void)str_copy(h.error, sizeof(h.error), "the store does not answer");
    return h;
}

bool s3_may_pass(int code)
{
    return code == -EAGAIN;
}

static int put(struct s3 *c, enum what what, const char *key, const void *data, size_t len,
               struct err *err)
{
    const struct request r = {
        .what = what, .key = (char *)(uintptr_t)key, .data = (void *)(uintptr_t)data, .len = len};
    return ask(c, &r, NULL, err);
}

int s3_put(struct s3 *c, const char *key, const char *path, uint64_t size, const uint8_t sha256[32],
           struct err *err)
{
    uint8_t got[HASH_BYTES];
    struct buf b;
    int rc = file_read(path, OBJECT_MAX, &b, err);
    if (rc < 0)
        return rc;
    hash_sha256(b.data, b.len, got);
    if (b.len != size || memcmp(got, sha256, sizeof(got)) != 0)
        rc = err_set(err, -ERR_HASH, "the store got other bytes than announced");
    else
        rc = put(c, PUT, key, b.data, b.len, err);
    buf_release(&b);
    return rc;
}

int s3_put_text(struct s3 *c, const char *key, const char *text, struct err *err)
{
    return put(c, PUT, key, text, strlen(text), err);
}

bool s3_takes_both(struct s3 *c, const char *stem)
{
    return false;
}

int s3_put_new(struct s3 *c, const char *key, const void *data, size_t len, struct err *err)
{
    return put(c, PUT_NEW, key, data, len, err);
}

static int get(struct s3 *c, const char *key, struct request **ret, struct err *err)
{
    return ask(c, &(struct request){.what = GET, .key = (char *)(uintptr_t)key}, ret, err);
}

static int get_sized(struct s3 *c, const char *key, uint64_t size, struct request **ret,
                     struct err *err)
{
    const int rc = get(c, key, ret, err);
    if (rc < 0 || (*ret)->got.len == size)
        return rc;
    free_request(*ret);
    return err_set(err, -ERR_FORMAT, "%s has another size", key);
}

int s3_get(struct s3 *c, const char *key, uint64_t from, uint64_t size, s3_sink_fn *sink, void *arg,
           struct err *err)
{
    struct request *r;
    int rc = get_sized(c, key, size, &r, err);
    if (rc < 0)
        return rc;
    rc = sink(arg, r->got.data + from, (size_t)(size - from));
    free_request(r);
    return rc;
}

int s3_get_file(struct s3 *c, const char *key, const char *path, uint64_t size, struct err *err)
{
    struct request *r;
    int rc = get_sized(c, key, size, &r, err);
    if (rc < 0)
        return rc;
    rc = file_write_atomic(path, r->got.data, r->got.len, 0600, err);
    free_request(r);
    return rc;
}

int s3_get_piece(struct s3 *c, const char *key, uint64_t from, uint64_t size, void *data,
                 size_t len, struct err *err)
{
    struct request *r;
    const int rc = get_sized(c, key, size, &r, err);
    if (rc < 0)
        return rc;
    memcpy(data, r->got.data + from, len);
    free_request(r);
    return 0;
}

int s3_get_all(struct s3 *c, const char *key, struct buf *ret, struct err *err)
{
    struct request *r;
    int rc = get(c, key, &r, err);
    if (rc < 0)
        return rc;
    rc = buf_append(ret, r->got.data, r->got.len);
    free_request(r);
    return rc < 0 ? err_set(err, rc, "%s is too large", key) : 0;
}

int s3_get_text(struct s3 *c, const char *key, char *ret, size_t cap, struct err *err)
{
    struct request *r;
    int rc = get(c, key, &r, err);
    if (rc < 0)
        return rc;
    if (r->got.len >= cap)
        rc = err_set(err, -ERR_LIMIT, "%s is too large", key);
    else
        (void)snprintf(ret, cap, "%s", buf_str(&r->got));
    free_request(r);
    return rc;
}

/* Workers here go through the coordinator. */
int s3_head(struct s3 *c, const char *key, uint64_t *ret_size, char ret_sum[S3_SUM_MAX],
            struct err *err)
{
    sim_fail("somebody looks whether a worker has put %s", key);
}

int s3_presign(struct s3 *c, const char *key, uint64_t size, const uint8_t sha256[32],
               uint32_t life_s, char **ret_url)
{
    sim_fail("somebody is led to %s", key);
}

int s3_delete(struct s3 *c, const char *key, struct err *err)
{
    const struct request r = {.what = DELETE, .key = (char *)(uintptr_t)key};
    return ask(c, &r, NULL, err);
}

int s3_list(struct s3 *c, const char *prefix, s3_list_fn *fn, void *arg, struct err *err)
{
    struct request *r;
    const struct request like = {.what = LIST, .key = (char *)(uintptr_t)prefix};
    int rc = ask(c, &like, &r, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < r->n_found && rc == 0; i++)
        rc = fn(arg, r->found[i].key, r->found[i].len, 0);
    free_request(r);
    return rc;
}

/* ---- the world's side ------------------------------------------------------------ */

void store_begin(void)
{
    memset(&store, 0, sizeof(store));
}

void store_end(void)
{
    while (store.n > 0)
        drop(&store.all[0]);
    for (size_t i = 0; i < store.n_entries; i++)
        mem_free(store.entries[i].key);
    for (size_t i = 0; i < store.n_excused; i++)
        mem_free(store.excused[i]);
    mem_free(store.all);
    mem_free(store.entries);
    mem_free(store.excused);
}

void store_hurt(unsigned in_thousand, uint64_t most_ms)
{
    sim_say("of a thousand requests to the store %u go wrong, and they take up to %llu ms",
            in_thousand, (unsigned long long)most_ms);
    store.bad = in_thousand;
    store.most_ms = most_ms;
}

void store_cut(unsigned process)
{
    sim_say("process %u cannot reach the store", process);
    store.cut = process != 0 ? process : CUT_ALL;
}

void store_heal(void)
{
    store.bad = store.cut = 0;
    store.most_ms = 0;
}

void store_kill(unsigned process)
{
    if (process >= PROCESSES_MAX)
        sim_fail("more than %d processes", PROCESSES_MAX);
    store.gone[process] = true;
}

bool store_is_gone(unsigned process)
{
    return store.gone[process];
}

void store_is_for(unsigned process)
{
    store.with_disk = process;
}

bool store_has_blob(const struct blob_id *id)
{
    char hex[BLOB_HEX_MAX];
    uint8_t got[HASH_BYTES];
    blob_id_hex(id, hex);
    char *key = str_printf("%s%s", BLOB_KEY, hex);
    const struct object *o = find(key);
    if (o != NULL)
        hash_sha256(o->data, o->len, got);
    const bool has = o != NULL ? memcmp(got, id->sha256, sizeof(got)) == 0 : is_excused(key);
    mem_free(key);
    return has;
}

bool store_is_busy(struct blobstore *s, const struct blob_id *id)
{
    const struct blob_s3_object *e = blob_s3_find((struct blob_s3 *)(void *)s, id);
    return e != NULL && e->busy;
}

size_t store_count(const char *prefix)
{
    size_t n = 0;
    for (size_t i = 0; i < store.n; i++)
        n += str_starts(store.all[i].key, prefix);
    return n;
}

uint64_t store_entries(void)
{
    return store.n_entries;
}
