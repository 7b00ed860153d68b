/* Records shuffled on disk: all come out once, by hash, for any number of buckets. */
#include "common/data/dataset_impl.h"
#include "tests/unit/common/base/util.h"

#define N 3000
#define LARGE (3u << 20) /* more than waits to be written */

struct out {
    uint32_t ids[N];
    size_t n, stop_at;
    uint8_t *large;
};

static int take(void *ctx, const uint8_t *record, size_t len)
{
    struct out *o = ctx;
    memcpy(&o->ids[o->n], record, sizeof(o->ids[0]));
    assert_int_equal(len, o->ids[o->n] % 1000 == 7 ? LARGE : 4 + o->ids[o->n] % 50);
    if (len == LARGE)
        assert_memory_equal(record + 4, o->large + 4, LARGE - 4);
    o->n++;
    return o->n == o->stop_at ? -ERR_CANCELLED : 0;
}

static uint64_t hash_of(uint32_t id)
{
    return rng_mix(5, id / 2); /* two have each */
}

static void fill(struct spool *s, uint8_t *large)
{
    for (uint32_t i = 0; i < N; i++) {
        memcpy(large, &i, sizeof(i));
        OK(spool_add(s, hash_of(i), large, i % 1000 == 7 ? LARGE : 4 + i % 50, err));
    }
}

static void comes_out_by_hash(void **state)
{
    static const uint64_t sizes[] = {0, 100u << 20, 1ULL << 40};
    char *dir = scratch_new();
    struct out first = {.large = calloc(1, LARGE)};
    for (size_t k = 0; k < COUNT(sizes); k++) {
        struct spool s;
        struct out o = {.large = first.large};
        spool_init(&s, dir, "x", sizes[k]);
        for (int again = 0; again < 2; again++) { /* it can be filled again */
            o.n = 0;
            fill(&s, o.large);
            assert_int_equal(s.records, N);
            assert_true(s.bytes > 3ull * LARGE);
            OK(spool_emit(&s, take, &o, err));
            assert_true(o.n == N && s.records == 0 && s.bytes == 0);
        }
        for (size_t i = 1; i < N; i++) {
            const uint64_t a = hash_of(o.ids[i - 1]), b = hash_of(o.ids[i]);
            assert_true(a < b || (a == b && o.ids[i - 1] < o.ids[i]));
        }
        if (k == 0)
            memcpy(first.ids, o.ids, sizeof(o.ids));
        assert_memory_equal(first.ids, o.ids, sizeof(o.ids));
        spool_release(&s);
    }
    free(first.large);
    scratch_free(dir);
}

/* A stop, or a full disk, leaves no files. */
static void cleans_up(void **state)
{
    char *dir = scratch_new();
    struct spool s;
    struct out o = {.large = calloc(1, LARGE), .stop_at = 5};
    struct file_names left;
    struct err e = {0};
    spool_init(&s, dir, "x", 100u << 20);
    fill(&s, o.large);
    assert_int_equal(spool_emit(&s, take, &o, &e), -ERR_CANCELLED);
    spool_release(&s);
    if (file_fault_enospc(LARGE)) {
        spool_init(&s, dir, "x", 0);
        for (int i = 0, rc = 0; rc == 0; i++) {
            rc = spool_add(&s, hash_of((uint32_t)i), o.large, LARGE / 2, &e);
            assert_true(i < 3 && (rc == 0 || rc == -ENOSPC));
        }
        (void)file_fault_enospc(-1);
        spool_release(&s);
    }
    OK(file_list(dir, 10, &left, err));
    assert_int_equal(left.n, 0);
    file_names_release(&left);
    free(o.large);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_out_by_hash),
        cmocka_unit_test(cleans_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
