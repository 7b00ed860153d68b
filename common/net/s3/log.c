#include "common/net/s3/log.h"

#include "common/base/crew.h"
#include "common/base/hash.h"

#define MAGIC "SKERRY-LOG 1\n"
#define MAGIC_BYTES 16
#define HEAD_BYTES 96
#define SMALL_BYTES 1024 /* the most bytes of an OWNER entry */
#define LISTED_MAX 1000000

struct head {
    char magic[MAGIC_BYTES];
    uint64_t kind, seq, len, zero;
    uint8_t owner[S3_LOG_OWNER_BYTES], before[S3_LOG_HASH_BYTES];
};
_Static_assert(sizeof(struct head) == HEAD_BYTES, "the format of an entry");

/* Entries that were read ahead. */
struct s3_log_held {
    unsigned threads;
    uint64_t first;               /* the number of the first; 0: none were read */
    struct buf entries[CREW_MAX]; /* an empty one was not there, or could not be read */
};

static int client_put_new(void *arg, const char *key, const void *data, size_t len, struct err *err)
{
    return s3_put_new(arg, key, data, len, err);
}

static int client_get(void *arg, const char *key, struct buf *ret, struct err *err)
{
    return s3_get_all(arg, key, ret, err);
}

static int client_list(void *arg, const char *prefix, s3_list_fn *fn, void *fn_arg, struct err *err)
{
    return s3_list(arg, prefix, fn, fn_arg, err);
}

static int client_remove(void *arg, const char *key, struct err *err)
{
    return s3_delete(arg, key, err);
}

static bool client_takes_both(void *arg, const char *stem)
{
    return s3_takes_both(arg, stem);
}

const struct s3_log_ops s3_log_of_client = {client_put_new, client_get, client_list, client_remove,
                                            client_takes_both};

void s3_log_init(struct s3_log *log, const struct s3_log_ops *ops, void *arg, const char *prefix)
{
    *log = (struct s3_log){.ops = ops, .arg = arg, .prefix = prefix};
    buf_init(&log->out, S3_LOG_ENTRY_MAX);
}

void s3_log_release(struct s3_log *log)
{
    for (size_t i = 0; log->held && i < CREW_MAX; i++)
        buf_release(&log->held->entries[i]);
    mem_free(log->held);
    buf_release(&log->out);
}

static char *entry_key(const struct s3_log *log, uint64_t seq)
{
    return str_printf("%s/log/%016" PRIx64, log->prefix, seq);
}

int s3_log_probe(struct s3_log *log, struct err *err)
{
    char *key = str_printf("%s/probe", log->prefix);
    int rc = log->ops->put_new(log->arg, key, "probe", 5, err);
    if (rc == 0) /* now the object exists */
        rc = log->ops->put_new(log->arg, key, "probe", 5, err);
    const bool both = rc == -EEXIST && log->ops->takes_both(log->arg, key);
    mem_free(key);
    if (both)
        return err_set(err, -ERR_UNIMPLEMENTED,
                       "this store takes both of two conditional writes (If-None-Match) that come "
                       "at once, so two coordinators could own one state: start without "
                       "--store-state, or use a store that takes one");
    if (rc == 0 || rc == -ERR_UNIMPLEMENTED)
        return err_set(err, -ERR_UNIMPLEMENTED,
                       "this store has no conditional writes (If-None-Match), without which two "
                       "coordinators could own one state: start without --store-state, or use a "
                       "store that has them");
    return rc == -EEXIST ? 0 : rc;
}

/* ---- reading ---- */

static int broken(struct err *err, uint64_t seq, const char *what)
{
    return err_set(err, -ERR_FORMAT, "entry %" PRIu64 " of the log in the store %s", seq, what);
}

