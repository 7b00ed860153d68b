/* Logins of browsers: how long they last, and how many there are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/stat.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "coordinator/http/http_session.h"

#define ROLES 2u

static char dir[] = "/tmp/skerry-session.XXXXXX", *path;

static int begin(void **state)
{
    clock_fake_set(1000000 * CLOCK_NS_PER_S);
    assert_non_null(mkdtemp(dir));
    path = file_join(dir, "sessions");
    *state = http_sessions_new(path);
    return 0;
}

static int end(void **state)
{
    http_sessions_free(*state);
    clock_fake_clear();
    mem_free(path);
    (void)file_remove_tree(dir, NULL);
    memcpy(strrchr(dir, '.'), ".XXXXXX", 7);
    return 0;
}

static void later(uint64_t ms)
{
    clock_fake_advance(ms * CLOCK_NS_PER_MS);
}

static void test_logins(void **state)
{
    struct http_sessions *s = *state;
    char a[SESSION_ID_MAX], b[SESSION_ID_MAX];
    http_session_open(s, ROLES, a);
    http_session_open(s, ROLES, b);
    assert_int_equal(strlen(a), SESSION_ID_MAX - 1);
    assert_string_not_equal(a, b);
    assert_int_equal(http_session_holder(s, a), ROLES);
    assert_int_equal(http_session_holder(s, ""), 0);
    assert_int_equal(http_session_holder(s, "x"), 0);
    http_session_close(s, "x");
    http_session_close(s, a);
    assert_int_equal(http_session_holder(s, a), 0);
    assert_int_equal(http_session_holder(s, b), ROLES);
}

static void test_time(void **state)
{
    struct http_sessions *s = *state;
    char idle[SESSION_ID_MAX], busy[SESSION_ID_MAX];
    http_session_open(s, ROLES, idle);
    http_session_open(s, ROLES, busy);
    later(SESSION_IDLE_MS - 1);
    assert_int_equal(http_session_holder(s, busy), ROLES);
    later(1);
    assert_int_equal(http_session_holder(s, idle), 0);
    for (uint64_t ms = SESSION_IDLE_MS; ms < SESSION_LIFE_MS; ms += SESSION_IDLE_MS / 2) {
        assert_int_equal(http_session_holder(s, busy), ROLES);
        later(SESSION_IDLE_MS / 2);
    }
    assert_int_equal(http_session_holder(s, busy), 0);
}

/* The one that was used longest ago makes room. */
static void test_many(void **state)
{
    struct http_sessions *s = *state;
    char first[SESSION_ID_MAX], second[SESSION_ID_MAX], id[SESSION_ID_MAX];
    http_session_open(s, ROLES, first);
    later(1);
    http_session_open(s, ROLES, second);
    later(1);
    assert_int_equal(http_session_holder(s, first), ROLES);
    for (int i = 2; i <= SESSIONS_MAX; i++) {
        later(1);
        http_session_open(s, ROLES, id);
    }
    assert_int_equal(http_session_holder(s, second), 0);
    assert_int_equal(http_session_holder(s, first), ROLES);
    assert_int_equal(http_session_holder(s, id), ROLES);
}

/* The coordinator is started again: logins go on, and end as they would have. */
static void test_restart(void **state)
{
    struct http_sessions *s = *state;
    char in[SESSION_ID_MAX], out[SESSION_ID_MAX];
    struct stat st;
    http_session_open(s, ROLES, in);
    http_session_open(s, ROLES, out);
    http_session_close(s, out);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    for (int days = 0; days < 8; days++) {
        http_sessions_free(s);
        s = http_sessions_new(path);
        assert_int_equal(http_session_holder(s, in), days < 7 ? ROLES : 0);
        assert_int_equal(http_session_holder(s, out), 0);
        later(24 * 3600 * 1000);
    }
    http_sessions_free(s);
    assert_int_equal(file_write_atomic(path, "no sessions", 11, 0600, NULL), 0);
    *state = s = http_sessions_new(path);
    assert_int_equal(http_session_holder(s, in), 0);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {CASE(test_logins), CASE(test_time), CASE(test_many),
                                       CASE(test_restart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
