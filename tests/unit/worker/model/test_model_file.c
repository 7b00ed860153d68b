/* A model's files: its own, level by level, and those of other programs. */
#include "tests/unit/worker/tiny.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/st/st.h"

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
    struct model *m = NULL;
    OK(model_new(&spec, &m, err));
    return m;
}

static int load(const struct model *m, int level, const char *file, float *flat, struct err *err)
{
    return model_load(m, level, &file, 1, flat, err);
}

static void test_files(void **state)
{
    struct model_spec spec = tiny_spec();
    spec.cut = (struct model_cut){
        .n_levels = 3, .block_level = {2, 0, 2}, .embed_level = 1, .head_level = 0};
    struct model *m = make(spec);
    struct err e = {0};
    float *flat = tiny_weights(m, 1), *back = model_flat_new(m);
    uint8_t one[HASH_BYTES], two[HASH_BYTES];
    uint64_t bytes;
    OK(model_save(m, -1, flat, path, one, &bytes, err));
    OK(model_save(m, -1, flat, path, two, NULL, err));
    assert_memory_equal(one, two, sizeof one);
    OK(load(m, -1, path, back, err));
    assert_memory_equal(flat, back, m->flat * sizeof *flat);

    /* Level by level gives the same vector. */
    memset(back, 0, m->flat * sizeof *back);
    for (int level = 0; level < 3; level++) {
        OK(model_save(m, level, flat, path, NULL, NULL, err));
        OK(load(m, level, path, back, err));
    }
    assert_memory_equal(flat, back, m->flat * sizeof *flat);

    /* The last level's file is not the first's, nor a whole model's. */
    assert_int_equal(load(m, 0, path, back, &e), -ERR_FORMAT);
    assert_int_equal(load(m, -1, path, back, &e), -ERR_FORMAT);
    flat[model_find(m, "blocks.0.mlp.fc1.weight")->offset + 7] = NAN;
    OK(model_save(m, -1, flat, path, NULL, NULL, err));
    assert_int_equal(load(m, -1, path, back, &e), -ERR_FORMAT);
    assert_non_null(strstr(e.msg, "blocks.0.mlp.fc1.weight"));
    assert_int_equal(load(m, -1, "/nonexistent/x", back, &e), -ENOENT);
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
    struct err e = {0};
    float *flat = tiny_weights(big, 1);
    OK(model_save(big, -1, flat, path, NULL, NULL, err));
    assert_int_equal(load(small, -1, path, flat, &e), -ERR_FORMAT);
    assert_non_null(strstr(e.msg, "blocks.3.attn.qkv.weight, which this model has not"));
    mem_free(flat);
    model_free(small);
    model_free(big);
}

/* A model from the files of another cut; a file too many or too few is refused. */
static void test_parts(void **state)
{
    struct model_spec spec = tiny_spec();
    spec.cut = (struct model_cut){.n_levels = 2, .block_level = {0, 1, 0}, .head_level = 1};
    struct model *cut = make(spec), *whole = make(tiny_spec());
    struct err e = {0};
    float *flat = tiny_weights(cut, 1), *back = model_flat_new(whole);
    char second[128];
    (void)snprintf(second, sizeof second, "%s.2", path);
    OK(model_save(cut, 0, flat, path, NULL, NULL, err));
    OK(model_save(cut, 1, flat, second, NULL, NULL, err));
    const char *parts[] = {second, path, path};
    OK(model_load(whole, -1, parts, 2, back, err));
    assert_memory_equal(flat, back, whole->flat * sizeof *back);
    assert_int_equal(model_load(whole, -1, parts, 1, back, &e), -ERR_FORMAT);
    assert_non_null(strstr(e.msg, "no file of the model holds x_embedder"));
    assert_int_equal(model_load(whole, -1, parts, 3, back, &e), -ERR_FORMAT);
    assert_non_null(strstr(e.msg, "another file"));
    mem_free(flat);
    mem_free(back);
    model_free(cut);
    model_free(whole);
}

/* Writes a model's tensors with 16-bit values: word i of all is `words[i % n]`. */
static void write_foreign(const struct model *m, enum st_dtype dtype, const uint16_t *words,
                          size_t n, const char *skip, const char *extra)
{
    struct st_writer *w = st_writer_new();
    for (size_t i = 0; i < m->n; i++)
        if (!skip || strcmp(m->tensors[i].name, skip) != 0)
            OK(st_writer_add(w, m->tensors[i].name, dtype, m->tensors[i].rank, m->tensors[i].shape,
                             err));
    const uint64_t one = 1;
    if (extra)
        OK(st_writer_add(w, extra, dtype, 1, &one, err));
    OK(st_writer_open(w, path, err));
    size_t at = 0;
    for (size_t i = 0; i < m->n; i++)
        for (uint64_t j = 0; j < m->tensors[i].count; j++, at++)
            if (!skip || strcmp(m->tensors[i].name, skip) != 0)
                OK(st_writer_write(w, &words[j % n], 2, err));
    if (extra)
        OK(st_writer_write(w, words, 2, err));
    OK(st_writer_commit(w, NULL, NULL, err));
    st_writer_free(w);
}

