/* Who may come in: the tokens that were made, what their holders may do, and what became of them.
 *
 *     live ── expires ──► ended      an end of time: nobody new comes in
 *       └──── revoked ──► revoked    and those who came in by it are cut
 *
 * Of a worker's token the secret itself is kept, because its holder proves to know it without
 * sending it; of the others only its SHA-256, because they send it.  What a worker proves later is
 * its own key (struct worker).  Expiry goes by the wall clock.  Loop thread. */
#ifndef COORDINATOR_ACCESS_H
#define COORDINATOR_ACCESS_H

#include "common/net/token.h"
#include "coordinator/state/record.h"

struct state;
struct worker;

#define TOKENS_MAX 256 /* over or not: the longest revoked make room, then the ended */

struct token_rec {
    uint64_t id;
    char name[NAME_MAX_BYTES]; /* one live token has it */
    enum token_role role;
    uint8_t verifier[32];                 /* the secret, or its SHA-256 */
    int64_t made_unix_ms, ends_unix_ms;   /* ends: 0: never */
    int64_t revoked_unix_ms;              /* 0: not */
    uint32_t uses, uses_max, workers_max; /* of a worker's; max 0: any number */
    uint32_t jobs_max;                    /* of an operator's: that go on at once; 0: any number */
    double budget;                        /* dollars of all its jobs; 0: any */
    bool edited, told;                    /* (m) its row is to be queued; its end was acted upon */
};

/* NULL when there is none. */
const struct token_rec *access_token(const struct state *s, uint64_t id);
const struct token_rec *access_by_name(const struct state *s, const char *name); /* live ones */
/* The one that this secret belongs to, whatever became of it. */
const struct token_rec *access_by_secret(const struct state *s, enum token_role role,
                                         const uint8_t secret[KEYS_SECRET_BYTES]);

/* For writing, until the end of the turn. */
struct token_rec *access_edit(struct state *s, uint64_t id);
/* A new one, id 0: the next; NULL at TOKENS_MAX live ones. */
struct token_rec *access_add(struct state *s, uint64_t id, enum token_role role,
                             const uint8_t secret[KEYS_SECRET_BYTES]);

/* Neither revoked nor past its end. */
bool access_is_live(const struct token_rec *t, int64_t now_unix_ms);
/* How many of its workers are here, `but` not counted (NULL: all). */
uint32_t access_workers_here(const struct state *s, uint64_t id, const struct worker *but);
/* NULL: no worker is known by this key. */
/* Finds workers by what they are known by.  Entries that are not so any more stay until there is no
 * room: each that is found is looked at. */
struct access_faces {
    uint64_t *ids; /* 0: empty */
    size_t cap, n;
};

/* w's identity or key has been filled in. */
void access_know(struct state *s, const struct worker *w);
const struct worker *access_worker_by_identity(const struct state *s, const uint8_t identity[16]);
const struct worker *access_worker_by_key(const struct state *s, const uint8_t key[KEYS_PIN_BYTES]);

/* Holders of tickets and connections: one number for a worker or for a token. */
uint64_t access_holder_worker(uint64_t worker_id);
uint64_t access_holder_token(uint64_t token_id);
/* The holder's token; NULL: a worker, or nobody any more. */
const struct token_rec *access_token_of(const struct state *s, uint64_t holder);
/* The worker; NULL: it is a token, or nobody any more. */
const struct worker *access_worker_of(const struct state *s, uint64_t holder);
/* Does it still count? */
bool access_holds(const struct state *s, uint64_t holder, int64_t now_unix_ms);

#endif
