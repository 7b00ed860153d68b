/* Which norms are folded, made shorter or refused: by the past, by peers, by what steps can do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/outer/fold_judge.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))

struct one {
    double norm, samples, most;
};

static void judge(const double *past, size_t n_past, bool lenient, const struct one *in, size_t n,
                  struct fold_judged *out)
{
    struct fold_past list[FOLD_HISTORY_MAX] = {{0}};
    for (size_t i = 0; i < n_past; i++)
        list[i] = (struct fold_past){past[i], 8};
    for (size_t i = 0; i < n; i++)
        out[i] =
            (struct fold_judged){.norm = in[i].norm, .samples = in[i].samples, .most = in[i].most};
    fold_judge(&(struct fold_known){list, n_past, {0}, lenient}, out, n);
}

/* k as it is, s made shorter, l large without anything to make it as short as, r refused. */
static char verdict(const struct fold_judged *c)
{
    if (c->refused)
        return 'r';
    if (c->shrink < 1) {
        assert_true(c->large);
        const double to = c->known ? FOLD_NORM_CLIP * c->usual : c->usual;
        assert_float_equal(c->shrink * c->norm, to, 1e-9 * c->norm);
        assert_float_equal(c->doubt, c->known ? 1 : c->shrink, 1e-12);
        return 's';
    }
    assert_true(c->shrink == 1); /* no bit changes */
    return c->large ? 'l' : 'k';
}

static void test_table(void **state)
{
    static const struct {
        const char *name;
        double past[8];
        size_t n_past;
        double norms[5];
        const char *verdicts; /* one for each norm */
        bool lenient;
    } cases[] = {
        {"nothing is known", {0}, 0, {1e9}, "k", false},
        {"one says nothing", {1}, 1, {1e9}, "k", false},
        {"alone, by its past", {1, 1.2, 0.9}, 3, {2}, "k", false},
        {"alone, large", {1, 1.2, 0.9}, 3, {2.1}, "s", false},
        {"alone, ten times", {1, 1.2, 0.9}, 3, {10.1}, "r", false},
        {"alone, ten times, again and again", {1, 1.2, 0.9}, 3, {10.1}, "s", true},
        {"small is never wrong", {1, 1, 1}, 3, {1e-9}, "k", false},
        {"zeros are not of the past", {0, 0, 0, 1, 1}, 5, {1.5}, "k", false},
        {"half of the past cannot raise it", {1, 2, 1, 4, 1, 8, 1, 16}, 8, {2.1}, "s", false},
        {"two, of which one is the usual", {1, 1}, 2, {1, 1e30}, "kr", false},
        {"two, with nine times", {1, 1}, 2, {1, 9}, "ks", false},
        {"two at the beginning", {0}, 0, {1, 1e30}, "ks", false},
        {"two that agree with the past", {5, 5}, 2, {9, 4}, "kk", false},
        {"all have grown", {1, 1}, 2, {5, 6, 5}, "kkk", false},
        {"three at the beginning", {0}, 0, {1, 1, 10.1}, "kkr", false},
        {"three, ten times", {0}, 0, {1, 1, 10}, "kks", false},
        {"the median of two is their mean", {0}, 0, {1, 3, 20.1}, "kkr", false},
        {"of three the middle one", {0}, 0, {1, 2, 3, 21}, "kkkr", false},
        {"two of five", {0}, 0, {50, 50, 1, 1, 1}, "rrkkk", false},
        {"peers that did nothing", {0}, 0, {0, 0, 1e-9}, "kkr", false},
        {"nobody did anything", {0}, 0, {0, 0, 0}, "kkk", false},
    };
    for (size_t i = 0; i < N(cases); i++) {
        struct one in[5] = {{0}};
        struct fold_judged out[5];
        const size_t n = strlen(cases[i].verdicts);
        for (size_t k = 0; k < n; k++)
            in[k] = (struct one){cases[i].norms[k], 8, 0};
        judge(cases[i].past, cases[i].n_past, cases[i].lenient, in, n, out);
        for (size_t k = 0; k < n; k++)
            if (verdict(&out[k]) != cases[i].verdicts[k])
                fail_msg("%s: %zu is %c, expected %c", cases[i].name, k, verdict(&out[k]),
                         cases[i].verdicts[k]);
    }
}

/* More samples may go further; fewer are not held to less. */
static void test_samples(void **state)
{
    struct fold_judged out[2];
    const double past[] = {1, 1, 1}; /* behind 8 samples each */
    judge(past, 3, false, (struct one[]){{19, 80, 0}}, 1, out);
    assert_int_equal(verdict(&out[0]), 'k');
    judge(past, 3, false, (struct one[]){{19, 8, 0}}, 1, out);
    assert_int_equal(verdict(&out[0]), 'r');
    judge(past, 3, false, (struct one[]){{1.9, 1, 0}}, 1, out);
    assert_int_equal(verdict(&out[0]), 'k');
    judge(NULL, 0, false, (struct one[]){{1, 8, 0}, {15, 80, 0}}, 2, out);
    assert_int_equal(verdict(&out[1]), 'k'); /* a fast worker beside a slow one */
}

/* A step of one that has nothing behind it is judged by the word of another, which may be a lie:
 * the longer of two counts the less the longer it is. */
static void test_word(void **state)
{
    const struct fold_known known = {NULL, 0, {.norm = 2, .samples = 8}, false};
    struct fold_judged c = {.norm = 4, .samples = 8};
    fold_judge(&known, &c, 1);
    assert_true(c.shrink == 1 && !c.known);
    c = (struct fold_judged){.norm = 20, .samples = 8};
    fold_judge(&known, &c, 1);
    assert_float_equal(c.shrink, 0.01, 1e-12);
    assert_false(c.refused);
    const struct fold_past past[] = {{20, 8}, {20, 8}}; /* who has a past needs no word */
    const struct fold_known more = {past, 2, {.norm = 2, .samples = 8}, false};
    fold_judge(&more, &c, 1);
    assert_true(c.shrink == 1 && c.known);
}

/* What no phase can do is refused, whatever is known. */
static void test_most(void **state)
{
    struct fold_judged out[2];
    const double past[] = {100, 100};
    judge(NULL, 0, false, (struct one[]){{6, 8, 5}}, 1, out);
    assert_int_equal(verdict(&out[0]), 'r');
    judge(past, 2, true, (struct one[]){{6, 8, 5}, {5, 8, 5}}, 2, out);
    assert_int_equal(verdict(&out[0]), 'r');
    assert_int_equal(verdict(&out[1]), 'k');
    /* 100 steps at 1e-3 of 10,000 elements, none further than 0.1, and the residual. */
    assert_float_equal(fold_norm_most(1e-3, 0.9, 0.95, 100, 10000), 20, 1e-9);
    assert_float_equal(fold_norm_most(1e-3, 0.9, 0.9996, 100, 10000), 100, 1e-9);
    assert_true(isfinite(fold_norm_most(1, 0.9, 1, 1, 1)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_most),
        cmocka_unit_test(test_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
