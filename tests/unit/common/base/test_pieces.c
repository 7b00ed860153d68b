/* Who hears of a thread's pieces. */
#include "tests/unit/common/base/util.h"

#include <pthread.h>

#include "common/base/pieces.h"

static void count(void *n)
{
    ++*(unsigned *)n;
}

static void *elsewhere(void *arg)
{
    assert_false(pieces_heard());
    pieces_done();
    return arg;
}

static void by_thread(void **state)
{
    (void)state;
    unsigned n = 0;
    pthread_t other;
    pieces_done();
    assert_false(pieces_heard());
    pieces_hear(count, &n);
    pieces_done();
    pieces_done();
    assert_int_equal(pthread_create(&other, NULL, elsewhere, NULL), 0);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_true(pieces_heard());
    assert_int_equal(n, 2);
    pieces_hear(NULL, NULL);
    pieces_done();
    assert_int_equal(n, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(by_thread)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
