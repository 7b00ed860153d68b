/* Manifests of backups: there and back, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "coordinator/state/manifest.h"

#define HEAD "skerry-backup 1\nrelease 0.1.0\nat 5\n"
#define HASH "0000000000000000000000000000000000000000000000000000000000000001"

static void test_round_trip(void **state)
{
    static const uint8_t sha256[32] = {0xab, 0xcd};
    struct manifest m = {.release = "1.2.3", .at_unix_ms = 1790000000000}, got;
    struct buf text;
    struct err err = {0};
    buf_init(&text, MANIFEST_BYTES_MAX);
    for (uint64_t i = 0; i < 100; i++) {
        char path[40];
        (void)snprintf(path, sizeof(path), "outer/1/%d/target.safetensors", (int)i);
        assert_int_equal(manifest_add(&m, sha256, i * 1000, path, &err), 0);
    }
    assert_int_equal(manifest_format(&m, &text, &err), 0);
    if (manifest_parse(buf_str(&text), &got, &err) < 0)
        fail_msg("%s", err.msg);
    assert_string_equal(got.release, "1.2.3");
    assert_int_equal(got.at_unix_ms, 1790000000000);
    assert_int_equal(got.n, 100);
    assert_string_equal(got.files[99].path, "outer/1/99/target.safetensors");
    assert_int_equal(got.files[99].size, 99000);
    assert_memory_equal(got.files[99].sha256, sha256, sizeof(sha256));
    manifest_release(&got);
    manifest_release(&m);
    /* Cut off anywhere, it is none. */
    for (size_t n = 0; n < text.len; n++) {
        char *cut = str_ndup(buf_str(&text), n);
        assert_int_equal(manifest_parse(cut, &got, NULL), -ERR_FORMAT);
        manifest_release(&got);
        mem_free(cut);
    }
    /* Nor with another bit anywhere. */
    for (size_t n = 0; n < text.len; n++) {
        text.data[n] ^= 1;
        assert_int_equal(manifest_parse(buf_str(&text), &got, NULL), -ERR_FORMAT);
        manifest_release(&got);
        text.data[n] ^= 1;
    }
    buf_release(&text);
}

static void test_paths(void **state)
{
    static const char *const good[] = {"a", "coordinator.db", "blobs/ab/ab_1-2", "a..b"};
    static const char *const bad[] = {"",     "/a",  "a/",   "..", "a/../b", "./a",
                                      "a//b", "a b", "a\nb", ".x", "a/.x",   "\xc3\xa9"};
    static const uint8_t sha256[32];
    struct manifest m = {0};
    char longest[MANIFEST_PATH_MAX + 1];
    memset(longest, 'a', sizeof(longest));
    longest[MANIFEST_PATH_MAX] = '\0';
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_int_equal(manifest_add(&m, sha256, 1, good[i], NULL), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(manifest_add(&m, sha256, 1, bad[i], NULL), -EINVAL);
    assert_int_equal(manifest_add(&m, sha256, 1, longest, NULL), -EINVAL);
    assert_int_equal(manifest_add(&m, sha256, 1, longest + 1, NULL), 0);
    manifest_release(&m);
}

static void test_nonsense(void **state)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"", "cut off after line 0"},
        {"skerry-backup 3\n", "line 1 of"},
        {"skerry-backup 1\nrelease 1\nat x\n", "line 3 of"},
        {HEAD, "cut off after line 3"},
        {HEAD "end 1\n", "line 4 of"},
        {HEAD "end 0\nmore\n", "line 4 of"},
        {HEAD HASH " 1 a\nend 2\n", "line 5 of"},
        {HEAD HASH " 1 a\nend 1 " HASH "\n", "line 5 of"}, /* of version 1 */
        {"skerry-backup 2\nrelease 1\nat 5\nend 0\n", "line 4 of"},
        {"skerry-backup 2\nrelease 1\nat 5\nend 0 " HASH "\n", "is damaged"},
        {HEAD HASH " -1 a\nend 1\n", "line 4 of"},
        {HEAD HASH " 1 ../a\nend 1\n", "line 4 of"},
        {HEAD HASH "\nend 1\n", "line 4 of"},
        {HEAD "1234 1 a\nend 1\n", "line 4 of"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct manifest m;
        struct err err = {0};
        assert_int_equal(manifest_parse(cases[i].text, &m, &err), -ERR_FORMAT);
        if (strstr(err.msg, cases[i].why) == NULL)
            fail_msg("%zu: '%s' does not say '%s'", i, err.msg, cases[i].why);
        manifest_release(&m);
    }
}

/* Of older releases, without a hash. */
static void test_version_1(void **state)
{
    struct manifest m;
    assert_int_equal(manifest_parse(HEAD HASH " 1 a\nend 1\n", &m, NULL), 0);
    assert_string_equal(m.files[0].path, "a");
    manifest_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_version_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
