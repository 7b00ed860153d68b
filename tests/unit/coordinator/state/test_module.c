/* Which versions of a module are kept, and which contributions with them. */
#include "coordinator/state/module.h"
#include "coordinator/state/task.h"
#include "tests/unit/coordinator/plain.h"

/* A module that has come to this version. */
static struct module_rec at(uint64_t version)
{
    struct module_rec m = {.id = 1, .kept = VERSIONS_KEPT};
    for (uint64_t v = 0; v <= version; v++)
        module_add_version(&m, &(struct version_rec){.version = v, .provenance = str_dup("{}")});
    return m;
}

static void test_room(void **state)
{
    struct module_rec m = at(VERSIONS_KEPT - 2);
    assert_null(module_oldest(&m)); /* there is room for one more */
    module_add_version(&m, &(struct version_rec){.version = VERSIONS_KEPT - 1});
    assert_int_equal(m.n_versions, VERSIONS_KEPT);
    assert_ptr_equal(module_oldest(&m), &m.versions[0]);
    assert_int_equal(module_oldest(&m)->version, 0);
    module_release(&m);
}

static void test_oldest_goes(void **state)
{
    struct module_rec m = at(10);
    assert_int_equal(m.version, 10);
    assert_int_equal(m.n_versions, VERSIONS_KEPT);
    for (uint64_t v = 0; v <= 11; v++) {
        bool kept = v >= 7 && v <= 10;
        assert_int_equal(module_version(&m, v) != NULL, kept);
        if (kept)
            assert_int_equal(module_version(&m, v)->version, v);
    }
    assert_int_equal(module_oldest(&m)->version, 7);
    assert_string_equal(m.versions[VERSIONS_KEPT - 1].provenance, "{}");
    module_release(&m);
}

/* As many as the composition asks for, not the usual number. */
static void test_kept(void **state)
{
    struct module_rec m = {.id = 1, .kept = 1};
    for (uint64_t v = 0; v < 3; v++)
        module_add_version(&m, &(struct version_rec){.version = v});
    assert_int_equal(m.n_versions, 1);
    assert_null(module_version(&m, 1));
    assert_non_null(module_version(&m, 2));
    module_release(&m);
}

static void expect(const struct module_rec *m, struct contribution c, bool keeps, bool lets_go)
{
    assert_int_equal(module_keeps(m, &c), keeps);
    assert_int_equal(module_lets_go(m, &c), lets_go);
}

/* A folded one is kept while its version is the newest. */
static void test_folded(void **state)
{
    struct module_rec m = at(10); /* 7 to 10 are there */
    expect(&m, (struct contribution){.version = 10, .base_version = 9}, true, false);
    expect(&m, (struct contribution){.version = 9, .base_version = 8}, false, true);
    expect(&m, (struct contribution){.version = 8, .base_version = 7}, false, false); /* is gone */
    /* An older start does not matter. */
    expect(&m, (struct contribution){.version = 10, .base_version = 2}, true, false);
    module_release(&m);
}

/* One that waits is kept however old its start is; a refused one goes with its turn. */
static void test_waiting(void **state)
{
    struct module_rec m = at(10);
    expect(&m, (struct contribution){.base_version = 0}, true, false);
    expect(&m, (struct contribution){.base_version = 7, .refused = true}, true, false);
    expect(&m, (struct contribution){.base_version = 6, .refused = true}, false, true);
    expect(&m, (struct contribution){.base_version = 5, .refused = true}, false, false);
    module_release(&m);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        CASE(test_room),   CASE(test_oldest_goes), CASE(test_kept),
        CASE(test_folded), CASE(test_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
