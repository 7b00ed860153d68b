/* Copies of a worker that ask to join: how often each may, and which are known.  A state without a
 * coordinator (bare.h). */
#include "coordinator/work/twins.h"
#include "tests/unit/coordinator/bare.h"

static void instance_of(uint8_t ret[16], int n)
{
    memset(ret, 0, 16);
    memcpy(ret, &n, sizeof(n));
}

static void slower_after_some_tries(void **state)
{
    struct coordinator *co = *state;
    const struct worker *w = state_add_worker(&co->state, 0), *o = state_add_worker(&co->state, 0);
    uint8_t a[16], b[16];
    bool is_new;
    instance_of(a, 1);
    instance_of(b, 2);
    assert_false(twins_has(co, w, a));
    for (int i = 0; i < 2 * TWINS_QUICK; i++) {
        const uint32_t ms = twins_refuse(co, w, a, &is_new);
        assert_int_equal(ms, i < TWINS_QUICK ? TWINS_QUICK_MS : TWINS_AGAIN_MS);
        assert_int_equal(is_new, i == 0);
    }
    assert_int_equal(twins_refuse(co, w, b, &is_new), TWINS_QUICK_MS);
    assert_true(is_new && twins_has(co, w, a) && twins_has(co, w, b) && !twins_has(co, o, a));
    assert_int_equal(twins_of(co, w->id), 2);
    assert_int_equal(twins_of(co, o->id), 0);
    for (int i = 0; i < TWINS_MAX; i++)
        co->twins[i].tried_ms -= TWINS_FORGET_MS;
    assert_int_equal(twins_of(co, w->id), 0);
    assert_int_equal(twins_refuse(co, w, a, &is_new), TWINS_QUICK_MS);
    assert_true(is_new);
    assert_int_equal(twins_of(co, w->id), 1);
    twins_admit(co, o, a); /* another worker */
    assert_int_equal(twins_of(co, w->id), 1);
    twins_admit(co, w, a);
    assert_int_equal(twins_of(co, w->id), 0);
    assert_false(twins_has(co, w, a));
}

/* The newest are known. */
static void more_than_there_is_room_for(void **state)
{
    struct coordinator *co = *state;
    const struct worker *w = state_add_worker(&co->state, 0);
    uint8_t instance[16];
    bool is_new;
    for (int i = 0; i < TWINS_MAX + 5; i++) {
        instance_of(instance, i);
        (void)twins_refuse(co, w, instance, &is_new);
        assert_true(is_new);
        for (int k = 0; k < TWINS_MAX; k++) /* they come one after the other */
            co->twins[k].tried_ms -= co->twins[k].tries > 0;
    }
    assert_int_equal(twins_of(co, w->id), TWINS_MAX);
    for (int i = 0; i < TWINS_MAX + 5; i++) {
        instance_of(instance, i);
        assert_int_equal(twins_has(co, w, instance), i >= 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(slower_after_some_tries, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(more_than_there_is_room_for, bare_begin, bare_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
