#include "kernels/profile.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

double profile_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct profile_rec *find(struct profile *p, const char *op, const int64_t dims[3], int kind)
{
    for (int i = 0; i < p->n; i++) {
        struct profile_rec *r = &p->rec[i];
        if (r->m == dims[0] && r->n == dims[1] && r->k == dims[2] && r->kind == kind &&
            strcmp(r->op, op) == 0)
            return r;
    }
    return NULL;
}

void profile_add(struct profile *p, const char *op, const int64_t dims[3], int kind, double seconds)
{
    static const int64_t none[3];
    bool last = p->n >= PROFILE_MAX - 1;
    struct profile_rec *r = find(p, op, dims, kind);
    if (!r && last)
        r = find(p, op = "other", dims = none, kind = 0);
    if (!r) {
        r = &p->rec[p->n++];
        *r = (struct profile_rec){.op = op, .m = dims[0], .n = dims[1], .k = dims[2], .kind = kind};
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

int profile_matmul_floor(const struct profile *p, int threads, double *ret_seconds, struct err *err)
{
    double sum = 0;
    for (int i = 0; i < p->n; i++) {
        const struct profile_rec *rec = &p->rec[i];
        if (strcmp(rec->op, "matmul") != 0)
            continue;
        const int64_t mnk[3] = {rec->m, rec->n, rec->k};
        double one;
        int r = profile_onednn_seconds((enum mm_layout)(rec->kind & 3), mnk,
                                       (enum dtype)(rec->kind >> 2 & 1),
                                       (enum dtype)(rec->kind >> 3 & 1), threads, &one, err);
        if (r < 0)
            return r;
        sum += one * (double)rec->calls;
    }
    *ret_seconds = sum;
    return 0;
}

static int slower_first(const void *a, const void *b)
{
    const struct profile_rec *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

void profile_print(const struct profile *p, FILE *f)
{
    static const char *const layouts[] = {"NN", "NT", "TN", "?"};
    struct profile sorted = *p;
    double total = profile_seconds(p, NULL);
    qsort(sorted.rec, (size_t)sorted.n, sizeof sorted.rec[0], slower_first);
    fprintf(f, "%-16s %-12s %24s %8s %10s %7s %9s\n", "operation", "kind", "dims", "calls", "ms",
            "share", "GFLOP/s");
    for (int i = 0; i < sorted.n; i++) {
        const struct profile_rec *r = &sorted.rec[i];
        char kind[32] = "", dims[64], rate[32] = "";
        bool mm = strcmp(r->op, "matmul") == 0;
        snprintf(dims, sizeof dims, "%lldx%lldx%lld", (long long)r->m, (long long)r->n,
                 (long long)r->k);
        if (mm) {
            snprintf(kind, sizeof kind, "%s %s>%s", layouts[r->kind & 3],
                     dtype_name((enum dtype)(r->kind >> 2 & 1)),
                     dtype_name((enum dtype)(r->kind >> 3 & 1)));
            snprintf(rate, sizeof rate, "%.1f",
                     2e-9 * (double)r->m * (double)r->n * (double)r->k * (double)r->calls /
                         r->seconds);
        }
        fprintf(f, "%-16s %-12s %24s %8lld %10.3f %6.1f%% %9s\n", r->op, kind, dims,
                (long long)r->calls, r->seconds * 1e3, 100 * r->seconds / total, rate);
    }
}
