/* Tokens: who gets which role by them, whom their end shuts out, and those whose files are lost.  A
 * whole coordinator (rig.h). */
#include "tests/unit/coordinator/rig.h"

#include "coordinator/work/tokens.h"

static const struct token_rec *named(const struct rig *r, const char *name)
{
    return access_by_name(&r->co->state, name);
}

/* Its text is in ret_text. */
static uint64_t make(struct rig *r, const struct token_order *o, char ret_text[TOKEN_STRING_MAX])
{
    struct err err = {0};
    uint64_t id = 0;
    if (tokens_make(r->co, o, &id, ret_text, &err) < 0)
        fail_msg("%s", err.msg);
    return id;
}

static enum token_role role(const struct rig *r, const char *presented)
{
    uint64_t holder = 0;
    const enum token_role got = tokens_role(r->co, presented, &holder);
    if (got != TOKEN_ROLE_NONE)
        assert_int_equal(tokens_role_of(r->co, holder), got);
    return got;
}

/* Whoever presents an operator's or a viewer's token while it is valid; no worker. */
static void test_roles(void **state)
{
    struct rig *r = *state;
    char text[TOKEN_STRING_MAX], bearer[TOKEN_BEARER_MAX];
    struct token t;
    token_bearer(r->co->user_token.secret, bearer);
    assert_int_equal(role(r, bearer), TOKEN_ROLE_OPERATOR);
    token_bearer(r->co->worker_token.secret, bearer);
    assert_int_equal(role(r, bearer), TOKEN_ROLE_NONE);
    assert_int_equal(role(r, ""), TOKEN_ROLE_NONE);
    assert_int_equal(role(r, "skerry1.x"), TOKEN_ROLE_NONE);

    const uint64_t id = make(r, &(struct token_order){.role = TOKEN_ROLE_VIEWER}, text);
    assert_int_equal(token_parse(text, &t, NULL), 0);
    token_bearer(t.secret, bearer);
    assert_int_equal(role(r, text), TOKEN_ROLE_VIEWER);
    assert_int_equal(role(r, bearer), TOKEN_ROLE_VIEWER);
    assert_int_equal(t.role, TOKEN_ROLE_VIEWER);
    assert_memory_equal(t.pin, r->co->user_token.pin, sizeof(t.pin));

    struct token_rec *rec = access_edit(&r->co->state, id);
    rec->ends_unix_ms = rec->made_unix_ms - 1;
    assert_int_equal(role(r, text), TOKEN_ROLE_NONE);
    assert_int_equal(tokens_role_of(r->co, access_holder_token(id)), TOKEN_ROLE_NONE);
    rec->ends_unix_ms = 0;
    rec->revoked_unix_ms = 1;
    assert_int_equal(role(r, text), TOKEN_ROLE_NONE);
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    assert_int_equal(tokens_role_of(r->co, access_holder_worker(r->workers[0].id)),
                     TOKEN_ROLE_NONE);
    assert_int_equal(tokens_role_of(r->co, access_holder_token(named(r, "worker.token")->id)),
                     TOKEN_ROLE_NONE);
}

/* Pictures, but no data and no weights. */
static void test_what_a_viewer_may_get(void **state)
{
    struct rig *r = *state;
    struct job *j = state_job(&r->co->state, submit(r));
    struct grid_rec grid = {.blob.size = 1};
    memset(grid.blob.sha256, 7, 32);
    const uint8_t *picture = job_add_grid(j, &grid)->blob.sha256;
    assert_true(tokens_may_get(r->co, TOKEN_ROLE_VIEWER, picture));
    assert_false(tokens_may_get(r->co, TOKEN_ROLE_VIEWER, j->shards[0].blob.sha256));
    assert_true(tokens_may_get(r->co, TOKEN_ROLE_OPERATOR, j->shards[0].blob.sha256));
    assert_false(tokens_may_get(r->co, TOKEN_ROLE_WORKER, picture));
    assert_false(tokens_may_get(r->co, TOKEN_ROLE_NONE, picture));
}

