/* The arithmetic of the fold: small numbers by hand, cuts that change nothing, and what is not
 * finite is told. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/outer/fold_math.h"

#define COUNT (5 * FOLD_STRIP + 300)

/* Arrays of a module of one tensor; contributions are two sets of values. */
struct arrays {
    float start[COUNT], a[COUNT], b[COUNT], mom[COUNT], target[COUNT], ema[COUNT], buf[COUNT];
    float theta_new[COUNT], delta[COUNT];
    uint16_t scales[COUNT / CODEC_BLOCK + 1];
};

static struct arrays *arrays_new(void)
{
    struct arrays *x = calloc(1, sizeof *x);
    assert_non_null(x);
    rng_fill_normal(1, 2, 0, x->start, COUNT, 0.0f, 0.02f);
    rng_fill_normal(2, 2, 0, x->a, COUNT, 0.0f, 0.02f);
    rng_fill_normal(3, 2, 0, x->b, COUNT, 0.0f, 0.02f);
    memcpy(x->target, x->start, sizeof x->target);
    memcpy(x->ema, x->start, sizeof x->ema);
    return x;
}

static const double weights[] = {3, 1};

static struct fold_math math_of(enum codec down)
{
    return (struct fold_math){
        .arith = arith_best(),
        .down = down,
        .nesterov = {.lr = 0.5, .mu = 0.5, .total = 4, .scale = 1, .parts = 1},
        .ema_decay = 0.75};
}

/* Elements [first, first + n) of the arrays as a span; false where the step is not finite. */
static bool step(const struct fold_math *m, struct arrays *x, size_t first, size_t n,
                 struct fold_squares *squares)
{
    const void *payload[] = {x->a + first, x->b + first};
    const uint16_t *scales[] = {NULL, NULL};
    uint8_t *delta = (uint8_t *)x->delta;
    const struct fold_group group = {
        .codec = CODEC_F32,
        .in = {.k = 2, .payload = payload, .scales = scales, .weight = weights},
        .start = x->start + first};
    struct fold_span s = {.n = n,
                          .groups = &group,
                          .n_groups = 1,
                          .theta = x->start + first,
                          .theta_new = x->theta_new + first,
                          .mom = x->mom + first,
                          .target = x->target + first,
                          .ema = x->ema + first,
                          .delta = delta + codec_payload_bytes(m->down, first),
                          .delta_scales = x->scales + first / CODEC_BLOCK};
    return fold_math_span(m, &s, squares);
}

static void small_numbers_by_hand(void **state)
{
    struct arrays *x = arrays_new();
    struct fold_math m = math_of(CODEC_F32);
    struct fold_squares squares = {0};
    x->start[0] = x->target[0] = x->ema[0] = 8.0f;
    x->a[0] = 4.0f;   /* Delta 4, weight 3 */
    x->b[0] = 12.0f;  /* Delta -4, weight 1: a mean of 2 */
    x->mom[0] = 2.0f; /* 0.5 * 2 + 2 = 3; the step is 0.5 (2 + 0.5 * 3) = 1.75 */
    assert_true(step(&m, x, 0, 1, &squares));
    assert_true(x->mom[0] == 3.0f);
    assert_true(x->target[0] == 6.25f);
    assert_true(x->theta_new[0] == 6.25f);
    assert_true(x->delta[0] == 6.25f); /* f32 goes down as a value */
    assert_true(x->ema[0] == 0.75f * 8.0f + 0.25f * 6.25f);
    assert_true(squares.delta == 64.0); /* of the sum: (3 * 4 - 4)^2 */
    assert_true(squares.step == 1.75 * 1.75);
    assert_true(squares.residual == 0.0);
    free(x);
}

static void the_residual_stays_in_the_target(void **state)
{
    static const enum codec downs[] = {CODEC_BF16, CODEC_INT8, CODEC_E3M0};
    for (size_t c = 0; c < 3; c++) {
        struct arrays *x = arrays_new();
        struct fold_math m = math_of(downs[c]);
        struct fold_squares squares = {0};
        double step_square = 0, residual = 0;
        assert_true(step(&m, x, 0, COUNT, &squares));
        for (size_t i = 0; i < COUNT; i++) {
            double moved = (double)x->theta_new[i] - (double)x->start[i];
            double left = (double)x->target[i] - (double)x->theta_new[i];
            step_square += moved * moved;
            residual += left * left;
        }
        assert_true(squares.residual > 0.0);
        assert_true(fabs(squares.step / step_square - 1) < 1e-4);
        assert_true(fabs(squares.residual / residual - 1) < 1e-3);
        assert_true(squares.residual < 0.05 * squares.step);
        free(x);
    }
}

