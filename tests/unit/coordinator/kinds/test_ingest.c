/* INGEST: what archives say together. */
#include "tests/unit/coordinator/rig.h"

#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"

#define BY_URL(outer)                                                                              \
    "name: fake\nseed: 3\n"                                                                        \
    "data: {url: [\"http://a/1.tar\", \"http://a/2.tar\"], image_size: 16, max_bad: 5}\n"          \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"                                  \
    "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"                            \
    "outer: {rounds: 2, steps: 2" outer "}\nsample: {count: 4}\n"

static const char by_url[] = BY_URL(", spot_check: false"), compared[] = BY_URL("");

static const char texts_by_url[] =
    "name: fake\nseed: 3\n"
    "data: {url: [\"http://a/1.tar\", \"http://a/2.tar\"]}\n"
    "model: {type: llama, dim: 32, depth: 1, heads: 2, context: 64}\n"
    "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"
    "outer: {rounds: 2, steps: 2}\n";

static uint64_t submit_as(struct rig *r, const char *spec)
{
    const struct submit s = {.spec = spec};
    struct err err = {0};
    uint64_t id = 0;
    if (view_job_submit(r->co, &s, &id, &err) < 0)
        fail_msg("%s", err.msg);
    return id;
}

struct cut {
    uint64_t uncaptioned, tokens;
    uint32_t samples;
    const char *class; /* NULL: "all" */
    bool holdout;
    uint32_t bad; /* samples that are not named */
};

/* Takes an archive and makes a shard of it; false: the result was refused. */
static bool ingest_by(struct rig *r, struct fake *w, const struct cut *cut)
{
    Skerry__V1__Task *t = assign(r, w, TASK_INGEST);
    struct blob_ref ref = put_text(r, t->ingest->url);
    Skerry__V1__ShardInfo shard = SKERRY__V1__SHARD_INFO__INIT, *shards[] = {&shard};
    char *classes[] = {(char *)(uintptr_t)(cut->class != NULL ? cut->class : "all")};
    struct result x;
    assert_false(t->ingest->captions); /* the model is told none */
    begin_result(&x, t, &ref);
    shard.blob = &x.blob;
    shard.samples = cut->samples;
    shard.tokens = cut->tokens;
    shard.holdout = cut->holdout;
    x.m.n_contributions = 0;
    x.m.shards = shards;
    x.m.n_shards = 1;
    x.m.classes = classes;
    x.m.n_classes = 1;
    x.m.uncaptioned = cut->uncaptioned;
    x.m.bad_count = cut->bad;
    return report(r, w, &x);
}

static bool ingest_as(struct rig *r, const struct cut *cut)
{
    return ingest_by(r, &r->workers[0], cut);
}

static bool ingest(struct rig *r, uint64_t uncaptioned)
{
    return ingest_as(r, &(struct cut){.uncaptioned = uncaptioned, .samples = 40});
}

static uint64_t submit_urls(struct rig *r)
{
    return submit_as(r, by_url);
}

/* Workers refuse tasks with larger shards, and the samples of a job are added, multiplied and
 * compared: what a shard has, has a bound. */
