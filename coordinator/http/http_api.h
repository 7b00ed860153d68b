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
 * It keeps no state of the cluster: every answer is made from coordinator/view/view.h
 * at that moment, and leaves when what it shows is durable; every change goes through its commands
 * and is answered when it is durable.  /v1/status is answered also while a commit takes long: as it
 * was when it was last asked for, with the commit in `store`.  /metrics are figures of the moment,
 * and wait for nothing.  Everything runs on the loop thread. */
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
    struct blobstore *store;        /* answers "have you got it?" */
    struct http_sessions *sessions; /* of browsers that have logged in */
    /* Same as the server's. */
    unsigned (*authenticate)(void *arg, const char *presented, uint64_t *ret_holder);
    void *auth_arg;
};

/* Registers the routes and subscribes to the coordinator's events. */
int http_api_open(const struct http_api_options *o, struct http_api **ret, struct err *err);

/* A commit is slow: whoever waits for the status gets it as it was before. */
void http_api_slow(struct http_api *api);

/* Answers what still waits with 503 and ends the event streams.  Call it while
 * the coordinator still lives and before http_server_close(). */
void http_api_close(struct http_api *api); /* accepts NULL */

#endif
