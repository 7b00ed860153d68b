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
 * otherwise.  Times in milliseconds. */
static const struct {
    const char *name;
    double done, left;
    uint32_t replicas;
    bool flip, filled, unknown;
    double there, put, get;
    uint64_t room_kib;
    unsigned devices;
    bool keep;
    double each, kept;
    const char *reason;
} cases[] = {
    {"two epochs", 0, 2000, 1, .put = 5, .get = 1, .keep = true, .each = 200, .kept = 106,
     .reason = "latents are kept: of this phase's pictures 0 % lie on the disk, the others come "
               "again 1 times; kept, one takes 106 ms in all, else 200 ms (100 ms each time)"},
    {"the first epoch's end", 900, 1100, 1, .put = 5, .get = 1, .keep = true, .each = 200,
     .kept = 106, .reason = "come again 1 times"},
    {"one and a half epochs", 900, 600, 1, .put = 5, .keep = true, .each = 150, .kept = 105,
     .reason = "come again 0.5 times"},
    {"one epoch", 0, 1000, 1, .reason = "none of them is to come again"},
    {"the end of one", 500, 500.5, 1, .reason = "none of them is to come again"},
    {"the last epoch, lost", 1000, 1000, 1, .reason = "none of them is to come again"},
    {"all there", 0, 1000, 1, .there = 1, .get = 1, .keep = true, .each = 100, .kept = 1,
     .reason = "pictures 100 % lie"},
    {"all there, no room for others", 0, 1000, 1, .there = 1, .room_kib = UINT64_MAX, .get = 1,
     .keep = true, .each = 100, .kept = 1, .reason = "100 % lie"},
    {"half there", 0, 500, 1, .there = 0.5, .get = 2, .put = 10, .keep = true, .each = 100,
     .kept = 56, .reason = "50 % lie"},
    {"a slow disk", 0, 2000, 1, .put = 60, .get = 50, .each = 200, .kept = 210,
     .reason = "pictures are encoded in each step: of this phase's pictures 0 % lie"},
    {"a disk that is fast enough", 0, 2000, 1, .put = 40, .get = 50, .keep = true, .each = 200,
     .kept = 190, .reason = "latents are kept"},
    {"one that reads slowly", 0, 2000, 1, .there = 1, .get = 101, .each = 100, .kept = 101,
     .reason = "encoded in each step"},
    {"two replicas", 0, 1000, 2, .keep = true, .each = 150, .kept = 100,
     .reason = "come again 0.5 times"},
    {"two replicas, in the second epoch", 600, 400, 2, .reason = "none of them"},
    {"flips", 0, 2000, 1, .flip = true, .keep = true, .each = 150, .kept = 100,
     .reason = "come again 0.5 times"},
    {"flips, two replicas", 0, 500, 2, .flip = true, .reason = "none of them is to come again"},
    {"half the room", 0, 2000, 1, .room_kib = 500, .put = 2, .keep = true, .each = 200, .kept = 151,
     .reason = "latents are kept"},
    {"half the room of flips", 0, 4000, 1, .flip = true, .room_kib = 1000, .keep = true,
     .each = 250, .kept = 175, .reason = "latents are kept"},
    {"no room", 0, 2000, 1, .room_kib = UINT64_MAX, .reason = "the disk has no room"},
    {"two devices", 0, 2000, 1, .devices = 2, .put = 1, .each = 100, .kept = 101,
     .reason = "else 100 ms (100 ms each time, on all devices)"},
    {"two devices, more epochs", 0, 3000, 1, .devices = 2, .put = 1, .keep = true, .each = 150,
     .kept = 101, .reason = "come again 2 times"},
    {"bubbles", 0, 9000, 1, .filled = true, .there = 1,
     .reason = "bubbles of the pipeline run the encoder"},
    {"by time", 0, 0, 1, .reason = "it is not known how often they come again"},
    {"an older coordinator", 0, 9000, 0, .there = 1, .reason = "it is not known how often"},
    {"no samples", 0, 9000, 1, .unknown = true, .reason = "it is not known"},
};

static void test_decide(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct keep_decision d;
        const uint64_t room = cases[i].room_kib;
        const struct keep_in in = {
            .filled = cases[i].filled,
            .done = cases[i].done,
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
            .put_s = cases[i].put / 1e3,
            .get_s = cases[i].get / 1e3,
        };
        keep_decide(&in, &d);
        if (d.keep != cases[i].keep || fabs(1e3 * d.each_s - cases[i].each) > 1e-9 ||
            fabs(1e3 * d.kept_s - cases[i].kept) > 1e-9)
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
    struct keep_in in = {.done = 1e25,
                         .left = 1e25,
                         .samples = UINT64_MAX,
                         .replicas = UINT32_MAX,
                         .flip = true,
                         .there = 0.5,
                         .record_bytes = UINT64_MAX,
                         .room_bytes = UINT64_MAX,
                         .devices = 1,
                         .encode_s = 1};
    (void)state;
    keep_decide(&in, &d);
    assert_true(isfinite(d.each_s) && isfinite(d.kept_s));
    in.samples = 1;
    keep_decide(&in, &d);
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
