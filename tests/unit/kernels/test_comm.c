/* What ranks say to each other: sums, broadcasts, and that nobody waits for who has failed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/rng.h"
#include "kernels/device/comm_open.h"
#include "kernels/device/device.h"

/* Between CPU devices, or between cards: by a stand-in of NCCL (COMM_CARDS, tests/emulated.mk), or
 * as many real ones as there are (tests/gpu.mk), of which one is enough to try NCCL's entries. */
#ifndef COMM_CARDS
#define COMM_CARDS 0
#endif
#ifndef GUARD_DEVICE
#define GUARD_DEVICE "cpu"
#else
const char *guard_device(void); /* of check_ops */
#endif

enum { RANKS = 3, LONG = 10007, SHORT = 5, ROUNDS = 20 };

struct rank {
    pthread_t thread;
    struct comm *comm;
    struct device *dev;
    struct stream *stream;
    float *a;  /* (LONG) device */
    double *b; /* (SHORT) */
    int rc;
    int stop_at; /* round at which it fails; ROUNDS: never */
    int rounds;  /* whole ones */
    float host[LONG];
    double wide[SHORT];
};

struct world {
    struct rank ranks[RANKS];
    struct comm *comms[RANKS];
};

static int ranks = RANKS;

static bool real_cards(void)
{
    return strncmp(GUARD_DEVICE, "cuda", 4) == 0;
}

static int setup(void **state)
{
    if (real_cards() && device_cards() < RANKS)
        ranks = device_cards();
    return ranks > 0 ? 0 : -1;
}

/* NCCL sums in an order of its own. */
static void assert_sum(double got, double want, double sizes)
{
    const double most = real_cards() ? sizes * 3e-7 : 0;
    if (got - want > most || want - got > most)
        fail_msg("%.9g, expected %.9g", got, want);
}

static void world_open(struct world *w)
{
    struct err err = {0};
    struct device *devs[RANKS];
    memset(w, 0, sizeof *w);
    for (int i = 0; i < ranks; i++) {
        struct rank *r = &w->ranks[i];
        char name[16] = "cpu";
        if (real_cards())
            snprintf(name, sizeof name, "cuda:%d", i);
        if (device_open(name, 1, &r->dev, &err) < 0)
            fail_msg("%s", err.msg);
        devs[i] = r->dev;
        assert_int_equal(r->dev->ops->stream_new(r->dev, &r->stream, &err), 0);
        assert_int_equal(r->dev->ops->alloc(r->dev, sizeof r->host, (void **)&r->a, &err), 0);
        assert_int_equal(r->dev->ops->alloc(r->dev, sizeof r->wide, (void **)&r->b, &err), 0);
        r->stop_at = ROUNDS;
    }
    if (comm_open(devs, ranks, w->comms, &err) < 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < ranks; i++) {
        w->ranks[i].comm = w->comms[i];
        assert_int_equal(w->comms[i]->rank, i);
        assert_int_equal(w->comms[i]->size, ranks);
    }
}

static void world_close(struct world *w)
{
    comm_close(w->comms, ranks);
    for (int i = 0; i < ranks; i++) {
        struct rank *r = &w->ranks[i];
        assert_null(w->comms[i]);
        r->dev->ops->free(r->dev, r->a);
        r->dev->ops->free(r->dev, r->b);
        r->dev->ops->stream_free(r->dev, r->stream);
        device_close(r->dev);
    }
}

static void run(struct world *w, void *(*body)(void *))
{
    for (int i = 0; i < ranks; i++)
        assert_int_equal(pthread_create(&w->ranks[i].thread, NULL, body, &w->ranks[i]), 0);
    for (int i = 0; i < ranks; i++)
        assert_int_equal(pthread_join(w->ranks[i].thread, NULL), 0);
}

/* Of many sizes, so that sums in another order have other bits. */
static float value(int rank, int round, int i)
{
    const uint32_t u = rng_at_u32(5, (uint64_t)(rank * 1000 + round), (uint64_t)i);
    return ((float)u / 4294967296.0f - 0.5f) * (float)(1 << (u % 20));
}

static void send(struct rank *r, int round)
{
    const struct kernel_ops *k = r->dev->ops;
    for (int i = 0; i < LONG; i++)
        r->host[i] = value(r->comm->rank, round, i);
    for (int i = 0; i < SHORT; i++)
        r->wide[i] = (double)value(r->comm->rank, round, LONG + i) * 1e-3;
    k->copy(r->dev, r->a, r->host, sizeof r->host, COPY_TO_DEVICE, r->stream);
    k->copy(r->dev, r->b, r->wide, sizeof r->wide, COPY_TO_DEVICE, r->stream);
    k->sync(r->dev, r->stream, NULL);
}

static void receive(struct rank *r)
{
    const struct kernel_ops *k = r->dev->ops;
    k->copy(r->dev, r->host, r->a, sizeof r->host, COPY_FROM_DEVICE, r->stream);
    k->copy(r->dev, r->wide, r->b, sizeof r->wide, COPY_FROM_DEVICE, r->stream);
}