static void a_shard_has_bounds(void **state)
{
    static const struct {
        const char *spec;
        struct cut cut;
        const char *why; /* NULL: it is taken */
    } cases[] = {
        {by_url, {.samples = 65536}, NULL},
        {by_url, {.samples = 65537}, "a shard of 65537 samples"},
        {by_url, {.samples = 0}, "a shard of 0 samples"},
        {by_url, {.samples = 4000000000u}, "a shard of 4000000000 samples"},
        {texts_by_url, {.samples = 40, .tokens = 40}, NULL},
        {texts_by_url, {.samples = 40, .tokens = 39}, "40 pieces of text with 39 tokens"},
        {texts_by_url, {.samples = 40, .tokens = UINT64_MAX}, "18446744073709551615 tokens"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *r = *state;
        struct fake *w = &r->workers[0];
        assert_int_equal(join(r, w, SKERRY_VERSION), 0);
        const uint64_t id = submit_as(r, cases[i].spec);
        assert_int_equal(ingest_as(r, &cases[i].cut), cases[i].why == NULL);
        if (cases[i].why != NULL && strstr(w->detail, cases[i].why) == NULL)
            fail_msg("\"%s\", expected \"%s\"", w->detail, cases[i].why);
        assert_int_equal(state_job(&r->co->state, id)->n_shards, cases[i].why == NULL);
        assert_int_equal(end(state), 0);
        assert_int_equal(begin(state), 0);
    }
}

static void uncaptioned_images_add_up(void **state)
{
    struct rig *r = *state;
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    uint64_t id = submit_urls(r);
    assert_true(ingest(r, 2));
    assert_true(ingest(r, 3));
    const struct job *j = state_job(&r->co->state, id);
    assert_int_equal(j->n_rows, 1);
    assert_string_equal(j->rows[0].name, "images without a caption");
    assert_true(j->rows[0].value == 5);
    assert_null(j->doom);
}

/* When a second worker finds them, too. */
static void too_many_end_the_job(void **state)
{
    struct rig *r = *state;
    struct view_job v;
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    assert_int_equal(join(r, &r->workers[1], SKERRY_VERSION), 0);
    uint64_t id = submit_urls(r);
    assert_true(ingest(r, 3));
    assert_false(ingest(r, 3));
    const struct job *j = state_job(&r->co->state, id);
    assert_int_equal(j->state, JOB_INGESTING);
    assert_true(j->rows[0].value == 3);
    struct fake first = r->workers[0];
    r->workers[0] = r->workers[1];
    r->workers[1] = first;
    assert_false(ingest(r, 3));
    wait_state(r, id, JOB_FAILED);
    assert_int_equal(view_job(r->co, id, &v, NULL), 0);
    assert_non_null(strstr(v.reason, "images without a caption: 6; data.max_bad allows 5"));
}

/* What only one place has said counts for no worker elsewhere. */
static void uncaptioned_for_one(void **state)
{
    struct rig *r = *state;
    struct fake *w = r->workers;
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &w[i], SKERRY_VERSION), 0);
    (void)str_copy(edit_worker(r, w[1].id)->address, 64, "10.0.0.2:1");
    const struct job *j = state_job(&r->co->state, submit_urls(r));
    assert_true(ingest_by(r, &w[0], &(struct cut){.uncaptioned = 5, .samples = 40}));
    assert_true(ingest_by(r, &w[1], &(struct cut){.uncaptioned = 1, .samples = 40}));
    assert_true(j->rows[0].value == 6);
    assert_null(j->doom);
}

/* More shards than a job has are a fault of the data, when a second worker finds them, too. */
static void too_many_shards(void **state)
{
    struct rig *r = *state;
    const struct cut cut = {.samples = 40};
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit_urls(r));
    while (j->n_shards < JOB_SHARDS_MAX)
        *job_add_shard(j) = (struct shard_rec){.samples = 40};
    j->shards_edited.n = 0; /* to write them all takes seconds */
    assert_false(ingest_by(r, &r->workers[0], &cut));
    assert_int_equal(j->state, JOB_INGESTING);
    edit_task(r, 2)->not_before_ms = UINT64_MAX; /* of the two archives */
    assert_false(ingest_by(r, &r->workers[1], &cut));
    wait_state(r, j->id, JOB_FAILED);
    assert_non_null(strstr(j->reason, "the archives make more than 65536 shards"));
}

/* A job of two archives, and three workers in places of their own. */
static struct job *begin_apart_as(struct rig *r, const char *spec)
{
    static const char *const at[] = {"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
        (void)str_copy(edit_worker(r, r->workers[i].id)->address, 64, at[i]);
    }
    return state_job(&r->co->state, submit_as(r, spec));
}

static struct job *begin_apart(struct rig *r)
{
    return begin_apart_as(r, by_url);
}

static bool ingest_class(struct rig *r, unsigned worker, const char *class)
{
    const bool taken =
        ingest_by(r, &r->workers[worker], &(struct cut){.samples = 40, .class = class});
    settle(r);
    return taken;
}

static void nothing_for(struct rig *r, unsigned worker)
{
    ask(r, &r->workers[worker], 10);
    assert_null(got(r, &r->workers[worker]));
}

static uint32_t strikes(struct rig *r, unsigned worker)
{
    return state_worker(&r->co->state, r->workers[worker].id)->strikes;
}

