/* What the contributions of one sender weigh in a step: at most the cap, and nothing changes where
 * nobody has more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/outer/fold.h"
#include "common/outer/fold_share.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))
#define MANY 12

static void test_table(void **state)
{
    static const struct {
        const char *name;
        double cap;
        const char *senders; /* one for each weight; then what the weights become */
        double weights[MANY], want[MANY];
    } cases[] = {
        {"nothing", 0.5, "", {0}, {0}},
        {"one alone", 0.5, "aaa", {5, 1, 3}, {5, 1, 3}},
        {"9 of 10, and there is but one other",
         0.5,
         "aaaaaaaaab",
         {1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
         {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
        {"many phases of one of four",
         0.5,
         "aaaaaaaaabcd",
         {8, 8, 8, 8, 8, 8, 8, 8, 8, 9, 9, 9},
         {3, 3, 3, 3, 3, 3, 3, 3, 3, 9, 9, 9}},
        {"a huge count of one of four", 0.5, "abcd", {1e18, 1, 2, 3}, {6, 1, 2, 3}},
        {"just the cap", 0.5, "abcad", {2, 1, 1, 2, 2}, {2, 1, 1, 2, 2}},
        {"of three never below two thirds", 0.1, "abbc", {1, 9, 9, 1}, {1, 2, 2, 1}},
        {"two who have more",
         0.25,
         "abcdefghij",
         {40, 20, 1, 1, 1, 1, 1, 1, 1, 1},
         {4, 4, 1, 1, 1, 1, 1, 1, 1, 1}},
        {"who has more when another has less",
         0.25,
         "abcdefghij",
         {900, 90, 31, 5, 5, 5, 5, 5, 5, 0.5},
         {30.5, 30.5, 30.5, 5, 5, 5, 5, 5, 5, 0.5}},
        {"no cap", 1, "abcd", {1e18, 1, 2, 3}, {1e18, 1, 2, 3}},
    };
    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        const size_t n = strlen(cases[i].senders);
        uint64_t senders[MANY];
        double weights[MANY];
        for (size_t k = 0; k < n; k++)
            senders[k] = (uint64_t)cases[i].senders[k];
        memcpy(weights, cases[i].weights, sizeof weights);
        const bool less = memcmp(cases[i].weights, cases[i].want, sizeof weights) != 0;
        if (fold_share(cases[i].cap, senders, weights, n) != less)
            fail_msg("%s: it says %d", cases[i].name, !less);
        for (size_t k = 0; k < n; k++)
            if (fabs(weights[k] - cases[i].want[k]) > 1e-6 * cases[i].want[k])
                fail_msg("%s: weight %zu is %g, not %g", cases[i].name, k, weights[k],
                         cases[i].want[k]);
    }
}

static double sum(const uint64_t *senders, const double *weights, size_t n, uint64_t sender)
{
    double all = 0;
    for (size_t i = 0; i < n; i++)
        all += senders[i] == sender || sender == UINT64_MAX ? weights[i] : 0;
    return all;
}

/* Any weights, as many as there may be: nobody has more than the cap, whoever had less keeps his
 * bits, and a second time changes none. */
static void test_any(void **state)
{
    struct rng rng;
    (void)state;
    rng_init(&rng, 11, 1);
    for (int round = 0; round < 300; round++) {
        uint64_t senders[FOLD_INPUTS_MAX];
        double before[FOLD_INPUTS_MAX], weights[FOLD_INPUTS_MAX], again[FOLD_INPUTS_MAX];
        const size_t n = 1 + (size_t)rng_below(&rng, FOLD_INPUTS_MAX);
        const uint64_t most = 1 + rng_below(&rng, 12);
        const double asked = (double)rng_below(&rng, 101) / 100;
        unsigned k = 0;
        for (size_t i = 0; i < n; i++) {
            senders[i] = rng_below(&rng, most);
            before[i] = weights[i] = exp((double)rng_below(&rng, 20)) / 3;
        }
        for (uint64_t s = 0; s < most; s++)
            k += sum(senders, before, n, s) > 0;
        const double cap = fmax(asked, 2.0 / k);
        fold_share(asked, senders, weights, n);
        const double whole = sum(senders, weights, n, UINT64_MAX);
        for (size_t i = 0; i < n; i++) {
            const double share = sum(senders, weights, n, senders[i]) / whole;
            assert_true(weights[i] > 0 && share <= cap * (1 + 1e-8));
            assert_true(weights[i] == before[i] || fabs(share - cap) <= 1e-8 * cap);
        }
        memcpy(again, weights, sizeof again);
        assert_false(fold_share(asked, senders, again, n));
        assert_memory_equal(again, weights, n * sizeof *again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
