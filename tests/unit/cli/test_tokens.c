/* Which token a name or a number means, and which flags of `skerry tokens` go together. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/cli/ran.h"

#define T(id, name, state)                                                                         \
    "{\"id\": " id ", \"name\": \"" name "\", \"state\": \"" state "\", \"role\": \"worker\"}"
#define ALL                                                                                        \
    "{\"items\": [" T("1", "worker.token", "live") "," T("2", "spot", "revoked") "," T(            \
        "3", "4",                                                                                  \
        "live") "," T("33", "isle",                                                                \
                      "busy") "," T("4", "old",                                                    \
                                    "revoked") "," T("5", "spot",                                  \
                                                     "live") "," T("6", "6",                       \
                                                                   "revoked") "," T("7", "ended",  \
                                                                                    "ended") "]}"

static void what_is_revoked(void **state)
{
    static const struct {
        const char *given, *asked; /* asked: what is revoked; NULL: nothing */
    } cases[] = {
        {"worker.token", "tokens/1"},
        {"spot", "tokens/5"}, /* an earlier one had the name */
        {"2", "tokens/2"},    /* which the coordinator refuses: it is revoked */
        {"4", "tokens/3"},    /* a name is a name, also of digits */
        {"5", "tokens/5"},
        {"6", "tokens/6"},
        {"ended", "tokens/7"}, /* its workers are still here */
        {"worker:12", "workers/12"},
        {"old", NULL},
        {"nobody", NULL},
        {"9", NULL},
        {"0", NULL},
        {"worker:isle", "workers/33"},
        {"worker:x", NULL},
    };
    static const char *const answers[] = {ALL, "{}", NULL};
    struct cli cli = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ran r;
        char wanted[64];
        const bool worker = cases[i].asked && strcmp(cases[i].asked, "workers/12") == 0;
        run(&command_revoke, &cli, cases[i].given, answers + worker, &r);
        (void)snprintf(wanted, sizeof wanted, "POST /v1/%s/revoke HTTP/1.1",
                       cases[i].asked ? cases[i].asked : "");
        if (!cases[i].asked && (r.status >= 0 || strncmp(r.last, "POST", 4) == 0))
            fail_msg("'%s' is revoked", cases[i].given);
        if (cases[i].asked && (r.status != 0 || strcmp(r.last, wanted) != 0))
            fail_msg("'%s': %s, not %s", cases[i].given, r.last, wanted);
    }
}

