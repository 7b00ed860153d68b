#include "coordinator/state/place.h"

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/net/blob_dir.h"
#include "common/net/blobstore.h"
#include "common/net/s3/blob_s3.h"
#include "coordinator/state/options.h"

#include <fts.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NAME "blob-store"
#define ASIDE "deposed"
#define DATABASE "coordinator.db"
#define URL_BYTES_MAX 1024
#define ENTRIES_MAX 65536
#define COMMIT "newest-commit"
#define COMMIT_MAX 32 /* bytes of it */

const char *const place_identity[PLACE_IDENTITY] = {"tls-key.pem",    "tls-cert.pem",
                                                    "cluster.secret", "worker.secret",
                                                    "user.secret",    "ticket.secret"};

/* Names in a data directory that belong to no state. */
static bool is_of_any(const char *name)
{
    return strcmp(name, "lock") == 0 || strcmp(name, "lost+found") == 0 || strcmp(name, ASIDE) == 0;
}

static int set_aside(const char *data_dir, const char *aside, const struct file_names *names,
                     struct err *err)
{
    int rc = 0;
    bool any = false, whole = false; /* else an earlier one was interrupted, and goes on */
    for (size_t i = 0; i < names->n; i++) {
        any |= !is_of_any(names->items[i]);
        whole |= strcmp(names->items[i], DATABASE) == 0;
    }
    if (whole)
        rc = file_remove_tree(aside, err);
    if (any && rc == 0)
        rc = file_mkdirs(aside, 0700, err);
    for (size_t i = 0; rc == 0 && i < names->n; i++) {
        char *from = file_join(data_dir, names->items[i]), *to = file_join(aside, names->items[i]);
        if (strcmp(names->items[i], "cache") == 0)
            rc = file_remove_tree(from, err);
        else if (!is_of_any(names->items[i]) && (rc = file_remove_tree(to, err)) == 0)
            rc = file_rename(from, to, err);
        mem_free(from);
        mem_free(to);
    }
    return rc;
}

int place_set_aside(const char *data_dir, struct err *err)
{
    struct file_names names;
    int rc = file_list(data_dir, ENTRIES_MAX, &names, err);
    if (rc < 0)
        return rc;
    char *aside = file_join(data_dir, ASIDE);
    for (size_t i = 0; i < names.n; i++)
        if (strcmp(names.items[i], "blobs") == 0)
            rc = err_set(err, -EEXIST,
                         "%s has blobs of its own, outside a store: name another --data-dir",
                         data_dir);
    if (rc == 0)
        rc = set_aside(data_dir, aside, &names, err);
    file_names_release(&names);
    mem_free(aside);
    return rc;
}

/* ---- the newest commit ---- */

/* 0: there is none, or it says nothing. */
static uint64_t noted(const char *path)
{
    struct buf text;
    uint64_t n = 0;
    if (file_read(path, COMMIT_MAX, &text, NULL) < 0)
        return 0;
    (void)sscanf(buf_str(&text), "%" SCNu64, &n);
    buf_release(&text);
    return n;
}

int place_check_commit(const char *data_dir, uint64_t commits, struct err *err)
{
    char *path = file_join(data_dir, COMMIT);
    const uint64_t n = noted(path);
    int rc = 0;
    if (n > commits)
        rc = err_set(err, -ERR_FORMAT,
                     "%s/coordinator.db is older than it was: it has commit %" PRIu64
                     ", and commit %" PRIu64
                     " was acknowledged; its -wal was removed, an older copy put in its place, or "
                     "it was copied while in use: put the newest files back, or remove %s to go on "
                     "without what is lost",
                     data_dir, commits, n, path);
    mem_free(path);
    return rc;
}

int place_note_commit(const char *data_dir, uint64_t commits, struct err *err)
{
    char text[COMMIT_MAX], *path = file_join(data_dir, COMMIT);
    const int len = snprintf(text, sizeof(text), "%" PRIu64 "\n", commits);
    const int rc = file_write_atomic(path, text, (size_t)len, 0600, err);
    mem_free(path);
    return rc;
}

/* ---- a restore ---- */

/* Is it a directory in which a restore has begun and not ended? */
static bool is_begun(const char *data_dir)
{
    char *begun = file_join(data_dir, PLACE_BEGUN), *whole = file_join(data_dir, DATABASE);
    const bool is = file_exists(begun) && !file_exists(whole);
    mem_free(begun);
    mem_free(whole);
    return is;
}

