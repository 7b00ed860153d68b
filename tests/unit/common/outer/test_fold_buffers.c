/* Buffers beside tensors that are trained: they travel as they are and become a mean or the first
 * one's, and nothing else of a step notices them. */
#include "tests/unit/common/outer/fixture.h"

#include <math.h>

#include "common/outer/version.h"

#define MEAN 60  /* x_embedder.bias: 5 elements */
#define FIRST 65 /* scale: 1 */
#define K 2

static bool is_buffer(size_t i)
{
    return i >= MEAN && i <= FIRST;
}

/* The fixture's module again, with buffers. */
static void mark_buffers(const char *path, const float *x)
{
    struct err err = {0};
    struct st_writer *w = st_writer_new();
    st_writer_meta(w, LAYOUT_META_MEAN, "x_embedder.bias\n");
    st_writer_meta(w, LAYOUT_META_FIRST, "scale\n");
    for (size_t i = 0; i < SHAPES; i++)
        assert_int_equal(st_writer_add(w, shape_rows[i].name, ST_F32, shape_rows[i].rank,
                                       shape_rows[i].shape, &err),
                         0);
    assert_int_equal(st_writer_open(w, path, &err), 0);
    assert_int_equal(st_writer_write(w, x, PARAMS * sizeof *x, &err), 0);
    assert_int_equal(st_writer_commit(w, NULL, NULL, &err), 0);
    st_writer_free(w);
}

/* Two replicas: of what is trained, and of buffers far away. */
static void train(const struct fixture *f, uint64_t replica, float *end)
{
    fx_normal(70 + replica, 1e-3f, end);
    for (size_t i = 0; i < PARAMS; i++)
        end[i] += f->theta[i];
    for (size_t i = MEAN; i < FIRST; i++)
        end[i] = (float)(i * (replica + 1));
    end[FIRST] = replica == 0 ? 1e6f : -3;
}

struct step {
    struct fixture f;
    float *end[K], *got[4]; /* got: full, ema, target, mom */
    char *blob[K];
    struct fold_input in[K];
    struct fold_step step;
    struct fx_out out;
    struct fold_result result;
};

static void step_begin(struct step *s, bool buffers, enum codec up, enum codec down)
{
    struct err err = {0};
    fx_begin(&s->f);
    if (buffers)
        mark_buffers(s->f.full, s->f.theta);
    for (size_t i = 0; i < 4; i++)
        s->got[i] = fx_array();
    for (uint64_t i = 0; i < K; i++) {
        struct fold_norm norm;
        char name[16];
        (void)snprintf(name, sizeof name, "c%d", (int)i);
        s->end[i] = fx_array();
        s->blob[i] = fx_path(&s->f, name);
        train(&s->f, i, s->end[i]);
        if (!buffers) /* as if there were none */
            memcpy(s->end[i] + MEAN, s->f.theta + MEAN, 6 * sizeof(float));
        fx_contribute(s->f.full, 0, s->end[i], up, i + 1, s->blob[i]);
        assert_int_equal(
            fold_check(s->blob[i], &(struct fold_origin){up, 0, s->f.full}, MODULE, &norm, &err),
            0);
        s->in[i] = (struct fold_input){
            .path = s->blob[i], .weight = (double)i + 1, .norm = norm.norm, .shrink = i ? 0.5 : 1};
    }
    s->step = fx_step(&s->f, s->in, K, up, down);
    s->step.keep_norm = true;
    s->step.scale = 4;
    fx_out_begin(&s->f, "s", &s->step, &s->out);
}

static void step_fold(struct step *s)
{
    static const int outs[] = {0, 2, 3, 4};
    s->result = fx_fold(&s->step);
    for (size_t i = 0; i < 4; i++)
        fx_read_flat(s->out.path[outs[i]], s->got[i]);
}

static void step_end(struct step *s)
{
    for (size_t i = 0; i < 4; i++)
        free(s->got[i]);
    for (size_t i = 0; i < K; i++) {
        free(s->end[i]);
        mem_free(s->blob[i]);
    }
    fx_out_end(&s->out);
    fx_end(&s->f);
}

