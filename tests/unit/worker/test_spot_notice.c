/* The answers of three metadata services, as their manuals print them. */
#include "tests/unit/common/base/util.h"

#include "worker/spot_notice.h"

#define NOW 1763799600 /* 2025-11-22T08:20:00Z */

static void aws(void **state)
{
    (void)state;
    struct spot_notice n;
    struct err e = {0};
    assert_int_equal(spot_aws_action("{\"action\": \"terminate\", \"time\": "
                                     "\"2025-11-22T08:22:00Z\"}",
                                     NOW, &n, &e),
                     1);
    assert_true(n.leave && n.ms == 120000);
    assert_non_null(strstr(n.reason, "terminate"));
    assert_int_equal(
        spot_aws_action("{\"action\": \"stop\", \"time\": \"2020-01-01T00:00:00Z\"}", NOW, &n, &e),
        1);
    assert_true(n.leave && n.ms == 0);
    assert_int_equal(spot_aws_action("{\"action\": \"hibernate\", \"time\": 5}", NOW, &n, &e), 1);
    assert_int_equal(n.ms, SPOT_MS);
    assert_int_equal(
        spot_aws_action("{\"action\":\"stop\",\"time\":\"9999-01-01T00:00:00Z\"}", NOW, &n, &e), 1);
    assert_int_equal(n.ms, SPOT_MS_MAX);
    assert_int_equal(spot_aws_action("{}", NOW, &n, &e), -ERR_FORMAT);
    assert_int_equal(spot_aws_action("<html>", NOW, &n, &e), -ERR_FORMAT);
    assert_int_equal(spot_aws_rebalance("{\"noticeTime\": \"2025-11-22T08:22:00Z\"}", &n, &e), 1);
    assert_true(!n.leave && n.ms == 0);
    assert_int_equal(spot_aws_rebalance("[]", &n, &e), -ERR_FORMAT);
    assert_int_equal(spot_aws_rebalance("{}", &n, &e), -ERR_FORMAT);
}

static void gcp(void **state)
{
    (void)state;
    struct spot_notice n;
    struct err e = {0};
    assert_int_equal(spot_gcp_preempted("TRUE", &n, &e), 1);
    assert_true(n.leave && n.ms == SPOT_GCP_MS);
    assert_int_equal(spot_gcp_preempted("FALSE\n", &n, &e), 0);
    assert_int_equal(spot_gcp_preempted("FALSEHOOD", &n, &e), -ERR_FORMAT);
    assert_int_equal(spot_gcp_preempted("", &n, &e), -ERR_FORMAT);
    assert_int_equal(spot_gcp_maintenance("NONE", &n, &e), 0);
    assert_int_equal(spot_gcp_maintenance("MIGRATE_ON_HOST_MAINTENANCE", &n, &e), 0);
    assert_int_equal(spot_gcp_maintenance("TERMINATE_ON_HOST_MAINTENANCE", &n, &e), 1);
    assert_true(n.leave && n.ms == 60000);
    assert_int_equal(spot_gcp_maintenance("TRUE", &n, &e), -ERR_FORMAT);
}

#define EVENTS(type, vm, when)                                                                     \
    "{\"DocumentIncarnation\": 2, \"Events\": [{\"EventId\": \"C7061BAC\", \"EventStatus\": "      \
    "\"Scheduled\", \"EventType\": \"" type                                                        \
    "\", \"ResourceType\": \"VirtualMachine\", \"Resources\": [\"other\", \"" vm                   \
    "\"], \"NotBefore\": \"" when "\", \"Description\": \"\", \"EventSource\": \"Platform\"}]}"

static void azure(void **state)
{
    (void)state;
    static const char soon[] = EVENTS("Preempt", "VM1", "Sat, 22 Nov 2025 08:20:30 GMT");
    static const char started[] = EVENTS("Terminate", "vm1", "");
    static const char frozen[] = EVENTS("Freeze", "vm1", "Sat, 22 Nov 2025 08:20:30 GMT");
    struct spot_notice n;
    struct err e = {0};
    assert_int_equal(spot_azure_events(soon, "vm1", NOW, &n, &e), 1);
    assert_true(n.leave && n.ms == 30000);
    assert_int_equal(spot_azure_events(soon, "vm2", NOW, &n, &e), 0);
    assert_int_equal(spot_azure_events(started, "vm1", NOW, &n, &e), 1);
    assert_true(n.leave && n.ms == 0);
    assert_int_equal(spot_azure_events(frozen, "vm1", NOW, &n, &e), 0);
    assert_int_equal(
        spot_azure_events("{\"DocumentIncarnation\": 1, \"Events\": []}", "vm1", NOW, &n, &e), 0);
    assert_int_equal(spot_azure_events("{}", "vm1", NOW, &n, &e), -ERR_FORMAT);
    assert_int_equal(spot_azure_events("{\"Events\": [7, {}]}", "vm1", NOW, &n, &e), 0);
}

/* The first of several is what counts. */
static void azure_has_several(void **state)
{
    (void)state;
    static const char both[] =
        "{\"Events\": [{\"EventType\": \"Reboot\", \"Resources\": [\"vm1\"], \"NotBefore\": "
        "\"Sat, 22 Nov 2025 08:35:00 GMT\"}, {\"EventType\": \"Preempt\", \"Resources\": "
        "[\"vm1\"], \"NotBefore\": \"Sat, 22 Nov 2025 08:20:40 GMT\"}]}";
    struct spot_notice n;
    assert_int_equal(spot_azure_events(both, "vm1", NOW, &n, NULL), 1);
    assert_int_equal(n.ms, 40000);
    assert_non_null(strstr(n.reason, "Preempt"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aws),
        cmocka_unit_test(gcp),
        cmocka_unit_test(azure),
        cmocka_unit_test(azure_has_several),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