int place_check_new(const char *data_dir, struct err *err)
{
    struct file_names names;
    int rc = file_mkdirs(data_dir, 0700, err);
    if (rc < 0 || is_begun(data_dir))
        return rc;
    if ((rc = file_list(data_dir, ENTRIES_MAX, &names, err)) < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < names.n; i++)
        if (!is_of_any(names.items[i]))
            rc = err_set(err, -EEXIST, "%s is not empty (it has %s): restore into a new directory",
                         data_dir, names.items[i]);
    file_names_release(&names);
    return rc;
}

int place_check_whole(const char *data_dir, struct err *err)
{
    if (!is_begun(data_dir))
        return 0;
    return err_set(err, -ERR_FORMAT,
                   "%s has only a part of what was to be restored: its restore was interrupted, "
                   "run it again",
                   data_dir);
}

/* Removes what was restored, but for the mark. */
static int clear(const char *data_dir, struct err *err)
{
    struct file_names names;
    int rc = file_list(data_dir, ENTRIES_MAX, &names, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < names.n; i++) {
        char *path = file_join(data_dir, names.items[i]);
        if (!is_of_any(names.items[i]) && strcmp(names.items[i], PLACE_BEGUN) != 0)
            rc = file_remove_tree(path, err);
        mem_free(path);
    }
    file_names_release(&names);
    return rc;
}

int place_begin(const char *data_dir, struct err *err)
{
    char *mark = file_join(data_dir, PLACE_BEGUN);
    int rc = place_check_new(data_dir, err);
    if (rc == 0 && is_begun(data_dir)) {
        log_info("restore", "removing what an interrupted restore has left in %s", data_dir);
        rc = clear(data_dir, err);
    }
    if (rc == 0)
        rc = file_write_atomic(mark, "", 0, 0600, err);
    mem_free(mark);
    return rc;
}

void place_undo(const char *data_dir)
{
    char *mark = file_join(data_dir, PLACE_BEGUN);
    if (clear(data_dir, NULL) == 0) /* else the next restore tries it again */
        (void)file_remove(mark, NULL);
    mem_free(mark);
}

int place_give(const char *data_dir, struct err *err)
{
    char *tops[] = {(char *)(uintptr_t)data_dir, NULL}; /* only read */
    struct stat owner;
    int rc = 0;
    if (stat(data_dir, &owner) < 0)
        return err_errno(err, "cannot look at %s", data_dir);
    if (geteuid() != 0 || owner.st_uid == 0)
        return 0;
    /* It steps into each folder, and sees if the owner has put a link in its place. */
    FTS *tree = fts_open(tops, FTS_PHYSICAL | FTS_COMFOLLOW, NULL);
    if (tree == NULL)
        return err_errno(err, "cannot list %s", data_dir);
    for (const FTSENT *e; rc == 0 && (e = fts_read(tree)) != NULL;) {
        errno = e->fts_errno; /* also of a folder into which it could not step */
        if (errno != 0 || lchown(e->fts_accpath, owner.st_uid, owner.st_gid) < 0)
            rc = err_errno(err, "cannot give %s to the owner of %s", e->fts_path, data_dir);
    }
    (void)fts_close(tree);
    return rc;
}

int place_check_own(const char *data_dir, struct err *err)
{
    static const char *const ours[] = {
        "blobs", DATABASE, "cluster.secret", "ticket.secret", "tls-", FILE_NAME, ASIDE, NULL};
    return file_check_own(data_dir, ours, err);
}

char *place_url(const char *data_dir)
{
    struct buf text;
    char *path = file_join(data_dir, FILE_NAME), *url = NULL;
    if (file_read(path, URL_BYTES_MAX, &text, NULL) == 0) {
        url = str_ndup(buf_str(&text), strcspn(buf_str(&text), "\n"));
        buf_release(&text);
    }
    mem_free(path);
    return url;
}

static const char *environment(const char *first, const char *second)
{
    const char *value = getenv(first);
    if (!value || !*value)
        value = getenv(second);
    return value && *value ? value : NULL;
}

