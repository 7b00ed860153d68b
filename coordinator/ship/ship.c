#include "coordinator/ship/ship.h"

#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "coordinator/ship/ship_keys.h"
#include "coordinator/state/place.h"

#define FIRST_STALL_S 1 /* short, since an answer waits, and a small write may be sent twice */
#define STALL_S 4
#define PAUSE_MS 100u
#define PAUSE_MAX_MS 2000u
#define LOOK_MS 2000u
#define SIGN_MS 3000u
#define OWN_TRIES 8
#define AHEAD ", with rows that only its snapshot has" /* ends an owner's entry */
/* Most entries after the newest snapshot, all of which a restore reads one by one. */
#define ENTRIES_MAX 1024u
#define ENTRIES_BYTES_MAX ((uint64_t)16 << 20) /* or as many as the database has */
#define SPARE_BYTES ((uint64_t)16 << 20)       /* left on the disk beside a copy of the database */

struct ship {
    struct s3 *entries, *bulk;
    char *prefix, *data_dir;
    struct s3_log log;  /* of the sender: ship_own(), then the writer thread */
    struct s3_log look; /* tried as often as usual: of the start, then of our thread */
    struct store_away away;
    uint64_t since, since_bytes; /* entries after the newest snapshot; writer thread */
    uint64_t size;               /* of the newest snapshot; as these */
    char who[SHIP_WHO_MAX];
    pthread_t thread, sign;
    bool started, signs;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    bool stopping, ending, lost;
    bool begun;    /* the loop turns; before that the coordinator is opening */
    bool turned;   /* the loop has turned since the last sign of life */
    bool given_up; /* it is unknown whether an entry was written: no other may take its number */
    uint64_t seq;  /* log's */
    bool sending;
    char why[512];                      /* why the log is lost, or the store's last error */
    struct s3_log_snapshot made;        /* waits to be sent; seq 0: none */
    struct s3_log_snapshot sent_before; /* the one before the newest: older entries may go */
};

/* ---- one entry ---- */

static void wait_ms(struct ship *s, uint32_t ms)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t ns = until.tv_nsec + (int64_t)ms * 1000000;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    (void)pthread_cond_timedwait(&s->changed, &s->lock, &until);
}

/* Under the lock. */
static void lose(struct ship *s, const char *why)
{
    if (!s->lost)
        (void)str_copy(s->why, sizeof(s->why), why);
    s->lost = true;
}

/* Sends an entry until it is there, or is another's, or the tries (0: for ever) are used up. */
static int send_entry(struct ship *s, unsigned tries, struct err *err)
{
    struct err why = {0};
    uint32_t pause = PAUSE_MS;
    bool said = false;
    pthread_mutex_lock(&s->lock);
    s->sending = true;
    for (unsigned n = 1;; n++) {
        int rc = -ERR_STALE;
        if (!s->lost) {
            pthread_mutex_unlock(&s->lock);
            rc = s3_log_send(&s->log, &why);
            pthread_mutex_lock(&s->lock);
        } else {
            (void)str_copy(why.msg, sizeof(why.msg), s->why);
        }
        if (rc == -ERR_STALE)
            lose(s, why.msg);
        else
            (void)str_copy(s->why, sizeof(s->why), rc < 0 ? why.msg : "");
        if (rc < 0 && rc != -ERR_STALE && !s->ending && n != tries) {
            if (!said && n > 2)
                log_warn("ship", "%s; nothing is acknowledged until the store takes it", why.msg);
            said = said || n > 2;
            wait_ms(s, pause);
            pause = pause < PAUSE_MAX_MS ? 2 * pause : PAUSE_MAX_MS;
            continue;
        }
        if (rc == 0 && said)
            log_info("ship", "the store takes the state again, going on");
        s->seq = s->log.seq;
        s->sending = false;
        s->given_up = s->given_up || rc < 0;
        pthread_mutex_unlock(&s->lock);
        return rc < 0 ? err_set(err, rc, "%s", why.msg) : 0;
    }
}

static int away_next(void *arg, const void *rows, size_t len, uint64_t *ret_seq,
                     uint8_t ret_hash[32], struct err *err)
{
    struct ship *s = arg;
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    if (s->lost)
        rc = err_set(err, -ERR_STALE, "%s", s->why);
    else if (s->given_up)
        rc = err_set(err, -ERR_CANCELLED, "the store did not take the state before the end");
    pthread_mutex_unlock(&s->lock);
    if (rc == 0)
        rc = s3_log_next(&s->log, S3_LOG_ROWS, rows, len, err);
    *ret_seq = s->log.seq + 1;
    memcpy(ret_hash, s->log.out_hash, sizeof(s->log.out_hash));
    return rc;
}

