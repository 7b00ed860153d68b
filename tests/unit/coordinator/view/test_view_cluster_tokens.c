/* What is told of tokens, and who may be revoked, by a coordinator that stands still (by_hand.h).
 */
#include "tests/unit/coordinator/kinds/by_hand.h"

static struct token_rec *add_token(struct coordinator *co, uint8_t secret)
{
    uint8_t bytes[KEYS_SECRET_BYTES] = {secret};
    return access_add(&co->state, 0, TOKEN_ROLE_WORKER, bytes);
}

/* Without the tokens of its own. */
static int begin_tokens(void **state)
{
    const int rc = begin_by_hand(state);
    struct coordinator *co = ((struct rig *)*state)->co;
    co->state.n_tokens = 0;
    co->state.next_token = 1;
    return rc;
}

struct heard {
    size_t n;
    struct view_token v[8];
};

static void hear(void *arg, const struct view_token *v)
{
    struct heard *h = arg;
    h->v[h->n++] = *v;
}

static void test_tokens(void **state)
{
    struct coordinator *co = ((struct rig *)*state)->co;
    const int64_t now = (int64_t)clock_wall_ms();
    static const char *const states[] = {"live", "live", "ended", "revoked", "revoked"};
    struct heard h = {0};
    for (uint8_t i = 0; i < 5; i++)
        assert_non_null(add_token(co, i));
    co->state.tokens[1].ends_unix_ms = now + 100000;
    co->state.tokens[2].ends_unix_ms = now - 1;
    co->state.tokens[3].revoked_unix_ms = now;
    co->state.tokens[4].revoked_unix_ms = co->state.tokens[4].ends_unix_ms = now - 1;
    for (int i = 0; i < 3; i++) {
        struct worker *w = state_add_worker(&co->state, 0);
        w->token_id = co->state.tokens[1].id;
        state_set_worker_state(&co->state, w, i < 2 ? WORKER_HERE : WORKER_LOST);
        struct job *j = state_add_job(&co->state, 0);
        j->token_id = co->state.tokens[i == 2].id;
        j->cost = (struct job_cost){.work = 2, .waiting = 0.5};
    }
    view_each_token(co, hear, &h);
    assert_int_equal(h.n, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(h.v[i].token->id, i + 1);
        assert_string_equal(h.v[i].state, states[i]);
        assert_int_equal(h.v[i].workers_here, i == 1 ? 2 : 0);
        assert_true(h.v[i].cost == (i == 0 ? 5.0 : i == 1 ? 2.5 : 0.0));
    }
    assert_true(h.v[0].left_ms == -1 && h.v[2].left_ms == 0 && h.v[3].left_ms == -1);
    assert_true(h.v[1].left_ms > 90000 && h.v[1].left_ms <= 100000);
}

static void test_revoking_a_worker(void **state)
{
    struct coordinator *co = ((struct rig *)*state)->co;
    struct err err = {0};
    const struct worker *w = state_add_worker(&co->state, 0);
    assert_int_equal(view_worker_revoke(co, 9, &err), -ERR_NOTFOUND);
    assert_string_equal(err.msg, "worker 9 does not exist");
    co->store_ok = false;
    assert_int_equal(view_worker_revoke(co, w->id, &err), -EIO);
    assert_int_equal(w->revoked_unix_ms, 0);
    co->store_ok = true;
    co->touched = false;
    assert_int_equal(view_worker_revoke(co, w->id, &err), 0);
    assert_true(w->revoked_unix_ms > 0 && co->touched);
    assert_int_equal(view_worker_revoke(co, w->id, &err), -ERR_STALE);
    assert_string_equal(err.msg, "worker 1 was revoked already");
}

/* While nothing can be written nothing is promised. */
static void test_nothing_is_written(void **state)
{
    struct coordinator *co = ((struct rig *)*state)->co;
    const struct token_order order = {.role = TOKEN_ROLE_WORKER};
    const struct token_bounds bounds = {NAN, NAN, NAN, NAN, NAN};
    const struct token_rec *t = NULL;
    char text[TOKEN_STRING_MAX];
    uint64_t id;
    co->store_ok = false;
    const uint64_t token = add_token(co, 1)->id;
    assert_int_equal(tokens_make(co, &order, &id, text, NULL), -EIO);
    assert_int_equal(tokens_adjust(co, token, 0, &bounds, &t, NULL), -EIO);
    assert_int_equal(tokens_revoke(co, token, 0, NULL), -EIO);
    assert_true(co->state.n_tokens == 1 && co->state.tokens[0].revoked_unix_ms == 0);
}

int main(void)
{
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin_tokens, end_by_hand)
    const struct CMUnitTest tests[] = {
        LIVE(test_tokens),
        LIVE(test_revoking_a_worker),
        LIVE(test_nothing_is_written),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
