/* The tensor table, the initial values and the files. */
#include "tests/unit/worker/tiny.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/job/job.h"
#include "common/st/st.h"
#include "worker/model/model_index.h"

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
        struct model *m = make((struct model_spec){.channels = 3,
                                                   .image = 32,
                                                   .patch = 2,
                                                   .dim = cases[i].dim,
                                                   .depth = cases[i].depth,
                                                   .heads = cases[i].heads,
                                                   .mlp = 4 * cases[i].dim,
                                                   .classes = 1000,
                                                   .cut = {.n_levels = 1}});
        assert_int_equal(m->params / 1000000, cases[i].millions);
        model_free(m);
    }
}

static void test_table(void **state)
{
    struct model_spec spec = tiny_spec();
    spec.cut = (struct model_cut){.n_levels = 2, .block_level = {0, 1, 1}, .head_level = 1};
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

/* What is one product lies together; the shared modulation is of the embedders' level, a block's
 * table of the block's. */
static void test_captioned_table(void **state)
{
    struct model_spec spec = tiny_captioned();
    spec.cut = (struct model_cut){.n_levels = 3, .block_level = {0, 1, 2}, .head_level = 2};
    struct model *m = make(spec);
    const struct {
        int tensor;
        const char *name;
        int level;
    } known[] = {
        {T_PATCH_W, "pos_embed.proj.weight", 0},
        {T_TIME2_W, "adaln_single.emb.timestep_embedder.linear_2.weight", 0},
        {X_MOD_W, "adaln_single.linear.weight", 0},
        {X_TEXT2_B, "caption_projection.linear_2.bias", 0},
        {model_block_tensor(&spec, 0, T_QKV_B), "transformer_blocks.0.attn1.to_q.bias", 0},
        {model_block_tensor(&spec, 1, T_PROJ_W), "transformer_blocks.1.attn1.to_out.0.weight", 1},
        {model_block_tensor(&spec, 2, T_FC1_W), "transformer_blocks.2.ff.net.0.proj.weight", 2},
        {model_block_tensor(&spec, 2, T_FC2_B), "transformer_blocks.2.ff.net.2.bias", 2},
        {model_caption_tensor(1, X_CROSS_PROJ_W), "transformer_blocks.1.attn2.to_out.0.weight", 1},
        {model_caption_tensor(1, X_TABLE), "transformer_blocks.1.scale_shift_table", 1},
        {model_final_tensor(&spec, T_FINAL_W), "proj_out.weight", 2},
        {model_final_table(&spec), "scale_shift_table", 2},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_string_equal(m->tensors[known[i].tensor].name, known[i].name);
        assert_int_equal(m->tensors[known[i].tensor].level, known[i].level);
    }
    for (int i = X_Q_W; i < X_V_W; i++)
        assert_int_equal(m->tensors[model_caption_tensor(1, X_Q_W) + i].offset +
                             m->tensors[model_caption_tensor(1, X_Q_W) + i].count,
                         m->tensors[model_caption_tensor(1, X_Q_W) + i + 2].offset);
    for (int i = X_CROSS_K_W; i < X_CROSS_V_W; i++)
        assert_int_equal(m->tensors[model_caption_tensor(2, X_Q_W) + i].offset +
                             m->tensors[model_caption_tensor(2, X_Q_W) + i].count,
                         m->tensors[model_caption_tensor(2, X_Q_W) + i + 2].offset);
    assert_int_equal(m->n, (size_t)model_final_table(&spec) + 1);
    assert_false(model_find(m, "scale_shift_table")->decay);
    model_free(m);
}

/* What ends a branch or the model starts at zero, so that training starts as a DiT does. */
static void test_captioned_init(void **state)
{
    struct model_spec spec = tiny_captioned();
    spec.dim = 96;
    spec.mlp = 384;
    struct model *m = make(spec);
    float *a = model_flat_new(m);
    model_init(m, 1, a);
    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        double std, most;
        moments(a + t->offset, t->count, &std, &most);
        const bool zero = strstr(t->name, ".bias") || strstr(t->name, "proj_out") ||
                          strstr(t->name, "attn2.to_out");
        double want = sqrt(2.0 / (double)(t->shape[0] + t->count / t->shape[0]));
        if (strstr(t->name, "scale_shift_table"))
            want = 1 / sqrt(96.0);
        else if (strstr(t->name, "adaln_single") || strstr(t->name, "caption_projection"))
            want = 0.02;
        if (zero ? most != 0.0 : fabs(std / want - 1.0) > 0.15)
            fail_msg("%s: std %g, expected %g", t->name, std, zero ? 0.0 : want);
    }
    mem_free(a);
    model_free(m);
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
    model_positions(&spec, 0, pos);
    const float *p = pos + 5 * 12; /* row 1, column 2 */
    for (int i = 0; i < 3; i++) {
        double w = pow(10000.0, -i / 3.0);
        assert_true(fabs((double)p[i] - sin(2 * w)) < 1e-6);
        assert_true(fabs((double)p[3 + i] - cos(2 * w)) < 1e-6);
        assert_true(fabs((double)p[6 + i] - sin(w)) < 1e-6);
        assert_true(fabs((double)p[9 + i] - cos(w)) < 1e-6);
    }
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
    struct err err = {0};
    float *flat = tiny_weights(m, 1), *back = model_flat_new(m);
    uint8_t one[HASH_BYTES], two[HASH_BYTES];
    uint64_t bytes;
    OK(model_save(m, -1, flat, path, one, &bytes, &err));
    OK(model_save(m, -1, flat, path, two, NULL, &err));
    assert_memory_equal(one, two, sizeof one);
    OK(load(m, -1, path, back, &err));
    assert_memory_equal(flat, back, m->flat * sizeof *flat);

    /* Level by level gives the same vector. */
    memset(back, 0, m->flat * sizeof *back);
    for (int level = 0; level < 3; level++) {
        OK(model_save(m, level, flat, path, NULL, NULL, &err));
        OK(load(m, level, path, back, &err));
    }
    assert_memory_equal(flat, back, m->flat * sizeof *flat);

    /* The last level's file is not the first's, nor a whole model's. */
    assert_int_equal(load(m, 0, path, back, &err), -ERR_FORMAT);
    assert_int_equal(load(m, -1, path, back, &err), -ERR_FORMAT);
    flat[model_find(m, "blocks.0.mlp.fc1.weight")->offset + 7] = NAN;
    OK(model_save(m, -1, flat, path, NULL, NULL, &err));
    assert_int_equal(load(m, -1, path, back, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "blocks.0.mlp.fc1.weight"));
    assert_int_equal(load(m, -1, "/nonexistent/x", back, &err), -ENOENT);
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
    assert_int_equal(load(small, -1, path, flat, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "blocks.3.attn.qkv.weight, which this model has not"));
    mem_free(flat);
    model_free(small);
    model_free(big);
}

