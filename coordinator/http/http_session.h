/* Logins of browsers: a cookie carries a session's id instead of the secret.
 *
 *     http_session_open(s, holder, id);     id: the cookie's value, random
 *     http_session_holder(s, cookie);       0: unknown, or too old
 *
 * A session ends at its logout, SESSION_IDLE_MS after its last request, SESSION_LIFE_MS after its
 * login, or when SESSIONS_MAX others were used since.  Only hashes are kept, in a file, so that
 * sessions survive a restart, which counts as a request.  Loop thread. */
#ifndef COORDINATOR_HTTP_SESSION_H
#define COORDINATOR_HTTP_SESSION_H

#include "common/base/base.h"

#define SESSIONS_MAX 256
#define SESSION_ID_MAX 44 /* with the terminator */
#define SESSION_IDLE_MS (12ull * 3600 * 1000)
#define SESSION_LIFE_MS (7ull * 24 * 3600 * 1000)

struct http_sessions;

/* path: of the file, copied; an unreadable file counts as empty. */
struct http_sessions *http_sessions_new(const char *path);
void http_sessions_free(struct http_sessions *s); /* accepts NULL */

/* Opens a session of this holder (coordinator/state/access.h). */
void http_session_open(struct http_sessions *s, uint64_t holder, char ret_id[SESSION_ID_MAX]);
/* The holder of session id, which counts as a request of it; 0: unknown, or too old. */
uint64_t http_session_holder(struct http_sessions *s, const char *id);
void http_session_close(struct http_sessions *s, const char *id); /* an unknown one is fine */

#endif
