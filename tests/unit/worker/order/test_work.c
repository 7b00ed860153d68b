/* A task in the hands of a worker: its message, what it needs, what it leaves. */
#include "tests/unit/common/base/util.h"

#include <errno.h>

#include "common/data/tokenizer.h"
#include "worker/order/work.h"

static char *top;
static struct cache *cache;
static unsigned checked;

static int check(const Skerry__V1__Task *t, struct err *err)
{
    checked++;
    return t->job_id == 13 ? err_set(err, -ERR_FORMAT, "task: job 13") : 0;
}

static const struct kind only = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_SPLIT, .name = "split", .check = check};
static const struct kind labelled = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_INIT, .name = "init", .labels = true};
static const struct kind theirs = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_INIT, .name = "init", .external = true};
static const struct kind *const kinds[] = {&only, &labelled, &theirs, NULL};

static void task_init(Skerry__V1__Task *t)
{
    skerry__v1__task__init(t);
    t->id = 5;
    t->kind = only.id;
    t->spec = (char *)"name: tiny\ndata: {path: x, image_size: 8}\n"
                      "model: {type: dit, patch: 2, dim: 16, depth: 1, heads: 2}\n"
                      "train: {batch: 4, lr: 1e-3}\nouter: {rounds: 3, steps: 6}\n";
}

static struct work *make(void)
{
    Skerry__V1__Task t;
    struct work *w = NULL;
    task_init(&t);
    OK(work_new(kinds, &t, cache, top, &w, err));
    return w;
}

static void the_list_says_what_is_known(void **state)
{
    Skerry__V1__Task t;
    struct work *w = NULL;
    task_init(&t);
    OK(work_new(kinds, &t, cache, top, &w, err));
    assert_ptr_equal(w->kind, &only);
    assert_int_equal(checked, 1);
    assert_true(w->task != &t && w->task->id == 5); /* its own copy */
    assert_int_equal(w->spec.data.image_size, 8);
    work_free(w);

    w = NULL;
    t.job_id = 13;
    FAILS(work_new(kinds, &t, cache, top, &w, err), "job 13");
    t.kind = SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN;
    FAILS(work_new(kinds, &t, cache, top, &w, err), "not known");
    task_init(&t);
    t.spec = (char *)"no: job\n";
    FAILS(work_new(kinds, &t, cache, top, &w, err), "the job");
    assert_null(w);
}

/* A work dir that somebody has moved away is not begun anew: its worker could not go on with it. */
static void no_root_is_made(void **state)
{
    Skerry__V1__Task t;
    struct work *w = NULL;
    char *gone = file_join(top, "gone");
    (void)state;
    task_init(&t);
    FAILS(work_new(kinds, &t, cache, gone, &w, err), "cannot create");
    assert_null(w);
    assert_false(file_exists(gone));
    mem_free(gone);
}

/* A job with a trainer of the user's has a row of its own, which needs no labels. */
static void a_trainer_has_its_row(void **state)
{
    Skerry__V1__Task t;
    struct work *w = NULL;
    task_init(&t);
    t.kind = labelled.id;
    FAILS(work_new(kinds, &t, cache, top, &w, err), "classes is empty");
    t.n_classes = 1;
    t.classes = (char *[]){(char *)"cat"};
    OK(work_new(kinds, &t, cache, top, &w, err));
    assert_ptr_equal(w->kind, &labelled);
    work_free(w);
    t.n_classes = 0;
    t.spec = (char *)"name: tiny\ndata: {kind: none}\nmodel: {type: external}\n"
                     "trainer: {command: ./train}\ntrain: {batch: 4}\n"
                     "outer: {rounds: 3, steps: 6}\n";
    OK(work_new(kinds, &t, cache, top, &w, err));
    assert_ptr_equal(w->kind, &theirs);
    work_free(w);
}

/* Sizes of latents are believed only beside the VAE that they are checked against: the networks of
 * other sizes than their pictures would read behind them. */
static void inputs_are_those_of_the_job(void **state)
{
    static const struct {
        const char *encoders; /* of the job file */
        bool file;            /* there is a VAE */
        unsigned channels, side;
        bool accepted;
    } cases[] = {
        {"", false, 0, 0, true},
        {"", false, 0, 16, false},
        {"", false, 3, 16, false},
        {"", true, 4, 4, false},
        {"encoders: {text: y}\n", false, 0, 0, true},
        {"encoders: {text: y}\n", true, 4, 4, false},
        {"encoders: {vae: y}\n", true, 4, 4, true},
        {"encoders: {vae: y}\n", true, 4, 0, false},
        {"encoders: {vae: y}\n", true, 0, 4, false},
        {"encoders: {vae: y}\n", false, 4, 4, false},
    };
    uint8_t hash[32] = {0};
    Skerry__V1__Blob blob = SKERRY__V1__BLOB__INIT;
    Skerry__V1__EncoderFile file = SKERRY__V1__ENCODER_FILE__INIT;
    (void)state;
    blob.sha256 = (ProtobufCBinaryData){sizeof hash, hash};
    blob.size = 100;
    blob.url = (char *)"/v1/blobs/x";
    file.name = (char *)"config.json";
    file.part = SKERRY__V1__ENCODER_PART__ENCODER_PART_VAE;
    file.blob = &blob;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Skerry__V1__NetworkInput in = SKERRY__V1__NETWORK_INPUT__INIT;
        Skerry__V1__Task t;
        struct work *w = NULL;
        task_init(&t);
        char *spec = str_printf("%s%s", t.spec, cases[i].encoders);
        t.spec = spec;
        t.input = &in;
        t.n_encoders = cases[i].file;
        t.encoders = (Skerry__V1__EncoderFile *[]){&file};
        in.channels = cases[i].channels;
        in.side = cases[i].side;
        if (cases[i].accepted)
            OK(work_new(kinds, &t, cache, top, &w, err));
        else
            FAILS(work_new(kinds, &t, cache, top, &w, err), "expected those that a VAE makes");
        work_free(w);
        mem_free(spec);
    }
}

