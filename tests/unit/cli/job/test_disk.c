/* What a job will hold on disks: each number here was added up by hand from docs/outer.md ("Which
 * are kept"); tests/integration/test_disks.py compares them with real daemons. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/job/disk.h"

#define BASE                                                                                       \
    "name: a\ndata: {path: x, image_size: 16, holdout: 0.1}\n"                                     \
    "model: {patch: 4, dim: 32, depth: 2, heads: 2}\ntrain: {batch: 8}\n"
#define N 256000000ull /* parameters: a multiple of a scale's block */
#define E3M0 (N / 2 + N / 128)
#define INT8 (N + N / 128)

static struct disk_need need(const char *yaml, struct disk_options opt)
{
    struct job_spec spec;
    struct composition c;
    struct err err = {0};
    struct disk_need d;
    if (job_parse(yaml, strlen(yaml), "job.yaml", &spec, &err) < 0 ||
        recipe_compose(&spec, &c, &err) < 0)
        fail_msg("%s", err.msg);
    opt.parameters[0] = N;
    disk_predict(&spec, &c, &opt, &d);
    composition_release(&c);
    job_release(&spec);
    return d;
}

static void a_job_of_many_rounds(void **state)
{
    const char *yaml = BASE "recipe: {replicas: 4}\nouter: {rounds: 10, steps: 20}\n"
                            "wire: {up: e3m0, down: e3m0}\n";
    struct disk_need d = need(yaml, (struct disk_options){.workers = 4, .phase_s = 1});
    /* Four versions and averages, two states, and the step's own files. */
    const uint64_t kept = 4 * (4 * N + 4 * N + E3M0) + 2 * 8 * N + 4 * E3M0;
    assert_int_equal(d.peak, kept + 4 * E3M0 + 16 * N + E3M0);
    assert_int_equal(d.outer, 2 * 8 * N + 16 * N + E3M0);
    assert_int_equal(d.end, 4 * 4 * N + 4 * N + 4 * E3M0);
    /* Two checkpoints and residuals; two versions, an average, a delta and a contribution. */
    const uint64_t cached = 12 * N + 2 * E3M0;
    assert_int_equal(d.worker, 2 * 12 * N + 2 * 4 * N + cached);
    d = need(yaml, (struct disk_options){.workers = 4, .phase_s = 20});
    assert_int_equal(d.worker, 3 * 12 * N + 2 * 4 * N + cached); /* and one within the phase */
    d = need(yaml, (struct disk_options){.workers = 1, .phase_s = 1});
    assert_int_equal(d.worker, 4 * (2 * 12 * N + 2 * 4 * N) + cached);
}

static void a_job_of_one_round(void **state)
{
    const struct disk_need d = need(
        BASE "recipe: {replicas: 2}\nouter: {rounds: 1, steps: 20}\nwire: {up: e3m0, down: e3m0}\n",
        (struct disk_options){.workers = 2, .phase_s = 1});
    assert_int_equal(d.peak, 4 * N + 2 * E3M0 + 16 * N + E3M0);
    assert_int_equal(d.end, 2 * 4 * N + 4 * N + E3M0);
}

/* Snapshots are finer than contributions, and each phase has two at a time. */
static void snapshots_of_many_replicas(void **state)
{
    const char *yaml = BASE "recipe: {replicas: 32}\nouter: {rounds: 10, seconds: 7200}\n"
                            "wire: {up: e3m0, down: e3m0}\n";
    const struct disk_need with = need(yaml, (struct disk_options){.phase_s = 7200});
    const struct disk_need without = need(yaml, (struct disk_options){.phase_s = 1});
    assert_int_equal(with.peak - without.peak, 64 * INT8 - 32 * E3M0 - 16 * N - E3M0);
    /* After 457 s there would be one, which pays if as much as half of that remains. */
    assert_int_equal(need(yaml, (struct disk_options){.phase_s = 680}).peak, without.peak);
    assert_int_equal(need(yaml, (struct disk_options){.phase_s = 690}).peak, with.peak);
}

static void what_is_uploaded(void **state)
{
    const char *yaml = BASE "recipe: {replicas: 2}\nouter: {rounds: 3, steps: 20}\n";
    const struct disk_need a = need(yaml, (struct disk_options){.phase_s = 1});
    const struct disk_need b =
        need(yaml, (struct disk_options){
                       .phase_s = 1, .shard_bytes = 1000, .phase_share = 0.5, .files_bytes = 7});
    assert_int_equal(b.peak - a.peak, 1007);
    assert_int_equal(b.end - a.end, 1007);
    assert_int_equal(b.worker - a.worker, 507);
}

