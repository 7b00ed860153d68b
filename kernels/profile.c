#include "kernels/profile.h"

#include <time.h>

double profile_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct profile_rec *find(struct profile *p, const char *op, const int64_t dims[4])
{
    for (int i = 0; i < p->n; i++) {
        struct profile_rec *r = &p->rec[i];
        if (r->m == dims[0] && r->n == dims[1] && r->k == dims[2] && r->kind == (int)dims[3] &&
            strcmp(r->op, op) == 0)
            return r;
    }
    return NULL;
}

void profile_add(struct profile *p, const char *op, const int64_t dims[4], double seconds)
{
    static const int64_t none[4];
    bool last = p->n >= PROFILE_MAX - 1;
    struct profile_rec *r = find(p, op, dims);
    if (!r && last)
        r = find(p, op = "other", dims = none);
    if (!r) {
        r = &p->rec[p->n++];
        *r = (struct profile_rec){
            .op = op, .m = dims[0], .n = dims[1], .k = dims[2], .kind = (int)dims[3]};
    }
    r->calls++;
    r->seconds += seconds;
}

double profile_seconds(const struct profile *p, const char *op)
{
    double sum = 0;
    for (int i = 0; i < p->n; i++)
        if (!op || strcmp(p->rec[i].op, op) == 0)
            sum += p->rec[i].seconds;
    return sum;
}
