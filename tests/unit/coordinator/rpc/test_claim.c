/* Who is let in, with real TLS: keys, tokens and what revoking does, on a whole coordinator. */
#include "coordinator/work/tokens.h"
#include "tests/unit/coordinator/rig.h"

#include "common/net/http/http_server.h"

static struct keys *make_keys(struct rig *r, const char *name)
{
    struct err err = {0};
    struct keys *k = NULL;
    char *dir = fx_path(&r->f, name);
    assert_int_equal(file_mkdirs(dir, 0700, &err), 0);
    if (keys_open(dir, &k, &err) < 0)
        fail_msg("%s", err.msg);
    mem_free(dir);
    return k;
}

static struct token make_token(struct rig *r, struct token_order o, uint64_t *ret_id)
{
    char text[TOKEN_STRING_MAX];
    struct token t = {0};
    struct err err = {0};
    o.role = TOKEN_ROLE_WORKER;
    if (tokens_make(r->co, &o, ret_id, text, &err) < 0 || token_parse(text, &t, &err) < 0)
        fail_msg("%s", err.msg);
    return t;
}

static void expect_refused(struct rig *r, struct fake *w, const char *why)
{
    hang_up(w);
    dial(r, w);
    if (strstr(w->refused, why) == NULL)
        fail_msg("'%s' does not say '%s'", w->refused, why);
    hang_up(w);
}

static void again(struct rig *r, struct fake *w, int code)
{
    hang_up(w);
    int rc = join(r, w, SKERRY_VERSION);
    if (rc != code)
        fail_msg("%d, not %d: %s %s", rc, code, w->detail, w->refused);
}

/* The token lets a worker in once; then its key does, whatever became of the token. */
static void test_a_key_outlives_its_token(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct keys *of_a = make_keys(r, "a"), *of_b = make_keys(r, "b");
    uint64_t id, worker;
    struct token t = make_token(r, (struct token_order){.name = "one", .uses_max = 1}, &id);
    a->token = b->token = &t;
    a->keys = of_a;
    b->keys = of_b;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    worker = a->id;
    assert_int_equal(access_token(&r->co->state, id)->uses, 1);
    expect_refused(r, b, "'one' is used up");
    again(r, a, 0);
    assert_int_equal(a->id, worker);
    access_edit(&r->co->state, id)->ends_unix_ms = 1;
    memset(t.secret, 0, sizeof(t.secret));
    again(r, a, 0);
    assert_int_equal(a->id, worker);
    assert_int_equal(access_token(&r->co->state, id)->uses, 1);
    expect_refused(r, b, "secret");
    hang_up(a);
    keys_free(of_a);
    keys_free(of_b);
}

static void test_an_identity_is_its_keys(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *thief = &r->workers[1];
    struct keys *of_a = make_keys(r, "a"), *of_thief = make_keys(r, "thief");
    memcpy(thief->identity, a->identity, 16);
    thief->keys = of_thief;
    /* As of a release before keys; then its key goes on record. */
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_false(state_worker(&r->co->state, a->id)->has_key);
    const uint64_t id = a->id;
    a->keys = of_a;
    again(r, a, 0);
    assert_int_equal(a->id, id);
    assert_true(state_worker(&r->co->state, id)->has_key);
    hang_up(a);
    while (state_worker(&r->co->state, id)->peer != NULL)
        loop_turn(r->loop, true);
    again(r, thief, -ERR_AUTH);
    assert_non_null(strstr(thief->detail, "another key"));
    thief->keys = NULL; /* nor without any */
    again(r, thief, -ERR_AUTH);
    again(r, a, 0);
    assert_int_equal(a->id, id);
    hang_up(a);
    hang_up(thief);
    keys_free(of_a);
    keys_free(of_thief);
}

static void test_workers_at_once(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct err err = {0};
    uint64_t id;
    const struct token_order few = {.name = "few", .workers_max = 1};
    const struct token t = make_token(r, few, &id);
    a->token = b->token = &t;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), -EAGAIN);
    assert_non_null(strstr(b->detail, "allows 1 worker at once"));
    again(r, a, 0); /* its own place */
    assert_int_equal(view_worker_revoke(r->co, a->id, &err), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
}

static void test_revoked(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1], *c = &r->workers[2];
    struct keys *of_a = make_keys(r, "a");
    struct err err = {0};
    uint64_t id;
    const struct token t = make_token(r, (struct token_order){.name = "spot"}, &id);
    a->token = b->token = &t;
    a->keys = of_a;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    assert_int_equal(join(r, c, SKERRY_VERSION), 0);
    (void)submit(r);
    assign(r, a, TASK_INIT);
    const uint64_t task = a->task->id;
    assert_int_equal(tokens_revoke(r->co, id, access_holder_token(id), &err), -EBUSY);
    assert_int_equal(tokens_revoke(r->co, id, 0, &err), 0);
    assert_int_equal(tokens_revoke(r->co, id, 0, &err), -ERR_STALE);
    for (int i = 0; i < 2; i++) {
        const struct worker *w = state_worker(&r->co->state, i ? b->id : a->id);
        assert_true(w->revoked_unix_ms != 0 && w->state == WORKER_LEFT && w->peer == NULL);
        assert_false(access_holds(&r->co->state, access_holder_worker(w->id), 0));
    }
    assert_int_not_equal(state_task(&r->co->state, task)->state, TASK_LEASED);
    expect_refused(r, a, "with a new work directory and a live token this machine joins");
    expect_refused(r, b, "'spot' was revoked");
    assign(r, c, TASK_INIT); /* another token's worker goes on with it */
    assert_int_equal(c->task->id, task);
    assert_true(access_holds(&r->co->state, access_holder_worker(c->id), 0));
    keys_free(of_a);
}

/* A data dir without tokens, as older releases have left them. */
static void test_of_an_older_release(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(r->co->state.n_tokens, 2);
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    edit_worker(r, a->id)->token_id = 0;
    const uint64_t id = a->id, token = r->co->state.tokens[0].id;
    access_edit(&r->co->state, token)->revoked_unix_ms = 5; /* found again, not made again */
    stop(r);
    start(r);
    assert_int_equal(r->co->state.n_tokens, 2);
    assert_int_equal(state_worker(&r->co->state, id)->token_id, token);
    assert_int_equal(r->co->state.tokens[0].revoked_unix_ms, 5);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_key_outlives_its_token), TEST(test_an_identity_is_its_keys),
        TEST(test_workers_at_once),          TEST(test_revoked),
        TEST(test_of_an_older_release),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
