/* A task's samples, batch by batch: how many there are, and when the reading ends. */
#include "tests/unit/worker/partition_task.h"

#include "worker/data/images.h"
#include "worker/engine/feed.h"
#include "worker/train/eval.h"

struct seen {
    unsigned batches, counts[8], labels, fails_at;
    uint64_t samples, seed, ids[2 * N];
    struct work *stops; /* at the second batch */
};

static int take(void *arg, struct batch *b, struct err *err)
{
    struct seen *s = arg;
    assert_true(s->batches < COUNT(s->counts));
    assert_true(s->batches == 0 || s->seed == b->seed);
    for (unsigned i = 0; i < b->count && b->ids && !b->tokens; i++)
        s->ids[s->samples + i] = b->ids[i];
    for (unsigned i = 0; i < b->count && b->labels; i++)
        s->labels += (unsigned)b->labels[i];
    s->counts[s->batches++] = b->count;
    s->samples += b->samples;
    s->seed = b->seed;
    if (s->stops && s->batches == 2)
        atomic_store(&s->stops->stop, WORK_REVOKED);
    return s->batches == s->fails_at ? err_set(err, -ERR_DEVICE, "enough") : 0;
}

static struct work *begin(const char *spec, const struct test_shard *shards, size_t n,
                          struct order *o)
{
    struct work *w = NULL;
    Skerry__V1__EvalTask part = SKERRY__V1__EVAL_TASK__INIT;
    order_init(o, SKERRY__V1__TASK_KIND__TASK_KIND_EVAL, spec, shards, n);
    part.ranges = o->ranges;
    part.n_ranges = n;
    o->task.eval = &part;
    o->task.n_modules = 1;
    OK(work_new(kinds_all, &o->task, host.cache, host.tmp, &w, err));
    return w;
}

static int each(struct work *w, const struct feed_options *opt, struct seen *s, uint64_t *ret,
                struct err *err)
{
    const Skerry__V1__EvalTask *t = w->task->eval;
    *ret = 99;
    return feed_each(host.engine, w, t->ranges, t->n_ranges, opt, take, s, ret, err);
}

static uint64_t told(struct work *w)
{
    struct progress_view v;
    progress_take(&w->progress, &v);
    return v.told.steps_done;
}

static void images_in_order(void **state)
{
    struct order o;
    struct work *w = begin(IMAGES, images, 1, &o);
    struct feed_options opt = {.batch = 10};
    struct seen s = {0};
    uint64_t n;
    OK(each(w, &opt, &s, &n, err));
    assert_int_equal(n, N);
    assert_true(s.batches == 3 && s.counts[0] == 10 && s.counts[1] == 10 && s.counts[2] == 4);
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(s.ids[i], data_sample_id(images[0].sha256, i));
    assert_int_equal(s.seed, eval_seed(w->spec.seed));
    assert_true(s.labels > 0);
    assert_int_equal(told(w), N);

    /* Some of them: the last batch is cut. */
    opt.most = 13;
    s = (struct seen){0};
    OK(each(w, &opt, &s, &n, err));
    assert_int_equal(n, 13);
    assert_true(s.batches == 2 && s.counts[1] == 3);
    opt.most = 20;
    s = (struct seen){0};
    OK(each(w, &opt, &s, &n, err));
    assert_true(n == 20 && s.batches == 2 && s.counts[1] == 10);
    opt.most = N + 1;
    s = (struct seen){0};
    OK(each(w, &opt, &s, &n, err));
    assert_int_equal(n, N);
    work_free(w);
}

/* Pictures of another size are decoded anew, those of the job's once.  A class that the job has not
 * makes a bad sample, unless nobody asks for classes. */
static void other_sizes_and_classes(void **state)
{
    struct order o;
    struct work *w = begin(IMAGES, images, 1, &o);
    struct feed_options opt = {.batch = 10, .side = 4, .unlabelled = true};
    struct seen s = {0};
    uint64_t n;
    ((Skerry__V1__Task *)(uintptr_t)w->task)->n_classes = 2;
    const size_t held = image_cache_bytes(host.engine->images);
    OK(each(w, &opt, &s, &n, err));
    assert_int_equal(n, N);
    assert_int_equal(image_cache_bytes(host.engine->images), held);
    opt.unlabelled = false;
    s = (struct seen){0};
    OK(each(w, &opt, &s, &n, err));
    assert_int_equal(n, 10); /* two of five classes, of 24 pictures */
    assert_int_equal(s.labels, 5);
    w->spec.data.image_size = 6; /* which nobody has asked for before */
    opt = (struct feed_options){.batch = 10, .unlabelled = true};
    OK(each(w, &opt, &(struct seen){0}, &n, err));
    assert_in_range(image_cache_bytes(host.engine->images), N * 3 * 6 * 6, N * 200);
    work_free(w);
}