/* ---- snapshots ---- */

static char *copy_path(const struct ship *s)
{
    return file_join(s->data_dir, "coordinator.db.away");
}

static void drop_copy(const char *path)
{
    char *journal = str_printf("%s-journal", path);
    (void)file_remove(path, NULL); /* or the next copy replaces it */
    (void)file_remove(journal, NULL);
    mem_free(journal);
}

/* A copy must not take the room that commits need. */
static int check_room(const struct ship *s, const char *database, struct err *err)
{
    struct stat st;
    uint64_t room = 0;
    char size[STR_HUMAN_MAX], left[STR_HUMAN_MAX];
    if (stat(database, &st) < 0 || file_disk_free(s->data_dir, &room, NULL) < 0 ||
        room >= (uint64_t)st.st_size + SPARE_BYTES)
        return 0;
    return err_set(err, -ENOSPC,
                   "the disk of %s has %s left, too little for a copy of the database of %s: make "
                   "room there",
                   s->data_dir, str_human_bytes(room, left),
                   str_human_bytes((uint64_t)st.st_size, size));
}

/* A copy of the database, as large as that; only its writer may ask for it, and sends it next. */
static int make_copy(struct ship *s, struct s3_log_snapshot *ret, struct err *err)
{
    char *from = file_join(s->data_dir, "coordinator.db"), *to = copy_path(s);
    drop_copy(to);
    int rc = check_room(s, from, err);
    if (rc == 0)
        rc = store_snapshot(from, to, err);
    if (rc == 0)
        rc = hash_file(to, ret->sha256, &ret->size, err);
    if (rc < 0)
        drop_copy(to);
    else
        s->size = ret->size;
    mem_free(from);
    mem_free(to);
    return rc;
}

static int send_copy(struct ship *s, const struct s3_log_snapshot *made, struct err *err)
{
    char *path = copy_path(s), *key = s3_log_snapshot_key(&s->look, made);
    const int rc = s3_put(s->bulk, key, path, made->size, made->sha256, err);
    drop_copy(path);
    mem_free(path);
    mem_free(key);
    return rc;
}

/* On the writer thread, between two commits.  A failure waits as many entries as a snapshot does,
 * since each try may read and write the whole database. */
static void perhaps_snapshot(struct ship *s)
{
    struct s3_log_snapshot made = {.seq = s->log.seq};
    struct err err = {0};
    pthread_mutex_lock(&s->lock);
    const bool busy = s->made.seq != 0;
    pthread_mutex_unlock(&s->lock);
    const uint64_t most = s->size > ENTRIES_BYTES_MAX ? s->size : ENTRIES_BYTES_MAX;
    if (busy || (s->since < ENTRIES_MAX && s->since_bytes < most))
        return;
    memcpy(made.hash, s->log.hash, sizeof(made.hash));
    s->since = s->since_bytes = 0;
    if (make_copy(s, &made, &err) < 0) {
        log_warn("ship", "making a snapshot for the store failed: %s", err.msg);
        return;
    }
    pthread_mutex_lock(&s->lock);
    s->made = made;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static int away_send(void *arg, struct err *err)
{
    struct ship *s = arg;
    const uint64_t bytes = s->log.out.len;
    int rc = send_entry(s, 0, err);
    if (rc == 0) {
        s->since++;
        s->since_bytes += bytes;
        perhaps_snapshot(s);
    }
    return rc;
}

/* ---- our threads ---- */

void ship_who(char ret[SHIP_WHO_MAX])
{
    char host[65] = "", at[CLOCK_ISO_MAX];
    (void)gethostname(host, sizeof(host) - 1);
    (void)snprintf(ret, SHIP_WHO_MAX, "on %s since %s", host, clock_iso(clock_wall_ms(), at));
}

char *ship_sign_key(const char *prefix)
{
    return str_printf("%s/alive", prefix);
}

static void send_sign(struct ship *s, const char *key, unsigned n)
{
    char *text = str_printf("%u %s", n, s->who);
    (void)s3_put_text(s->bulk, key, text, NULL); /* the next one makes up for a failure */
    mem_free(text);
}

static void send_made(struct ship *s)
{
    struct err err = {0};
    const struct s3_log_snapshot made = s->made, before = s->sent_before;
    pthread_mutex_unlock(&s->lock);
    int rc = send_copy(s, &made, &err);
    if (rc == 0 && before.seq != 0) /* one snapshot stays besides the newest */
        rc = s3_log_clean(&s->look, before.seq, &err);
    if (rc < 0 && rc != -ERR_CANCELLED)
        log_warn("ship", "sending a snapshot to the store failed: %s", err.msg);
    pthread_mutex_lock(&s->lock);
    s->made.seq = 0;
    if (rc == 0)
        s->sent_before = made;
}

/* Checks that the log is still ours, in case nobody commits. */
static void look(struct ship *s, struct buf *raw)
{
    struct s3_log_entry e;
    char why[512] = "another coordinator goes on with this state, as the log in the store says";
    const uint64_t seq = s->seq;
    if (s->sending || s->lost || s->ending)
        return;
    pthread_mutex_unlock(&s->lock);
    const int rc = s3_log_get(&s->look, seq + 1, raw, &e, NULL);
    pthread_mutex_lock(&s->lock);
    if (rc == 0 && s->seq == seq && !s->sending && !s->given_up)
        lose(s, why);
}

static void *run(void *arg)
{
    struct ship *s = arg;
    struct buf raw;
    buf_init(&raw, S3_LOG_ENTRY_MAX);
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        wait_ms(s, LOOK_MS);
        if (s->stopping)
            break;
        if (s->made.seq != 0)
            send_made(s);
        else
            look(s, &raw);
    }
    pthread_mutex_unlock(&s->lock);
    buf_release(&raw);
    return NULL;
}

