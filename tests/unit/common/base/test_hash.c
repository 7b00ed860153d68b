#include "common/base/hash.h"

#include <errno.h>

#include "tests/unit/common/base/util.h"

static void known_answers(void **state)
{
    uint8_t out[HASH_BYTES];
    char hex[HASH_HEX_MAX];
    hash_sha256("abc", 3, out);
    assert_string_equal(hash_hex(out, sizeof(out), hex),
                        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hash_sha256("", 0, out);
    assert_string_equal(hash_hex(out, sizeof(out), hex),
                        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    /* RFC 4231, case 2. */
    hash_hmac("Jefe", 4, "what do ya want for nothing?", 28, out);
    assert_string_equal(hash_hex(out, sizeof(out), hex),
                        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    struct hash h;
    uint8_t again[HASH_BYTES];
    hash_init(&h);
    hash_update(&h, "a", 1);
    hash_update(&h, "", 0);
    hash_update(&h, "bc", 2);
    hash_final(&h, again);
    hash_sha256("abc", 3, out);
    assert_true(hash_equal(out, again, sizeof(out)));
    again[31] ^= 1;
    assert_false(hash_equal(out, again, sizeof(out)));
    hash_init(&h);
    hash_release(&h);
    hash_release(&h);
}

static bool is_set(void *arg)
{
    return *(const bool *)arg;
}

static void files(void **state)
{
    char *dir = scratch_new(), *path = in(dir, "f");
    put(dir, "f", "abc", 3);
    uint8_t out[HASH_BYTES], want[HASH_BYTES];
    uint64_t size;
    OK(hash_file(path, out, &size, err));
    hash_sha256("abc", 3, want);
    assert_memory_equal(out, want, sizeof(out));
    assert_int_equal(size, 3);
    bool stop = false;
    memset(out, 0, sizeof(out));
    OK(hash_file_until(path, is_set, &stop, out, &size, err));
    assert_memory_equal(out, want, sizeof(out));
    assert_int_equal(size, 3);
    stop = true;
    assert_int_equal(hash_file_until(path, is_set, &stop, out, NULL, NULL), -ERR_CANCELLED);
    FAILS(hash_file("/nonexistent/x", out, NULL, err), "/nonexistent/x");
    mem_free(path);
    scratch_free(dir);
}

static void codecs(void **state)
{
    static const struct {
        const char *raw, *text;
    } cases[] = {{"", ""},        {"f", "Zg"},        {"fo", "Zm8"},
                 {"foo", "Zm9v"}, {"foob", "Zm9vYg"}, {"\xfb\xff", "-_8"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[32];
        uint8_t raw[32];
        size_t n;
        assert_string_equal(hash_b64url(cases[i].raw, strlen(cases[i].raw), text), cases[i].text);
        assert_true(strlen(text) + 1 <= HASH_B64_MAX(strlen(cases[i].raw)));
        assert_int_equal(hash_unb64url(cases[i].text, raw, sizeof(raw), &n), 0);
        assert_int_equal(n, strlen(cases[i].raw));
        assert_memory_equal(raw, cases[i].raw, n);
    }
    static const char *const bad[] = {"Z", "Zh", "Zg==", "Z+8", "Zm9v\n", "Zm9"};
    uint8_t raw[32];
    size_t n;
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(hash_unb64url(bad[i], raw, sizeof(raw), &n), -EINVAL);
    assert_int_equal(hash_unb64url("Zm9v", raw, 2, &n), -ERR_LIMIT);
    assert_int_equal(hash_unhex("00fF", raw, 2), 0);
    assert_int_equal(raw[1], 255);
    assert_int_equal(hash_unhex("00f", raw, 2), -EINVAL);
    assert_int_equal(hash_unhex("00fg", raw, 2), -EINVAL);
    uint8_t a[32], b[32];
    hash_random(a, sizeof(a));
    hash_random(b, sizeof(b));
    assert_memory_not_equal(a, b, sizeof(a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(files),
        cmocka_unit_test(codecs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
