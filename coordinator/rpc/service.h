/* The methods that workers call, as rows for the RPC server. */
#ifndef COORDINATOR_SERVICE_H
#define COORDINATOR_SERVICE_H

#include "common/net/rpc.h"

struct coordinator;
struct rpc_peer;

extern const struct rpc_method service_methods[];
extern const unsigned service_method_count;
/* The connection is gone. */
void service_peer_closed(struct coordinator *co, struct rpc_peer *peer);

#endif
