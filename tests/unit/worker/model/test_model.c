/* The tensor table of any family, and what none of them can be. */
#include "tests/unit/worker/model/tables.h"

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

static void test_bad_specs(void **state)
{
    BAD(tiny_spec, heads = 5, "heads");
    BAD(tiny_spec, depth = 0, "depth");
    BAD(tiny_spec, depth = 257, "depth");
    BAD(tiny_spec, mlp = 0, "MLP");
    BAD(tiny_spec, dim = 3 * 132, "heads");
    BAD(tiny_spec, cut.n_levels = 0, "levels");
    BAD(tiny_spec, cut.n_levels = 2, "level 1 of 2 holds nothing");
    BAD(tiny_spec, cut.block_level[1] = 1, "block 1");
    BAD(tiny_spec, cut.head_level = 1, "head");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_bad_specs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
