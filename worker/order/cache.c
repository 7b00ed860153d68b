#include "worker/order/cache.h"

#include <pthread.h>
#include <sys/stat.h>

#include "common/base/file.h"
#include "common/base/hash.h"

#define ENTRIES_FREE (CACHE_ENTRIES_MAX / 16) /* free entries for later reservations */

/* Properties of a file that change when it is written. */
struct stamp {
    int64_t mtime_ns;
    uint64_t size, inode;
    uint64_t held; /* bytes that it takes here: none for a link to a file elsewhere */
};

struct entry {
    uint8_t sha256[32];
    bool present, verified;
    bool part; /* not present, not pinned: only its beginning is here */
    unsigned pins, keeps;
    uint64_t used; /* tick of the last use */
    struct stamp stamp;
};

struct cache {
    char *dir;
    uint64_t limit;
    pthread_mutex_t lock;
    bool lent;
    uint64_t bytes, tick;
    struct entry *entries; /* sorted by sha256 */
    size_t n, cap;
};

void cache_path(const struct cache *c, const uint8_t sha256[32], char ret_path[CACHE_PATH_MAX])
{
    char hex[HASH_HEX_MAX];
    snprintf(ret_path, CACHE_PATH_MAX, "%s/%s", c->dir, hash_hex(sha256, 32, hex));
}

/* The path of the part of a blob that has come so far. */
static void part_path(const struct cache *c, const uint8_t sha256[32], char ret[CACHE_PATH_MAX])
{
    char hex[HASH_HEX_MAX];
    snprintf(ret, CACHE_PATH_MAX, "%s/%s.part", c->dir, hash_hex(sha256, 32, hex));
}

