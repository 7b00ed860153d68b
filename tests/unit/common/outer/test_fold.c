/* The outer step: the identities of papers.md section 6, the formulas against a
 * plain restatement, the same bits at every holder, and failures that change
 * nothing. */
#include "tests/unit/common/outer/fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/outer/version.h"

/* ---- (a) DiLoCo, k=1, H=1, lr 1, momentum 0 is plain training ---- */

/* Weights that cross zero, shrink by far, grow by far, stay. */
static void train_one(uint64_t seed, const float *theta, float *end)
{
    fx_normal(seed, 1e-3f, end);
    for (size_t i = 0; i < PARAMS; i++) {
        float step = end[i];
        end[i] = theta[i] - step;
        if (i % 7 == 0)
            end[i] = step * 1e-3f;
        if (i % 11 == 0)
            end[i] = -theta[i];
        if (i % 13 == 0)
            end[i] = theta[i] * 37.0f;
        if (i % 17 == 0)
            end[i] = 0.0f;
    }
}

static void test_plain_training(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = {0};
    fx_begin(&f);
    float *end = fx_array(), *got = fx_array();
    char *blob = fx_path(&f, "c"), *full = str_dup(f.full), *target = NULL, *mom = NULL;
    memcpy(got, f.theta, PARAMS * sizeof *got);
    for (uint64_t round = 0; round < 5; round++) {
        struct fold_input in = {.path = blob, .weight = 123};
        struct fold_step step = fx_step(&f, &in, 1, CODEC_F32, CODEC_F32);
        in.origin.from = round;
        struct fx_out out;
        char tag[16];
        (void)snprintf(tag, sizeof tag, "r%d", (int)round);
        train_one(round + 50, got, end);
        fx_contribute(full, round, end, CODEC_F32, 123, blob);
        step.base = round;
        step.full = full;
        step.target = target;
        step.mom = mom;
        step.lr = 1.0;
        step.momentum = 0.0;
        fx_out_begin(&f, tag, &step, &out);
        fx_fold(&step);
        fx_read_flat(out.path[0], got);
        for (size_t i = 0; i < PARAMS; i++)
            assert_true(got[i] == end[i]);
        mem_free(full);
        mem_free(target);
        mem_free(mom);
        full = str_dup(out.path[0]);
        target = str_dup(out.path[3]);
        mom = str_dup(out.path[4]);
        fx_out_end(&out);
    }
    assert_int_equal(err.code, 0);
    mem_free(full);
    mem_free(target);
    mem_free(mom);
    mem_free(blob);
    free(end);
    free(got);
    fx_end(&f);
}

/* ---- (b) k equal contributions are one ---- */

static void equal_case(const struct fixture *f, enum codec up, enum codec down, size_t k,
                       bool equal_weights)
{
    struct fold_input in[FOLD_INPUTS_MAX];
    char *blob = fx_path(f, codec_name(up));
    for (size_t i = 0; i < k; i++)
        in[i] = (struct fold_input){.path = blob,
                                    .weight = equal_weights ? 640 : (double)(1 + i * i % 977)};
    struct fold_step one = fx_step(f, in, 1, up, down), many = fx_step(f, in, k, up, down);
    struct fx_out a, b;
    fx_out_begin(f, "one", &one, &a);
    fx_out_begin(f, "many", &many, &b);
    struct fold_result x = fx_fold(&one), y = fx_fold(&many);
    assert_memory_equal(x.full.sha256, y.full.sha256, HASH_BYTES);
    assert_memory_equal(x.delta.sha256, y.delta.sha256, HASH_BYTES);
    assert_memory_equal(x.ema.sha256, y.ema.sha256, HASH_BYTES);
    assert_true(fx_same_files(a.path[3], b.path[3]));
    assert_true(fx_same_files(a.path[4], b.path[4]));
    fx_out_end(&a);
    fx_out_end(&b);
    mem_free(blob);
}

