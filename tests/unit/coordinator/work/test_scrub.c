/* The scrubber finds the blob whose bytes are not its name's any more, and no other. */
#include "coordinator/work/scrub.h"
#include "tests/unit/blobs.h"
#include "tests/unit/coordinator/rig.h"

static void scrub_all(struct rig *r)
{
    const unsigned first = r->co->scrub_part;
    for (unsigned part = 0; part < 256; part++) {
        scrub_next(r->co);
        scrub_next(r->co); /* one at a time */
        WAIT_FOR(r, !r->co->scrubbing);
    }
    assert_int_equal(r->co->scrub_part, first); /* all around */
}

static unsigned damaged(const struct rig *r)
{
    struct view_status s;
    view_status(r->co, &s);
    return s.blobs_damaged;
}

static void test_damage_is_found(void **state)
{
    struct rig *r = *state;
    struct blob_id ids[40];
    struct err err = {0};
    char *path;
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(blob_put(r->co->blobs, &i, sizeof(i), &ids[i], &err), 0);
    scrub_all(r);
    assert_int_equal(damaged(r), 0);
    assert_int_equal(r->co->blobs->ops->local(r->co->blobs, &ids[7], false, &path, &err), 0);
    (void)file_remove(path, NULL);
    assert_int_equal(file_write_atomic(path, "lost", 4, 0600, &err), 0);
    scrub_all(r);
    assert_int_equal(damaged(r), 1);
    assert_true(blobstore_has(r->co->blobs, &ids[7], NULL)); /* it is told, not taken away */
    const unsigned seven = 7;                                /* a copy is back */
    assert_int_equal(file_write_atomic(path, &seven, sizeof(seven), 0600, &err), 0);
    scrub_all(r);
    assert_int_equal(damaged(r), 0);
    mem_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_damage_is_found, begin, end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
