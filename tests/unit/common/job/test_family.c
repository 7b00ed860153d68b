/* The families of models: each row is sound, and a job's model finds its own. */
#include "common/job/family.h"

#include "tests/unit/common/base/util.h"

static void rows_are_sound(void **state)
{
    int n = 0;
    for (const struct job_family *f; (f = job_family_at(n)) != NULL; n++) {
        struct job_spec spec = {.model.type = n};
        assert_ptr_equal(job_family(&spec), f);
        assert_int_equal(job_is_text(&spec), f->texts);
        assert_true(f->name && f->what && f->samples && f->drawn && f->complete);
        for (const char *const *k = f->keys; *k; k++) /* "section.key" */
            assert_non_null(strchr(*k, '.'));
        for (int other = 0; other < n; other++)
            assert_string_not_equal(job_family_at(other)->name, f->name);
    }
    assert_int_equal(n, 2);
    assert_null(job_family_at(-1));
    assert_string_equal(job_family_at(JOB_MODEL_LLAMA)->name, "llama");
    assert_true(job_family_at(JOB_MODEL_LLAMA)->texts && !job_family_at(JOB_MODEL_DIT)->texts);
}

/* What is zero in the file is set afterwards. */
static void models_are_completed(void **state)
{
    struct job_spec s;
    static const char llama[] = "name: t\ndata: {path: x}\n"
                                "model: {type: llama, dim: 96, depth: 2, heads: 4}\n"
                                "train: {batch: 1}\nouter: {rounds: 1, steps: 1}\n";
    static const char dit[] = "name: t\ndata: {path: x, image_size: 32}\n"
                              "model: {preset: DiT-S/4}\n"
                              "train: {batch: 1, lr: 2e-4}\nouter: {rounds: 1, steps: 1}\n";
    OK(job_parse(llama, strlen(llama), "f", &s, err));
    assert_int_equal(s.model.kv_heads, 4);
    assert_int_equal(s.model.ffn, 256);
    job_release(&s);
    OK(job_parse(dit, strlen(dit), "f", &s, err));
    assert_int_equal(s.model.dim, 384);
    assert_int_equal(s.model.patch, 4);
    assert_int_equal(s.router.patch, 8);
    assert_int_equal(s.router.depth, 6);
    assert_int_equal(s.router.dim, 192);
    assert_true(s.router.lr == 2e-4);
    job_release(&s);
}

static void models_are_refused(void **state)
{
    static const struct {
        const char *model, *says;
    } cases[] = {
        {"type: llama, dim: 96, depth: 2, heads: 4, kv_heads: 3",
         "does not divide model.heads (4)"},
        {"type: llama, dim: 24, depth: 2, heads: 4", "heads of width 6; a multiple of 4 is needed"},
        {"type: llama, dim: 96, depth: 2, heads: 4, ffn: 6", "model.ffn is 6; a multiple of 4"},
        {"type: llama, preset: DiT-S/2", "model.preset is DiT-S/2, which is a dit"},
        {"type: dit, dim: 96, depth: 2, heads: 5", "does not divide model.dim (96)"},
        {"type: dit, dim: 96, depth: 2, heads: 4, mlp_ratio: 0.99", "is not a whole number"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[512];
        struct job_spec s;
        snprintf(text, sizeof(text),
                 "name: t\ndata: {path: x, image_size: 32}\nmodel: {%s}\n"
                 "train: {batch: 1}\nouter: {rounds: 1, steps: 1}\n",
                 cases[i].model);
        FAILS(job_parse(text, strlen(text), "f", &s, err), cases[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_sound),
        cmocka_unit_test(models_are_completed),
        cmocka_unit_test(models_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
