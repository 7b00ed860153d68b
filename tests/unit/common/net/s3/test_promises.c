/* What workers may have put into the store without a report: bounded in number and bytes. */
#include "common/net/s3/promises.h"

#include "common/base/clock.h"
#include "tests/unit/common/net/net_test.h"

static struct blob_id id_of(unsigned n)
{
    struct blob_id id = {{0}};
    memcpy(id.sha256, &n, sizeof(n));
    return id;
}

static bool add(struct promises *p, unsigned n, uint64_t size)
{
    const struct blob_id id = id_of(n);
    return promises_add(p, &id, size, 100);
}

/* All together have so many bytes at most, each counted once. */
static void test_bytes(void **state)
{
    struct promises p = {0};
    const struct blob_id one = id_of(1), none = id_of(9);
    assert_true(add(&p, 1, 60) && add(&p, 2, 40));
    assert_false(add(&p, 3, 1));
    assert_true(add(&p, 1, 60)); /* the same again */
    assert_true(p.n == 2 && p.bytes == 100);
    assert_false(add(&p, 1, 61)); /* nothing has changed */
    assert_true(p.n == 2 && p.bytes == 100);
    assert_true(add(&p, 1, 10));
    assert_int_equal(p.bytes, 50);
    assert_false(add(&p, 3, 101));
    assert_false(add(&p, 3, UINT64_MAX));
    promises_drop(&p, &none);
    assert_int_equal(p.n, 2);
    promises_drop(&p, &one); /* it was reported */
    assert_true(p.n == 1 && p.bytes == 40);
    assert_true(add(&p, 3, 60));
    promises_release(&p);
    assert_true(p.n == 0 && p.bytes == 0);
}

static void test_number(void **state)
{
    struct promises p = {0};
    for (unsigned i = 0; i < PROMISES_MAX; i++)
        assert_true(add(&p, i, 0));
    assert_false(add(&p, PROMISES_MAX, 0));
    assert_true(add(&p, 7, 0));
    const struct blob_id gone = id_of(3);
    promises_drop(&p, &gone);
    assert_true(add(&p, PROMISES_MAX, 0));
    promises_release(&p);
}

/* Those are taken that nobody was redirected to since, each once. */
static void test_old(void **state)
{
    struct promises p = {0};
    struct blob_id id;
    const int64_t now_s = (int64_t)(clock_wall_ms() / 1000);
    assert_false(promises_take_old(&p, INT64_MAX, &id));
    assert_true(add(&p, 1, 10) && add(&p, 2, 20) && add(&p, 3, 30));
    assert_false(promises_take_old(&p, now_s, &id));
    p.list[0].at_s = p.list[1].at_s = now_s - 100;
    assert_true(add(&p, 1, 10)); /* asked for again */
    assert_true(promises_take_old(&p, now_s - 50, &id));
    const struct blob_id two = id_of(2);
    assert_memory_equal(&id, &two, sizeof(id));
    assert_true(p.n == 2 && p.bytes == 40);
    assert_false(promises_take_old(&p, now_s - 50, &id));
    promises_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_number),
        cmocka_unit_test(test_old),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
