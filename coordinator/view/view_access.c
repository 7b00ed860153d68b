/* The tokens of view.h. */
#include "common/base/clock.h"
#include "coordinator/state/core.h"
#include "coordinator/view/view.h"
#include "coordinator/work/member.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tokens.h"

void view_each_token(struct coordinator *co, view_token_fn fn, void *arg)
{
    const int64_t now = (int64_t)clock_wall_ms();
    for (size_t i = 0; i < co->state.n_tokens; i++) {
        const struct token_rec *t = &co->state.tokens[i];
        const struct view_token v = {
            .token = t,
            .state = t->revoked_unix_ms != 0   ? "revoked"
                     : !access_is_live(t, now) ? "ended"
                                               : "live",
            .left_ms = t->ends_unix_ms == 0     ? -1
                       : t->ends_unix_ms <= now ? 0
                                                : t->ends_unix_ms - now,
            .workers_here = access_workers_here(&co->state, t->id, NULL),
            .cost = query_token_cost(&co->state, t->id),
        };
        fn(arg, &v);
    }
}

int view_token_make(struct coordinator *co, const struct token_order *o, uint64_t *ret_id,
                    char ret_text[TOKEN_STRING_MAX], struct err *err)
{
    int rc = core_writable(co, err);
    return rc < 0 ? rc : tokens_make(co, o, ret_id, ret_text, err);
}

int view_token_adjust(struct coordinator *co, uint64_t id, uint64_t holder,
                      const struct token_bounds *b, const struct token_rec **ret, struct err *err)
{
    int rc = core_writable(co, err);
    return rc < 0 ? rc : tokens_adjust(co, id, holder, b, ret, err);
}

int view_token_revoke(struct coordinator *co, uint64_t id, uint64_t holder, struct err *err)
{
    int rc = core_writable(co, err);
    return rc < 0 ? rc : tokens_revoke(co, id, holder, err);
}

int view_worker_revoke(struct coordinator *co, uint64_t worker_id, struct err *err)
{
    int rc = core_writable(co, err);
    struct worker *w = state_edit_worker(&co->state, state_worker(&co->state, worker_id));
    if (rc < 0)
        return rc;
    if (w == NULL)
        return err_set(err, -ERR_NOTFOUND, "worker %llu does not exist",
                       (unsigned long long)worker_id);
    if (w->revoked_unix_ms != 0)
        return err_set(err, -ERR_STALE, "worker %llu was revoked already",
                       (unsigned long long)worker_id);
    member_revoke(co, w, "it was revoked by an operator");
    core_touch(co);
    return 0;
}
