#include "common/outer/fold_share.h"

#include "common/outer/fold.h"

#define SLACK 1e-9 /* so that rounding does not put a share above the cap */

struct sender {
    uint64_t id;
    double weight; /* the sum of its contributions' weights */
    bool capped;
};

static struct sender *find(struct sender *all, size_t *n, uint64_t id)
{
    size_t i = 0;
    while (i < *n && all[i].id != id)
        i++;
    if (i == *n)
        all[(*n)++] = (struct sender){.id = id};
    return &all[i];
}

/* The total weight if each capped sender has its share of it. */
static double whole(const struct sender *all, size_t n, double cap)
{
    double rest = 0, left = 1;
    for (size_t i = 0; i < n; i++)
        if (all[i].capped)
            left -= cap;
        else
            rest += all[i].weight;
    return rest / left;
}

bool fold_share(double cap, const uint64_t *senders, double *weights, size_t n)
{
    struct sender all[FOLD_INPUTS_MAX];
    size_t k = 0;
    bool any = false, more = true;
    for (size_t i = 0; i < n; i++)
        find(all, &k, senders[i])->weight += weights[i];
    if (k == 0)
        return false;
    cap = cap > 2.0 / (double)k ? cap : 2.0 / (double)k;
    while (more) { /* one sender's smaller weight makes the others' shares larger */
        const double most = cap * whole(all, k, cap);
        more = false;
        for (size_t i = 0; i < k; i++)
            if (!all[i].capped && all[i].weight > most * (1 + SLACK))
                all[i].capped = any = more = true;
    }
    const double most = cap * whole(all, k, cap);
    for (size_t i = 0; i < n && any; i++) {
        const struct sender *s = find(all, &k, senders[i]);
        weights[i] *= s->capped ? most / s->weight : 1;
    }
    return any;
}
