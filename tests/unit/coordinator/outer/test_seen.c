/* What was hashed a moment ago is known while the file is what it was. */
#include "tests/unit/common/base/util.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "coordinator/outer/seen.h"

static const uint8_t ours[32] = {1}, others[32] = {2};

struct fixture {
    char *dir, *path, *copy;
    struct seen *seen;
};

static int setup(void **state)
{
    struct fixture *f = mem_alloc(sizeof *f);
    f->dir = scratch_new();
    f->path = in(f->dir, "file");
    f->copy = in(f->dir, "copy");
    f->seen = seen_new();
    OK(file_write_atomic(f->path, "abc", 3, 0600, err));
    seen_note(f->seen, f->path, ours);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    seen_free(f->seen);
    free(f->path);
    free(f->copy);
    scratch_free(f->dir);
    mem_free(f);
    return 0;
}

static void set_mtime(const char *path, long ns)
{
    const struct timespec at[2] = {{.tv_sec = 1, .tv_nsec = ns}, {.tv_sec = 1, .tv_nsec = ns}};
    assert_int_equal(utimensat(AT_FDCWD, path, at, 0), 0);
}

static void same_file_is_known(void **state)
{
    struct fixture *f = *state;
    assert_true(seen_lately(f->seen, f->path, ours));
    assert_false(seen_lately(f->seen, f->path, others));
    assert_int_equal(link(f->path, f->copy), 0); /* another name of the same bytes */
    assert_true(seen_lately(f->seen, f->copy, ours));
}

static void changed_file_is_not(void **state)
{
    struct fixture *f = *state;
    set_mtime(f->path, 5);
    assert_false(seen_lately(f->seen, f->path, ours));
    seen_note(f->seen, f->path, ours);
    assert_true(seen_lately(f->seen, f->path, ours));
    OK(file_write_atomic(f->path, "abc", 3, 0600, err)); /* another file, written at that time */
    set_mtime(f->path, 5);
    assert_false(seen_lately(f->seen, f->path, ours));
    OK(file_remove(f->path, err));
    assert_false(seen_lately(f->seen, f->path, ours));
}

static void long_ago_is_not_known(void **state)
{
    struct fixture *f = *state;
    clock_fake_set(1000 * CLOCK_NS_PER_MS);
    seen_note(f->seen, f->path, ours);
    clock_fake_advance(SEEN_MS * CLOCK_NS_PER_MS);
    assert_true(seen_lately(f->seen, f->path, ours));
    clock_fake_advance(CLOCK_NS_PER_MS);
    assert_false(seen_lately(f->seen, f->path, ours));
    clock_fake_clear();
}

static void oldest_goes_first(void **state)
{
    struct fixture *f = *state;
    for (int i = 1; i < SEEN_FILES; i++)
        seen_note(f->seen, f->path, others);
    assert_true(seen_lately(f->seen, f->path, ours));
    seen_note(f->seen, f->path, others);
    assert_false(seen_lately(f->seen, f->path, ours));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(same_file_is_known),
        TEST(changed_file_is_not),
        TEST(long_ago_is_not_known),
        TEST(oldest_goes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