/* The thread of the sign of life, so that a snapshot on a slow link is not taken for silence. */
static void *show(void *arg)
{
    struct ship *s = arg;
    char *key = ship_sign_key(s->prefix);
    pthread_mutex_lock(&s->lock);
    for (unsigned n = 1; !s->stopping; n++) {
        if ((s->turned || !s->begun) && !s->lost && !s->ending) {
            s->turned = false;
            pthread_mutex_unlock(&s->lock);
            send_sign(s, key, n);
            pthread_mutex_lock(&s->lock);
        }
        const uint64_t until = clock_now_ms() + SIGN_MS;
        for (uint64_t now; !s->stopping && (now = clock_now_ms()) < until;)
            wait_ms(s, (uint32_t)(until - now));
    }
    pthread_mutex_unlock(&s->lock);
    mem_free(key);
    return NULL;
}

/* ---- owning ---- */

static int moved(struct err *err, const struct ship *s, const char *what)
{
    return err_set(
        err, -ERR_STALE,
        "%s: %s; another coordinator has gone on with this state, or this is an old copy "
        "of it: use that one, or coordinatord --restore into a new --data-dir",
        s->data_dir, what);
}

/* Does entry seq exist, and did this data directory write it? */
static int is_ours(struct ship *s, uint64_t seq, const struct store_noted *n, bool *ret_there,
                   struct s3_log_entry *e, struct err *err)
{
    struct buf raw;
    buf_init(&raw, S3_LOG_ENTRY_MAX);
    int rc = s3_log_get(&s->look, seq, &raw, e, err);
    buf_release(&raw);
    *ret_there = rc == 0;
    if (rc == 0 && memcmp(e->owner, n->owner, sizeof(n->owner)) != 0)
        return moved(err, s, "the log in the store is another's");
    return rc == -ERR_NOTFOUND ? 0 : rc;
}

/* The log has none of the newest entries: a successor has removed them, or the store lost them. */
static int is_behind(struct ship *s, uint64_t seen, struct err *err)
{
    uint64_t top = 0;
    const int rc = s3_log_top(&s->look, &top, err);
    if (rc < 0)
        return rc;
    if (top > seen)
        return moved(err, s, "the log in the store lacks what this data dir has seen");
    if (top == 0)
        return err_set(err, -ERR_CONFIG,
                       "the state of %s is gone from the store: bring it back, or, to send it "
                       "anew, start once without --store-state and then with it",
                       s->data_dir);
    return err_set(
        err, -ERR_CONFIG,
        "%s is newer than the state in the store, whose last entries are gone: bring the "
        "store back to what it was, or move this directory away to go on from the store",
        s->data_dir);
}

