/* Down once, spread many: which worker of a site has a blob.
 *
 * Workers that share (JoinRequest.site) are led to each other for what one of them was sent.  The
 * first of a site to ask for a blob is sent it; whoever of the same site asks later is led to that
 * one, with a ticket that is good there, for 15 minutes, and with its key.  Whoever does not want
 * that, or was failed by that one, is sent the blob and takes its place.
 *
 * What is remembered is bounded (some thousand blobs, in memory): what is forgotten is sent once
 * more.  Loop thread. */
#ifndef COORDINATOR_NEIGHBOURS_H
#define COORDINATOR_NEIGHBOURS_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

struct blob_id;
struct blob_neighbour;
struct coordinator;
struct worker;

/* What a worker that joins says of what it serves; what makes no sense counts as nothing. */
void neighbours_take(struct worker *w, const Skerry__V1__JoinRequest *m);

/* For blob_http_options.neighbour: arg is the coordinator. */
bool neighbours_find(void *arg, const struct blob_id *id, uint64_t size, uint64_t holder,
                     const char *asks, struct blob_neighbour *ret);

#endif
