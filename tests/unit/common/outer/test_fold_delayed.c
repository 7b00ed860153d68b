/* The outer step with a scale, with contributions from an older version, with a delayed
 * and with a young momentum. */
#include "tests/unit/common/outer/fixture.h"

#include <errno.h>

#define N 4 /* contributions of a momentum step */

/* Numbers on a grid on which all of these sums, halves and quarters are exact. */
static void on_grid(uint64_t seed, float *x)
{
    struct rng r;
    rng_init(&r, seed, 3);
    for (size_t i = 0; i < PARAMS; i++)
        x[i] = ((float)(int)(rng_u64(&r) % 129) - 64) / 1024.0f;
}

struct state { /* of a module, as files */
    char *full, *target, *mom, *buf;
};

static void state_free(struct state *s)
{
    mem_free(s->full);
    mem_free(s->target);
    mem_free(s->mom);
    mem_free(s->buf);
}

static void state_take(struct state *s, struct fx_out *out)
{
    state_free(s);
    *s = (struct state){str_dup(out->path[0]), str_dup(out->path[3]), str_dup(out->path[4]),
                        file_exists(out->path[5]) ? str_dup(out->path[5]) : NULL};
    fx_out_end(out);
}

static struct fold_result fold_on(const struct fixture *f, struct state *s, struct fold_step *step,
                                  const char *tag)
{
    struct fx_out out;
    step->full = s->full;
    step->target = s->target;
    step->mom = s->mom;
    step->buf = s->buf;
    step->lr = 0.5;
    step->momentum = 0.5;
    fx_out_begin(f, tag, step, &out);
    struct fold_result r = fx_fold(step);
    state_take(s, &out);
    return r;
}

/* One contribution of `round` of size PARAMS, from the file at `full`. */
static void contribute(const struct fixture *f, const char *full, uint64_t base, uint64_t seed,
                       enum codec up, const char *path)
{
    float *theta = fx_array(), *end = fx_array();
    (void)f;
    fx_read_flat(full, theta);
    on_grid(seed, end);
    for (size_t i = 0; i < PARAMS; i++)
        end[i] = theta[i] - end[i];
    fx_contribute(full, base, end, up, 10, path);
    free(theta);
    free(end);
}

/* N contributions that start from one version, folded one by one with the momentum
 * delayed by N, move as far as one step with all of them: target, momentum, weights. */
static void delayed_case(enum codec up)
{
    struct fixture f;
    fx_begin(&f);
    on_grid(1, f.theta);
    fx_write_full(f.full, f.theta);
    struct state sync = {.full = str_dup(f.full)}, delayed = {.full = str_dup(f.full)};
    char tag[32], *path[2][N];
    for (uint64_t round = 0; round < 3; round++) {
        struct fold_input in[2][N];
        char *from = str_printf("%s/from%d", f.dir, (int)round);
        assert_int_equal(link(delayed.full, from), 0); /* the steps replace it */
        for (size_t c = 0; c < N; c++)
            for (size_t k = 0; k < 2; k++) {
                path[k][c] = str_printf("%s/c%zu-%zu", f.dir, k, c);
                contribute(&f, from, k ? round * N : round, 10 * round + c + 2, up, path[k][c]);
                in[k][c] = (struct fold_input){path[k][c], 1};
            }
        struct fold_step all = fx_step(&f, in[0], N, up, CODEC_F32);
        all.base = round;
        for (size_t c = 0; c < N; c++)
            in[0][c].origin = (struct fold_origin){up, round, from};
        (void)snprintf(tag, sizeof tag, "sync%d", (int)round);
        fold_on(&f, &sync, &all, tag);
        for (size_t c = 0; c < N; c++) {
            struct fold_step one = fx_step(&f, &in[1][c], 1, up, CODEC_F32);
            one.base = round * N + c;
            in[1][c].origin = (struct fold_origin){up, round * N, from};
            one.delay = N;
            (void)snprintf(tag, sizeof tag, "one%d", (int)one.base);
            fold_on(&f, &delayed, &one, tag);
            assert_int_equal(fx_same_files(sync.full, delayed.full), c == N - 1);
        }
        assert_true(fx_same_files(sync.target, delayed.target));
        assert_true(fx_same_files(sync.mom, delayed.mom));
        for (size_t c = 0; c < N; c++)
            for (size_t k = 0; k < 2; k++)
                mem_free(path[k][c]);
        mem_free(from);
    }
    float *buf = fx_array();
    fx_read_flat(delayed.buf, buf);
    for (size_t i = 0; i < PARAMS; i++)
        assert_true(buf[i] == 0);
    free(buf);
    state_free(&sync);
    state_free(&delayed);
    fx_end(&f);
}

static void test_delayed(void **state)
{
    (void)state;
    delayed_case(CODEC_F32);
    delayed_case(CODEC_INT8); /* both sides see the same coded differences */
}

/* N of 1 is the plain step, to the bit. */
static void test_no_delay(void **state)
{
    (void)state;
    struct fixture f;
    fx_begin(&f);
    struct state a = {.full = str_dup(f.full)}, b = {.full = str_dup(f.full)};
    char *blob = fx_path(&f, "c");
    contribute(&f, f.full, 0, 5, CODEC_E3M0, blob);
    struct fold_input in = {blob, 3};
    struct fold_step step = fx_step(&f, &in, 1, CODEC_E3M0, CODEC_E3M0);
    fold_on(&f, &a, &step, "a");
    step.delay = 1;
    fold_on(&f, &b, &step, "b");
    assert_true(fx_same_files(a.full, b.full));
    assert_true(fx_same_files(a.mom, b.mom));
    assert_null(b.buf);
    mem_free(blob);
    state_free(&a);
    state_free(&b);
    fx_end(&f);
}

