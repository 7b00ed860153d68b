/* Pieces of a job among threads. */
#include <stdatomic.h>

#include "tests/unit/common/base/util.h"

#include "common/base/crew.h"

#define PIECES 1000

static atomic_int done[PIECES];
static size_t bad[2]; /* these fail */

static int piece(void *arg, size_t i, unsigned thread, struct err *err)
{
    assert_true(thread < *(unsigned *)arg);
    done[i]++;
    return i == bad[0] || i == bad[1] ? err_set(err, -EIO, "piece %zu", i) : 0;
}

static void sizes(void **state)
{
    (void)state;
    assert_int_equal(crew_size(0, 100), 1);
    assert_int_equal(crew_size(-3, 100), 1);
    assert_int_equal(crew_size(4, 0), 1);
    assert_int_equal(crew_size(4, 3), 3);
    assert_int_equal(crew_size(4, 100), 4);
    assert_int_equal(crew_size(1000, 1000), CREW_MAX);
}

/* Each piece once, whoever does it. */
static void each_once(void **state)
{
    (void)state;
    bad[0] = bad[1] = PIECES;
    for (unsigned threads = 1; threads <= 5; threads++) {
        for (size_t i = 0; i < PIECES; i++)
            done[i] = 0;
        OK(crew_run(threads, PIECES, piece, &threads, err));
        for (size_t i = 0; i < PIECES; i++)
            assert_int_equal(done[i], 1);
    }
    OK(crew_run(3, 0, piece, NULL, err));
}

/* The first piece that failed is told, as it has begun before those behind it; few others begin. */
static void first_failure(void **state)
{
    (void)state;
    bad[0] = 700;
    bad[1] = 40;
    for (unsigned threads = 1; threads <= 5; threads++) {
        for (size_t i = 0; i < PIECES; i++)
            done[i] = 0;
        FAILS(crew_run(threads, PIECES, piece, &threads, err), "piece 40");
        for (size_t i = 0; i < PIECES; i++)
            assert_true(done[i] <= 1 && (i > 40 || done[i] == 1));
        if (threads == 1)
            assert_int_equal(done[41], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes), cmocka_unit_test(each_once),
                                       cmocka_unit_test(first_failure)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
