/* Tokens in use: making and revoking them, and who may do what by one.  See docs/security.md. */
#ifndef COORDINATOR_TOKENS_H
#define COORDINATOR_TOKENS_H

#include "coordinator/state/core.h"

/* A token that is asked for.  0: no end, any number. */
struct token_order {
    const char *name; /* NULL: its role and number */
    enum token_role role;
    uint64_t life_ms;
    uint32_t uses_max, workers_max, jobs_max;
    double budget; /* dollars of its jobs */
};

/* New bounds of a token.  NAN: as it is; 0: any. */
struct token_bounds {
    double uses, workers, jobs, budget;
};

/* The two of the first start: those whose secrets are in files of the data dir.  Workers of older
 * releases belong to the first. */
void tokens_of_files(struct coordinator *co);

/* -EEXIST: a token of that name is in use; -ERR_LIMIT. */
int tokens_make(struct coordinator *co, const struct token_order *o, uint64_t *ret_id,
                char ret_text[TOKEN_STRING_MAX], struct err *err);
/* Workers that it let in, and jobs that go on, stay.  asker: the holder that asks for it, which
 * cannot bound itself. */
int tokens_adjust(struct coordinator *co, uint64_t id, uint64_t asker, const struct token_bounds *b,
                  const struct token_rec **ret, struct err *err);
/* Cuts all that came in by it, for good.  asker: the holder that asks for it, and stays. */
int tokens_revoke(struct coordinator *co, uint64_t id, uint64_t asker, struct err *err);
/* Cuts what still hangs on tokens whose end has come. */
void tokens_check(struct coordinator *co);

/* The role of whoever presents this over HTTP, and the holder of access.h; 0: nobody. */
enum token_role tokens_role(const struct coordinator *co, const char *presented,
                            uint64_t *ret_holder);
/* The same of a holder that was known before. */
enum token_role tokens_role_of(const struct coordinator *co, uint64_t holder);
/* May this role read this blob without a ticket? */
bool tokens_may_get(const struct coordinator *co, enum token_role role, const uint8_t sha256[32]);

#endif
