#include "coordinator/rpc/claim.h"

#include "common/base/clock.h"
#include "coordinator/decide/admit.h"
#include "coordinator/state/core.h"

static int check_token(const struct state *s, const struct token_rec *t, const struct worker *w,
                       bool is_new, uint32_t workers_max, struct err *err)
{
    char reason[ADMIT_REASON_MAX];
    const struct admit_token in = {
        .name = t->name,
        .now_unix_ms = (int64_t)clock_wall_ms(),
        .ends_unix_ms = t->ends_unix_ms,
        .revoked = t->revoked_unix_ms != 0,
        .is_new = is_new,
        .uses = t->uses,
        .uses_max = t->uses_max,
        .workers_here = workers_max > 0 ? access_workers_here(s, t->id, w) : 0,
        .workers_max = workers_max,
    };
    int rc = admit_token(&in, reason);
    return rc < 0 ? err_set(err, rc, "%s", reason) : 0;
}

static int check_worker(const struct state *s, const struct worker *w, struct err *err)
{
    if (w->revoked_unix_ms != 0)
        return err_set(err, -ERR_AUTH,
                       "worker %llu (%s) was revoked by an operator, and the identity in its work "
                       "directory is not valid any more: with a new work directory and a live "
                       "token this machine joins as a new worker",
                       (unsigned long long)w->id, w->name);
    return 0;
}

unsigned claim_check(void *arg, const struct rpc_claim *c, uint64_t *ret_token, struct err *err)
{
    const struct coordinator *co = arg;
    const struct state *s = &co->state;
    const uint8_t *key = rpc_claim_key(c);
    const struct worker *w = key ? access_worker_by_key(s, key) : NULL;
    if (w != NULL) {
        *ret_token = w->token_id;
        return check_worker(s, w, err) == 0 ? TOKEN_ROLE_WORKER : TOKEN_ROLE_NONE;
    }
    for (size_t i = 0; i < s->n_tokens; i++) {
        const struct token_rec *t = &s->tokens[i];
        if (t->role != TOKEN_ROLE_WORKER || !rpc_claim_proves(c, t->verifier))
            continue;
        *ret_token = t->id;
        /* A worker without a key may be known by its identity, which its join tells. */
        return check_token(s, t, NULL, key != NULL, 0, err) == 0 ? TOKEN_ROLE_WORKER
                                                                 : TOKEN_ROLE_NONE;
    }
    (void)err_set(err, -ERR_AUTH,
                  "the token's secret is not known to this server: get a new token from it");
    return TOKEN_ROLE_NONE;
}

int claim_join(struct coordinator *co, const struct rpc_peer *peer, const struct worker *w,
               struct err *err)
{
    const struct token_rec *t = access_token(&co->state, w ? w->token_id : rpc_peer_token(peer));
    int rc = w ? check_worker(&co->state, w, err) : 0;
    if (rc < 0 || t == NULL) /* a known worker's token may have made room for others */
        return rc;
    return check_token(&co->state, t, w, w == NULL, t->workers_max, err);
}
