/* Tokens on record: found by their secrets, and which of them make room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/state/state.h"

static void secret_of(unsigned n, uint8_t out[KEYS_SECRET_BYTES])
{
    memset(out, 0, KEYS_SECRET_BYTES);
    memcpy(out, &n, sizeof(n));
}

static struct token_rec *add(struct state *s, unsigned n, enum token_role role)
{
    uint8_t secret[KEYS_SECRET_BYTES];
    secret_of(n, secret);
    return access_add(s, 0, role, secret);
}

static void test_secrets(void **state)
{
    struct state s;
    uint8_t secret[KEYS_SECRET_BYTES];
    state_init(&s);
    const struct token_rec *w = add(&s, 1, TOKEN_ROLE_WORKER), *v = add(&s, 2, TOKEN_ROLE_VIEWER);
    secret_of(1, secret);
    assert_memory_equal(w->verifier, secret, sizeof(secret)); /* its proof is checked with it */
    assert_ptr_equal(access_by_secret(&s, TOKEN_ROLE_WORKER, secret), w);
    assert_null(access_by_secret(&s, TOKEN_ROLE_VIEWER, secret));
    secret_of(2, secret);
    assert_memory_not_equal(v->verifier, secret, sizeof(secret));
    assert_ptr_equal(access_by_secret(&s, TOKEN_ROLE_VIEWER, secret), v);
    assert_null(access_by_secret(&s, TOKEN_ROLE_OPERATOR, secret));
    /* What is on record is no secret of its own. */
    assert_null(access_by_secret(&s, TOKEN_ROLE_VIEWER, v->verifier));
    state_release(&s);
}

static void test_holders(void **state)
{
    struct state s;
    const int64_t now = 1000;
    state_init(&s);
    struct token_rec *t = add(&s, 1, TOKEN_ROLE_OPERATOR);
    struct worker *w = state_add_worker(&s, 0);
    assert_int_equal(t->id, w->id); /* and still two holders */
    const uint64_t of_token = access_holder_token(t->id), of_worker = access_holder_worker(w->id);
    assert_true(access_holds(&s, of_token, now) && access_holds(&s, of_worker, now));
    assert_ptr_equal(access_token_of(&s, of_token), t);
    assert_null(access_token_of(&s, of_worker));
    t->ends_unix_ms = now;
    assert_false(access_holds(&s, of_token, now));
    assert_true(access_holds(&s, of_token, now - 1) && access_holds(&s, of_worker, now));
    w->revoked_unix_ms = 1;
    assert_false(access_holds(&s, of_worker, now));
    assert_false(access_holds(&s, access_holder_worker(7), now));
    assert_false(access_holds(&s, 0, now));
    state_release(&s);
}

static void test_names(void **state)
{
    struct state s;
    state_init(&s);
    struct token_rec *t = add(&s, 1, TOKEN_ROLE_WORKER);
    (void)str_copy(t->name, sizeof(t->name), "spot");
    assert_ptr_equal(access_by_name(&s, "spot"), t);
    t->revoked_unix_ms = 1;
    assert_null(access_by_name(&s, "spot")); /* it is free again */
    state_release(&s);
}

static void test_room(void **state)
{
    struct state s;
    const int64_t now = (int64_t)clock_wall_ms();
    state_init(&s);
    for (unsigned i = 0; i < TOKENS_MAX; i++)
        assert_non_null(add(&s, i, TOKEN_ROLE_WORKER));
    assert_null(add(&s, TOKENS_MAX, TOKEN_ROLE_WORKER)); /* all are live */
    access_edit(&s, 30)->ends_unix_ms = now - 5000;
    access_edit(&s, 40)->revoked_unix_ms = now - 1000;
    access_edit(&s, 50)->revoked_unix_ms = now - 2000;
    static const uint64_t go[] = {50, 40, 30};
    for (unsigned i = 0; i < 3; i++) {
        const struct token_rec *t = add(&s, 1000 + i, TOKEN_ROLE_WORKER);
        assert_non_null(t);
        assert_int_equal(t->id, TOKENS_MAX + 1 + i);
        assert_null(access_token(&s, go[i]));
        assert_int_equal(s.tokens_gone.at[i], go[i]);
    }
    assert_null(add(&s, 2000, TOKEN_ROLE_WORKER));
    struct job *j = state_add_job(&s, 0); /* whose budget a token has, revoked or not */
    j->token_id = 60;
    access_edit(&s, 60)->revoked_unix_ms = now - 1000;
    assert_null(add(&s, 2000, TOKEN_ROLE_WORKER));
    j->state = JOB_CANCELLED;
    assert_non_null(add(&s, 2000, TOKEN_ROLE_WORKER));
    assert_null(access_token(&s, 60));
    state_release(&s);
}

/* Faces that begin alike, one in four of them without a key. */
static void face_of(struct worker *w, unsigned n)
{
    memset(w->identity, (int)(n % 7), sizeof(w->identity));
    memcpy(&w->identity[8], &n, sizeof(n));
    w->has_key = n % 4 != 0;
    memset(w->key, (int)(n % 5), sizeof(w->key));
    memcpy(&w->key[12], &n, sizeof(n));
}

static void test_faces(void **state)
{
    enum { N = 600 };
    struct state s;
    struct worker w = {0};
    state_init(&s);
    face_of(&w, 1);
    assert_null(access_worker_by_identity(&s, w.identity));
    for (unsigned i = 1; i <= N; i++) {
        struct worker *new = state_add_worker(&s, 0);
        face_of(new, i);
        access_know(&s, new);
        if (i % 3 == 0) /* the one before is forgotten, or has another identity now */
            state_drop_worker(&s, state_worker(&s, i - 1));
        else if (i % 3 == 1 && i > 1) {
            struct worker *old = state_edit_worker(&s, state_worker(&s, i - 1));
            face_of(old, N + i);
            access_know(&s, old);
        }
    }
    for (unsigned i = 1; i <= N; i++) {
        const struct worker *have = state_worker(&s, i);
        face_of(&w, i % 3 == 0 && i < N ? N + i + 1 : i);
        assert_ptr_equal(access_worker_by_identity(&s, w.identity), have);
        assert_ptr_equal(access_worker_by_key(&s, w.key), w.has_key ? have : NULL);
    }
    face_of(&w, 3); /* as it was before */
    assert_null(access_worker_by_identity(&s, w.identity));
    state_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_secrets), cmocka_unit_test(test_holders),
        cmocka_unit_test(test_names),   cmocka_unit_test(test_room),
        cmocka_unit_test(test_faces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
