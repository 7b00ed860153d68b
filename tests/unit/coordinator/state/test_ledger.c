/* The epoch ledger under churn: every sample of every epoch exactly once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "coordinator/state/ledger.h"

#define SHARDS 13
#define SAMPLES_MAX 40
#define EPOCHS 160
#define HOLDERS 7
#define RANGES 512

/* What must come out: how often each sample of an epoch was done. */
struct model {
    struct ledger_shard shards[SHARDS];
    uint8_t done[EPOCHS][2 * SHARDS][SAMPLES_MAX];
    uint8_t held[EPOCHS][2 * SHARDS][SAMPLES_MAX];
};

struct holding {
    uint64_t id;
    struct ledger_range ranges[RANGES];
    size_t n;
    uint64_t samples;
};

static void mark_held(struct model *m, const struct holding *h)
{
    for (size_t i = 0; i < h->n; i++)
        for (uint32_t s = 0; s < h->ranges[i].count; s++) {
            const struct ledger_range *r = &h->ranges[i];
            assert_true(r->epoch < EPOCHS);
            assert_int_equal(m->done[r->epoch][r->shard][r->start + s], 0);
            assert_int_equal(m->held[r->epoch][r->shard][r->start + s]++, 0);
        }
}

static void mark_settled(struct model *m, const struct holding *h, uint64_t done)
{
    for (size_t i = 0; i < h->n; i++)
        for (uint32_t s = 0; s < h->ranges[i].count; s++) {
            const struct ledger_range *r = &h->ranges[i];
            m->held[r->epoch][r->shard][r->start + s] = 0;
            if (done > 0) {
                done--;
                m->done[r->epoch][r->shard][r->start + s]++;
            }
        }
}

static void check_figures(const struct ledger *l)
{
    for (uint32_t e = 0; e < ledger_first_open(l) + ledger_open(l) + 1; e++) {
        struct ledger_epoch f;
        ledger_figures(l, e, &f);
        assert_int_equal(f.total, f.done + f.leased + f.pending);
        if (e < ledger_first_open(l))
            assert_int_equal(f.done, f.total);
    }
}

/* Odd seeds: from every shard its share. */
static void make_even(struct ledger *l, uint64_t seed)
{
    if (seed % 2)
        ledger_set_even(l);
}

static struct ledger *make(struct model *m, uint64_t seed)
{
    struct ledger *l = NULL;
    struct rng r;
    rng_init(&r, seed, 1);
    memset(m, 0, sizeof(*m));
    for (uint32_t i = 0; i < SHARDS; i++)
        m->shards[i] = (struct ledger_shard){2 * i, 1 + (uint32_t)rng_below(&r, SAMPLES_MAX)};
    assert_int_equal(ledger_new(seed, m->shards, SHARDS, &l, NULL), 0);
    make_even(l, seed);
    return l;
}

/* Through the disk and back: as a restart does in the middle of everything. */
static struct ledger *reload(struct model *m, struct ledger *l, uint64_t seed)
{
    struct buf b;
    struct ledger *copy = NULL;
    struct err err = {0};
    buf_init(&b, 1u << 20);
    assert_int_equal(ledger_save(l, &b), 0);
    assert_false(ledger_dirty(l));
    ledger_free(l);
    assert_int_equal(ledger_new(seed, m->shards, SHARDS, &copy, NULL), 0);
    make_even(copy, seed);
    if (ledger_load(copy, b.data, b.len, &err) < 0)
        fail_msg("%s", err.msg);
    buf_release(&b);
    return copy;
}

/* Any stretch of what a task gets is a fair draw from all shards. */
static void test_even(void **state)
{
    const struct ledger_shard shards[] = {{0, 5000}, {1, 3000}, {2, 2000}};
    struct ledger_range ranges[256];
    struct ledger *l = NULL;
    assert_int_equal(ledger_new(3, shards, 3, &l, NULL), 0);
    ledger_set_even(l);
    for (uint64_t task = 1; task <= 10; task++) {
        size_t n = ledger_take(l, task, 1000, 0, 1, ranges, 256);
        uint64_t of[3] = {0}, seen = 0;
        for (size_t i = 0; i < n; i++) {
            of[ranges[i].shard] += ranges[i].count;
            seen += ranges[i].count;
            for (int s = 0; s < 3 && seen >= 200; s++) {
                double share = (double)shards[s].samples / 10000;
                assert_true(fabs((double)of[s] / (double)seen - share) < 0.2 * share + 0.05);
            }
        }
        assert_int_equal(seen, 1000);
        assert_true(of[0] >= 480 && of[0] <= 520 && of[2] >= 185 && of[2] <= 215);
        assert_int_equal(ledger_settle(l, task, ranges, n, 1000, NULL), 0);
    }
    assert_int_equal(ledger_first_open(l), 1); /* nothing was left over, nothing came twice */
    ledger_free(l);
}

