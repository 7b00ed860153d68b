/* What the subcommands share: exit statuses, where the token comes from, fields of answers. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/base/cli.h"
#include "tests/unit/cli/script.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/net/token_source.h"

static char dir[64];

static int open_dir(void **state)
{
    (void)snprintf(dir, sizeof dir, "/tmp/skerry-cli.XXXXXX");
    return mkdtemp(dir) && !setenv("XDG_CONFIG_HOME", dir, 1) && !unsetenv("SKERRY_TOKEN") ? 0 : -1;
}

static int remove_dir(void **state)
{
    return file_remove_tree(dir, NULL);
}

static void make_token(enum token_role role, char text[TOKEN_STRING_MAX])
{
    struct token t = {.host = "127.0.0.1", .rpc_port = 7000, .http_port = 7001, .role = role};
    struct err err = {0};
    memset(t.secret, 9, sizeof t.secret);
    if (token_format(&t, text, &err) < 0)
        fail_msg("%s", err.msg);
}

/* A file in the directory with this text (mem_free). */
static char *write_text(const char *name, const char *text)
{
    struct err err = {0};
    char *path = file_join(dir, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), 0600, &err), 0);
    return path;
}

/* ---- exit statuses ---- */

/* cli_fail prints its sentence: into a file, which must then hold it. */
static int failed(int code, const char *msg, const char *expected)
{
    struct err err = {.code = code};
    (void)snprintf(err.msg, sizeof err.msg, "%s", msg);
    char *path = file_join(dir, "stderr");
    struct buf said;
    fflush(stderr);
    int kept = dup(STDERR_FILENO);
    assert_non_null(freopen(path, "w", stderr));
    int status = cli_fail(&err);
    fflush(stderr);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    assert_int_equal(file_read(path, 4096, &said, &err), 0);
    assert_string_equal(buf_str(&said), expected);
    buf_release(&said);
    mem_free(path);
    return status;
}

