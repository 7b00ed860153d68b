/* The methods that workers call, as rows for the RPC server. */
#ifndef COORDINATOR_SERVICE_H
#define COORDINATOR_SERVICE_H

#include "common/net/rpc.h"

struct coordinator;
struct rpc_peer;

extern const struct rpc_method service_methods[];
extern const unsigned service_method_count;
/* Once a tick: answers heartbeats of newcomers that wait.  So many may come under a thousand names
 * that their heartbeats alone would take the machine: those without a task are answered so late
 * that all of them together send 2,000 a second, and none more than a quarter of a lease late. */
void service_tick(struct coordinator *co);
/* The connection is gone. */
void service_peer_closed(struct coordinator *co, struct rpc_peer *peer);

#endif
