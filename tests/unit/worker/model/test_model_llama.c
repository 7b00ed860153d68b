/* A Llama: names, shapes, initial values. */
#include "tests/unit/worker/model/tables.h"

#include "common/job/job.h"
#include "kernels/rope.h"
#include "worker/model/model_index.h"

static void test_from_job(void **state)
{
    static const char text[] = "name: x\ndata:\n  path: d\n"
                               "model:\n  type: llama\n  dim: 64\n  depth: 2\n  heads: 4\n"
                               "  kv_heads: 2\n  qk_norm: true\n  context: 128\n"
                               "train:\n  batch: 8\nouter:\n  rounds: 2\n  steps: 4\n";
    struct err e = {0};
    struct job_spec job;
    struct model_spec spec;
    const struct model_facts facts = {.vocab = 257};
    OK(job_parse(text, sizeof text - 1, "job.yaml", &job, err));
    OK(model_spec_from_job(&job, &facts, &spec, err));
    assert_int_equal(spec.kind, MODEL_LLAMA);
    assert_int_equal(spec.vocab, 257);
    assert_int_equal(spec.kv_heads, 2);
    assert_int_equal(spec.mlp, job.model.ffn);
    assert_true(spec.qk_norm);
    assert_int_equal(model_tokens(&spec), 128);
    job.model.rope_scaling.rope_type = JOB_ROPE_LINEAR;
    OK(model_spec_from_job(&job, &facts, &spec, err));
    for (int i = 0; i < 8; i++)
        assert_true(rope_freq(10000, &spec.rope_scaling, i, 16) ==
                    (float)(pow(10000, -2.0 * i / 16) / 8));
    job.model.type = JOB_MODEL_EXTERNAL; /* its trainer has the model */
    assert_int_equal(model_spec_from_job(&job, &facts, &spec, &e), -ERR_CONFIG);
    job_release(&job);
}

static void test_table(void **state)
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
    assert_int_equal(q - m->tensors, model_llama_block(&spec, 0, L_Q));
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

/* Wider heads with biases, and an embedding of more rows than there are ids. */
static void test_relatives(void **state)
{
    struct job_spec job = {.model = {.type = JOB_MODEL_LLAMA,
                                     .dim = 12,
                                     .depth = 2,
                                     .heads = 3,
                                     .kv_heads = 1,
                                     .head_dim = 16,
                                     .qkv_bias = true,
                                     .ffn = 20,
                                     .vocab = 300,
                                     .context = 16,
                                     .rope_theta = 10000,
                                     .norm_eps = 1e-6}};
    struct model_facts facts = {.vocab = 257};
    struct model_spec spec;
    OK(model_spec_from_job(&job, &facts, &spec, err));
    assert_int_equal(spec.vocab, 300);
    struct model *m = make(spec);
    const struct model_tensor *q = must_find(m, "model.layers.1.self_attn.q_proj.weight");
    assert_int_equal(q - m->tensors, model_llama_block(&spec, 1, L_Q));
    assert_int_equal(q->shape[0], 48);
    assert_int_equal(q->shape[1], 12);
    assert_int_equal(q[2].offset, q->offset + q->count); /* k and v, and their biases */
    assert_int_equal(q[4].offset, q[2].offset + q[2].count);
    assert_int_equal(q[3].offset, q[1].offset + q[1].count);
    assert_int_equal(q[5].offset, q[3].offset + q[3].count);
    assert_string_equal(q[5].name, "model.layers.1.self_attn.v_proj.bias");
    assert_false(q[5].decay);
    assert_int_equal(must_find(m, "model.layers.1.self_attn.o_proj.weight")->shape[1], 48);
    assert_ptr_equal(must_find(m, "model.layers.1.self_attn.o_proj.weight"),
                     &m->tensors[model_llama_block(&spec, 1, L_O)]);
    assert_ptr_equal(must_find(m, "lm_head.weight"), &m->tensors[m->n - 1]);
    float *flat = model_flat_new(m);
    model_init(m, 3, flat);
    assert_true(flat[q[1].offset] == 0 && flat[q[0].offset] != 0);
    mem_free(flat);
    model_free(m);
    /* Qwen2.5-0.5B and Mistral-7B-v0.3 as they are published. */
    const struct {
        int dim, depth, heads, kv_heads, ffn, vocab;
        bool qwen;
        uint64_t params;
    } rows[] = {{896, 24, 14, 2, 4864, 151936, true, 494032768},
                {4096, 32, 32, 8, 14336, 32768, false, 7248023552}};
    for (int i = 0; i < 2; i++) {
        struct model_spec s = spec;
        s.dim = rows[i].dim, s.depth = rows[i].depth, s.heads = rows[i].heads;
        s.kv_heads = rows[i].kv_heads, s.mlp = rows[i].ffn, s.vocab = rows[i].vocab;
        s.head_dim = 0, s.qkv_bias = s.tied = rows[i].qwen;
        m = make(s);
        assert_true(m->params == rows[i].params);
        model_free(m);
    }
    facts.vocab = 400; /* never fewer than there are ids */
    OK(model_spec_from_job(&job, &facts, &spec, err));
    assert_int_equal(spec.vocab, 400);
}