static int parse(const struct buf *raw, uint64_t seq, struct head *head, struct s3_log_entry *ret,
                 struct err *err)
{
    uint8_t hash[S3_LOG_HASH_BYTES];
    if (raw->len < HEAD_BYTES + sizeof(hash))
        return broken(err, seq, "is cut off");
    memcpy(head, raw->data, sizeof(*head));
    const size_t len = raw->len - HEAD_BYTES - sizeof(hash);
    if (memcmp(head->magic, MAGIC, sizeof(MAGIC)) != 0)
        return err_set(err, -ERR_VERSION,
                       "entry %" PRIu64
                       " of the log in the store is of another release, or of another program",
                       seq);
    hash_sha256(raw->data, HEAD_BYTES + len, hash);
    if (head->len != len || !hash_equal(hash, raw->data + HEAD_BYTES + len, sizeof(hash)))
        return broken(err, seq, "is damaged");
    if (head->seq != seq || (head->kind != S3_LOG_ROWS && head->kind != S3_LOG_OWNER))
        return broken(err, seq, "says that it is another one");
    *ret = (struct s3_log_entry){.kind = (enum s3_log_kind)head->kind,
                                 .seq = seq,
                                 .body = raw->data + HEAD_BYTES,
                                 .len = len};
    memcpy(ret->owner, head->owner, sizeof(ret->owner));
    memcpy(ret->hash, hash, sizeof(ret->hash));
    return 0;
}

static int fetch(struct s3_log *log, uint64_t seq, struct buf *raw, struct err *err)
{
    char *key = entry_key(log, seq);
    buf_clear(raw);
    const int rc = log->ops->get(log->arg, key, raw, err);
    mem_free(key);
    return rc;
}

static int get(struct s3_log *log, uint64_t seq, struct buf *raw, struct head *head,
               struct s3_log_entry *ret, struct err *err)
{
    const int rc = fetch(log, seq, raw, err);
    return rc == 0 ? parse(raw, seq, head, ret, err) : rc;
}

int s3_log_get(struct s3_log *log, uint64_t seq, struct buf *raw, struct s3_log_entry *ret,
               struct err *err)
{
    struct head head;
    return get(log, seq, raw, &head, ret, err);
}

/* ---- reading ahead ---- */

void s3_log_ahead(struct s3_log *log, unsigned threads)
{
    if (!log->held) {
        log->held = mem_alloc(sizeof(*log->held));
        for (size_t i = 0; i < CREW_MAX; i++)
            buf_init(&log->held->entries[i], S3_LOG_AHEAD_BYTES);
    }
    log->held->threads = threads;
    log->held->first = 0;
}

static int hold(void *arg, size_t i, unsigned thread, struct err *err)
{
    struct s3_log *log = arg;
    struct buf *raw = &log->held->entries[i];
    if (fetch(log, log->held->first + i, raw, err) < 0)
        buf_clear(raw); /* whoever needs it asks again, and hears why */
    return 0;
}

/* The entry, if it was read ahead; reads it and those after it ahead, if that was not tried. */
static const struct buf *held(struct s3_log *log, uint64_t seq)
{
    struct s3_log_held *h = log->held;
    if (!h)
        return NULL;
    if (h->first == 0 || seq < h->first || seq - h->first >= CREW_MAX) {
        h->first = seq;
        (void)crew_run(h->threads, CREW_MAX, hold, log, NULL);
    }
    const struct buf *raw = &h->entries[seq - h->first];
    return raw->len > 0 ? raw : NULL;
}

int s3_log_read(struct s3_log *log, struct buf *raw, struct s3_log_entry *ret, struct err *err)
{
    struct head head;
    const uint64_t seq = log->seq + 1;
    const struct buf *ahead = held(log, seq);
    const int rc = ahead ? parse(ahead, seq, &head, ret, err) : get(log, seq, raw, &head, ret, err);
    if (rc < 0)
        return rc;
    if (!hash_equal(head.before, log->hash, sizeof(head.before)))
        return broken(err, log->seq + 1, "does not follow the one before it");
    log->seq++;
    memcpy(log->hash, ret->hash, sizeof(log->hash));
    return 0;
}

/* ---- listing ---- */

/* "…/log/<N>" and "…/snapshot/<N>-<hash>-<sha256>". */
static bool read_name(const char *key, const char *folder, size_t skip, struct s3_log_snapshot *ret)
{
    const char *name = strlen(key) > skip ? key + skip : "";
    uint8_t n[8];
    char hex[65];
    if (!str_starts(name, folder))
        return false;
    name += strlen(folder);
    const size_t want = strcmp(folder, "/log/") == 0 ? 16 : 16 + 1 + 64 + 1 + 64;
    if (strlen(name) != want)
        return false;
    (void)snprintf(hex, sizeof(hex), "%.16s", name);
    if (hash_unhex(hex, n, sizeof(n)) < 0)
        return false;
    ret->seq = 0;
    for (size_t i = 0; i < sizeof(n); i++)
        ret->seq = ret->seq << 8 | n[i];
    if (want == 16)
        return true;
    (void)snprintf(hex, sizeof(hex), "%.64s", name + 17);
    if (name[16] != '-' || name[81] != '-' || hash_unhex(hex, ret->hash, sizeof(ret->hash)) < 0)
        return false;
    return hash_unhex(name + 82, ret->sha256, sizeof(ret->sha256)) >= 0;
}

