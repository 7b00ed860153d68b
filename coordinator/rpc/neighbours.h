/* Sends each blob to a site once: remembers which worker of the site has it.
 *
 * Workers that share (JoinRequest.site) are redirected to a neighbour that was sent the blob.  The
 * first worker of a site to ask for a blob is sent it; later ones are redirected to that worker,
 * with its key and a ticket that it accepts for 15 minutes.  A worker that refuses this, or whose
 * transfer from the neighbour failed, is sent the blob and takes the neighbour's place.
 *
 * The memory is bounded (some thousand blobs): a forgotten blob is sent again.  Loop thread. */
#ifndef COORDINATOR_NEIGHBOURS_H
#define COORDINATOR_NEIGHBOURS_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

struct blob_id;
struct blob_neighbour;
struct coordinator;
struct worker;

/* Takes what a joining worker says that it serves; invalid values count as nothing. */
void neighbours_take(struct worker *w, const Skerry__V1__JoinRequest *m);

/* For blob_http_options.neighbour: arg is the coordinator. */
bool neighbours_find(void *arg, const struct blob_id *id, uint64_t size, uint64_t holder,
                     const char *asks, struct blob_neighbour *ret);

#endif
