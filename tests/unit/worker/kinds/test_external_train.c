/* TRAIN by a trainer: what it is asked for, what is taken of its word, and what it leaves. */
#include "tests/unit/worker/kinds/external_task.h"

#include <math.h>
#include <sys/mman.h>

#define TRAIN SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN
#define SAMPLES 40
#define STEPS 3

static struct test_shard shard;

/* What the trainer will say of its steps. */
static struct script {
    unsigned steps;
    uint32_t samples; /* of each */
    float loss;       /* of the last one, the others have one more each */
    const char *number, *state;
} script;

static void say_steps(int fd)
{
    Skerry__Trainer__V1__SamplesWanted wanted = SKERRY__TRAINER__V1__SAMPLES_WANTED__INIT;
    Skerry__Trainer__V1__Done done = SKERRY__TRAINER__V1__DONE__INIT;
    int passed = -1;
    say(fd, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_SAMPLES_WANTED, &wanted, -1);
    for (unsigned i = 0; i < script.steps; i++) {
        Skerry__Trainer__V1__Progress p = SKERRY__TRAINER__V1__PROGRESS__INIT;
        Skerry__Trainer__V1__Number number = SKERRY__TRAINER__V1__NUMBER__INIT, *list[] = {&number};
        p.loss = script.loss + (float)(script.steps - 1 - i);
        p.samples = script.samples;
        p.lr = 0.5f;
        number.name = (char *)(uintptr_t)script.number;
        number.value = i;
        p.numbers = list;
        p.n_numbers = script.number != NULL;
        say(fd, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_PROGRESS, &p, -1);
    }
    if (script.state) {
        passed = memfd_create("state", MFD_CLOEXEC);
        assert_true(passed >= 0);
        OK(file_pwrite_all(passed, script.state, strlen(script.state), 0, "state", err));
    }
    say(fd, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_DONE, &done, passed);
    if (passed >= 0)
        (void)close(passed);
}

static void speaks(int fd)
{
    say_hello(fd, true);
    say_steps(fd);
}

static const struct script good = {.steps = STEPS, .samples = 4, .loss = 1};

/* ---- a task ---- */

static Skerry__V1__TrainTask part;
static const char *spec = PICTURES;

static void part_init(void)
{
    skerry__v1__train_task__init(&part);
    part.steps = STEPS;
    part.total_steps = 100;
    part.path = 2;
    part.replica = 1;
    part.round = 4;
    spec = PICTURES;
    script = good;
}

static struct work *train(void)
{
    struct order o;
    order_init(&o, TRAIN, spec);
    o.shard.sha256 = (ProtobufCBinaryData){32, shard.sha256};
    o.shard.size = 1;
    o.range.count = SAMPLES;
    o.module.version = 9;
    part.ranges = o.ranges;
    part.n_ranges = strcmp(spec, NO_DATA) == 0 ? 0 : 1;
    o.task.train = &part;
    return begin(&o, speaks);
}

static void fails(const char *text)
{
    struct work *w = train();
    FAILS(w->kind->run(&engine, w, err), text);
    end(w);
}

/* ---- tests ---- */

static void a_phase(void **state)
{
    part_init();
    part.first_step = 6;
    spec = PICTURES "wire: {up: f32}\nseed: 8\n";
    struct work *w = train();
    const struct work_result *r = &w->result;
    OK(w->kind->run(&engine, w, err));
    assert_true(r->steps == STEPS && r->samples == 4 * STEPS);
    assert_true(r->loss_first == 3 && r->loss_last == 1 && r->loss_mean == 2);
    assert_int_equal(r->n_outputs, 1);
    const struct work_output *out = &r->outputs[0];
    assert_true(out->role == WORK_CONTRIBUTION && out->module_id == 7 && out->base_version == 9);
    assert_true(out->size > sizeof(version0) && file_exists(out->path));
    struct progress_view v;
    progress_take(&w->progress, &v);
    assert_int_equal(v.told.n_points, STEPS);
    assert_true(v.points[0].step == 7 && v.points[0].loss == 3 && v.points[0].lr == 0.5f);

    from_worker *m = heard(SKERRY__TRAINER__V1__FROM_WORKER__WHAT_PHASE);
    const Skerry__Trainer__V1__Phase *p = m->phase;
    assert_true(p->round == 4 && p->path == 2 && p->replica == 1 && p->replicas == 1);
    assert_true(p->steps == STEPS && p->seconds == 0 && p->pause == 0);
    assert_true(p->first_step == 6 && p->total_steps == 100);
    assert_true(p->batch == 4 && p->samples == 4 * STEPS); /* no more than its steps take */
    assert_int_equal(p->kind, SKERRY__TRAINER__V1__SAMPLE_KIND__SAMPLE_KIND_IMAGE);
    assert_true(!p->goes_on && !p->has_state && !p->wants_state);
    assert_string_equal(p->precision, "auto");
    const uint64_t seed = p->seed;
    skerry__trainer__v1__from_worker__free_unpacked(m, NULL);
    end(w);

    /* Another replica has other draws. */
    part.replica = 2;
    w = train();
    OK(w->kind->run(&engine, w, err));
    m = heard(SKERRY__TRAINER__V1__FROM_WORKER__WHAT_PHASE);
    assert_true(m->phase->seed != seed);
    skerry__trainer__v1__from_worker__free_unpacked(m, NULL);
    end(w);
}

