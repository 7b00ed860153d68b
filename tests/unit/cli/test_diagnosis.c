/* What the doctor makes of what it has found: each rule, at its limit and past it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/diagnosis.h"

#define GIB ((uint64_t)1 << 30)

/* A machine on which all is well. */
static struct doctor_facts well(void)
{
    return (struct doctor_facts){
        .version = "1.2.3",
        .programs = {{.name = "workerd", .here = true, .said = "workerd 1.2.3"},
                     {.name = "coordinatord", .here = true, .said = "coordinatord 1.2.3"}},
        .device = {.text = "cpu: CPU, 2 threads, AVX2", .parameters = 1e6, .images_per_s = 100},
        .places = {{.what = "a", .path = "/a", .writable = true, .free_bytes = 8 * GIB},
                   {.what = "b", .path = "/b", .writable = true, .free_bytes = 8 * GIB}},
        .ports = {{.what = "workers", .number = 7710}, {.what = "people", .number = 7711}},
    };
}

static struct doctor_facts well_connected(void)
{
    struct doctor_facts f = well();
    f.coordinator = (struct doctor_coordinator){
        .known = true,
        .host = "h",
        .role = "operator",
        .version = "1.2.9",
        .round_trip_s = 0.01,
        .up = 2e6,
        .down = 2e6,
    };
    return f;
}

/* The first finding of this name that is not ok, else the first; NULL: none. */
static const struct finding *about(const struct diagnosis *d, const char *name)
{
    const struct finding *first = NULL;
    for (size_t i = 0; i < d->n; i++) {
        if (strcmp(d->items[i].name, name) != 0)
            continue;
        if (d->items[i].verdict != VERDICT_OK)
            return &d->items[i];
        first = first ? first : &d->items[i];
    }
    return first;
}

/* That is what is said of it, with advice unless it is well. */
static void expect(const struct doctor_facts *f, const char *name, enum verdict verdict,
                   const char *words)
{
    struct diagnosis d;
    diagnose(f, &d);
    const struct finding *x = about(&d, name);
    assert_non_null(x);
    if (!strstr(x->found, words))
        fail_msg("%s: '%s' is not in '%s'", name, words, x->found);
    assert_int_equal(x->verdict, verdict);
    assert_int_equal(x->advice[0] == '\0', verdict == VERDICT_OK);
    assert_int_equal(diagnosis_worst(&d), verdict);
}

static void all_is_well(void **state)
{
    struct doctor_facts f = well();
    struct diagnosis d;
    diagnose(&f, &d);
    assert_int_equal(diagnosis_worst(&d), VERDICT_OK);
    assert_null(about(&d, "link"));
    expect(&f, "ports", VERDICT_OK, "7710 and 7711 are free");
    f = well_connected();
    diagnose(&f, &d);
    assert_int_equal(diagnosis_worst(&d), VERDICT_OK);
    expect(&f, "link", VERDICT_OK, "16 Mbit/s up, 16 down, 10 ms");
    f.coordinator.up = 1.6e8;
    expect(&f, "link", VERDICT_OK, "1280 Mbit/s up, 16 down, 10 ms");
    expect(&f, "ports", VERDICT_OK, "answer with the key");
}

static void programs(void **state)
{
    struct doctor_facts f = well();
    f.programs[1].here = false;
    expect(&f, "programs", VERDICT_WARN, "coordinatord is not beside");
    f = well();
    str_copy(f.programs[0].said, sizeof f.programs[0].said, "workerd 1.2.4");
    expect(&f, "programs", VERDICT_WARN, "workerd is 1.2.4, and this is 1.2.3");
    str_copy(f.programs[0].wrong, sizeof f.programs[0].wrong, "no libvips");
    expect(&f, "programs", VERDICT_FAIL, "workerd does not start: no libvips");
}

static void devices(void **state)
{
    struct doctor_facts f = well();
    str_copy(f.device.wrong, sizeof f.device.wrong, "it broke");
    expect(&f, "device", VERDICT_FAIL, "it broke");
    f = well();
    f.card = true;
    str_copy(f.card_wrong, sizeof f.card_wrong, "built without CUDA");
    expect(&f, "card", VERDICT_WARN, "not used: built without CUDA");
    f = well();
    str_copy(f.device.text, sizeof f.device.text,
             "cpu: CPU, 2 threads, no vector extension in use");
    expect(&f, "instructions", VERDICT_WARN, "no vector extension");
    /* a card's text says nothing of the CPU */
    f = well();
    str_copy(f.device.text, sizeof f.device.text, "cuda:0: NVIDIA H200, 139 GiB");
    str_copy(f.cpu.text, sizeof f.cpu.text, "cpu: CPU, 2 threads, AVX-512");
    expect(&f, "instructions", VERDICT_OK, "AVX-512");
    f.device.text[0] = f.cpu.text[0] = '\0';
    struct diagnosis d;
    diagnose(&f, &d);
    assert_null(about(&d, "instructions"));
}

static void disks(void **state)
{
    struct doctor_facts f = well();
    f.places[1].free_bytes = 8 * GIB - 1;
    expect(&f, "disk", VERDICT_WARN, "free in /b (b)");
    f.places[1].free_bytes = GIB;
    expect(&f, "disk", VERDICT_WARN, "free in /b (b)");
    f.places[1].free_bytes = GIB - 1;
    expect(&f, "disk", VERDICT_FAIL, "free in /b (b)");
    f.places[0].writable = false;
    expect(&f, "disk", VERDICT_FAIL, "/a (a) cannot be written to");
}

