/* The tables of a job file against the enums and the structs they fill. */
#include "common/job/job_keys.h"

#include <errno.h>

#include "tests/unit/common/base/util.h"

#include "common/job/job.h"

static const struct conf_key *find(const char *section, const char *key)
{
    const struct conf_key *k = job_spec_keys;
    while (k->key && strcmp(k->key, section) != 0)
        k++;
    assert_int_equal(k->type, CONF_SECTION);
    for (k = k->sub; k->key && strcmp(k->key, key) != 0;)
        k++;
    assert_non_null(k->key);
    return k;
}

static const struct {
    const char *section, *key, *name;
    int number;
    bool last;
} cases[] = {
    {"model", "type", "dit", JOB_MODEL_DIT, false},
    {"model", "type", "llama", JOB_MODEL_LLAMA, false},
    {"model", "type", "external", JOB_MODEL_EXTERNAL, true},
    {"data", "kind", "auto", JOB_KIND_AUTO, false},
    {"data", "kind", "images", JOB_KIND_IMAGES, false},
    {"data", "kind", "texts", JOB_KIND_TEXTS, false},
    {"data", "kind", "none", JOB_KIND_NONE, true},
    {"train", "schedule", "constant", JOB_SCHEDULE_CONSTANT, false},
    {"train", "schedule", "cosine", JOB_SCHEDULE_COSINE, false},
    {"train", "schedule", "decay", JOB_SCHEDULE_DECAY, true},
    {"train", "precision", "auto", JOB_PRECISION_AUTO, false},
    {"train", "precision", "bf16", JOB_PRECISION_BF16, false},
    {"train", "precision", "f32", JOB_PRECISION_F32, true},
    {"train", "t", "logit_normal", JOB_T_LOGIT_NORMAL, false},
    {"train", "t", "uniform", JOB_T_UNIFORM, true},
    {"wire", "up", "f32", CODEC_F32, false},
    {"wire", "up", "bf16", CODEC_BF16, false},
    {"wire", "up", "int8", CODEC_INT8, false},
    {"wire", "up", "e3m0", CODEC_E3M0, true},
    {"sample", "sampler", "euler", JOB_SAMPLER_EULER, false},
    {"sample", "sampler", "heun", JOB_SAMPLER_HEUN, true},
    {"recipe", "moments", "restart", JOB_MOMENTS_RESTART, false},
    {"recipe", "moments", "travel", JOB_MOMENTS_TRAVEL, true},
    {"partition", "features", "auto", JOB_FEATURES_AUTO, false},
    {"partition", "features", "pixels", JOB_FEATURES_PIXELS, false},
    {"partition", "features", "ngrams", JOB_FEATURES_NGRAMS, false},
    {"partition", "features", "model", JOB_FEATURES_MODEL, false},
    {"partition", "features", "column", JOB_FEATURES_COLUMN, false},
    {"partition", "features", "latents", JOB_FEATURES_LATENTS, true},
    {"encoders", "run", "auto", JOB_ENCODE_AUTO, false},
    {"encoders", "run", "fly", JOB_ENCODE_FLY, false},
    {"encoders", "run", "worker", JOB_ENCODE_WORKER, false},
    {"encoders", "run", "job", JOB_ENCODE_JOB, true},
    {"partition", "method", "auto", JOB_METHOD_AUTO, false},
    {"partition", "method", "kmeans", JOB_METHOD_KMEANS, false},
    {"partition", "method", "two_level", JOB_METHOD_TWO_LEVEL, false},
    {"partition", "method", "product", JOB_METHOD_PRODUCT, false},
    {"partition", "method", "random", JOB_METHOD_RANDOM, true},
    {"sample", "strategy", "top1", JOB_STRATEGY_TOP1, false},
    {"sample", "strategy", "topk", JOB_STRATEGY_TOPK, false},
    {"sample", "strategy", "full", JOB_STRATEGY_FULL, false},
    {"sample", "strategy", "nucleus", JOB_STRATEGY_NUCLEUS, false},
    {"sample", "strategy", "threshold", JOB_STRATEGY_THRESHOLD, false},
    {"sample", "strategy", "oracle", JOB_STRATEGY_ORACLE, true},
};

/* Each choice has the number of its enum, and no table has more names than the enum. */
static void names_are_in_the_enums_order(void **state)
{
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct conf_key *k = find(cases[i].section, cases[i].key);
        int number = -1;
        OK(conf_number(k->names, cases[i].name, &number));
        assert_int_equal(number, cases[i].number);
        assert_string_equal(conf_name(k->names, number), cases[i].name);
        if (cases[i].last)
            assert_null(k->names[number + 1]);
    }
    int number = 7;
    assert_int_equal(job_strategy_parse("best", &number), -EINVAL);
    assert_int_equal(number, 7);
    assert_string_equal(job_strategy_name(JOB_STRATEGY_NUCLEUS), "nucleus");
    assert_string_equal(job_strategy_name(-1), "?");
    assert_string_equal(job_features_name(JOB_FEATURES_COLUMN), "column");
}

/* No two keys of a section have the same name or fill the same place. */
static void keys_do_not_overlap(const struct conf_key *keys)
{
    for (const struct conf_key *a = keys; a->key; a++) {
        for (const struct conf_key *b = keys; b < a; b++) {
            assert_string_not_equal(a->key, b->key);
            assert_int_not_equal(a->offset, b->offset);
        }
        assert_true(a->min <= a->max);
        assert_true((a->type == CONF_ENUM) == (a->names != NULL));
        assert_true((a->type == CONF_SECTION) == (a->sub != NULL));
        if (a->sub)
            keys_do_not_overlap(a->sub);
    }
}

static void tables_are_sound(void **state)
{
    keys_do_not_overlap(job_spec_keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_in_the_enums_order),
        cmocka_unit_test(tables_are_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