/* Finds the newest entry whose changes the database has. */
static int find_place(struct ship *s, struct store *store, struct store_noted *n, struct err *err)
{
    struct s3_log_entry e;
    uint64_t top = 0;
    bool there = false, beyond = false, noted = false;
    int rc = n->seq == 0 || store_is_paused(n) ? s3_log_top(&s->look, &top, err) : 0;
    if (rc < 0)
        return rc;
    if (n->seq == 0 && top > 0)
        return moved(err, s, "the store has the state of a coordinator already");
    if (n->seq == 0 || (store_is_paused(n) && top == 0)) { /* nobody needs what was there */
        *n = (struct store_noted){0};
        hash_random(n->owner, sizeof(n->owner));
        return 0;
    }
    rc = is_ours(s, n->seq, n, &there, &e, err);
    uint64_t seq = n->seq;
    if (rc == 0 && there) /* or the one before a start that failed, which came late */
        rc = store_was_noted(store, seq, e.hash, &noted, err);
    if (rc == 0 && there && !noted)
        return moved(err, s, "the log in the store has another entry in the place of its newest");
    if (rc == 0 && !there && --seq > 0)
        rc = is_ours(s, seq, n, &there, &e, err);
    if (rc == 0 && seq > 0 && !there)
        return is_behind(s, n->seq, err);
    if (rc == 0 && seq == n->seq) {
        struct s3_log_entry next;
        rc = is_ours(s, seq + 1, n, &beyond, &next, err);
    }
    if (rc == 0 && beyond)
        return moved(err, s, "the log in the store is further than this data dir");
    s->log.seq = seq;
    if (seq > 0 && rc == 0)
        memcpy(s->log.hash, e.hash, sizeof(s->log.hash));
    return rc;
}

static int send_keys(struct ship *s, struct err *err)
{
    struct buf text;
    char *key = str_printf("%s/keys", s->prefix);
    buf_init(&text, SHIP_KEYS_MAX);
    int rc = ship_keys_read(s->data_dir, &text, err);
    if (rc == 0)
        rc = s3_put_text(s->bulk, key, buf_str(&text), err);
    buf_release(&text);
    mem_free(key);
    return rc;
}

bool ship_is_ahead(const struct s3_log_entry *e)
{
    const size_t n = strlen(AHEAD);
    return e->kind == S3_LOG_OWNER && e->len >= n && memcmp(e->body + e->len - n, AHEAD, n) == 0;
}

/* n: what the database has noted.  It becomes the new entry. */
static int announce(struct ship *s, struct store *store, struct store_noted *n, struct err *err)
{
    struct s3_log_snapshot made = {0};
    const bool ahead = n->seq != s->log.seq || store_is_paused(n);
    char *body = str_printf("%s%s", s->who, ahead ? AHEAD : "");
    memcpy(s->log.owner, n->owner, sizeof(n->owner));
    int rc = s3_log_next(&s->log, S3_LOG_OWNER, body, strlen(body), err);
    mem_free(body);
    n->seq = made.seq = s->log.seq + 1;
    memcpy(n->hash, s->log.out_hash, sizeof(n->hash));
    memcpy(made.hash, s->log.out_hash, sizeof(made.hash));
    if (rc == 0)
        rc = store_note(store, n, err);
    if (rc == 0)
        rc = make_copy(s, &made, err);
    if (rc == 0)
        rc = send_copy(s, &made, err);
    if (rc == 0)
        rc = send_entry(s, OWN_TRIES, err);
    s->look.seq = s->log.seq;
    if (rc == 0 && (rc = s3_log_check(&s->look, err)) == -ERR_STALE)
        rc = moved(err, s, "the log in the store is further than this data dir");
    s->sent_before = made;
    return rc;
}

/* Did an entry that the database had noted, and that was missing when we looked, come late?  The
 * store was then slow to carry out the last process's request. */
static bool came_late(struct ship *s, const struct store_noted *noted)
{
    struct s3_log_entry e;
    struct buf raw;
    buf_init(&raw, S3_LOG_ENTRY_MAX);
    const bool late = noted->seq == s->log.seq + 1 && s3_log_read(&s->log, &raw, &e, NULL) == 0 &&
                      hash_equal(e.hash, noted->hash, sizeof(e.hash));
    buf_release(&raw);
    pthread_mutex_lock(&s->lock);
    if (late)
        s->lost = s->given_up = false;
    pthread_mutex_unlock(&s->lock);
    return late;
}

