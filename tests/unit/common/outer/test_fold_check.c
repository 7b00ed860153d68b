/* The check before a fold: the norm of a contribution in every codec, what is refused, and
 * which norms are out of bounds among their peers. */
#include "tests/unit/common/outer/fixture.h"

#include <errno.h>
#include <math.h>

/* A contribution whose end is theta - step, all of it. */
static char *contribute(const struct fixture *f, enum codec codec, float step)
{
    float *end = fx_array();
    for (size_t i = 0; i < PARAMS; i++)
        end[i] = f->theta[i] - (i % 2 ? step : -step);
    char *blob = fx_path(f, codec_name(codec));
    fx_contribute(f->full, 0, end, codec, 77, blob);
    free(end);
    return blob;
}

static void the_norm_is_that_of_the_difference(void **state)
{
    struct fixture f;
    fx_begin(&f);
    double expected = 0.03125 * sqrt((double)PARAMS);
    for (int c = 0; c < CODEC_COUNT; c++) {
        struct fold_norm got = {0};
        struct err err = {0};
        char *blob = contribute(&f, (enum codec)c, 0.03125f);
        assert_int_equal(fold_check(blob, f.full, MODULE, 0, (enum codec)c, &got, &err), 0);
        assert_int_equal(got.samples, 77);
        /* The end is rounded to f32; e3m0 has steps of a seventh at worst. */
        double allowed = c == CODEC_E3M0 ? 0.15 : c == CODEC_F32 ? 1e-5 : 0.01;
        if (fabs(got.norm / expected - 1) > allowed)
            fail_msg("%s: %g, expected %g", codec_name((enum codec)c), got.norm, expected);
        mem_free(blob);
    }
    fx_end(&f);
}

static void what_does_not_fit_is_refused(void **state)
{
    static const struct {
        uint64_t module_id, base;
        enum codec up;
        int code;
        const char *why;
    } cases[] = {
        {MODULE + 1, 0, CODEC_BF16, -ERR_FORMAT, "is of module 7, expected module 8"},
        {MODULE, 1, CODEC_BF16, -ERR_STALE, "starts from version 0, expected version 1"},
        {MODULE, 0, CODEC_INT8, -ERR_FORMAT, "is coded as bf16, the job says int8"},
    };
    struct fixture f;
    fx_begin(&f);
    char *blob = contribute(&f, CODEC_BF16, 0.5f), *absent = fx_path(&f, "absent");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fold_norm got = {.samples = 5};
        struct err err = {0};
        assert_int_equal(
            fold_check(blob, f.full, cases[i].module_id, cases[i].base, cases[i].up, &got, &err),
            cases[i].code);
        if (!strstr(err.msg, cases[i].why))
            fail_msg("\"%s\", expected \"%s\"", err.msg, cases[i].why);
        assert_int_equal(got.samples, 5); /* untouched */
    }
    struct fold_norm got;
    struct err err = {0};
    assert_int_equal(fold_check(absent, f.full, MODULE, 0, CODEC_BF16, &got, &err), -ENOENT);
    assert_int_equal(fold_check(blob, absent, MODULE, 0, CODEC_BF16, &got, &err), -ENOENT);
    mem_free(absent);
    mem_free(blob);
    fx_end(&f);
}

/* Overwrites two bytes so many before the end of the file. */
static void spoil(const char *path, size_t before_end, uint16_t bits)
{
    struct err err = {0};
    struct buf b;
    assert_int_equal(file_read(path, 64 << 20, &b, &err), 0);
    memcpy(b.data + b.len - before_end, &bits, sizeof bits);
    assert_int_equal(file_write_atomic(path, b.data, b.len, 0600, &err), 0);
    buf_release(&b);
}

static void a_value_that_is_not_finite_is_refused(void **state)
{
    /* The last value of the blob (f32: its upper half), and the last scale. */
    static const struct {
        enum codec codec;
        size_t before_end;
        uint16_t bits;
    } cases[] = {
        {CODEC_F32, 2, 0x7fc0},
        {CODEC_F32, 2, 0x7f80},
        {CODEC_BF16, 2, 0xff80},
        {CODEC_BF16, 2, 0x7f00}, /* finite, but above CODEC_ABS_MAX */
        {CODEC_INT8, 66560 + 2, 0x7f80},
        {CODEC_E3M0, 66560 / 2 + 2, 0x7fc0},
        {CODEC_E3M0, 66560 / 2 + 2, 0xbf80}, /* a scale below zero */
    };
    struct fixture f;
    fx_begin(&f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fold_norm got;
        struct err err = {0};
        enum codec c = cases[i].codec;
        char *blob = contribute(&f, c, 0.5f);
        size_t at = cases[i].before_end;
        if (codec_has_scale(c)) /* the payloads of the smaller tensors lie between */
            for (size_t t = 0; t < SHAPES - 1; t++) {
                static const size_t counts[] = {60, 5, 1, 771, 1};
                at += codec_payload_bytes(c, counts[t]);
            }
        spoil(blob, at, cases[i].bits);
        assert_int_equal(fold_check(blob, f.full, MODULE, 0, c, &got, &err), -ERR_FORMAT);
        assert_string_equal(err.msg,
                            "tensor y.table holds a value that is not finite or out of range");
        mem_free(blob);
    }
    fx_end(&f);
}

static void the_bound_is_ten_times_the_median_of_the_peers(void **state)
{
    static const struct {
        double norms[5];
        size_t n;
        unsigned refused; /* bit by bit */
    } cases[] = {
        {{1, 1000}, 2, 0}, /* two say nothing about each other */
        {{1, 1, 10}, 3, 0},        {{1, 1, 10.001}, 3, 4},
        {{100, 1, 1}, 3, 1},       {{1, 3, 21}, 3, 4},    /* the median of two is their mean: 2 */
        {{1, 3, 20}, 3, 0},        {{1, 2, 3, 21}, 4, 8}, /* of three, the middle one */
        {{0, 0, 1e-9}, 3, 4},      {{0, 0, 0}, 3, 0},
        {{50, 50, 1, 1, 1}, 5, 3}, {{5, (double)INFINITY, 5}, 3, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool refused[5] = {true, true, true, true, true};
        fold_norm_bound(cases[i].norms, cases[i].n, refused);
        for (size_t j = 0; j < cases[i].n; j++)
            if (refused[j] != (bool)(cases[i].refused >> j & 1))
                fail_msg("case %zu: norm %zu is %srefused", i, j, refused[j] ? "" : "not ");
        for (size_t j = cases[i].n; j < 5; j++)
            assert_true(refused[j]); /* untouched */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_norm_is_that_of_the_difference),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_value_that_is_not_finite_is_refused),
        cmocka_unit_test(the_bound_is_ten_times_the_median_of_the_peers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