/* Blobs in the folder would not be found any more. */
static int check_folder(const struct coordinator_options *o, const char *folder, struct err *err)
{
    struct blobstore *dir;
    if (!file_is_dir(folder))
        return 0;
    int rc = blob_dir_open(folder, 0, &dir, err);
    if (rc < 0)
        return rc;
    const uint64_t n = dir->count;
    dir->ops->close(dir);
    if (n == 0)
        return 0;
    return err_set(err, -ERR_CONFIG,
                   "%s has %llu blob%s in its folder: start without --store, or with another "
                   "--data-dir (blobs are not moved into a store)",
                   o->data_dir, (unsigned long long)n, str_plural(n));
}

int place_remember(const struct coordinator_options *o, struct err *err)
{
    char *path = file_join(o->data_dir, FILE_NAME), *line = str_printf("%s\n", o->store);
    const int rc = file_write_atomic(path, line, strlen(line), 0644, err);
    mem_free(path);
    mem_free(line);
    return rc;
}

/* How the store is reached, without its bucket; strings are borrowed from the options and the
 * environment. */
static void reach(const struct coordinator_options *o, struct s3_options *ret)
{
    ret->endpoint = o->store_endpoint;
    if (!ret->endpoint)
        ret->endpoint = environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    ret->region = environment("AWS_REGION", "AWS_DEFAULT_REGION");
    ret->plain = o->store_plain;
    ret->virtual_host = o->store_virtual_host;
}

/* part: a subfolder of the store's prefix. */
static int open_part(const struct coordinator_options *o, const char *part,
                     const struct s3_options *like, struct s3 **ret, char **ret_prefix,
                     struct err *err)
{
    struct s3_options c = *like;
    char bucket[64], *prefix = NULL;
    int rc = s3_split(o->store, bucket, &prefix, err);
    if (rc < 0)
        return rc;
    *ret_prefix = str_printf("%s%s%s", prefix, *prefix ? "/" : "", part);
    mem_free(prefix);
    reach(o, &c);
    c.bucket = bucket;
    return s3_open(&c, ret, err);
}

int place_open_state(const struct coordinator_options *o, const struct s3_options *like,
                     struct s3 **ret, char **ret_prefix, struct err *err)
{
    if (o->store == NULL)
        return err_set(err, -ERR_CONFIG, "--store-state needs --store s3://BUCKET/PREFIX");
    return open_part(o, "state", like, ret, ret_prefix, err);
}

int place_open_all(const struct coordinator_options *o, struct s3 **ret, char **ret_prefix,
                   struct err *err)
{
    const struct s3_options usual = {0};
    return open_part(o, "", &usual, ret, ret_prefix, err);
}

static int open_store(const struct coordinator_options *o, const char *cluster, const char *folder,
                      bool known, struct blobstore **ret, struct err *err)
{
    char *cache = file_join(o->data_dir, PLACE_CACHE);
    struct blob_s3_options s3 = {
        .url = o->store,
        .cache_dir = cache,
        .cache_bytes = o->store_cache_bytes,
        .quota_bytes = o->blob_quota_bytes,
        .lead = o->store_workers,
        .cluster = cluster,
        .through = o->store_state,
        .known = known,
    };
    struct blobstore *store;
    reach(o, &s3.s3);
    int rc = check_folder(o, folder, err);
    if (rc == 0)
        rc = blob_s3_open(&s3, &store, err);
    mem_free(cache);
    if (rc == 0 && (rc = place_remember(o, err)) < 0)
        store->ops->close(store);
    if (rc == 0)
        *ret = store;
    return rc;
}

int place_check(const struct coordinator_options *o, struct err *err)
{
    char *had = place_url(o->data_dir);
    int rc = 0;
    if (had && (!o->store || strcmp(had, o->store) != 0))
        rc = err_set(err, -ERR_CONFIG, "the blobs of %s are in %s: start with --store %s",
                     o->data_dir, had, had);
    mem_free(had);
    return rc;
}

int place_open(const struct coordinator_options *o, const char *cluster, struct blobstore **ret,
               struct err *err)
{
    char *had = place_url(o->data_dir), *folder = file_join(o->data_dir, "blobs");
    const int rc = o->store ? open_store(o, cluster, folder, had != NULL, ret, err)
                            : blob_dir_open(folder, o->blob_quota_bytes, ret, err);
    mem_free(had);
    mem_free(folder);
    return rc;
}
