/* The methods that workers call, as rows for the RPC server. */
#ifndef COORDINATOR_SERVICE_H
#define COORDINATOR_SERVICE_H

#include "common/net/rpc.h"

struct coordinator;
struct rpc_peer;

extern const struct rpc_method service_methods[];
extern const unsigned service_method_count;
/* Called once a tick: answers the heartbeats of new workers that were delayed.  Under many names so
 * many could join that their heartbeats alone would occupy the machine.  So answers to those
 * without a task are delayed until all of them together send 2,000 a second, but by at most a
 * quarter of a lease. */
void service_tick(struct coordinator *co);
/* The peer's connection has closed. */
void service_peer_closed(struct coordinator *co, struct rpc_peer *peer);

#endif