static void *sum_body(void *arg)
{
    struct rank *r = arg;
    struct err err = {0};
    for (int round = 0; round < ROUNDS; round++) {
        if (round == r->stop_at) {
            r->comm->ops->abort(r->comm);
            return NULL;
        }
        send(r, round);
        /* an empty piece, and one between whose ends there are others */
        const struct comm_piece pieces[] = {{r->a, 600}, {r->a + 600, 0}, {r->a + 601, LONG - 601}};
        r->rc = r->comm->ops->all_reduce(r->comm, pieces, 3, COMM_F32, r->stream);
        const struct comm_piece wide = {r->b, SHORT};
        if (r->rc == 0)
            r->rc = r->comm->ops->all_reduce(r->comm, &wide, 1, COMM_F64, r->stream);
        if (r->rc == 0)
            r->rc = r->comm->ops->wait(r->comm, r->stream, &err);
        if (r->rc < 0)
            return NULL;
        receive(r);
        r->rounds++;
    }
    return NULL;
}

static void test_sums(void **state)
{
    struct world w;
    world_open(&w);
    run(&w, sum_body);
    for (int n = 0; n < ranks; n++) {
        const struct rank *r = &w.ranks[n];
        assert_int_equal(r->rc, 0);
        assert_int_equal(r->rounds, ROUNDS);
        for (int i = 0; i < LONG; i++) {
            float sum = value(0, ROUNDS - 1, i), sizes = fabsf(sum);
            for (int m = 1; m < ranks; m++) {
                sum += value(m, ROUNDS - 1, i);
                sizes += fabsf(value(m, ROUNDS - 1, i));
            }
            const float want = i == 600 ? value(n, ROUNDS - 1, i) : sum;
            assert_sum((double)r->host[i], (double)want, (double)sizes);
            assert_true(i == 600 || r->host[i] == w.ranks[0].host[i]);
        }
        for (int i = 0; i < SHORT; i++) {
            double sum = (double)value(0, ROUNDS - 1, LONG + i) * 1e-3;
            for (int m = 1; m < ranks; m++)
                sum += (double)value(m, ROUNDS - 1, LONG + i) * 1e-3;
            assert_sum(r->wide[i], sum, 1e3);
            assert_true(r->wide[i] == w.ranks[0].wide[i]);
        }
    }
    world_close(&w);
}

static void *broadcast_body(void *arg)
{
    struct rank *r = arg;
    send(r, 7);
    r->rc = r->comm->ops->broadcast(r->comm, r->a, 999 * sizeof(float) + 3, ranks > 1, r->stream);
    if (r->rc == 0)
        r->rc = r->comm->ops->wait(r->comm, r->stream, NULL);
    receive(r);
    return NULL;
}

static void test_broadcast(void **state)
{
    const int root = ranks > 1;
    struct world w;
    world_open(&w);
    run(&w, broadcast_body);
    for (int n = 0; n < ranks; n++) {
        const char *got = (const char *)&w.ranks[n].host[999];
        const float last[2] = {value(root, 7, 999), value(n, 7, 999)};
        assert_int_equal(w.ranks[n].rc, 0);
        for (int i = 0; i < 999; i++)
            assert_true(w.ranks[n].host[i] == value(root, 7, i));
        assert_memory_equal(got, &last[0], 3);
        assert_int_equal(got[3], ((const char *)&last[1])[3]);
    }
    world_close(&w);
}

/* What the first rank has goes round, and comes back to it; each round more of it. */
static void *pass_body(void *arg)
{
    struct rank *r = arg;
    const struct comm_ops *ops = r->comm->ops;
    const int last = r->comm->size - 1;
    send(r, r->comm->rank);
    for (int round = 0; round < ROUNDS && r->rc == 0; round++) {
        if (round == r->stop_at) {
            ops->abort(r->comm);
            return NULL;
        }
        const struct comm_piece pieces[] = {
            {r->a, 40}, {r->a + 10, 0}, {r->a + 11, (uint64_t)(round + 1) * 8}};
        const int from = r->comm->rank > 0 ? r->comm->rank - 1 : last;
        if (r->comm->rank > 0)
            r->rc = ops->recv(r->comm, pieces, 3, from, r->stream);
        if (r->rc == 0)
            r->rc = ops->send(r->comm, pieces, 3, r->comm->rank == last ? 0 : r->comm->rank + 1,
                              r->stream);
        if (r->rc == 0 && r->comm->rank == 0)
            r->rc = ops->recv(r->comm, pieces, 3, from, r->stream);
        if (r->rc == 0)
            r->rc = ops->wait(r->comm, r->stream, NULL);
        r->rounds += r->rc == 0;
    }
    if (r->rc == 0)
        receive(r);
    return NULL;
}

static void test_passing(void **state)
{
    struct world w;
    if (ranks < 2)
        return; /* a card alone sends nothing */
    world_open(&w);
    run(&w, pass_body);
    for (int n = 0; n < ranks; n++) {
        const struct rank *r = &w.ranks[n];
        assert_int_equal(r->rc, 0);
        for (int i = 0; i < LONG; i++) {
            const bool passed = i < 10 || (i > 10 && i < 11 + 2 * ROUNDS);
            assert_true(r->host[i] == value(passed ? 0 : n, passed ? 0 : n, i));
        }
    }
    world_close(&w);
    world_open(&w);
    w.ranks[1].stop_at = 4;
    run(&w, pass_body);
    for (int n = 0; n < ranks; n++)
        assert_int_equal(w.ranks[n].rc, n == 1 ? 0 : -ECONNABORTED);
    world_close(&w);
}

