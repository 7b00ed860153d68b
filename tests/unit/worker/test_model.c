/* The tensor table, the initial values and the files. */
#include "tests/unit/worker/tiny.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/job.h"
#include "common/base/st.h"

static char dir[64], path[96];

static int setup(void **state)
{
    (void)snprintf(dir, sizeof dir, "/tmp/skerry-test-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
    return 0;
}

static int teardown(void **state)
{
    return file_remove_tree(dir, NULL);
}

static struct model *make(struct model_spec spec)
{
    struct err err = {0};
    struct model *m = NULL;
    OK(model_new(&spec, &m, &err));
    return m;
}

/* DiT-XL/2 and DiT-S/2 of the paper, on 32x32 inputs of 3 channels, 1000 classes. */
static void test_known_sizes(void **state)
{
    const struct {
        int dim, depth, heads;
        uint64_t millions;
    } cases[] = {{1152, 28, 16, 674}, {384, 12, 6, 32}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model *m = make((struct model_spec){.image = 32,
                                                   .patch = 2,
                                                   .dim = cases[i].dim,
                                                   .depth = cases[i].depth,
                                                   .heads = cases[i].heads,
                                                   .mlp = 4 * cases[i].dim,
                                                   .classes = 1000,
                                                   .levels = 1});
        assert_int_equal(m->params / 1000000, cases[i].millions);
        model_free(m);
    }
}

static void test_table(void **state)
{
    struct model_spec spec = tiny_spec();
    spec.levels = 2;
    struct model *m = make(spec);
    uint64_t at = 0, params = 0;

    /* In order of offset: no overlap, aligned, decayed ones first. */
    for (size_t done = 0; done < m->n; done++) {
        const struct model_tensor *next = NULL;
        for (size_t i = 0; i < m->n; i++) {
            const struct model_tensor *t = &m->tensors[i];
            if (t->offset >= at && (!next || t->offset < next->offset))
                next = t;
        }
        assert_non_null(next);
        assert_int_equal(next->offset % 16, 0);
        assert_true(next->offset - at < 16);
        assert_true(next->decay == (next->offset < m->decayed));
        at = next->offset + next->count;
        params += next->count;
    }
    assert_true(m->flat - at < 16);
    assert_int_equal(params, m->params);

    assert_int_equal(model_find(m, "y_embedder.embedding_table.weight")->shape[0], 4);
    assert_int_equal(model_find(m, "blocks.0.attn.qkv.weight")->level, 0);
    assert_int_equal(model_find(m, "blocks.2.attn.qkv.weight")->level, 1);
    assert_int_equal(model_find(m, "final_layer.linear.bias")->level, 1);
    assert_int_equal(model_find(m, "x_embedder.proj.weight")->level, 0);
    assert_int_equal(model_find(m, "x_embedder.proj.weight")->rank, 4);
    assert_null(model_find(m, "blocks.3.attn.qkv.weight"));
    assert_false(model_find(m, "y_embedder.embedding_table.weight")->decay);
    model_free(m);
}

static void moments(const float *x, uint64_t n, double *ret_std, double *ret_max)
{
    double sum = 0, sq = 0, most = 0;
    for (uint64_t i = 0; i < n; i++) {
        sum += (double)x[i];
        sq += (double)x[i] * (double)x[i];
        most = fmax(most, fabs((double)x[i]));
    }
    *ret_std = sqrt(sq / (double)n - (sum / (double)n) * (sum / (double)n));
    *ret_max = most;
}

static void test_init(void **state)
{
    struct model_spec spec = tiny_spec();
    spec.dim = 96;
    spec.mlp = 384;
    struct model *m = make(spec);
    float *a = model_flat_new(m), *b = model_flat_new(m);
    model_init(m, 1, a);
    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        double std, most;
        moments(a + t->offset, t->count, &std, &most);
        bool zero =
            strstr(t->name, "adaLN") || strstr(t->name, "final_layer") || strstr(t->name, ".bias");
        double bound = sqrt(6.0 / (double)(t->shape[0] + t->count / t->shape[0]));
        double want = strstr(t->name, "t_embedder") || strstr(t->name, "y_embedder")
                          ? 0.02
                          : bound / sqrt(3.0);
        if (zero ? most != 0.0 : fabs(std / want - 1.0) > 0.1)
            fail_msg("%s: std %g, expected %g", t->name, std, zero ? 0.0 : want);
    }
    model_init(m, 1, b);
    assert_memory_equal(a, b, m->flat * sizeof *a);
    model_init(m, 2, b);
    assert_memory_not_equal(a, b, m->flat * sizeof *a);
    mem_free(a);
    mem_free(b);
    model_free(m);
}

static void test_positions(void **state)
{
    struct model_spec spec = tiny_spec(); /* 3x3 tokens, dim 12 */
    float pos[9 * 12];
    model_positions(&spec, pos);
    const float *p = pos + 5 * 12; /* row 1, column 2 */
    for (int i = 0; i < 3; i++) {
        double w = pow(10000.0, -i / 3.0);
        assert_true(fabs((double)p[i] - sin(2 * w)) < 1e-6);
        assert_true(fabs((double)p[3 + i] - cos(2 * w)) < 1e-6);
        assert_true(fabs((double)p[6 + i] - sin(w)) < 1e-6);
        assert_true(fabs((double)p[9 + i] - cos(w)) < 1e-6);
    }
}

