/* Makes, adjusts and revokes tokens, and gives the role of a token's holder.  See docs/security.md.
 */
#ifndef COORDINATOR_TOKENS_H
#define COORDINATOR_TOKENS_H

#include "coordinator/state/core.h"

/* A requested token.  0: no end, no limit. */
struct token_order {
    const char *name; /* NULL: its role and number */
    enum token_role role;
    uint64_t life_ms;
    uint32_t uses_max, workers_max, jobs_max;
    double budget; /* dollars of its jobs */
};

/* New bounds of a token.  NAN: unchanged; 0: no limit. */
struct token_bounds {
    double uses, workers, jobs, budget;
    double life_s; /* its end, from now on, also of one that has ended */
};

/* Records the two tokens of the first start, whose secrets are in files of the data directory.
 * Workers of older releases belong to the first. */
void tokens_of_files(struct coordinator *co);

/* -EEXIST: a token of that name is in use; -ERR_LIMIT. */
int tokens_make(struct coordinator *co, const struct token_order *o, uint64_t *ret_id,
                char ret_text[TOKEN_STRING_MAX], struct err *err);
/* Changes a token's bounds.  Workers that it let in and jobs under way stay.  asker: the holder who
 * asks; it cannot change its own bounds. */
int tokens_adjust(struct coordinator *co, uint64_t id, uint64_t asker, const struct token_bounds *b,
                  const struct token_rec **ret, struct err *err);
/* Shuts out all who came in by the token, for good.  asker: the holder who asks, and stays. */
int tokens_revoke(struct coordinator *co, uint64_t id, uint64_t asker, struct err *err);
/* Cuts the HTTP connections of tokens that have expired; workers that came in by one stay. */
void tokens_check(struct coordinator *co);

/* The role and the holder (access.h) of the client that presents this secret over HTTP; 0: none. */
enum token_role tokens_role(const struct coordinator *co, const char *presented,
                            uint64_t *ret_holder);
/* The role of a known holder. */
enum token_role tokens_role_of(const struct coordinator *co, uint64_t holder);
/* Whether this role may read this blob without a ticket. */
bool tokens_may_get(const struct coordinator *co, enum token_role role, const uint8_t sha256[32]);

#endif