/* One leaves; the others are woken, wherever they wait, and stay out. */
static void test_abort(void **state)
{
    for (int who = 0; who < ranks; who++) {
        struct world w;
        world_open(&w);
        w.ranks[who].stop_at = 4;
        run(&w, sum_body);
        for (int n = 0; n < ranks; n++) {
            struct rank *r = &w.ranks[n];
            struct err err = {0};
            assert_int_equal(r->rc, n == who ? 0 : -ECONNABORTED);
            /* Who had not yet looked at the round's end is told there. */
            assert_in_range(r->rounds, n == who ? 4 : 3, 4);
            assert_int_equal(r->comm->ops->failed(r->comm), -ECONNABORTED);
            assert_int_equal(r->comm->ops->wait(r->comm, r->stream, &err), -ECONNABORTED);
            assert_true(err.msg[0] != '\0');
            assert_int_equal(r->comm->ops->broadcast(r->comm, r->a, 4, 0, r->stream),
                             -ECONNABORTED);
        }
        world_close(&w);
    }
}

enum { WIDE = 1 << 16 };

struct leaver {
    pthread_t thread;
    struct comm *comm;
    float *x; /* (WIDE) */
    int rc;
};

/* What a call was given is the caller's again when it has returned. */
static void *leave_body(void *arg)
{
    struct leaver *l = arg;
    const struct comm_piece piece = {l->x, WIDE};
    l->rc = l->comm->ops->all_reduce(l->comm, &piece, 1, COMM_F32, NULL);
    for (int i = 0; i < WIDE; i++)
        l->x[i] = -1;
    return NULL;
}

/* Somebody else fails while the ranks of a comm sum each other's memory, sooner or later. */
static void test_abort_in_a_sum(void **state)
{
    struct leaver all[RANKS] = {0};
    struct device *devs[RANKS];
    struct comm *comms[RANKS];
    struct err err = {0};
    if (COMM_CARDS || real_cards())
        return; /* what cards sum is theirs until the stream has ended */
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(device_open("cpu", 1, &devs[i], &err), 0);
        all[i].x = calloc(WIDE, sizeof(float));
        assert_non_null(all[i].x);
    }
    for (int wait = 0; wait < 200; wait++) {
        assert_int_equal(comm_open(devs, RANKS, comms, &err), 0);
        for (int i = 0; i < RANKS; i++) {
            all[i].comm = comms[i];
            assert_int_equal(pthread_create(&all[i].thread, NULL, leave_body, &all[i]), 0);
        }
        for (volatile int looks = 0; looks < wait * 1000; looks++)
            ;
        comms[0]->ops->abort(comms[0]);
        for (int i = 0; i < RANKS; i++)
            assert_int_equal(pthread_join(all[i].thread, NULL), 0);
        for (int i = 0; i < RANKS; i++) {
            assert_true(all[i].rc == 0 || all[i].rc == -ECONNABORTED);
            for (int k = 0; k < WIDE; k++)
                assert_true(all[i].x[k] == -1);
        }
        comm_close(comms, RANKS);
    }
    for (int i = 0; i < RANKS; i++) {
        free(all[i].x);
        device_close(devs[i]);
    }
}

static void *unequal_body(void *arg)
{
    struct rank *r = arg;
    const struct comm_piece piece = {r->a, (uint64_t)(10 + (r->comm->rank == 2))};
    r->rc = r->comm->ops->all_reduce(r->comm, &piece, 1, COMM_F32, r->stream);
    return NULL;
}

static void test_unequal(void **state)
{
    struct world w;
    if (real_cards())
        return; /* NCCL trusts its callers */
    world_open(&w);
    run(&w, unequal_body);
    for (int n = 0; n < ranks; n++) {
        struct rank *r = &w.ranks[n];
#if COMM_CARDS
        /* The transport finds it, later; who waits hears of it. */
        if (r->rc == 0)
            r->rc = r->comm->ops->wait(r->comm, r->stream, NULL);
        assert_true(r->rc == -ERR_DEVICE || r->rc == -ECONNABORTED);
#else
        assert_int_equal(r->rc, -EINVAL);
#endif
    }
    world_close(&w);
}

static void test_devices(void **state)
{
    struct device card = {.name = "cuda:1"}, cpu = {.name = "cpu"};
    struct device *mixed[] = {&card, &cpu}, *twice[] = {&card, &card};
    struct comm *comms[2];
    struct err err = {0};
    assert_int_equal(comm_open(mixed, 2, comms, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "cuda:1 and cpu"));
    assert_int_equal(comm_open(twice, 2, comms, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "twice"));
    assert_int_equal(comm_open(mixed, 0, comms, &err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),           cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_passing),        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_unequal),        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_abort_in_a_sum),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