static void test_equal_contributions(void **state)
{
    (void)state;
    static const size_t counts[] = {2, 3, 5, 7, 64, 256};
    struct fixture f;
    fx_begin(&f);
    float *end = fx_array();
    fx_normal(2, 1e-3f, end);
    for (size_t i = 0; i < PARAMS; i++)
        end[i] += f.theta[i];
    for (int c = 0; c < CODEC_COUNT; c++) {
        char *blob = fx_path(&f, codec_name((enum codec)c));
        fx_contribute(f.full, 0, end, (enum codec)c, 640, blob);
        mem_free(blob);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            equal_case(&f, (enum codec)c, i % 2 ? CODEC_E3M0 : CODEC_F32, counts[i], i != 2);
    }
    free(end);
    fx_end(&f);
}

/* ---- the formulas, restated without strips, chunks or tables ---- */

struct plain {
    float *target, *mom, *ema, *theta;
};

static void plain_step(struct plain *p, float *const *delta, const double *weight, size_t k,
                       const struct fold_step *s)
{
    double total = 0;
    for (size_t c = 0; c < k; c++)
        total += weight[c];
    for (size_t i = 0; i < PARAMS; i++) {
        double sum = 0;
        for (size_t c = 0; c < k; c++)
            sum += weight[c] * (double)delta[c][i];
        sum /= total;
        p->mom[i] = (float)(s->momentum * (double)p->mom[i] + sum);
        p->target[i] =
            (float)((double)p->target[i] - s->lr * (sum + s->momentum * (double)p->mom[i]));
    }
}

/* Q of the way down, tensor by tensor. */
static void plain_down(const struct layout *l, struct plain *p, enum codec down, double d)
{
    float *diff = fx_array(), *q = fx_array();
    void *payload = malloc(PARAMS * 4);
    uint16_t *scales = malloc(PARAMS);
    for (size_t i = 0; i < PARAMS; i++)
        diff[i] = p->target[i] - p->theta[i];
    for (size_t t = 0; t < l->st.n_tensors; t++) {
        size_t first = (size_t)layout_first(l, t), n = (size_t)l->st.tensors[t].count;
        assert_int_equal(coding_encode(down, n, diff + first, payload, scales, q + first), 0);
    }
    for (size_t i = 0; i < PARAMS; i++) {
        p->theta[i] = down == CODEC_F32 ? p->target[i] : p->theta[i] + q[i];
        p->ema[i] = (float)(d * (double)p->ema[i] + (1 - d) * (double)p->theta[i]);
    }
    free(diff);
    free(q);
    free(payload);
    free(scales);
}

static void expect_file(const char *path, const float *want)
{
    float *got = fx_array();
    fx_read_flat(path, got);
    assert_memory_equal(got, want, PARAMS * sizeof *got);
    free(got);
}

/* Where a phase of this delta ends, and the delta as bf16 brings it over the wire. */
static void end_of_phase(const float *theta, float *delta, float *end)
{
    for (size_t i = 0; i < PARAMS; i++) {
        uint32_t u;
        end[i] = theta[i] - delta[i];
        delta[i] = theta[i] - end[i];
        memcpy(&u, &delta[i], 4);
        u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
        memcpy(&delta[i], &u, 4);
    }
}

