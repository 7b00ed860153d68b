/* What evaluations and samplers look at, and when they are due. */
#include "coordinator/job/draw.h"
#include "tests/unit/coordinator/bare.h"

/* As `add`, of two classes. */
static struct job *drawn(struct coordinator *co, const char *yaml)
{
    struct job *j = add(&co->state, yaml);
    job_add_class(j, "cat", 5);
    job_add_class(j, "dog", 5);
    return j;
}

/* Held-out shards of 10 of these partitions. */
static void hold_out(struct job *j, const char *partitions)
{
    j->generation = 1;
    for (; *partitions != '\0'; partitions++) {
        struct shard_rec *s = job_add_shard(j);
        s->generation = 1;
        s->holdout = true;
        s->samples = 10;
        s->partition = (uint32_t)(*partitions - '0');
    }
}

static void test_no_eval(void **state)
{
    struct coordinator *co = *state;
    struct job *j = drawn(co, diloco);
    cut(j, "tt");
    assert_null(draw_eval(co, j, 0, 1)); /* nothing is held out */
    cut(j, "h");
    j->spec.eval.samples = 0;
    assert_null(draw_eval(co, j, 0, 1));
    j->spec.eval.samples = 5;
    size_t open = co->state.n_open;
    co->state.n_open = TASKS_OPEN_MAX;
    assert_null(draw_eval(co, j, 0, 1));
    co->state.n_open = open;
    assert_int_equal(co->state.n_tasks, 0);
    assert_non_null(draw_eval(co, j, 0, 1));
}

static void expect_ranges(const struct task *t, size_t n, const uint32_t (*ranges)[2])
{
    uint32_t sum = 0;
    assert_int_equal(t->n_ranges, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(t->ranges[i].shard, ranges[i][0]);
        assert_int_equal(t->ranges[i].start, 0);
        assert_int_equal(t->ranges[i].count, ranges[i][1]);
        sum += ranges[i][1];
    }
    assert_int_equal(t->draw.count, sum);
}

/* No more than the job says, through all the data, which may be of several sources in turn. */
static void test_spread(void **state)
{
    struct coordinator *co = *state;
    struct job *j = drawn(co, diloco);
    cut(j, "hthh");
    j->spec.eval.samples = 16;
    const struct task *t = draw_eval(co, j, 0, 2);
    assert_int_equal(t->draw.version, 2);
    expect_ranges(t, 3, (const uint32_t[][2]){{0, 6}, {2, 6}, {3, 4}});
    j->spec.eval.samples = 1000;
    expect_ranges(draw_eval(co, j, 0, 2), 3, (const uint32_t[][2]){{0, 10}, {2, 10}, {3, 10}});
}

/* From eight places: a worker fetches whole shards.  What one does not have the next one gives. */
static void test_few_shards(void **state)
{
    struct coordinator *co = *state;
    struct job *j = drawn(co, diloco);
    cut(j, "hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh");
    j->spec.eval.samples = 32;
    const struct task *t = draw_eval(co, j, 0, 2);
    expect_ranges(
        t, 8,
        (const uint32_t[][2]){{0, 4}, {4, 4}, {8, 4}, {12, 4}, {16, 4}, {20, 4}, {24, 4}, {28, 4}});
    job_edit_shard(j, 0)->samples = 1;
    t = draw_eval(co, j, 0, 2);
    assert_int_equal(t->draw.count, 32);
    assert_true(t->n_ranges == 9 && t->ranges[0].count == 1);
    assert_true(t->ranges[1].shard == 1 && t->ranges[1].count == 3);
}

/* Of all partitions together evenly from each shard. */
static void test_even(void **state)
{
    struct coordinator *co = *state;
    struct job *j = drawn(co, ddm);
    hold_out(j, "012");
    j->spec.eval.samples = 16;
    const uint32_t router = (uint32_t)j->comp.router_path;
    expect_ranges(draw_eval(co, j, router, 2), 3, (const uint32_t[][2]){{0, 5}, {1, 5}, {2, 6}});
    j->spec.eval.samples = 2; /* a range of nothing is none */
    expect_ranges(draw_eval(co, j, router, 2), 2, (const uint32_t[][2]){{1, 1}, {2, 1}});
}

/* Each partition gets its share of the budget, the rest of a sample is rounded up. */
static void test_shares(void **state)
{
    struct coordinator *co = *state;
    struct job *j = drawn(co, ddm);
    hold_out(j, "0012");
    j->spec.eval.samples = 10;
    assert_int_equal(draw_eval(co, j, 0, 1)->draw.count, 5);
    const struct task *t = draw_eval(co, j, 1, 1);
    assert_int_equal(t->draw.count, 3); /* 2.5 */
    assert_int_equal(t->n_ranges, 1);
    assert_int_equal(t->ranges[0].shard, 2);
    j->spec.eval.samples = 40;
    assert_int_equal(draw_eval(co, j, 1, 1)->draw.count, 10);
}

