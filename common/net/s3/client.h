/* A client of an S3-compatible object store: puts files, gets objects piece by piece, lists.
 *
 *     struct s3 *c;
 *     if (s3_open(&(struct s3_options){.bucket = "b"}, &c, err) < 0) ...
 *     s3_put(c, "key", path, size, sha256, err);
 *     s3_close(c);
 *
 * Calls may be made on any thread and wait for the store; s3_stop() ends them.  What may pass
 * (HTTP 500, 503, 429, a cut, silence) is tried again, each time after about twice as long; what
 * had come by then is not asked for twice.  Errors are sentences (answer.h): -ERR_NOTFOUND means
 * that the store said so of this object, -ERR_CANCELLED s3_stop(), and codes that s3_may_pass()
 * says that another try, later, may go well.  None is -ERR_STALE, which says of a log (log.h)
 * that it is another's.
 *
 * Requests are signed in their URLs (sign.h).  Large files go in parts, and an upload that was cut
 * goes on with the parts that the store has. */
#ifndef COMMON_NET_S3_CLIENT_H
#define COMMON_NET_S3_CLIENT_H

#include "common/base/base.h"

struct buf;
struct s3;

#define S3_KEY_MAX 1024

/* Zero means the default in brackets. */
struct s3_options {
    const char *bucket;
    const char *endpoint;   /* "https://host[:port]" [Amazon's of the region] */
    const char *region;     /* ["us-east-1"] */
    bool plain;             /* the endpoint may be http:// */
    bool virtual_host;      /* the bucket is part of the host's name [only at Amazon's] */
    uint64_t part_bytes;    /* larger files go in parts of this [64 MiB] */
    unsigned tries;         /* of a request that brings nothing new [6] */
    uint32_t first_wait_ms; /* before the second try [200] */
    /* An answer is waited for as patience.h has it, stall_s at most. */
    uint32_t stall_s;       /* so long without a byte end a try [30] */
    uint32_t first_stall_s; /* of what comes the first one, the next twice as much [5] */
};

/* "s3://BUCKET/PREFIX" in two, the prefix (mem_free it) without slashes at its ends, perhaps "".
 * -ERR_CONFIG. */
int s3_split(const char *url, char ret_bucket[64], char **ret_prefix, struct err *err);

/* Reads the key (credentials.h) and asks the store for nothing yet.  -ERR_CONFIG: what is given
 * cannot be. */
int s3_open(const struct s3_options *o, struct s3 **ret, struct err *err);
/* Ends what is under way and what begins later: -ERR_CANCELLED. */
void s3_stop(struct s3 *c);
void s3_close(struct s3 *c); /* accepts NULL; no call may be under way */

/* A file as an object; sha256 is that of its bytes, which a store that can compares (-ERR_HASH).
 * The key names the bytes: an upload in parts that was cut is gone on with under the same key, and
 * parts of other bytes would be taken for these. */
int s3_put(struct s3 *c, const char *key, const char *path, uint64_t size, const uint8_t sha256[32],
           struct err *err);
/* A few bytes. */
int s3_put_text(struct s3 *c, const char *key, const char *text, struct err *err);
/* Bytes as a new object (If-None-Match: *).  -EEXIST: there is one, perhaps of an earlier try of
 * ours.  -ERR_UNIMPLEMENTED: the store knows no conditional writes. */
int s3_put_new(struct s3 *c, const char *key, const void *data, size_t len, struct err *err);

/* Gets each piece in order; negative ends the transfer with that code. */
typedef int s3_sink_fn(void *arg, const void *data, size_t len);
/* Bytes from `from` to the end of an object of `size` bytes.  -ERR_FORMAT: it has another size; the
 * sink gets no more than that. */
int s3_get(struct s3 *c, const char *key, uint64_t from, uint64_t size, s3_sink_fn *sink, void *arg,
           struct err *err);
/* The same as a file, which is there when all of it is. */
int s3_get_file(struct s3 *c, const char *key, const char *path, uint64_t size, struct err *err);
/* len bytes from `from` on, and no others, of an object of `size` bytes.  -ERR_FORMAT: the store
 * gives others. */
int s3_get_piece(struct s3 *c, const char *key, uint64_t from, uint64_t size, void *data,
                 size_t len, struct err *err);
/* An object of unknown size behind what ret has, which bounds it: -ERR_LIMIT. */
int s3_get_all(struct s3 *c, const char *key, struct buf *ret, struct err *err);
/* A small object as text; -ERR_LIMIT beyond cap. */
int s3_get_text(struct s3 *c, const char *key, char *ret, size_t cap, struct err *err);

#define S3_SUM_MAX 45 /* a SHA-256 as base64, with the terminator */

/* An object's size, and the SHA-256 of its bytes as base64 where the store knows it (else ""). */
int s3_head(struct s3 *c, const char *key, uint64_t *ret_size, char ret_sum[S3_SUM_MAX],
            struct err *err); /* one try */
/* A URL by which anybody gets the object within life_s, or (size > 0) puts one of these bytes, with
 * the headers content-length and x-amz-checksum-sha256.  mem_free it.  It ends with the key's
 * session at the latest.  Asks nobody: -EAGAIN where that has less than a minute left, and the next
 * request brings a new one. */
int s3_presign(struct s3 *c, const char *key, uint64_t size, const uint8_t sha256[32],
               uint32_t life_s, char **ret_url);
int s3_delete(struct s3 *c, const char *key, struct err *err); /* absent is fine */

/* Called for each object until it returns non-zero. */
typedef int s3_list_fn(void *arg, const char *key, uint64_t size);
/* All objects below a prefix, a page of at most 1000 at a time.  -ERR_REMOTE: the store lists
 * others, too, or the same pages again and again. */
int s3_list(struct s3 *c, const char *prefix, s3_list_fn *fn, void *arg, struct err *err);

/* May it go well later, without a person? */
bool s3_may_pass(int code);

struct s3_health {
    uint64_t requests, repeats;    /* repeats: tries after the first */
    uint64_t bytes_in, bytes_out;  /* of bodies */
    int64_t failing_since_unix_ms; /* the first of the failures since the last success; 0: none */
    char error[256];               /* the newest of them */
};
struct s3_health s3_health(struct s3 *c);

/* "https://host/bucket", of this client. */
const char *s3_where(const struct s3 *c);

#endif