/* Two rounds of three contributions; returns through the arrays of p. */
static void formula_case(const struct fixture *f, enum codec down)
{
    enum { K = 3 };
    struct layout l = {0};
    struct err err = {0};
    struct plain p = {fx_array(), fx_array(), fx_array(), fx_array()};
    float *delta[K], *end = fx_array();
    double weight[K] = {300, 500, 77};
    char *full = str_dup(f->full), *state[3] = {NULL, NULL, NULL};
    assert_int_equal(layout_open(f->full, &l, &err), 0);
    memcpy(p.target, f->theta, PARAMS * 4);
    memcpy(p.ema, f->theta, PARAMS * 4);
    memcpy(p.theta, f->theta, PARAMS * 4);
    memset(p.mom, 0, PARAMS * 4);
    for (uint64_t round = 0; round < 2; round++) {
        struct fold_input in[K];
        for (size_t c = 0; c < K; c++) {
            char *blob = str_printf("%s/c%zu", f->dir, c);
            delta[c] = fx_array();
            fx_normal(100 * round + c, 1e-3f, delta[c]);
            end_of_phase(p.theta, delta[c], end);
            fx_contribute(full, round, end, CODEC_BF16, (uint64_t)weight[c], blob);
            in[c] = (struct fold_input){.path = blob, .weight = weight[c]};
        }
        struct fold_step step = fx_step(f, in, K, CODEC_BF16, down);
        for (size_t c = 0; c < K; c++)
            in[c].origin.from = round;
        struct fx_out out;
        fx_out_begin(f, round ? "b" : "a", &step, &out);
        step.base = round;
        step.full = full;
        step.ema = state[0];
        step.target = state[1];
        step.mom = state[2];
        fx_fold(&step);
        plain_step(&p, delta, weight, K, &step);
        plain_down(&l, &p, down, step.ema_decay);
        expect_file(out.path[0], p.theta);
        expect_file(out.path[2], p.ema);
        expect_file(out.path[3], p.target);
        expect_file(out.path[4], p.mom);
        mem_free(full);
        full = str_dup(out.path[0]);
        for (size_t i = 0; i < 3; i++) {
            mem_free(state[i]);
            state[i] = str_dup(out.path[2 + i]);
            free(delta[i]);
            mem_free((void *)(uintptr_t)in[i].path);
        }
        fx_out_end(&out);
    }
    mem_free(full);
    for (size_t i = 0; i < 3; i++)
        mem_free(state[i]);
    free(end);
    free(p.target);
    free(p.mom);
    free(p.ema);
    free(p.theta);
    layout_release(&l);
}

static void test_formulas(void **state)
{
    (void)state;
    struct fixture f;
    fx_begin(&f);
    for (int c = 0; c < CODEC_COUNT; c++)
        formula_case(&f, (enum codec)c);
    fx_end(&f);
}

/* ---- every holder has the same bits ---- */

static void test_apply(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = {0};
    fx_begin(&f);
    float *end = fx_array();
    fx_normal(3, 1e-2f, end);
    char *blob = fx_path(&f, "c"), *mine = fx_path(&f, "mine");
    fx_contribute(f.full, 0, end, CODEC_E3M0, 10, blob);
    for (int c = 0; c < CODEC_COUNT; c++) {
        struct fold_input in = {.path = blob, .weight = 10};
        struct fold_step step = fx_step(&f, &in, 1, CODEC_E3M0, (enum codec)c);
        struct fx_out out;
        uint8_t hash[HASH_BYTES], wrong[HASH_BYTES] = {1};
        fx_out_begin(&f, "v1", &step, &out);
        struct fold_result r = fx_fold(&step);
        assert_int_equal(hash_file(out.path[0], hash, NULL, &err), 0);
        assert_memory_equal(hash, r.full.sha256, HASH_BYTES);
        assert_int_equal(hash_file(out.path[2], hash, NULL, &err), 0);
        assert_memory_equal(hash, r.ema.sha256, HASH_BYTES);
        assert_int_equal(version_apply_delta(f.full, out.path[1], MODULE, 0, mine, NULL,
                                             r.full.sha256, hash, &err),
                         0);
        assert_memory_equal(hash, r.full.sha256, HASH_BYTES);
        assert_true(fx_same_files(mine, out.path[0]));
        assert_int_equal(file_remove(mine, &err), 0);
        assert_int_equal(
            version_apply_delta(f.full, out.path[1], MODULE, 0, mine, NULL, wrong, NULL, &err),
            -ERR_HASH);
        assert_false(file_exists(mine));
        assert_int_equal(
            version_apply_delta(f.full, out.path[1], MODULE, 1, mine, NULL, NULL, NULL, &err),
            -ERR_STALE);
        assert_int_equal(
            version_apply_delta(f.full, out.path[1], MODULE + 1, 0, mine, NULL, NULL, NULL, &err),
            -ERR_FORMAT);
        assert_int_equal(version_apply_delta(f.full, blob, MODULE, 0, mine, NULL, NULL, NULL, &err),
                         -ERR_FORMAT);
        assert_false(file_exists(mine));
        fx_out_end(&out);
    }
    mem_free(blob);
    mem_free(mine);
    free(end);
    fx_end(&f);
}