static void test_names_and_limits(void **state)
{
    struct rig *r = *state;
    char text[TOKEN_STRING_MAX];
    struct err err = {0};
    uint64_t id;
    const struct token_order spot = {.name = "spot",
                                     .role = TOKEN_ROLE_WORKER,
                                     .life_ms = 5000,
                                     .uses_max = 2,
                                     .workers_max = 3};
    const struct token_order plain = {.role = TOKEN_ROLE_VIEWER};
    const struct token_rec *t = access_token(&r->co->state, make(r, &spot, text));
    assert_int_equal(t->ends_unix_ms, t->made_unix_ms + 5000);
    assert_true(t->uses_max == 2 && t->workers_max == 3 && t->jobs_max == 0 && t->budget == 0);
    assert_int_equal(tokens_make(r->co, &spot, &id, text, &err), -EEXIST);
    assert_non_null(strstr(err.msg, "'spot'"));
    assert_int_equal(tokens_revoke(r->co, t->id, 0, &err), 0);
    (void)make(r, &spot, text); /* the name is free again */

    t = access_token(&r->co->state, make(r, &plain, text));
    assert_int_equal(t->ends_unix_ms, 0);
    char next[NAME_MAX_BYTES];
    (void)snprintf(next, sizeof(next), "viewer-%llu", (unsigned long long)t->id);
    assert_string_equal(t->name, next);
    /* A person has the name that the next one would get. */
    (void)snprintf(next, sizeof(next), "viewer-%llu", (unsigned long long)t->id + 2);
    (void)make(r, &(struct token_order){.name = next, .role = TOKEN_ROLE_VIEWER}, text);
    const uint64_t other = make(r, &plain, text);
    assert_string_not_equal(access_token(&r->co->state, other)->name, next);

    while (tokens_make(r->co, &plain, &id, text, &err) == 0)
        ;
    assert_int_equal(err.code, -ERR_LIMIT);
    assert_int_equal(r->co->state.n_tokens, TOKENS_MAX);
    token_bearer(r->co->user_token.secret, text);
    assert_int_equal(role(r, text), TOKEN_ROLE_OPERATOR); /* none was lost for another */
}

/* Those that came in by it are shut out, and no others. */
static void test_revoked_workers(void **state)
{
    struct rig *r = *state;
    char text[TOKEN_STRING_MAX];
    struct token spot;
    struct err err = {0};
    const uint64_t id = make(r, &(struct token_order){.role = TOKEN_ROLE_WORKER}, text);
    const uint64_t viewer = make(r, &(struct token_order){.role = TOKEN_ROLE_VIEWER}, text);
    assert_int_equal(tokens_revoke(r->co, id, 0, &err), 0);
    const uint64_t again = make(r, &(struct token_order){.role = TOKEN_ROLE_WORKER}, text);
    assert_int_equal(token_parse(text, &spot, NULL), 0);
    r->workers[1].token = &spot;
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const struct worker *first = state_worker(&r->co->state, r->workers[0].id),
                        *second = state_worker(&r->co->state, r->workers[1].id);
    /* A worker's number and a token's may be equal. */
    assert_int_equal(tokens_revoke(r->co, viewer, 0, &err), 0);
    assert_true(first->revoked_unix_ms == 0 && second->revoked_unix_ms == 0);
    assert_int_equal(tokens_revoke(r->co, again, 0, &err), 0);
    assert_int_equal(first->revoked_unix_ms, 0);
    assert_true(second->revoked_unix_ms > 0 && second->state == WORKER_LEFT);
    assert_non_null(strstr(second->state_reason, "was revoked"));
    assert_int_equal(first->state, WORKER_HERE);
    assert_int_equal(tokens_revoke(r->co, again, 0, &err), -ERR_STALE);
    assert_int_equal(tokens_revoke(r->co, 999, 0, &err), -ERR_NOTFOUND);
}

