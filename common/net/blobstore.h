/* A store of blobs: immutable bytes named by their SHA-256.
 *
 *     struct blobstore *s;
 *     if (blob_dir_open(dir, quota, &s, err) < 0) ...        (blob_dir.h)
 *     s->ops->get(s, &id, &fd, &size, err);
 *     s->ops->close(s);
 *
 * A directory is one row (blob_dir.h), an object store the other (s3/blob_s3.h).
 *
 * A blob is there only when it is complete, verified and durable.  Operations may be called
 * on any thread and wait for the store.  Two writers of the same blob are harmless: the
 * first that commits wins, the second finds it there.  On a loop's thread only what says that it
 * never waits, and stat, touch, hide, put, write and abort, which wait for a disk at most. */
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

/* As 64 hex digits. */
void blob_id_hex(const struct blob_id *id, char ret_hex[BLOB_HEX_MAX]);
/* 64 lower-case hex digits exactly; -ERR_FORMAT else. */
int blob_id_parse(const char *hex, struct blob_id *ret);
bool blob_id_equal(const struct blob_id *a, const struct blob_id *b);

struct blob_stat {
    uint64_t size;
    int64_t touched_s; /* wall clock: when it was stored, or last touched */
};

/* A store far away, and the directory before it. */
struct blob_health {
    char where[256];                 /* its URL */
    uint64_t requests, repeats;      /* repeats: tries after the first */
    uint64_t bytes_in, bytes_out;    /* between us and the store */
    uint64_t waiting, waiting_bytes; /* blobs that it has yet to take */
    uint64_t cache_bytes, cache_max_bytes;
    bool sums; /* it tells the hashes of what others put there, which need not come here for that */
    int64_t failing_since_unix_ms; /* 0: its last answer was good */
    char error[256];               /* what it said, or why it said nothing */
};

/* Called for each blob until it returns non-zero. */
typedef int blob_list_fn(void *arg, const struct blob_id *id, const struct blob_stat *stat);

struct blobstore_ops {
    /* -ERR_NOTFOUND. */
    int (*stat)(struct blobstore *s, const struct blob_id *id, struct blob_stat *ret,
                struct err *err);
    /* Makes the blob young again for those that remove old ones.  -ERR_NOTFOUND. */
    int (*touch)(struct blobstore *s, const struct blob_id *id, struct err *err);
    /* A descriptor to read any range from, also after a removal; the caller closes it.  Never
     * waits: -EAGAIN where the bytes are far away, and `local` is to bring them.
     * -ERR_NOTFOUND. */
    int (*get)(struct blobstore *s, const struct blob_id *id, int *ret_fd, uint64_t *ret_size,
               struct err *err);
    /* Path of a local file with these bytes, mem_free it; it stays until let_go is called as often
     * (a directory keeps it anyway).  -ERR_NOTFOUND: nobody has the blob.  -ERR_HASH: what the
     * store has are other bytes, and from now on nobody has it.  -EAGAIN and others: it is there,
     * and cannot be had now; with wait false: not without waiting. */
    int (*local)(struct blobstore *s, const struct blob_id *id, bool wait, char **ret_path,
                 struct err *err);
    /* len bytes from `from` on, also of a blob that is far away, whose others stay there: nobody
     * has hashed them.  Waits.  -ERR_NOTFOUND, -ERR_FORMAT (it is shorter), or the store cannot
     * now. */
    int (*read)(struct blobstore *s, const struct blob_id *id, uint64_t from, void *data,
                size_t len, struct err *err);
    /* The local file has other bytes: brings it again, to the same path, also while it is held.
     * Waits.  -ERR_NOTFOUND: there is no other copy.  NULL: nor can there be. */
    int (*renew)(struct blobstore *s, const struct blob_id *id, struct err *err);
    void (*let_go)(struct blobstore *s, const struct blob_id *id);
    /* Absent is fine.  Readers that hold a descriptor keep reading. */
    int (*remove)(struct blobstore *s, const struct blob_id *id, struct err *err);
    /* The same at once, whatever its size: its bytes are freed by the next tidy. -ERR_NOTFOUND. */
    int (*hide)(struct blobstore *s, const struct blob_id *id, struct err *err);
    /* Frees what was hidden, and uploads without a writer that nobody has touched since before_s
     * (wall clock). */
    int (*tidy)(struct blobstore *s, int64_t before_s, struct err *err);
    /* What fn returned. */
    int (*list)(struct blobstore *s, blob_list_fn *fn, void *arg, struct err *err);

