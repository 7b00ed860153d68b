/* SAMPLE: the shape of the grid, texts that begin with their prompt, limits of the message. */
#include "tests/unit/worker/encoded_task.h"

#define SAMPLE SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE

static uint32_t labels[10] = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4};

static void sample_of_images(Skerry__V1__SampleTask *t, size_t n)
{
    skerry__v1__sample_task__init(t);
    t->labels = labels;
    t->n_labels = n;
    t->steps = 1;
    t->seed = 9;
}

static void sample_of_text(Skerry__V1__SampleTask *t, const char *prompt, uint32_t tokens)
{
    skerry__v1__sample_task__init(t);
    t->prompt = (char *)(uintptr_t)prompt;
    t->tokens = tokens;
    t->temperature = 1;
    t->top_p = 1;
    t->seed = 9;
}

static struct work *sample(const char *spec, Skerry__V1__SampleTask *t)
{
    struct order o;
    order_init(&o, SAMPLE, spec, images, 1);
    o.task.sample = t;
    o.task.n_modules = 1;
    return run(&o);
}

/* Images of 8 pixels a side with one between and around them. */
static void the_grid(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        uint32_t columns;
        int wide, high;
    } cases[] = {{1, 0, 1, 1}, {3, 0, 3, 1}, {10, 0, 8, 2}, {10, 4, 4, 3}, {2, 9, 2, 1}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        Skerry__V1__SampleTask t;
        struct buf png;
        int width, height;
        sample_of_images(&t, cases[i].n);
        t.columns = cases[i].columns;
        struct work *w = sample(IMAGES, &t);
        const struct work_output *out = output_of(w, WORK_RESULT);
        assert_int_equal(w->result.samples, cases[i].n);
        assert_null(w->result.text);
        OK(file_read(out->path, 1 << 20, &png, err));
        assert_int_equal(out->size, png.len);
        OK(image_info(png.data, png.len, &width, &height, err));
        assert_int_equal((width + 1) / 9, cases[i].wide);
        assert_int_equal((height + 1) / 9, cases[i].high);
        buf_release(&png);
        work_free(w);
    }
}

static void texts_go_on_from_the_prompt(void **state)
{
    (void)state;
    Skerry__V1__SampleTask t;
    sample_of_text(&t, "Once upon", 12);
    struct work *w = sample(TEXTS, &t), *again = sample(TEXTS, &t);
    assert_non_null(w->result.text);
    assert_int_equal(strncmp(w->result.text, "Once upon", 9), 0);
    assert_true(strlen(w->result.text) > 9);
    assert_string_equal(w->result.text, again->result.text);
    assert_int_equal(w->result.samples, 1);
    assert_int_equal(w->result.n_outputs, 0);
    work_free(again);
    t.seed++;
    again = sample(TEXTS, &t);
    assert_string_not_equal(w->result.text, again->result.text);
    work_free(again);
    work_free(w);
}

/* A model that the first device cannot hold draws and writes the same. */
static void parts_draw_alike(void **state)
{
    Skerry__V1__SampleTask t;
    struct island *was;
    (void)state;
    sample_of_images(&t, 3);
    t.guidance = 2;
    struct work *whole = sample(IMAGES, &t);
    two_tight_devices(&was);
    struct work *parts = sample(IMAGES, &t);
    assert_true(on_second > 0);
    assert_memory_equal(output_of(parts, WORK_RESULT)->sha256,
                        output_of(whole, WORK_RESULT)->sha256, 32);
    enough_room(was);
    work_free(parts);
    work_free(whole);
    sample_of_text(&t, "Once", 100); /* more than the context holds */
    whole = sample(TEXTS, &t);
    two_tight_devices(&was);
    parts = sample(TEXTS, &t);
    assert_true(on_second > 0);
    assert_string_equal(parts->result.text, whole->result.text);
    enough_room(was);
    work_free(parts);
    work_free(whole);
}

/* ---- latents, beside a replica of another job ---- */

#define PROMPT "a\nab"

struct latents {
    struct order o;
    struct encoded encoded;
    Skerry__V1__SampleTask t;
    uint8_t version[32];
};

/* Draws two pictures, of captions or of classes, by the first version of a model. */
static void latents_init(struct latents *l, bool captions)
{
    struct order first;
    const char *spec = ENCODED_SPEC("", "");
    order_init(&first, SKERRY__V1__TASK_KIND__TASK_KIND_INIT, spec, images, 1);
    encoded_order(&l->encoded, &first, captions);
    first.task.n_modules = 1;
    struct work *w = run(&first);
    const struct work_output *out = output_of(w, WORK_CONTRIBUTION);
    memcpy(l->version, out->sha256, 32);
    host_put(&host, out->path, l->version);
    order_init(&l->o, SAMPLE, spec, images, 1);
    encoded_order(&l->encoded, &l->o, captions);
    sample_of_images(&l->t, 2);
    if (captions)
        l->t.prompt = (char *)(uintptr_t)PROMPT;
    l->o.task.sample = &l->t;
    l->o.task.n_modules = 1;
    l->o.full.sha256 = l->o.module.sha256 = (ProtobufCBinaryData){32, l->version};
    l->o.full.size = out->size;
    work_free(w);
}