/* Twice the mean at half the rate; weights that are no integers count by their ratio. */
static void test_scale(void **state)
{
    (void)state;
    struct fixture f;
    fx_begin(&f);
    struct fold_input in[2][2];
    char *path[2];
    for (size_t c = 0; c < 2; c++) {
        path[c] = str_printf("%s/c%zu", f.dir, c);
        contribute(&f, f.full, 0, c + 2, CODEC_BF16, path[c]);
        in[0][c] = (struct fold_input){path[c], c ? 3 : 1};
        in[1][c] = (struct fold_input){path[c], c ? 0.375 : 0.125};
    }
    struct fx_out out[2];
    struct fold_result r[2];
    for (size_t k = 0; k < 2; k++) {
        struct fold_step step = fx_step(&f, in[k], 2, CODEC_BF16, CODEC_F32);
        step.momentum = 0;
        step.scale = k ? 2 : 1;
        step.lr = k ? 0.25 : 0.5;
        fx_out_begin(&f, k ? "b" : "a", &step, &out[k]);
        r[k] = fx_fold(&step);
    }
    assert_true(fx_same_files(out[0].path[0], out[1].path[0]));
    assert_true(r[1].delta_norm == 2 * r[0].delta_norm);
    struct err err = {0};
    struct fold_step bad = fx_step(&f, in[0], 2, CODEC_BF16, CODEC_F32);
    bad.scale = 0;
    assert_int_equal(fold_run(&bad, &r[0], &err), -EINVAL);
    for (size_t k = 0; k < 2; k++) {
        fx_out_end(&out[k]);
        mem_free(path[k]);
    }
    fx_end(&f);
}

/* A contribution to an older version is refused unless the step says so. */
static void test_stale(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = {0};
    struct fold_result r;
    fx_begin(&f);
    char *blob = fx_path(&f, "c");
    contribute(&f, f.full, 2, 5, CODEC_E3M0, blob);
    struct fold_input in = {blob, 3};
    struct fold_step step = fx_step(&f, &in, 1, CODEC_E3M0, CODEC_E3M0);
    struct fx_out out;
    fx_out_begin(&f, "v", &step, &out);
    step.base = 6;
    assert_true(fold_run(&step, &r, &err) < 0);
    in.origin.from = 2;
    assert_int_equal(fold_run(&step, &r, &err), 0);
    fx_out_end(&out);
    mem_free(blob);
    fx_end(&f);
}

/* What came late, or is a snapshot, starts from an older version or has another codec: the same
 * differences give the same bits. */
static void test_mixed(void **state)
{
    static const struct fold_origin like[N] = {
        {CODEC_F32, 0, NULL}, {CODEC_BF16, 1, NULL}, {CODEC_F32, 1, NULL}, {CODEC_BF16, 0, NULL}};
    (void)state;
    struct fixture f;
    struct fold_input in[2][N];
    struct state made[2];
    double scale[2];
    fx_begin(&f);
    on_grid(1, f.theta);
    fx_write_full(f.full, f.theta);
    char *full[2] = {str_dup(f.full), fx_path(&f, "full1")};
    on_grid(2, f.theta);
    fx_write_full(full[1], f.theta);
    for (int k = 0; k < 2; k++) {
        struct fold_step step = fx_step(&f, in[k], 0, CODEC_F32, CODEC_F32);
        for (size_t c = 0; c < N; c++) {
            struct fold_origin o = {CODEC_BF16, 1, full[1]};
            if (k == 1)
                o = (struct fold_origin){like[c].codec, like[c].from, full[like[c].from]};
            char *path = str_printf("%s/mixed%zu-%d", f.dir, c, k);
            contribute(&f, o.from_full, o.from, 10 + c, o.codec, path);
            in[k][c] = (struct fold_input){path, c % 2 ? 2 : 1, 1, c == 3 ? 0.5 : 1, o};
        }
        made[k] = (struct state){.full = str_dup(full[1])};
        step.n_inputs = N;
        step.base = 1;
        step.keep_norm = true; /* at most by 1: not */
        scale[k] = fold_on(&f, &made[k], &step, k ? "mixed" : "alike").scale;
    }
    assert_true(scale[0] == 1 && scale[1] == 1);
    assert_true(fx_same_files(made[0].full, made[1].full));
    assert_true(fx_same_files(made[0].mom, made[1].mom));
    assert_false(fx_same_files(made[0].full, full[1]));
    for (int k = 0; k < 2; k++) {
        for (size_t c = 0; c < N; c++)
            mem_free((void *)(uintptr_t)in[k][c].path);
        state_free(&made[k]);
        mem_free(full[k]);
    }
    fx_end(&f);
}

static void test_momentum(void **state)
{
    (void)state;
    assert_true(fold_momentum(0.9, 0, 0) == 0.9);
    assert_true(fold_momentum(0.9, 0, 10) == 0);
    assert_true(fold_momentum(0.8, 5, 10) == 0.4);
    assert_true(fold_momentum(0.9, 10, 10) == 0.9);
    assert_true(fold_momentum(0.9, 99, 10) == 0.9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delayed), cmocka_unit_test(test_no_delay),
        cmocka_unit_test(test_scale),   cmocka_unit_test(test_stale),
        cmocka_unit_test(test_mixed),   cmocka_unit_test(test_momentum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
