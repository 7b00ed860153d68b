#include "worker/train/reducer.h"

#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/train/island.h"

/* ---- ranges ---- */

/* The first that ends at or behind `at`. */
static size_t find(const struct ranges *rs, uint64_t at)
{
    size_t i = 0;
    while (i < rs->n && rs->v[i].at + rs->v[i].n < at)
        i++;
    return i;
}

/* False: part of it is there already, or there are too many. */
static bool add(struct ranges *rs, uint64_t at, uint64_t n)
{
    const size_t i = find(rs, at);
    struct range *p = &rs->v[i];
    const bool after = i < rs->n && p->at + p->n == at;
    const size_t next = after ? i + 1 : i;
    const bool before = next < rs->n && rs->v[next].at == at + n;
    if ((i < rs->n && !after && p->at < at + n) || (next < rs->n && rs->v[next].at < at + n))
        return false;
    if (after) {
        p->n += n;
        if (before) {
            p->n += rs->v[next].n;
            memmove(&rs->v[next], &rs->v[next + 1], (rs->n - next - 1) * sizeof *rs->v);
            rs->n--;
        }
        return true;
    }
    if (before) {
        p->at = at;
        p->n += n;
        return true;
    }
    if (rs->n == rs->room)
        return false;
    memmove(&rs->v[i + 1], &rs->v[i], (rs->n - i) * sizeof *rs->v);
    rs->v[i] = (struct range){at, n};
    rs->n++;
    return true;
}

/* ---- buckets ---- */

int reducer_init(struct reducer *r, struct island *is, int rank, struct weights *w,
                 uint64_t bucket_bytes, struct err *err)
{
    const size_t room = w->m->n + 2; /* more ranges than tensors there are never */
    *r = (struct reducer){.is = is, .rank = rank, .bucket = bucket_bytes / sizeof *w->g};
    r->named = (struct ranges){mem_try_array(room, sizeof *r->named.v), 0, room};
    r->waiting = (struct ranges){mem_try_array(room, sizeof *r->waiting.v), 0, room};
    r->pieces = mem_try_array(room + 1, sizeof *r->pieces);
    if (!r->named.v || !r->waiting.v || !r->pieces)
        return err_set(err, -ENOMEM, "no memory for the sums over devices");
    int rc = w->ops->stream_new(w->dev, &r->stream, err);
    if (rc == 0)
        r->w = w;
    return rc;
}

void reducer_release(struct reducer *r)
{
    if (r->w)
        r->w->ops->stream_free(r->w->dev, r->stream);
    mem_free(r->named.v);
    mem_free(r->waiting.v);
    mem_free(r->pieces);
    *r = (struct reducer){0};
}

void reducer_begin(struct reducer *r, enum reducer_how how)
{
    r->how = how;
    r->named.n = r->waiting.n = 0;
    r->waiting_n = 0;
    r->rc = 0;
}

static void note(struct reducer *r, int rc, const char *what)
{
    if (rc < 0 && r->rc == 0) {
        r->rc = rc;
        r->failed = what;
    }
}

/* Queues the sum of what waits, and of the losses. */
static void flush(struct reducer *r, float *losses, int64_t n)
{
    struct weights *w = r->w;
    struct comm *c = island_comm(r->is, r->rank);
    size_t pieces = 0;
    for (size_t i = 0; i < r->waiting.n; i++)
        r->pieces[pieces++] = (struct comm_piece){w->g + r->waiting.v[i].at, r->waiting.v[i].n};
    if (losses)
        r->pieces[pieces++] = (struct comm_piece){losses, (uint64_t)n};
    r->waiting.n = 0;
    r->waiting_n = 0;
    if (r->rc == 0)
        note(r, w->ops->stream_follow(w->dev, r->stream, w->stream), "waiting for the gradients");
    if (r->rc == 0)
        note(r, c->ops->all_reduce(c, r->pieces, pieces, COMM_F32, r->stream),
             "summing the gradients over the devices");
}

void reducer_ready(void *arg, uint64_t offset, uint64_t count)
{
    struct reducer *r = arg;
    if (r->how != REDUCER_OVERLAPS || count == 0 || r->rc < 0)
        return;
    if (!add(&r->named, offset, count) || !add(&r->waiting, offset, count)) {
        note(r, -EINVAL, "naming gradients once");
        return;
    }
    r->waiting_n += count;
    if (r->waiting_n >= r->bucket)
        flush(r, NULL, 0);
}

/* Everything that was not named waits too. */
static void add_rest(struct reducer *r)
{
    const uint64_t end = r->w->m->flat;
    uint64_t at = 0;
    for (size_t i = 0; i <= r->named.n && r->rc == 0; i++) {
        const uint64_t to = i < r->named.n ? r->named.v[i].at : end;
        if (to > at && !add(&r->waiting, at, to - at))
            note(r, -EINVAL, "finding the rest of the gradients");
        if (i < r->named.n)
            at = to + r->named.v[i].n;
    }
}

static void meet(struct reducer *r)
{
    if (r->rc == 0 && r->how == REDUCER_MEETS)
        note(r, island_meet(r->is), "waiting for the other devices");
}

int reducer_join(void *arg, float *losses, int64_t n, struct err *err)
{
    struct reducer *r = arg;
    struct weights *w = r->w;
    add_rest(r);
    meet(r);
    flush(r, losses, n);
    meet(r);
    if (r->rc == 0)
        note(r, w->ops->stream_follow(w->dev, w->stream, r->stream), "waiting for the sums");
    if (r->rc < 0)
        return err_set(err, r->rc, "%s failed on %s: %s", r->failed, w->dev->name, err_text(r->rc));
    return 0;
}

int reducer_wait(void *arg, struct stream *s, struct err *err)
{
    struct reducer *r = arg;
    struct comm *c = island_comm(r->is, r->rank);
    return c->ops->wait(c, s, err);
}