static void test_files(void **state)
{
    struct model_spec spec = tiny_spec();
    spec.levels = 3;
    struct model *m = make(spec);
    struct err err = {0};
    float *flat = tiny_weights(m, 1), *back = model_flat_new(m);
    uint8_t one[HASH_BYTES], two[HASH_BYTES];
    uint64_t bytes;
    OK(model_save(m, -1, flat, path, one, &bytes, &err));
    OK(model_save(m, -1, flat, path, two, NULL, &err));
    assert_memory_equal(one, two, sizeof one);
    OK(model_load(m, -1, path, back, &err));
    assert_memory_equal(flat, back, m->flat * sizeof *flat);

    /* Level by level gives the same vector. */
    memset(back, 0, m->flat * sizeof *back);
    for (int level = 0; level < 3; level++) {
        OK(model_save(m, level, flat, path, NULL, NULL, &err));
        OK(model_load(m, level, path, back, &err));
    }
    assert_memory_equal(flat, back, m->flat * sizeof *flat);

    /* The last level's file is not the first's, nor a whole model's. */
    assert_int_equal(model_load(m, 0, path, back, &err), -ERR_FORMAT);
    assert_int_equal(model_load(m, -1, path, back, &err), -ERR_FORMAT);
    flat[model_find(m, "blocks.0.mlp.fc1.weight")->offset + 7] = NAN;
    OK(model_save(m, -1, flat, path, NULL, NULL, &err));
    assert_int_equal(model_load(m, -1, path, back, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "blocks.0.mlp.fc1.weight"));
    assert_int_equal(model_load(m, -1, "/nonexistent/x", back, &err), -ENOENT);
    mem_free(flat);
    mem_free(back);
    model_free(m);
}

/* A file with more than the model: refused, not silently ignored. */
static void test_extra_tensor(void **state)
{
    struct model *small = make(tiny_spec());
    struct model_spec spec = tiny_spec();
    spec.depth = 4;
    struct model *big = make(spec);
    struct err err = {0};
    float *flat = tiny_weights(big, 1);
    OK(model_save(big, -1, flat, path, NULL, NULL, &err));
    assert_int_equal(model_load(small, -1, path, flat, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "another model"));
    mem_free(flat);
    model_free(small);
    model_free(big);
}

static void test_bad_specs(void **state)
{
    const struct {
        struct model_spec s;
        const char *word;
    } cases[] = {
        {{7, 2, 12, 3, 3, 28, 3, 1}, "image_size"}, {{6, 0, 12, 3, 3, 28, 3, 1}, "patch"},
        {{6, 2, 14, 3, 2, 28, 3, 1}, "dim"},        {{6, 2, 12, 3, 5, 28, 3, 1}, "heads"},
        {{6, 2, 12, 0, 3, 28, 3, 1}, "depth"},      {{6, 2, 12, 3, 3, 0, 3, 1}, "MLP"},
        {{6, 2, 12, 3, 3, 28, 0, 1}, "classes"},    {{6, 2, 12, 3, 3, 28, 3, 4}, "levels"},
        {{512, 2, 12, 3, 3, 28, 3, 1}, "tokens"},   {{6, 2, 264, 3, 2, 28, 3, 1}, "heads"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        struct model *m = NULL;
        assert_int_equal(model_new(&cases[i].s, &m, &err), -ERR_CONFIG);
        if (!strstr(err.msg, cases[i].word))
            fail_msg("case %zu: \"%s\" does not say %s", i, err.msg, cases[i].word);
        assert_null(m);
    }
}

static void test_from_job(void **state)
{
    static const char text[] = "name: x\ndata:\n  path: d\n  image_size: 16\n"
                               "model:\n  type: dit\n  dim: 64\n  depth: 2\n  heads: 4\n"
                               "train:\n  batch: 8\n  schedule: cosine\n  precision: f32\n"
                               "outer:\n  rounds: 2\n  steps: 4\n";
    struct err err = {0};
    struct job_spec job;
    struct model_spec spec;
    struct train_options opt;
    OK(job_parse(text, sizeof text - 1, "job.yaml", &job, &err));
    OK(model_spec_from_job(&job, 7, 2, &spec, &err));
    assert_int_equal(spec.mlp, 256);
    assert_int_equal(spec.classes, 7);
    assert_int_equal(spec.patch, 2);
    train_options_from_job(&job, 42, &opt);
    assert_int_equal(opt.batch, 8);
    assert_int_equal(opt.accumulate, 1);
    assert_int_equal(opt.schedule, TRAIN_COSINE);
    assert_int_equal(opt.precision, DIT_F32);
    assert_int_equal(opt.replica, 42);
    assert_true(opt.lr == 1e-4 && opt.label_dropout == 0.1 && !opt.uniform_t);
    assert_int_equal(model_spec_from_job(&job, 0, 1, &spec, &err), -ERR_CONFIG);
    job_release(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_sizes), cmocka_unit_test(test_table),
        cmocka_unit_test(test_init),        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_files),       cmocka_unit_test(test_extra_tensor),
        cmocka_unit_test(test_bad_specs),   cmocka_unit_test(test_from_job),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