/* Norms of queries and keys, which are vectors of a head's width, without weight decay. */
static void test_normed_heads(void **state)
{
    struct model *m = make(tiny_qwen3());
    const struct model_spec *s = &m->spec;
    for (int b = 0; b < s->depth; b++) {
        char name[MODEL_NAME_MAX];
        for (int i = 0; i < 2; i++) {
            (void)snprintf(name, sizeof name, "model.layers.%d.self_attn.%c_norm.weight", b,
                           "qk"[i]);
            const struct model_tensor *t = must_find(m, name);
            assert_ptr_equal(t, &m->tensors[model_llama_block(s, b, i ? L_K_NORM : L_Q_NORM)]);
            assert_int_equal(t->rank, 1);
            assert_int_equal(t->count, 16);
            assert_false(t->decay);
        }
        (void)snprintf(name, sizeof name, "model.layers.%d.mlp.down_proj.weight", b);
        assert_ptr_equal(must_find(m, name), &m->tensors[model_llama_block(s, b, L_DOWN)]);
    }
    assert_ptr_equal(must_find(m, "model.norm.weight"), &m->tensors[model_llama_final(s, L_NORM)]);
    assert_ptr_equal(must_find(m, "lm_head.weight"), &m->tensors[m->n - 1]);
    float *flat = model_flat_new(m);
    model_init(m, 3, flat);
    assert_true(flat[m->tensors[model_llama_block(s, 1, L_K_NORM)].offset + 15] == 1.0f);
    mem_free(flat);
    model_free(m);

    /* Qwen3-0.6B as it is published. */
    struct model_spec small = tiny_qwen3();
    small.dim = 1024, small.depth = 28, small.heads = 16, small.kv_heads = 8;
    small.head_dim = 128, small.mlp = 3072, small.vocab = 151936, small.tied = true;
    m = make(small);
    assert_true(m->params == 596049920);
    model_free(m);
}

static void test_bad_specs(void **state)
{
    BAD(tiny_qwen, qk_norm = true, "model.qkv_bias and model.qk_norm are both true");
    BAD(tiny_qwen, head_dim = 8, "model.qkv_bias needs keys whose width is a multiple of 16");
    BAD(tiny_qwen, dim = 18, "multiples of 4");
    BAD(tiny_qwen, head_dim = 132, "at most 128");
    BAD(tiny_llama, vocab = 1, "token ids");
    BAD(tiny_llama, context = 1, "context");
    BAD(tiny_llama, kv_heads = 4, "kv_heads");
    BAD(tiny_llama, dim = 18, "multiples of 4");
    BAD(tiny_llama, mlp = 22, "multiples of 4");
    BAD(tiny_llama, norm_eps = 0, "norm_eps");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_from_job),  cmocka_unit_test(test_table),
        cmocka_unit_test(test_relatives), cmocka_unit_test(test_normed_heads),
        cmocka_unit_test(test_bad_specs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
