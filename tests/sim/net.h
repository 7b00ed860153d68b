/* The network: connections of workers to the coordinator, in place of common/net/rpc_server.c.
 *
 *   net_dial() ──► on_open ──► net_send() ──► on_reply ...        on_closed ends it, whoever cut it
 *
 * Whoever dials comes to any of the coordinators that listen.  A connection is TCP's: in order,
 * each way by itself.  Bytes are late, not lost, until it is cut; what was on its way is gone then,
 * and each side hears of that when it does. */
#ifndef TESTS_SIM_NET_H
#define TESTS_SIM_NET_H

#include "common/base/base.h"

#include <protobuf-c/protobuf-c.h>

struct net_conn;
struct rpc_server;

struct net_reply {
    uint16_t method;
    uint64_t call;     /* as net_send() was given it */
    int code;          /* 0, or the peer's */
    uint32_t retry_ms; /* with a code: 0: it is of no use */
    const uint8_t *bytes;
    size_t len;
};

/* A worker's side. */
struct net_client {
    const uint8_t *key; /* its fingerprint; 32 bytes */
    void *arg;
    void (*on_open)(void *arg);
    void (*on_reply)(void *arg, const struct net_reply *r);
    void (*on_closed)(void *arg); /* the connection is gone; net_close() does not call it */
};

/* NULL: nobody listens, or (*ret_refused) lets it in. */
struct net_conn *net_dial(const struct net_client *c, bool *ret_refused);
void net_send(struct net_conn *c, uint16_t method, uint64_t call, const ProtobufCMessage *msg);
/* Its process has ended, or its machine is gone: then the coordinator does not hear of it. */
void net_close(struct net_conn *c, bool silently);
/* Cut on the way: both sides hear of it, each when it does. */
void net_cut(struct net_conn *c);
/* Nothing arrives in these directions for so long. */
void net_block(struct net_conn *c, bool up, bool down, uint64_t ms);

/* A coordinator is gone: so are its connections. */
void net_down(const struct rpc_server *s);
/* Answers that are on their way do not arrive. */
void net_lose_answers(void);
void net_end(void); /* forgets all connections */

#endif
