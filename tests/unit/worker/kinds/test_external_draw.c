/* EVAL and SAMPLE by a trainer: what it is asked, and what of its answers counts. */
#include "tests/unit/worker/kinds/external_task.h"

#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "worker/order/task_check.h"

#define EVAL SKERRY__V1__TASK_KIND__TASK_KIND_EVAL
#define SAMPLE SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE
#define SAMPLES 10

static struct test_shard shard;

/* What the trainer will say. */
static struct script {
    bool unable, silent; /* it cannot; it takes no samples */
    double loss_sum;
    uint64_t units;
    const char *names[3], *text;
    double values[3];
    const void *file; /* passed with its last words; NULL: none */
    size_t len;
} script;

static void speaks(int fd)
{
    Skerry__Trainer__V1__SamplesWanted wanted = SKERRY__TRAINER__V1__SAMPLES_WANTED__INIT;
    Skerry__Trainer__V1__Progress progress = SKERRY__TRAINER__V1__PROGRESS__INIT;
    Skerry__Trainer__V1__Done done = SKERRY__TRAINER__V1__DONE__INIT;
    Skerry__Trainer__V1__Number number[3], *numbers[3];
    int passed = -1;
    say_hello(fd, !script.unable);
    if (!script.silent)
        say(fd, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_SAMPLES_WANTED, &wanted, -1);
    progress.samples = 3;
    say(fd, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_PROGRESS, &progress, -1);
    say(fd, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_PROGRESS, &progress, -1);
    for (; done.n_numbers < 3 && script.names[done.n_numbers]; done.n_numbers++) {
        Skerry__Trainer__V1__Number *n = &number[done.n_numbers];
        skerry__trainer__v1__number__init(n);
        n->name = (char *)(uintptr_t)script.names[done.n_numbers];
        n->value = script.values[done.n_numbers];
        numbers[done.n_numbers] = n;
    }
    done.numbers = numbers;
    done.loss_sum = script.loss_sum;
    done.units = script.units;
    if (script.text)
        done.text = (char *)(uintptr_t)script.text;
    if (script.file) {
        passed = memfd_create("picture", MFD_CLOEXEC);
        assert_true(passed >= 0);
        OK(file_pwrite_all(passed, script.file, script.len, 0, "picture", err));
    }
    say(fd, SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_DONE, &done, passed);
    if (passed >= 0)
        (void)close(passed);
}

/* ---- EVAL ---- */

static struct work *eval(uint32_t most)
{
    struct order o;
    Skerry__V1__EvalTask part = SKERRY__V1__EVAL_TASK__INIT;
    order_init(&o, EVAL, PICTURES);
    o.shard.sha256 = (ProtobufCBinaryData){32, shard.sha256};
    o.shard.size = 1;
    o.range.count = SAMPLES;
    part.ranges = o.ranges;
    part.n_ranges = 1;
    part.samples = most;
    o.task.eval = &part;
    return begin(&o, speaks);
}

static void expect_order(uint64_t samples)
{
    from_worker *m = heard(SKERRY__TRAINER__V1__FROM_WORKER__WHAT_EVALUATE);
    assert_int_equal(m->evaluate->kind, SKERRY__TRAINER__V1__SAMPLE_KIND__SAMPLE_KIND_IMAGE);
    assert_int_equal(m->evaluate->samples, samples);
    assert_int_equal(m->evaluate->batch, 64);
    skerry__trainer__v1__from_worker__free_unpacked(m, NULL);
}

/* The trainer has the task's weights. */
static void expect_weights(struct work *w)
{
    struct external *x = NULL;
    OK(trainers_get(&engine, w, &x, err));
    const struct tensors_item *item = tensors_find(external_tensors(x), "w");
    assert_memory_equal(external_shared(x) + item->offset, version0, sizeof(version0));
}

