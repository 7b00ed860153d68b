/* Whose a data directory is. */
#include "tests/unit/common/base/util.h"

#include "common/base/file.h"
#include "coordinator/state/place.h"

#include <sys/stat.h>
#include <unistd.h>

/* What a coordinator that was deposed has left is its own: it starts there again, also when it was
 * stopped while it stood by, and is restored there. */
static void test_set_aside(void **state)
{
    char *data = scratch_new(), *db = file_join(data, "coordinator.db");
    OK(file_write_put(db, "x", 1, 0600, err));
    OK(place_check_own(data, err));
    assert_int_equal(place_check_new(data, NULL), -EEXIST);
    for (int i = 0; i < 2; i++) {
        OK(place_set_aside(data, err));
        assert_false(file_exists(db));
        OK(place_check_own(data, err));
        OK(place_check_new(data, err));
    }
    mem_free(db);
    scratch_free(data);
}

/* Whoever was killed in the middle of that goes on with it, and keeps what it had moved. */
static void test_set_aside_in_two(void **state)
{
    char *data = scratch_new(), *log = file_join(data, "coordinator.db-wal");
    char *moved = file_join(data, "deposed/coordinator.db"),
         *other = file_join(data, "deposed/coordinator.db-wal");
    OK(file_mkdirs_for(moved, 0700, err));
    OK(file_write_put(moved, "x", 1, 0600, err));
    OK(file_write_put(log, "y", 1, 0600, err));
    OK(place_set_aside(data, err));
    assert_true(file_exists(moved) && file_exists(other) && !file_exists(log));
    mem_free(log);
    mem_free(moved);
    mem_free(other);
    scratch_free(data);
}

static void leave(const char *data, const char *name)
{
    char *path = file_join(data, name);
    OK(file_mkdirs_for(path, 0700, err));
    OK(file_write_put(path, "x", 1, 0600, err));
    mem_free(path);
}

static bool has(const char *data, const char *name)
{
    char *path = file_join(data, name);
    const bool there = file_exists(path);
    mem_free(path);
    return there;
}

/* A restore that was killed has left what the next one removes, and nothing that starts. */
static void test_begun(void **state)
{
    char *data = scratch_new();
    leave(data, "lock");
    OK(place_begin(data, err));
    FAILS(place_check_whole(data, err), "its restore was interrupted, run it again");
    leave(data, "blobs/ab/cd");
    leave(data, "user.secret");
    OK(place_check_new(data, err));
    assert_true(has(data, "user.secret")); /* which only looks */
    OK(place_begin(data, err));
    assert_false(has(data, "blobs") || has(data, "user.secret"));
    assert_true(has(data, "lock") && has(data, PLACE_BEGUN));
    leave(data, "user.secret");
    place_undo(data);
    assert_true(has(data, "lock") && !has(data, "user.secret") && !has(data, PLACE_BEGUN));
    OK(place_check_whole(data, err));
    leave(data, "user.secret"); /* somebody's own */
    FAILS(place_begin(data, err), "is not empty (it has user.secret)");
    assert_false(has(data, PLACE_BEGUN));
    leave(data, PLACE_BEGUN);
    leave(data, "coordinator.db"); /* beside a whole one it says nothing */
    FAILS(place_begin(data, err), "is not empty (it has coordinator.db)");
    OK(place_check_whole(data, err));
    scratch_free(data);
}

/* ---- root gives a restored directory away ---- */

static char *folder, *away, *outside, *secret;
static unsigned given;

uid_t geteuid(void)
{
    return 0;
}

/* In place of the C library's.  The owner puts a link in the folder's place as soon as it is his.
 */
int lchown(const char *path, uid_t owner, gid_t group)
{
    struct stat got, other;
    assert_int_equal(lstat(path, &got), 0);
    assert_int_equal(lstat(secret, &other), 0);
    assert_true(owner != 0 && got.st_ino != other.st_ino);
    if (++given == 2 && away) {
        assert_int_equal(rename(folder, away), 0);
        assert_int_equal(symlink(outside, folder), 0);
    }
    return 0;
}

static void test_give(void **state)
{
    char *data = scratch_new(), *file = file_join(data, "blobs/secret");
    char *elsewhere = scratch_new();
    outside = scratch_new();
    folder = file_join(data, "blobs");
    secret = file_join(outside, "secret");
    OK(file_write_put(secret, "x", 1, 0600, err));
    OK(file_mkdirs_for(file, 0700, err));
    OK(file_write_put(file, "y", 1, 0600, err));
    assert_true(getuid() != 0 || chown(data, 7, 7) == 0);
    OK(place_give(data, err));
    assert_int_equal(given, 5); /* folders before and after what is in them */
    given = 0;
    away = file_join(elsewhere, "blobs");
    FAILS(place_give(data, err), "cannot give ");
    scratch_free(data);
    scratch_free(elsewhere);
    scratch_free(outside);
    mem_free(file);
    mem_free(folder);
    mem_free(away);
    mem_free(secret);
}

/* A database that is behind what was noted beside it is told from one that is not. */
static void test_newest_commit(void **state)
{
    char *data = scratch_new(), *path = file_join(data, "newest-commit");
    OK(place_check_commit(data, 0, err));
    OK(place_note_commit(data, 7, err));
    OK(place_check_commit(data, 7, err));
    OK(place_check_commit(data, 8, err));
    FAILS(place_check_commit(data, 6, err), "it has commit 6, and commit 7 was acknowledged");
    OK(place_note_commit(data, UINT64_MAX, err));
    FAILS(place_check_commit(data, UINT64_MAX - 1, err), "older than it was");
    OK(place_check_commit(data, UINT64_MAX, err));
    OK(file_write_put(path, "?", 1, 0600, err)); /* it says nothing */
    OK(place_check_commit(data, 0, err));
    mem_free(path);
    scratch_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_set_aside),
                                       cmocka_unit_test(test_set_aside_in_two),
                                       cmocka_unit_test(test_begun), cmocka_unit_test(test_give),
                                       cmocka_unit_test(test_newest_commit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