/* Spans that begin at strips give the same bits however a tensor is cut. */
static void a_cut_changes_nothing(void **state)
{
    static const size_t cuts[] = {FOLD_STRIP, 2 * FOLD_STRIP, 4 * FOLD_STRIP};
    for (int c = 0; c < CODEC_COUNT; c++) {
        struct fold_math m = math_of((enum codec)c);
        struct arrays *whole = arrays_new();
        struct fold_squares one = {0};
        assert_true(step(&m, whole, 0, COUNT, &one));
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            struct arrays *x = arrays_new();
            struct fold_squares two = {0};
            for (size_t at = 0; at < COUNT; at += cuts[i])
                assert_true(step(&m, x, at, COUNT - at < cuts[i] ? COUNT - at : cuts[i], &two));
            assert_memory_equal(x, whole, sizeof *x);
            assert_memory_equal(&two, &one, sizeof one);
            free(x);
        }
        free(whole);
    }
}

static void the_norm_is_summed_as_the_span_sums_it(void **state)
{
    struct arrays *x = arrays_new();
    struct fold_math m = math_of(CODEC_BF16);
    const void *payload[] = {x->a, x->b};
    const uint16_t *scales[] = {NULL, NULL};
    const struct fold_group group = {
        .codec = CODEC_F32,
        .in = {.k = 2, .payload = payload, .scales = scales, .weight = weights},
        .start = x->start};
    struct fold_squares squares = {0};
    double plain = 0, alone = 0;
    for (size_t first = 0; first < COUNT; first += FOLD_STRIP)
        alone += fold_math_square(&m, &group, 1, first,
                                  COUNT - first < FOLD_STRIP ? COUNT - first : FOLD_STRIP);
    for (size_t i = 0; i < COUNT; i++) {
        double d =
            3 * ((double)x->start[i] - (double)x->a[i]) + (double)x->start[i] - (double)x->b[i];
        plain += d * d;
    }
    assert_true(fabs(alone / plain - 1) < 1e-12);
    assert_true(step(&m, x, 0, COUNT, &squares));
    assert_true(squares.delta == alone);
    free(x);
}

static void a_delayed_momentum_waits(void **state)
{
    struct arrays *x = arrays_new();
    struct fold_math m = math_of(CODEC_F32);
    m.nesterov.parts = 2;
    for (int due = 0; due < 2; due++) {
        const void *payload[] = {x->a, x->b};
        const uint16_t *scales[] = {NULL, NULL};
        struct fold_squares squares = {0};
        const struct fold_group group = {
            .codec = CODEC_F32,
            .in = {.k = 2, .payload = payload, .scales = scales, .weight = weights},
            .start = x->start};
        struct fold_span s = {.n = 1,
                              .groups = &group,
                              .n_groups = 1,
                              .theta = x->start,
                              .theta_new = x->theta_new,
                              .mom = x->mom,
                              .target = x->target,
                              .buf = x->buf,
                              .delta = x->delta};
        x->start[0] = 8.0f;
        x->a[0] = 4.0f;
        x->b[0] = 12.0f;
        x->target[0] = 8.0f;
        m.nesterov.due = due;
        assert_true(fold_math_span(&m, &s, &squares));
        /* g = 2 / 2.  Twice that in buf when it is due: mom 2, a step of 0.5 (1 + 0.5 * 2). */
        assert_true(x->buf[0] == (due ? 0.0f : 1.0f));
        assert_true(x->mom[0] == (due ? 2.0f : 0.0f));
        assert_true(x->target[0] == (due ? 7.0f : 7.5f));
    }
    free(x);
}

static void what_is_not_finite_is_told(void **state)
{
    static const float bad[] = {(float)NAN, (float)INFINITY, 0x1p127f};
    for (int c = 0; c < CODEC_COUNT; c++)
        for (size_t i = 0; i < 3; i++) {
            struct arrays *x = arrays_new();
            struct fold_math m = math_of((enum codec)c);
            struct fold_squares squares = {0};
            m.nesterov.lr = 1;
            m.nesterov.mu = 0;
            x->a[COUNT - 1] = x->b[COUNT - 1] = bad[i];
            assert_false(step(&m, x, 0, COUNT, &squares));
            free(x);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_numbers_by_hand),
        cmocka_unit_test(the_residual_stays_in_the_target),
        cmocka_unit_test(a_cut_changes_nothing),
        cmocka_unit_test(the_norm_is_summed_as_the_span_sums_it),
        cmocka_unit_test(a_delayed_momentum_waits),
        cmocka_unit_test(what_is_not_finite_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