/* The names of the first archive are wrong: two honest workers outvote the one that told them, the
 * archive is cut again, and the one is quarantined; what is on record is right, too. */
static void the_first_lies(void **state)
{
    struct rig *r = *state;
    struct job *j = begin_apart(r);
    const uint64_t id = j->id;
    assert_true(ingest_class(r, 0, "lie"));
    assert_false(ingest_class(r, 1, "cat"));
    assert_int_equal(j->state, JOB_INGESTING);
    assert_int_equal(strikes(r, 1), 0);
    assert_int_equal(state_worker(&r->co->state, r->workers[1].id)->failures_row, 0);
    nothing_for(r, 0); /* it is not asked about itself */
    assert_true(ingest_class(r, 2, "cat"));
    assert_int_equal(j->n_shards, 1);
    nothing_for(r, 0);
    assert_true(ingest_class(r, 1, "cat"));
    assert_int_equal(j->state, JOB_INITIALISING);
    assert_int_equal(j->n_shards, 2);
    assert_int_equal(j->n_classes, 1);
    assert_string_equal(j->classes[0], "cat");
    assert_int_equal(strikes(r, 0), 1);
    assert_int_equal(strikes(r, 1) + strikes(r, 2), 0);
    stop(r);
    start(r);
    j = state_job(&r->co->state, id);
    assert_int_equal(j->n_shards, 2);
    assert_int_equal(j->n_classes, 1);
    assert_string_equal(j->classes[0], "cat");
}

/* The second one lies: the third decides. */
static void the_second_lies(void **state)
{
    struct rig *r = *state;
    struct job *j = begin_apart(r);
    assert_true(ingest_class(r, 0, "cat"));
    assert_false(ingest_class(r, 1, "lie"));
    assert_int_equal(j->state, JOB_INGESTING);
    assert_true(ingest_class(r, 2, "cat"));
    assert_int_equal(j->state, JOB_INITIALISING);
    assert_int_equal(strikes(r, 1), 1);
    assert_int_equal(strikes(r, 0) + strikes(r, 2), 0);
}

/* Archives that do differ end the job: two have seen each of them. */
static void archives_differ(void **state)
{
    struct rig *r = *state;
    struct job *j = begin_apart(r);
    assert_true(ingest_class(r, 0, "cat"));
    assert_false(ingest_class(r, 1, "dog"));
    assert_true(ingest_class(r, 2, "dog"));
    assert_int_equal(j->state, JOB_INGESTING);
    assert_false(ingest_class(r, 1, "cat"));
    assert_int_equal(j->state, JOB_INGESTING);
    assert_false(ingest_class(r, 2, "cat"));
    wait_state(r, j->id, JOB_FAILED);
    assert_non_null(strstr(j->reason, "different names for class 0, 'dog' and 'cat'"));
    assert_int_equal(strikes(r, 0) + strikes(r, 1) + strikes(r, 2), 0);
}

/* Archives of no use end the job when each was cut twice, in two places. */
static void of_no_use(void **state)
{
    const struct cut cut = {.samples = 40, .holdout = true};
    for (int lie = 0; lie < 2; lie++) {
        struct rig *r = *state;
        char what[REASON_MAX];
        struct job *j = begin_apart(r);
        for (unsigned i = 0; i < 2; i++)
            assert_true(ingest_by(r, &r->workers[0], &cut));
        settle(r);
        assert_int_equal(j->state, JOB_INGESTING);
        assert_true(query_stalled(&r->co->state, j, what));
        assert_non_null(strstr(what, "no samples to train on"));
        nothing_for(r, 0);
        for (unsigned i = 1; i < 3; i++)
            assert_true(lie ? ingest_class(r, i, NULL) : ingest_by(r, &r->workers[i], &cut));
        wait_state(r, j->id, lie ? JOB_INITIALISING : JOB_FAILED);
        assert_int_equal(j->n_shards, 2);
        assert_int_equal(end(state), 0);
        assert_int_equal(begin(state), 0);
    }
}

static bool fail_archive(struct rig *r, unsigned worker)
{
    struct result x;
    begin_result(&x, assign(r, &r->workers[worker], TASK_INGEST), NULL);
    x.m.failed = true;
    x.m.reason = (char *)(uintptr_t) "the archive is damaged";
    x.m.failure = SKERRY__V1__FAILURE__FAILURE_TASK;
    return report(r, &r->workers[worker], &x);
}

