/* Whether a worker keeps latents, and why. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "worker/data/keep.h"

#define KIB UINT64_C(1024)

/* A partition of 1,000 pictures; encoding takes 100 ms and a record has 1 KiB unless a case says
 * otherwise. */
static const struct {
    const char *name;
    double left;
    uint32_t replicas;
    bool flip, filled, unknown;
    double there, put_s, get_s;
    uint64_t room_kib;
    unsigned devices;
    bool keep;
    double each_s, kept_s;
    const char *reason;
} cases[] = {
    {"two epochs", 2000, 1, .keep = true, .each_s = 200, .kept_s = 100,
     .reason = "of the 2000 that are left 1000 are read from the disk, so that this takes 100 s; "
               "encoding all takes 200 s (100 ms each)"},
    {"one epoch", 1000, 1, .reason = "none of them is to come again"},
    {"one epoch, all there", 1000, 1, .there = 1, .get_s = 0.001, .keep = true, .each_s = 100,
     .kept_s = 1, .reason = "latents are kept: of the 1000 that are left 1000 are read"},
    {"half an epoch, half there", 500, 1, .there = 0.5, .keep = true, .each_s = 50, .kept_s = 25,
     .reason = "250 are read"},
    {"a slow disk", 2000, 1, .put_s = 0.06, .get_s = 0.05, .each_s = 200, .kept_s = 210,
     .reason = "pictures are encoded in each step: of the 2000 that are left 1000 are read"},
    {"a disk that is fast enough", 2000, 1, .put_s = 0.04, .get_s = 0.05, .keep = true,
     .each_s = 200, .kept_s = 190, .reason = "latents are kept"},
    {"two replicas", 1000, 2, .keep = true, .each_s = 100, .kept_s = 75, .reason = "250 are read"},
    {"two replicas, one and a half epochs", 750, 2, .keep = true, .each_s = 75, .kept_s = 62.5,
     .reason = "125 are read"},
    {"flips", 2000, 1, .flip = true, .keep = true, .each_s = 200, .kept_s = 150,
     .reason = "500 are read"},
    {"flips, two replicas", 500, 2, .flip = true, .reason = "none of them is to come again"},
    {"half the room", 2000, 1, .room_kib = 500, .keep = true, .each_s = 200, .kept_s = 150,
     .reason = "500 are read"},
    {"no room", 2000, 1, .room_kib = UINT64_MAX, .reason = "the disk has no room"},
    {"two devices", 2000, 1, .devices = 2, .put_s = 0.001, .each_s = 100, .kept_s = 101,
     .reason = "encoding all takes 100 s (100 ms each, on all devices)"},
    {"two devices, more epochs", 3000, 1, .devices = 2, .put_s = 0.001, .keep = true, .each_s = 150,
     .kept_s = 101, .reason = "2000 are read"},
    {"bubbles", 9000, 1, .filled = true, .reason = "bubbles of the pipeline run the encoder"},
    {"by time", 0, 1, .reason = "it is not known how often they come again"},
    {"an older coordinator", 9000, 0, .reason = "it is not known how often they come again"},
    {"no samples", 9000, 1, .unknown = true, .reason = "it is not known"},
};

static void test_decide(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct keep_decision d;
        const uint64_t room = cases[i].room_kib;
        const struct keep_in in = {
            .filled = cases[i].filled,
            .left = cases[i].left,
            .samples = cases[i].unknown ? 0 : 1000,
            .replicas = cases[i].replicas,
            .flip = cases[i].flip,
            .there = cases[i].there,
            .record_bytes = KIB,
            .room_bytes = room == UINT64_MAX ? 0
                          : room             ? room * KIB
                                             : UINT64_MAX,
            .devices = cases[i].devices ? cases[i].devices : 1,
            .encode_s = 0.1,
            .put_s = cases[i].put_s,
            .get_s = cases[i].get_s,
        };
        keep_decide(&in, &d);
        if (d.keep != cases[i].keep || fabs(d.each_s - cases[i].each_s) > 1e-9 ||
            fabs(d.kept_s - cases[i].kept_s) > 1e-9)
            fail_msg("%s: keep %d, %g s and %g s kept, '%s'", cases[i].name, d.keep, d.each_s,
                     d.kept_s, d.reason);
        if (!strstr(d.reason, cases[i].reason))
            fail_msg("%s: the reason is '%s', expected '%s' in it", cases[i].name, d.reason,
                     cases[i].reason);
    }
}

/* Numbers from a peer, as large as they can be. */
static void test_extremes(void **state)
{
    struct keep_decision d;
    keep_decide(&(struct keep_in){.left = 1e25,
                                  .samples = UINT64_MAX,
                                  .replicas = UINT32_MAX,
                                  .flip = true,
                                  .there = 1,
                                  .record_bytes = UINT64_MAX,
                                  .room_bytes = UINT64_MAX,
                                  .devices = 1,
                                  .encode_s = 1},
                &d);
    assert_true(isfinite(d.each_s) && isfinite(d.kept_s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decide),
        cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