/* The variable that says whether a flag was given. */
static bool *given(const struct command *c, const char *name)
{
    for (const struct args_flag *f = c->flags; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f->given;
    return NULL;
}

/* One that was revoked can be changed: its jobs go on. */
static void what_is_changed(void **state)
{
    static const char *const answers[] = {ALL, "{\"jobs_max\": 1, \"budget\": 5}", NULL};
    static const char *const counts[] = {ALL, "{\"uses_max\": 2, \"workers_max\": 1}", NULL};
    static const char *const none[] = {ALL, "{}", NULL};
    static const char *const ends[] = {ALL, "{\"left_ms\": 60000}", NULL};
    static const char *const ended[] = {ALL, "{\"left_ms\": 0}", NULL};
    const char **change = flag(&command_tokens, "change");
    bool *has_jobs = given(&command_tokens, "jobs"), *has_budget = given(&command_tokens, "budget");
    struct cli cli = {0};
    struct ran r;
    *has_jobs = true; /* 0: no bound */
    *change = "old";
    run(&command_tokens, &cli, NULL, answers, &r);
    assert_string_equal(r.last, "POST /v1/tokens/4/adjust HTTP/1.1");
    assert_string_equal(r.body, "{\"jobs\":0}");
    *has_jobs = false;
    *has_budget = true;
    *(double *)flag(&command_tokens, "budget") = 2.5;
    run(&command_tokens, &cli, NULL, answers, &r);
    assert_string_equal(r.body, "{\"budget\":2.5}");
    says(&r, "the token old allows 1 job at once, a budget of $5");
    *change = "spot";
    run(&command_tokens, &cli, NULL, counts, &r);
    assert_string_equal(r.last, "POST /v1/tokens/5/adjust HTTP/1.1");
    assert_string_equal(r.said, "the token spot allows 2 first joins, 1 worker at once now\n");
    run(&command_tokens, &cli, NULL, none, &r);
    assert_string_equal(r.said, "the token spot has no bounds now\n");
    *has_budget = false;
    *given(&command_tokens, "expires") = true;
    *(uint64_t *)flag(&command_tokens, "expires") = 59001;
    run(&command_tokens, &cli, NULL, ends, &r);
    assert_string_equal(r.body, "{\"life_s\":60}");
    says(&r, "the token spot has no bounds now; it ends in 1m");
    run(&command_tokens, &cli, NULL, ended, &r);
    says(&r, "; it has ended, and --expires gives it more time\n");
    *change = NULL;
    *given(&command_tokens, "expires") = false;
    *(uint64_t *)flag(&command_tokens, "expires") = 0;
    *(double *)flag(&command_tokens, "budget") = 0;
}

/* Makes a token whose secret goes to this descriptor. */
static void is_not_shown(int fd)
{
    static const char *const answers[] = {"{\"token\": \"skerry1.secret\", \"name\": \"clo\"}",
                                          NULL};
    const int out = dup(STDOUT_FILENO);
    const struct args args = {0};
    struct cli cli = {0};
    struct script s;
    struct err err = {0};
    connect_to(&s, &cli, answers);
    assert_int_equal(fflush(stdout), 0);
    assert_true(fd >= 0 && out >= 0 && dup2(fd, STDOUT_FILENO) >= 0);
    *(const char **)flag(&command_tokens, "new") = "viewer";
    const int rc = command_tokens.run(&cli, &args, &err);
    *(const char **)flag(&command_tokens, "new") = NULL;
    clearerr(stdout);
    assert_true(dup2(out, STDOUT_FILENO) >= 0);
    disconnect(&s, &cli);
    close(out);
    close(fd);
    assert_int_equal(rc, -EIO);
    if (!strstr(err.msg, "the token clo was made, but could not be shown") ||
        !strstr(err.msg, "`skerry revoke clo`"))
        fail_msg("%s", err.msg);
}

/* On a full disk, and where standard output was closed from the start (file_first()). */
static void a_secret_that_nobody_saw(void **state)
{
    is_not_shown(open("/dev/full", O_WRONLY | O_CLOEXEC));
    is_not_shown(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

/* What makes no sense is asked of nobody. */
static void flags_that_go_together(void **state)
{
    static const struct {
        const char *role, *change, *name;
        uint64_t life_ms;
        const char *said; /* NULL: it is asked */
        const char *body;
    } cases[] = {
        {NULL, NULL, NULL, 0, NULL, ""},
        {"worker", NULL, NULL, 0, NULL, "{\"role\":\"worker\"}"},
        {"viewer", NULL, "v", 5001, NULL, "{\"role\":\"viewer\",\"name\":\"v\",\"life_s\":6}"},
        {"worker", NULL, NULL, 999, "--expires of a new token is 0.999s, expected a time from 1s"},
        {"foo", NULL, NULL, 0, "--new is 'foo', expected worker, operator or viewer"},
        {"worker", "spot", NULL, 0, "give only one of them"},
        {NULL, "spot", "v", 0, "belongs to a new token"},
        {NULL, "spot", "v", 5000, "belongs to a new token"},
        {NULL, "spot", NULL, 0, "say what to change"},
        {NULL, NULL, "v", 0, "need --new"},
        {NULL, NULL, NULL, 5000, "need --new"},
    };
    static const char *const answers[] = {"{\"token\": \"skerry1.secret\"}", NULL};
    const char **role = flag(&command_tokens, "new"), **change = flag(&command_tokens, "change"),
               **name = flag(&command_tokens, "name");
    uint64_t *life_ms = flag(&command_tokens, "expires");
    bool *has_life = given(&command_tokens, "expires");
    struct cli cli = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ran r;
        *role = cases[i].role;
        *change = cases[i].change;
        *name = cases[i].name;
        *life_ms = cases[i].life_ms;
        *has_life = cases[i].life_ms > 0;
        run(&command_tokens, &cli, NULL, answers, &r);
        if (cases[i].said)
            misused(&r, cases[i].said);
        else
            assert_int_equal(r.status, 0);
        assert_int_equal(r.asked[0] == '\0', cases[i].said != NULL);
        if (!cases[i].said)
            assert_string_equal(r.body, cases[i].body);
        if (cases[i].role && !cases[i].said) /* alone: it goes into a file */
            assert_string_equal(r.said, "skerry1.secret\n");
    }
    *role = *change = *name = NULL;
    *has_life = false;
    *life_ms = 0;
}

/* 0, which takes a bound away from a token that is there, would read as none at all. */
static void no_bound_of_a_new_token_is_0(void **state)
{
    static const char *const bounds[] = {"uses", "workers", "jobs", "budget"};
    static const char *const answers[] = {NULL};
    const char **role = flag(&command_tokens, "new");
    struct cli cli = {0};
    *role = "worker";
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        struct ran r;
        char said[64];
        *given(&command_tokens, bounds[i]) = true;
        (void)snprintf(said, sizeof said, "--%s of a new token is 0", bounds[i]);
        run(&command_tokens, &cli, NULL, answers, &r);
        *given(&command_tokens, bounds[i]) = false;
        misused(&r, said);
    }
    *role = NULL;
}

static void tokens_are_listed(void **state)
{
    static const char *const answers[] = {
        "{\"items\": [{\"name\": \"a\", \"role\": \"worker\", \"state\": \"live\", \"left_ms\": "
        "60000,"
        " \"uses\": 3, \"uses_max\": 4, \"workers_here\": 2},"
        " {\"name\": \"b\", \"role\": \"operator\", \"state\": \"ended\", \"left_ms\": 9000,"
        " \"uses\": 7, \"cost\": 1.5, \"budget\": 20}]}",
        NULL};
    struct cli cli = {0};
    struct ran r;
    run(&command_tokens, &cli, NULL, answers, &r);
    says(&r, "in 1m");
    says(&r, "3 of 4");
    says(&r, "$1.50 of $20");
    says_no(&r, "in 9");
    says_no(&r, "7");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_revoked),
        cmocka_unit_test(what_is_changed),
        cmocka_unit_test(a_secret_that_nobody_saw),
        cmocka_unit_test(flags_that_go_together),
        cmocka_unit_test(no_bound_of_a_new_token_is_0),
        cmocka_unit_test(tokens_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