/* Each bound is its own, and what is not given stays. */
static void test_bounds(void **state)
{
    struct rig *r = *state;
    char text[TOKEN_STRING_MAX];
    struct err err = {0};
    const struct token_rec *t = NULL;
    const struct token_bounds workers = {NAN, 4, NAN, NAN, NAN}, uses = {5, NAN, NAN, NAN, NAN},
                              jobs = {NAN, NAN, 6, NAN, NAN}, budget = {NAN, NAN, NAN, 0, NAN};
    const uint64_t a =
        make(r, &(struct token_order){.role = TOKEN_ROLE_WORKER, .uses_max = 2}, text);
    const uint64_t b = make(
        r, &(struct token_order){.role = TOKEN_ROLE_OPERATOR, .jobs_max = 3, .budget = 7}, text);
    assert_int_equal(tokens_adjust(r->co, a, 0, &workers, &t, &err), 0);
    assert_true(t->id == a && t->workers_max == 4 && t->uses_max == 2);
    assert_int_equal(tokens_adjust(r->co, a, 0, &uses, &t, &err), 0);
    assert_true(t->workers_max == 4 && t->uses_max == 5);
    assert_int_equal(tokens_adjust(r->co, b, 0, &uses, &t, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "an operator's"));
    t = access_token(&r->co->state, b);
    assert_true(t->jobs_max == 3 && t->budget == 7);
    assert_int_equal(tokens_adjust(r->co, b, 0, &jobs, &t, &err), 0);
    assert_true(t->jobs_max == 6 && t->budget == 7);
    assert_int_equal(tokens_adjust(r->co, b, 0, &budget, &t, &err), 0);
    assert_true(t->jobs_max == 6 && t->budget == 0);
    const uint64_t c = make(r, &(struct token_order){.role = TOKEN_ROLE_VIEWER}, text);
    assert_int_equal(tokens_adjust(r->co, c, 0, &jobs, &t, &err), -EINVAL);
    assert_int_equal(tokens_adjust(r->co, c, 0, &uses, &t, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "a viewer's"));
}

/* A person whose token has ended gets more time by the same one, so that budget and jobs stay. */
static void test_more_time(void **state)
{
    struct rig *r = *state;
    char text[TOKEN_STRING_MAX];
    struct err err = {0};
    const struct token_rec *t = NULL;
    const struct token_bounds hour = {NAN, NAN, NAN, NAN, 3600}, none = {NAN, NAN, NAN, NAN, 0};
    const uint64_t ann = make(
        r, &(struct token_order){.role = TOKEN_ROLE_OPERATOR, .life_ms = 1000, .budget = 7}, text);
    access_edit(&r->co->state, ann)->ends_unix_ms = 1;
    tokens_check(r->co);
    assert_int_equal(tokens_role_of(r->co, access_holder_token(ann)), TOKEN_ROLE_NONE);
    assert_int_equal(tokens_adjust(r->co, ann, 0, &hour, &t, &err), 0);
    assert_true(t->budget == 7 && !t->told);
    assert_in_range(t->ends_unix_ms - (int64_t)clock_wall_ms(), 3600000 - DEADLINE_MS, 3600000);
    assert_int_equal(tokens_role_of(r->co, access_holder_token(ann)), TOKEN_ROLE_OPERATOR);
    assert_int_equal(tokens_adjust(r->co, ann, 0, &none, &t, &err), 0);
    assert_int_equal(t->ends_unix_ms, 0);
    assert_int_equal(tokens_revoke(r->co, ann, 0, &err), 0);
    assert_int_equal(tokens_adjust(r->co, ann, 0, &hour, &t, &err), -ERR_STALE);
}

static bool has_file(const struct rig *r, const char *name)
{
    char *path = fx_path((struct fixture *)(uintptr_t)&r->f, name);
    const bool there = file_exists(path);
    mem_free(path);
    return there;
}