/* That archives are cut again is nobody's word that they cannot be: a single worker that says so
 * ends nothing, before that or after it.  What helps is said: a worker from elsewhere. */
static void recut_is_no_word(void **state)
{
    struct rig *r = *state;
    const struct cut cut = {.samples = 40, .holdout = true};
    char what[REASON_MAX];
    struct job *j = begin_apart(r);
    assert_true(fail_archive(r, 2));
    edit_worker(r, r->workers[1].id)->state = WORKER_LEFT;
    edit_worker(r, r->workers[2].id)->state = WORKER_LEFT;
    for (unsigned i = 0; i < 2; i++)
        assert_true(ingest_by(r, &r->workers[0], &cut));
    settle(r);
    assert_int_equal(j->state, JOB_INGESTING);
    assert_true(query_stalled(&r->co->state, j, what));
    assert_non_null(strstr(what, "start a worker with another token or address"));
    edit_worker(r, r->workers[1].id)->state = WORKER_HERE;
    assert_true(fail_archive(r, 1));
    settle(r);
    assert_int_equal(j->state, JOB_INGESTING);
    edit_worker(r, r->workers[2].id)->state = WORKER_HERE;
    for (unsigned i = 0; i < 2; i++)
        assert_true(ingest_class(r, 2, NULL));
    assert_int_equal(j->state, JOB_INITIALISING);
}

/* What was counted of archives that are cut again is not counted twice. */
static void recut_counts_once(void **state)
{
    struct rig *r = *state;
    const struct cut cut = {.samples = 40, .holdout = true, .uncaptioned = 2, .bad = 2};
    struct job *j = begin_apart(r);
    for (unsigned i = 0; i < 2; i++)
        assert_true(ingest_by(r, &r->workers[i], &cut));
    settle(r);
    assert_int_equal(j->state, JOB_INGESTING);
    assert_int_equal(j->bad_count, 0);
    for (unsigned i = 0; i < 2; i++)
        assert_true(ingest_by(r, &r->workers[2], &cut));
    settle(r);
    wait_state(r, j->id, JOB_FAILED);
    assert_int_equal(j->bad_count, 4);
    assert_int_equal(j->n_rows, 1);
    assert_true(j->rows[0].value == 4);
}

/* Who is outvoted about one archive is not blamed again for each other one that it had. */
static void blamed_once(void **state)
{
    struct rig *r = *state;
    struct job *j = begin_apart(r);
    assert_true(ingest_class(r, 0, "lie"));
    assert_false(ingest_class(r, 1, "cat"));
    struct task *t = task_make(r->co, j, TASK_INGEST); /* another one that it has cut */
    t->state = TASK_PENDING;
    t->ingest.url = 0;
    assert_true(ingest_class(r, 0, "lie"));
    assert_true(ingest_class(r, 2, "cat"));
    for (unsigned i = 0; i < 2; i++) {
        edit_worker(r, r->workers[1].id)->quarantined_until_ms = 0;
        assert_true(ingest_class(r, 1 + i, "cat"));
    }
    assert_int_equal(j->state, JOB_INITIALISING);
    assert_int_equal(strikes(r, 0), 1);
    assert_int_equal(strikes(r, 1) + strikes(r, 2), 0);
}

/* A restart forgets votes, and what was cut again: the archives in doubt are asked for again, and
 * the names and shards that were dropped are not back. */
static void restart_in_doubt(void **state)
{
    struct rig *r = *state;
    const uint64_t id = begin_apart(r)->id;
    assert_true(ingest_class(r, 0, "lie"));
    assert_false(ingest_class(r, 1, "cat"));
    for (int renamed = 0; renamed < 2; renamed++) {
        if (renamed) {
            assert_false(ingest_class(r, 1, "cat"));
            assert_true(ingest_class(r, 2, "cat"));
        }
        stop(r);
        start(r);
        static const char *const at[] = {"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"};
        for (int i = 0; i < 3; i++) {
            assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
            (void)str_copy(edit_worker(r, r->workers[i].id)->address, 64, at[i]);
        }
        const struct job *j = state_job(&r->co->state, id);
        assert_int_equal(j->state, JOB_INGESTING);
        assert_int_equal(j->n_shards, 1);
        assert_int_equal(j->n_classes, 1);
        assert_string_equal(j->classes[0], renamed ? "cat" : "lie");
    }
    assert_true(ingest_class(r, 1, "cat"));
    const struct job *j = state_job(&r->co->state, id);
    assert_int_equal(j->state, JOB_INITIALISING);
    assert_int_equal(j->n_shards, 2);
}