/* ---- failures change nothing ---- */

/* From now on this many bytes may be written: by the knob of the file layer, or
 * where it is not built in, by the limit on the size of a file. */
static void limit_writes(long bytes)
{
    if (file_fault_enospc(bytes))
        return;
    struct rlimit r;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &r), 0);
    r.rlim_cur = bytes < 0 ? r.rlim_max : (rlim_t)bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
}

static size_t count_files(const struct fixture *f)
{
    struct file_names names = {0};
    struct err err = {0};
    assert_int_equal(file_list(f->dir, 1000, &names, &err), 0);
    size_t n = names.n;
    file_names_release(&names);
    return n;
}

static void test_disk_full(void **state)
{
    (void)state;
    struct fixture f;
    fx_begin(&f);
    (void)signal(SIGXFSZ, SIG_IGN);
    float *end = fx_array();
    fx_normal(4, 1e-2f, end);
    char *blob = fx_path(&f, "c");
    fx_contribute(f.full, 0, end, CODEC_INT8, 10, blob);
    struct fold_input in = {.path = blob, .weight = 10};
    struct fold_step step = fx_step(&f, &in, 1, CODEC_INT8, CODEC_INT8);
    struct fold_result r = {0};
    struct fx_out out;
    fx_out_begin(&f, "v1", &step, &out);
    size_t before = count_files(&f);
    for (long bytes = 0; bytes < 40000; bytes += 1111) {
        struct err err = {0};
        limit_writes(bytes);
        int rc = fold_run(&step, &r, &err);
        limit_writes(-1);
        assert_true(rc == -ENOSPC || rc == -EFBIG);
        assert_true(err.msg[0]);
        assert_int_equal(count_files(&f), before);
    }
    r = fx_fold(&step); /* and then it succeeds */
    assert_int_equal(count_files(&f), before + 5);
    fx_out_end(&out);
    mem_free(blob);
    free(end);
    fx_end(&f);
}

static bool stop_after(void *arg)
{
    int *left = arg;
    return (*left)-- <= 0;
}

static void test_stop(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = {0};
    struct fold_result r;
    fx_begin(&f);
    char *blob = fx_path(&f, "c");
    fx_contribute(f.full, 0, f.theta, CODEC_E3M0, 10, blob);
    struct fold_input in = {.path = blob, .weight = 10};
    struct fold_step step = fx_step(&f, &in, 1, CODEC_E3M0, CODEC_E3M0);
    struct fx_out out;
    fx_out_begin(&f, "v1", &step, &out);
    size_t before = count_files(&f);
    for (int chunks = 0; chunks < 6; chunks++) {
        int left = chunks;
        step.stop = stop_after;
        step.stop_arg = &left;
        assert_int_equal(fold_run(&step, &r, &err), -ERR_CANCELLED);
        assert_int_equal(count_files(&f), before);
    }
    fx_out_end(&out);
    mem_free(blob);
    fx_end(&f);
}

/* An overflow on the way to the target is found, whatever the codec. */
static void test_not_finite(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = {0};
    struct fold_result r;
    fx_begin(&f);
    float *end = fx_array();
    for (size_t i = 0; i < PARAMS; i++)
        end[i] = i == 900 ? 0x1p125f : f.theta[i];
    for (int c = 0; c < CODEC_COUNT; c++) {
        char *blob = fx_path(&f, "c");
        fx_contribute(f.full, 0, end, (enum codec)c, 10, blob);
        struct fold_input in = {.path = blob, .weight = 10};
        struct fold_step step = fx_step(&f, &in, 1, (enum codec)c, (enum codec)c);
        struct fx_out out;
        fx_out_begin(&f, "v1", &step, &out);
        step.lr = 8;
        assert_int_equal(fold_run(&step, &r, &err), -ERANGE);
        assert_non_null(strstr(err.msg, "y.table"));
        assert_false(file_exists(out.path[0]));
        fx_out_end(&out);
        mem_free(blob);
    }
    free(end);
    fx_end(&f);
}