static void churn(uint64_t seed)
{
    struct model *m = mem_alloc(sizeof(*m));
    struct holding *h = mem_alloc_array(HOLDERS, sizeof(*h));
    struct ledger *l = make(m, seed);
    struct ledger_epoch first;
    struct rng r;
    uint64_t next_id = 1;
    rng_init(&r, seed, 2);
    for (int step = 0; step < 3000 && ledger_first_open(l) + ledger_open(l) < EPOCHS - 4; step++) {
        uint32_t k = (uint32_t)rng_below(&r, HOLDERS);
        if (h[k].id == 0) {
            h[k].id = next_id++;
            ledger_figures(l, 0, &first);
            uint64_t want = 1 + rng_below(&r, first.total * 2);
            h[k].n = ledger_take(l, h[k].id, want, k, HOLDERS, h[k].ranges, RANGES);
            h[k].samples = 0;
            for (size_t i = 0; i < h[k].n; i++)
                h[k].samples += h[k].ranges[i].count;
            assert_true(h[k].samples <= want);
            mark_held(m, &h[k]);
            if (h[k].n == 0)
                h[k].id = 0;
        } else if (rng_below(&r, 3) == 0) {
            ledger_set_leased(l, h[k].id, rng_below(&r, 2) == 0);
        } else {
            /* All, nothing, or a part of it is done. */
            uint64_t done = rng_below(&r, 3) == 0 ? 0
                            : rng_below(&r, 2)    ? h[k].samples
                                                  : rng_below(&r, h[k].samples + 1);
            assert_int_equal(ledger_settle(l, h[k].id, h[k].ranges, h[k].n, done, NULL), 0);
            mark_settled(m, &h[k], done);
            h[k].id = 0;
        }
        check_figures(l);
        if (rng_below(&r, 20) == 0)
            l = reload(m, l, seed);
    }
    assert_true(ledger_first_open(l) > 3);
    for (uint32_t e = 0; e < ledger_first_open(l); e++)
        for (uint32_t i = 0; i < SHARDS; i++)
            for (uint32_t s = 0; s < m->shards[i].samples; s++)
                assert_int_equal(m->done[e][m->shards[i].shard][s], 1);
    ledger_free(l);
    mem_free(m);
    mem_free(h);
}

static void test_churn(void **state)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        print_message("seed %llu\n", (unsigned long long)seed);
        churn(seed);
    }
}

static void test_affinity(void **state)
{
    const struct ledger_shard shards[] = {{0, 8}, {1, 8}, {2, 8}, {3, 8}};
    struct ledger *l = NULL;
    struct ledger_range a[8], b[8], rest[8];
    assert_int_equal(ledger_new(5, shards, 4, &l, NULL), 0);
    size_t na = ledger_take(l, 1, 16, 0, 2, a, 8), nb = ledger_take(l, 2, 16, 1, 2, b, 8);
    assert_int_equal(na, 2); /* whole shards, not slices of all */
    assert_int_equal(nb, 2);
    for (size_t i = 0; i < 2; i++)
        for (size_t k = 0; k < 2; k++)
            assert_int_not_equal(a[i].shard, b[k].shard);
    /* The epoch is used up: what follows is of the next one. */
    assert_int_equal(ledger_take(l, 3, 4, 0, 2, rest, 8), 1);
    assert_int_equal(rest[0].epoch, 1);
    /* A replica without shards of its own takes what is left. */
    assert_int_equal(ledger_settle(l, 1, a, na, 4, NULL), 0);
    assert_true(ledger_take(l, 4, 100, 1, 2, rest, 8) > 0);
    assert_int_equal(rest[0].epoch, 0);
    assert_int_equal(rest[0].start, 4);
    ledger_free(l);
}

static void test_same_calls_same_ranges(void **state)
{
    struct model *m = mem_alloc(sizeof(*m));
    struct ledger *x = make(m, 3), *y = make(m, 3);
    struct ledger_range a[RANGES], b[RANGES];
    for (uint64_t id = 1; id < 30; id++) {
        size_t n = ledger_take(x, id, 37, (uint32_t)id, 4, a, RANGES);
        assert_int_equal(ledger_take(y, id, 37, (uint32_t)id, 4, b, RANGES), n);
        assert_memory_equal(a, b, n * sizeof(*a));
    }
    ledger_free(x);
    ledger_free(y);
    mem_free(m);
}

