/* Authentication of the RPC server: it lets in workers whose key is on record, and new ones with a
 * token. */
#ifndef COORDINATOR_CLAIM_H
#define COORDINATOR_CLAIM_H

#include "common/net/rpc.h"

struct coordinator;
struct worker;

/* arg is the coordinator; see rpc_authenticate_fn. */
unsigned claim_check(void *arg, const struct rpc_claim *c, uint64_t *ret_token, struct err *err);
/* Checks again when a worker joins on an authenticated connection: by now the token may be used up,
 * revoked, or have as many workers as it allows.  w NULL: the worker is new. */
int claim_join(struct coordinator *co, const struct rpc_peer *peer, const struct worker *w,
               struct err *err);

#endif
