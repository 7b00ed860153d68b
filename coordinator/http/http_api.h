/* The coordinator over HTTP: the API of docs/openapi.yaml, the metrics for
 * Prometheus and the dashboard, as routes of an http_server.
 *
 *     http_server_open(loop, &{.authenticate = auth, ...}, &server, err);
 *     blob_http_open(server, ..., &blobs, err);
 *     http_api_open(&{.co = co, .server = server, ...}, &api, err);
 *     ...
 *     http_api_close(api);        // ends the event streams; no request is open after it
 *     http_server_close(server);
 *
 * It keeps no state of the cluster.  Every answer is made from coordinator/view/view.h and leaves
 * once the state that it shows is durable; every change goes through the commands there and is
 * answered once it is durable.  During a slow commit /v1/status is answered with the previous
 * status, updated by the commit in `store`.  /metrics shows the present figures and waits for
 * nothing. Everything runs on the loop thread. */
#ifndef COORDINATOR_HTTP_API_H
#define COORDINATOR_HTTP_API_H

#include "common/base/base.h"

struct blob_http;
struct blobstore;
struct coordinator;
struct http_api;
struct http_server;
struct http_sessions;

/* All pointers are kept until close, strings are copied. */
struct http_api_options {
    struct coordinator *co;
    struct http_server *server;
    struct blob_http *blobs;        /* signs upload tickets */
    struct blobstore *store;        /* tells whether an upload is needed */
    struct http_sessions *sessions; /* of logged-in browsers */
    /* Same as the server's. */
    unsigned (*authenticate)(void *arg, const char *presented, uint64_t *ret_holder);
    void *auth_arg;
};

/* Registers the routes and subscribes to the coordinator's events. */
int http_api_open(const struct http_api_options *o, struct http_api **ret, struct err *err);

/* A commit is slow: answers requests for the status with the previous one. */
void http_api_slow(struct http_api *api);

/* Answers waiting requests with 503 and ends the event streams.  Call it while the coordinator
 * still exists and before http_server_close(). */
void http_api_close(struct http_api *api); /* accepts NULL */

#endif