/* Index of the first entry that is not less. */
static size_t lower_bound(const struct cache *c, const uint8_t sha256[32])
{
    size_t lo = 0, hi = c->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (memcmp(c->entries[mid].sha256, sha256, 32) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static struct entry *find(struct cache *c, const uint8_t sha256[32])
{
    size_t i = lower_bound(c, sha256);
    return i < c->n && memcmp(c->entries[i].sha256, sha256, 32) == 0 ? &c->entries[i] : NULL;
}

/* NULL: the table is full. */
static struct entry *find_or_add(struct cache *c, const uint8_t sha256[32])
{
    size_t i = lower_bound(c, sha256);
    if (i < c->n && memcmp(c->entries[i].sha256, sha256, 32) == 0)
        return &c->entries[i];
    if (c->n == CACHE_ENTRIES_MAX)
        return NULL;
    if (c->n == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 256;
        struct entry *grown = mem_try_realloc_array(c->entries, cap, sizeof(*grown));
        if (!grown)
            return NULL;
        c->entries = grown;
        c->cap = cap;
    }
    memmove(&c->entries[i + 1], &c->entries[i], (c->n - i) * sizeof(*c->entries));
    c->entries[i] = (struct entry){.used = ++c->tick};
    memcpy(c->entries[i].sha256, sha256, 32);
    c->n++;
    return &c->entries[i];
}

/* Drops an entry that is of no use any more. */
static void forget_if_idle(struct cache *c, struct entry *e)
{
    if (e->present || e->part || e->pins > 0 || e->keeps > 0)
        return;
    size_t i = (size_t)(e - c->entries);
    memmove(e, e + 1, (c->n - i - 1) * sizeof(*e));
    c->n--;
}

static bool read_stamp(const char *path, struct stamp *ret)
{
    struct stat own, st;
    if (lstat(path, &own) < 0 || stat(path, &st) < 0 || !S_ISREG(st.st_mode))
        return false;
    *ret = (struct stamp){(int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
                          (uint64_t)st.st_size, (uint64_t)st.st_ino,
                          S_ISREG(own.st_mode) ? (uint64_t)own.st_size : 0};
    return true;
}

static bool stamp_equal(const struct stamp *a, const struct stamp *b)
{
    return a->mtime_ns == b->mtime_ns && a->size == b->size && a->inode == b->inode;
}

/* Takes the file of an entry that has one out of the way, to ret_gone.  Under the lock; discard()
 * follows without it: to remove a large file takes long, and another of its name may have come by
 * then. */
static void drop(struct cache *c, struct entry *e, char ret_gone[CACHE_PATH_MAX])
{
    char path[CACHE_PATH_MAX], hex[HASH_HEX_MAX];
    (e->part ? part_path : cache_path)(c, e->sha256, path);
    snprintf(ret_gone, CACHE_PATH_MAX, "%s/%s.gone", c->dir, hash_hex(e->sha256, 32, hex));
    if (rename(path, ret_gone) < 0)
        (void)file_remove(path, NULL);
    c->bytes -= e->stamp.held;
    e->present = e->verified = e->part = false;
}

/* "": there is nothing to remove. */
static void discard(const char *gone)
{
    if (gone[0])
        (void)file_remove(gone, NULL); /* what cannot be removed is found at the next start */
}

/* Nobody waits for the blob any more: what has come of it may stay for as long as there is room. */
static void keep_part(struct cache *c, struct entry *e)
{
    char path[CACHE_PATH_MAX];
    part_path(c, e->sha256, path);
    e->part = read_stamp(path, &e->stamp);
    c->bytes += e->part ? e->stamp.held : 0;
}

/* ---- opening ---- */

static int by_time(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->stamp.mtime_ns < y->stamp.mtime_ns ? -1 : x->stamp.mtime_ns > y->stamp.mtime_ns;
}

static int by_hash(const void *a, const void *b)
{
    return memcmp(((const struct entry *)a)->sha256, ((const struct entry *)b)->sha256, 32);
}

/* Is the blob here?  Names are sorted, so it comes just before its part, which is then of no use.
 */
static bool is_last(const struct cache *c, const uint8_t sha256[32])
{
    return c->n > 0 && memcmp(c->entries[c->n - 1].sha256, sha256, 32) == 0;
}

static int load(struct cache *c, struct err *err)
{
    struct file_names names;
    int rc = file_list(c->dir, CACHE_ENTRIES_MAX, &names, err);
    if (rc < 0)
        return rc;
    c->entries = mem_try_array(names.n + 1, sizeof(*c->entries));
    c->cap = names.n + 1;
    if (!c->entries)
        rc = err_set(err, -ENOMEM, "out of memory for %zu cached blobs", names.n);
    for (size_t i = 0; rc == 0 && i < names.n; i++) {
        char *name = names.items[i], *path = file_join(c->dir, name);
        struct entry e = {.part = str_ends(name, ".part")};
        e.present = !e.part;
        if (e.part)
            name[strlen(name) - strlen(".part")] = '\0';
        if (hash_unhex(name, e.sha256, 32) == 0 && !is_last(c, e.sha256) &&
            read_stamp(path, &e.stamp)) {
            c->bytes += e.stamp.held;
            c->entries[c->n++] = e;
        } else {
            (void)file_remove(path, NULL); /* an unfinished write of an earlier process */
        }
        mem_free(path);
    }
    file_names_release(&names);
    if (rc < 0)
        return rc;
    qsort(c->entries, c->n, sizeof(*c->entries), by_time);
    for (size_t i = 0; i < c->n; i++)
        c->entries[i].used = ++c->tick;
    qsort(c->entries, c->n, sizeof(*c->entries), by_hash);
    return 0;
}

int cache_open(const char *dir, uint64_t limit_bytes, struct cache **ret, struct err *err)
{
    if (strlen(dir) + HASH_HEX_MAX + 16 > CACHE_PATH_MAX)
        return err_set(err, -ENAMETOOLONG, "the cache directory's name is too long: %s", dir);
    int rc = file_mkdirs(dir, 0700, err);
    if (rc < 0)
        return rc;
    struct cache *c = mem_alloc(sizeof(*c));
    c->dir = str_dup(dir);
    c->limit = limit_bytes ? limit_bytes : UINT64_MAX;
    pthread_mutex_init(&c->lock, NULL);
    if ((rc = load(c, err)) < 0 || (rc = cache_reserve(c, 0, err)) < 0) {
        cache_close(c);
        return rc;
    }
    *ret = c;
    return 0;
}

void cache_close(struct cache *c)
{
    if (!c)
        return;
    pthread_mutex_destroy(&c->lock);
    mem_free(c->entries);
    mem_free(c->dir);
    mem_free(c);
}

/* ---- use ---- */

bool cache_has(struct cache *c, const uint8_t sha256[32])
{
    pthread_mutex_lock(&c->lock);
    const struct entry *e = find(c, sha256);
    bool has = e && e->present;
    pthread_mutex_unlock(&c->lock);
    return has;
}

void cache_pin(struct cache *c, const uint8_t sha256[32])
{
    pthread_mutex_lock(&c->lock);
    struct entry *e = find_or_add(c, sha256);
    if (e) {
        c->bytes -= e->part ? e->stamp.held : 0; /* a reservation is for the whole blob */
        e->part = false;
        e->pins++;
        e->used = ++c->tick;
    }
    pthread_mutex_unlock(&c->lock);
}

void cache_unpin(struct cache *c, const uint8_t sha256[32])
{
    pthread_mutex_lock(&c->lock);
    struct entry *e = find(c, sha256);
    if (e && e->pins > 0) {
        if (--e->pins == 0 && !e->present)
            keep_part(c, e);
        forget_if_idle(c, e);
    }
    pthread_mutex_unlock(&c->lock);
}

void cache_keep(struct cache *c, const uint8_t sha256[32])
{
    pthread_mutex_lock(&c->lock);
    struct entry *e = find_or_add(c, sha256);
    if (e)
        e->keeps++;
    pthread_mutex_unlock(&c->lock);
}

void cache_unkeep(struct cache *c, const uint8_t sha256[32])
{
    pthread_mutex_lock(&c->lock);
    struct entry *e = find(c, sha256);
    if (e && e->keeps > 0) {
        e->keeps--;
        forget_if_idle(c, e);
    }
    pthread_mutex_unlock(&c->lock);
}

/* Compares the entry with the present file, without reading it.
 * 1: unchanged; 0: must be hashed, and *ret_stamp is set; negative: it is not there. */
static int glance(struct cache *c, const uint8_t sha256[32], const char *path,
                  struct stamp *ret_stamp)
{
    int rc = -ERR_NOTFOUND;
    char gone[CACHE_PATH_MAX] = "";
    pthread_mutex_lock(&c->lock);
    struct entry *e = find(c, sha256);
    if (e && e->present) {
        e->used = ++c->tick;
        if (!read_stamp(path, ret_stamp)) {
            drop(c, e, gone);
            forget_if_idle(c, e);
        } else {
            rc = e->verified && stamp_equal(&e->stamp, ret_stamp) ? 1 : 0;
            c->bytes += ret_stamp->held - e->stamp.held;
            e->stamp = *ret_stamp;
        }
    }
    pthread_mutex_unlock(&c->lock);
    discard(gone);
    return rc;
}

static void settle(struct cache *c, const uint8_t sha256[32], const struct stamp *stamp, bool good)
{
    char gone[CACHE_PATH_MAX] = "";
    pthread_mutex_lock(&c->lock);
    struct entry *e = find(c, sha256);
    if (e && e->present && good) {
        e->verified = stamp_equal(&e->stamp, stamp);
    } else if (e && e->present) {
        drop(c, e, gone);
        forget_if_idle(c, e);
    }
    pthread_mutex_unlock(&c->lock);
    discard(gone);
}

int cache_check(struct cache *c, const uint8_t sha256[32], uint64_t size, struct err *err)
{
    char path[CACHE_PATH_MAX];
    cache_path(c, sha256, path);
    struct stamp stamp = {0};
    int rc = glance(c, sha256, path, &stamp);
    if (rc < 0)
        return err_set(err, rc, "the blob is not in the cache");
    uint8_t found[32];
    uint64_t found_size = stamp.size;
    if (rc == 0 && (rc = hash_file(path, found, &found_size, err)) < 0) {
        settle(c, sha256, &stamp, false);
        return rc;
    }
    bool good = rc == 1 || memcmp(found, sha256, 32) == 0;
    settle(c, sha256, &stamp, good);
    if (!good && size && found_size != size)
        return err_set(err, -ERR_HASH,
                       "the cached blob %s was cut short: %" PRIu64 " of %" PRIu64 " bytes", path,
                       found_size, size);
    if (!good)
        return err_set(err, -ERR_HASH,
                       "the cached blob %s is damaged: its content does not match its hash", path);
    if (size && found_size != size)
        return err_set(err, -ERR_FORMAT, "blob %s has %" PRIu64 " bytes, the task says %" PRIu64,
                       path, found_size, size);
    return 0;
}

static bool is_over(const struct cache *c, uint64_t bytes)
{
    return c->bytes > c->limit || bytes > c->limit - c->bytes ||
           c->n > CACHE_ENTRIES_MAX - ENTRIES_FREE;
}

static bool disk_lacks(const struct cache *c, uint64_t bytes)
{
    uint64_t free_bytes;
    return file_disk_free(c->dir, &free_bytes, NULL) == 0 && bytes > free_bytes;
}

static bool goes_before(const struct entry *a, const struct entry *b)
{
    const bool kept = a->keeps > 0, other = b->keeps > 0;
    return kept != other ? other : a->used < b->used;
}

/* The next entry to drop; NULL: all are pinned. */
static struct entry *first_to_go(struct cache *c)
{
    struct entry *first = NULL;
    for (size_t i = 0; i < c->n; i++) {
        struct entry *e = &c->entries[i];
        if ((e->present || e->part) && e->pins == 0 && (!first || goes_before(e, first)))
            first = e;
    }
    return first;
}

/* Drops what goes first, unless there is room for so many bytes.  False: nothing was dropped. */
static bool make_room(struct cache *c, uint64_t bytes, bool on_disk_alone,
                      char ret_gone[CACHE_PATH_MAX])
{
    struct entry *first = NULL;
    pthread_mutex_lock(&c->lock);
    if (disk_lacks(c, bytes) || (!on_disk_alone && is_over(c, bytes)))
        first = first_to_go(c);
    if (first) {
        drop(c, first, ret_gone);
        forget_if_idle(c, first);
    }
    pthread_mutex_unlock(&c->lock);
    return first != NULL;
}

int cache_reserve(struct cache *c, uint64_t bytes, struct err *err)
{
    char gone[CACHE_PATH_MAX];
    int rc = 0;
    while (make_room(c, bytes, false, gone))
        discard(gone);
    pthread_mutex_lock(&c->lock);
    if (bytes > 0 && is_over(c, bytes)) /* of a limit that was lowered, or a disk, that was all */
        rc = err_set(err, -ENOSPC,
                     "the cache %s is full: %" PRIu64 " of %" PRIu64 " bytes are "
                     "in use by this task, %" PRIu64 " more are needed; raise --cache-limit",
                     c->dir, c->bytes, c->limit, bytes);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

uint64_t cache_room(struct cache *c)
{
    uint64_t room = 0;
    (void)file_disk_free(c->dir, &room, NULL); /* stays 0 if it is unknown */
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->n; i++)
        if ((c->entries[i].present || c->entries[i].part) && c->entries[i].pins == 0)
            room += c->entries[i].stamp.size;
    pthread_mutex_unlock(&c->lock);
    return room;
}

void cache_make_room(struct cache *c, uint64_t bytes)
{
    char gone[CACHE_PATH_MAX];
    while (make_room(c, bytes, true, gone))
        discard(gone);
}

int cache_added(struct cache *c, const uint8_t sha256[32], struct err *err)
{
    char path[CACHE_PATH_MAX];
    cache_path(c, sha256, path);
    struct stamp stamp;
    if (!read_stamp(path, &stamp))
        return err_errno(err, "the new blob %s", path);
    int rc = 0;
    char gone[CACHE_PATH_MAX] = "";
    pthread_mutex_lock(&c->lock);
    struct entry *e = find_or_add(c, sha256);
    if (e) {
        if (e->part)
            drop(c, e, gone);
        if (e->present)
            c->bytes -= e->stamp.held;
        c->bytes += stamp.held;
        e->present = e->verified = true;
        e->stamp = stamp;
        e->used = ++c->tick;
    } else {
        rc = err_set(err, -ERR_LIMIT, "the cache %s holds %u blobs already", c->dir,
                     CACHE_ENTRIES_MAX);
    }
    pthread_mutex_unlock(&c->lock);
    discard(gone);
    return rc;
}

void cache_remove(struct cache *c, const uint8_t sha256[32])
{
    char gone[CACHE_PATH_MAX] = "";
    pthread_mutex_lock(&c->lock);
    struct entry *e = find(c, sha256);
    if (e && e->present) {
        drop(c, e, gone);
        forget_if_idle(c, e);
    }
    pthread_mutex_unlock(&c->lock);
    discard(gone);
}

bool cache_take(struct cache *c, const uint8_t sha256[32], const char *to)
{
    char path[CACHE_PATH_MAX];
    cache_path(c, sha256, path);
    pthread_mutex_lock(&c->lock);
    struct entry *e = find(c, sha256);
    /* A link takes no room: what it leads to is not ours. */
    const bool taken = !c->lent && e && e->present && e->pins == 0 && e->keeps == 0 &&
                       e->stamp.held > 0 && rename(path, to) == 0;
    if (taken) {
        c->bytes -= e->stamp.held;
        e->present = e->verified = false;
        forget_if_idle(c, e);
    }
    pthread_mutex_unlock(&c->lock);
    return taken;
}

void cache_lend(struct cache *c)
{
    pthread_mutex_lock(&c->lock);
    c->lent = true;
    pthread_mutex_unlock(&c->lock);
}

uint64_t cache_used_bytes(struct cache *c)
{
    pthread_mutex_lock(&c->lock);
    uint64_t bytes = c->bytes;
    pthread_mutex_unlock(&c->lock);
    return bytes;
}

int cache_set_limit(struct cache *c, uint64_t limit_bytes, struct err *err)
{
    c->limit = limit_bytes;
    return cache_reserve(c, 0, err);
}

uint64_t cache_limit_bytes(const struct cache *c)
{
    return c->limit;
}