/* The rate is told as a share of the job's, at both ends of the phase. */
static void the_schedule(void **state)
{
    part_init();
    part.first_step = 1;
    part.batch = 8;
    script.samples = 8;
    spec = "name: x\ndata: {kind: images, path: d, image_size: 8}\nmodel: {type: external}\n"
           "trainer: {command: ./train}\nouter: {rounds: 3, steps: 6}\n"
           "train: {batch: 4, lr: 0.01, warmup: 4, precision: bf16}\n";
    struct work *w = train();
    OK(w->kind->run(&engine, w, err));
    from_worker *m = heard(SKERRY__TRAINER__V1__FROM_WORKER__WHAT_PHASE);
    assert_true(m->phase->lr_first == 0.5f && m->phase->lr_last == 1);
    assert_true(m->phase->batch == 8 && m->phase->samples == 8 * STEPS && m->phase->warmup == 0);
    assert_string_equal(m->phase->precision, "bf16");
    skerry__trainer__v1__from_worker__free_unpacked(m, NULL);
    end(w);
    /* Async: by the share of the job that is over, whatever the replica's own step. */
    part.done_from = 0.5;
    part.done_to = 1;
    part.first_step = 5;
    part.total_steps = 100;
    spec = "name: x\ndata: {kind: images, path: d, image_size: 8}\nmodel: {type: external}\n"
           "trainer: {command: ./train}\nouter: {rounds: 2, steps: 3, async: true}\n"
           "train: {batch: 4, lr: 0.01, warmup: 4, schedule: cosine}\n";
    w = train();
    OK(w->kind->run(&engine, w, err));
    m = heard(SKERRY__TRAINER__V1__FROM_WORKER__WHAT_PHASE);
    const double last = 0.5 * (1 + cos(acos(-1) * (0.5 + 0.5 * (STEPS - 1) / STEPS)));
    assert_true(fabs((double)m->phase->lr_first - 0.5) < 1e-6);
    assert_true(fabs((double)m->phase->lr_last - last) < 1e-6);
    assert_int_equal(m->phase->warmup, 0);
    skerry__trainer__v1__from_worker__free_unpacked(m, NULL);
    end(w);
    part_init();
    part.first_step = 1;
    part.batch = 8;
    /* By time the trainer, which counts the steps, makes the warm-up. */
    part.steps = 0;
    part.seconds = 60;
    part.done_to = 0.5;
    spec = "name: x\ndata: {kind: images, path: d, image_size: 8}\nmodel: {type: external}\n"
           "trainer: {command: ./train}\nouter: {rounds: 2, seconds: 60}\n"
           "train: {batch: 4, lr: 0.01, warmup: 4, schedule: cosine}\n";
    w = train();
    OK(w->kind->run(&engine, w, err));
    m = heard(SKERRY__TRAINER__V1__FROM_WORKER__WHAT_PHASE);
    assert_true(m->phase->lr_first == 1 && fabs((double)m->phase->lr_last - 0.5) < 1e-6);
    assert_int_equal(m->phase->warmup, 4);
    skerry__trainer__v1__from_worker__free_unpacked(m, NULL);
    end(w);
}

static void its_word_is_checked(void **state)
{
    part_init();
    script.samples = 5;
    fails("the trainer counts 15 samples, but was given 12");
    script = good;
    script.samples = 0;
    fails("the trainer ended a phase without a step");
    script = good;
    script.steps = 0;
    fails("the trainer ended a phase without a step");
    script = good;
    script.loss = (float)NAN;
    fails("the trainer's loss is no finite number after 1 steps");
    script = good;
    script.number = "not a name";
    fails("the trainer calls a number 'not a name'");
    script = good;
    script.state = "";
    part.send_moments = true;
    fails("the trainer's state is no file of 1 to");
}

