/* Errors are values.  A fallible function returns 0 or a negative code; when a
 * person may read the failure it also takes a final `struct err *` (may be
 * NULL), filled where the fault happened and wrapped with context on the way
 * up.  Only the caller that handles an error logs it.
 *
 *     if (file_read(path, max, &buf, err) < 0)
 *         return err_wrap(err, "reading the job %s", path);
 *
 * Codes are negated errno values plus the ones of ERR_MAP, so a code fits an
 * exit status, a wire message and a log line alike. */
#ifndef COMMON_BASE_ERR_H
#define COMMON_BASE_ERR_H

/* number, name, text */
#define ERR_MAP(X)                                                                                 \
    X(1001, FORMAT, "malformed data")                                                              \
    X(1002, HASH, "content does not match its hash")                                               \
    X(1003, AUTH, "not authorised")                                                                \
    X(1004, VERSION, "incompatible version")                                                       \
    X(1005, LIMIT, "a stated maximum was exceeded")                                                \
    X(1006, STALE, "superseded by a newer attempt")                                                \
    X(1007, CANCELLED, "cancelled")                                                                \
    X(1008, REMOTE, "the peer reported an error")                                                  \
    X(1009, CONFIG, "invalid configuration")                                                       \
    X(1010, DEVICE, "device failure")                                                              \
    X(1011, NOTFOUND, "not found")                                                                 \
    X(1012, UNIMPLEMENTED, "not known to this version")                                            \
    X(1013, TRAINER, "the job's own trainer failed")                                               \
    X(1014, USAGE, "wrong command line")

/* ERR_FORMAT and so on; codes are their negatives. */
enum err_code {
#define X(num, name, text) ERR_##name = num,
    ERR_MAP(X)
#undef X
};

struct err {
    int code;       /* negative; 0: empty */
    char msg[1024]; /* one sentence, outermost context first; always terminated */
};

/* Sets the sentence and returns `code` (negative), for `return err_set(...)`.
 * Control bytes are escaped, overlong text is cut with "...". */
int err_set(struct err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The same from errno: appends ": <strerror>" and returns -errno. */
int err_errno(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Prefixes "<context>: " and returns the code already in err. */
int err_wrap(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Text of a code, never NULL: err_text(-ENOENT), err_text(-ERR_HASH). */
const char *err_text(int code);

#endif
