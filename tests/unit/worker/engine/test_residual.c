/* Error-feedback residuals on disk: committed, dropped, or of nobody. */
#include "tests/unit/common/base/util.h"

#include "worker/engine/residual.h"

static char *dir;

static void prepare(const struct residual_key *key, uint64_t task, char current[CACHE_PATH_MAX],
                    char pending[CACHE_PATH_MAX])
{
    OK(residual_prepare(dir, key, task, current, pending, err));
    OK(file_write_atomic(pending, "x", 1, 0600, err));
}

static void kept_when_applied(void **state)
{
    (void)state;
    static const struct residual_key key = {1, 2, 3, 4};
    char current[CACHE_PATH_MAX], pending[CACHE_PATH_MAX], newer[CACHE_PATH_MAX];
    prepare(&key, 50, current, pending);
    OK(residual_settle(dir, 5, true, err)); /* another task, whose name ends it */
    assert_false(file_exists(current));
    OK(residual_settle(dir, 50, true, err));
    assert_true(file_exists(current) && !file_exists(pending));
    prepare(&key, 51, current, pending);
    OK(residual_settle(dir, 51, false, err));
    assert_true(file_exists(current) && !file_exists(pending));
    prepare(&key, 52, current, pending);
    OK(residual_prepare(dir, &key, 52, current, newer, err)); /* another attempt */
    assert_false(file_exists(pending));
    assert_true(file_exists(current));
}

/* A phase that came late is folded while the replica's next one runs, or with it: that one goes on
 * from what the late one left, not from what it has sent already. */
static void the_next_phase_is_over_before_the_word(void **state)
{
    (void)state;
    static const struct residual_key key = {1, 2, 3, 5};
    char current[CACHE_PATH_MAX], pending[CACHE_PATH_MAX];
    struct buf text;
    for (uint64_t task = 70; task < 73; task++) {
        const char left = (char)('a' + task - 70);
        OK(residual_prepare(dir, &key, task, current, pending, err));
        if (task > 70) {
            OK(file_read(current, 1, &text, err));
            assert_int_equal(*buf_str(&text), left - 1);
            buf_release(&text);
            OK(residual_settle(dir, task - 1, true, err)); /* it changes nothing any more */
        }
        OK(file_write_atomic(pending, &left, 1, 0600, err));
    }
    OK(residual_settle(dir, 72, false, err));
    OK(file_read(current, 1, &text, err));
    assert_string_equal(buf_str(&text), "b");
    buf_release(&text);
}

/* A task's contributions are settled together, others' are left alone. */
static void all_modules_of_a_task(void **state)
{
    (void)state;
    static const struct residual_key a = {7, 1, 0, 0}, b = {7, 2, 0, 0}, other = {7, 2, 0, 1};
    char current[3][CACHE_PATH_MAX], pending[3][CACHE_PATH_MAX];
    prepare(&a, 60, current[0], pending[0]);
    prepare(&b, 60, current[1], pending[1]);
    prepare(&other, 61, current[2], pending[2]);
    put(dir, "replica-7-0-0.pending-60", "x", 1); /* no residual */
    OK(residual_settle(dir, 60, true, err));
    assert_true(file_exists(current[0]) && file_exists(current[1]));
    assert_true(!file_exists(current[2]) && file_exists(pending[2]));
    char *stranger = in(dir, "replica-7-0-0.pending-60");
    assert_true(file_exists(stranger));
    mem_free(stranger);
}

static void a_folder_that_is_gone(void **state)
{
    (void)state;
    static const struct residual_key key = {1, 2, 3, 4};
    char a[CACHE_PATH_MAX], b[CACHE_PATH_MAX];
    FAILS(residual_prepare("/nowhere/at/all", &key, 1, a, b, err), "/nowhere/at/all");
    FAILS(residual_settle("/nowhere/at/all", 1, true, err), "/nowhere/at/all");
}

static int setup(void **state)
{
    (void)state;
    dir = scratch_new();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_free(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_when_applied),
        cmocka_unit_test(the_next_phase_is_over_before_the_word),
        cmocka_unit_test(all_modules_of_a_task),
        cmocka_unit_test(a_folder_that_is_gone),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