/* A trainer of its own data may count what it likes. */
static void without_data(void **state)
{
    part_init();
    spec = NO_DATA;
    script.samples = 1000;
    struct work *w = train();
    OK(w->kind->run(&engine, w, err));
    assert_int_equal(w->result.samples, 3000);
    from_worker *m = heard(SKERRY__TRAINER__V1__FROM_WORKER__WHAT_PHASE);
    assert_true(m->phase->samples == 0);
    assert_int_equal(m->phase->kind, SKERRY__TRAINER__V1__SAMPLE_KIND__SAMPLE_KIND_NONE);
    skerry__trainer__v1__from_worker__free_unpacked(m, NULL);
    m = heard(SKERRY__TRAINER__V1__FROM_WORKER__WHAT_SAMPLES);
    assert_true(m->samples->last && m->samples->n_ends == 0);
    skerry__trainer__v1__from_worker__free_unpacked(m, NULL);
    end(w);
}

static void what_it_needs(void **state)
{
    static uint8_t moments[32] = {9};
    Skerry__V1__Blob blob = SKERRY__V1__BLOB__INIT;
    part_init();
    struct work *w = train();
    OK(w->kind->plan(&engine, w, err));
    assert_int_equal(w->n_needs, 1);
    assert_memory_equal(w->needs[0].sha256, shard.sha256, 32);
    end(w);
    blob.sha256 = (ProtobufCBinaryData){32, moments};
    blob.size = 1;
    blob.url = (char *)(uintptr_t) "/v1/blobs/x";
    part.moments = &blob;
    w = train();
    OK(w->kind->plan(&engine, w, err));
    assert_int_equal(w->n_needs, 2);
    assert_memory_equal(w->needs[1].sha256, moments, 32);
    end(w);
}

/* Its own numbers are told with each step. */
static void numbers(void **state)
{
    struct progress_view v;
    part_init();
    script.number = "entropy";
    struct work *w = train();
    OK(w->kind->run(&engine, w, err));
    progress_take(&w->progress, &v);
    assert_int_equal(v.told.n_number_names, 1);
    assert_string_equal(v.told.number_names[0], "entropy");
    for (unsigned i = 0; i < STEPS; i++)
        assert_true(v.points[i].numbers[0] == i);
    end(w);
}

/* A task that is taken back is left at once, but for the first step of a trainer that the job will
 * need again: it may be compiling. */
static void taken_back(void **state)
{
    for (int goes_on = 0; goes_on < 2; goes_on++) {
        struct progress_view v;
        struct err e = {0};
        part_init();
        struct work *w = train();
        struct external *x = NULL;
        OK(trainers_get(&engine, w, &x, err));
        atomic_store(&w->job_goes_on, goes_on);
        atomic_store(&w->stop, WORK_REVOKED);
        assert_int_equal(w->kind->run(&engine, w, &e), -ERR_CANCELLED);
        progress_take(&w->progress, &v);
        assert_int_equal(v.told.n_points, goes_on);
        assert_int_equal(w->result.n_outputs, 0);
        end(w);
    }
}

/* A phase bounded by time has used whole windows: one that was begun is used once more. */
static void bounded_by_time(void **state)
{
    part_init();
    part.steps = 0;
    part.seconds = 60;
    struct work *w = train(); /* windows of a batch */
    OK(w->kind->run(&engine, w, err));
    assert_int_equal(w->result.samples, 12);
    from_worker *m = heard(SKERRY__TRAINER__V1__FROM_WORKER__WHAT_PHASE);
    assert_true(m->phase->seconds == 60 && m->phase->steps == 0 && m->phase->samples == SAMPLES);
    skerry__trainer__v1__from_worker__free_unpacked(m, NULL);
    end(w);
    script.samples = 3;
    w = train();
    OK(w->kind->run(&engine, w, err));
    assert_int_equal(w->result.samples, 8); /* of 9 */
    end(w);
    script.samples = 1;
    w = train();
    OK(w->kind->run(&engine, w, err));
    assert_int_equal(w->result.samples, 3); /* a phase of none would be refused */
    end(w);
    script = (struct script){.steps = 10, .samples = 4, .loss = 1};
    w = train();
    OK(w->kind->run(&engine, w, err));
    assert_int_equal(w->result.samples, SAMPLES);
    end(w);
}