/* A file whose secret is void would only mislead; and nobody can shut out everybody. */
static void test_files_of_revoked_tokens(void **state)
{
    struct rig *r = *state;
    char text[TOKEN_STRING_MAX];
    struct err err = {0};
    const uint64_t user = named(r, "user.token")->id;
    assert_int_equal(tokens_revoke(r->co, user, access_holder_token(user), &err), -EBUSY);
    assert_int_equal(named(r, "user.token")->revoked_unix_ms, 0);
    const uint64_t other = make(r, &(struct token_order){.role = TOKEN_ROLE_OPERATOR}, text);
    assert_int_equal(tokens_revoke(r->co, other, access_holder_token(user), &err), 0);
    assert_true(has_file(r, "user.token") && has_file(r, "worker.token"));
    const uint64_t asker = make(r, &(struct token_order){.role = TOKEN_ROLE_OPERATOR}, text);
    assert_int_equal(tokens_revoke(r->co, user, access_holder_token(asker), &err), 0);
    assert_true(!has_file(r, "user.token") && has_file(r, "worker.token"));
    assert_int_equal(tokens_revoke(r->co, named(r, "worker.token")->id, 0, &err), 0);
    assert_false(has_file(r, "worker.token"));
}

/* A token that has expired is said to have, once; one that is revoked or goes on is not. */
static void test_ends(void **state)
{
    struct rig *r = *state;
    char text[TOKEN_STRING_MAX];
    const uint64_t id =
        make(r, &(struct token_order){.role = TOKEN_ROLE_WORKER, .life_ms = 1000000}, text);
    const struct token_rec *t = access_token(&r->co->state, id);
    tokens_check(r->co);
    assert_false(t->told);
    access_edit(&r->co->state, id)->ends_unix_ms = t->made_unix_ms - 1;
    tokens_check(r->co);
    assert_true(t->told);
    assert_false(named(r, "user.token")->told);
    access_edit(&r->co->state, id)->told = false;
    tokens_of_files(r->co); /* as when it starts: it is no news */
    assert_true(t->told);
    assert_false(named(r, "user.token")->told);
}

/* A file is lost: the token of the new one takes its name.  Workers go on; a person's secret that
 * may be anywhere is void. */
static void test_lost_files(void **state)
{
    struct rig *r = *state;
    const struct token worker = r->co->worker_token, user = r->co->user_token;
    const uint64_t w = named(r, "worker.token")->id, u = named(r, "user.token")->id;
    char bearer[TOKEN_BEARER_MAX];
    tokens_of_files(r->co);
    assert_int_equal(named(r, "worker.token")->id, w); /* nothing was lost */
    assert_int_equal(r->co->state.n_tokens, 2);
    memset(r->co->worker_token.secret, 5, KEYS_SECRET_BYTES);
    memset(r->co->user_token.secret, 6, KEYS_SECRET_BYTES);
    struct worker *old = state_add_worker(&r->co->state, 0); /* of a release without tokens */
    tokens_of_files(r->co);
    assert_int_equal(old->token_id, named(r, "worker.token")->id);
    assert_true(named(r, "worker.token")->id != w && named(r, "user.token")->id != u);
    const struct token_rec *rec = access_token(&r->co->state, w);
    assert_int_equal(rec->revoked_unix_ms, 0);
    assert_string_not_equal(rec->name, "worker.token");
    assert_ptr_equal(access_by_secret(&r->co->state, TOKEN_ROLE_WORKER, worker.secret), rec);
    assert_true(access_token(&r->co->state, u)->revoked_unix_ms > 0);
    token_bearer(user.secret, bearer);
    assert_int_equal(role(r, bearer), TOKEN_ROLE_NONE);
    token_bearer(r->co->user_token.secret, bearer);
    assert_int_equal(role(r, bearer), TOKEN_ROLE_OPERATOR);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_roles),
        TEST(test_what_a_viewer_may_get),
        TEST(test_names_and_limits),
        TEST(test_bounds),
        TEST(test_more_time),
        TEST(test_revoked_workers),
        TEST(test_files_of_revoked_tokens),
        TEST(test_ends),
        TEST(test_lost_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
