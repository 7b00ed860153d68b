/* Whether a phase keeps its pictures' latents, by figures that are made up or measured. */
#include "tests/unit/worker/encoded_task.h"

#include "worker/data/latents.h"

#define AUTO ENCODED_SPEC("", "")

enum { BATCH = 4, EPOCH = SHARDS * N }; /* an epoch is 18 steps */

static struct train_order {
    struct order o;
    Skerry__V1__TrainTask train;
    struct encoded encoded;
} made;

/* A phase of a replica that goes through the partition alone. */
static struct work *phase_of(const char *spec, uint64_t first_step, uint64_t total_steps)
{
    struct work *w = NULL;
    order_init(&made.o, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN, spec, images, SHARDS);
    skerry__v1__train_task__init(&made.train);
    encoded_order(&made.encoded, &made.o, false);
    made.train.steps = 6;
    made.train.first_step = first_step;
    made.train.total_steps = total_steps;
    made.train.epoch_samples = EPOCH;
    made.train.replicas = 1;
    made.train.ranges = made.o.ranges;
    made.train.n_ranges = SHARDS;
    made.o.task.train = &made.train;
    made.o.task.n_modules = 1;
    OK(work_new(kinds_all, &made.o.task, host.cache, host.tmp, &w, err));
    return w;
}

static struct encoders *encoders_of(struct work *w)
{
    struct encoders *enc = NULL;
    OK(encoders_get(host.engine, w, &enc, err));
    assert_non_null(enc);
    return enc;
}

static bool keeps(struct work *w, bool filled)
{
    bool keep = true;
    OK(encoders_keep(encoders_of(w), host.engine, w, BATCH, filled, &keep, err));
    return keep;
}

static void expect(const char *spec, uint64_t first_step, uint64_t total_steps, bool keep)
{
    struct work *w = phase_of(spec, first_step, total_steps);
    assert_int_equal(keeps(w, false), keep);
    work_free(w);
}

static void put_all(struct encoders *enc, unsigned shard)
{
    uint16_t *values = mem_alloc_array(encoders_moments(enc), sizeof *values);
    for (uint32_t i = 0; i < N; i++) {
        const struct latents_place at = {images[shard].sha256, N, i, false};
        latents_put(enc->kept, &at, values);
    }
    mem_free(values);
}

static void by_what_is_left_and_there(void **state)
{
    struct work *w = phase_of(AUTO, 0, 36);
    struct encoders *enc = encoders_of(w);
    (void)state;
    enc->encode_s = 0.1;
    enc->put_s = 0.01;
    enc->get_s = 0.001;
    assert_false(keeps(w, true)); /* in bubbles */
    assert_null(enc->kept);
    assert_true(keeps(w, false));
    assert_true(enc->encode_s == 0.1 && enc->put_s == 0.01); /* they were measured before */
    enc->put_s = 0.2;                                        /* on a slow disk */
    assert_false(keeps(w, false));
    enc->put_s = 0.01;
    work_free(w);
    expect(AUTO, 12, 36, true);
    expect(AUTO, 0, 18, false);
    expect(AUTO, 18, 36, false); /* its worker was lost, and with it what it had kept */
    expect(AUTO, 0, 0, false);
    put_all(enc, 1);
    expect(AUTO, 18, 36, true);
    w = phase_of(AUTO, 18, 36);
    made.train.epoch_samples = 0; /* an older coordinator */
    work_free(w);
    OK(work_new(kinds_all, &made.o.task, host.cache, host.tmp, &w, err));
    assert_false(keeps(w, false));
    work_free(w);
}

static void not_where_the_job_says(void **state)
{
    bool keep = true;
    (void)state;
    expect(HEAD "data: {path: x, image_size: 8}\nencoders: {path: x, run: fly}\n"
                "model: {type: dit, patch: 2, dim: 16, depth: 1, heads: 2}\ntrain: {batch: 4}\n",
           0, 36, false);
    expect(ENCODED_SPEC(", crop: random", ""), 0, 36, false);
    struct work *w = phase_of(AUTO, 0, 36);
    OK(encoders_keep(NULL, host.engine, w, BATCH, false, &keep, err));
    assert_false(keep);
    work_free(w);
}

static void measures_once(void **state)
{
    struct work *w = phase_of(AUTO, 0, 1800);
    struct encoders *enc = encoders_of(w);
    struct file_names names;
    (void)state;
    enc->encode_s = enc->put_s = enc->get_s = 0;
    (void)keeps(w, false);
    const double encode_s = enc->encode_s, put_s = enc->put_s;
    assert_true(encode_s > 0 && put_s > 0 && enc->get_s > 0);
    (void)keeps(w, false);
    assert_true(enc->encode_s == encode_s && enc->put_s == put_s);
    char *dir = file_join(host.engine->state_dir, "latents");
    OK(file_list(dir, 10, &names, err));
    assert_int_equal(names.n, 1); /* of the test before */
    file_names_release(&names);
    mem_free(dir);
    work_free(w);
}

/* Training goes on without. */
static void a_disk_that_cannot_be_written(void **state)
{
    struct work *w = phase_of(ENCODED_SPEC(", flip: true", ""), 0, 1800); /* another set */
    char *dir = file_join(host.engine->state_dir, "latents");
    (void)state;
    OK(file_remove_tree(dir, err));
    OK(file_write_put(dir, "", 0, 0600, err));
    assert_false(keeps(w, false));
    assert_null(encoders_of(w)->kept);
    mem_free(dir);
    work_free(w);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_what_is_left_and_there),
        cmocka_unit_test(not_where_the_job_says),
        cmocka_unit_test(measures_once),
        cmocka_unit_test(a_disk_that_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, encoded_setup, encoded_teardown);
}
