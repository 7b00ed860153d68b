/* Cards of an island, over the stand-in for NCCL, which connects two ranks in their first calls:
 * what crosses between them may be queued in unlike orders from the first job on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/base.h"
#include "worker/train/island.h"

enum { STAGES = 3, CHAINS = 2 };

/* Floats of a rank: from each neighbour, of each chain. */
struct job {
    struct island *is;
    float got[STAGES][CHAINS][ISLAND_WAYS];
    float own[STAGES];
};

static int queue_one(struct job *j, int rank, int chain, enum island_way way, bool sends,
                     struct stream *s)
{
    const int peer = (way == ISLAND_UP) == sends ? rank + 1 : rank - 1;
    if (peer < 0 || peer >= STAGES)
        return 0;
    struct comm *c = island_link(j->is, rank, peer, chain, way);
    const struct comm_piece piece = {sends ? &j->own[rank] : &j->got[rank][chain][way],
                                     sizeof(float)};
    return sends ? c->ops->send(c, &piece, 1, 1 - c->rank, s)
                 : c->ops->recv(c, &piece, 1, 1 - c->rank, s);
}

/* Sends first, one chain after the other; every second rank receives first, and begins with the
 * other chain.  Each on a stream of its own. */
static int cross(void *arg, int rank, struct err *err)
{
    struct job *j = arg;
    struct device *dev = island_device(j->is, rank);
    struct stream *streams[2 * CHAINS * ISLAND_WAYS];
    int rc = 0, n = 0;
    j->own[rank] = (float)(rank + 1);
    while (n < 2 * CHAINS * ISLAND_WAYS && rc == 0) {
        const int k = rank % 2 ? 2 * CHAINS * ISLAND_WAYS - 1 - n : n;
        rc = dev->ops->stream_new(dev, &streams[n], err);
        if (rc == 0)
            rc = queue_one(j, rank, k / ISLAND_WAYS % CHAINS, (enum island_way)(k % ISLAND_WAYS),
                           k < CHAINS * ISLAND_WAYS, streams[n++]);
    }
    for (int i = 0; i < n; i++) {
        const int synced = dev->ops->sync(dev, streams[i], err);
        rc = rc < 0 ? rc : synced;
        dev->ops->stream_free(dev, streams[i]);
    }
    return rc;
}

static void test_orders(void **state)
{
    const struct island_shape shape = {STAGES, CHAINS, {1, 1, 1}};
    struct err err = {0};
    struct job j = {0};
    assert_int_equal(island_open("cuda:0,cuda:1,cuda:2", 0, &j.is, &err), 0);
    assert_int_equal(island_cut(j.is, &shape, &err), 0);
    for (int i = 0; i < 2; i++) {
        memset(j.got, 0, sizeof j.got);
        assert_int_equal(island_run(j.is, cross, &j, &err), 0);
        for (int r = 0; r < STAGES; r++)
            for (int c = 0; c < CHAINS; c++) {
                assert_true(j.got[r][c][ISLAND_UP] == (float)r);
                assert_true(j.got[r][c][ISLAND_DOWN] == (r + 1 < STAGES ? (float)(r + 2) : 0));
            }
    }
    island_close(j.is);
}

/* The others wait for rank 0, and for each other, on all their links at once. */
static int leave(void *arg, int rank, struct err *err)
{
    return rank == 0 ? err_set(err, -EDOM, "rank 0 leaves") : cross(arg, rank, err);
}

/* An abort may wait for what the card does for other circles, too. */
static void test_failure(void **state)
{
    const struct island_shape shape = {STAGES, CHAINS, {1, 1, 1}};
    struct err err = {0};
    struct job j = {0};
    assert_int_equal(island_open("cuda:0,cuda:1,cuda:2", 0, &j.is, &err), 0);
    assert_int_equal(island_cut(j.is, &shape, &err), 0);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(island_run(j.is, leave, &j, &err), -EDOM);
        assert_int_equal(island_run(j.is, cross, &j, &err), 0);
        assert_true(j.got[1][0][ISLAND_UP] == 1);
    }
    island_close(j.is);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_orders),
                                       cmocka_unit_test(test_failure)};
    (void)alarm(60); /* ranks that wait for each other */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
