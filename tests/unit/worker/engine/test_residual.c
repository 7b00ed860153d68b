/* Error-feedback residuals on disk: made, sent, applied or refused, or of nobody. */
#include "tests/unit/common/base/util.h"

#include "worker/engine/residual.h"

static char *dir;

/* Its file has this one letter. */
static void made(const struct residual_key *key, uint64_t task, char letter)
{
    char current[CACHE_PATH_MAX], pending[CACHE_PATH_MAX];
    OK(residual_prepare(dir, key, task, current, pending, err));
    OK(file_write_atomic(pending, &letter, 1, 0600, err));
}

static void hear(uint64_t task, uint64_t module, enum residual_news news)
{
    const struct residual_word w = {task, module, news, false};
    OK(residual_hear(dir, &w, err));
}

/* The letter in the file of this stage ("": the current one); ' ': there is none. */
static char letter_of(const struct residual_key *key, const char *stage)
{
    struct buf text;
    char *name = str_printf("residual-%" PRIu64 "-%" PRIu64 "-%u-%u%s", key->job_id, key->module_id,
                            key->path, key->replica, stage);
    char *path = in(dir, name), c = ' ';
    if (file_exists(path)) {
        OK(file_read(path, 1, &text, err));
        c = *buf_str(&text);
        buf_release(&text);
    }
    mem_free(path);
    mem_free(name);
    return c;
}

static void kept_when_applied(void **state)
{
    (void)state;
    static const struct residual_key key = {1, 2, 3, 4};
    made(&key, 50, 'a');
    hear(50, 0, RESIDUAL_SENT);
    assert_int_equal(letter_of(&key, ".sent-50"), 'a');
    hear(5, 0, RESIDUAL_APPLIED); /* another task, whose name ends it */
    assert_int_equal(letter_of(&key, ""), ' ');
    hear(50, 0, RESIDUAL_APPLIED);
    assert_int_equal(letter_of(&key, ""), 'a');
    assert_int_equal(letter_of(&key, ".sent-50"), ' ');
    made(&key, 51, 'b');
    hear(51, 0, RESIDUAL_SENT);
    hear(51, 0, RESIDUAL_REFUSED);
    assert_int_equal(letter_of(&key, ""), 'a');
    assert_int_equal(letter_of(&key, ".sent-51"), ' ');
    made(&key, 52, 'c'); /* before the answer to the report the verdict comes: it is on that */
    hear(52, 0, RESIDUAL_APPLIED);
    hear(52, 0, RESIDUAL_SENT);
    assert_int_equal(letter_of(&key, ""), 'c');
}

/* A phase that came late is folded while the replica's next one runs, or with it: that one goes on
 * from what the late one left, not from what it has sent already. */
static void the_next_phase_is_over_before_the_word(void **state)
{
    (void)state;
    static const struct residual_key key = {1, 2, 3, 5};
    for (uint64_t task = 70; task < 73; task++) {
        made(&key, task, (char)('a' + task - 70));
        if (task > 70) {
            assert_int_equal(letter_of(&key, ""), 'a' + (int)task - 71);
            hear(task - 1, 0, RESIDUAL_APPLIED); /* it changes nothing any more */
        }
        hear(task, 0, RESIDUAL_SENT);
    }
    hear(72, 0, RESIDUAL_REFUSED);
    assert_int_equal(letter_of(&key, ""), 'b');
}

/* What was made and never reported was not sent: the residual before it still waits. */
static void what_was_not_sent_is_forgotten(void **state)
{
    (void)state;
    static const struct residual_key key = {1, 2, 3, 6};
    made(&key, 80, 'a');
    hear(80, 0, RESIDUAL_SENT);
    hear(80, 0, RESIDUAL_APPLIED);
    made(&key, 81, 'b'); /* its worker is killed; another one does the task */
    made(&key, 82, 'c');
    assert_int_equal(letter_of(&key, ""), 'a');
    assert_int_equal(letter_of(&key, ".pending-81"), ' ');
    hear(82, 0, RESIDUAL_UNSENT); /* its lease is lost, or its report is refused */
    assert_int_equal(letter_of(&key, ".pending-82"), ' ');
    assert_int_equal(letter_of(&key, ""), 'a');
}