static const struct work_output *moments_of(const struct work *w)
{
    for (size_t i = 0; i < w->result.n_outputs; i++)
        if (w->result.outputs[i].role == WORK_MOMENTS)
            return &w->result.outputs[i];
    return NULL;
}

/* had: the state that the trainer gets; NULL: none. */
static void expect_phase(bool goes_on, const char *had)
{
    struct buf b;
    int passed = -1;
    from_worker *m = heard_with(SKERRY__TRAINER__V1__FROM_WORKER__WHAT_PHASE, &passed);
    assert_int_equal(m->phase->goes_on, goes_on);
    assert_int_equal(m->phase->has_state, had != NULL);
    assert_int_equal(m->phase->wants_state, part.send_moments);
    assert_int_equal(passed >= 0, had != NULL);
    if (had) {
        OK(file_read_fd(passed, "state", 100, &b, err));
        assert_string_equal(buf_str(&b), had);
        buf_release(&b);
        (void)close(passed);
    }
    skerry__trainer__v1__from_worker__free_unpacked(m, NULL);
}

/* A phase by a trainer of its own, that leaves a state. */
static void phase_alone(uint64_t first_step, const char *had, const char *left)
{
    part.first_step = first_step;
    script.state = left;
    struct work *w = train();
    OK(w->kind->run(&engine, w, err));
    expect_phase(false, had);
    end(w);
}

/* The optimiser goes on where it stands; in another process it gets the state that was kept. */
static void its_state(void **state)
{
    struct buf b;
    part_init();
    part.send_moments = true;
    script.state = "moments";
    struct work *w = train();
    OK(w->kind->run(&engine, w, err));
    const struct work_output *o = moments_of(w);
    assert_non_null(o);
    OK(file_read(o->path, 100, &b, err));
    assert_true(b.len == 7 && memcmp(b.data, "moments", 7) == 0 && o->size == 7);
    buf_release(&b);
    expect_phase(false, NULL);
    work_free(w); /* the trainer stays */

    part.first_step = STEPS;
    w = train();
    say_steps(puppet_fd);
    OK(w->kind->run(&engine, w, err));
    expect_phase(true, NULL);
    work_free(w);

    part.first_step = 3 * STEPS; /* another worker has made the phase between */
    w = train();
    say_steps(puppet_fd);
    OK(w->kind->run(&engine, w, err));
    expect_phase(false, "moments");
    end(w);

    part.fresh = true;
    w = train();
    OK(w->kind->run(&engine, w, err));
    expect_phase(false, NULL);
    end(w);

    part.fresh = part.send_moments = false;
    w = train();
    OK(w->kind->run(&engine, w, err));
    expect_phase(false, "moments");
    assert_null(moments_of(w));
    end(w);
}

static size_t states_kept(void)
{
    struct file_names names;
    size_t n = 0;
    OK(file_list(engine.state_dir, 1000, &names, err));
    for (size_t i = 0; i < names.n; i++)
        n += str_starts(names.items[i], "external-1-2-5.state");
    file_names_release(&names);
    return n;
}

/* A phase whose end did not count begins again with the state of its start, not with that of its
 * end; what is older than that is not kept. */
static void repeated(void **state)
{
    part_init();
    part.send_moments = true;
    part.replica = 5;
    phase_alone(0, NULL, "one");
    phase_alone(0, NULL, "first");
    phase_alone(STEPS, "first", "second");
    phase_alone(STEPS, "first", "second anew");
    assert_int_equal(states_kept(), 2);
    script.steps = STEPS - 1; /* as a phase bounded by time may */
    phase_alone(2 * STEPS, "second anew", "late");
    script.steps = STEPS;
    phase_alone(2 * STEPS, "second anew", "third");
    phase_alone(3 * STEPS, "third", "fourth");
    assert_int_equal(states_kept(), 2);
}

static int begin_all(void **state)
{
    (void)setup(state);
    shard = cached_shard(SAMPLES);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_phase),      cmocka_unit_test(the_schedule),
        cmocka_unit_test(without_data), cmocka_unit_test(its_word_is_checked),
        cmocka_unit_test(its_state),    cmocka_unit_test(bounded_by_time),
        cmocka_unit_test(numbers),      cmocka_unit_test(what_it_needs),
        cmocka_unit_test(taken_back),   cmocka_unit_test(repeated),
    };
    return cmocka_run_group_tests(tests, begin_all, teardown);
}
