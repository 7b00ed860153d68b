/* Whether pictures are encoded once or in each step, and why. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/decide/encode.h"
#include "tests/unit/coordinator/decide/expect.h"

static void test_encode(void **state)
{
    const struct {
        const char *name;
        struct encode_in in;
        bool once;
        const char *reason;
    } cases[] = {
        {"asked once",
         {.asked_once = true,
          .asked_step = false,
          .pictures = 100,
          .seen = 1,
          .flip = false,
          .random_crop = true},
         true,
         "as encoders.run says"},
        {"asked step",
         {.asked_once = false,
          .asked_step = true,
          .pictures = 100,
          .seen = 100000,
          .flip = false,
          .random_crop = false},
         false,
         "as encoders.run says"},
        {"random",
         {.asked_once = false,
          .asked_step = false,
          .pictures = 100,
          .seen = 100000,
          .flip = false,
          .random_crop = true},
         false,
         "data.crop random"},
        {"seconds",
         {.asked_once = false,
          .asked_step = false,
          .pictures = 100,
          .seen = 0,
          .flip = false,
          .random_crop = false},
         true,
         "bounded by time"},
        {"twice",
         {.asked_once = false,
          .asked_step = false,
          .pictures = 100,
          .seen = 200,
          .flip = false,
          .random_crop = false},
         false,
         "only 2.0 times"},
        {"more",
         {.asked_once = false,
          .asked_step = false,
          .pictures = 100,
          .seen = 210,
          .flip = false,
          .random_crop = false},
         true,
         "seen 2.1 times, and 1 passes"},
        {"flip",
         {.asked_once = false,
          .asked_step = false,
          .pictures = 100,
          .seen = 400,
          .flip = true,
          .random_crop = false},
         false,
         "only 4.0 times"},
        {"flip more",
         {.asked_once = false,
          .asked_step = false,
          .pictures = 100,
          .seen = 410,
          .flip = true,
          .random_crop = false},
         true,
         "seen 4.1 times, and 2 passes"},
        {"no disk",
         {.pictures = 100, .seen = 1000, .latents_bytes = 6 << 20, .disk_free = 10 << 20},
         false,
         "would take 6.0 MiB of the coordinator's disk, of which 10.0 MiB are free"},
        {"disk",
         {.pictures = 100, .seen = 1000, .latents_bytes = 5 << 20, .disk_free = 10 << 20},
         true,
         "each is seen 10.0 times"},
        {"nothing",
         {.asked_once = false,
          .asked_step = false,
          .pictures = 0,
          .seen = 10,
          .flip = false,
          .random_crop = false},
         false,
         "only 0.0 times"},
    };
    for (size_t i = 0; i < N(cases); i++) {
        struct encode_decision d;
        encode_decide(&cases[i].in, &d);
        if (d.once != cases[i].once)
            fail_msg("%s: once %d, '%s'", cases[i].name, d.once, d.reason);
        expect_text(cases[i].name, d.reason, cases[i].reason);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
