/* The worker's one connection to its coordinator, and its own traffic: joining, rejoining after a
 * loss, heartbeats, and the events in their answers.
 *
 *   DOWN ──connected──► JOINING ──JoinReply──► JOINED ──────────┐
 *    ▲                     │  ▲                   │             │ "I do not know you"
 *    └──── connection lost ┴──┼───────────────────┘             │
 *                             └─────────────────────────────────┘
 *   wrong or revoked key or secret: on_failed, once and for good
 *
 * It redials without end, with growing pauses, and logs what it waits for when that changes.  It
 * finds a coordinator that has moved by its host name, by a token file that is updated, or by a
 * list of addresses, which are tried in turn when one does not answer. Everything here runs on the
 * loop thread. */
#ifndef WORKER_SESSION_H
#define WORKER_SESSION_H

#include "common/base/base.h"
#include "common/net/rpc.h"
#include "proto/skerry.pb-c.h"

struct loop;
struct token;
struct session;

/* What JOIN says of this worker's server for blobs (share.h), and the clock from the answer. */
struct session_share {
    const char *site, *host;
    uint16_t port;
    const uint8_t *key;      /* 32 bytes */
    uint64_t now_s, told_ms; /* the coordinator's clock, and our time when we got it */
};

struct session_options {
    struct loop *loop;
    struct token *token;     /* kept until close; has the coordinator's present address */
    const char *token_file;  /* reread while nobody answers; NULL: there is none */
    const char *also;        /* "HOST[:RPC_PORT[:HTTP_PORT]],...", IPv6 in brackets; NULL: none */
    const struct keys *keys; /* the worker's own, kept until close; NULL: none */
    const char *name;        /* strings are kept until close */
    const char *device;
    uint64_t memory_bytes;
    bool allows_trainers;
    double price; /* dollars per hour of this machine; 0: none given */
    uint32_t threads;
    struct session_share *share; /* kept until close; NULL: it serves nobody */
    uint8_t instance[16], identity[16];

    void *arg; /* passed to every callback */
    void (*on_joined)(void *arg, bool again);
    void (*on_lost)(void *arg);
    void (*on_failed)(void *arg, const struct err *why);
    /* Fills the part about the task and the data plane; the strings and arrays
     * it points to live until the next call. */
    void (*fill_heartbeat)(void *arg, Skerry__V1__HeartbeatRequest *req);
    void (*on_heard)(void *arg); /* the last heartbeat was answered */
    void (*on_applied)(void *arg, const Skerry__V1__Applied *applied);
    void (*on_revoked)(void *arg, const Skerry__V1__HeartbeatReply *reply);
    void (*on_drain)(void *arg);
};

int session_open(const struct session_options *o, struct session **ret, struct err *err);
/* Calls in flight complete with -ERR_CANCELLED first. */
void session_close(struct session *s); /* accepts NULL */

/* Whether, as far as we know, the coordinator knows this worker. */
bool session_joined(const struct session *s);

/* A request of the agent; as rpc_client_call, but -ENOTCONN until joined. */
int session_call(struct session *s, uint16_t method, const ProtobufCMessage *msg,
                 const ProtobufCMessageDescriptor *reply, uint32_t deadline_ms, rpc_done_fn done,
                 void *arg, uint64_t *ret_id);
void session_cancel(struct session *s, uint64_t call_id);

/* The coordinator answered that it does not know us: JOIN again. */
void session_rejoin(struct session *s);

/* Sends a heartbeat now, e.g. when the activity changed. */
void session_heartbeat(struct session *s);

/* Announces that this worker will leave within that time; does not wait. */
void session_notice(struct session *s, const char *reason, uint32_t ms);

/* Says good-bye; done(arg) follows when the coordinator has answered, or after wait_ms. */
void session_leave(struct session *s, const char *reason, uint32_t wait_ms, void (*done)(void *arg),
                   void *arg);

/* Whether a person has drained this worker, as the answer to the good-bye said. */
bool session_drained(const struct session *s);

#endif