static void test_refuses(void **state)
{
    const struct ledger_shard shards[] = {{0, 8}, {4, 8}};
    const struct ledger_shard none[] = {{0, 0}}, twice[] = {{1, 2}, {1, 2}};
    struct ledger *l = NULL;
    struct ledger_range r[4], other;
    struct err err = {0};
    assert_true(ledger_new(1, none, 1, &l, &err) < 0);
    assert_true(ledger_new(1, NULL, 0, &l, &err) < 0);
    assert_true(ledger_new(1, twice, 2, &l, &err) < 0);
    assert_int_equal(ledger_new(1, shards, 2, &l, NULL), 0);
    size_t n = ledger_take(l, 9, 10, 0, 1, r, 4);
    assert_int_equal(n, 2);
    assert_int_equal(ledger_take(l, 9, 1, 0, 1, &other, 1), 0);
    assert_true(ledger_settle(l, 8, r, n, 10, &err) < 0);
    assert_true(ledger_settle(l, 9, r, 1, 5, &err) < 0);
    other = r[0];
    other.count--;
    assert_true(ledger_settle(l, 9, &other, 1, 5, &err) < 0);
    assert_int_equal(ledger_settle(l, 9, r, n, 10, &err), 0);
    assert_true(ledger_settle(l, 9, r, n, 10, &err) < 0);
    ledger_free(l);
}

/* Saved bytes that do not account for every sample once are refused. */
static void test_load_checks(void **state)
{
    struct model *m = mem_alloc(sizeof(*m));
    struct ledger *l = make(m, 11), *copy;
    struct ledger_range r[RANGES];
    struct buf b;
    struct rng rng;
    unsigned refused = 0;
    rng_init(&rng, 4, 4);
    buf_init(&b, 1u << 20);
    (void)ledger_take(l, 1, 100, 0, 2, r, RANGES);
    assert_int_equal(ledger_save(l, &b), 0);
    for (int i = 0; i < 400; i++) {
        size_t at = rng_below(&rng, b.len);
        uint8_t was = b.data[at];
        b.data[at] ^= (uint8_t)(1u << rng_below(&rng, 8));
        assert_int_equal(ledger_new(11, m->shards, SHARDS, &copy, NULL), 0);
        int rc = ledger_load(copy, b.data, b.len, NULL);
        if (rc == 0)
            check_figures(copy);
        refused += rc < 0;
        ledger_free(copy);
        b.data[at] = was;
    }
    assert_true(refused > 100);
    for (size_t len = 0; len < b.len; len += 7) {
        assert_int_equal(ledger_new(11, m->shards, SHARDS, &copy, NULL), 0);
        assert_true(ledger_load(copy, b.data, len, NULL) < 0);
        ledger_free(copy);
    }
    buf_release(&b);
    ledger_free(l);
    mem_free(m);
}

/* What is said to come next comes next: takes of three replicas until the samples of some
 * epochs are used up, each against what was said before. */
static void test_ahead(void **state)
{
    struct model *m = mem_alloc(sizeof(*m));
    struct ledger *l = make(m, 2);
    struct ledger_range ranges[RANGES];
    uint32_t ahead[64];
    unsigned exact = 0;
    for (uint64_t task = 1; task <= 60; task++) {
        const uint32_t replica = (uint32_t)(task * task % 3), open = ledger_open(l);
        const uint32_t end = ledger_first_open(l) + open;
        const size_t said = ledger_ahead(l, 30, replica, 3, ahead, 64);
        const size_t n = ledger_take(l, task, 30, replica, 3, ranges, RANGES);
        size_t seen = 0;
        for (size_t i = 0; i < n && ranges[i].epoch < end; i++) {
            size_t k = 0;
            while (k < seen && ahead[k] != ranges[i].shard)
                k++;
            if (k < seen)
                continue;
            assert_true(seen < said && ahead[seen] == ranges[i].shard);
            seen++;
        }
        assert_int_equal(seen, said);
        exact += said > 0;
        if (task % 2)
            assert_int_equal(ledger_settle(l, task, ranges, n, 30, NULL), 0);
    }
    assert_true(exact > 40);
    assert_int_equal(ledger_ahead(l, 1000000, 0, 1, ahead, 2), 2);
    ledger_free(l);
    l = make(m, 3); /* even */
    (void)ledger_take(l, 1, 10, 0, 1, ranges, RANGES);
    assert_int_equal(ledger_ahead(l, 10, 0, 1, ahead, 64), 0);
    ledger_free(l);
    mem_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_churn),    cmocka_unit_test(test_even),
        cmocka_unit_test(test_affinity), cmocka_unit_test(test_same_calls_same_ranges),
        cmocka_unit_test(test_refuses),  cmocka_unit_test(test_load_checks),
        cmocka_unit_test(test_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
