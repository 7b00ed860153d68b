#include "coordinator/ship/restore.h"

#include "common/base/crew.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/net/s3/log.h"
#include "coordinator/ship/ship.h"
#include "coordinator/ship/ship_keys.h"
#include "coordinator/state/persist.h"
#include "coordinator/state/place.h"
#include "coordinator/state/store.h"

#define TRIES 8 /* the owner may go on meanwhile, and remove what we are about to read */
#define SNAPSHOTS_MAX 16

struct restore {
    const struct coordinator_options *o;
    struct s3 *c;
    char *prefix;
    struct s3_log log;
    struct buf raw;
    char *path; /* the database's, until it is whole */
    struct store *store;
    bool stuck;   /* it did not take an entry: none after that may follow */
    bool damaged; /* a newer snapshot is */
    struct store_noted noted;
    struct restore_result *result;
};

static int no_state(const struct restore *r, struct err *err)
{
    return err_set(err, -ERR_NOTFOUND,
                   "there is no coordinator's state below %s: only a coordinator that runs with "
                   "--store-state on that store keeps one there",
                   r->o->store);
}

/* ---- the snapshot ---- */

static int download(struct restore *r, const struct s3_log_snapshot *s, struct err *err)
{
    uint8_t got[HASH_BYTES];
    char *key = s3_log_snapshot_key(&r->log, s);
    int rc = s3_get_file(r->c, key, r->path, s->size, err);
    if (rc == 0)
        rc = hash_file(r->path, got, NULL, err);
    if (rc == 0 && !hash_equal(got, s->sha256, sizeof(got)))
        rc = err_set(err, -ERR_HASH, "the snapshot %s in the store is damaged", key);
    mem_free(key);
    return rc;
}

/* None of the snapshots up to `newest` was there or counted.  If there is a newer one by now, the
 * owner has replaced them while we looked: -EAGAIN. */
static int none_found(struct restore *r, uint64_t newest, struct err *err)
{
    struct s3_log_snapshot *all = NULL;
    size_t n = 0;
    int rc = s3_log_snapshots(&r->log, SNAPSHOTS_MAX, &all, &n, err);
    if (rc == 0 && n > 0 && all[0].seq > newest)
        rc = err_set(err, -EAGAIN,
                     "the owner of the state below %s has replaced its snapshots while they were "
                     "read",
                     r->o->store);
    else if (rc == 0)
        rc = no_state(r, err);
    mem_free(all);
    return rc;
}

/* Fetches the newest valid snapshot; if it is damaged, the one before. */
static int fetch_snapshot(struct restore *r, struct err *err)
{
    struct s3_log_snapshot *all = NULL;
    size_t n = 0;
    int rc = s3_log_snapshots(&r->log, SNAPSHOTS_MAX, &all, &n, err), found = -ERR_NOTFOUND;
    r->damaged = r->stuck = false;
    for (size_t i = 0; rc == 0 && found < 0 && i < n; i++) {
        bool counts = false;
        rc = s3_log_counts(&r->log, &all[i], &counts, err);
        if (rc == 0 && counts)
            found = download(r, &all[i], err);
        if (found == 0) {
            r->log.seq = r->result->snapshot = all[i].seq;
            memcpy(r->log.hash, all[i].hash, sizeof(r->log.hash));
        } else if (found != -ERR_NOTFOUND && found != -ERR_HASH && found != -ERR_FORMAT) {
            rc = found;
        }
        r->damaged |= found == -ERR_HASH || found == -ERR_FORMAT;
    }
    const uint64_t newest = n > 0 ? all[0].seq : 0;
    mem_free(all);
    if (rc == 0 && found == -ERR_NOTFOUND)
        return none_found(r, newest, err);
    return rc == 0 ? found : rc;
}

/* ---- the entries after it ---- */

/* The entry begins with rows that our snapshot lacks.  If no newer one is damaged, the owner has
 * just made one: -EAGAIN. */
static int is_beyond(const struct restore *r, const struct s3_log_entry *e, struct err *err)
{
    return err_set(err, r->damaged ? -ERR_HASH : -EAGAIN,
                   "the state below %s has rows at entry %" PRIu64
                   " that only snapshots from there on have: if these are damaged, bring one back "
                   "from an older version of the object, or from a copy of the bucket",
                   r->o->store, e->seq);
}

static int replay(struct restore *r, const struct s3_log_entry *e, struct err *err)
{
    if (ship_is_ahead(e))
        return is_beyond(r, e, err);
    memcpy(r->noted.owner, e->owner, sizeof(e->owner));
    memcpy(r->noted.hash, e->hash, sizeof(e->hash));
    r->noted.seq = e->seq;
    r->result->entries++;
    return store_replay(r->store, e->body, e->kind == S3_LOG_ROWS ? e->len : 0, &r->noted, err);
}

