/* A database of an older release is written anew once, and the log tells of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "coordinator/state/db.h"

static char dir[] = "/tmp/skerry-test-db-XXXXXX";
static char path[128];

static int setup(void **state)
{
    char *made = mkdtemp(dir);
    (void)snprintf(path, sizeof(path), "%s/db", dir);
    return made == NULL;
}

static int teardown(void **state)
{
    return file_remove_tree(dir, NULL);
}

/* Most of its pages are free. */
static void make_old(void)
{
    sqlite3 *db = NULL;
    (void)unlink(path);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(db_run(db,
                            "CREATE TABLE t(b BLOB); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
                            "SELECT i + 1 FROM n WHERE i < 500) INSERT INTO t SELECT "
                            "zeroblob(4000) FROM n; DELETE FROM t WHERE rowid > 1",
                            NULL),
                     0);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* What it says on stderr. */
static const char *renew(sqlite3 *db)
{
    static char text[2048];
    FILE *file = tmpfile();
    const int real = dup(STDERR_FILENO);
    assert_true(file != NULL && real >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    db_renew(db);
    (void)dup2(real, STDERR_FILENO);
    (void)close(real);
    rewind(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    (void)fclose(file);
    return text;
}

static void test_renewed_once(void **state)
{
    sqlite3 *db = NULL;
    make_old();
    assert_int_equal(db_open(path, &db, NULL), 0);
    assert_true(db_number(db, "PRAGMA page_count") > 400);
    const char *said = renew(db);
    assert_non_null(strstr(said, "db (2.0 MiB) is of an older release and is written anew"));
    assert_non_null(strstr(said, "db is written anew: "));
    assert_non_null(strstr(said, " of 2.0 MiB are left"));
    assert_true(db_number(db, "PRAGMA page_count") < 10);
    assert_int_equal(db_number(db, "SELECT count(*) FROM t"), 1);
    assert_string_equal(renew(db), "");
    sqlite3_close_v2(db);
}

static void test_stays_as_it_is(void **state)
{
    sqlite3 *db = NULL, *other = NULL;
    make_old();
    assert_int_equal(db_open(path, &db, NULL), 0);
    assert_int_equal(db_open(path, &other, NULL), 0);
    assert_int_equal(db_run(other, "BEGIN IMMEDIATE", NULL), 0);
    assert_int_equal(db_run(db, "PRAGMA busy_timeout=0", NULL), 0);
    assert_non_null(strstr(renew(db), "db stays as it is"));
    sqlite3_close_v2(other);
    assert_non_null(strstr(renew(db), " are left"));
    sqlite3_close_v2(db);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_renewed_once),
        cmocka_unit_test(test_stays_as_it_is),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