/* The text encoder is the first to need room. */
static void captions_have_room(void **state)
{
    struct latents l;
    (void)state;
    latents_init(&l, true);
    for (int wide = 0; wide < 2; wide++) {
        keep_replica(wide ? 64 << 20 : 1 << 10);
        work_free(run(&l.o));
        assert_int_equal(refusals, 0);
        assert_int_equal(kept_replica_was_there(), wide);
    }
}

/* Opens the encoder of the job's set; the files are those of w, which has just run. */
static void open_encoder(const struct work *w)
{
    uint8_t image[8 * 8 * 3] = {0};
    uint16_t moments[2 * 4 * 4 * 4];
    assert_non_null(w);
    OK(encoders_images(host.engine->encoders[0], image, NULL, 1, moments, err));
}

/* There is a byte too little for all that drawing takes beside the encoder; the last of it is the
 * decoder. */
static void decoders_have_room(void **state)
{
    struct latents l;
    (void)state;
    latents_init(&l, false);
    struct work *first = run(&l.o);
    encoders_rest(host.engine);
    open_encoder(first);
    const uint64_t before = peak = given;
    l.o.task.id = next_task++;
    work_free(run(&l.o));
    const uint64_t takes = peak - before;
    keep_replica(PLENTY);
    l.o.task.id = next_task++;
    struct work *second = run(&l.o);
    encoders_rest(host.engine);
    open_encoder(second);
    says = gives = given + takes - 1;
    l.o.task.id = next_task++;
    work_free(run(&l.o));
    assert_int_equal(refusals, 0);
    assert_false(kept_replica_was_there());
    work_free(second);
    work_free(first);
}

/* ---- the message ---- */

static int check(Skerry__V1__SampleTask *t, struct err *err)
{
    Skerry__V1__Task task = SKERRY__V1__TASK__INIT;
    task.sample = t;
    task.n_classes = 5;
    return kind_find(kinds_all, SAMPLE)->check(&task, err);
}

static void limits_of_images(void **state)
{
    (void)state;
    Skerry__V1__SampleTask t;
    sample_of_images(&t, 10);
    t.steps = 1000;
    t.guidance = 100;
    t.columns = 1024;
    OK(check(&t, err));
    t.columns = 1025;
    FAILS(check(&t, err), "sample.columns is 1025, at most 1024 are allowed");
    t.columns = 0;
    t.guidance = 100.5f;
    FAILS(check(&t, err), "sample.guidance is 100.5, expected 0..100");
    t.guidance = -1;
    FAILS(check(&t, err), "sample.guidance is -1, expected 0..100");
    t.guidance = 0;
    t.steps = 1001;
    FAILS(check(&t, err), "sample.steps is 1001, expected 1..1000");
    t.steps = 1;
    labels[9] = 5;
    FAILS(check(&t, err), "sample.labels[9] is 5, but there are 5 classes");
    labels[9] = 4;
    OK(check(&t, err));
}

static void limits_of_texts(void **state)
{
    (void)state;
    Skerry__V1__SampleTask t;
    sample_of_text(&t, "", 4096);
    t.temperature = 10;
    OK(check(&t, err)); /* labels and steps are not asked for */
    t.tokens = 4097;
    FAILS(check(&t, err), "sample.tokens is 4097, at most 4096 are allowed");
    t.tokens = 1;
    t.temperature = 10.5f;
    FAILS(check(&t, err), "sample.temperature is 10.5, expected 0..10");
    t.temperature = -1;
    FAILS(check(&t, err), "sample.temperature is -1, expected 0..10");
    t.temperature = 0;
    t.top_p = 1.5f;
    FAILS(check(&t, err), "sample.top_p is 1.5, expected above 0, at most 1");
    t.top_p = NAN;
    FAILS(check(&t, err), "expected above 0, at most 1");
    t.top_p = 0.1f;
    OK(check(&t, err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_grid),           cmocka_unit_test(texts_go_on_from_the_prompt),
        cmocka_unit_test(parts_draw_alike),   cmocka_unit_test(limits_of_images),
        cmocka_unit_test(limits_of_texts),    cmocka_unit_test(captions_have_room),
        cmocka_unit_test(decoders_have_room),
    };
    return cmocka_run_group_tests(tests, encoded_setup, encoded_teardown);
}
