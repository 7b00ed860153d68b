/* A client of an S3-compatible object store: puts files, gets objects in pieces, lists them.
 *
 *     struct s3 *c;
 *     if (s3_open(&(struct s3_options){.bucket = "b"}, &c, err) < 0) ...
 *     s3_put(c, "key", path, size, sha256, err);
 *     s3_close(c);
 *
 * Calls may be made on any thread and wait for the store; s3_stop() ends them.  Passing failures
 * (HTTP 500, 503, 429, a cut, silence) are retried, each time after about twice the wait; bytes
 * already received are not requested again.  Errors are sentences (answer.h).  -ERR_NOTFOUND: the
 * store said so of this object; -ERR_CANCELLED: s3_stop(); a code that s3_may_pass() accepts: a
 * later try may succeed.  No call returns -ERR_STALE, which in log.h means that the log is
 * another's.
 *
 * Requests are signed in their URLs (sign.h).  Large files are sent in parts, and an interrupted
 * upload resumes after the parts that the store has. */
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
    unsigned tries;         /* of a request, in a row without a new byte [6] */
    uint32_t first_wait_ms; /* before the second try [200] */
    /* How long to wait for an answer: see patience.h; at most stall_s. */
    uint32_t stall_s;       /* a try ends after this time without a byte [30] */
    uint32_t first_stall_s; /* the first try's; doubled with each further one [5] */
};

/* Splits "s3://BUCKET/PREFIX"; the prefix (mem_free it) has no slashes at its ends and may be "".
 * -ERR_CONFIG. */
int s3_split(const char *url, char ret_bucket[64], char **ret_prefix, struct err *err);

/* Reads the key (credentials.h); sends no request yet.  -ERR_CONFIG: an option is invalid. */
int s3_open(const struct s3_options *o, struct s3 **ret, struct err *err);
/* Ends present and later calls with -ERR_CANCELLED. */
void s3_stop(struct s3 *c);
void s3_close(struct s3 *c); /* accepts NULL; no call may be under way */

/* Puts a file as an object.  sha256 is the hash of its bytes; a store that supports it compares it
 * (-ERR_HASH, as of a file that is shorter).  A key must always name the same bytes: an interrupted
 * upload in parts resumes under its key, and would use parts of other bytes as well. */
int s3_put(struct s3 *c, const char *key, const char *path, uint64_t size, const uint8_t sha256[32],
           struct err *err);
/* Puts a small object. */
int s3_put_text(struct s3 *c, const char *key, const char *text, struct err *err);
/* Puts a new object (If-None-Match: *).  -EEXIST: it exists, perhaps by an earlier try of ours.
 * -ERR_UNIMPLEMENTED: the store has no conditional writes. */
int s3_put_new(struct s3 *c, const char *key, const void *data, size_t len, struct err *err);
/* Whether the store takes both of two conditional writes of an object, of which one begins and ends
 * while the other is under way.  Tries it on objects "STEM-<random>", and removes them.  False also
 * where it cannot be found out, after a stall: where one waits for the other, say. */
bool s3_takes_both(struct s3 *c, const char *stem);

/* Receives the pieces in order; a negative result ends the transfer with that code. */
typedef int s3_sink_fn(void *arg, const void *data, size_t len);
/* Gets the bytes from `from` to the end of an object of `size` bytes.  -ERR_FORMAT: it has another
 * size; the sink never gets bytes beyond `size`. */
int s3_get(struct s3 *c, const char *key, uint64_t from, uint64_t size, s3_sink_fn *sink, void *arg,
           struct err *err);
/* Gets an object as a file, which appears once it is complete. */
int s3_get_file(struct s3 *c, const char *key, const char *path, uint64_t size, struct err *err);
/* Gets only len bytes from `from` on, of an object of `size` bytes.  -ERR_FORMAT: the store sends
 * others. */
int s3_get_piece(struct s3 *c, const char *key, uint64_t from, uint64_t size, void *data,
                 size_t len, struct err *err);
/* Appends an object of unknown size to ret, whose maximum bounds it: -ERR_LIMIT. */
int s3_get_all(struct s3 *c, const char *key, struct buf *ret, struct err *err);
/* Gets a small object as text; -ERR_LIMIT: it exceeds cap. */
int s3_get_text(struct s3 *c, const char *key, char *ret, size_t cap, struct err *err);

#define S3_SUM_MAX 45 /* a SHA-256 as base64, with the terminator */

/* An object's size, and the SHA-256 of its bytes as base64 if the store knows it (else ""). */
int s3_head(struct s3 *c, const char *key, uint64_t *ret_size, char ret_sum[S3_SUM_MAX],
            struct err *err); /* one try */
/* A URL by which anybody can get the object within life_s, or (size > 0) put one with this size and
 * hash, sending the headers content-length and x-amz-checksum-sha256.  mem_free it.  It expires
 * with the key's session at the latest.  Sends no request: -EAGAIN if the session has less than a
 * minute left; the next request then renews it. */
int s3_presign(struct s3 *c, const char *key, uint64_t size, const uint8_t sha256[32],
               uint32_t life_s, char **ret_url);
int s3_delete(struct s3 *c, const char *key, struct err *err); /* absent is fine */

/* Called for each object until it returns non-zero.  modified_s: by the store's clock; 0: unknown.
 */
typedef int s3_list_fn(void *arg, const char *key, uint64_t size, int64_t modified_s);
/* Lists all objects below a prefix, in pages of at most 1000.  -ERR_REMOTE: the store lists other
 * objects, too, or repeats pages endlessly. */
int s3_list(struct s3 *c, const char *prefix, s3_list_fn *fn, void *arg, struct err *err);

/* Whether a call that failed with this code may succeed later without a person's help. */
bool s3_may_pass(int code);

struct s3_health {
    uint64_t requests, repeats;    /* repeats: tries after the first */
    uint64_t bytes_in, bytes_out;  /* of bodies */
    int64_t failing_since_unix_ms; /* the first of the failures since the last success; 0: none */
    char error[256];               /* the newest of them */
};
struct s3_health s3_health(struct s3 *c);

/* The client's "https://host/bucket". */
const char *s3_where(const struct s3 *c);

#endif