static void test_foreign(void **state)
{
    struct model *m = make(tiny_llama());
    struct err e = {0};
    float *flat = model_flat_new(m);
    const uint16_t half[] = {0x3f80, 0xc000, 0x0000, 0x3e20};                /* 1 -2 0 0.15625 */
    const uint16_t f16[] = {0x3c00, 0xc000, 0x0000, 0x3100, 0x0001, 0x83ff}; /* and subnormals */
    const float want[] = {1.0f, -2.0f, 0.0f, 0.15625f, 0x1p-24f, -0x1.ff8p-15f};
    const struct model_tensor *t = &m->tensors[3];

    write_foreign(m, ST_BF16, half, 4, NULL, NULL);
    OK(model_load_foreign(m, path, flat, err));
    for (uint64_t i = 0; i < t->count; i++)
        assert_true(flat[t->offset + i] == want[i % 4]);
    write_foreign(m, ST_F16, f16, 6, NULL, NULL);
    OK(model_load_foreign(m, path, flat, err));
    for (uint64_t i = 0; i < t->count; i++)
        assert_true(flat[t->offset + i] == want[i % 6]);

    write_foreign(m, ST_BF16, half, 4, "model.norm.weight", NULL);
    assert_int_equal(model_load_foreign(m, path, flat, &e), -ERR_CONFIG);
    assert_non_null(strstr(e.msg, "has no tensor model.norm.weight"));
    write_foreign(m, ST_BF16, half, 4, NULL, "model.layers.7.bias");
    assert_int_equal(model_load_foreign(m, path, flat, &e), -ERR_CONFIG);
    assert_non_null(strstr(e.msg, "model.layers.7.bias"));
    write_foreign(m, ST_BF16, half, 4, NULL, "model.layers.0.self_attn.rotary_emb.inv_freq");
    OK(model_load_foreign(m, path, flat, err));
    struct model_spec tied = m->spec, wider = m->spec;
    tied.tied = true;
    struct model *shared = make(tied);
    write_foreign(m, ST_BF16, half, 4, NULL, NULL); /* with its head, which is not read */
    OK(model_load_foreign(shared, path, flat, err));
    model_free(shared);
    wider.vocab++;
    struct model *other = make(wider);
    write_foreign(m, ST_BF16, half, 4, NULL, NULL);
    float *more = model_flat_new(other);
    assert_int_equal(model_load_foreign(other, path, more, &e), -ERR_CONFIG);
    assert_non_null(
        strstr(e.msg, "model.embed_tokens.weight is (11, 12), this model has (12, 12)"));
    const uint16_t infinite[] = {0x7f80};
    write_foreign(m, ST_BF16, infinite, 1, NULL, NULL);
    assert_int_equal(model_load_foreign(m, path, flat, &e), -ERR_CONFIG);
    assert_non_null(strstr(e.msg, "not finite"));
    mem_free(more);
    mem_free(flat);
    model_free(other);
    model_free(m);
}

/* Weights of a model that reads no estimate: what reads one begins at 0. */
static void test_foreign_without_estimate(void **state)
{
    struct model *narrow = make(tiny_spec());
    struct model_spec spec = tiny_spec();
    spec.self_condition = true;
    struct model *wide = make(spec);
    struct err e = {0};
    const struct model_tensor *t = model_find(wide, "x_embedder.proj.weight");
    const uint16_t half[] = {0x3f80, 0xc000, 0x0000, 0x3e20, 0x4040};
    const float want[] = {1.0f, -2.0f, 0.0f, 0.15625f, 3.0f};
    float *flat = model_flat_new(wide);
    assert_int_equal(t->shape[1], 6);
    for (uint64_t i = 0; i < t->count; i++)
        flat[t->offset + i] = NAN;
    write_foreign(narrow, ST_BF16, half, 5, NULL, NULL);
    OK(model_load_foreign(wide, path, flat, err));
    for (uint64_t i = 0; i < t->count; i++) {
        const uint64_t out = i / 24, in = i % 24; /* 6 channels of 2 x 2 */
        assert_true(flat[t->offset + i] == (in < 12 ? want[(out * 12 + in) % 5] : 0));
    }
    t = model_find(wide, "final_layer.linear.weight");
    assert_int_equal(t->shape[0], 12); /* a velocity has no estimate */
    for (uint64_t i = 0; i < t->count; i++)
        assert_true(flat[t->offset + i] == want[i % 5]);
    write_foreign(wide, ST_BF16, half, 5, NULL, NULL);
    OK(model_load_foreign(wide, path, flat, err));
    t = model_find(wide, "x_embedder.proj.weight");
    assert_true(flat[t->offset + 12] == want[12 % 5]);
    float *back = model_flat_new(narrow);
    assert_int_equal(model_load_foreign(narrow, path, back, &e), -ERR_CONFIG);
    assert_non_null(strstr(e.msg, "x_embedder.proj.weight is (12, 6, 2, 2)"));
    mem_free(back);
    mem_free(flat);
    model_free(wide);
    model_free(narrow);
}

