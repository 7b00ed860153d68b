/* What happens, fanned out to the open event streams, and the newest sentences
 * of it for whoever comes later: losses and pieces of texts at once, all else after the commit
 * that has it.  Each event is written as JSON once, and not
 * at all when there is no listener.  A stream that is too slow is cut by the server.
 * Loop thread. */
#ifndef COORDINATOR_HTTP_EVENTS_H
#define COORDINATOR_HTTP_EVENTS_H

#include <jansson.h>

#include "common/base/base.h"

struct coordinator;
struct http_events;
struct http_request;

#define HTTP_EVENTS_LOG_MAX 200 /* sentences kept */
#define HTTP_EVENTS_WAITING_MAX                                                                    \
    1024 /* told after the next commit; the oldest make                                            \
          * room, and a sentence says how many */

int http_events_new(struct coordinator *co, struct http_events **ret, struct err *err);
/* Ends the streams. */
void http_events_free(struct http_events *ev); /* accepts NULL */

/* Answers with an endless stream. */
void http_events_open(struct http_events *ev, struct http_request *r);

/* [EventLog], oldest first; new reference. */
json_t *http_events_log(const struct http_events *ev);

#endif
