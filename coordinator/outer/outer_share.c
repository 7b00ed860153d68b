#include "coordinator/outer/outer_share.h"

#include "common/outer/fold.h"
#include "common/outer/fold_share.h"

_Static_assert(OUTER_CONTRIBUTIONS_MAX <= FOLD_INPUTS_MAX, "fold_share() has room for all");

bool outer_cap_shares(struct outer_step *s)
{
    uint64_t senders[OUTER_CONTRIBUTIONS_MAX];
    double weights[OUTER_CONTRIBUTIONS_MAX];
    size_t n = 0;
    for (size_t i = 0; i < s->n_contributions; i++)
        if (!s->contributions[i].refused) {
            senders[n] = s->contributions[i].sender;
            weights[n++] = s->contributions[i].weight;
        }
    const bool any = fold_share(s->share_cap, senders, weights, n);
    for (size_t i = s->n_contributions; i-- > 0;)
        if (!s->contributions[i].refused)
            s->contributions[i].weight = weights[--n];
    return any;
}
