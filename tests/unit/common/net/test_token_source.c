/* Where a token is given: in a file, in itself, or not at all, and then it is said what is
 * expected. */
#include "common/net/token_source.h"

#include <unistd.h>

#include "common/base/file.h"
#include "tests/unit/common/net/net_test.h"

static char dir[] = "/tmp/skerry-token.XXXXXX", text[TOKEN_STRING_MAX];

static int setup(void **state)
{
    struct token t = {.host = "swarm.example", .rpc_port = 1, .http_port = 2};
    char line[TOKEN_STRING_MAX + 2], *path;
    t.role = TOKEN_ROLE_VIEWER;
    if (!mkdtemp(dir) || token_format(&t, text, NULL) < 0)
        return -1;
    path = file_join(dir, "good");
    (void)snprintf(line, sizeof(line), "%s\n", text);
    int rc = file_write_atomic(path, line, strlen(line), 0600, NULL);
    mem_free(path);
    path = file_join(dir, "cut");
    if (rc == 0)
        rc = file_write_atomic(path, text, strlen(text) - 3, 0600, NULL);
    mem_free(path);
    return rc;
}

static int teardown(void **state)
{
    return file_remove_tree(dir, NULL);
}

/* `how` in front of a name in the folder, or of the token itself. */
static int read_from(const char *how, const char *name, struct err *err)
{
    struct token got;
    char *given = name ? str_printf("%s%s/%s", how, dir, name) : str_printf("%s%s", how, text);
    const int rc = token_source_read(given, &got, err);
    if (rc == 0)
        assert_true(strcmp(got.host, "swarm.example") == 0 && got.role == TOKEN_ROLE_VIEWER);
    mem_free(given);
    return rc;
}

/* As PowerShell's > writes text. */
static void put_utf16(const char *name, const char *ascii)
{
    uint8_t wide[2 + 2 * TOKEN_STRING_MAX] = {0xff, 0xfe};
    char *path = file_join(dir, name);
    size_t n = 2;
    for (const char *s = ascii; *s; s++, n += 2)
        wide[n] = (uint8_t)*s;
    assert_int_equal(file_write_atomic(path, wide, n, 0600, NULL), 0);
    mem_free(path);
}

static void test_places(void **state)
{
    struct err err = {0};
    struct token t;
    assert_int_equal(read_from("@", "good", &err), 0);
    assert_int_equal(read_from("", "good", &err), 0);
    assert_int_equal(read_from("", NULL, &err), 0);
    assert_int_equal(read_from("@", NULL, &err), 0);
    assert_true(read_from("@", "cut", &err) < 0);
    assert_non_null(strstr(err.msg, "/cut: ")); /* which file it was */
    put_utf16("wide", text);
    assert_true(read_from("@", "wide", &err) < 0);
    assert_non_null(strstr(err.msg, "/wide: this is UTF-16, as PowerShell's > writes it: "));
    assert_int_equal(read_from("@", "none", &err), -ENOENT);
    assert_non_null(strstr(err.msg, "reading the token: "));
    assert_int_equal(token_source_read("https://swarm.example:7711", &t, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "give the file of a token"));
    assert_int_equal(token_source_read("localhost:7711", &t, &err), -EINVAL);
    assert_true(token_source_read("skerry1.nonsense", &t, &err) < 0);
}

/* A file that is called like a token is a file. */
static void test_file_first(void **state)
{
    struct err err = {0};
    struct token t;
    char *before = getcwd(NULL, 0);
    assert_int_equal(chdir(dir), 0);
    assert_int_equal(symlink("good", "skerry1.token"), 0);
    char name[] = "skerry1.token";
    assert_int_equal(token_source_read(name, &t, &err), 0);
    token_source_wipe(name);
    assert_string_equal(name, "skerry1.token"); /* it may be read again */
    assert_int_equal(chdir(before), 0);
    free(before);
}

/* Only the token itself is a secret of the command line, also behind a sign that it needs not. */
static void test_wipe(void **state)
{
    char token[] = "skerry1.secret", at[] = "@skerry1.secret", path[] = "@/etc/worker.token";
    token_source_wipe(token);
    token_source_wipe(at);
    token_source_wipe(path);
    token_source_wipe(NULL);
    assert_string_equal(token, "xxxxxxxxxxxxxx");
    assert_string_equal(at, "xxxxxxxxxxxxxxx"); /* and no file is sought there later */
    assert_string_equal(path, "@/etc/worker.token");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_file_first),
        cmocka_unit_test(test_wipe),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
