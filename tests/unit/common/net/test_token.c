/* Tokens: text and back, typing mistakes, bearers. */
#include "common/net/token.h"

#include "tests/unit/common/net/net_test.h"

static struct token sample_token(void)
{
    struct token t = {.host = "coordinator.example.org",
                      .rpc_port = 7710,
                      .http_port = 7711,
                      .role = TOKEN_ROLE_WORKER};
    for (size_t i = 0; i < 32; i++) {
        t.pin[i] = (uint8_t)i;
        t.secret[i] = (uint8_t)(200 + i);
    }
    t.cluster_id[3] = 77;
    return t;
}

static void test_token(void **state)
{
    struct token t = sample_token(), got;
    char text[TOKEN_STRING_MAX], padded[TOKEN_STRING_MAX + 8], url[TOKEN_URL_MAX];
    assert_int_equal(token_format(&t, text, NULL), 0);
    snprintf(padded, sizeof(padded), "  %s\r\n", text);
    assert_int_equal(token_parse(padded, &got, NULL), 0);
    assert_string_equal(got.host, t.host);
    assert_int_equal(got.rpc_port, 7710);
    assert_int_equal(got.http_port, 7711);
    assert_int_equal(got.role, TOKEN_ROLE_WORKER);
    assert_memory_equal(got.pin, t.pin, 32);
    assert_memory_equal(got.secret, t.secret, 32);
    assert_memory_equal(got.cluster_id, t.cluster_id, 16);
    token_http_url(&got, url);
    assert_string_equal(url, "https://coordinator.example.org:7711");
    snprintf(padded, sizeof(padded), "\xef\xbb\xbf%s\r\n",
             text); /* as an editor of Windows saves it */
    assert_int_equal(token_parse(padded, &got, NULL), 0);
    assert_memory_equal(got.secret, t.secret, 32);
    (void)str_copy(t.host, sizeof(t.host), "::1");
    t.http_plain = true;
    token_http_url(&t, url);
    assert_string_equal(url, "http://[::1]:7711");
    memset(t.host, 'h', TOKEN_HOST_MAX);
    assert_int_equal(token_format(&t, text, NULL), 0);
    assert_int_equal(token_parse(text, &got, NULL), 0);
}

static void expect_bad_token(const char *text, const char *words)
{
    struct token t;
    struct err err = {0};
    assert_true(token_parse(text, &t, &err) < 0);
    if (!strstr(err.msg, words))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, words);
}

static void test_bad_tokens(void **state)
{
    struct token t = sample_token();
    char text[TOKEN_STRING_MAX], twice[2 * TOKEN_STRING_MAX], cut[TOKEN_STRING_MAX];
    struct err err = {0};
    assert_int_equal(token_format(&t, text, NULL), 0);
    expect_bad_token("", "not a Skerry token");
    expect_bad_token("hello", "not a Skerry token");
    expect_bad_token("skerry1.", "cut short");
    expect_bad_token("skerry1.!!!!", "damaged");
    expect_bad_token("skerry1.abc", "cut short");
    for (size_t n = 9; n < strlen(text); n++) {
        memcpy(cut, text, n);
        cut[n] = '\0';
        struct token got;
        assert_true(token_parse(cut, &got, NULL) < 0);
    }
    for (size_t i = 8; i < strlen(text); i++) { /* every typing mistake is found */
        struct token got;
        memcpy(cut, text, sizeof(cut));
        cut[i] = cut[i] == 'A' ? 'B' : 'A';
        assert_true(token_parse(cut, &got, NULL) < 0);
        if (i < strlen(text) - 1) /* whose last bits may be none */
            expect_bad_token(cut, "damaged");
    }
    snprintf(twice, sizeof(twice), "%s%s", text, text);
    expect_bad_token(twice, "twice");
    t.host[0] = '\0';
    assert_int_equal(token_format(&t, text, &err), -EINVAL);
    static const char *const no_host[] = {"a b", "10.0.0.1:7710", "vm.example.org:7710",
                                          "http://vm"};
    for (size_t i = 0; i < sizeof(no_host) / sizeof(no_host[0]); i++) {
        (void)str_copy(t.host, sizeof(t.host), no_host[i]);
        assert_int_equal(token_format(&t, text, &err), -EINVAL);
    }
    (void)str_copy(t.host, sizeof(t.host), "fd00::7");
    assert_int_equal(token_format(&t, text, &err), 0);
}

static void test_bearer(void **state)
{
    struct token t = sample_token();
    char text[TOKEN_STRING_MAX], bearer[TOKEN_BEARER_MAX];
    token_bearer(t.secret, bearer);
    assert_int_equal(token_format(&t, text, NULL), 0);
    for (int whole = 0; whole < 2; whole++) {
        uint8_t secret[KEYS_SECRET_BYTES] = {0};
        assert_int_equal(token_bearer_read(whole ? text : bearer, secret), 0);
        assert_memory_equal(secret, t.secret, sizeof(secret));
    }
    uint8_t kept[KEYS_SECRET_BYTES] = {42}, as_was[KEYS_SECRET_BYTES] = {42};
    assert_int_equal(token_bearer_read("", kept), -ERR_FORMAT);
    bearer[42] = '\0';
    assert_int_equal(token_bearer_read(bearer, kept), -ERR_FORMAT);
    text[20] = '\0';
    assert_int_equal(token_bearer_read(text, kept), -ERR_FORMAT);
    assert_memory_equal(kept, as_was, sizeof(kept));
}

static void test_roles(void **state)
{
    static const enum token_role roles[] = {TOKEN_ROLE_WORKER, TOKEN_ROLE_OPERATOR,
                                            TOKEN_ROLE_VIEWER};
    for (size_t i = 0; i < 3; i++) {
        struct token t = sample_token(), got;
        char text[TOKEN_STRING_MAX];
        t.role = roles[i];
        assert_int_equal(token_format(&t, text, NULL), 0);
        assert_int_equal(token_parse(text, &got, NULL), 0);
        assert_int_equal(got.role, roles[i]);
        assert_int_equal(token_role_parse(token_role_name(roles[i])), roles[i]);
    }
    assert_int_equal(token_role_parse("root"), TOKEN_ROLE_NONE);
    assert_string_equal(token_role_name(TOKEN_ROLE_NONE), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token),
        cmocka_unit_test(test_bad_tokens),
        cmocka_unit_test(test_bearer),
        cmocka_unit_test(test_roles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
