/* Profiles: the file's form and its refusals, times between the points, shares of devices. */
#include "tests/unit/worker/pipe/pipes.h"

static const char whole[] =
    "{\"format\": \"skerry-pipeline-profile\", \"version\": 1, \"model\": \"toy\","
    " \"sizes\": [2, 4], \"chains\": [{\"name\": \"dit\", \"layers\": ["
    "  {\"f\": [2, 3], \"b\": [3, 5], \"w\": [1, 2], \"add\": 0.25, \"step\": 0.5, \"out_bytes\": "
    "10,"
    "   \"slot_bytes\": 20, \"weight_bytes\": 30, \"state_bytes\": 40, \"gradient_bytes\": 15},"
    "  {\"f\": [1, 1], \"b\": [1, 1], \"w\": [1, 1], \"split_bytes\": 8, \"count\": 3}],"
    "  \"stage\": {\"bytes\": 1, \"sample_bytes\": 2, \"load_bytes\": 3, \"slot_bytes\": 4,"
    "   \"split_bytes\": 5}, \"last\": {\"load_bytes\": 6}}],"
    " \"groups\": [1], \"frozen\": [{\"name\": \"vae\", \"out_bytes\": 7, \"wanted\": \"all\","
    "  \"layers\": [{\"t\": [0.25], \"weight_bytes\": 5, \"scratch_bytes\": 6, \"count\": 2}]}],"
    " \"devices\": [{\"name\": \"a\", \"speed\": 2, \"memory\": 1000, \"sums_apart\": 1, "
    "\"count\": 2},"
    "  {\"name\": \"b\", \"memory\": 500, \"from_host\": 9, \"kind\": \"card\", \"count\": 2}],"
    " \"links\": [{\"alpha\": 0.1, \"bytes_per_s\": 100, \"count\": 2},"
    "  {\"alpha\": 0.5, \"bytes_per_s\": 50}]}";

static void test_whole(void **state)
{
    struct costs p;
    (void)state;
    OK(costs_parse("whole", whole, strlen(whole), &p, err));
    assert_string_equal(p.model, "toy");
    assert_int_equal(p.n_chains, 1);
    assert_int_equal(p.chains[0].n, 4);
    assert_int_equal(p.chains[0].layers[0].state_bytes, 40);
    assert_true(p.chains[0].layers[0].add == 0.25 && p.chains[0].layers[1].add == 0);
    assert_true(p.devices[1].sums_apart && !p.devices[2].sums_apart);
    assert_true(p.devices[1].from_host == 0 && p.devices[2].from_host == 9);
    assert_true(p.chains[0].layers[3].f.s[1] == 1 && p.chains[0].layers[3].split_bytes == 8);
    assert_memory_equal(&p.chains[0].stage, (&(struct costs_beside){1, 2, 3, 4, 5}),
                        sizeof p.chains[0].stage);
    assert_true(p.chains[0].first.load_bytes == 0 && p.chains[0].last.load_bytes == 6);
    assert_true(p.devices[1].kind == COSTS_ANY && p.devices[2].kind == COSTS_CARD);
    assert_int_equal(p.frozen[0].n, 2);
    assert_true(p.frozen[0].all && p.frozen[0].layers[1].scratch_bytes == 6);
    assert_int_equal(p.n_devices, 4);
    assert_true(p.devices[3].speed == 1 && p.devices[1].memory == 1000);
    assert_true(p.links[1].alpha == 0.1 && p.links[2].bytes_per_s == 50);
    costs_release(&p);
}

/* In proportion below the first and above the last point, on the line between. */
static void test_seconds(void **state)
{
    const struct costs_points at = {2, {2, 4}};
    const struct costs_time t = {{2, 3}};
    static const double expected[] = {0, 1, 2, 2.5, 3, 3.75};
    (void)state;
    for (int i = 0; i < 6; i++)
        assert_true(fabs(costs_seconds(&at, &t, i) - expected[i]) < 1e-12);
}