static int read_all(struct restore *r, struct err *err)
{
    struct s3_log_entry e;
    int rc;
    while ((rc = s3_log_read(&r->log, &r->raw, &e, err)) == 0)
        if ((rc = replay(r, &e, err)) < 0) {
            r->stuck = true;
            return rc;
        }
    return rc == -ERR_NOTFOUND ? 0 : rc;
}

/* Takes the log over: the next entry is ours, whoever owned the log. */
static int take_over(struct restore *r, struct err *err)
{
    char who[SHIP_WHO_MAX];
    int rc, passing = 0;
    ship_who(who);
    s3_log_ahead(&r->log, CREW_MAX);
    hash_random(r->log.owner, sizeof(r->log.owner));
    do {
        rc = read_all(r, err);
        if (rc == 0)
            rc = s3_log_next(&r->log, S3_LOG_OWNER, who, strlen(who), err);
        if (rc == 0)
            rc = s3_log_send(&r->log, err);
        passing += rc < 0 && rc != -ERR_STALE;
    } while (!r->stuck && (rc == -ERR_STALE || (rc < 0 && s3_may_pass(rc) && passing < TRIES)));
    if (rc < 0)
        return rc;
    memcpy(r->noted.owner, r->log.owner, sizeof(r->log.owner));
    memcpy(r->noted.hash, r->log.hash, sizeof(r->log.hash));
    r->noted.seq = r->result->owned = r->log.seq;
    return s3_log_check(&r->log, err);
}

/* The next snapshot comes in its place; until then the file marks the restore. */
static void close_database(struct restore *r)
{
    static const char *const ends[] = {"-wal", "-shm"};
    store_close(r->store);
    r->store = NULL;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        char *path = str_printf("%s%s", r->path, ends[i]);
        (void)file_remove(path, NULL);
        mem_free(path);
    }
}

static int make_database(struct restore *r, struct err *err)
{
    int rc = -EAGAIN;
    for (int n = 0; n < TRIES && (rc == -EAGAIN || rc == -ERR_STALE); n++) {
        close_database(r);
        *r->result = (struct restore_result){0};
        rc = fetch_snapshot(r, err);
        if (rc == 0)
            rc = store_open(r->path, NULL, &r->store, err);
        if (rc == 0) /* an older release must not depose one whose state it cannot read */
            rc = store_check(r->store, &persist_schema, err);
        if (rc == 0)
            rc = take_over(r, err);
    }
    if (rc == 0)
        rc = store_note(r->store, &r->noted, err);
    store_close(r->store);
    r->store = NULL;
    return rc == -ERR_STALE ? -EAGAIN : rc; /* a later try may be in time */
}

/* ---- the rest ---- */

static int fetch_keys(struct restore *r, struct buf *ret, struct err *err)
{
    char *key = str_printf("%s/keys", r->prefix);
    const int rc = s3_get_all(r->c, key, ret, err);
    mem_free(key);
    return rc == -ERR_NOTFOUND ? no_state(r, err) : rc;
}

int restore_state(const struct coordinator_options *o, struct restore_result *ret, struct err *err)
{
    struct restore r = {.o = o, .result = ret};
    struct buf keys;
    char *whole = file_join(o->data_dir, "coordinator.db");
    int rc = place_begin(o->data_dir, err);
    const bool begun = rc == 0;
    if (rc == 0)
        rc = place_open_state(o, &(struct s3_options){0}, &r.c, &r.prefix, err);
    r.path = file_join(o->data_dir, PLACE_BEGUN);
    buf_init(&r.raw, S3_LOG_ENTRY_MAX);
    s3_log_init(&r.log, &s3_log_of_client, r.c, r.prefix);
    if (rc == 0)
        rc = s3_log_probe(&r.log, err);
    buf_init(&keys, SHIP_KEYS_MAX);
    if (rc == 0) /* before the owner is deposed, since nobody could go on without them */
        rc = fetch_keys(&r, &keys, err);
    if (rc == 0)
        rc = ship_keys_write(o->data_dir, buf_str(&keys), err);
    if (rc == 0)
        rc = place_remember(o, err);
    if (rc == 0)
        rc = make_database(&r, err);
    if (rc == 0)
        rc = file_rename(r.path, whole, err);
    if (rc < 0 && begun)
        place_undo(o->data_dir);
    s3_log_release(&r.log);
    buf_release(&r.raw);
    buf_release(&keys);
    s3_close(r.c);
    mem_free(r.path);
    mem_free(r.prefix);
    mem_free(whole);
    return rc;
}