#define ENCODED(data, run)                                                                         \
    "name: a\ndata: {path: x, image_size: 16, holdout: 0.1" data "}\n"                             \
    "model: {patch: 4, dim: 32, depth: 2, heads: 2}\ntrain: {batch: 8}\n"                          \
    "recipe: {replicas: 2}\nouter: {rounds: 3, steps: 20}\nencoders: {vae: v, cache: 7" run "}\n"

/* A worker that is told to keep latents has room for them; else it may take what there is. */
static void kept_latents(void **state)
{
    const struct disk_options opt = {.workers = 2, .phase_s = 1};
    const struct disk_need fly = need(ENCODED("", ", run: fly"), opt);
    const struct disk_need kept = need(ENCODED("", ", run: worker"), opt);
    const struct disk_need own = need(ENCODED("", ""), opt);
    char text[512] = "";
    (void)state;
    assert_int_equal(kept.worker - fly.worker, 7 << 20);
    assert_int_equal(own.worker, fly.worker);
    assert_int_equal(own.latents, 7 << 20);
    assert_true(fly.latents == 0 && kept.latents == 0);
    assert_int_equal(need(ENCODED(", crop: random", ""), opt).latents, 0);
    FILE *out = fmemopen(text, sizeof text - 1, "w");
    disk_show(&own, out);
    (void)fclose(out);
    assert_non_null(strstr(text, "while there is room, and latents at most 7.0 MiB\n"));
}

/* Where the pictures have been read, their latents are counted and not only bounded. */
static void counted_latents(void **state)
{
    const struct disk_options none = {.workers = 2, .phase_s = 1};
    const struct disk_options few = {.workers = 2, .phase_s = 1, .latents_bytes = 3 << 20};
    const struct disk_options many = {.workers = 2, .phase_s = 1, .latents_bytes = 9 << 20};
    const struct disk_need fly = need(ENCODED("", ", run: fly"), few);
    const struct disk_need once = need(ENCODED("", ", run: job"), few);
    const struct disk_need own = need(ENCODED("", ""), few);
    char text[512] = "";
    (void)state;
    assert_int_equal(need(ENCODED("", ", run: worker"), few).worker - fly.worker, 3 << 20);
    assert_int_equal(need(ENCODED("", ", run: worker"), many).worker - fly.worker, 7 << 20);
    assert_int_equal(fly.peak, need(ENCODED("", ", run: fly"), none).peak);
    assert_int_equal(once.peak - fly.peak, 3 << 20);
    assert_int_equal(once.end - fly.end, 3 << 20);
    assert_true(own.peak == fly.peak && own.latents == 3 << 20 && own.made == 3 << 20);
    const struct disk_need bounded = need(ENCODED("", ""), many);
    assert_true(bounded.latents == 7 << 20 && bounded.made == 9 << 20);
    FILE *out = fmemopen(text, sizeof text - 1, "w");
    disk_show(&bounded, out);
    (void)fclose(out);
    assert_non_null(strstr(text, "latents: 9.0 MiB at the coordinator, or at most 7.0 MiB at a "
                                 "worker\n"));
}

/* Each expert is a module of its own, and four outer steps are made at a time. */
static void experts(void **state)
{
    const struct disk_need one = need(BASE "recipe: {replicas: 1}\nouter: {rounds: 9, steps: 20}\n",
                                      (struct disk_options){.phase_s = 1});
    const struct disk_need eight =
        need(BASE "recipe: {name: ddm, experts: 8}\nouter: {rounds: 9, steps: 20}\n"
                  "router: {dim: 32, depth: 2, heads: 2}\n",
             (struct disk_options){.phase_s = 1});
    assert_int_equal(eight.end, 8 * one.end);
    assert_true(eight.peak < 8 * one.peak && eight.peak > 6 * one.peak);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_of_many_rounds),
        cmocka_unit_test(a_job_of_one_round),
        cmocka_unit_test(snapshots_of_many_replicas),
        cmocka_unit_test(what_is_uploaded),
        cmocka_unit_test(kept_latents),
        cmocka_unit_test(counted_latents),
        cmocka_unit_test(experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