static void test_links(void **state)
{
    struct costs p, half;
    (void)state;
    OK(costs_parse("whole", whole, strlen(whole), &p, err));
    const struct costs_link far = costs_link(&p, 3, 0), none = costs_link(&p, 1, 1);
    assert_true(far.alpha == 0.5 && far.bytes_per_s == 50);
    assert_true(costs_transfer(&far, 100) == 2.5);
    assert_true(costs_transfer(&none, 100) == 0);
    costs_share(&p, 2, &half);
    assert_int_equal(half.n_devices, 2);
    assert_true(half.devices[0].speed == 1 && half.devices[1].memory == 500);
    assert_true(half.devices[0].sums_apart && half.devices[1].sums_apart);
    assert_int_equal(half.devices[0].kind, COSTS_CARD);
    p.devices[0].sums_apart = p.devices[1].sums_apart = false;
    p.devices[3].sums_apart = true;
    costs_share(&p, 2, &half);
    assert_true(!half.devices[0].sums_apart && half.devices[1].sums_apart);
    assert_true(half.links[0].alpha == 0.5); /* the second pair's, not the link between the pairs */
    costs_release(&p);
}

/* The whole profile with one piece of text replaced is refused, with a sentence that says why. */
static void refused(const char *from, const char *to, const char *sentence)
{
    char text[2 * sizeof whole];
    struct costs p;
    struct err err = {0};
    const char *at = strstr(whole, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - whole), whole, to, at + strlen(from));
    assert_true(costs_parse("bad", text, strlen(text), &p, &err) < 0);
    if (!strstr(err.msg, sentence))
        fail_msg("'%s' does not say '%s'", err.msg, sentence);
}

static void test_refusals(void **state)
{
    (void)state;
    refused("\"version\"", "\"vresion\"", "version must be a number");
    refused("{\"format\"", "{\"formal\"", "format must be");
    refused("skerry-pipeline", "other", "is no profile");
    refused("[2, 4]", "[4, 2]", "ascending");
    refused("[2, 4]", "[0, 4]", "ascending");
    refused("[2, 4]", "[2, 4, 8]", "f has 2 times, expected 3");
    refused("[2, 3]", "[2, -3]", "must be seconds");
    refused("[2, 3]", "[2, null]", "must be seconds");
    refused("\"count\": 3", "\"count\": 300", "count must be a number from 1 to 256");
    refused("\"count\": 3", "\"count\": 256", "more than 256 in all");
    refused("\"count\": 3", "\"count\": 1.5", "whole number");
    refused("\"speed\": 2", "\"speed\": 0", "speed must be");
    refused("\"memory\": 500, ", "", "memory must be");
    refused("\"count\": 2},  {\"name\": \"b\"", "\"count\": 63},  {\"name\": \"b\"",
            "devices 1: more than 64 in all");
    refused("\"speed\": 2", "\"sped\": 2", "the key 'sped', which is not known");
    refused("\"count\": 2},  {\"alpha\"", "\"count\": 3},  {\"alpha\"",
            "4 links between 4 devices");
    refused("\"wanted\": \"all\"", "\"wanted\": \"some\"", "expected first or all");
    refused("\"groups\": [1]", "\"groups\": []", "groups is missing");
    refused("\"card\"", "\"tpu\"", "devices 1: kind is 'tpu', expected host or card");
    refused("\"stage\": {", "\"stage\": {\"byte\": 1, ",
            "chains 0: stage has the key 'byte', which is not known");
    refused("\"last\": {\"load_bytes\": 6}", "\"last\": 6", "chains 0: last must be an object");
    refused("\"name\": \"dit\"", "\"name\": \"\"", "name must be a text");
    refused("\"links\": [", "\"links\": 3, \"x\": [", "the key 'x'");
    refused("]}", "]", "bad:");
    struct costs p;
    struct err err = {0};
    assert_int_equal(costs_parse("list", "[]", 2, &p, &err), -ERR_FORMAT);
    assert_string_equal(err.msg, "list is not a JSON object");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_seconds),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