static void test_repeat(void **state)
{
    (void)state;
    struct fixture f;
    fx_begin(&f);
    float *end = fx_array();
    fx_normal(5, 1e-2f, end);
    char *blob = fx_path(&f, "c");
    fx_contribute(f.full, 0, end, CODEC_E3M0, 10, blob);
    struct fold_input in = {.path = blob, .weight = 10};
    struct fold_step step = fx_step(&f, &in, 1, CODEC_E3M0, CODEC_E3M0);
    struct fx_out out;
    fx_out_begin(&f, "v1", &step, &out);
    struct fold_result r = fx_fold(&step), again = fx_fold(&step);
    assert_memory_equal(&r, &again, sizeof r);
    step.momentum = 0.8;
    again = fx_fold(&step);
    assert_memory_not_equal(r.full.sha256, again.full.sha256, HASH_BYTES);
    fx_out_end(&out);
    mem_free(blob);
    free(end);
    fx_end(&f);
}

static void test_bad_step(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = {0};
    struct fold_result r;
    fx_begin(&f);
    char *blob = fx_path(&f, "c");
    fx_contribute(f.full, 0, f.theta, CODEC_E3M0, 10, blob);
    struct fold_input in = {.path = blob, .weight = 10};
    for (int i = 0; i < 6; i++) {
        struct fold_step step = fx_step(&f, &in, 1, CODEC_E3M0, CODEC_E3M0);
        struct fx_out out;
        fx_out_begin(&f, "v1", &step, &out);
        in.weight = i == 0 ? 0 : i == 1 ? NAN : 10;
        step.lr = i == 2 ? INFINITY : 0.7;
        step.ema_decay = i == 3 ? 1.5 : 0.9;
        step.n_inputs = i == 4 ? 0 : 1;
        in.origin.codec = i == 5 ? (enum codec)9 : CODEC_E3M0;
        assert_int_equal(fold_run(&step, &r, &err), -EINVAL);
        fx_out_end(&out);
    }
    mem_free(blob);
    fx_end(&f);
}

static void test_ema_decay(void **state)
{
    (void)state;
    assert_true(fold_ema_decay(0.9, 0) == 0.1);
    assert_true(fold_ema_decay(0.9, 1000) == 0.9);
    assert_true(fold_ema_decay(0.0, 5) == 0.0);
}

/* ---- the norm is kept ---- */

static void check_keep_norm(struct fixture *f, enum codec up)
{
    enum { K = 3 };
    static const double weight[K] = {5, 2, 1};
    struct fold_input in[K];
    char *blobs[K];
    float *end = fx_array();
    double parts = 0;
    struct err err = {0};
    for (uint64_t i = 0; i < K; i++) {
        char name[16];
        struct fold_norm norm;
        (void)snprintf(name, sizeof name, "k%d", (int)i);
        fx_normal(40 + i, 1e-3f, end);
        for (size_t j = 0; j < PARAMS; j++)
            end[j] = f->theta[j] - end[j];
        blobs[i] = fx_path(f, name);
        fx_contribute(f->full, 0, end, up, 8, blobs[i]);
        assert_int_equal(
            fold_check(blobs[i], &(struct fold_origin){up, 0, f->full}, MODULE, &norm, &err), 0);
        in[i] = (struct fold_input){.path = blobs[i], .weight = weight[i], .norm = norm.norm};
        parts += weight[i] / 8 * norm.norm;
    }
    struct fold_step step = fx_step(f, in, K, up, CODEC_INT8), plain;
    struct fx_out a, b;
    fx_out_begin(f, "kept", &step, &a);
    step.keep_norm = true;
    step.scale = 4;
    struct fold_result x = fx_fold(&step), y;
    assert_float_equal(x.delta_norm, parts, 1e-9 * parts);
    /* of orthogonal differences: the root of (sum w)^2 / sum w^2, not of their number */
    assert_float_equal(x.scale, sqrt(64.0 / 30.0), 0.02);
    plain = fx_step(f, in, K, up, CODEC_INT8);
    plain.scale = x.scale;
    fx_out_begin(f, "plain", &plain, &b);
    y = fx_fold(&plain);
    assert_memory_equal(x.full.sha256, y.full.sha256, HASH_BYTES);
    assert_true(fx_same_files(a.path[3], b.path[3]) && fx_same_files(a.path[4], b.path[4]));
    step.scale = 1.2; /* the most */
    assert_true(fx_fold(&step).scale == 1.2);
    step.scale = 4;
    in[1] = in[2] = in[0]; /* what points the same way is not stretched */
    x = fx_fold(&step);
    assert_float_equal(x.scale, 1, 1e-9);
    assert_float_equal(x.delta_norm, in[0].norm, 1e-9 * in[0].norm);
    fx_out_end(&a);
    fx_out_end(&b);
    for (size_t i = 0; i < K; i++)
        mem_free(blobs[i]);
    free(end);
}

