/* The job file of `skerry new`: how large, how long, and that it is one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/job/new_job.h"
#include "common/job/job.h"

static struct new_job images(uint64_t samples, double minutes)
{
    return (struct new_job){.name = "a",
                            .path = "x",
                            .device = "cpu",
                            .kind = NEW_IMAGES,
                            .image_size = 32,
                            .workers = 2,
                            .minutes = minutes,
                            .samples = samples,
                            .keeps = true,
                            .parameters = 1000000};
}

static void a_model_wants_data(void **state)
{
    struct new_job job = images(1000, 40); /* 100,000 views of it, a tenth for each parameter */
    assert_true(new_job_affords(&job, 0.01));
    job.samples = 999;
    assert_false(new_job_affords(&job, 0.01));
    struct new_job text = {.kind = NEW_TEXT, .workers = 1, .minutes = 1e6, .parameters = 1000000};
    text.tokens = 2000000; /* ten passes */
    assert_true(new_job_affords(&text, 0.01));
    text.tokens--;
    assert_false(new_job_affords(&text, 0.01));
}

static void a_model_wants_time(void **state)
{
    const struct new_job job = images(100000, 40);
    /* 100,000 images in batches of 32 on two workers, in 0.85 of 2,400 seconds. */
    assert_true(new_job_affords(&job, 0.85 * 2400 * 64 / 100000 * 0.999));
    assert_false(new_job_affords(&job, 0.85 * 2400 * 64 / 100000 * 1.001));
}

static void the_time_is_filled_unless_the_data_end_first(void **state)
{
    struct new_job job = images(1000000, 40);
    new_job_length(&job, 0.5);
    assert_int_equal(job.rounds, 30);
    assert_in_range((uint64_t)job.seconds, 2300, 2400);
    assert_int_equal(job.passes, 0);
    job = images(960, 40);
    new_job_length(&job, 0.1); /* 96,000 views: 1500 steps of 64, 150 seconds of them */
    assert_int_equal(job.rounds, 15);
    assert_int_equal(job.steps, 100);
    assert_in_range((uint64_t)job.seconds, 170, 180);
    assert_int_equal(job.passes, 100);
    job = images(3, 40);
    new_job_length(&job, 0.001);
    assert_true(job.rounds >= 1 && job.steps >= 1);
}

static void a_batch_is_at_most_half_the_data(void **state)
{
    struct new_job job = images(20, 40);
    assert_int_equal(new_job_batch(&job), 10);
    job.samples = 1;
    assert_int_equal(new_job_batch(&job), 1);
    job.samples = 1000;
    assert_int_equal(new_job_batch(&job), 32);
}

/* What is written is accepted. */
static struct job_spec written(const struct new_job *job)
{
    struct job_spec spec;
    struct err err = {0};
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    new_job_write(job, out);
    (void)fclose(out);
    if (job_parse(text, len, "a.yaml", &spec, &err) < 0 ||
        job_check_scope(text, len, "a.yaml", &spec, &err) < 0)
        fail_msg("%s\n%s", err.msg, text);
    free(text);
    return spec;
}

static void every_side_has_a_patch(void **state)
{
    for (int side = 8; side <= 256; side++) {
        struct new_job job = images(5000, 40);
        job.image_size = side;
        if (new_job_patch(side) == 0) {
            assert_true(side % 8 != 0 && side % 28 != 0);
            continue;
        }
        new_job_length(&job, 0.1);
        struct job_spec spec = written(&job);
        assert_int_equal(side % spec.model.patch, 0);
        job_release(&spec);
    }
}

/* The keys of train that are written have the values that a job without them gets. */
static void trains_as_by_default(const struct job_spec *spec, const struct new_job *job)
{
    char *text = NULL, *bare = NULL;
    size_t len = 0, bare_len = 0;
    FILE *out = open_memstream(&text, &len), *less = open_memstream(&bare, &bare_len);
    new_job_write(job, out);
    (void)fclose(out);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (strncmp(line, "  lr: ", 6) != 0 && strncmp(line, "  schedule: ", 12) != 0)
            (void)fprintf(less, "%s\n", line);
    (void)fclose(less);
    struct job_spec by_default;
    struct err err = {0};
    if (job_parse(bare, bare_len, "a.yaml", &by_default, &err) < 0)
        fail_msg("%s\n%s", err.msg, bare);
    assert_int_equal(spec->train.schedule, by_default.train.schedule);
    assert_int_equal(spec->train.warmup, by_default.train.warmup);
    assert_true(fabs(spec->train.lr / by_default.train.lr - 1) < 0.05); /* of two digits */
    job_release(&by_default);
    free(bare);
    free(text);
}

