/* A DiT and a router: names, shapes, initial values, positions. */
#include "tests/unit/worker/model/tables.h"

#include "common/job/job.h"
#include "worker/model/model_index.h"

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

/* Rows and columns of another shape count like the square's; with captions they are stretched to
 * its sides. */
static void test_positions_of_shapes(void **state)
{
    const struct model_spec specs[] = {tiny_spec(), tiny_captioned()};
    for (int captioned = 0; captioned < 2; captioned++) {
        struct model_spec spec = specs[captioned]; /* 3 x 3 patches */
        const int C = spec.dim, quarter = C / 4;
        float pos[8 * 16];
        spec.n_shapes = 1;
        spec.shapes[0] = (struct model_shape){.height = 4, .width = 8};
        model_positions(&spec, 1, pos);
        const float *p = pos + (1 * 4 + 3) * C; /* row 1, column 3 */
        const double row = captioned ? 3.0 / 2 : 1, column = captioned ? 3 * 3.0 / 4 : 3;
        for (int i = 0; i < quarter; i++) {
            const double w = pow(10000.0, -i / (double)quarter);
            assert_true(fabs((double)p[i] - sin(column * w)) < 1e-6);
            assert_true(fabs((double)p[quarter + i] - cos(column * w)) < 1e-6);
            assert_true(fabs((double)p[2 * quarter + i] - sin(row * w)) < 1e-6);
            assert_true(fabs((double)p[3 * quarter + i] - cos(row * w)) < 1e-6);
        }
    }
    /* Of large latents the unit is larger, as in diffusers. */
    struct model_spec large = tiny_captioned();
    large.image = 128;
    float *pos = mem_alloc_array(64 * 64, (size_t)large.dim * sizeof *pos);
    model_positions(&large, 0, pos);
    assert_true(fabs((double)pos[2 * large.dim] - sin(1)) < 1e-6); /* column 2 of half units */
    mem_free(pos);
}

/* Buckets become shapes, in the units that the network reads. */
static void test_shapes_from_job(void **state)
{
    static const char text[] = "name: x\n"
                               "data: {path: d, image_size: 32, buckets: [64x16, 16x32]}\n"
                               "model: {type: dit, dim: 64, depth: 2, heads: 4, mlp_ratio: 3,\n"
                               "  self_condition: 0.5}\n"
                               "train: {batch: 8}\nouter: {rounds: 2, steps: 4}\n";
    struct job_spec job;
    struct model_spec spec;
    struct model_facts facts = {.classes = 7, .partitions = 5};
    OK(job_parse(text, sizeof text - 1, "job.yaml", &job, err));
    OK(model_spec_from_job(&job, &facts, &spec, err));
    assert_true(spec.image == 32 && spec.channels == 3 && spec.n_shapes == 2);
    assert_true(spec.shapes[0].width == 64 && spec.shapes[0].height == 16);
    assert_true(spec.shapes[1].width == 16 && spec.shapes[1].height == 32);
    assert_true(spec.mlp == 192 && spec.self_condition && !model_has_upscaler(&spec));
    facts.channels = 4;
    facts.side = 8;
    OK(model_spec_from_job(&job, &facts, &spec, err));
    assert_true(spec.image == 8 && spec.shapes[0].width == 16 && spec.shapes[0].height == 4);
    facts.router = true;
    OK(model_spec_from_job(&job, &facts, &spec, err));
    assert_true(spec.n_shapes == 2 && spec.shapes[1].height == 8 && !spec.self_condition);
    job_release(&job);
}

static struct model_spec tiny_shapes(void)
{
    struct model_spec s = tiny_spec(); /* 3 x 3 patches of 2 */
    s.n_shapes = 1;
    s.shapes[0] = (struct model_shape){.height = 4, .width = 8};
    return s;
}

