/* What a job will take: who trains when, what travels, what is drawn and judged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/job/predict.h"

#define BASE                                                                                       \
    "name: a\ndata: {path: x, image_size: 16, holdout: 0.1}\n"                                     \
    "model: {patch: 4, dim: 32, depth: 2, heads: 2}\ntrain: {batch: 8}\n"

static void predicted(const char *yaml, const struct measured *at,
                      const struct predict_options *opt, struct prediction *ret)
{
    struct job_spec spec;
    struct composition c;
    struct err err = {0};
    if (job_parse(yaml, strlen(yaml), "job.yaml", &spec, &err) < 0 ||
        recipe_compose(&spec, &c, &err) < 0)
        fail_msg("%s", err.msg);
    predict(&spec, &c, at, opt, ret);
    composition_release(&c);
    job_release(&spec);
}

static struct measured machine(double step_s, double router_s)
{
    return (struct measured){
        .networks = {
            {.parameters = 1000000, .batch = 8, .step_s = step_s, .forward_s = step_s / 24},
            {.parameters = router_s > 0 ? 100000 : 0, .batch = 8, .step_s = router_s}}};
}

/* What is shown of a job with such keys of its model and training. */
static bool shows_a_guess(const char *keys)
{
    char yaml[512], *text = NULL;
    size_t len = 0;
    const struct measured at = machine(0.5, 0);
    struct job_spec spec;
    struct err err = {0};
    struct prediction p;
    (void)snprintf(yaml, sizeof yaml,
                   "name: a\ndata: {path: x, image_size: 16}\nouter: {rounds: 1, steps: 1}\n%s",
                   keys);
    predicted(yaml, &at, &(struct predict_options){.workers = 1}, &p);
    if (job_parse(yaml, strlen(yaml), "job.yaml", &spec, &err) < 0)
        fail_msg("%s", err.msg);
    FILE *out = open_memstream(&text, &len);
    predict_show(&spec, &at, &(struct predict_options){.workers = 1}, &p, 100, out);
    (void)fclose(out);
    const bool shown =
        strstr(text, "a guess for a width of 512: it was measured up to 256") != NULL;
    free(text);
    job_release(&spec);
    return shown;
}

/* The default rate of a model that is wider than those for which it was measured. */
static void a_rate_may_be_a_guess(void **state)
{
    (void)state;
    assert_true(shows_a_guess("model: {patch: 4, dim: 512, depth: 2, heads: 8}\n"
                              "train: {batch: 8}\n"));
    assert_false(shows_a_guess("model: {patch: 4, dim: 256, depth: 2, heads: 8}\n"
                               "train: {batch: 8}\n"));
    assert_false(shows_a_guess("model: {patch: 4, dim: 512, depth: 2, heads: 8}\n"
                               "train: {batch: 8, lr: 1e-3}\n"));
}

static void phases_share_the_workers(void **state)
{
    const struct measured at = machine(0.5, 0);
    struct prediction p;
    const char *yaml = BASE "recipe: {replicas: 3}\nouter: {rounds: 10, steps: 20}\n"
                            "sample: {count: 1, steps: 1, guidance: 1}\neval: {samples: 1}\n";
    predicted(yaml, &at, &(struct predict_options){.workers = 3}, &p);
    assert_int_equal(p.phases, 3);
    assert_float_equal(p.train_s, 20 * 0.5, 1e-9);
    assert_int_equal(p.seen, 3 * 8 * 20 * 10);
    predicted(yaml, &at, &(struct predict_options){.workers = 2}, &p);
    assert_float_equal(p.train_s, 2 * 20 * 0.5, 1e-9); /* one of them has two */
    predicted(yaml, &at, &(struct predict_options){.workers = 8}, &p);
    assert_float_equal(p.train_s, 20 * 0.5, 1e-9);
    assert_float_equal(p.link_s, 0, 0);
}