static void every_kind_and_size_is_a_job(void **state)
{
    for (int kind = NEW_IMAGES; kind <= NEW_CAPTIONS; kind++)
        for (size_t size = 0; size < new_job_sizes(); size++) {
            struct new_job job = images(5000, 40);
            job.kind = (enum new_kind)kind;
            job.tokens = 1000000;
            job.size = size;
            job.path = "a \"folder\"\\ # of\xc3\xa4";
            job.encoders = "enc";
            job.field = size > 0 ? "a: 'field'" : NULL;
            new_job_length(&job, 0.1);
            if (kind == NEW_CAPTIONS && size > 0) {
                str_copy(job.prompts[0], NEW_PROMPT_BYTES, "a \"red\" # tree: [\xc3\xa4]");
                str_copy(job.prompts[1], NEW_PROMPT_BYTES, "-");
            }
            struct job_spec spec = written(&job);
            assert_int_equal(spec.sample.prompts.n, kind == NEW_CAPTIONS && size > 0 ? 2 : 0);
            for (size_t i = 0; i < spec.sample.prompts.n; i++)
                assert_string_equal(spec.sample.prompts.items[i], job.prompts[i]);
            assert_string_equal(spec.data.path, job.path);
            if (kind == NEW_TEXT)
                assert_string_equal(spec.data.text_field, job.field ? job.field : "text");
            assert_int_equal(spec.outer.rounds, job.rounds);
            assert_int_equal(spec.recipe.replicas, 2);
            trains_as_by_default(&spec, &job);
            job_release(&spec);
        }
}

/* The keys are those of the weights, whatever the defaults are; it sees its texts less often. */
static void a_trained_model_keeps_its_sizes(void **state)
{
    struct new_job job = images(5000, 1e6), fresh;
    job.kind = NEW_TEXT;
    job.tokens = 100000000;
    job.rounds = job.steps = 1;
    fresh = job;
    job.from = "a folder";
    job.tokenizer = "a folder/tokenizer.json";
    job.model = (struct job_model){.dim = 576,
                                   .depth = 30,
                                   .heads = 9,
                                   .kv_heads = 3,
                                   .ffn = 1536,
                                   .context = 2048,
                                   .rope_theta = 123456.5,
                                   .norm_eps = 1e-6,
                                   .rope_scaling = {JOB_ROPE_LLAMA3, 32, 1.5, 3, 4096},
                                   .tied = true};
    struct job_spec spec = written(&job);
    const struct job_model *m = &spec.model, *w = &job.model;
    assert_int_equal(m->dim, w->dim);
    assert_int_equal(m->depth, w->depth);
    assert_int_equal(m->heads, w->heads);
    assert_int_equal(m->kv_heads, w->kv_heads);
    assert_int_equal(m->ffn, w->ffn);
    assert_int_equal(m->context, 512);
    assert_true(m->rope_theta == w->rope_theta && m->norm_eps == w->norm_eps && m->tied);
    assert_int_equal(m->rope_scaling.rope_type, JOB_ROPE_LLAMA3);
    assert_true(m->rope_scaling.factor == 32 && m->rope_scaling.low_freq_factor == 1.5 &&
                m->rope_scaling.high_freq_factor == 3);
    assert_int_equal(m->rope_scaling.original_max_position_embeddings, 4096);
    assert_string_equal(m->warm_start, job.from);
    trains_as_by_default(&spec, &job);
    assert_string_equal(spec.data.tokenizer, job.tokenizer);
    assert_string_equal(spec.sample.prompt, "");
    job_release(&spec);
    job.model.context = 128;
    job.endless = true;
    spec = written(&job);
    assert_int_equal(m->context, 128);
    assert_string_equal(spec.sample.prompt, "The");
    job_release(&spec);
    new_job_length(&job, 0.01);
    new_job_length(&fresh, 0.01);
    const double seen = 128.0 * job.rounds * job.steps, often = 256.0 * fresh.rounds * fresh.steps;
    assert_true(seen / often > 0.29 && seen / often < 0.31);
}

/* A command that would be refused is not named. */
static void a_job_file_holds_texts(void **state)
{
    (void)state;
    assert_true(new_job_holds("a \"red\" # tree: [\xc3\xa4]") && new_job_holds("\xf0\x9f\x9a\x80"));
    assert_false(new_job_holds("it\xc2\x92s"));
}

static void only_so_many_run_on_one_machine(void **state)
{
    struct new_job job = images(5000, 40);
    for (int runs = 0; runs < 2; runs++) {
        char *text = NULL;
        size_t len = 0;
        FILE *out = open_memstream(&text, &len);
        job.runs = runs;
        new_job_write(&job, out);
        (void)fclose(out);
        assert_int_equal(strstr(text, "skerry run a.yaml --workers 2 --out a.out ") != NULL, runs);
        assert_non_null(strstr(text, "skerry submit a.yaml --watch"));
        free(text);
    }
}

/* Of one picture, or one short text, none can be kept. */
static void so_little_is_learned_from(void **state)
{
    struct new_job job = images(1, 40);
    new_job_length(&job, 0.1);
    job.keeps = false;
    struct job_spec spec = written(&job);
    assert_true(spec.data.holdout == 0);
    job_release(&spec);
    job.keeps = true;
    spec = written(&job);
    assert_true(spec.data.holdout > 0);
    job_release(&spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_wants_data),
        cmocka_unit_test(a_model_wants_time),
        cmocka_unit_test(the_time_is_filled_unless_the_data_end_first),
        cmocka_unit_test(a_batch_is_at_most_half_the_data),
        cmocka_unit_test(every_kind_and_size_is_a_job),
        cmocka_unit_test(a_job_file_holds_texts),
        cmocka_unit_test(a_trained_model_keeps_its_sizes),
        cmocka_unit_test(every_side_has_a_patch),
        cmocka_unit_test(so_little_is_learned_from),
        cmocka_unit_test(only_so_many_run_on_one_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
