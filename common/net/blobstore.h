/* A store of blobs: immutable bytes named by their SHA-256.
 *
 *     struct blobstore *s;
 *     if (blob_dir_open(dir, quota, &s, err) < 0) ...        (blob_dir.h)
 *     s->ops->get(s, &id, &fd, &size, err);
 *     s->ops->close(s);
 *
 * There are two implementations: a directory (blob_dir.h) and an object store (s3/blob_s3.h).
 *
 * A blob exists only when it is complete, verified and durable.  Operations may be called on any
 * thread and wait for the store.  Two writers of the same blob are harmless: the first commit wins,
 * the second finds the blob.  A loop's thread may call only operations that say they never wait,
 * and stat, touch, hide, put, write and abort, which wait for a disk at most. */
#ifndef COMMON_NET_BLOBSTORE_H
#define COMMON_NET_BLOBSTORE_H

#include <stdatomic.h>

#include "common/base/base.h"

struct blobstore;
struct blob_writer;

#define BLOB_HEX_MAX 65 /* 64 digits and the terminator */

/* The SHA-256 of a blob's bytes. */
struct blob_id {
    uint8_t sha256[32];
};

/* A blob and its size; size 0: none. */
struct blob_ref {
    union {
        struct blob_id id;
        uint8_t sha256[32];
    };
    uint64_t size;
};

/* Whether there is a blob. */
static inline bool blob_ref_is_set(const struct blob_ref *b)
{
    return b->size != 0;
}

/* As 64 hex digits. */
void blob_id_hex(const struct blob_id *id, char ret_hex[BLOB_HEX_MAX]);
/* Exactly 64 lower-case hex digits; else -ERR_FORMAT. */
int blob_id_parse(const char *hex, struct blob_id *ret);
bool blob_id_equal(const struct blob_id *a, const struct blob_id *b);
bool blob_ref_equal(const struct blob_ref *a, const struct blob_ref *b);

struct blob_stat {
    uint64_t size;
    int64_t touched_s; /* wall clock: when it was stored or last touched */
};

/* An object store (also called far away), and the directory that caches it. */
struct blob_health {
    char where[256];                 /* its URL */
    uint64_t requests, repeats;      /* repeats: tries after the first */
    uint64_t bytes_in, bytes_out;    /* between us and the store */
    uint64_t waiting, waiting_bytes; /* blobs not yet sent to it */
    uint64_t cache_bytes, cache_max_bytes;
    uint64_t evictable_bytes; /* of the cache's: what makes room for others */
    bool sums; /* it reports the hashes of others' uploads, so we need not fetch and hash them */
    int64_t failing_since_unix_ms; /* 0: its last answer was good */
    char error[256];               /* its error, or why there was no answer */
};

/* A file that is to become a blob. */
struct blob_file {
    const char *path;
    struct blob_id id;
    uint64_t size;
};

/* Called for each blob until it returns non-zero. */
typedef int blob_list_fn(void *arg, const struct blob_id *id, const struct blob_stat *stat);

/* Called with "NAME-SHA256" of each saved file until it returns non-zero.  Older releases saved
 * some without the hash. */
typedef int blob_saved_fn(void *arg, const char *name);

struct blobstore_ops {
    /* -ERR_NOTFOUND. */
    int (*stat)(struct blobstore *s, const struct blob_id *id, struct blob_stat *ret,
                struct err *err);
    /* Sets touched_s to now, so that the blob is not removed as old.  -ERR_NOTFOUND. */
    int (*touch)(struct blobstore *s, const struct blob_id *id, struct err *err);
    /* A descriptor from which any range can be read, also after a removal; the caller closes it.
     * Never waits: -EAGAIN where the bytes are far away and `local` must fetch them first.
     * -ERR_NOTFOUND. */
    int (*get)(struct blobstore *s, const struct blob_id *id, int *ret_fd, uint64_t *ret_size,
               struct err *err);
    /* Path of a local file with these bytes, mem_free it.  The file stays until let_go was called
     * as often as local (a directory keeps it anyway).  -ERR_NOTFOUND: there is no such blob.
     * -ERR_HASH: the store has other bytes, and from now on the blob does not exist.  -EAGAIN and
     * others: it exists but cannot be fetched now; with wait false: not without waiting. */
    int (*local)(struct blobstore *s, const struct blob_id *id, bool wait, char **ret_path,
                 struct err *err);
    /* len bytes from `from` on.  Of a blob far away only these are fetched, so nobody has hashed
     * them.  Waits.  -ERR_NOTFOUND, -ERR_FORMAT (the blob is shorter), or another code: the store
     * cannot now. */
    int (*read)(struct blobstore *s, const struct blob_id *id, uint64_t from, void *data,
                size_t len, struct err *err);
    /* The local file is damaged: fetches it again to the same path, also while it is held.  Waits.
     * -ERR_NOTFOUND: there is no other copy.  NULL: there never is one. */
    int (*renew)(struct blobstore *s, const struct blob_id *id, struct err *err);
    void (*let_go)(struct blobstore *s, const struct blob_id *id);
    /* Absent is fine.  Readers that hold a descriptor keep reading. */
    int (*remove)(struct blobstore *s, const struct blob_id *id, struct err *err);
    /* The same at once, whatever the blob's size: the next tidy frees its bytes.  -ERR_NOTFOUND. */
    int (*hide)(struct blobstore *s, const struct blob_id *id, struct err *err);
    /* Frees hidden blobs, and uploads without a writer that nobody has touched since before_s (wall
     * clock).  What clients may have put past this process has a day more. */
    int (*tidy)(struct blobstore *s, int64_t before_s, struct err *err);
    /* Returns the last result of fn. */
    int (*list)(struct blobstore *s, blob_list_fn *fn, void *arg, struct err *err);