static void test_keep_norm(void **state)
{
    (void)state;
    struct fixture f;
    fx_begin(&f);
    check_keep_norm(&f, CODEC_F32);
    check_keep_norm(&f, CODEC_BF16);
    check_keep_norm(&f, CODEC_INT8);
    fx_end(&f);
}

/* The squares of the mean's cells.  mem_free it. */
static double *mean_cells(struct fixture *f, const char *blob, size_t k, size_t *ret_n)
{
    struct fold_input in[FOLD_INPUTS_MAX];
    for (size_t i = 0; i < k; i++)
        in[i] = (struct fold_input){.path = blob, .weight = 1, .norm = 1};
    char *path = fx_path(f, "cells");
    struct fold_cells cells = {.fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), .at = 8};
    struct fold_step step = fx_step(f, in, k, CODEC_F32, CODEC_INT8);
    struct fx_out out;
    fx_out_begin(f, "mean", &step, &out);
    step.keep_norm = true;
    step.scale = 2;
    step.mean = &cells;
    (void)fx_fold(&step);
    const off_t end = lseek(cells.fd, 0, SEEK_END) - 8;
    double *got = mem_alloc((size_t)end);
    assert_int_equal(pread(cells.fd, got, (size_t)end, 8), end);
    *ret_n = (size_t)end / sizeof(*got);
    (void)close(cells.fd);
    fx_out_end(&out);
    mem_free(path);
    return got;
}

/* Of 256 contributions chunks are half a cell, of one they are sixteen: the cells are the same.  A
 * sum of equal ones is exact. */
static void test_mean_by_cell(void **state)
{
    (void)state;
    struct fixture f;
    size_t one, many;
    fx_begin(&f);
    float *end = fx_array();
    char *blob = fx_path(&f, "c");
    fx_normal(40, 1e-3f, end);
    fx_contribute(f.full, 0, end, CODEC_F32, 8, blob);
    double *a = mean_cells(&f, blob, 1, &one), *b = mean_cells(&f, blob, 256, &many);
    assert_int_equal(one, 5 + 17);
    assert_int_equal(many, one);
    for (size_t i = 0; i < one; i++)
        assert_true(b[i] == 65536 * a[i] && a[i] > 0);
    mem_free(a);
    mem_free(b);
    mem_free(blob);
    free(end);
    fx_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_training), cmocka_unit_test(test_equal_contributions),
        cmocka_unit_test(test_formulas),       cmocka_unit_test(test_keep_norm),
        cmocka_unit_test(test_mean_by_cell),   cmocka_unit_test(test_apply),
        cmocka_unit_test(test_disk_full),      cmocka_unit_test(test_stop),
        cmocka_unit_test(test_not_finite),     cmocka_unit_test(test_repeat),
        cmocka_unit_test(test_bad_step),       cmocka_unit_test(test_ema_decay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