    /* A writer for the blob `expect` of at most max_bytes, which goes on where the last one
     * was aborted with its bytes kept.  They count against the quota as they come.  -EBUSY:
     * another writer has it. */
    int (*put)(struct blobstore *s, const struct blob_id *expect, uint64_t max_bytes,
               struct blob_writer **ret, struct err *err);
    /* Takes a finished file as a blob: it lies on the same file system, is fsynced, and was
     * hashed by the caller, whose word is taken; the size is checked.  It is moved, or removed
     * where the blob exists.  -ENOSPC: quota; -EXDEV: another file system; the file is then
     * left alone. */
    int (*adopt)(struct blobstore *s, const char *path, const struct blob_id *id, uint64_t size,
                 struct err *err);
    /* Where somebody without a key of the store gets the blob himself, or puts one of `size` bytes:
     * a URL for this method and name and a few minutes, mem_free it.  A PUT must send the headers
     * content-length and x-amz-checksum-sha256 of this very blob.  Never waits.  -EAGAIN: the store
     * is about to have it.  -ERR_UNIMPLEMENTED: it goes through us.  NULL: all does. */
    int (*away)(struct blobstore *s, const struct blob_id *id, bool put, uint64_t size,
                char **ret_url);
    /* Somebody says to have put the blob there: looks, and has it if so.  Waits for the store.
     * -ERR_NOTFOUND: the store has no such blob, or another.  -ERR_HASH: the same, and it was
     * removed there.  -EBUSY: somebody else is looking.  -ENOSPC: quota.  NULL with away. */
    int (*found)(struct blobstore *s, const struct blob_id *id, uint64_t size, struct err *err);
    /* Files beside the blobs that are not to be lost with our disk: a store far away keeps a copy
     * of the file `path` under a name ("outer/1/2/target.3") and the hash of its bytes, brings it
     * back, or drops all whose names begin so.  All wait; NULL: our disk is all there is.  fetch:
     * -ERR_NOTFOUND, and the caller looks at the hash. */
    int (*save)(struct blobstore *s, const char *name, const char *path, const uint8_t sha256[32],
                uint64_t size, struct err *err);
    int (*fetch)(struct blobstore *s, const char *name, const char *path, const uint8_t sha256[32],
                 uint64_t size, struct err *err);
    int (*drop)(struct blobstore *s, const char *names, struct err *err);
    /* How a store far away is; NULL: this one is a directory. */
    void (*health)(struct blobstore *s, struct blob_health *ret);
    /* Ends what waits for a store far away, on any thread: -ERR_CANCELLED. */
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
     * wait.  expect_size UINT64_MAX: any.  -ERR_HASH or -ERR_FORMAT (size): nothing was stored,
     * what was written is gone. The writer is freed in every case. */
    int (*commit)(struct blob_writer *w, uint64_t expect_size, struct err *err);
    /* Gives up; its bytes stay for the next writer when `keep`. */
    void (*abort)(struct blob_writer *w, bool keep);
};

struct blob_writer {
    const struct blob_writer_ops *ops;
    uint64_t size; /* bytes so far, those that were there included */
};

/* The operation read, where get does not say -EAGAIN. */
int blobstore_read_here(struct blobstore *s, const struct blob_id *id, uint64_t from, void *data,
                        size_t len, struct err *err);
/* Whether the store has the blob; ret_size may be NULL. */
bool blobstore_has(struct blobstore *s, const struct blob_id *id, uint64_t *ret_size);

#endif