static void clocks(void **state)
{
    struct doctor_facts f = well();
    f.clock = DOCTOR_CLOCK_UNKNOWN;
    expect(&f, "clock", VERDICT_OK, "not known whether it is synchronised, because a container");
    f.clock = DOCTOR_CLOCK_FREE;
    expect(&f, "clock", VERDICT_WARN, "not synchronised, as far as the kernel knows");
    f.clock = DOCTOR_CLOCK_NTP;
    expect(&f, "clock", VERDICT_OK, "synchronised by NTP");
    f = well_connected();
    f.coordinator.ahead_ms = -60000;
    expect(&f, "clock", VERDICT_OK, "less than a minute");
    f.coordinator.ahead_ms = -60001;
    expect(&f, "clock", VERDICT_WARN, "1m00s behind the coordinator's");
    f.coordinator.ahead_ms = 3600000;
    expect(&f, "clock", VERDICT_WARN, "ahead of the coordinator's");
}

static void ways(void **state)
{
    struct doctor_facts f = well();
    struct diagnosis d;
    str_copy(f.ports[0].wrong, sizeof f.ports[0].wrong, "taken");
    expect(&f, "ports", VERDICT_WARN, "port 7710, for workers: taken");
    f = well_connected();
    str_copy(f.ports[1].wrong, sizeof f.ports[1].wrong, "another key");
    expect(&f, "ports", VERDICT_FAIL, "port 7711 of h, for people: another key");
    diagnose(&f, &d);
    assert_non_null(strstr(about(&d, "ports")->advice, "firewalls"));
    f.ports[1].code = -ERR_AUTH;
    diagnose(&f, &d);
    assert_non_null(strstr(about(&d, "ports")->advice, "skerry login"));
    f.ports[1].code = -ECONNRESET; /* as a server that speaks no TLS breaks it off */
    diagnose(&f, &d);
    assert_non_null(strstr(about(&d, "ports")->advice, "another program"));
    f.ports[1].code = -EHOSTUNREACH;
    diagnose(&f, &d);
    assert_non_null(strstr(about(&d, "ports")->advice, "--host"));
    f = well_connected();
    str_copy(f.coordinator.wrong, sizeof f.coordinator.wrong, "wrong token");
    expect(&f, "coordinator", VERDICT_FAIL, "wrong token");
    f = well_connected();
    str_copy(f.coordinator.version, sizeof f.coordinator.version, "1.3.0");
    expect(&f, "coordinator", VERDICT_WARN, "version 1.3.0, and this is 1.2.3");
    str_copy(f.coordinator.version, sizeof f.coordinator.version, "1.2");
    expect(&f, "coordinator", VERDICT_WARN, "version 1.2, and this");
    f.coordinator.version[0] = '\0';
    diagnose(&f, &d);
    assert_null(about(&d, "coordinator"));
    f.coordinator.only_joins = true;
    expect(&f, "coordinator", VERDICT_OK, "a worker's token can only join");
}

static void links(void **state)
{
    struct doctor_facts f = well_connected();
    f.coordinator.down = 10e6 / 8 - 1;
    expect(&f, "link", VERDICT_WARN, "10 down");
    f.coordinator.down = 10e6 / 8;
    expect(&f, "link", VERDICT_OK, "10 down");
    f.coordinator.round_trip_s = 0.6;
    expect(&f, "link", VERDICT_WARN, "600 ms");
    f.coordinator.up = f.coordinator.down = 0;
    expect(&f, "link", VERDICT_WARN, "with an operator's token");
    f.coordinator.round_trip_s = 0.5;
    expect(&f, "link", VERDICT_OK, "with an operator's token");
    str_copy(f.coordinator.link_wrong, sizeof f.coordinator.link_wrong, "cut");
    expect(&f, "link", VERDICT_WARN, "cut");
}

static void findings_for_people_and_programs(void **state)
{
    struct diagnosis d = {
        .n = 2,
        .items = {{.name = "disk", .found = "full", .verdict = VERDICT_FAIL, .advice = "free some"},
                  {.name = "clock", .found = "right", .advice = ""}}};
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    diagnosis_print(&d, out);
    (void)fclose(out);
    assert_string_equal(text, "fail  disk          full\n"
                              "                 -> free some\n"
                              "ok    clock         right\n");
    free(text);
    json_t *o = diagnosis_json(&d);
    text = json_dumps(o, JSON_COMPACT);
    assert_string_equal(text,
                        "{\"checks\":[{\"name\":\"disk\",\"verdict\":\"fail\",\"found\":\"full\","
                        "\"advice\":\"free some\"},{\"name\":\"clock\",\"verdict\":\"ok\","
                        "\"found\":\"right\",\"advice\":\"\"}]}");
    free(text);
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_is_well), cmocka_unit_test(programs),
        cmocka_unit_test(devices),     cmocka_unit_test(disks),
        cmocka_unit_test(clocks),      cmocka_unit_test(ways),
        cmocka_unit_test(links),       cmocka_unit_test(findings_for_people_and_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
