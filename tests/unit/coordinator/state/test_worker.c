/* A worker's record: whose machine it may be, what it is still to be told, and what it says of its
 * devices. */
#include "coordinator/state/worker.h"
#include "tests/unit/coordinator/plain.h"

#include <math.h>

#include "common/base/base.h"

static uint64_t origin(const char *address, uint64_t token)
{
    struct worker w = {.token_id = token};
    (void)str_copy(w.address, sizeof(w.address), address);
    return worker_origin(&w);
}

/* Ports and the lower half of IPv6 are of one place; tokens and other addresses are not.  A socket
 * for both families shows IPv4 peers as addresses of IPv6, all of the same upper half. */
static void test_origin(void **state)
{
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {
        {"192.0.2.1:5", "192.0.2.1:66", true},
        {"192.0.2.1:5", "192.0.2.2:5", false},
        {"[2001:db8:1:2::7]:5", "[2001:db8:1:2:3:4:5:6]:7", true},
        {"[2001:db8:1:2::7]:5", "[2001:db8:1:3::7]:5", false},
        {"[::ffff:192.0.2.1]:5", "[::ffff:192.0.2.2]:5", false},
        {"[::ffff:192.0.2.1]:5", "192.0.2.1:66", true},
        {"[fe80::1%eth0]:5", "[fe80::1%eth0]:6", true},
        {"[fe80::1%eth0]:5", "[fe80::1%eth1]:5", false},
        {"unknown", "unknown", true},
        {"", "192.0.2.1:5", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        if ((origin(cases[i].a, 1) == origin(cases[i].b, 1)) != cases[i].same)
            fail_msg("%s and %s", cases[i].a, cases[i].b);
        assert_true(origin(cases[i].a, 1) != origin(cases[i].b, 2));
    }
}

/* ---- verdicts ---- */

static struct worker *with_verdicts(uint64_t n)
{
    struct worker *w = mem_alloc(sizeof(*w));
    for (uint64_t i = 1; i <= n; i++)
        worker_add_verdict(w, &(struct verdict){.task_id = i, .module_id = i % 2, .told = true});
    w->verdicts_edited = false;
    return w;
}

static void test_the_oldest_makes_room(void **state)
{
    struct worker *w = with_verdicts(VERDICTS_MAX);
    assert_int_equal(w->n_verdicts, VERDICTS_MAX);
    assert_int_equal(w->verdicts[0].task_id, 1);
    worker_add_verdict(
        w, &(struct verdict){.task_id = VERDICTS_MAX + 9, .accepted = true, .reason = "why"});
    assert_true(w->verdicts_edited);
    assert_int_equal(w->n_verdicts, VERDICTS_MAX);
    for (unsigned i = 0; i + 1 < VERDICTS_MAX; i++)
        assert_int_equal(w->verdicts[i].task_id, i + 2);
    const struct verdict *last = &w->verdicts[VERDICTS_MAX - 1];
    assert_true(last->task_id == VERDICTS_MAX + 9 && last->accepted);
    assert_string_equal(last->reason, "why");
    worker_free(w);
}

/* Only what was told is confirmed; what was told in vain is not. */
static void test_told(void **state)
{
    struct worker *w = with_verdicts(4);
    assert_false(worker_was_told(w)); /* a new one is told to nobody, whatever it is a copy of */
    worker_confirm_verdicts(w);
    assert_int_equal(w->n_verdicts, 4);
    assert_false(w->verdicts_edited);
    w->verdicts[1].told = w->verdicts[3].told = true;
    assert_true(worker_was_told(w));
    worker_untell_verdicts(w);
    assert_false(worker_was_told(w));
    w->verdicts[1].told = w->verdicts[3].told = true;
    worker_confirm_verdicts(w);
    assert_true(w->verdicts_edited);
    assert_int_equal(w->n_verdicts, 2);
    assert_int_equal(w->verdicts[0].task_id, 1);
    assert_int_equal(w->verdicts[1].task_id, 3);
    worker_free(w);
}

static void test_drop(void **state)
{
    struct worker *w = with_verdicts(4);
    worker_add_verdict(w, &(struct verdict){.task_id = 3, .module_id = 7});
    w->verdicts_edited = false;
    worker_drop_verdict(w, 3, 2);
    worker_drop_verdict(w, 5, 1);
    assert_int_equal(w->n_verdicts, 5);
    assert_false(w->verdicts_edited);
    worker_drop_verdict(w, 3, 1);
    assert_true(w->verdicts_edited);
    assert_int_equal(w->n_verdicts, 4);
    assert_int_equal(w->verdicts[2].task_id, 4);
    assert_int_equal(w->verdicts[3].module_id, 7); /* of the same task, to another module */
    worker_free(w);
}

/* A report that is repeated adds none; the newest counts, and is told again. */
static void test_one_of_each(void **state)
{
    struct worker *w = with_verdicts(3);
    w->verdicts[1].told = true;
    assert_true(worker_add_verdict(
        w, &(struct verdict){.task_id = 2, .module_id = 0, .reason = "another"}));
    assert_int_equal(w->n_verdicts, 3);
    assert_int_equal(w->verdicts[1].task_id, 3);
    assert_int_equal(w->verdicts[2].task_id, 2);
    assert_string_equal(w->verdicts[2].reason, "another");
    assert_false(worker_was_told(w));
    worker_free(w);
}

/* ---- devices ---- */

static void take(struct devices *d, Skerry__V1__DeviceState *one, size_t n)
{
    Skerry__V1__DeviceState *list[WORKER_DEVICES_MAX + 1];
    Skerry__V1__HeartbeatRequest m = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    for (size_t i = 0; i < n; i++)
        list[i] = one;
    m.devices = list;
    m.n_devices = n;
    devices_take(d, &m);
}

/* Values at the edge of what makes sense are kept, and those beyond it are unknown. */
static void test_values(void **state)
{
    struct devices d = {0};
    Skerry__V1__DeviceState m = SKERRY__V1__DEVICE_STATE__INIT;
    m.utilization = 100;
    m.temperature = 999;
    m.power = 0.5f;
    m.memory_used = 3;
    m.memory_total = 4;
    take(&d, &m, 1);
    assert_int_equal(d.list[0].utilization, 100);
    assert_int_equal(d.list[0].temperature, 999);
    assert_true(d.list[0].power == 0.5f);
    assert_int_equal(d.list[0].ecc_errors, 0);
    assert_true(d.list[0].memory_used == 3 && d.list[0].memory_total == 4);
    m.utilization = -1;
    m.temperature = 1000;
    m.power = -0.5f;
    m.ecc_errors = -1;
    take(&d, &m, 1);
    assert_int_equal(d.list[0].utilization, -1);
    assert_int_equal(d.list[0].temperature, 0);
    assert_true(d.list[0].power == 0);
    assert_int_equal(d.list[0].ecc_errors, -1);
    m.utilization = -2;
    m.power = INFINITY;
    take(&d, &m, 1);
    assert_int_equal(d.list[0].utilization, -1);
    assert_true(d.list[0].power == 0);
    devices_gone(&d);
}

/* A worker may have more devices, or fewer, than before, and none beyond the limit is kept. */
static void test_number(void **state)
{
    struct devices d = {0};
    Skerry__V1__DeviceState m = SKERRY__V1__DEVICE_STATE__INIT;
    m.throttled = (char *)"power cap";
    m.trouble = (char *)"it is lost";
    take(&d, &m, WORKER_DEVICES_MAX + 1);
    assert_int_equal(d.n, WORKER_DEVICES_MAX);
    assert_string_equal(d.list[WORKER_DEVICES_MAX - 1].throttled, "power cap");
    assert_string_equal(d.list[WORKER_DEVICES_MAX - 1].trouble, "it is lost");
    take(&d, &m, 2);
    assert_int_equal(d.n, 2);
    take(&d, &m, 3);
    assert_int_equal(d.n, 3);
    assert_string_equal(d.list[2].trouble, "it is lost");
    devices_gone(&d);
    assert_null(d.list);
    assert_int_equal(d.n, 0);
}

/* What share of the peak it reaches needs both figures. */
static void test_mfu(void **state)
{
    assert_true(devices_mfu(&(struct devices){.flops = 1, .peak_flops = 4}) == 0.25);
    assert_true(isnan(devices_mfu(&(struct devices){.flops = 1})));
    assert_true(isnan(devices_mfu(&(struct devices){.peak_flops = 4})));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_origin),      cmocka_unit_test(test_the_oldest_makes_room),
        cmocka_unit_test(test_told),        cmocka_unit_test(test_drop),
        cmocka_unit_test(test_one_of_each), cmocka_unit_test(test_values),
        cmocka_unit_test(test_number),      cmocka_unit_test(test_mfu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
