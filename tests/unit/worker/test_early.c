/* What is fetched while a worker waits: until another word, a task or its end. */
#include "tests/unit/worker/link/fake_line.h"

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/pieces.h"
#include "common/net/pool.h"
#include "common/net/token.h"
#include "worker/early.h"
#include "worker/link/fetch.h"
#include "worker/order/cache.h"
#include "worker/order/modules.h"
#include "worker/order/progress.h"

static char *top;
static struct cache *cache;
static struct modules *modules;
static struct token token = {.host = "coordinator", .http_port = 8443};
static struct progress_beside beside;
static struct fetch_env env;
static struct early *early;
static unsigned done;

/* ---- a word of the coordinator's: one version of one module, whose file is "version N" ---- */

struct word {
    char text[32];
    uint8_t sha256[32];
    Skerry__V1__Blob blob;
    Skerry__V1__ModuleRef ref, *refs[1];
    Skerry__V1__Ahead m;
};

static const Skerry__V1__Ahead *word(struct word *w, uint64_t version)
{
    skerry__v1__blob__init(&w->blob);
    skerry__v1__module_ref__init(&w->ref);
    skerry__v1__ahead__init(&w->m);
    snprintf(w->text, sizeof(w->text), "version %d", (int)version);
    hash_sha256(w->text, strlen(w->text), w->sha256);
    w->blob.sha256 = w->ref.sha256 = (ProtobufCBinaryData){32, w->sha256};
    w->blob.size = strlen(w->text);
    w->blob.url = (char *)(uintptr_t) "/v1/blobs/x";
    w->ref.module_id = 7;
    w->ref.version = version;
    w->ref.full = &w->blob;
    w->refs[0] = &w->ref;
    w->m.modules = w->refs;
    w->m.n_modules = 1;
    return &w->m;
}

static void arrive(unsigned i, const struct word *w)
{
    OK(file_write_atomic(line.at[i].path, w->text, strlen(w->text), 0600, err));
    end_with(i, 0, "");
    turn();
}

static void on_done(void *arg)
{
    done++;
}

static uint64_t newest(void)
{
    struct modules_version held[MODULES_MAX];
    const size_t n = modules_held(modules, held);
    return n > 0 ? held[n - 1].version : 0;
}

/* ---- tests ---- */

static void what_is_named_is_here_then(void **state)
{
    struct word w;
    assert_true(early_take(early, word(&w, 3)));
    compute();
    assert_true(early_busy(early) && line.running == 1);
    arrive(0, &w);
    assert_int_equal(done, 0);
    compute();
    assert_int_equal(done, 1);
    assert_int_equal(newest(), 3);
    assert_false(early_busy(early));
    assert_false(early_take(early, word(&w, 3))); /* the same word: all is here */
    assert_false(early_busy(early));
    assert_null(job.work);
}

static void another_word_is_followed(void **state)
{
    struct word a, b;
    assert_true(early_take(early, word(&a, 3)));
    compute();
    assert_false(early_take(early, word(&a, 3))); /* goes on */
    assert_int_equal(line.cancelled, 0);
    assert_true(early_take(early, word(&b, 4)));
    assert_int_equal(line.cancelled, 1);
    compute();
    arrive(1, &b);
    compute();
    assert_true(done == 1 && newest() == 4);
}

static void no_word_stops_it(void **state)
{
    struct word w;
    assert_true(early_take(early, word(&w, 3)));
    assert_true(early_take(early, NULL)); /* while it plans: the compute thread's answer ends it */
    compute();
    assert_int_equal(line.n, 0);
    assert_true(early_take(early, word(&w, 3)));
    compute();
    assert_true(early_take(early, NULL));
    assert_int_equal(line.cancelled, 1);
    assert_true(early_take(early, word(&w, 3)));
    compute();
    arrive(1, &w);
    assert_true(early_take(early, NULL)); /* while it makes the version */
    compute();
    assert_int_equal(done, 0);
    assert_false(early_busy(early));
}

static void what_cannot_be_had_is_tried_when_named_again(void **state)
{
    struct word w;
    assert_true(early_take(early, word(&w, 3)));
    compute();
    end_with(0, -ERR_NOTFOUND, "404");
    turn();
    assert_false(early_busy(early));
    job.full = true;
    assert_true(early_take(early, word(&w, 3)));
    assert_false(early_busy(early));
    job.full = false;
    assert_true(early_take(early, word(&w, 3)));
    assert_true(early_busy(early));
    compute();
    assert_int_equal(line.n, 2);
    assert_int_equal(done, 0);
}

/* A task that comes meanwhile waits for the compute thread: what that reads and makes are signs. */
static void work_is_a_sign(void **state)
{
    struct progress p;
    struct word w;
    char path[CACHE_PATH_MAX];
    progress_init(&p);
    (void)early_take(early, word(&w, 3));
    compute();
    arrive(0, &w);
    compute();
    assert_int_equal(newest(), 3);
    progress_tell_beside(&beside, NULL);
    (void)early_take(early, NULL);
    cache_path(cache, w.sha256, path); /* another file: it is read again */
    OK(file_write_atomic(path, w.text, strlen(w.text), 0600, err));
    (void)early_take(early, word(&w, 3));
    compute();
    assert_false(pieces_heard());
    progress_tell_beside(&beside, &p);
    assert_int_equal(progress_signs(&p), 1);
    progress_release(&p);
}

static void a_bad_word_is_passed_over(void **state)
{
    struct word w;
    (void)word(&w, 3);
    w.ref.sha256.len = 31;
    assert_true(early_take(early, &w.m));
    Skerry__V1__ModuleRef *many[100];
    Skerry__V1__Blob *blobs[] = {&w.blob};
    (void)word(&w, 3);
    for (size_t i = 0; i < 100; i++)
        many[i] = &w.ref;
    w.m.modules = many;
    w.m.n_modules = 100;
    assert_true(early_take(early, &w.m));
    (void)word(&w, 3);
    w.blob.sha256.len = 0;
    w.m.n_modules = 0;
    w.m.blobs = blobs;
    w.m.n_blobs = 1;
    assert_true(early_take(early, &w.m));
    assert_false(early_busy(early));
    assert_null(job.work);
}

static int setup(void **state)
{
    top = scratch_new();
    char *dir = in(top, "blobs"), *file = in(top, "held");
    OK(cache_open(dir, 0, &cache, err));
    modules = modules_open(file, cache);
    mem_free(dir);
    mem_free(file);
    memset(&line, 0, sizeof(line));
    memset(&job, 0, sizeof(job));
    done = 0;
    beside = (struct progress_beside){0};
    env = (struct fetch_env){.cache = cache, .token = &token, .beside = &beside};
    early = early_new(&(struct early_options){
        .env = &env, .modules = modules, .tmp_dir = top, .on_done = on_done});
    return 0;
}

static int teardown(void **state)
{
    (void)early_take(early, NULL);
    if (job.work != NULL)
        compute();
    early_free(early);
    modules_close(modules);
    cache_close(cache);
    scratch_free(top);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_named_is_here_then), TEST(another_word_is_followed),
        TEST(no_word_stops_it),           TEST(what_cannot_be_had_is_tried_when_named_again),
        TEST(a_bad_word_is_passed_over),  TEST(work_is_a_sign),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