static void test_labels(void **state)
{
    struct coordinator *co = *state;
    struct job *j = drawn(co, diloco);
    static const uint32_t labels[] = {1, 1, 0};
    j->spec.sample.count = 5;
    const struct task *t = draw_sample(co, j, UINT32_MAX, 3, NULL);
    assert_int_equal(t->path, 0);
    assert_int_equal(t->draw.version, 3);
    assert_int_equal(t->draw.count, 5);
    assert_false(t->draw.asked);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(t->draw.labels[i], i % 2);
    struct draw_request ask = {.labels = labels, .n_labels = 3, .count = 9, .ema = -1};
    t = draw_sample(co, j, 0, 3, &ask); /* labels say how many */
    assert_int_equal(t->draw.count, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(t->draw.labels[i], labels[i]);
    ask.n_labels = 0;
    assert_int_equal(draw_sample(co, j, 0, 3, &ask)->draw.count, 9);
    assert_null(draw_sample(co, add(&co->state, diloco), 0, 3, NULL)); /* no classes */
}

/* Zero, NAN and NULL leave what the job says. */
static void test_asked(void **state)
{
    struct coordinator *co = *state;
    struct job *j = drawn(co, diloco);
    struct job_sample *s = &j->spec.sample;
    s->steps = 11;
    s->columns = 3;
    s->guidance = 2.5;
    s->seed = 77;
    s->sampler = JOB_SAMPLER_HEUN;
    j->spec.outer.ema = 0.9;
    struct draw_request ask = {.guidance = NAN, .seed = 5, .ema = -1, .nucleus = NAN};
    const struct task_draw *d = &draw_sample(co, j, 0, 1, &ask)->draw;
    assert_true(d->asked && d->heun && d->ema);
    assert_int_equal(d->steps, 11);
    assert_int_equal(d->columns, 3);
    assert_true(d->guidance == 2.5f);
    assert_int_equal(d->seed, 77);
    ask = (struct draw_request){.steps = 4, .columns = 1, .guidance = 1, .has_seed = true};
    ask.sampler = "euler";
    ask.remote = true;
    d = &draw_sample(co, j, 0, 1, &ask)->draw;
    assert_false(d->heun || d->ema);
    assert_int_equal(d->steps, 4);
    assert_int_equal(d->columns, 1);
    assert_true(d->guidance == 1.0f);
    assert_int_equal(d->seed, 0);
    ask.guidance = 0; /* without labels */
    assert_true(draw_sample(co, j, 0, 1, &ask)->draw.guidance == 0);
    assert_false(d->remote); /* there are no experts */
}

static void test_mixture(void **state)
{
    struct coordinator *co = *state;
    struct job *j = drawn(co, ddm);
    struct draw_request ask = {.ema = -1, .strategy = "full", .remote = true, .top = 2};
    const struct task *t = draw_sample(co, j, UINT32_MAX, 1, &ask);
    assert_int_equal(t->path, j->comp.router_path);
    assert_true(t->draw.mixture && t->draw.remote);
    assert_int_equal(t->draw.strategy, JOB_STRATEGY_FULL);
    assert_int_equal(t->draw.top, 2);
    t = draw_sample(co, j, 1, 1, &ask); /* one expert alone */
    assert_int_equal(t->path, 1);
    assert_false(t->draw.mixture || t->draw.remote);
}

static void test_text(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add(&co->state, dipaco); /* no classes: texts need none */
    struct draw_request ask = {.ema = -1, .temperature = NAN, .count = 9};
    j->spec.sample.tokens = 20;
    j->spec.sample.temperature = 0.5;
    const struct task_draw *d = &draw_sample(co, j, 2, 1, &ask)->draw;
    assert_int_equal(d->count, 0); /* pictures */
    assert_null(d->labels);
    assert_int_equal(d->tokens, 20);
    assert_true(d->temperature == 0.5f);
    ask.temperature = 0; /* the likeliest token, not: as the job says */
    ask.tokens = 8;
    ask.prompt = "once";
    d = &draw_sample(co, j, 2, 1, &ask)->draw;
    assert_true(d->temperature == 0.0f);
    assert_int_equal(d->tokens, 8);
    assert_string_equal(d->prompt, "once");
}

/* The tasks that a path's round has made, as "EVAL 0, SAMPLE 3 all". */
static void expect_after(struct coordinator *co, struct job *j, uint32_t path, const char *text)
{
    char made[256] = "";
    size_t n = co->state.n_tasks, at = 0;
    if (path == UINT32_MAX)
        draw_last(co, j);
    else
        draw_after_round(co, j, path);
    for (; n < co->state.n_tasks; n++) {
        const struct task *t = co->state.tasks[n];
        at += (size_t)snprintf(made + at, sizeof(made) - at, "%s%s %u%s", at ? ", " : "",
                               task_kind_name(t->kind), t->path, t->draw.mixture ? " all" : "");
    }
    assert_string_equal(made, text);
}

static void test_due(void **state)
{
    struct coordinator *co = *state;
    struct job *j = drawn(co, diloco); /* three rounds */
    cut(j, "th");
    j->spec.eval.every = 2;
    j->spec.sample.every = 1;
    job_edit_path(j, 0)->round = 1;
    expect_after(co, j, 0, "SAMPLE 0");
    job_edit_path(j, 0)->round = 2;
    expect_after(co, j, 0, "EVAL 0, SAMPLE 0");
    j->spec.eval.every = j->spec.sample.every = 0; /* at the end alone */
    expect_after(co, j, 0, "");
    j->spec.eval.every = j->spec.sample.every = 1;
    job_edit_path(j, 0)->round = 3; /* the end has its own */
    expect_after(co, j, 0, "");
    expect_after(co, j, UINT32_MAX, "SAMPLE 0");
}

/* Of paths without a mixture the first one shows how it goes. */
static void test_due_paths(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add(&co->state, dipaco);
    assert_false(j->comp.mixture);
    j->spec.sample.every = 1;
    for (uint32_t p = 0; p < j->comp.n_paths; p++) {
        job_edit_path(j, p)->round = 1;
        expect_after(co, j, p, p == 0 ? "SAMPLE 0" : "");
    }
}

/* The mixture is looked at when the last of its paths has come. */
static void test_due_mixture(void **state)
{
    struct coordinator *co = *state;
    struct job *j = drawn(co, ddm);
    hold_out(j, "012");
    assert_int_equal(j->comp.router_path, 3);
    j->spec.eval.every = j->spec.sample.every = 1;
    j->spec.sample.strategy = JOB_STRATEGY_TOPK;
    j->spec.sample.top = 2;
    for (uint32_t p = 0; p < 3; p++) {
        char text[16];
        job_edit_path(j, p)->round = 1;
        (void)snprintf(text, sizeof(text), "EVAL %u", p);
        expect_after(co, j, p, text);
    }
    job_edit_path(j, 3)->round = 1;
    expect_after(co, j, 3, "EVAL 3, EVAL 3 all, SAMPLE 3 all");
    expect_after(co, j, UINT32_MAX, "EVAL 3 all, SAMPLE 3 all, SAMPLE 0, SAMPLE 1, SAMPLE 2");
    for (size_t i = 0; i < co->state.n_tasks; i++) { /* its loss is of what is drawn */
        const struct task_draw *d = &co->state.tasks[i]->draw;
        assert_true(!d->mixture || (d->strategy == JOB_STRATEGY_TOPK && d->top == 2));
    }
}

/* Keeps as many versions as it can, up to `last`. */
static void at_version(struct job *j, uint32_t module, uint64_t last)
{
    for (uint64_t v = 0; v <= last; v++)
        module_add_version(module_memory(&j->modules[module]), &(struct version_rec){.version = v});
}

/* What is left for later is of a version that is there then, and says so. */
static void test_gone(void **state)
{
    static const struct {
        uint32_t of, then;
        bool sample, mixture, async, hoped;
    } cases[] = {
        {.of = 3, .then = 9},
        {.of = 3, .then = 9, .sample = true},
        {.of = 7, .then = 7},
        {.of = 9, .then = 9},
        {.of = 3, .then = 3, .mixture = true}, /* each of its paths is at another */
        {.of = 3, .then = 3, .async = true},   /* it counts rounds, not versions */
        {.of = 3, .then = 3, .hoped = true},   /* its files are kept for it */
    };
    struct coordinator *co = *state;
    struct job *j = add(&co->state, dipaco);
    at_version(j, j->comp.paths[0].modules[0], 10);
    at_version(j, j->comp.paths[0].modules[1], 9);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct task *t =
            state_add_task(&co->state, 0, j->id, cases[i].sample ? TASK_SAMPLE : TASK_EVAL);
        t->draw.version = cases[i].of;
        t->draw.mixture = cases[i].mixture;
        j->spec.outer.async = cases[i].async;
        job_edit_path(j, 0)->hope.task = cases[i].hoped ? t->id : 0;
        job_edit_path(j, 0)->doubt.best_task =
            t->id; /* a loss to be measured again is of that version */
        draw_renew(j, t);
        assert_int_equal(t->draw.version, cases[i].then);
        assert_int_equal(j->paths[0].doubt.best_task, cases[i].then == cases[i].of ? t->id : 0);
    }
    struct task *t = state_add_task(&co->state, 0, j->id, TASK_SCORE);
    t->score.version = 3;
    draw_renew(j, t);
    assert_int_equal(t->score.version, 3);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, bare_begin, bare_end)
    const struct CMUnitTest tests[] = {
        CASE(test_no_eval), CASE(test_spread), CASE(test_few_shards), CASE(test_even),
        CASE(test_shares),  CASE(test_labels), CASE(test_asked),      CASE(test_mixture),
        CASE(test_text),    CASE(test_due),    CASE(test_due_paths),  CASE(test_due_mixture),
        CASE(test_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