static void a_loss(void **state)
{
    struct progress_view v;
    script = (struct script){.loss_sum = 6, .units = 4};
    for (uint32_t most = 0; most <= 5; most += 5) {
        struct work *w = eval(most);
        const struct work_result *r = &w->result;
        OK(w->kind->plan(&engine, w, err));
        assert_int_equal(w->n_needs, 1);
        assert_memory_equal(w->needs[0].sha256, shard.sha256, 32);
        OK(w->kind->run(&engine, w, err));
        expect_weights(w);
        assert_true(r->loss_sum == 6 && r->units == 4 && r->loss_mean == 1.5f);
        assert_int_equal(r->samples, most ? most : SAMPLES);
        expect_order(most ? most : SAMPLES);
        progress_take(&w->progress, &v);
        assert_int_equal(v.told.samples_done, 6);
        assert_int_equal(v.told.steps_total, most ? most : SAMPLES);
        end(w);
    }
    /* Of samples that it has not taken there is no loss. */
    script.silent = true;
    struct work *w = eval(0);
    OK(w->kind->run(&engine, w, err));
    assert_int_equal(w->result.samples, 0);
    end(w);
}

static void eval_fails(const char *text)
{
    struct work *w = eval(0);
    FAILS(w->kind->run(&engine, w, err), text);
    assert_int_equal(w->result.units, 0);
    end(w);
}

static void no_loss(void **state)
{
    script = (struct script){.loss_sum = 6};
    eval_fails("held-out loss is 6 over 0 losses");
    script = (struct script){.loss_sum = (double)NAN, .units = 4};
    eval_fails("held-out loss is nan");
    script = (struct script){.loss_sum = (double)INFINITY, .units = 4};
    eval_fails("held-out loss is inf");
    script = (struct script){.loss_sum = 6, .units = 4, .unable = true};
    eval_fails("the job's trainer does not evaluate");
}

/* Numbers keep the places of their names in the task; one without a valid name is left out. */
static void numbers(void **state)
{
    script = (struct script){
        .loss_sum = 1, .units = 1, .names = {"accuracy", "a\nb", "f1"}, .values = {0.5, 1, 0.25}};
    struct work *w = eval(0);
    const struct work_result *r = &w->result;
    OK(progress_number(&w->progress, "older", err));
    OK(w->kind->run(&engine, w, err));
    assert_int_equal(r->n_numbers, 3);
    assert_true(isnan(r->numbers[0]) && r->numbers[1] == 0.5 && r->numbers[2] == 0.25);
    assert_int_equal(progress_number(&w->progress, "f1", NULL), 2);
    end(w);
}

static void a_stop(void **state)
{
    script = (struct script){.loss_sum = 6, .units = 4};
    struct work *w = eval(0);
    struct err e = {0};
    atomic_store(&w->stop, WORK_REVOKED);
    assert_int_equal(w->kind->run(&engine, w, &e), -ERR_CANCELLED);
    assert_int_equal(w->result.units, 0);
    end(w);
}

/* ---- SAMPLE ---- */

static struct work *sample(const char *spec, uint32_t tokens)
{
    static uint32_t labels[] = {2, 0, 1};
    static char *classes[] = {(char *)(uintptr_t) "a", (char *)(uintptr_t) "b",
                              (char *)(uintptr_t) "c"};
    struct order o;
    Skerry__V1__SampleTask part = SKERRY__V1__SAMPLE_TASK__INIT;
    order_init(&o, SAMPLE, spec);
    part.prompt = (char *)(uintptr_t) "Once";
    part.tokens = tokens;
    part.temperature = 0.5f;
    part.top_p = 0.75f;
    part.seed = 9;
    part.labels = labels;
    part.n_labels = 3;
    part.columns = 2;
    part.steps = 1;
    o.task.classes = classes;
    o.task.n_classes = 3;
    o.task.sample = &part;
    return begin(&o, speaks);
}

static void a_text(void **state)
{
    script = (struct script){.silent = true, .text = "upon a time"};
    struct work *w = sample(PICTURES, 5);
    OK(w->kind->run(&engine, w, err));
    assert_string_equal(w->result.text, "upon a time");
    assert_int_equal(w->result.n_outputs, 0);
    from_worker *m = heard(SKERRY__TRAINER__V1__FROM_WORKER__WHAT_DRAW);
    const Skerry__Trainer__V1__Draw *d = m->draw;
    assert_string_equal(d->prompt, "Once");
    assert_true(d->tokens == 5 && d->temperature == 0.5f && d->top_p == 0.75f && d->seed == 9);
    assert_true(d->n_labels == 3 && d->labels[0] == 2 && d->columns == 2);
    skerry__trainer__v1__from_worker__free_unpacked(m, NULL);
    end(w);
}