int ship_own(struct ship *s, struct store *store, struct err *err)
{
    struct store_noted n;
    int rc = store_noted(store, &n, err);
    if (rc == 0)
        rc = find_place(s, store, &n, err);
    if (rc < 0)
        return rc;
    struct store_noted noted = n;
    ship_who(s->who); /* the log is already ours, or nobody's, and a snapshot may take minutes */
    s->signs = pthread_create(&s->sign, NULL, show, s) == 0;
    rc = send_keys(s, err);
    if (rc == 0)
        rc = announce(s, store, &n, err);
    if (rc == -ERR_STALE && came_late(s, &noted))
        rc = announce(s, store, &noted, err);
    if (rc < 0)
        return rc;
    s->started = pthread_create(&s->thread, NULL, run, s) == 0;
    if (!s->started || !s->signs)
        return err_set(err, -EAGAIN, "cannot start a thread for the state in the store");
    log_info("ship", "the state goes to %s/%s, it is ours from entry %" PRIu64 " on",
             s3_where(s->bulk), s->prefix, s->log.seq);
    return 0;
}

int ship_watch(struct ship *s, struct store *store, struct err *err)
{
    struct store_noted n;
    int rc = store_noted(store, &n, err);
    if (rc == 0)
        rc = find_place(s, store, &n, err);
    if (rc == -ERR_CONFIG) /* the log was removed, and nobody has gone on with it */
        rc = 0;
    s->seq = n.seq; /* an entry of that number may still come late, and is ours */
    if (rc == 0)
        rc = store_pause(store, err);
    if (rc < 0)
        return rc;
    s->started = pthread_create(&s->thread, NULL, run, s) == 0;
    return s->started ? 0 : err_set(err, -EAGAIN, "cannot start a thread for the state's log");
}

/* ---- the whole ---- */

uint64_t ship_requests(struct ship *s)
{
    return s3_health(s->entries).requests + s3_health(s->bulk).requests;
}

static int open_clients(struct ship *s, const struct coordinator_options *o, struct err *err)
{
    const struct s3_options usual = {0};
    const struct s3_options once = {.tries = 1, .first_stall_s = FIRST_STALL_S, .stall_s = STALL_S};
    char *same = NULL;
    int rc = place_open_state(o, &usual, &s->bulk, &s->prefix, err);
    if (rc == 0)
        rc = place_open_state(o, &once, &s->entries, &same, err);
    mem_free(same);
    return rc;
}

int ship_open(const struct coordinator_options *o, struct ship **ret, struct err *err)
{
    struct ship *s = mem_alloc(sizeof(*s));
    s->data_dir = str_dup(o->data_dir);
    s->away = (struct store_away){away_next, away_send, s};
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->changed);
    int rc = open_clients(s, o, err);
    s3_log_init(&s->log, &s3_log_of_client, s->entries, s->prefix);
    s3_log_init(&s->look, &s3_log_of_client, s->bulk, s->prefix);
    if (rc == 0 && o->store_state)
        rc = s3_log_probe(&s->look, err);
    if (rc < 0) {
        ship_close(s);
        return rc;
    }
    *ret = s;
    return 0;
}

void ship_close(struct ship *s)
{
    if (s == NULL)
        return;
    if (s->bulk)
        s3_stop(s->bulk);
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->started)
        pthread_join(s->thread, NULL);
    if (s->signs)
        pthread_join(s->sign, NULL);
    s3_log_release(&s->log);
    s3_log_release(&s->look);
    s3_close(s->entries);
    s3_close(s->bulk);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    mem_free(s->prefix);
    mem_free(s->data_dir);
    mem_free(s);
}

const struct store_away *ship_away(const struct ship *s)
{
    return &s->away;
}

void ship_end(struct ship *s)
{
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void ship_turns(struct ship *s)
{
    pthread_mutex_lock(&s->lock);
    s->begun = s->turned = true;
    pthread_mutex_unlock(&s->lock);
}

bool ship_is_lost(struct ship *s, char ret_why[512])
{
    pthread_mutex_lock(&s->lock);
    const bool lost = s->lost;
    memcpy(ret_why, s->why, sizeof(s->why));
    pthread_mutex_unlock(&s->lock);
    return lost;
}
