/* What other threads post comes, in order, and no more than fits. */
#include "common/net/loop.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "tests/unit/common/net/net_test.h"

struct counting {
    struct net_test t;
    unsigned posted;
};

static void on_posted(void *arg)
{
    ((struct counting *)arg)->posted++;
}

static void *post_many(void *arg)
{
    struct counting *c = arg;
    for (unsigned i = 0; i < LOOP_POST_MAX; i++)
        if (loop_post(c->t.loop, on_posted, c) < 0)
            return arg;
    return loop_post(c->t.loop, on_posted, c) == -EAGAIN ? NULL : arg;
}

static void test_post(void **state)
{
    struct counting c = {.posted = 0};
    pthread_t thread;
    void *failed;
    net_test_init(&c.t);
    assert_int_equal(pthread_create(&thread, NULL, post_many, &c), 0);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    WAIT_FOR(&c.t, c.posted == LOOP_POST_MAX);
    loop_defer(c.t.loop, on_posted, &c);
    WAIT_FOR(&c.t, c.posted == LOOP_POST_MAX + 1);
    net_test_release(&c.t);
}

/* ---- defer, stop, timers ---- */

struct order {
    struct net_test t;
    char said[8];
    unsigned ticks, stop_at;
    struct loop_timer *timer;
};

static void say_c(void *arg)
{
    strcat(((struct order *)arg)->said, "c");
}

static void say_a(void *arg)
{
    struct order *o = arg;
    strcat(o->said, "a");
    loop_defer(o->t.loop, say_c, o);
}

static void say_b(void *arg)
{
    struct order *o = arg;
    strcat(o->said, "b");
    loop_stop(o->t.loop);
}

static void test_defer_and_stop(void **state)
{
    struct order o = {.ticks = 0};
    net_test_init(&o.t);
    loop_defer(o.t.loop, say_a, &o);
    loop_defer(o.t.loop, say_b, &o);
    assert_string_equal(o.said, ""); /* never from within */
    loop_run(o.t.loop);              /* ends after the turn that stopped it */
    assert_string_equal(o.said, "ab");
    loop_stop(o.t.loop);
    loop_run(o.t.loop); /* at once */
    WAIT_FOR(&o.t, strlen(o.said) == 3);
    assert_string_equal(o.said, "abc");
    net_test_release(&o.t);
}

static void on_tick(void *arg)
{
    struct order *o = arg;
    if (++o->ticks == o->stop_at)
        loop_timer_stop(o->timer);
}

static void test_timer(void **state)
{
    struct order o = {.stop_at = 3};
    net_test_init(&o.t);
    o.timer = loop_timer_new(o.t.loop, on_tick, &o);
    assert_false(loop_timer_active(o.timer));
    loop_timer_start(o.timer, 0, 1);
    assert_true(loop_timer_active(o.timer));
    WAIT_FOR(&o.t, o.ticks == 3);
    assert_false(loop_timer_active(o.timer));
    o.stop_at = 0;
    loop_timer_start(o.timer, 1, 0);
    WAIT_FOR(&o.t, o.ticks == 4);
    assert_false(loop_timer_active(o.timer)); /* once */
    loop_timer_start(o.timer, 1, 1);
    loop_timer_free(o.timer);
    uint64_t until = loop_now_ms(o.t.loop) + 5;
    WAIT_FOR(&o.t, loop_now_ms(o.t.loop) > until);
    assert_int_equal(o.ticks, 4);
    net_test_release(&o.t);
}

/* ---- signals ---- */

static void on_signal(void *arg, int signo)
{
    char *heard = arg;
    (void)strcat(heard, signo == SIGHUP ? "h" : "t");
}

/* What nohup started stays when its terminal goes. */
static void test_hang_up(void **state)
{
    static const char *const heard[] = {"ht", "t"};
    for (int ignored = 0; ignored < 2; ignored++) {
        struct net_test t;
        char said[8] = "";
        net_test_init(&t);
        (void)signal(SIGHUP, ignored ? SIG_IGN : SIG_DFL);
        assert_int_equal(loop_on_signals(t.loop, on_signal, said, NULL), 0);
        assert_int_equal(raise(SIGHUP), 0);
        assert_int_equal(raise(SIGTERM), 0);
        WAIT_FOR(&t, strchr(said, 't'));
        assert_string_equal(said, heard[ignored]);
        net_test_release(&t);
    }
    (void)signal(SIGHUP, SIG_DFL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_post),
        cmocka_unit_test(test_defer_and_stop),
        cmocka_unit_test(test_timer),
        cmocka_unit_test(test_hang_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
