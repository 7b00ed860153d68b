/* When a coordinator that stands by goes on in the owner's place. */
#include "coordinator/ship/standby.h"

#include "coordinator/state/options.h"
#include "tests/unit/common/net/s3/fake_store.h"

#define AFTER 10000u

/* Asked each second from `from` on, `seconds` times, with the same answer: after how many is it
 * time? 0: it is not. */
static unsigned ask(struct standby *s, uint64_t from, unsigned seconds, const char *sign)
{
    for (unsigned i = 0; i < seconds; i++)
        if (standby_look(s, from + i * 1000, sign, AFTER))
            return i + 1;
    return 0;
}

static void silence_counts_from_the_first_look(void **state)
{
    (void)state;
    struct standby s = {0};
    assert_int_equal(ask(&s, 5000, 60, "7 on a"), 11);
}

static void any_other_sign_is_life(void **state)
{
    (void)state;
    struct standby s = {0};
    assert_int_equal(ask(&s, 1000, 10, "7 on a"), 0);
    assert_int_equal(ask(&s, 11000, 10, "8 on a"), 0);
    assert_int_equal(ask(&s, 21000, 10, "8 on b"), 0); /* another owner */
    assert_int_equal(ask(&s, 31000, 60, "8 on b"), 1);
}

static void a_store_that_does_not_answer_is_no_silence(void **state)
{
    (void)state;
    struct standby s = {0};
    assert_int_equal(ask(&s, 1000, 10, "7 on a"), 0); /* 9 s */
    assert_int_equal(ask(&s, 11000, 600, NULL), 0);
    assert_int_equal(ask(&s, 611000, 60, "7 on a"),
                     2); /* the first look after it says nothing of before */
}

static void a_pause_of_ours_is_no_silence(void **state)
{
    (void)state;
    struct standby s = {0};
    assert_int_equal(ask(&s, 1000, 2, "7 on a"), 0);
    assert_false(standby_look(&s, 3600 * 1000, "7 on a", AFTER));
    assert_int_equal(ask(&s, 3600 * 1000 + 100, 3, "8 on a"), 0);
}

static void where_nobody_was_nobody_is_missed(void **state)
{
    (void)state;
    struct standby s = {0};
    assert_int_equal(ask(&s, 1000, 600, ""), 0);
    assert_int_equal(ask(&s, 601000, 60, "1 on a"), 11);
}

#define REFUSED "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

/* What the store says for long is told once, however long it is. */
static void what_the_store_says_is_told_once(void **state)
{
    (void)state;
    struct fake_store f;
    struct err err = {0};
    char text[8192];
    FILE *file = tmpfile();
    const int real = dup(STDERR_FILENO);
    fake_store_open(&f);
    const struct coordinator_options o = {
        .store = "s3://blobs/p", .store_endpoint = f.url, .store_plain = true};
    fake_set(f.objects, "p/state/alive", "7 on a", 6);
    fake_store_next(&f, "GET", FAKE_REPLY,
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 6\r\n\r\n6 on a");
    fake_store_next(&f, "GET", FAKE_REPLY, REFUSED);
    fake_store_next(&f, "GET", FAKE_REPLY, REFUSED);
    assert_true(file != NULL && real >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    const int rc = standby_wait(&o, 1, &err);
    assert_true(dup2(real, STDERR_FILENO) >= 0);
    close(real);
    rewind(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    fake_store_close(&f);
    assert_int_equal(rc, 0);
    const char *said = strstr(text, "cannot be asked for signs of life");
    assert_true(said && !strstr(said + 1, "cannot be asked for signs of life"));
    assert_non_null(strstr(text, "on a has been silent"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silence_counts_from_the_first_look),
        cmocka_unit_test(any_other_sign_is_life),
        cmocka_unit_test(a_store_that_does_not_answer_is_no_silence),
        cmocka_unit_test(a_pause_of_ours_is_no_silence),
        cmocka_unit_test(where_nobody_was_nobody_is_missed),
        cmocka_unit_test(what_the_store_says_is_told_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