/* A fragment was sent before its phase lost its lease: the coordinator has it, and its verdict
 * comes; also while another attempt is under way. */
static void what_was_sent_waits_for_its_verdict(void **state)
{
    (void)state;
    static const struct residual_key a = {1, 7, 3, 7}, b = {1, 8, 3, 7};
    made(&a, 90, 'a');
    hear(90, 7, RESIDUAL_SENT);
    made(&b, 90, 'b');
    hear(90, 0, RESIDUAL_UNSENT);
    assert_int_equal(letter_of(&a, ".sent-90"), 'a');
    assert_int_equal(letter_of(&b, ".pending-90"), ' ');
    made(&a, 90, 'c'); /* another attempt makes it again, for nothing */
    made(&b, 90, 'd');
    const struct residual_word early = {90, 0, RESIDUAL_APPLIED, true};
    OK(residual_hear(dir, &early, err));
    assert_int_equal(letter_of(&a, ""), 'a');
    assert_int_equal(letter_of(&b, ""), ' ');
    assert_int_equal(letter_of(&b, ".pending-90"), 'd');
}

/* The same, and the next attempt is reported before the verdict comes. */
static void the_first_one_sent_counts(void **state)
{
    (void)state;
    static const struct residual_key a = {1, 9, 3, 7};
    made(&a, 95, 'a');
    hear(95, 0, RESIDUAL_SENT);
    made(&a, 95, 'b');
    hear(95, 0, RESIDUAL_SENT);
    assert_int_equal(letter_of(&a, ".sent-95"), 'a');
    assert_int_equal(letter_of(&a, ".pending-95"), ' ');
    made(&a, 95, 'c');
    hear(95, 0, RESIDUAL_APPLIED);
    assert_int_equal(letter_of(&a, ""), 'a');
}

/* A task's contributions are settled together, others' are left alone. */
static void all_modules_of_a_task(void **state)
{
    (void)state;
    static const struct residual_key a = {7, 1, 0, 0}, b = {7, 2, 0, 0}, other = {7, 2, 0, 1};
    made(&a, 60, 'a');
    made(&b, 60, 'b');
    made(&other, 61, 'c');
    put(dir, "replica-7-0-0.sent-60", "x", 1); /* no residual */
    hear(60, 0, RESIDUAL_SENT);
    hear(60, 0, RESIDUAL_APPLIED);
    assert_true(letter_of(&a, "") == 'a' && letter_of(&b, "") == 'b');
    assert_true(letter_of(&other, "") == ' ' && letter_of(&other, ".pending-61") == 'c');
    char *stranger = in(dir, "replica-7-0-0.sent-60");
    assert_true(file_exists(stranger));
    mem_free(stranger);
}

/* One module was closed without it, the other one has it. */
static void one_module_of_a_task(void **state)
{
    (void)state;
    static const struct residual_key a = {8, 1, 0, 0}, b = {8, 12, 0, 0};
    for (uint64_t task = 62; task < 64; task++) {
        made(&a, task, task == 62 ? 'a' : 'c');
        made(&b, task, task == 62 ? 'b' : 'd');
        hear(task, 0, RESIDUAL_SENT);
        if (task == 63)
            hear(task, 12, RESIDUAL_REFUSED);
        hear(task, 0, RESIDUAL_APPLIED);
    }
    assert_true(letter_of(&a, "") == 'c' && letter_of(&b, "") == 'b');
}

static void a_folder_that_is_gone(void **state)
{
    (void)state;
    static const struct residual_key key = {1, 2, 3, 4};
    const struct residual_word w = {1, 0, RESIDUAL_APPLIED, false};
    char a[CACHE_PATH_MAX], b[CACHE_PATH_MAX];
    FAILS(residual_prepare("/nowhere/at/all", &key, 1, a, b, err), "/nowhere/at/all");
    FAILS(residual_hear("/nowhere/at/all", &w, err), "/nowhere/at/all");
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
        cmocka_unit_test(what_was_not_sent_is_forgotten),
        cmocka_unit_test(what_was_sent_waits_for_its_verdict),
        cmocka_unit_test(the_first_one_sent_counts),
        cmocka_unit_test(all_modules_of_a_task),
        cmocka_unit_test(one_module_of_a_task),
        cmocka_unit_test(a_folder_that_is_gone),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
