/* Jobs on threads: each is answered once. */
#include "common/net/pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "tests/unit/common/net/net_test.h"

struct counting {
    struct net_test t;
    unsigned done, cancelled;
    pthread_mutex_t gate;
    atomic_uint begun;
};

static int wait_at_gate(void *arg)
{
    struct counting *c = arg;
    c->begun++;
    pthread_mutex_lock(&c->gate);
    pthread_mutex_unlock(&c->gate);
    return 7;
}

static void on_job_done(void *arg, int rc)
{
    struct counting *c = arg;
    loop_assert_thread(c->t.loop);
    if (rc == 7)
        c->done++;
    else if (rc == -ERR_CANCELLED)
        c->cancelled++;
}

static void test_pool(void **state)
{
    struct counting c = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct pool *pool;
    net_test_init(&c.t);
    assert_int_equal(pool_new(c.t.loop, "test", 2, 5, &pool, NULL), 0);
    pthread_mutex_lock(&c.gate);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(pool_submit(pool, wait_at_gate, on_job_done, &c), 0);
    assert_int_equal(pool_submit(pool, wait_at_gate, on_job_done, &c), -EAGAIN);
    assert_int_equal(pool_pending(pool), 5);
    pthread_mutex_unlock(&c.gate);
    WAIT_FOR(&c.t, c.done == 5);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(pool_submit(pool, wait_at_gate, on_job_done, &c), 0);
    assert_true(pool_stop(pool, 60000));
    pool_free(pool); /* each is answered: run or cancelled */
    assert_int_equal(c.done + c.cancelled, 10);
    net_test_release(&c.t);
}

static void test_a_job_that_hangs(void **state)
{
    struct counting c = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct pool *pool;
    net_test_init(&c.t);
    assert_int_equal(pool_new(c.t.loop, "test", 1, 5, &pool, NULL), 0);
    pthread_mutex_lock(&c.gate);
    assert_int_equal(pool_submit(pool, wait_at_gate, on_job_done, &c), 0);
    assert_int_equal(pool_submit(pool, wait_at_gate, on_job_done, &c), 0);
    WAIT_FOR(&c.t, c.begun == 1);
    assert_false(pool_stop(pool, 10));
    assert_true(pool_stopping(pool));
    pthread_mutex_unlock(&c.gate);
    pool_free(pool);
    assert_true(c.done == 1 && c.cancelled == 1);
    net_test_release(&c.t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_a_job_that_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
