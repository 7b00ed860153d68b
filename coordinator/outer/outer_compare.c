#include "coordinator/outer/outer_compare.h"

#include "common/net/blobstore.h"
#include "common/net/pool.h"
#include "common/outer/fold_check.h"
#include "coordinator/outer/outer_verify.h"

struct comparison {
    struct blobstore *store;
    outer_compared_fn fn;
    void *arg;
    double apart;
    struct err err;
    size_t n;
    struct outer_pair pairs[];
};

/* Local files of a pair; held until outer_let_go(). */
struct files {
    char *full, *a, *b;
};

static int measure(const struct outer_pair *p, const struct files *f, double *ret, struct err *err)
{
    const struct fold_origin origin = {p->codec, p->from, f->full};
    struct fold_norm a, b;
    double dot, square;
    int rc = fold_check(f->a, &origin, p->module_id, &a, err);
    if (rc == 0)
        rc = fold_check(f->b, &origin, p->module_id, &b, err);
    if (rc == 0)
        rc = fold_dot(f->a, &origin, f->b, &origin, p->module_id, &dot, &square, err);
    if (rc < 0)
        return rc;
    const double apart = a.norm * a.norm + square - 2 * dot; /* rounding may make it negative */
    *ret = apart <= 0 ? 0 : square > 0 ? sqrt(apart / square) : INFINITY;
    return 0;
}

static int compare_pair(struct comparison *c, const struct outer_pair *p)
{
    struct files f = {0};
    double apart = 0;
    int rc = outer_hold(c->store, &p->full, &f.full, &c->err);
    if (rc == 0)
        rc = outer_hold(c->store, &p->a, &f.a, &c->err);
    if (rc == 0)
        rc = outer_hold(c->store, &p->b, &f.b, &c->err);
    if (rc == 0)
        rc = measure(p, &f, &apart, &c->err);
    c->apart = apart > c->apart ? apart : c->apart;
    outer_let_go(c->store, &p->full, f.full);
    outer_let_go(c->store, &p->a, f.a);
    outer_let_go(c->store, &p->b, f.b);
    return rc;
}

static int work(void *arg)
{
    struct comparison *c = arg;
    int rc = 0;
    for (size_t i = 0; i < c->n && rc == 0; i++)
        rc = compare_pair(c, &c->pairs[i]);
    return rc;
}

static void done(void *arg, int rc)
{
    struct comparison *c = arg;
    c->fn(c->arg, rc, c->apart, c->err.msg);
    mem_free(c);
}

int outer_compare(struct pool *pool, struct blobstore *store, const struct outer_pair *pairs,
                  size_t n, outer_compared_fn fn, void *arg)
{
    struct comparison *c = mem_alloc(sizeof(*c) + n * sizeof(*pairs));
    *c = (struct comparison){.store = store, .fn = fn, .arg = arg, .n = n};
    memcpy(c->pairs, pairs, n * sizeof(*pairs));
    int rc = pool_submit(pool, work, done, c);
    if (rc < 0)
        mem_free(c);
    return rc;
}