struct names {
    const struct s3_log *log;
    const char *folder;
    struct s3_log_snapshot *at;
    size_t n, cap;
};

static int on_name(void *arg, const char *key, uint64_t size, int64_t modified_s)
{
    struct names *names = arg;
    struct s3_log_snapshot s = {.size = size};
    if (!read_name(key, names->folder, strlen(names->log->prefix), &s))
        return 0; /* another program's */
    if (names->n == LISTED_MAX)
        return -ERR_LIMIT;
    if (names->n == names->cap) {
        names->cap = names->cap ? 2 * names->cap : 64;
        names->at = mem_realloc(names->at, names->cap * sizeof(*names->at));
    }
    names->at[names->n++] = s;
    return 0;
}

static int newest_first(const void *a, const void *b)
{
    const struct s3_log_snapshot *x = a, *y = b;
    return x->seq > y->seq ? -1 : x->seq < y->seq;
}

static int list(struct s3_log *log, const char *folder, struct names *ret, struct err *err)
{
    char *prefix = str_printf("%s%s", log->prefix, folder);
    *ret = (struct names){.log = log, .folder = folder};
    const int rc = log->ops->list(log->arg, prefix, on_name, ret, err);
    if (ret->n > 0)
        qsort(ret->at, ret->n, sizeof(*ret->at), newest_first);
    mem_free(prefix);
    return rc == -ERR_LIMIT ? err_set(err, rc, "the log in the store has too many entries") : rc;
}

static int highest(struct s3_log *log, const char *folder, uint64_t *ret, struct err *err)
{
    struct names names;
    const int rc = list(log, folder, &names, err);
    *ret = rc == 0 && names.n > 0 ? names.at[0].seq : 0;
    mem_free(names.at);
    return rc;
}

int s3_log_top(struct s3_log *log, uint64_t *ret, struct err *err)
{
    uint64_t entry, snapshot = 0;
    int rc = highest(log, "/log/", &entry, err);
    if (rc == 0)
        rc = highest(log, "/snapshot/", &snapshot, err);
    if (rc == 0)
        *ret = entry > snapshot ? entry : snapshot;
    return rc;
}

int s3_log_snapshots(struct s3_log *log, size_t max, struct s3_log_snapshot **ret, size_t *ret_n,
                     struct err *err)
{
    struct names names;
    const int rc = list(log, "/snapshot/", &names, err);
    if (rc < 0) {
        mem_free(names.at);
        return rc;
    }
    *ret = names.at;
    *ret_n = names.n < max ? names.n : max;
    return 0;
}

char *s3_log_snapshot_key(const struct s3_log *log, const struct s3_log_snapshot *s)
{
    char hash[65], sha256[65];
    return str_printf("%s/snapshot/%016" PRIx64 "-%s-%s", log->prefix, s->seq,
                      hash_hex(s->hash, sizeof(s->hash), hash),
                      hash_hex(s->sha256, sizeof(s->sha256), sha256));
}

int s3_log_counts(struct s3_log *log, const struct s3_log_snapshot *s, bool *ret, struct err *err)
{
    struct buf raw;
    struct s3_log_entry e;
    buf_init(&raw, S3_LOG_ENTRY_MAX);
    const int rc = s3_log_get(log, s->seq, &raw, &e, err);
    buf_release(&raw);
    *ret = rc == 0 && hash_equal(e.hash, s->hash, sizeof(e.hash));
    return rc == -ERR_NOTFOUND ? 0 : rc;
}

/* ---- writing ---- */

int s3_log_next(struct s3_log *log, enum s3_log_kind kind, const void *body, size_t len,
                struct err *err)
{
    struct head head = {.magic = MAGIC, .kind = kind, .seq = log->seq + 1, .len = len};
    memcpy(head.owner, log->owner, sizeof(head.owner));
    memcpy(head.before, log->hash, sizeof(head.before));
    buf_clear(&log->out);
    if (buf_append(&log->out, &head, sizeof(head)) < 0 || buf_append(&log->out, body, len) < 0)
        return err_set(err, -ERR_LIMIT, "a commit is too large for the log in the store");
    hash_sha256(log->out.data, log->out.len, log->out_hash);
    if (buf_append(&log->out, log->out_hash, sizeof(log->out_hash)) < 0)
        return err_set(err, -ERR_LIMIT, "a commit is too large for the log in the store");
    return 0;
}