static void sample_fails(const char *spec, uint32_t tokens, const char *text)
{
    struct work *w = sample(spec, tokens);
    FAILS(w->kind->run(&engine, w, err), text);
    assert_null(w->result.text);
    end(w);
}

static void no_text(void **state)
{
    static char most[TASK_TEXT_MAX + 2];
    memset(most, 'a', TASK_TEXT_MAX);
    script = (struct script){.silent = true, .text = most};
    struct work *w = sample(PICTURES, 5);
    OK(w->kind->run(&engine, w, err));
    assert_int_equal(strlen(w->result.text), TASK_TEXT_MAX);
    end(w);
    most[TASK_TEXT_MAX] = 'a';
    sample_fails(PICTURES, 5, "a text of 65537 bytes, expected UTF-8 of at most 65536");
    script.text = "a\xff";
    sample_fails(PICTURES, 5, "expected UTF-8");
    script.unable = true;
    sample_fails(PICTURES, 5, "the job's trainer does not draw");
}

static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n', 1, 2, 3};

static void expect_picture(const struct work *w)
{
    struct buf b;
    uint8_t sha256[32];
    assert_int_equal(w->result.n_outputs, 1);
    const struct work_output *o = &w->result.outputs[0];
    OK(file_read(o->path, 100, &b, err));
    assert_int_equal(b.len, sizeof(png));
    assert_memory_equal(b.data, png, sizeof(png));
    hash_sha256(png, sizeof(png), sha256);
    assert_true(o->size == sizeof(png) && o->role == WORK_RESULT);
    assert_memory_equal(o->sha256, sha256, 32);
    buf_release(&b);
}

static void a_picture(void **state)
{
    script = (struct script){.silent = true, .text = "besides", .file = png, .len = sizeof(png)};
    struct work *w = sample(PICTURES, 0);
    OK(w->kind->run(&engine, w, err));
    expect_picture(w);
    assert_null(w->result.text);
    assert_int_equal(w->result.samples, 3);
    end(w);
}

static void no_picture(void **state)
{
    static const uint8_t gif[] = "GIF89a, and so on";
    script = (struct script){.silent = true, .file = gif, .len = sizeof(gif)};
    sample_fails(PICTURES, 0, "something that is no PNG");
    script.file = png;
    script.len = 7;
    sample_fails(PICTURES, 0, "no picture of at most 64 MiB");
    script.file = NULL;
    sample_fails(PICTURES, 0, "no picture of at most 64 MiB");
    script.len = (64 << 20) + 1;
    uint8_t *large = mem_alloc(script.len);
    memcpy(large, png, sizeof(png));
    script.file = large;
    sample_fails(PICTURES, 0, "no picture of at most 64 MiB");
    mem_free(large);
}

/* A job without data of ours: its trainer draws what it likes. */
static void either(void **state)
{
    script = (struct script){.silent = true, .text = "a text", .file = png, .len = sizeof(png)};
    struct work *w = sample(NO_DATA, 0);
    OK(w->kind->run(&engine, w, err));
    assert_string_equal(w->result.text, "a text");
    end(w);
    script.text = NULL;
    w = sample(NO_DATA, 5);
    OK(w->kind->run(&engine, w, err));
    expect_picture(w);
    end(w);
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
        cmocka_unit_test(a_loss), cmocka_unit_test(no_loss),   cmocka_unit_test(numbers),
        cmocka_unit_test(a_stop), cmocka_unit_test(a_text),    cmocka_unit_test(no_text),
        cmocka_unit_test(either), cmocka_unit_test(a_picture), cmocka_unit_test(no_picture),
    };
    return cmocka_run_group_tests(tests, begin_all, teardown);
}