/* Beside an upscaler. */
static struct model_spec tiny_small_router(void)
{
    struct model_spec s = tiny_router();
    s.shrink = 2;
    return s;
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

static void test_from_job(void **state)
{
    static const char text[] = "name: x\ndata:\n  path: d\n  image_size: 16\n"
                               "model:\n  type: dit\n  dim: 64\n  depth: 2\n  heads: 4\n"
                               "train:\n  batch: 8\n"
                               "outer:\n  rounds: 2\n  steps: 4\n";
    struct err e = {0};
    struct job_spec job;
    struct model_spec spec;
    OK(job_parse(text, sizeof text - 1, "job.yaml", &job, err));
    struct model_facts facts = {.classes = 7, .partitions = 5};
    OK(model_spec_from_job(&job, &facts, &spec, err));
    assert_int_equal(spec.kind, MODEL_DIT);
    assert_int_equal(spec.cut.n_levels, 1);
    assert_int_equal(spec.mlp, 256);
    assert_int_equal(spec.classes, 7);
    assert_int_equal(spec.patch, 2);
    facts.router = true;
    OK(model_spec_from_job(&job, &facts, &spec, err));
    assert_int_equal(spec.kind, MODEL_ROUTER);
    assert_int_equal(spec.classes, 5);
    assert_int_equal(spec.dim, job.router.dim);
    assert_int_equal(model_tokens(&spec), 16 * 16 / (spec.patch * spec.patch) + 1);
    facts = (struct model_facts){.channels = 4, .side = 8, .caption = 24, .caption_tokens = 20};
    OK(model_spec_from_job(&job, &facts, &spec, err));
    assert_true(model_captioned(&spec) && spec.caption_tokens == 20);
    assert_int_equal(spec.channels, 4);
    assert_int_equal(spec.image, 8);
    facts.router = true;
    facts.partitions = 5;
    OK(model_spec_from_job(&job, &facts, &spec, err));
    assert_true(!model_captioned(&spec) && spec.channels == 4 && spec.image == 8);
    facts = (struct model_facts){.classes = 0};
    assert_int_equal(model_spec_from_job(&job, &facts, &spec, &e), -ERR_CONFIG);
    job_release(&job);
}

/* The router of experts with an upscaler reads what their base reads, of whole images. */
static void test_router_of_two_chains(void **state)
{
    (void)state;
    static const char text[] = "name: x\ndata: {path: d, image_size: 32}\n"
                               "model: {patch: 1, dim: 64, depth: 2, heads: 4}\n"
                               "upscaler: {low_side: 8, patch: 4}\n"
                               "recipe: {name: ddm, experts: 2}\ntrain: {batch: 8}\n"
                               "outer: {rounds: 2, steps: 4}\n";
    const struct model_facts facts = {.classes = 7, .partitions = 2, .router = true};
    struct job_spec job;
    struct model_spec spec;
    OK(job_parse(text, sizeof text - 1, "job.yaml", &job, err));
    OK(model_spec_from_job(&job, &facts, &spec, err));
    assert_int_equal(spec.image, 8);
    assert_int_equal(spec.patch, 2);
    assert_false(model_has_upscaler(&spec));
    assert_int_equal(model_drawn_side(&spec), 32);
    job_release(&job);
}

static void test_bad_specs(void **state)
{
    BAD(tiny_spec, image = 7, "image_size");
    BAD(tiny_spec, patch = 0, "patch");
    BAD(tiny_spec, dim = 15, "dim");
    BAD(tiny_spec, classes = 0, "classes");
    BAD(tiny_spec, image = 512, "tokens");
    BAD(tiny_spec, channels = 0, "channels");
    BAD(tiny_captioned, channels = 129, "channels");
    BAD(tiny_captioned, image = 7, "the side of the latents 7");
    BAD(tiny_captioned, dim = 24, "multiple of 16");
    BAD(tiny_captioned, mlp = 32, "model.mlp_ratio");
    BAD(tiny_captioned, caption_tokens = 0, "captions of 0 tokens");
    BAD(tiny_captioned, caption = 20000, "20000 channels");
    BAD(tiny_router, classes = 0, "router");
    BAD(tiny_small_router, channels = 4, "images of pixels, of one shape");
    BAD(tiny_shapes, shapes[0].height = 5, "images of 8 x 5 in patches of 2");
    BAD(tiny_shapes, shapes[0].width = 9, "images of 9 x 4 in patches of 2");
    BAD(tiny_shapes, shapes[0].width = 10, "no more patches than 6 x 6 has");
    BAD(tiny_shapes, shapes[0].height = 0, "images of 8 x 0");
    BAD(tiny_shapes, shapes[0].width = 0, "images of 0 x 4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_sizes),
        cmocka_unit_test(test_captioned_table),
        cmocka_unit_test(test_captioned_init),
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_router_table),
        cmocka_unit_test(test_from_job),
        cmocka_unit_test(test_bad_specs),
        cmocka_unit_test(test_router_of_two_chains),
        cmocka_unit_test(test_shapes_from_job),
        cmocka_unit_test(test_positions_of_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