    /* A writer for the blob `expect` of at most max_bytes; it resumes after the bytes that the last
     * writer of the same holder kept when it was aborted.  Holders are numbers that the caller
     * chooses (1 and more; 0: the store itself): each has an upload of its own, so that none can
     * hinder another's.  Bytes count against the quota as they arrive.  -EBUSY: the holder has
     * another writer of the blob, or it is on its way to a store. */
    int (*put)(struct blobstore *s, const struct blob_id *expect, uint64_t holder,
               uint64_t max_bytes, struct blob_writer **ret, struct err *err);
    /* A descriptor of the bytes of a blob that this holder puts, which grows with them; the caller
     * closes it.  Nobody has hashed them, and they may be given up or replaced.  Never waits.
     * -ERR_NOTFOUND: none have come.  NULL: they cannot be read before the commit. */
    int (*part)(struct blobstore *s, const struct blob_id *id, uint64_t holder, int *ret_fd,
                struct err *err);
    /* Takes finished files as blobs.  They must be on the same file system and fsynced; the caller
     * has hashed them, which is not checked again, but the sizes are.  A file is moved, or removed
     * if the blob exists.  -ENOSPC: quota; -EXDEV: another file system; that file and those after
     * it then stay. */
    int (*adopt)(struct blobstore *s, const struct blob_file *files, size_t n, struct err *err);
    /* A URL by which a client without the store's key can get the blob itself, or put one of `size`
     * bytes: for this method and blob and a few minutes, mem_free it.  A PUT must send the headers
     * content-length and x-amz-checksum-sha256 of this blob.  Never waits.  -EAGAIN: the store does
     * not have it yet, but will soon.  -ERR_UNIMPLEMENTED: this transfer goes through us.  NULL:
     * all transfers do. */
    int (*away)(struct blobstore *s, const struct blob_id *id, bool put, uint64_t size,
                char **ret_url);
    /* A client reports that it has put the blob there: checks that, and adds the blob if it is
     * true.  Waits for the store.  -ERR_NOTFOUND: the store has no such blob, or other bytes under
     * its name.  -ERR_HASH: the same, and they were removed.  -EBUSY: another call is checking.
     * -ENOSPC: quota.  NULL where away is. */
    int (*found)(struct blobstore *s, const struct blob_id *id, uint64_t size, struct err *err);
    /* Files beside the blobs that must not be lost with our disk.  save: a store far away keeps a
     * copy of the file `path` under a name ("outer/1/2/target.3") and the hash of its bytes; fetch:
     * copies it back; drop: removes all whose names begin with `names`; saved: calls fn for these.
     * All wait; NULL: there is only our disk; fetch alone: what was saved when the store still
     * kept them.  fetch: -ERR_NOTFOUND; the caller checks the hash. */
    int (*save)(struct blobstore *s, const char *name, const char *path, const uint8_t sha256[32],
                uint64_t size, struct err *err);
    int (*fetch)(struct blobstore *s, const char *name, const char *path, const uint8_t sha256[32],
                 uint64_t size, struct err *err);
    int (*drop)(struct blobstore *s, const char *names, struct err *err);
    int (*saved)(struct blobstore *s, const char *names, blob_saved_fn *fn, void *arg,
                 struct err *err);
    /* The health of a store far away; NULL: this one is a directory. */
    void (*health)(struct blobstore *s, struct blob_health *ret);
    /* Ends all operations that wait for a store far away, on any thread: -ERR_CANCELLED. */
    void (*stop)(struct blobstore *s);
    void (*close)(struct blobstore *s);
};

struct blobstore {
    const struct blobstore_ops *ops;
    _Atomic uint64_t used_bytes, count;
};

/* A writer belongs to one thread at a time. */
struct blob_writer_ops {
    /* -ENOSPC: quota or disk full; -ERR_LIMIT: above max_bytes. */
    int (*write)(struct blob_writer *w, const void *data, size_t len, struct err *err);
    /* Makes it durable and verifies it: slow, call it on a pool thread where the loop must not
     * wait.  expect_size UINT64_MAX: any.  -ERR_HASH or -ERR_FORMAT (size): nothing was stored and
     * the bytes written are gone.  The writer is freed in every case. */
    int (*commit)(struct blob_writer *w, uint64_t expect_size, struct err *err);
    /* Gives up and frees the writer; keep: its bytes stay for the next writer. */
    void (*abort)(struct blob_writer *w, bool keep);
};

struct blob_writer {
    const struct blob_writer_ops *ops;
    uint64_t size; /* bytes so far, including those it resumed after */
};

/* The operation read for stores whose get never returns -EAGAIN. */
int blobstore_read_here(struct blobstore *s, const struct blob_id *id, uint64_t from, void *data,
                        size_t len, struct err *err);
/* Whether the store has the blob; ret_size may be NULL. */
bool blobstore_has(struct blobstore *s, const struct blob_id *id, uint64_t *ret_size);

#endif