/* What is trained has the same bits and norms as in a module without buffers. */
static void check_codecs(enum codec up, enum codec down)
{
    struct step s, plain;
    struct err err = {0};
    step_begin(&s, true, up, down);
    step_fold(&s);
    step_begin(&plain, false, up, down);
    step_fold(&plain);
    for (int file = 0; file < 4; file++)
        for (size_t i = 0; i < PARAMS; i++)
            assert_true(is_buffer(i) || s.got[file][i] == plain.got[file][i]);
    assert_float_equal(s.in[0].norm, plain.in[0].norm, 1e-12);
    assert_float_equal(s.result.delta_norm, plain.result.delta_norm, 1e-12);
    assert_float_equal(s.result.step_norm, plain.result.step_norm, 1e-12);
    assert_true(s.result.scale == plain.result.scale);
    for (int file = 0; file < 3; file++) { /* weights 1 and 2, of i and 2 i; not shrunk */
        for (size_t i = MEAN; i < FIRST; i++)
            assert_true(s.got[file][i] == (float)((double)(5 * i) / 3));
        assert_true(s.got[file][FIRST] == 1e6f);
    }
    for (size_t i = MEAN; i <= FIRST; i++)
        assert_true(s.got[3][i] == 0);
    char *made = fx_path(&s.f, "made");
    assert_int_equal(version_apply_delta(s.f.full, s.out.path[1], MODULE, 0, made, NULL,
                                         s.result.full.sha256, NULL, &err),
                     0);
    mem_free(made);
    step_end(&s);
    step_end(&plain);
}

static void test_codecs(void **state)
{
    (void)state;
    for (int c = 0; c < CODEC_COUNT; c++) {
        check_codecs((enum codec)c, CODEC_INT8);
        check_codecs(CODEC_E3M0, (enum codec)c);
    }
}

/* One contribution of N at a time: the mean goes an N-th of the way, the first is taken whole. */
static void test_delayed(void **state)
{
    (void)state;
    struct step s;
    step_begin(&s, true, CODEC_BF16, CODEC_F32);
    s.step.keep_norm = false;
    s.step.n_inputs = 1;
    s.step.delay = 4;
    step_fold(&s);
    for (size_t i = MEAN; i < FIRST; i++) {
        const double theta = s.f.theta[i];
        assert_true(s.got[0][i] == (float)(theta + ((double)i - theta) / 4));
    }
    assert_true(s.got[0][FIRST] == 1e6f);
    step_end(&s);
}

/* A residual keeps nothing of a buffer, also where one is there. */
static void test_no_residual(void **state)
{
    (void)state;
    struct step s;
    struct err err = {0};
    step_begin(&s, true, CODEC_E3M0, CODEC_E3M0);
    char *current = fx_path(&s.f, "residual"), *pending = fx_path(&s.f, "pending");
    float *left = fx_array(), *weights = fx_array();
    for (int round = 0; round < 2; round++) {
        struct contribution_result r;
        struct contribution_job job = fx_job(s.f.full, 0, s.end[0], CODEC_E3M0, 1, s.blob[0]);
        job.residual_path = current;
        job.residual_pending = pending;
        assert_int_equal(contribution_write(&job, &r, &err), 0);
        fx_read_flat(pending, left);
        double trained = 0;
        for (size_t i = 0; i < PARAMS; i++)
            trained += is_buffer(i) ? 0 : fabs((double)left[i]);
        for (size_t i = MEAN; i <= FIRST; i++)
            assert_true(left[i] == 0);
        assert_true(trained > 0);
        assert_int_equal(residual_commit(pending, current, &err), 0);
    }
    char *made = fx_path(&s.f, "made");
    assert_int_equal(version_apply_contribution(s.f.full, s.blob[0], MODULE, 0, made, &err), 0);
    fx_read_flat(made, weights);
    assert_memory_equal(weights + MEAN, s.end[0] + MEAN, 6 * sizeof(float));
    mem_free(made);
    mem_free(current);
    mem_free(pending);
    free(left);
    free(weights);
    step_end(&s);
}

/* Two contributions are as alike as what is trained of them. */
static void test_direction(void **state)
{
    (void)state;
    struct step s, plain;
    struct err err = {0};
    double x, y, square;
    step_begin(&s, true, CODEC_BF16, CODEC_BF16);
    step_begin(&plain, false, CODEC_BF16, CODEC_BF16);
    int rc = fold_dot(s.blob[0], &(struct fold_origin){CODEC_BF16, 0, s.f.full}, s.blob[1],
                      &(struct fold_origin){CODEC_BF16, 0, s.f.full}, MODULE, &x, &square, &err);
    assert_int_equal(rc, 0);
    rc = fold_dot(plain.blob[0], &(struct fold_origin){CODEC_BF16, 0, plain.f.full}, plain.blob[1],
                  &(struct fold_origin){CODEC_BF16, 0, plain.f.full}, MODULE, &y, &square, &err);
    assert_int_equal(rc, 0);
    assert_true(x == y);
    step_end(&s);
    step_end(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codecs),
        cmocka_unit_test(test_delayed),
        cmocka_unit_test(test_no_residual),
        cmocka_unit_test(test_direction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