/* The number is taken: compares the entry, which may be from a try whose answer was lost. */
static int compare(struct s3_log *log, struct err *err)
{
    struct buf raw;
    struct s3_log_entry e;
    buf_init(&raw, S3_LOG_ENTRY_MAX);
    int rc = s3_log_get(log, log->seq + 1, &raw, &e, err);
    if (rc == 0 && (raw.len != log->out.len || memcmp(raw.data, log->out.data, raw.len) != 0)) {
        char who[129];
        (void)snprintf(who, sizeof(who), "%.*s",
                       e.kind == S3_LOG_OWNER ? (int)(e.len < 128 ? e.len : 128) : 0, e.body);
        rc = err_set(err, -ERR_STALE,
                     "another coordinator%s%s goes on with this state: entry %" PRIu64
                     " of the log in the store is its own",
                     *who ? ", " : "", who, e.seq);
    } else if (rc == -ERR_VERSION) { /* in no case this one */
        rc = err_set(err, -ERR_STALE,
                     "another coordinator goes on with this state: entry %" PRIu64
                     " of the log in the store is of another release",
                     log->seq + 1);
    } else if (rc == -ERR_NOTFOUND) {
        rc = err_set(
            err, -EAGAIN,
            "the store says both that it has an object and that it has none: it is asked again");
    }
    buf_release(&raw);
    return rc;
}

int s3_log_send(struct s3_log *log, struct err *err)
{
    char *key = entry_key(log, log->seq + 1);
    int rc = log->ops->put_new(log->arg, key, log->out.data, log->out.len, err);
    mem_free(key);
    if (rc == -EEXIST)
        rc = compare(log, err);
    if (rc == 0) {
        log->seq++;
        memcpy(log->hash, log->out_hash, sizeof(log->hash));
    }
    return rc;
}

int s3_log_check(struct s3_log *log, struct err *err)
{
    uint64_t entry, snapshot = 0;
    int rc = highest(log, "/log/", &entry, err);
    if (rc == 0)
        rc = highest(log, "/snapshot/", &snapshot, err);
    if (rc == 0 && (entry > log->seq || snapshot > log->seq))
        rc = err_set(err, -ERR_STALE, "the log in the store went on meanwhile: it is read again");
    return rc;
}

/* ---- cleaning ---- */

static int remove_entry(struct s3_log *log, const struct s3_log_snapshot *s, struct buf *raw,
                        struct err *err)
{
    struct s3_log_entry e = {.kind = S3_LOG_ROWS};
    int rc = s->size <= SMALL_BYTES ? s3_log_get(log, s->seq, raw, &e, err) : 0;
    if (rc == 0 && e.kind == S3_LOG_ROWS) {
        char *key = entry_key(log, s->seq);
        rc = log->ops->remove(log->arg, key, err);
        mem_free(key);
    }
    return rc == -ERR_NOTFOUND ? 0 : rc;
}

static int remove_snapshot(struct s3_log *log, const struct s3_log_snapshot *s, struct err *err)
{
    char *key = s3_log_snapshot_key(log, s);
    const int rc = log->ops->remove(log->arg, key, err);
    mem_free(key);
    return rc == -ERR_NOTFOUND ? 0 : rc;
}

/* Snapshots go first: none may be left without the entries after it. */
int s3_log_clean(struct s3_log *log, uint64_t seq, struct err *err)
{
    struct names names;
    struct buf raw;
    int rc = list(log, "/snapshot/", &names, err);
    for (size_t i = 0; rc == 0 && i < names.n; i++)
        rc = names.at[i].seq < seq ? remove_snapshot(log, &names.at[i], err) : 0;
    mem_free(names.at);
    if (rc < 0)
        return rc;
    buf_init(&raw, S3_LOG_ENTRY_MAX);
    rc = list(log, "/log/", &names, err);
    for (size_t i = 0; rc == 0 && i < names.n; i++)
        if (names.at[i].seq < seq && names.at[i].seq >= log->gone)
            rc = remove_entry(log, &names.at[i], &raw, err);
    if (rc == 0)
        log->gone = seq;
    mem_free(names.at);
    buf_release(&raw);
    return rc;
}
