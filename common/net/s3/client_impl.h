/* The inside of the client: one request with its retries (request.c), used by the operations
 * (client.c) and by uploads in parts (multipart.c). */
#ifndef COMMON_NET_S3_CLIENT_IMPL_H
#define COMMON_NET_S3_CLIENT_IMPL_H

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/base/buf.h"
#include "common/net/http/patience.h"
#include "common/net/http/socket_bytes.h"
#include "common/net/s3/client.h"
#include "common/net/s3/credentials.h"
#include "common/net/s3/sign.h"

#define S3_IDLE_MAX 16           /* idle connections kept */
#define S3_ANSWER_MAX (4u << 20) /* of XML */
#define S3_PART_BYTES (64ull << 20)
#define S3_PARTS_MAX 10000u
#define S3_URL_MAX 16384

/* One that is used for many requests, one at a time: its connection stays. */
struct s3_handle {
    CURL *easy;
    CURLM *multi;
    struct socket_bytes sockets;
};

struct s3 {
    char bucket[64], region[64], scheme[8], host[256], where[400];
    bool virtual_host;
    uint64_t part_bytes;
    unsigned tries;
    uint32_t first_wait_ms, stall_s, first_stall_s;
    _Atomic bool stopping;
    _Atomic uint64_t requests, repeats, bytes_in, bytes_out;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;  /* s3_stop() */
    struct s3_credentials who;
    struct s3_handle *idle[S3_IDLE_MAX];
    unsigned n_idle;
    struct patience got, put; /* for answers to requests without and with a body */
    int64_t failing_since_unix_ms;
    char error[256];
};

struct s3_request {
    const char *method;
    const char *key; /* "": of the bucket */
    struct s3_pair query[S3_QUERY_MAX], headers[S3_HEADERS_MAX];
    /* The body: text, or bytes of an open file. */
    const char *text; /* NULL: none */
    int fd;           /* used if size > 0 */
    uint64_t offset, size;
    void (*between)(void *arg); /* called once, when libcurl has a byte of the body; or NULL */
    void *between_arg;
    /* Where a good answer goes. */
    bool once;        /* no second try: the caller has another way */
    s3_sink_fn *sink; /* NULL: into answer */
    void *arg;
    uint64_t from;  /* the first byte wanted */
    uint64_t until; /* the end of the wanted range; 0: the object's end */
    uint64_t whole; /* bytes of the object; 0: unknown, and only the whole object is accepted */
    /* Results. */
    long status;
    struct buf answer;
    uint64_t got;    /* bytes that the sink took */
    uint64_t length; /* Content-Length of the last answer */
    char etag[128];
    char sum[S3_SUM_MAX]; /* x-amz-checksum-sha256; "": absent */
    /* Of a try. */
    struct s3_handle *handle;
    struct s3 *c;
    unsigned tried; /* tries in a row without a new byte */
    struct patience_wait wait;
    double patience_ms; /* how long to wait for its answer */
    bool silent;        /* the try ended because there was no answer */
    uint64_t sent, skip;
    int sink_rc, read_rc; /* why our own side broke it off */
    bool of_role;         /* signed with a role's key */
    char its_region[64];
    int64_t date_s;
};

/* Sends the request until it succeeds, fails for good or has used up its tries.  The caller
 * releases it in any case. */
int s3_request_run(struct s3 *c, struct s3_request *r, struct err *err);
/* Appends to url the signed URL of a request, valid for life_s. */
int s3_request_sign(struct s3 *c, const struct s3_request *r, const struct s3_credentials *who,
                    uint32_t life_s, struct buf *url);
void s3_request_init(struct s3_request *r, const char *method, const char *key);
void s3_request_release(struct s3_request *r);
void s3_handle_free(struct s3_handle *h);

/* Puts a file as several parts, which the store joins. */
int s3_put_parts(struct s3 *c, const char *key, int fd, uint64_t size, struct err *err);

#endif
