/* A blocking HTTP(S) client for command-line programs: any thread, no loop. */
#ifndef COMMON_NET_HTTP_CLIENT_H
#define COMMON_NET_HTTP_CLIENT_H

#include <signal.h>

#include "common/net/http/transfer.h"

struct http_client; /* keeps its connection between calls */
struct http_response {
    long status;
    char *body; /* terminated; free with http_response_release */
    size_t len;
};

/* base: "https://host:port"; pin and bearer as in transfer.h, copied; may be NULL. */
int http_client_new(const char *base, const uint8_t *pin, const char *bearer,
                    struct http_client **ret, struct err *err);
void http_client_free(struct http_client *c); /* accepts NULL */
/* Once *flag is set (by a signal handler), connecting, GETs and file transfers end with
 * -ERR_CANCELLED within a second.  A command that is on its way does not, since its answer must be
 * known, nor one that is begun after that. */
void http_client_heed(struct http_client *c, const volatile sig_atomic_t *flag);
/* tell is called during a call that has waited ms and got no byte of an answer, once per call;
 * command: it is no GET. */
void http_client_on_slow(struct http_client *c, unsigned ms, void (*tell)(void *arg, bool command),
                         void *arg);
/* Only connects: checks that a server with the pinned key is there. */
int http_client_connect(struct http_client *c, struct err *err);
/* path begins with '/'; body NULL: none.  0 for any HTTP status; negative when
 * no answer came (server down, wrong key, more than 64 MiB). */
int http_call(struct http_client *c, const char *method, const char *path, const void *body,
              size_t len, struct http_response *ret, struct err *err);
void http_response_release(struct http_response *r);
/* Status below 300: 0.  Else a negative code and the server's own sentence. */
int http_response_check(const struct http_response *r, struct err *err);
/* Download or upload a whole file.  put: path has a ticket.  Both resume, and retry for a minute
 * without a byte, as a server that restarts needs.  sha256 may be NULL.  A downloaded file is
 * readable as the umask allows.  An incomplete download leaves no file, but with sha256 FILE.part
 * if http_get_goes_on(): the next one to that file goes on with it. */
bool http_get_goes_on(int code); /* it was interrupted, or the network failed */
int http_get_file(struct http_client *c, const char *path, const char *file, const uint8_t *sha256,
                  xfer_progress_fn progress, void *arg, struct err *err);
int http_put_file(struct http_client *c, const char *path, const char *file,
                  xfer_progress_fn progress, void *arg, struct err *err);

#endif
