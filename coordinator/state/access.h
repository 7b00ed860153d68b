/* Tokens: which were made, what their holders may do, and which are still valid.
 *
 *     live ── expires ──► ended      nobody new comes in by it
 *       └──── revoked ──► revoked    and those who came in by it are cut off
 *
 * For a worker's token the secret itself is kept, because its holder proves knowledge of it without
 * sending it; for the others only its SHA-256, because they send it.  Later a worker authenticates
 * with its own key (struct worker).  Expiry goes by the wall clock.  Loop thread. */
#ifndef COORDINATOR_ACCESS_H
#define COORDINATOR_ACCESS_H

#include "common/net/token.h"
#include "coordinator/state/record.h"

struct state;
struct worker;

/* Live or not: the longest revoked make room first, then the ended, but none of a job that goes on.
 */
#define TOKENS_MAX 256

struct token_rec {
    uint64_t id;
    char name[NAME_MAX_BYTES]; /* unique among those that are not revoked */
    enum token_role role;
    uint8_t verifier[32];                 /* the secret, or its SHA-256 */
    int64_t made_unix_ms, ends_unix_ms;   /* ends 0: never */
    int64_t revoked_unix_ms;              /* 0: not revoked */
    uint32_t uses, uses_max, workers_max; /* of a worker's token; max 0: unlimited */
    uint32_t jobs_max;                    /* jobs at once, of an operator's token; 0: unlimited */
    double budget;                        /* dollars for all its jobs; 0: unlimited */
    double spent;                         /* on those that were removed */
    bool edited, told;                    /* (m) its row must be queued; its end was acted upon */
};

/* NULL when there is none. */
const struct token_rec *access_token(const struct state *s, uint64_t id);
/* The one that is not revoked: an ended one keeps its name, since its workers are still here. */
const struct token_rec *access_by_name(const struct state *s, const char *name);
/* The token that has this secret, live or not. */
const struct token_rec *access_by_secret(const struct state *s, enum token_role role,
                                         const uint8_t secret[KEYS_SECRET_BYTES]);

/* For writing, until the end of the turn. */
struct token_rec *access_edit(struct state *s, uint64_t id);
/* A new token; id 0: the next id; NULL at TOKENS_MAX live ones. */
struct token_rec *access_add(struct state *s, uint64_t id, enum token_role role,
                             const uint8_t secret[KEYS_SECRET_BYTES]);

/* Whether it is neither revoked nor past its end. */
bool access_is_live(const struct token_rec *t, int64_t now_unix_ms);
/* How many of its workers are here, not counting `but` (NULL: count all). */
uint32_t access_workers_here(const struct state *s, uint64_t id, const struct worker *but);
/* An index of workers by identity and by key.  Outdated entries stay until the table is full, so
 * each entry found is checked. */
struct access_faces {
    uint64_t *ids; /* 0: empty */
    size_t cap, n;
};

/* Indexes w, whose identity or key has been filled in. */
void access_know(struct state *s, const struct worker *w);
/* NULL: no worker is known by this identity, or key. */
const struct worker *access_worker_by_identity(const struct state *s, const uint8_t identity[16]);
const struct worker *access_worker_by_key(const struct state *s, const uint8_t key[KEYS_PIN_BYTES]);

/* The number of a holder of tickets and connections, which is a worker or a token. */
uint64_t access_holder_worker(uint64_t worker_id);
uint64_t access_holder_token(uint64_t token_id);
/* The holder's token; NULL: the holder is a worker, or no longer exists. */
const struct token_rec *access_token_of(const struct state *s, uint64_t holder);
/* The holder's worker; NULL: the holder is a token, or no longer exists. */
const struct worker *access_worker_of(const struct state *s, uint64_t holder);
/* Whether the holder still has access. */
bool access_holds(const struct state *s, uint64_t holder, int64_t now_unix_ms);

#endif