static void a_failure_has_a_status(void **state)
{
    static const struct {
        int code, status;
    } cases[] = {
        {-ERR_AUTH, 3},     {-ECONNREFUSED, 3}, {-ECONNRESET, 3},      {-ETIMEDOUT, 3},
        {-EHOSTUNREACH, 3}, {-ERR_CONFIG, 4},   {-ERR_CANCELLED, 130}, {-ENOENT, 1},
        {-ERR_FORMAT, 1},   {-EINVAL, 1},       {-ERR_USAGE, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(failed(cases[i].code, "so it is", "skerry: so it is\n"), cases[i].status);
    char expected[128];
    (void)snprintf(expected, sizeof expected, "skerry: %s\n", err_text(-ERR_CONFIG));
    assert_int_equal(failed(-ERR_CONFIG, "", expected), 4);
    cli_interrupted = SIGINT; /* whatever it broke off */
    assert_int_equal(failed(-ERR_CONFIG, "x", "skerry: x\n"), 130);
    cli_interrupted = 0;
}

static void states_of_a_job(void **state)
{
    static const struct {
        const char *state;
        bool ended;
        int status;
    } cases[] = {
        {"done", true, CLI_OK},
        {"failed", true, CLI_JOB_FAILED},
        {"cancelled", true, CLI_JOB_CANCELLED},
    };
    static const char *const going[] = {"pending", "ingesting", "running", "finishing", ""};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(cli_job_ended(cases[i].state), cases[i].ended);
        assert_int_equal(cli_job_exit(cases[i].state), cases[i].status);
    }
    for (size_t i = 0; i < sizeof going / sizeof *going; i++)
        assert_false(cli_job_ended(going[i]));
}

/* Silence and troubles of its own may end; a refusal stays one. */
static void who_is_away_for_long_is_given_up(void **state)
{
    static const int away[] = {-ECONNREFUSED, -ECONNRESET, -EHOSTUNREACH, -ETIMEDOUT,
                               -EAGAIN,       -ERR_REMOTE, -ERR_FORMAT};
    static const int refused[] = {-ERR_AUTH, -ERR_NOTFOUND, -ERR_CANCELLED, -ERR_LIMIT,
                                  -EINVAL,   -EBUSY,        -ENOSPC};
    const uint64_t now = clock_now_ms();
    for (size_t i = 0; i < sizeof away / sizeof *away; i++) {
        assert_true(cli_may_come_back(away[i], now));
        assert_false(cli_may_come_back(away[i], now - 3600000));
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_false(cli_may_come_back(refused[i], now));
}

/* ---- tokens ---- */

static void the_token_lies_in_the_configuration(void **state)
{
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    char *path = cli_token_path();
    assert_int_equal(strncmp(path, dir, strlen(dir)), 0);
    assert_string_equal(path + strlen(dir), "/skerry/token");
    mem_free(path);
    setenv("XDG_CONFIG_HOME", "", 1);
    setenv("HOME", "/h", 1);
    path = cli_token_path();
    assert_string_equal(path, "/h/.config/skerry/token");
    mem_free(path);
    setenv("XDG_CONFIG_HOME", "here", 1); /* where this is depends on the working directory */
    path = cli_token_path();
    assert_string_equal(path, "/h/.config/skerry/token");
    mem_free(path);
    unsetenv("HOME");
    assert_null(cli_token_path());
    setenv("XDG_CONFIG_HOME", dir, 1);
    if (home)
        setenv("HOME", home, 1);
    free(home);
}

static void a_token_is_a_word_or_a_file(void **state)
{
    char text[TOKEN_STRING_MAX], at[TOKEN_STRING_MAX + 1];
    struct token t;
    struct err err = {0};
    make_token(TOKEN_ROLE_OPERATOR, text);
    assert_int_equal(token_source_read(text, &t, &err), 0);
    assert_int_equal(t.http_port, 7001);
    char *path = write_text("mine", text);
    t = (struct token){0};
    assert_int_equal(token_source_read(path, &t, &err), 0);
    assert_int_equal(t.role, TOKEN_ROLE_OPERATOR);
    (void)snprintf(at, sizeof at, "@%s", path);
    t = (struct token){0};
    assert_int_equal(token_source_read(at, &t, &err), 0);
    assert_int_equal(t.http_port, 7001);
    mem_free(path);

    path = file_join(dir, "absent");
    assert_int_equal(token_source_read(path, &t, &err), -ENOENT);
    assert_non_null(strstr(err.msg, "reading the token"));
    mem_free(path);
    assert_int_equal(token_source_read("https://vm:7711", &t, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "https://vm:7711 is an address"));
    assert_int_equal(token_source_read("vm:7711", &t, &err), -EINVAL);
    assert_int_equal(token_source_read("/no/where:7711", &t, &err), -ENOENT); /* a path */
    path = write_text("bad", "not a token at all");
    err = (struct err){0};
    assert_true(token_source_read(path, &t, &err) < 0);
    assert_int_equal(strncmp(err.msg, path, strlen(path)), 0); /* the file is named */
    mem_free(path);
}

static void only_a_users_token_connects(void **state)
{
    char text[TOKEN_STRING_MAX];
    struct err err = {0};
    struct cli cli = {0};
    assert_int_equal(cli_connect(&cli, &err), -ERR_AUTH);
    assert_non_null(strstr(err.msg, "no coordinator is known here; run `skerry login @FILE`"));
    make_token(TOKEN_ROLE_WORKER, text);
    cli.token = text;
    assert_int_equal(cli_connect(&cli, &err), -ERR_AUTH);
    assert_non_null(strstr(err.msg, "this is a worker's token"));
    assert_null(cli.http);
    assert_int_equal(strspn(text, "x"), strlen(text)); /* it stood in argv, where others read it */
    make_token(TOKEN_ROLE_WORKER, text);
    /* What is given stands before what the environment says. */
    setenv("SKERRY_TOKEN", text, 1);
    char user[TOKEN_STRING_MAX];
    make_token(TOKEN_ROLE_OPERATOR, user);
    cli.token = user;
    assert_int_equal(cli_connect(&cli, &err), 0);
    cli_close(&cli);
    assert_null(cli.http);
    cli.token = ""; /* of a variable that is not set: no other token takes its place */
    assert_int_equal(cli_connect(&cli, &err), -ERR_USAGE);
    assert_non_null(strstr(err.msg, "--server is empty"));
    cli.token = NULL;
    assert_int_equal(cli_connect(&cli, &err), -ERR_AUTH);
    setenv("SKERRY_TOKEN", "/nowhere", 1);
    assert_int_equal(cli_connect(&cli, &err), -ENOENT);
    assert_int_equal(strncmp(err.msg, "SKERRY_TOKEN: reading the token", 31), 0);
    make_token(TOKEN_ROLE_OPERATOR, user);
    setenv("SKERRY_TOKEN", user, 1);
    assert_int_equal(cli_connect(&cli, &err), 0);
    cli_close(&cli);
    unsetenv("SKERRY_TOKEN");
}

/* ---- answers ---- */

/* Not the coordinator's word, whatever its status. */
static void a_web_page_is_not_an_answer(void **state)
{
    static const char *const pages[] = {"<html>hello</html>", "\r\n<!DOCTYPE html>", "<401>"};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        const char *const answers[] = {pages[i], NULL};
        struct cli cli = {0};
        struct script s;
        struct err err = {0};
        connect_to(&s, &cli, answers);
        assert_int_equal(cli_call(&cli, "GET", NULL, NULL, &err, "/v1/status"), -EHOSTUNREACH);
        disconnect(&s, &cli);
        if (!strstr(err.msg, " answers with a web page, as no coordinator does: ") ||
            !strstr(err.msg, "http://127.0.0.1:"))
            fail_msg("%s", err.msg);
    }
}

static void fields_have_defaults(void **state)
{
    json_t *o = json_loads("{\"s\":\"x\",\"i\":7,\"r\":0.5,\"n\":null,\"b\":1536}", 0, NULL);
    char out[STR_HUMAN_MAX];
    assert_non_null(o);
    assert_string_equal(cli_str(o, "s", "?"), "x");
    assert_string_equal(cli_str(o, "i", "?"), "?");
    assert_string_equal(cli_str(o, "absent", "?"), "?");
    assert_int_equal(cli_int(o, "i", -1), 7);
    assert_int_equal(cli_int(o, "r", -1), -1);
    assert_int_equal(cli_int(o, "n", -1), -1);
    assert_true(cli_num(o, "r", 9.0) == 0.5);
    assert_true(cli_num(o, "i", 9.0) == 7.0);
    assert_true(cli_num(o, "n", 9.0) == 9.0);
    assert_true(cli_has(o, "r") && cli_has(o, "i"));
    assert_false(cli_has(o, "n") || cli_has(o, "s") || cli_has(o, "absent"));
    assert_string_equal(cli_bytes(o, "b", out), "1.5 KiB");
    assert_string_equal(cli_duration(o, "b", out), "1.5s");
    char none[STR_HUMAN_MAX];
    assert_string_equal(cli_bytes(o, "absent", out), str_human_bytes(0, none));
    json_decref(o);
}

/* What test_status says of names needs a coordinator. */
static void an_id_is_asked_of_nobody(void **state)
{
    struct cli cli = {0};
    uint64_t id = 0;
    struct err err = {0};
    struct args args = {.rest = {"12"}, .n_rest = 1};
    assert_int_equal(cli_job_id(&cli, &args, &id, &err), 0);
    assert_int_equal(id, 12);
}

static void any_text_is_a_value(void **state)
{
    static const struct {
        const char *text, *value;
    } cases[] = {
        {"plain", "plain"}, {"caf\xc3\xa9", "caf\xc3\xa9"}, {"caf\xe9 \xc3\xa9", "caf? \xc3\xa9"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *value = cli_text(cases[i].text);
        assert_string_equal(json_string_value(value), cases[i].value);
        json_decref(value);
    }
}

static void a_signal_is_kept(void **state)
{
    cli_catch_signals();
    assert_int_equal(raise(SIGTERM), 0);
    assert_int_equal(cli_interrupted, SIGTERM);
    cli_sleep_ms(3600000); /* does not: it was interrupted */
    cli_interrupted = 0;
}

/* `timeout`, `sudo` and others pass Ctrl-C on to a program that its terminal has told, too. */
static void one_press_of_ctrl_c_is_not_two(void **state)
{
    cli_catch_signals();
    assert_int_equal(raise(SIGINT), 0);
    assert_int_equal(cli_interrupted, SIGINT);
    cli_interrupted = 0; /* as who saves what there is, until another Ctrl-C */
    assert_int_equal(raise(SIGINT), 0);
    assert_int_equal(cli_interrupted, 0);
    const uint64_t deadline = clock_now_ms() + 60000;
    while (!cli_interrupted && clock_now_ms() < deadline)
        assert_int_equal(raise(SIGINT), 0);
    assert_int_equal(cli_interrupted, SIGINT);
    cli_interrupted = 0;
}

/* What nohup started goes on when its terminal goes. */
static void a_terminals_end_counts_unless_it_is_ignored(void **state)
{
    for (int ignored = 0; ignored < 2; ignored++) {
        (void)signal(SIGHUP, ignored ? SIG_IGN : SIG_DFL);
        cli_catch_signals();
        assert_int_equal(raise(SIGHUP), 0);
        assert_int_equal(cli_interrupted, ignored ? 0 : SIGHUP);
        cli_interrupted = 0;
    }
    (void)signal(SIGHUP, SIG_DFL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_has_a_status),
        cmocka_unit_test(states_of_a_job),
        cmocka_unit_test(who_is_away_for_long_is_given_up),
        cmocka_unit_test(the_token_lies_in_the_configuration),
        cmocka_unit_test(a_token_is_a_word_or_a_file),
        cmocka_unit_test(only_a_users_token_connects),
        cmocka_unit_test(a_web_page_is_not_an_answer),
        cmocka_unit_test(fields_have_defaults),
        cmocka_unit_test(an_id_is_asked_of_nobody),
        cmocka_unit_test(any_text_is_a_value),
        cmocka_unit_test(a_signal_is_kept),
        cmocka_unit_test(one_press_of_ctrl_c_is_not_two),
        cmocka_unit_test(a_terminals_end_counts_unless_it_is_ignored),
    };
    return cmocka_run_group_tests(tests, open_dir, remove_dir);
}