/* A picture that cannot be read is left out, and told of if that is asked for. */
static void a_bad_one(void **state)
{
    struct order o;
    struct work *w = begin(IMAGES, images, 2, &o);
    struct feed_options opt = {.batch = 64};
    struct seen s = {0};
    uint64_t n;
    OK(each(w, &opt, &s, &n, err));
    assert_int_equal(n, 2 * N - 1);
    assert_int_equal(w->result.bad_count, 0);
    opt.tell_bad = true;
    OK(each(w, &opt, &(struct seen){0}, &n, err));
    assert_true(w->result.bad_count == 1 && w->result.n_bad == 1);
    assert_non_null(strstr(w->result.bad[0].key, "0003"));
    /* Also if the reading fails later. */
    w->result.bad_count = w->result.n_bad = 0;
    s = (struct seen){.fails_at = 1};
    FAILS(each(w, &opt, &s, &n, err), "enough");
    assert_int_equal(w->result.bad_count, 1);
    work_free(w);

    /* Nothing but bad ones may be no error. */
    w = begin(IMAGES, &images[1], 1, &o);
    Skerry__V1__Range bad = o.range[0], *list = &bad;
    bad.start = 3;
    bad.count = 1;
    s = (struct seen){0};
    FAILS(feed_each(host.engine, w, &list, 1, &opt, take, &s, &n, err), "none of the 1");
    opt.may_be_empty = true;
    OK(feed_each(host.engine, w, &list, 1, &opt, take, &s, &n, err));
    assert_true(n == 0 && s.batches == 0);
    work_free(w);
}

static void the_end_before_the_end(void **state)
{
    struct order o;
    struct work *w = begin(IMAGES, images, 1, &o);
    const struct feed_options opt = {.batch = 10};
    struct seen s = {.fails_at = 2};
    uint64_t n;
    FAILS(each(w, &opt, &s, &n, err), "enough");
    assert_int_equal(n, 10); /* those of the batch that failed are none */
    assert_int_equal(told(w), 10);
    s = (struct seen){.stops = w};
    struct err e = {0};
    assert_int_equal(each(w, &opt, &s, &n, &e), -ERR_CANCELLED);
    assert_true(s.batches == 2 && n == 20);
    work_free(w);
}

/* Rows are not cut; a sample is a piece of text. */
static void texts_in_rows(void **state)
{
    struct order o;
    struct work *w = begin(TEXTS, texts, 1, &o);
    struct feed_options opt = {.batch = 2, .pieces = true};
    struct seen s = {0};
    uint64_t n;
    opt.most = 5;
    OK(each(w, &opt, &s, &n, err));
    assert_int_equal(n, 6);
    assert_true(s.batches == 3 && s.counts[2] == 2);
    opt = (struct feed_options){.batch = 8};
    s = (struct seen){0};
    OK(each(w, &opt, &s, &n, err));
    assert_int_equal(n, N);
    unsigned rows = 0;
    for (unsigned i = 0; i < s.batches; i++)
        rows += s.counts[i];
    assert_in_range(rows, 1, N); /* packed, as far as they fit */
    w->result.n_bad = 0;
    struct data *d = NULL;
    struct batch b;
    opt = (struct feed_options){.batch = 1, .pieces = true, .skip = 9};
    OK(feed_open(host.engine, w, w->task->eval->ranges, 1, &opt, &d, err));
    OK(data_next(d, &b, err));
    assert_int_equal(b.seq, CONTEXT);
    assert_true(b.target[7] < 0 && b.target[8] >= 0);
    data_free(d);
    work_free(w);
}

/* The order of training: of all windows, by the seed; it goes on behind the end if it may. */
static void a_trainers_order(void **state)
{
    struct order o;
    struct work *w = begin(TEXTS, texts, 1, &o);
    const Skerry__V1__EvalTask *t = w->task->eval;
    uint64_t first[2][N];
    for (unsigned seed = 0; seed < 2; seed++) {
        const struct feed_options opt = {
            .batch = 1, .pieces = true, .train = true, .repeat = true, .seed = seed, .window = 8};
        unsigned in_window[N / 8] = {0}, moved = 0;
        struct data *d = NULL;
        struct batch b;
        OK(feed_open(host.engine, w, t->ranges, 1, &opt, &d, err));
        for (unsigned i = 0; i < N; i++) {
            OK(data_next(d, &b, err));
            first[seed][i] = b.ids[0] & 0xffff;
            in_window[first[seed][i] / 8] += first[seed][i] / 8 == i / 8;
            moved += first[seed][i] != i;
        }
        assert_true(in_window[0] == 8 && in_window[1] == 8 && in_window[2] == 8 && moved > 0);
        OK(data_next(d, &b, err));
        assert_int_equal(b.count, 1);
        data_free(d);
    }
    assert_memory_not_equal(first[0], first[1], sizeof(first[0]));
    work_free(w);
}

static void ranges_that_are_not_there(void **state)
{
    struct order o;
    struct work *w = begin(TEXTS, texts, 1, &o);
    const struct feed_options opt = {.batch = 1};
    Skerry__V1__Range far = o.range[0], *list = &far;
    struct data *d = NULL;
    far.start = 1;
    FAILS(feed_open(host.engine, w, &list, 1, &opt, &d, err), "which holds 24");
    assert_null(d);
    work_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_in_order),
        cmocka_unit_test(other_sizes_and_classes),
        cmocka_unit_test(a_bad_one),
        cmocka_unit_test(the_end_before_the_end),
        cmocka_unit_test(texts_in_rows),
        cmocka_unit_test(a_trainers_order),
        cmocka_unit_test(ranges_that_are_not_there),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