/* Nobody sees what is in the shards: those of a worker that nobody has confirmed are cut again, and
 * two that agree decide. */
static void shards_are_compared(void **state)
{
    struct rig *r = *state;
    struct job *j = begin_apart_as(r, compared);
    assert_true(ingest_by(r, &r->workers[0], &(struct cut){.samples = 39}));
    settle(r);
    assert_int_equal(j->n_shards, 0);
    for (unsigned i = 1; i < 3; i++)
        assert_true(ingest_class(r, i, NULL));
    assert_int_equal(j->n_shards, 1);
    assert_int_equal(j->shards[0].samples, 40);
    assert_int_equal(state_worker(&r->co->state, r->workers[0].id)->failures_row, 1);
    assert_true(ingest_class(r, 1, NULL)); /* which is confirmed now */
    assert_int_equal(j->state, JOB_INITIALISING);
    assert_int_equal(j->n_shards, 2);
}

/* Also a confirmed worker's, once in a while. */
static void now_and_then(void **state)
{
    struct rig *r = *state;
    struct job *j = begin_apart_as(r, compared);
    edit_worker(r, r->workers[0].id)->confirmed = 1u << TASK_INGEST;
    assert_true(ingest_class(r, 0, NULL));
    assert_int_equal(j->n_shards, 1);
    r->co->opt.look_again = 1;
    assert_true(ingest_class(r, 0, NULL));
    assert_int_equal(j->n_shards, 1);
    nothing_for(r, 0);
    assert_true(ingest_class(r, 1, NULL));
    assert_int_equal(j->state, JOB_INITIALISING);
}

/* A lone worker that cuts too many shards does not end the job: others cut its archives again. */
static void too_many_of_one(void **state)
{
    struct rig *r = *state;
    struct job *j = begin_apart(r);
    assert_true(ingest_class(r, 0, NULL));
    while (j->n_shards < JOB_SHARDS_MAX)
        *job_add_shard(j) = (struct shard_rec){.samples = 40};
    j->shards_edited.n = 0; /* to write them all takes seconds */
    assert_true(ingest_class(r, 1, NULL));
    assert_int_equal(j->state, JOB_INGESTING);
    assert_int_equal(j->shards[j->n_shards - 1].source, 1);
    nothing_for(r, 0);
    assert_true(ingest_class(r, 2, NULL));
    assert_int_equal(j->state, JOB_INITIALISING);
    assert_int_equal(j->n_shards, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_shard_has_bounds, begin, end),
        cmocka_unit_test_setup_teardown(uncaptioned_images_add_up, begin, end),
        cmocka_unit_test_setup_teardown(too_many_end_the_job, begin, end),
        cmocka_unit_test_setup_teardown(uncaptioned_for_one, begin, end),
        cmocka_unit_test_setup_teardown(too_many_shards, begin, end),
        cmocka_unit_test_setup_teardown(the_first_lies, begin, end),
        cmocka_unit_test_setup_teardown(the_second_lies, begin, end),
        cmocka_unit_test_setup_teardown(archives_differ, begin, end),
        cmocka_unit_test_setup_teardown(of_no_use, begin, end),
        cmocka_unit_test_setup_teardown(recut_is_no_word, begin, end),
        cmocka_unit_test_setup_teardown(recut_counts_once, begin, end),
        cmocka_unit_test_setup_teardown(blamed_once, begin, end),
        cmocka_unit_test_setup_teardown(restart_in_doubt, begin, end),
        cmocka_unit_test_setup_teardown(shards_are_compared, begin, end),
        cmocka_unit_test_setup_teardown(now_and_then, begin, end),
        cmocka_unit_test_setup_teardown(too_many_of_one, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
