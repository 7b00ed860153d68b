/* The check before a fold: the norm of a contribution in every codec, what is refused, and
 * the direction of one against others. */
#include "tests/unit/common/outer/fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "common/outer/layout.h"

/* A contribution whose end is theta - step, all of it. */
static char *contribute(const struct fixture *f, enum codec codec, float step)
{
    float *end = fx_array();
    for (size_t i = 0; i < PARAMS; i++)
        end[i] = f->theta[i] - (i % 2 ? step : -step);
    char *blob = fx_path(f, step < 0 ? "against" : codec_name(codec));
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
        assert_int_equal(
            fold_check(blob, &(struct fold_origin){(enum codec)c, 0, f.full}, MODULE, &got, &err),
            0);
        assert_int_equal(got.samples, 77);
        /* The end is rounded to f32; e3m0 has steps of a seventh at worst. */
        double allowed = c == CODEC_E3M0 ? 0.15 : c == CODEC_F32 ? 1e-5 : 0.01;
        if (fabs(got.norm / expected - 1) > allowed)
            fail_msg("%s: %g, expected %g", codec_name((enum codec)c), got.norm, expected);
        mem_free(blob);
    }
    fx_end(&f);
}

/* Cell by cell: as the sum, to the bit, and as each by itself. */
static void the_squares_of_cells_are_the_norm(void **state)
{
    struct fixture f;
    struct layout layout;
    struct err err = {0};
    fx_begin(&f);
    assert_int_equal(layout_open(f.full, &layout, &err), 0);
    const uint64_t n = layout_cells(&layout);
    assert_true(n > layout.st.n_tensors); /* some tensor has several */
    double *cells = mem_alloc_array(n, sizeof(*cells));
    char *path = fx_path(&f, "squares");
    for (int c = 0; c < CODEC_COUNT; c++) {
        const struct fold_origin origin = {(enum codec)c, 0, f.full};
        struct fold_norm norm = {0}, plain;
        double sum = 0;
        uint64_t elements = 0;
        char *blob = contribute(&f, (enum codec)c, 0.03125f);
        const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        assert_int_equal(fold_check_cells(blob, &origin, MODULE, fd, 8, &norm, &err), 0);
        assert_int_equal(fold_check(blob, &origin, MODULE, &plain, &err), 0);
        assert_int_equal(norm.cells, n);
        assert_int_equal(pread(fd, cells, n * 8 + 8, 8), n * 8);
        for (uint64_t i = 0; i < n; i++) {
            struct layout_cell cell;
            double one = 0;
            sum += cells[i];
            layout_cell_at(&layout, i, &cell);
            assert_true(cell.number == i && cell.n > 0 && cell.n <= LAYOUT_CELL);
            elements += cell.n;
            assert_int_equal(fold_check_cell(blob, &origin, MODULE, &cell, &one, &err), 0);
            assert_memory_equal(&one, &cells[i], sizeof(one));
        }
        assert_int_equal(elements, PARAMS);
        assert_true(sqrt(sum) == norm.norm && norm.norm == plain.norm);
        (void)close(fd);
        mem_free(blob);
    }
    mem_free(path);
    mem_free(cells);
    layout_release(&layout);
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
        {MODULE, 0, CODEC_INT8, -ERR_FORMAT, "is coded as bf16, but the job file says int8"},
    };
    struct fixture f;
    fx_begin(&f);
    char *blob = contribute(&f, CODEC_BF16, 0.5f), *absent = fx_path(&f, "absent");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fold_norm got = {.samples = 5};
        struct err err = {0};
        assert_int_equal(fold_check(blob, &(struct fold_origin){cases[i].up, cases[i].base, f.full},
                                    cases[i].module_id, &got, &err),
                         cases[i].code);
        if (!strstr(err.msg, cases[i].why))
            fail_msg("\"%s\", expected \"%s\"", err.msg, cases[i].why);
        assert_int_equal(got.samples, 5); /* untouched */
    }
    struct fold_norm got;
    struct err err = {0};
    assert_int_equal(
        fold_check(absent, &(struct fold_origin){CODEC_BF16, 0, f.full}, MODULE, &got, &err),
        -ENOENT);
    assert_int_equal(
        fold_check(blob, &(struct fold_origin){CODEC_BF16, 0, absent}, MODULE, &got, &err),
        -ENOENT);
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
        assert_int_equal(fold_check(blob, &(struct fold_origin){c, 0, f.full}, MODULE, &got, &err),
                         -ERR_FORMAT);
        assert_string_equal(err.msg,
                            "tensor y.table holds a value that is not finite or out of range");
        mem_free(blob);
    }
    fx_end(&f);
}

/* Of two contributions, and of one with a momentum, in every codec. */
static void the_product_has_the_sign_of_the_directions(void **state)
{
    struct fixture f;
    fx_begin(&f);
    for (unsigned c = 0; c < CODEC_COUNT; c++) {
        struct err err = {0};
        struct fold_norm norm;
        double dot = 0, square = 0;
        char *up = contribute(&f, (enum codec)c, 0.5f), *down = contribute(&f, (enum codec)c, -1);
        assert_int_equal(
            fold_check(up, &(struct fold_origin){(enum codec)c, 0, f.full}, MODULE, &norm, &err),
            0);
        assert_int_equal(fold_dot(up, &(struct fold_origin){(enum codec)c, 0, f.full}, up,
                                  &(struct fold_origin){(enum codec)c, 0, f.full}, MODULE, &dot,
                                  &square, &err),
                         0);
        assert_float_equal(dot, norm.norm * norm.norm, 1e-5 * dot);
        assert_float_equal(square, dot, 1e-9 * dot);
        assert_int_equal(fold_dot(up, &(struct fold_origin){(enum codec)c, 0, f.full}, down,
                                  &(struct fold_origin){(enum codec)c, 0, f.full}, MODULE, &dot,
                                  &square, &err),
                         0);
        assert_true(dot < -1.5 * norm.norm * norm.norm);
        assert_int_equal(fold_dot(up, &(struct fold_origin){(enum codec)c, 0, f.full}, f.full, NULL,
                                  MODULE, &dot, &square, &err),
                         0);
        assert_true(isfinite(dot));
        mem_free(up);
        mem_free(down);
    }
    fx_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_norm_is_that_of_the_difference),
        cmocka_unit_test(the_squares_of_cells_are_the_norm),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_value_that_is_not_finite_is_refused),
        cmocka_unit_test(the_product_has_the_sign_of_the_directions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