/* One field of a good spec made bad; the sentence names what is wrong. */
#define BAD(base, change, word_)                                                                   \
    {                                                                                              \
        struct model_spec s = base();                                                              \
        s.change;                                                                                  \
        struct err err = {0};                                                                      \
        struct model *m = NULL;                                                                    \
        assert_int_equal(model_new(&s, &m, &err), -ERR_CONFIG);                                    \
        if (!strstr(err.msg, word_))                                                               \
            fail_msg(#change ": \"%s\" does not say %s", err.msg, word_);                          \
        assert_null(m);                                                                            \
    }

static void test_bad_specs(void **state)
{
    BAD(tiny_spec, image = 7, "image_size");
    BAD(tiny_spec, patch = 0, "patch");
    BAD(tiny_spec, dim = 15, "dim");
    BAD(tiny_spec, heads = 5, "heads");
    BAD(tiny_spec, depth = 0, "depth");
    BAD(tiny_spec, depth = 257, "depth");
    BAD(tiny_spec, mlp = 0, "MLP");
    BAD(tiny_spec, classes = 0, "classes");
    BAD(tiny_spec, image = 512, "tokens");
    BAD(tiny_spec, dim = 3 * 132, "heads");
    BAD(tiny_spec, cut.n_levels = 0, "levels");
    BAD(tiny_spec, cut.n_levels = 2, "level 1 of 2 holds nothing");
    BAD(tiny_spec, cut.block_level[1] = 1, "block 1");
    BAD(tiny_spec, cut.head_level = 1, "head");
    BAD(tiny_spec, channels = 0, "channels");
    BAD(tiny_captioned, channels = 129, "channels");
    BAD(tiny_captioned, image = 7, "the side of the latents 7");
    BAD(tiny_captioned, dim = 24, "multiple of 16");
    BAD(tiny_captioned, mlp = 32, "model.mlp_ratio");
    BAD(tiny_captioned, caption_tokens = 0, "captions of 0 tokens");
    BAD(tiny_captioned, caption = 20000, "20000 channels");
    BAD(tiny_router, classes = 0, "router");
    BAD(tiny_llama, vocab = 1, "token ids");
    BAD(tiny_llama, context = 1, "context");
    BAD(tiny_llama, kv_heads = 4, "kv_heads");
    BAD(tiny_llama, dim = 18, "multiples of 4");
    BAD(tiny_llama, mlp = 22, "multiples of 4");
    BAD(tiny_llama, norm_eps = 0, "norm_eps");
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
    struct model_facts facts = {.classes = 7, .partitions = 5};
    OK(model_spec_from_job(&job, &facts, &spec, &err));
    assert_int_equal(spec.kind, MODEL_DIT);
    assert_int_equal(spec.cut.n_levels, 1);
    assert_int_equal(spec.mlp, 256);
    assert_int_equal(spec.classes, 7);
    assert_int_equal(spec.patch, 2);
    train_options_from_job(&job, false, 0, 42, &opt);
    assert_int_equal(opt.batch, 8);
    assert_int_equal(opt.accumulate, 1);
    assert_int_equal(opt.schedule, JOB_SCHEDULE_COSINE);
    assert_int_equal(opt.precision, NET_F32);
    assert_int_equal(opt.replica, 42);
    assert_true(opt.lr == 0.5 / 64 && opt.label_dropout == 0.1 && !opt.uniform_t);
    train_options_from_job(&job, true, 3, 42, &opt);
    assert_int_equal(opt.batch, 3);
    assert_true(opt.lr == job.router.lr);
    facts.router = true;
    OK(model_spec_from_job(&job, &facts, &spec, &err));
    assert_int_equal(spec.kind, MODEL_ROUTER);
    assert_int_equal(spec.classes, 5);
    assert_int_equal(spec.dim, job.router.dim);
    assert_int_equal(model_tokens(&spec), 16 * 16 / (spec.patch * spec.patch) + 1);
    facts = (struct model_facts){.channels = 4, .side = 8, .caption = 24, .caption_tokens = 20};
    OK(model_spec_from_job(&job, &facts, &spec, &err));
    assert_true(model_captioned(&spec) && spec.caption_tokens == 20);
    assert_int_equal(spec.channels, 4);
    assert_int_equal(spec.image, 8);
    facts.router = true;
    facts.partitions = 5;
    OK(model_spec_from_job(&job, &facts, &spec, &err));
    assert_true(!model_captioned(&spec) && spec.channels == 4 && spec.image == 8);
    facts = (struct model_facts){.classes = 0};
    assert_int_equal(model_spec_from_job(&job, &facts, &spec, &err), -ERR_CONFIG);
    job_release(&job);
}

static void test_llama_from_job(void **state)
{
    static const char text[] = "name: x\ndata:\n  path: d\n"
                               "model:\n  type: llama\n  dim: 64\n  depth: 2\n  heads: 4\n"
                               "  kv_heads: 2\n  context: 128\n"
                               "train:\n  batch: 8\nouter:\n  rounds: 2\n  steps: 4\n";
    struct err err = {0};
    struct job_spec job;
    struct model_spec spec;
    const struct model_facts facts = {.vocab = 257};
    OK(job_parse(text, sizeof text - 1, "job.yaml", &job, &err));
    OK(model_spec_from_job(&job, &facts, &spec, &err));
    assert_int_equal(spec.kind, MODEL_LLAMA);
    assert_int_equal(spec.vocab, 257);
    assert_int_equal(spec.kv_heads, 2);
    assert_int_equal(spec.mlp, job.model.ffn);
    assert_int_equal(model_tokens(&spec), 128);
    job_release(&job);
}

static const struct model_tensor *must_find(const struct model *m, const char *name)
{
    const struct model_tensor *t = model_find(m, name);
    if (!t)
        fail_msg("no tensor %s", name);
    return t;
}

/* A DiT but for the token and the head. */
static void test_router_table(void **state)
{
    struct model *m = make(tiny_router());
    assert_int_equal(must_find(m, "cls_token")->shape[1], 12);
    assert_int_equal(must_find(m, "head.weight")->shape[0], 4);
    assert_int_equal(must_find(m, "head.bias")->count, 4);
    assert_null(model_find(m, "y_embedder.embedding_table.weight"));
    assert_null(model_find(m, "final_layer.linear.weight"));
    assert_non_null(model_find(m, "final_layer.adaLN_modulation.1.weight"));
    float *flat = model_flat_new(m);
    double std, most;
    model_init(m, 1, flat);
    moments(flat + must_find(m, "head.weight")->offset, 4 * 12, &std, &most);
    assert_true(std > 0.01 && std < 0.03);
    float pos[10 * 12], dit[9 * 12];
    const struct model_spec spec = tiny_spec();
    model_positions(&m->spec, 0, pos);
    model_positions(&spec, 0, dit);
    for (int i = 0; i < 12; i++)
        assert_true(pos[i] == 0.0f);
    assert_memory_equal(pos + 12, dit, sizeof dit);
    mem_free(flat);
    model_free(m);
}

static void test_llama_table(void **state)
{
    struct model_spec spec = tiny_llama();
    spec.dim = 64;
    spec.heads = 2;
    spec.mlp = 96;
    spec.cut = (struct model_cut){.n_levels = 2, .block_level = {0, 1}, .head_level = 1};
    struct model *m = make(spec);
    assert_int_equal(must_find(m, "model.embed_tokens.weight")->shape[0], spec.vocab);
    assert_int_equal(must_find(m, "model.embed_tokens.weight")->level, 0);
    assert_int_equal(must_find(m, "model.layers.1.self_attn.k_proj.weight")->shape[0], 32);
    assert_int_equal(must_find(m, "model.layers.1.self_attn.k_proj.weight")->level, 1);
    assert_int_equal(must_find(m, "model.norm.weight")->rank, 1);
    assert_false(must_find(m, "model.norm.weight")->decay);
    assert_int_equal(must_find(m, "lm_head.weight")->level, 1);
    assert_int_equal(must_find(m, "lm_head.weight") - m->tensors, model_llama_head(&spec));
    /* q, k, v are one matrix, gate and up another. */
    const struct model_tensor *q = must_find(m, "model.layers.0.self_attn.q_proj.weight");
    assert_int_equal(q - m->tensors, model_llama_block(0, L_Q));
    assert_int_equal(q[1].offset, q->offset + q->count);
    assert_int_equal(q[2].offset, q[1].offset + q[1].count);

    float *flat = model_flat_new(m);
    double std, most;
    model_init(m, 3, flat);
    moments(flat + q->offset, q->count, &std, &most);
    assert_true(fabs(std / 0.02 - 1) < 0.05);
    const struct model_tensor *down = must_find(m, "model.layers.1.mlp.down_proj.weight");
    moments(flat + down->offset, down->count, &std, &most);
    assert_true(fabs(std / 0.01 - 1) < 0.05); /* 0.02 / sqrt(2 * 2) */
    assert_true(flat[must_find(m, "model.norm.weight")->offset + 5] == 1.0f);
    mem_free(flat);
    const size_t untied = m->n;
    model_free(m);
    spec.tied = true;
    m = make(spec);
    assert_null(model_find(m, "lm_head.weight"));
    assert_int_equal(m->n, untied - 1);
    assert_int_equal(model_llama_head(&spec), L_EMBED);
    model_free(m);
}

/* A model from the files of another cut; a file too many or too few is refused. */
static void test_parts(void **state)
{
    struct model_spec spec = tiny_spec();
    spec.cut = (struct model_cut){.n_levels = 2, .block_level = {0, 1, 0}, .head_level = 1};
    struct model *cut = make(spec), *whole = make(tiny_spec());
    struct err err = {0};
    float *flat = tiny_weights(cut, 1), *back = model_flat_new(whole);
    char second[128];
    (void)snprintf(second, sizeof second, "%s.2", path);
    OK(model_save(cut, 0, flat, path, NULL, NULL, &err));
    OK(model_save(cut, 1, flat, second, NULL, NULL, &err));
    const char *parts[] = {second, path, path};
    OK(model_load(whole, -1, parts, 2, back, &err));
    assert_memory_equal(flat, back, whole->flat * sizeof *back);
    assert_int_equal(model_load(whole, -1, parts, 1, back, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "no file of the model holds x_embedder"));
    assert_int_equal(model_load(whole, -1, parts, 3, back, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "another file"));
    mem_free(flat);
    mem_free(back);
    model_free(cut);
    model_free(whole);
}

/* Writes a model's tensors with 16-bit values: word i of all is `words[i % n]`. */
static void write_foreign(const struct model *m, enum st_dtype dtype, const uint16_t *words,
                          size_t n, const char *skip, const char *extra)
{
    struct err err = {0};
    struct st_writer *w = st_writer_new();
    for (size_t i = 0; i < m->n; i++)
        if (!skip || strcmp(m->tensors[i].name, skip) != 0)
            OK(st_writer_add(w, m->tensors[i].name, dtype, m->tensors[i].rank, m->tensors[i].shape,
                             &err));
    const uint64_t one = 1;
    if (extra)
        OK(st_writer_add(w, extra, dtype, 1, &one, &err));
    OK(st_writer_open(w, path, &err));
    size_t at = 0;
    for (size_t i = 0; i < m->n; i++)
        for (uint64_t j = 0; j < m->tensors[i].count; j++, at++)
            if (!skip || strcmp(m->tensors[i].name, skip) != 0)
                OK(st_writer_write(w, &words[j % n], 2, &err));
    if (extra)
        OK(st_writer_write(w, words, 2, &err));
    OK(st_writer_commit(w, NULL, NULL, &err));
    st_writer_free(w);
}

static void test_foreign(void **state)
{
    struct model *m = make(tiny_llama());
    struct err err = {0};
    float *flat = model_flat_new(m);
    const uint16_t half[] = {0x3f80, 0xc000, 0x0000, 0x3e20};                /* 1 -2 0 0.15625 */
    const uint16_t f16[] = {0x3c00, 0xc000, 0x0000, 0x3100, 0x0001, 0x83ff}; /* and subnormals */
    const float want[] = {1.0f, -2.0f, 0.0f, 0.15625f, 0x1p-24f, -0x1.ff8p-15f};
    const struct model_tensor *t = &m->tensors[3];

    write_foreign(m, ST_BF16, half, 4, NULL, NULL);
    OK(model_load_foreign(m, path, flat, &err));
    for (uint64_t i = 0; i < t->count; i++)
        assert_true(flat[t->offset + i] == want[i % 4]);
    write_foreign(m, ST_F16, f16, 6, NULL, NULL);
    OK(model_load_foreign(m, path, flat, &err));
    for (uint64_t i = 0; i < t->count; i++)
        assert_true(flat[t->offset + i] == want[i % 6]);

    write_foreign(m, ST_BF16, half, 4, "model.norm.weight", NULL);
    assert_int_equal(model_load_foreign(m, path, flat, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "has no tensor model.norm.weight"));
    write_foreign(m, ST_BF16, half, 4, NULL, "model.layers.7.bias");
    assert_int_equal(model_load_foreign(m, path, flat, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "model.layers.7.bias"));
    struct model_spec wider = m->spec;
    wider.vocab++;
    struct model *other = make(wider);
    write_foreign(m, ST_BF16, half, 4, NULL, NULL);
    float *more = model_flat_new(other);
    assert_int_equal(model_load_foreign(other, path, more, &err), -ERR_CONFIG);
    assert_non_null(
        strstr(err.msg, "model.embed_tokens.weight is (11, 12), this model has (12, 12)"));
    const uint16_t infinite[] = {0x7f80};
    write_foreign(m, ST_BF16, infinite, 1, NULL, NULL);
    assert_int_equal(model_load_foreign(m, path, flat, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "not finite"));
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
    struct err err = {0};
    const struct model_tensor *t = model_find(wide, "x_embedder.proj.weight");
    const uint16_t half[] = {0x3f80, 0xc000, 0x0000, 0x3e20, 0x4040};
    const float want[] = {1.0f, -2.0f, 0.0f, 0.15625f, 3.0f};
    float *flat = model_flat_new(wide);
    assert_int_equal(t->shape[1], 6);
    for (uint64_t i = 0; i < t->count; i++)
        flat[t->offset + i] = NAN;
    write_foreign(narrow, ST_BF16, half, 5, NULL, NULL);
    OK(model_load_foreign(wide, path, flat, &err));
    for (uint64_t i = 0; i < t->count; i++) {
        const uint64_t out = i / 24, in = i % 24; /* 6 channels of 2 x 2 */
        assert_true(flat[t->offset + i] == (in < 12 ? want[(out * 12 + in) % 5] : 0));
    }
    t = model_find(wide, "final_layer.linear.weight");
    assert_int_equal(t->shape[0], 12); /* a velocity has no estimate */
    for (uint64_t i = 0; i < t->count; i++)
        assert_true(flat[t->offset + i] == want[i % 5]);
    write_foreign(wide, ST_BF16, half, 5, NULL, NULL);
    OK(model_load_foreign(wide, path, flat, &err));
    t = model_find(wide, "x_embedder.proj.weight");
    assert_true(flat[t->offset + 12] == want[12 % 5]);
    float *back = model_flat_new(narrow);
    assert_int_equal(model_load_foreign(narrow, path, back, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "x_embedder.proj.weight is (12, 6, 2, 2)"));
    mem_free(back);
    mem_free(flat);
    model_free(wide);
    model_free(narrow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_sizes),    cmocka_unit_test(test_table),
        cmocka_unit_test(test_init),           cmocka_unit_test(test_captioned_table),
        cmocka_unit_test(test_captioned_init), cmocka_unit_test(test_positions),
        cmocka_unit_test(test_files),          cmocka_unit_test(test_extra_tensor),
        cmocka_unit_test(test_bad_specs),      cmocka_unit_test(test_from_job),
        cmocka_unit_test(test_llama_from_job), cmocka_unit_test(test_router_table),
        cmocka_unit_test(test_llama_table),    cmocka_unit_test(test_parts),
        cmocka_unit_test(test_foreign),        cmocka_unit_test(test_foreign_without_estimate),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
