/* Sends events to the open event streams, and keeps the newest sentences for later clients.  Losses
 * and pieces of text are sent at once, other events after the commit that contains them.  Each
 * event is written as JSON once, and not at all without listeners.  The server cuts a stream that
 * is too slow.  Loop thread. */
#ifndef COORDINATOR_HTTP_EVENTS_H
#define COORDINATOR_HTTP_EVENTS_H

#include <jansson.h>

#include "common/base/base.h"

struct coordinator;
struct http_events;
struct http_request;

#define HTTP_EVENTS_LOG_MAX 200 /* sentences kept */
/* Events that wait for the next commit; the oldest make room, and a sentence says how many. */
#define HTTP_EVENTS_WAITING_MAX 1024

int http_events_new(struct coordinator *co, struct http_events **ret, struct err *err);
/* Ends the streams. */
void http_events_free(struct http_events *ev); /* accepts NULL */

/* Answers with an endless stream. */
void http_events_open(struct http_events *ev, struct http_request *r);

/* [EventLog], oldest first; new reference. */
json_t *http_events_log(const struct http_events *ev);

#endif
