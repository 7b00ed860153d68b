/* The rows of model families. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/err.h"
#include "common/job/family.h"

static const char images_job[] = "name: a\n"
                                 "data: {path: x, image_size: 32}\n"
                                 "model: {dim: 16, depth: 1, heads: 2}\n"
                                 "train: {batch: 4}\n"
                                 "outer: {rounds: 1, steps: 2}\n";
static const char texts_job[] = "name: a\n"
                                "data: {path: x}\n"
                                "model: {type: llama, dim: 16, depth: 1, heads: 2, context: 24}\n"
                                "train: {batch: 4}\n"
                                "outer: {rounds: 1, steps: 2}\n";

static struct job_spec parse(const char *text)
{
    struct err err = {0};
    struct job_spec s;
    if (job_parse(text, strlen(text), "job", &s, &err) < 0)
        fail_msg("%s", err.msg);
    return s;
}

/* What the others ask a family. */
static void test_rows(void **state)
{
    struct job_spec images = parse(images_job), texts = parse(texts_job);
    (void)state;
    assert_string_equal(job_family(&images)->name, "dit");
    assert_false(job_is_text(&images));
    assert_int_equal(job_tokens(&images), 16 * 16);
    assert_true(job_family(&images)->mixes);
    assert_false(job_family(&images)->chunks);
    assert_int_equal(job_family(&images)->features, JOB_FEATURES_PIXELS);

    assert_string_equal(job_family(&texts)->name, "llama");
    assert_true(job_is_text(&texts));
    assert_int_equal(job_tokens(&texts), 24);
    assert_false(job_family(&texts)->mixes);
    assert_true(job_family(&texts)->chunks);
    assert_int_equal(job_family(&texts)->features, JOB_FEATURES_NGRAMS);
    job_release(&images);
    job_release(&texts);
}

/* Every row is full, and no key is of two families. */
static void test_complete(void **state)
{
    const struct job_family *f, *g;
    int n = 0;
    (void)state;
    for (; (f = job_family_at(n)) != NULL; n++) {
        assert_true(f->name && f->what && f->samples && f->drawn && f->tokens && f->complete);
        for (int other = 0; (g = job_family_at(other)) != NULL; other++)
            for (size_t i = 0; f->keys[i]; i++)
                for (size_t k = 0; g != f && g->keys[k]; k++)
                    assert_string_not_equal(f->keys[i], g->keys[k]);
    }
    assert_int_equal(n, 2);
    assert_null(job_family_at(-1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
