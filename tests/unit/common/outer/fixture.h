/* Small modules, contributions and folds in a temporary directory, for the tests
 * of common/outer and of the executor.  Everything asserts; nothing is returned
 * that could be an error. */
#ifndef TESTS_UNIT_OUTER_FIXTURE_H
#define TESTS_UNIT_OUTER_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/st/st.h"
#include "common/base/str.h"
#include "common/outer/contribution.h"
#include "common/outer/fold_check.h"
#include "common/outer/layout.h"

#define MODULE 7

/* Odd sizes, a scalar, one longer than a chunk of the fold. */
struct shape_row {
    const char *name;
    unsigned rank;
    uint64_t shape[4];
};
static const struct shape_row shape_rows[] = {
    {"x_embedder.weight", 4, {5, 3, 2, 2}}, {"x_embedder.bias", 1, {5}}, {"scale", 0, {0}},
    {"blocks.0.weight", 2, {257, 3}},       {"blocks.0.bias", 1, {1}},   {"y.table", 2, {1024, 65}},
};
#define SHAPES (sizeof shape_rows / sizeof shape_rows[0])
#define PARAMS (60 + 5 + 1 + 771 + 1 + 66560)

struct fixture {
    char dir[64];
    char *full; /* version 0 */
    float *theta;
};

static inline char *fx_path(const struct fixture *f, const char *name)
{
    return file_join(f->dir, name);
}

/* A disk loses a bit in the middle of a file; once more, and it is back. */
static inline void fx_flip(const char *path)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    const long at = ftell(f) / 2;
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    const int c = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_equal(fputc(c ^ 1, f), c ^ 1);
    assert_int_equal(fclose(f), 0);
}

static inline void fx_normal(uint64_t seed, float scale, float *out)
{
    rng_fill_normal(seed, 99, 0, out, PARAMS, 0.0f, scale);
}

static inline float *fx_array(void)
{
    float *x = malloc(PARAMS * sizeof *x);
    assert_non_null(x);
    return x;
}

static inline void fx_write_full(const char *path, const float *x)
{
    struct err err = {0};
    struct st_writer *w = st_writer_new();
    for (size_t i = 0; i < SHAPES; i++)
        assert_int_equal(st_writer_add(w, shape_rows[i].name, ST_F32, shape_rows[i].rank,
                                       shape_rows[i].shape, &err),
                         0);
    assert_int_equal(st_writer_open(w, path, &err), 0);
    assert_int_equal(st_writer_write(w, x, PARAMS * sizeof *x, &err), 0);
    assert_int_equal(st_writer_commit(w, NULL, NULL, &err), 0);
    st_writer_free(w);
}

/* Payload of a file of one float per parameter. */
static inline void fx_read_flat(const char *path, float *x)
{
    struct err err = {0};
    struct st st = {0};
    struct buf b;
    assert_int_equal(st_open(path, &st, &err), 0);
    assert_int_equal(file_read(path, 64 << 20, &b, &err), 0);
    assert_int_equal(b.len, st.payload + PARAMS * sizeof *x);
    memcpy(x, b.data + st.payload, PARAMS * sizeof *x);
    buf_release(&b);
    st_release(&st);
}

static inline void fx_begin(struct fixture *f)
{
    (void)snprintf(f->dir, sizeof f->dir, "/tmp/skerry-outer.XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->theta = fx_array();
    fx_normal(1, 0.02f, f->theta);
    f->full = fx_path(f, "full.0");
    fx_write_full(f->full, f->theta);
}

static inline void fx_end(struct fixture *f)
{
    struct err err = {0};
    assert_int_equal(file_remove_tree(f->dir, &err), 0);
    mem_free(f->full);
    free(f->theta);
}

static inline int fx_read_array(void *arg, const struct layout *layout, size_t t, uint64_t first,
                                size_t n, float *out, struct err *err)
{
    const float *end = arg;
    (void)err;
    memcpy(out, end + layout_first(layout, t) + first, n * sizeof *out);
    return 0;
}

/* A contribution of module MODULE from `full` (version base) to the array `end`. */
static inline struct contribution_job fx_job(const char *full, uint64_t base, const float *end,
                                             enum codec codec, uint64_t samples, const char *out)
{
    return (struct contribution_job){.base_path = full,
                                     .read = fx_read_array,
                                     .read_arg = (void *)(uintptr_t)end,
                                     .codec = codec,
                                     .module_id = MODULE,
                                     .base = base,
                                     .samples = samples,
                                     .out_path = out};
}

static inline void fx_contribute(const char *full, uint64_t base, const float *end,
                                 enum codec codec, uint64_t samples, const char *out)
{
    struct err err = {0};
    struct contribution_result r;
    struct contribution_job job = fx_job(full, base, end, codec, samples, out);
    if (contribution_write(&job, &r, &err) < 0)
        fail_msg("%s", err.msg);
}

/* Output names of a fold in the fixture's directory, with a tag. */
struct fx_out {
    char *path[6]; /* full, delta, ema, target, mom, buf */
};

static inline void fx_out_begin(const struct fixture *f, const char *tag, struct fold_step *step,
                                struct fx_out *out)
{
    static const char *const names[6] = {"full", "delta", "ema", "target", "mom", "buf"};
    for (size_t i = 0; i < 6; i++)
        out->path[i] = str_printf("%s/%s.%s", f->dir, tag, names[i]);
    step->full_out = out->path[0];
    step->delta_out = out->path[1];
    step->ema_out = out->path[2];
    step->target_out = out->path[3];
    step->mom_out = out->path[4];
    step->buf_out = out->path[5];
}

static inline void fx_out_end(struct fx_out *out)
{
    for (size_t i = 0; i < 6; i++)
        mem_free(out->path[i]);
}

/* Of inputs that start from version 0. */
static inline struct fold_step fx_step(const struct fixture *f, struct fold_input *inputs, size_t n,
                                       enum codec up, enum codec down)
{
    for (size_t i = 0; i < n; i++)
        inputs[i].origin = (struct fold_origin){.codec = up, .from_full = f->full};
    return (struct fold_step){.module_id = MODULE,
                              .base = 0,
                              .full = f->full,
                              .inputs = inputs,
                              .n_inputs = n,
                              .down = down,
                              .lr = 0.7,
                              .momentum = 0.9,
                              .scale = 1,
                              .ema_decay = 0.5};
}

static inline struct fold_result fx_fold(const struct fold_step *step)
{
    struct err err = {0};
    struct fold_result r = {0};
    if (fold_run(step, &r, &err) < 0)
        fail_msg("%s", err.msg);
    return r;
}

static inline bool fx_same_files(const char *a, const char *b)
{
    uint8_t x[HASH_BYTES], y[HASH_BYTES];
    struct err err = {0};
    assert_int_equal(hash_file(a, x, NULL, &err), 0);
    assert_int_equal(hash_file(b, y, NULL, &err), 0);
    return !memcmp(x, y, sizeof x);
}

#endif
