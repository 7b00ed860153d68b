/* What is said of a swarm that gets a job: small disks, slow workers, spare ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/job/warn.h"

#define GIB (1ull << 30)

static json_t *of_speeds(const char *workers)
{
    json_t *to = json_array(), *list = json_loads(workers, 0, NULL);
    assert_non_null(list);
    warn_of_speeds(list, to);
    json_decref(list);
    return to;
}

static void slow_workers_are_named(void **state)
{
    json_t *to =
        of_speeds("[{\"id\": 1, \"name\": \"fast\", \"state\": \"busy\", \"flops\": 4e12},"
                  "{\"id\": 2, \"name\": \"near\", \"state\": \"idle\", \"flops\": 3e12},"
                  "{\"id\": 3, \"name\": \"old\", \"state\": \"idle\", \"flops\": 2e12},"
                  "{\"id\": 4, \"name\": \"new\", \"state\": \"idle\", \"flops\": null},"
                  "{\"id\": 5, \"name\": \"gone\", \"state\": \"lost\", \"flops\": 1e12}]");
    assert_int_equal(json_array_size(to), 1);
    assert_string_equal(json_string_value(json_array_get(to, 0)),
                        "the fastest worker computes 2 times as fast as the slowest, and "
                        "outer.steps is the same for all, so each round waits for the slow: worker "
                        "3 (old); outer.seconds in its place lets each do what it can");
    json_decref(to);
}

static void many_slow_workers_are_counted(void **state)
{
    json_t *list = json_array(), *to = json_array();
    for (int i = 0; i < 6; i++)
        json_array_append_new(list, json_pack("{s:i,s:s,s:s,s:f}", "id", i + 1, "name", "w",
                                              "state", "idle", "flops", i == 0 ? 9e12 : 3e12));
    warn_of_speeds(list, to);
    assert_non_null(strstr(json_string_value(json_array_get(to, 0)),
                           "worker 2 (w), worker 3 (w), worker 4 (w) and 2 more;"));
    json_decref(list);
    json_decref(to);
}

static void spare_workers_are_told(void **state)
{
    json_t *to = json_array();
    json_t *list =
        json_loads("[{\"state\": \"busy\"}, {\"state\": \"idle\"}, {\"state\": \"idle\"},"
                   "{\"state\": \"lost\"}, {\"state\": \"draining\"}]",
                   0, NULL);
    warn_of_spares(list, 4, to);
    warn_of_spares(list, 3, to);
    assert_int_equal(json_array_size(to), 0);
    warn_of_spares(list, 1, to);
    assert_string_equal(json_string_value(json_array_get(to, 0)),
                        "a round of this job has 1 phase, so of the 3 workers here 2 are spares; a "
                        "larger recipe.replicas would have more of them train");
    json_decref(list);
    json_decref(to);
}

static void workers_alike_are_fine(void **state)
{
    json_t *to = of_speeds("[{\"id\": 1, \"state\": \"idle\", \"flops\": 3e12},"
                           "{\"id\": 2, \"state\": \"idle\", \"flops\": 2.1e12}]");
    assert_int_equal(json_array_size(to), 0);
    json_decref(to);
}

/* One has trained a smaller model, another in half precision. */
static void workers_with_other_work_are_fine(void **state)
{
    json_t *to =
        of_speeds("[{\"id\": 1, \"state\": \"idle\", \"flops\": 9e12, \"peak_flops\": 3e13},"
                  "{\"id\": 2, \"state\": \"idle\", \"flops\": 1e12, \"peak_flops\": 3e13},"
                  "{\"id\": 3, \"state\": \"idle\", \"flops\": 8e12, \"peak_flops\": 9e12}]");
    assert_int_equal(json_array_size(to), 0);
    json_decref(to);
}

static json_t *of_disks(const char *status, bool one_disk)
{
    const struct disk_need need = {
        .peak = 100 * GIB, .outer = 40 * GIB, .end = 30 * GIB, .worker = 50 * GIB};
    json_t *to = json_array(), *s = json_loads(status, 0, NULL);
    json_t *list = json_loads("[{\"id\": 1, \"name\": \"a\", \"state\": \"idle\","
                              "  \"disk_room_bytes\": 21474836480},"
                              " {\"id\": 2, \"name\": \"b\", \"state\": \"busy\","
                              "  \"disk_room_bytes\": 10737418240},"
                              " {\"id\": 3, \"name\": \"c\", \"state\": \"idle\","
                              "  \"disk_room_bytes\": 53687091200},"
                              " {\"id\": 4, \"name\": \"d\", \"state\": \"idle\","
                              "  \"disk_room_bytes\": null},"
                              " {\"id\": 5, \"name\": \"e\", \"state\": \"lost\","
                              "  \"disk_room_bytes\": 1}]",
                              0, NULL);
    assert_true(s && list);
    warn_of_disks(s, list, &need, one_disk, to);
    json_decref(list);
    json_decref(s);
    return to;
}

static void small_disks_are_told(void **state)
{
    json_t *to = of_disks("{\"disk_room_bytes\": 75161927680, \"blob_store\": null}", false);
    assert_int_equal(json_array_size(to), 2);
    assert_string_equal(json_string_value(json_array_get(to, 0)),
                        "the disk of the coordinator has room for 70.0 GiB, but the job needs "
                        "about 100.0 GiB there: make room, or it stalls when that disk is full");
    assert_string_equal(
        json_string_value(json_array_get(to, 1)),
        "worker 2 (b) has room for 10.0 GiB on the disk of its work directory, but "
        "the job needs about 50.0 GiB there, and 1 more worker has too little: make room, or start "
        "it with a --work-dir on a larger disk");
    json_decref(to);
}

/* Blobs in an object store take no room here; one machine has to have room for all. */
static void other_places(void **state)
{
    json_t *to = of_disks("{\"disk_room_bytes\": 75161927680, \"blob_store\": {}}", false);
    assert_int_equal(json_array_size(to), 1);
    json_decref(to);
    to = of_disks("{\"disk_room_bytes\": 214748364800, \"blob_store\": null}", true);
    assert_int_equal(json_array_size(to), 1);
    assert_non_null(strstr(json_string_value(json_array_get(to, 0)),
                           "this machine has room for 200.0 GiB, but the job needs about 300.0"));
    json_decref(to);
    to = of_disks("{\"disk_room_bytes\": 0, \"blob_store\": null}", false); /* it is full */
    assert_int_equal(json_array_size(to), 2);
    json_decref(to);
    to = of_disks("{\"blob_store\": null}", false); /* an older one does not tell */
    assert_int_equal(json_array_size(to), 1);
    json_decref(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_workers_are_named),
        cmocka_unit_test(many_slow_workers_are_counted),
        cmocka_unit_test(spare_workers_are_told),
        cmocka_unit_test(workers_alike_are_fine),
        cmocka_unit_test(workers_with_other_work_are_fine),
        cmocka_unit_test(small_disks_are_told),
        cmocka_unit_test(other_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