static void a_link_is_that_of_the_coordinator(void **state)
{
    const struct measured at = machine(0.5, 0);
    struct prediction p;
    predicted(BASE "recipe: {replicas: 4}\nouter: {rounds: 10, steps: 20}\n"
                   "wire: {up: e3m0, down: bf16}\n",
              &at, &(struct predict_options){.workers = 4, .bytes_per_s = 1000000}, &p);
    /* Half a byte, and a scale of two for each 256; two bytes. */
    assert_int_equal(p.up_bytes, 500000 + 2 * 3907);
    assert_int_equal(p.down_bytes, 2000000);
    assert_float_equal(p.link_s, 4 * (500000 + 2 * 3907 + 2000000) / 1e6, 1e-9);
    assert_true(p.fold_s > 0 && p.start_s > 0);
    assert_float_equal(p.total_s, p.start_s + 10 * (p.train_s + p.fold_s + p.link_s) + p.rest_s,
                       1e-6);
}

/* A phase of half an hour could send 29, one each minute; by itself it sends one beside e3m0. */
static void snapshots_are_predicted(void **state)
{
    struct measured at = machine(0.5, 0);
    struct prediction p;
    at.networks[0].parameters = 400000000;
    predicted(BASE "outer: {rounds: 10, steps: 3600}\nwire: {up: e3m0}\n", &at,
              &(struct predict_options){.workers = 1}, &p);
    assert_int_equal(p.snapshots, 2); /* that of 28.6 minutes would not pay */
    assert_float_equal(p.snapshot_s, 571.4, 0.1);
    at.networks[0].parameters = 1000000;
    predicted(BASE "outer: {rounds: 10, steps: 3600}\nwire: {up: e3m0}\n", &at,
              &(struct predict_options){.workers = 1}, &p);
    assert_int_equal(p.snapshots, 29); /* one a minute */
    assert_int_equal(p.snapshot_bytes, 1000000 + 2 * 3907);
    predicted(BASE "outer: {rounds: 10, steps: 3600, snapshot: 60}\nwire: {up: int8}\n", &at,
              &(struct predict_options){.workers = 1}, &p);
    assert_int_equal(p.snapshots, 29);
    predicted(BASE "outer: {rounds: 10, seconds: 1800, snapshot: 60}\n", &at,
              &(struct predict_options){.workers = 1, .bytes_per_s = 20000}, &p);
    assert_int_equal(p.snapshots, 8); /* 201 s each: a quarter of the link */
    predicted(BASE "outer: {rounds: 10, steps: 3600, snapshot: 0}\n", &at,
              &(struct predict_options){.workers = 1}, &p);
    assert_int_equal(p.snapshots, 0);
    predicted(BASE "outer: {rounds: 10, steps: 110}\n", &at,
              &(struct predict_options){.workers = 1}, &p);
    assert_int_equal(p.snapshots, 0); /* 55 s */
    predicted(BASE "outer: {rounds: 10, steps: 9}\neval: {every: 5}\nsample: {every: 2}\n", &at,
              &(struct predict_options){.workers = 1}, &p);
    assert_int_equal(p.averages, 2 + 5);
    assert_int_equal(p.average_bytes, 4000000);
}