static void temporary_files_go_with_it(void **state)
{
    char path[CACHE_PATH_MAX];
    put(top, "task-5-0/left", "x", 1); /* by an attempt before a crash */
    struct work *w = make();
    work_temp_path(w, "left", path);
    assert_false(file_exists(path));
    put(w->temp_dir, "made", "x", 1);
    work_temp_path(w, "made", path);
    assert_true(file_exists(path));
    work_free(w);
    assert_false(file_exists(path));
}

/* Needs are pinned, once each, as long as the work lives. */
static void needs(void **state)
{
    static const uint8_t a[32] = {1}, b[32] = {2}, other[32] = {3};
    char path[CACHE_PATH_MAX];
    struct work *w = make();
    OK(work_need(w, a, 4, "/v1/blobs/a", "a", err));
    OK(work_need(w, b, 4, "/v1/blobs/b", "b", err));
    OK(work_need(w, a, 4, "/v1/blobs/a", "a again", err));
    assert_int_equal(w->n_needs, 2);
    cache_path(cache, a, path);
    OK(file_write_atomic(path, "blob", 4, 0600, err));
    OK(cache_added(cache, a, err));
    OK(cache_set_limit(cache, 1, err));
    assert_true(cache_has(cache, a));
    cache_path(cache, other, path);
    OK(file_write_atomic(path, "blob", 4, 0600, err));
    OK(cache_added(cache, other, err));
    work_check_needs(w);
    assert_true(!w->needs[0].missing && w->needs[1].missing);
    assert_false(cache_has(cache, other)); /* it has made room */
    w->needs[1].missing = false;
    atomic_store(&w->stop, WORK_LEAVING); /* to read all that is here may take minutes */
    work_check_needs(w);
    assert_false(w->needs[1].missing);
    work_free(w);
    OK(cache_set_limit(cache, 1, err));
    assert_false(cache_has(cache, a));
}

static void outputs_and_rows_have_a_maximum(void **state)
{
    struct work *w = make();
    struct work_output *o = NULL;
    for (int i = 0; i < WORK_OUTPUTS_MAX; i++)
        OK(work_output_new(w, WORK_SHARD, "shard", &o, err));
    assert_true(o->role == WORK_SHARD && strstr(o->path, "task-5-0/shard"));
    FAILS(work_output_new(w, WORK_SHARD, "shard", &o, err), "more than 4096");
    assert_null(work_output(w));
    for (int i = 0; i < WORK_ROWS_MAX + 3; i++)
        work_row(w, i, "s", "row %d", i);
    assert_int_equal(w->result.n_rows, WORK_ROWS_MAX);
    assert_string_equal(w->result.rows[7].name, "row 7");
    work_free(w);
}

static void stopped(void **state)
{
    struct work *w = make();
    struct err e = {0};
    assert_false(work_stopped(w, &e));
    assert_int_equal(e.code, 0);
    atomic_store(&w->stop, WORK_REVOKED);
    assert_true(work_stopped(w, &e) && work_stopped(w, NULL));
    assert_true(work_abandoned(w)); /* of a job that is over */
    atomic_store(&w->job_goes_on, true);
    assert_true(work_stopped(w, NULL) && !work_abandoned(w));
    atomic_store(&w->stop, WORK_LEAVING);
    assert_true(work_abandoned(w));
    assert_int_equal(e.code, -ERR_CANCELLED);
    work_free(w);
}

/* No worker will ever read a malformed file that the job brought. */
static void files_of_the_job(void **state)
{
    struct err e = {.code = -ERR_FORMAT};
    assert_int_equal(work_own_file(-ERR_FORMAT, &e), -ERR_CONFIG);
    assert_int_equal(e.code, -ERR_CONFIG);
    assert_int_equal(work_own_file(-EIO, &e), -EIO);
    assert_int_equal(work_own_file(0, NULL), 0);
    struct work *w = make();
    struct tokenizer *t = NULL;
    OK(work_tokenizer(w, &t, err)); /* without a file: bytes */
    assert_int_equal(tokenizer_token_bytes(t, 'x'), 1);
    tokenizer_free(t);
    work_free(w);
    Skerry__V1__Task ids; /* of a tokenizer that nobody named */
    task_init(&ids);
    ids.vocab = TOKENIZER_BYTES_VOCAB + 1;
    OK(work_new(kinds, &ids, cache, top, &w, err));
    OK(work_tokenizer(w, &t, err));
    assert_null(t);
    work_free(w);
}

static int setup(void **state)
{
    top = scratch_new();
    char *dir = in(top, "blobs");
    OK(cache_open(dir, 0, &cache, err));
    mem_free(dir);
    checked = 0;
    return 0;
}

static int teardown(void **state)
{
    cache_close(cache);
    scratch_free(top);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_list_says_what_is_known),
        TEST(no_root_is_made),
        TEST(a_trainer_has_its_row),
        TEST(inputs_are_those_of_the_job),
        TEST(temporary_files_go_with_it),
        TEST(needs),
        TEST(outputs_and_rows_have_a_maximum),
        TEST(stopped),
        TEST(files_of_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
