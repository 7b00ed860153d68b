#include "common/base/log.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/common/base/util.h"

/* What is written to stderr between catch_lines() and caught(). */
static FILE *file;
static int real;
static char text[8192];

static void catch_lines(void)
{
    file = tmpfile();
    assert_non_null(file);
    real = dup(STDERR_FILENO);
    assert_true(real >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
}

static const char *caught(void)
{
    assert_true(dup2(real, STDERR_FILENO) >= 0);
    close(real);
    rewind(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* A line without its time or priority. */
static const char *message(const char *line, const char *area)
{
    const char *at = strstr(line, area);
    assert_non_null(at);
    return at;
}

static void levels_filter(void **state)
{
    enum log_level level;
    catch_lines();
    log_set_level(LOG_LEVEL_WARN);
    log_info("t", "dropped");
    log_warn("t", "kept n=%d", 3);
    log_set_level(LOG_LEVEL_INFO);
    assert_string_equal(message(caught(), "t: "), "t: kept n=3\n");
    catch_lines();
    log_error("t", "two\nlines \x1b");
    assert_string_equal(message(caught(), "t: "), "t: two lines ?\n");
    catch_lines();
    log_error("t", "\xc2\x9b" /* CSI, as ESC [ is */
                   "2J \x9b caf\xc3\xa9");
    assert_string_equal(message(caught(), "t: "), "t: ??2J ? caf\xc3\xa9\n");
    OK(log_level_parse("debug", &level));
    assert_int_equal(level, LOG_LEVEL_DEBUG);
    assert_true(log_level_parse("loud", &level) < 0);
}

/* journald wants a priority in place of the time; a file of somebody who was started by a unit does
 * not. */
static void journal_has_priorities(void **state)
{
    char stream[64];
    struct stat st;
    catch_lines();
    assert_int_equal(fstat(STDERR_FILENO, &st), 0);
    (void)snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)st.st_dev,
                   (unsigned long long)st.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_error("t", "a");
    log_warn("t", "b");
    log_info("t", "c");
    assert_string_equal(caught(), "<3>t: a\n<4>t: b\n<6>t: c\n");
    setenv("JOURNAL_STREAM", "1:2", 1);
    catch_lines();
    log_error("t", "a");
    unsetenv("JOURNAL_STREAM");
    assert_string_equal(strstr(caught(), " error "), " error t: a\n");
}

static void logs_a_change_once(void **state)
{
    struct log_change last = {0};
    unsigned lines = 0;
    catch_lines();
    assert_true(log_on_change(&last, LOG_LEVEL_INFO, "d", "waiting for %d", 1));
    assert_false(log_on_change(&last, LOG_LEVEL_INFO, "d", "waiting for %d", 1));
    assert_true(log_on_change(&last, LOG_LEVEL_INFO, "d", "waiting for %d", 2));
    assert_true(log_on_change(&last, LOG_LEVEL_INFO, "d", "waiting for %d", 1));
    for (const char *s = caught(); *s; s++)
        lines += *s == '\n';
    assert_int_equal(lines, 3);
}

static void cuts_long_lines(void **state)
{
    char big[5000];
    memset(big, 'y', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    catch_lines();
    log_info("t", "%s", big);
    size_t n = strlen(message(caught(), "t: "));
    assert_in_range(n, 1000, 2048);
    assert_int_equal(text[strlen(text) - 1], '\n');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_filter),
        cmocka_unit_test(journal_has_priorities),
        cmocka_unit_test(logs_a_change_once),
        cmocka_unit_test(cuts_long_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