/* 4 workers, 10 M parameters, 100 Mbit/s: 3.3 s of bytes beside 200 steps of 0.1 s. */
static void fragments_are_proposed_where_they_hide_the_link(void **state)
{
    struct measured at = machine(0.1, 0);
    const struct predict_options far = {.workers = 4, .bytes_per_s = 12500000},
                                 near = {.workers = 4};
    struct prediction p, q;
    const char *yaml = BASE "recipe: {replicas: 4}\nouter: {rounds: 2, steps: 200}\n";
    at.networks[0].parameters = 10000000;
    predicted(yaml, &at, &far, &p);
    assert_int_equal(p.parts.fragments, 2); /* as many as there are blocks */
    assert_true(p.parts.delay > 0 && p.parts.delay <= 200 / 8);
    assert_true(p.parts.left_s < 0.1 * (p.link_s + p.fold_s));
    assert_false(p.parts.taken); /* two rounds of a fresh model */
    predicted(BASE "recipe: {replicas: 4}\n"
                   "outer: {rounds: 2, steps: 200, fragments: 2, delay: 22, mix: 0.5}\n",
              &at, &far, &q);
    assert_int_equal(q.parts.fragments, 0); /* it has them */
    assert_float_equal(q.link_s, 0, 1e-9);
    assert_true(q.total_s < p.total_s - 2 * 3);
    predicted(yaml, &at, &near, &q); /* nothing is known of the links */
    assert_int_equal(q.parts.fragments, 0);
    at.networks[0].step_s = 10; /* the link is nothing beside such steps */
    predicted(yaml, &at, &far, &q);
    assert_int_equal(q.parts.fragments, 0);
}

/* What outer.fragments: auto takes is what the job is predicted with, and why it takes none. */
static void auto_takes_them_where_quality_holds(void **state)
{
    static const struct {
        const char *recipe, *more, *model, *why; /* why: NULL where they are taken */
    } jobs[] = {
        {"replicas: 4", "", "warm_start: w, ", NULL},
        {"replicas: 4", ", fragments: auto", "warm_start: w, ", NULL},
        {"replicas: 4", "", "", "fresh"},
        {"replicas: 1", "", "warm_start: w, ", "one replica"},
        {"replicas: auto", "", "warm_start: w, ", "whole rounds"},
        {"replicas: 4", ", async: true", "warm_start: w, ", "async"},
        {"replicas: 4", ", where: worker", "warm_start: w, ", "outer.where"},
        {"replicas: 4", ", fragments: 1", "warm_start: w, ", "the job file says"},
        {"replicas: 4", ", delay: 3", "warm_start: w, ", "the job file says"},
        {"replicas: 4", ", snapshot: 5", "warm_start: w, ", "snapshots"},
        {"replicas: 4", ", snapshot: 0", "warm_start: w, ", NULL},
    };
    struct measured at = machine(0.1, 0);
    const struct predict_options far = {.workers = 4, .bytes_per_s = 12500000};
    at.networks[0].parameters = 10000000;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct prediction p;
        char *yaml = str_printf("name: a\ndata: {path: x, image_size: 16, holdout: 0.1}\n"
                                "model: {%spatch: 4, dim: 32, depth: 2, heads: 2}\n"
                                "train: {batch: 8}\nrecipe: {%s}\n"
                                "outer: {rounds: 3, steps: 200%s}\n",
                                jobs[i].model, jobs[i].recipe, jobs[i].more);
        predicted(yaml, &at, &far, &p);
        mem_free(yaml);
        if (jobs[i].why && (!p.parts.why || !strstr(p.parts.why, jobs[i].why)))
            fail_msg("job %zu: '%s', expected '%s'", i, p.parts.why ? p.parts.why : "taken",
                     jobs[i].why);
        assert_int_equal(p.parts.taken, !jobs[i].why);
        if (p.parts.taken) {
            assert_float_equal(p.link_s, p.parts.left_s, 1e-9);
            assert_true(p.fold_s == 0 && p.whole.link_s > 3 && p.link_s < 0.3);
        }
    }
}

