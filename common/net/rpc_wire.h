/* Shared by both ends of the RPC: sending a message, the Hello, error codes.
 * For rpc_server.c and rpc_client.c only. */
#ifndef COMMON_NET_RPC_WIRE_H
#define COMMON_NET_RPC_WIRE_H

#include "common/base/base.h"
#include "common/net/keys.h"
#include "common/net/rpc.h"
#include "proto/envelope.pb-c.h"

#include <protobuf-c/protobuf-c.h>

struct conn;

#define RPC_MAX_IN_FLIGHT 16384
#define RPC_QUEUE_BYTES (1u << 20)
#define RPC_DEADLINE_MS 10000
/* Unpacked, a message may take this many times its limit on the wire. */
#define RPC_UNPACK_FACTOR 16

#define RPC_BUILD_ID_MAX 129

/* Copies the build id of the other side's Hello, truncated and made printable. */
void rpc_build_id_copy(char ret[RPC_BUILD_ID_MAX], const char *build_id);

/* HMAC-SHA256 over keying material of the connection's TLS session. */
int rpc_proof(struct conn *c, const uint8_t secret[KEYS_SECRET_BYTES], uint8_t ret_proof[32],
              struct err *err);

/* Queues one frame.  Codes of conn_reserve(); -ERR_LIMIT: above max_body. */
int rpc_send(struct conn *c, uint8_t flags, uint16_t method, uint64_t id,
             const ProtobufCMessage *msg, uint32_t max_body, bool force);

/* The same frame in a new buffer (mem_free it); -ERR_LIMIT: above max_body. */
int rpc_pack(uint8_t flags, uint16_t method, uint64_t id, const ProtobufCMessage *msg,
             uint32_t max_body, uint8_t **ret, size_t *ret_len);

/* How long to wait before redialling after outage_ms without a server: a sixteenth of that, within
 * the bounds, times a factor of 0.5 to 1 by `random`.  So a server that was away for seconds is
 * found again within a fraction of a second, and a swarm that lost its server does not return all
 * at once. */
uint32_t rpc_backoff_ms(uint64_t outage_ms, uint32_t min_ms, uint32_t max_ms, uint16_t random);

/* Whether the same request may succeed later. */
bool rpc_code_is_retryable(int code);

#endif