/* ---- released models of captions ---- */

enum { WIDE = 2 }; /* outputs for each of ours: a velocity and its variance */

static bool is_output(const struct model_tensor *t)
{
    return strncmp(t->name, "proj_out.", 9) == 0;
}

/* Writes a model whose outputs are `times` as many; value j of each tensor is j. */
static void write_released(const struct model *m, uint64_t times, const char *extra)
{
    struct st_writer *w = st_writer_new();
    const uint64_t shape[] = {7, 4};
    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        uint64_t theirs[4];
        memcpy(theirs, t->shape, sizeof theirs);
        theirs[0] *= is_output(t) ? times : 1;
        OK(st_writer_add(w, t->name, ST_F32, t->rank, theirs, err));
    }
    if (extra)
        OK(st_writer_add(w, extra, ST_F32, 2, shape, err));
    OK(st_writer_open(w, path, err));
    for (size_t i = 0; i < m->n; i++) {
        const uint64_t n = m->tensors[i].count * (is_output(&m->tensors[i]) ? times : 1);
        for (uint64_t j = 0; j < n; j++) {
            const float x = (float)j;
            OK(st_writer_write(w, &x, sizeof x, err));
        }
    }
    const float zeros[28] = {0};
    if (extra)
        OK(st_writer_write(w, zeros, sizeof zeros, err));
    OK(st_writer_commit(w, NULL, NULL, err));
    st_writer_free(w);
}

/* Of each pixel's outputs the first half is the velocity, the second its variance. */
static void test_variance(void **state)
{
    struct model *m = make(tiny_captioned()), *plain = make(tiny_spec());
    struct err e = {0};
    float *flat = model_flat_new(m), *other = model_flat_new(plain);
    const uint64_t channels = (uint64_t)m->spec.channels;
    write_released(m, WIDE, NULL);
    OK(model_load_foreign(m, path, flat, err));
    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        const uint64_t row = t->count / t->shape[0];
        for (uint64_t j = 0; j < t->count; j++) {
            const uint64_t pixel = j / row / channels;
            const uint64_t theirs = is_output(t) ? j + pixel * channels * row : j;
            assert_true(flat[t->offset + j] == (float)theirs);
        }
    }
    write_released(m, 1, NULL);
    OK(model_load_foreign(m, path, flat, err));
    const struct model_tensor *out = model_find(m, "proj_out.weight");
    assert_true(flat[out->offset + out->count - 1] == (float)(out->count - 1));
    write_released(m, 3, NULL);
    assert_int_equal(model_load_foreign(m, path, flat, &e), -ERR_CONFIG);
    assert_non_null(strstr(e.msg, "proj_out.weight is (48, 16), this model has (16, 16)"));
    /* A model of classes has none. */
    write_released(plain, 1, "caption_projection.y_embedding");
    assert_int_equal(model_load_foreign(plain, path, other, &e), -ERR_CONFIG);
    assert_non_null(strstr(e.msg, "holds the tensor caption_projection.y_embedding"));
    mem_free(other);
    mem_free(flat);
    model_free(plain);
    model_free(m);
}

static void test_passed_over(void **state)
{
    static const char *const names[] = {"caption_projection.y_embedding", "pos_embed.pos_embed",
                                        "pos_embed.pos_embed.bias"};
    struct model *m = make(tiny_captioned());
    float *flat = model_flat_new(m);
    for (int i = 0; i < 3; i++) {
        struct err err = {0};
        write_released(m, 1, names[i]);
        assert_int_equal(model_load_foreign(m, path, flat, &err), i < 2 ? 0 : -ERR_CONFIG);
    }
    mem_free(flat);
    model_free(m);
}

/* A file that is cut or no file of weights at all leaves a sentence, whoever reads it. */
static void test_no_weights(void **state)
{
    struct model *m = make(tiny_llama());
    struct err e = {0};
    float *flat = tiny_weights(m, 1);
    uint64_t bytes = 0, size = 0;
    OK(model_save(m, -1, flat, path, NULL, &bytes, err));
    OK(file_size(path, &size, err));
    assert_int_equal(bytes, size);
    assert_int_equal(truncate(path, (off_t)size - 1), 0);
    assert_int_equal(load(m, -1, path, flat, &e), -ERR_FORMAT);
    assert_non_null(strstr(e.msg, "loading model weights: "));
    assert_true(model_load_foreign(m, path, flat, &e) < 0);
    assert_int_equal(model_load_foreign(m, "/nonexistent/x", flat, &e), -ENOENT);
    assert_non_null(strstr(e.msg, "/nonexistent/x"));
    assert_true(model_save(m, -1, flat, "/nonexistent/x", NULL, NULL, &e) < 0);
    mem_free(flat);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),       cmocka_unit_test(test_extra_tensor),
        cmocka_unit_test(test_parts),       cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_no_weights),  cmocka_unit_test(test_foreign_without_estimate),
        cmocka_unit_test(test_passed_over), cmocka_unit_test(test_variance),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