/* A delay too short is waited for, once a fragment; and no round is shorter than its bytes. */
static void what_a_delay_does_not_hide_is_waited_for(void **state)
{
    struct measured at = machine(0.1, 0);
    const struct predict_options far = {.workers = 4, .bytes_per_s = 12500000};
    struct prediction p, q;
    at.networks[0].parameters = 10000000;
    predicted(BASE "recipe: {replicas: 4}\nouter: {rounds: 10, steps: 200}\n", &at, &far, &p);
    predicted(BASE
              "recipe: {replicas: 4}\nouter: {rounds: 10, steps: 200, fragments: 2, delay: 5}\n",
              &at, &far, &q);
    assert_float_equal(q.link_s, p.link_s + p.fold_s - 2 * 5 * 0.1, 1e-9);
    predicted(BASE "recipe: {replicas: 4}\nouter: {rounds: 10, steps: 2, fragments: 2, delay: 1}\n",
              &at, &(struct predict_options){.workers = 4, .bytes_per_s = 125000}, &q);
    assert_true(q.link_s + q.train_s > 100 * p.link_s / 2);
}

static void seconds_bound_a_phase_whatever_the_steps_take(void **state)
{
    const struct measured at = machine(0.5, 0);
    struct prediction p;
    predicted(BASE "outer: {rounds: 3, seconds: 60}\n", &at,
              &(struct predict_options){.workers = 1}, &p);
    assert_float_equal(p.train_s, 60, 1e-9);
    assert_int_equal(p.seen, 3 * 8 * 120);
}

static uint32_t workers_of(const char *yaml)
{
    struct job_spec spec;
    struct composition c;
    struct err err = {0};
    if (job_parse(yaml, strlen(yaml), "job.yaml", &spec, &err) < 0 ||
        recipe_compose(&spec, &c, &err) < 0)
        fail_msg("%s", err.msg);
    const uint32_t n = predict_workers(&c);
    composition_release(&c);
    job_release(&spec);
    return n;
}

/* Where the job takes as many as there are, that is what they are; two, if nobody says. */
static void all_workers_have_a_phase(void **state)
{
    const struct measured at = machine(0.5, 0);
    assert_int_equal(workers_of(BASE "outer: {rounds: 3, steps: 10}\n"), 2);
    assert_int_equal(
        workers_of(BASE "outer: {rounds: 3, steps: 10}\nrecipe: {name: ddm, experts: 4}\n"),
        5); /* the router */
    for (int workers = 1; workers < 100; workers = 4 * workers + 1) {
        const int phases = workers < 32 ? workers : 32;
        struct prediction p;
        predicted(BASE "outer: {rounds: 3, steps: 10}\n", &at,
                  &(struct predict_options){.workers = workers}, &p);
        assert_int_equal(p.phases, phases);
        assert_int_equal(p.seen, 3 * 8 * 10 * phases);
        assert_float_equal(p.train_s, 5, 1e-9);
    }
}

static void what_is_drawn_and_judged_counts(void **state)
{
    const struct measured at = machine(2.4, 0); /* a forward of a sample: 0.1 s */
    struct prediction p;
    predicted(BASE "outer: {rounds: 10, steps: 1}\nsample: {every: 5, count: 4, steps: 3, "
                   "sampler: heun, guidance: 2}\neval: {every: 3, samples: 7}\n",
              &at, &(struct predict_options){.workers = 1}, &p);
    assert_float_equal(p.rest_s, (2 * 4 * 3 * 2 * 2 + 4 * 7) * 0.1, 1e-6);
}

/* Each path has its own losses, on its share of the samples, and its own grid at the end. */
static void each_path_is_judged_and_drawn(void **state)
{
    const struct measured at = machine(2.4, 0);
    const char *yaml = BASE "recipe: {name: dipaco, levels: [2, 2]}\n"
                            "outer: {rounds: 10, steps: 1}\nsample: {every: 5, count: 4, steps: 3, "
                            "guidance: 1}\neval: {every: 3, samples: 7}\n";
    struct prediction p;
    predicted(yaml, &at, &(struct predict_options){.workers = 4}, &p);
    assert_int_equal(p.averages, 4 * 4 + 1 + 4);
    assert_float_equal(p.rest_s, (4 * 7 + (1 + 1) * 4 * 3) * 0.1, 1e-6);
    predicted(yaml, &at, &(struct predict_options){.workers = 3}, &p);
    assert_float_equal(p.rest_s, (4 * 7 + (1 + 2) * 4 * 3) * 0.1, 1e-6);
}

#define MIXTURE(strategy)                                                                          \
    BASE "recipe: {name: ddm, experts: 2}\nouter: {rounds: 10, steps: 1}\n"                        \
         "sample: {every: 5, count: 4, steps: 3, guidance: 2, strategy: " strategy "}\n"           \
         "eval: {every: 3, samples: 7}\n"

/* A mixture, besides, in each evaluation by all experts and the router, and in each grid by those
 * that its rule keeps. */
static void a_mixture_is_judged_and_drawn(void **state)
{
    const char *const jobs[] = {NULL, MIXTURE("top1"), MIXTURE("full")};
    struct measured at = machine(2.4, 0.24);
    at.networks[1].forward_s = 0.01;
    for (int experts = 1; experts <= 2; experts++) {
        struct prediction p;
        predicted(jobs[experts], &at, &(struct predict_options){.workers = 4}, &p);
        assert_int_equal(p.averages, 4 * (2 + 2) + 2 * 2 + 2);
        assert_float_equal(p.rest_s,
                           4 * 7 * (0.1 + 2 * 0.1 + 2 * 0.01) +
                               2 * 4 * 3 * (experts * 2 * 0.1 + 0.01) + 4 * 3 * 2 * 0.1,
                           1e-6);
    }
}

static void no_more_is_judged_than_is_held_out(void **state)
{
    const struct measured at = machine(2.4, 0);
    const struct predict_options opt = {.workers = 1, .holdout = 5, .data_s = 7};
    struct prediction p, q;
    const char *yaml = BASE "outer: {rounds: 10, steps: 1}\n"
                            "sample: {count: 1, steps: 1, guidance: 1}\neval: {samples: 20}\n";
    predicted(yaml, &at, &opt, &p);
    assert_float_equal(p.rest_s, (1 + 5) * 0.1, 1e-6);
    predicted(yaml, &at, &(struct predict_options){.workers = 1}, &q);
    assert_float_equal(q.rest_s, (1 + 20) * 0.1, 1e-6);
    assert_float_equal(p.start_s, q.start_s + 7, 1e-9);
}

static void a_router_is_one_more_phase_of_its_own_length(void **state)
{
    const struct measured at = machine(0.5, 0.1);
    struct prediction p;
    predicted(BASE "recipe: {name: ddm, experts: 2, divide_batch: false}\n"
                   "outer: {rounds: 10, steps: 20}\n",
              &at, &(struct predict_options){.workers = 1}, &p);
    assert_int_equal(p.phases, 3);
    assert_float_equal(p.train_s, 20 * (0.5 + 0.5 + 0.1), 1e-9);
    assert_int_equal(p.seen, 2 * 8 * 20 * 10); /* the router's are the same ones */
    assert_int_equal(p.up_bytes, 500000 + 2 * 3907);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phases_share_the_workers),
        cmocka_unit_test(a_rate_may_be_a_guess),
        cmocka_unit_test(a_link_is_that_of_the_coordinator),
        cmocka_unit_test(snapshots_are_predicted),
        cmocka_unit_test(fragments_are_proposed_where_they_hide_the_link),
        cmocka_unit_test(auto_takes_them_where_quality_holds),
        cmocka_unit_test(what_a_delay_does_not_hide_is_waited_for),
        cmocka_unit_test(seconds_bound_a_phase_whatever_the_steps_take),
        cmocka_unit_test(all_workers_have_a_phase),
        cmocka_unit_test(what_is_drawn_and_judged_counts),
        cmocka_unit_test(each_path_is_judged_and_drawn),
        cmocka_unit_test(a_mixture_is_judged_and_drawn),
        cmocka_unit_test(no_more_is_judged_than_is_held_out),
        cmocka_unit_test(a_router_is_one_more_phase_of_its_own_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
