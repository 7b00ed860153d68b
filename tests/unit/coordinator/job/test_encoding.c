/* A job whose pictures are encoded before it trains: what must come with it, its ENCODE tasks, the
 * shards that take the place of the old ones, and the restart in the middle. */
#include "coordinator/job/submit.h"
#include "coordinator/work/query.h"
#include "tests/unit/coordinator/rig.h"

#include <sys/statvfs.h>

#define JOB(run, depth, train, steps)                                                              \
    "name: fake\nseed: 3\ndata: {path: x, image_size: 16}\nencoders: {vae: v, run: " run "}\n"     \
    "model: {type: dit, patch: 4, dim: 32, depth: " depth ", heads: 2}\n"                          \
    "train: {batch: 4, lr: 0.1" train "}\nrecipe: {name: diloco, replicas: 2}\n"                   \
    "outer: {rounds: 2, steps: " steps "}\nsample: {count: 4}\n"

static int submit_as(struct rig *r, const char *job, const struct encoder_file *files, size_t n,
                     uint64_t *ret, struct err *err)
{
    static const char *const classes[] = {"cat", "dog"};
    static const uint64_t counts[] = {20, 20};
    struct blob_ref a = put_text(r, "shard a"), b = put_text(r, "held out");
    struct submit_shard shards[2] = {{.size = a.size, .samples = 40},
                                     {.size = b.size, .samples = 4, .holdout = true}};
    memcpy(shards[0].sha256, a.sha256, 32);
    memcpy(shards[1].sha256, b.sha256, 32);
    static const struct network_input input = {.channels = 4, .side = 8};
    const struct submit s = {.spec = job,
                             .input = &input,
                             .classes = classes,
                             .counts = counts,
                             .n_classes = 2,
                             .shards = shards,
                             .n_shards = 2,
                             .encoders = files,
                             .n_encoders = n};
    return view_job_submit(r->co, &s, ret, err);
}

static int submit_with(struct rig *r, const struct encoder_file *files, size_t n, uint64_t *ret,
                       struct err *err)
{
    return submit_as(r, JOB("job", "1", "", "2"), files, n, ret, err);
}

static struct encoder_file vae_file(struct rig *r)
{
    struct encoder_file f = {.part = 0, .name = "config.json", .blob = put_text(r, "{}")};
    return f;
}

static void test_files(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    uint64_t id = 0;
    struct encoder_file text = vae_file(r), gone = text;
    text.part = 1;
    gone.blob.sha256[0] ^= 1;
    assert_true(submit_with(r, NULL, 0, &id, &err) < 0);
    assert_non_null(strstr(err.msg, "names a VAE, but its files were not uploaded with it"));
    assert_true(submit_with(r, &text, 1, &id, &err) < 0);
    assert_non_null(strstr(err.msg, "config.json was uploaded, but the job file does not name"));
    assert_true(submit_with(r, &gone, 1, &id, &err) < 0);
    assert_non_null(strstr(err.msg, "config.json"));
}

/* Gives the ENCODE task of a worker back with a shard of `samples`. */
static bool encode(struct rig *r, struct fake *w, const Skerry__V1__Task *t, const char *latents,
                   uint32_t samples)
{
    struct result x;
    struct blob_ref made = put_text(r, latents);
    Skerry__V1__ShardInfo info = SKERRY__V1__SHARD_INFO__INIT, *list[1] = {&info};
    begin_result(&x, t, &made);
    x.m.n_contributions = 0;
    info.blob = &x.blob;
    info.samples = samples;
    x.m.shards = list;
    x.m.n_shards = 1;
    return report(r, w, &x);
}

static void test_encoding(void **state)
{
    struct rig *r = *state;
    struct fake *w = &r->workers[0];
    struct err err = {0};
    uint64_t id = 0;
    uint32_t done, total;
    struct encoder_file f = vae_file(r);
    assert_int_equal(join(r, w, SKERRY_VERSION), 0);
    assert_int_equal(submit_with(r, &f, 1, &id, &err), 0);
    const struct job *j = state_job(&r->co->state, id);
    const Skerry__V1__Task *t = assign(r, w, TASK_ENCODE);
    assert_int_equal(j->state, JOB_ENCODING);
    query_progress(&r->co->state, j, &done, &total);
    assert_int_equal(done, 0);
    assert_int_equal(total, 2);
    assert_int_equal(t->n_encoders, 1);
    assert_string_equal(t->encoders[0]->name, "config.json");
    assert_int_equal(t->encode->range->count, 40);
    assert_int_equal(t->input->channels, 4);
    assert_int_equal(t->input->side, 8);

    const struct blob_ref before = j->shards[0].blob;
    assert_false(encode(r, w, t, "latents", 39)); /* a sample is missing */
    assert_memory_equal(j->shards[0].blob.sha256, before.sha256, 32);
    t = assign(r, w, TASK_ENCODE);
    assert_true(encode(r, w, t, "latents", t->encode->range->count));
    t = assign(r, w, TASK_ENCODE);
    assert_true(encode(r, w, t, "more latents", t->encode->range->count));
    assert_memory_not_equal(j->shards[0].blob.sha256, before.sha256, 32);
    assert_int_equal(j->shards[0].samples, 40);
    (void)assign(r, w, TASK_INIT);
    assert_int_equal(j->state, JOB_INITIALISING);
    assert_int_equal(j->n_encoders, 1);
}

static void from(struct rig *r, int i, const char *address)
{
    assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    (void)str_copy(edit_worker(r, r->workers[i].id)->address, 64, address);
}

/* What a new worker brings is made again by another one, and two that agree decide. */
static void test_liar(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    uint64_t id = 0;
    struct encoder_file f = vae_file(r);
    from(r, 0, "10.0.0.1:1");
    from(r, 1, "10.0.0.2:1");
    from(r, 2, "10.0.0.3:1");
    assert_int_equal(submit_with(r, &f, 1, &id, &err), 0);
    const struct job *j = state_job(&r->co->state, id);
    const Skerry__V1__Task *t = assign(r, &r->workers[0], TASK_ENCODE);
    const uint32_t samples = t->encode->range->count, shard = samples == 40 ? 0 : 1;
    const struct blob_ref before = j->shards[shard].blob, right = put_text(r, "latents");
    assert_true(encode(r, &r->workers[0], t, "a lie", samples));
    assert_memory_equal(j->shards[shard].blob.sha256, before.sha256, 32);
    for (int i = 1; i < 3; i++) {
        t = assign(r, &r->workers[i], TASK_ENCODE);
        assert_int_equal(t->encode->range->count, samples);
        assert_true(encode(r, &r->workers[i], t, "latents", samples));
    }
    assert_memory_equal(j->shards[shard].blob.sha256, right.sha256, 32);
    assert_int_equal(state_worker(&r->co->state, r->workers[0].id)->failures_row, 1);
}

/* Each picture is seen 40 times: once, unless the job asks for a pipeline whose bubbles hold it. */
static void test_bubbles(void **state)
{
    static const struct {
        const char *job;
        enum job_state then;
    } cases[] = {
        {JOB("auto", "2", "", "100"), JOB_ENCODING},
        {JOB("auto", "2", ", parallel: pipeline, accumulate: 1", "100"), JOB_INITIALISING},
        {JOB("auto", "2", ", stages: 2, accumulate: 1", "100"), JOB_INITIALISING},
        {JOB("auto", "2", ", parallel: pipeline", "100"), JOB_ENCODING},
        {JOB("auto", "2", ", parallel: pipeline, accumulate: 1, fill: false", "100"), JOB_ENCODING},
    };
    struct rig *r = *state;
    struct encoder_file f = vae_file(r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        uint64_t id = 0;
        if (submit_as(r, cases[i].job, &f, 1, &id, &err) < 0)
            fail_msg("%s", err.msg);
        settle(r);
        if (state_job(&r->co->state, id)->state != cases[i].then)
            fail_msg("case %zu: %s", i, state_job(&r->co->state, id)->reason);
    }
}

static uint64_t disk_free = 1ull << 32;

int statvfs(const char *path, struct statvfs *ret)
{
    *ret = (struct statvfs){.f_bsize = 1, .f_frsize = 1, .f_bavail = disk_free};
    return 0;
}

static void far_health(struct blobstore *s, struct blob_health *ret)
{
    *ret = (struct blob_health){0};
}

/* Latents need room where blobs are: on our disk, or in a store, which has enough up to the quota.
 */
static void test_room(void **state)
{
    struct rig *r = *state;
    const struct blobstore_ops *near = r->co->blobs->ops;
    struct blobstore_ops far = *near;
    struct encoder_file f = vae_file(r);
    far.health = far_health;
    disk_free = 1000;
    for (int i = 0; i < 3; i++) {
        const bool is_far = i > 0, is_full = i > 1;
        struct err err = {0};
        uint64_t id = 0;
        r->co->blobs->ops = is_far ? &far : near;
        r->co->opt.blob_quota_bytes = is_full ? r->co->blobs->used_bytes + 1000 : 0;
        if (submit_as(r, JOB("auto", "2", "", "100"), &f, 1, &id, &err) < 0)
            fail_msg("%s", err.msg);
        settle(r);
        assert_int_equal(state_job(&r->co->state, id)->state,
                         is_far && !is_full ? JOB_ENCODING : JOB_INITIALISING);
    }
    r->co->blobs->ops = near;
    r->co->opt.blob_quota_bytes = 0;
    disk_free = 1ull << 32;
}

static void see(void *arg, const struct view_waiting *v)
{
    char *text = arg;
    const size_t at = strlen(text);
    (void)snprintf(text + at, 1024 - at, "%s: %s\n", v->what, v->why);
}

/* A stage's tasks that wait for the same are told of in one line. */
static void test_waiting(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    uint64_t id = 0;
    char text[1024] = "", expect[128];
    struct encoder_file f = vae_file(r);
    assert_int_equal(submit_with(r, &f, 1, &id, &err), 0);
    loop_turn(r->loop, true);
    const struct task *first = NULL;
    for (size_t i = 0; i < r->co->state.n_tasks && first == NULL; i++)
        if (r->co->state.tasks[i]->kind == TASK_ENCODE)
            first = r->co->state.tasks[i];
    assert_non_null(first);
    view_each_waiting(r->co, id, see, text);
    (void)snprintf(expect, sizeof expect, "ENCODE task %llu and 1 more: no worker is here",
                   (unsigned long long)first->id);
    assert_non_null(strstr(text, expect));

    struct fake *w = &r->workers[0];
    assert_int_equal(join(r, w, SKERRY_VERSION), 0);
    edit_worker(r, w->id)->quarantined_until_ms = UINT64_MAX;
    text[0] = '\0';
    view_each_waiting(r->co, id, see, text);
    assert_non_null(strstr(text, "and 1 more: the only worker is in quarantine after failures"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_files),   TEST(test_encoding), TEST(test_liar),
        TEST(test_bubbles), TEST(test_room),     TEST(test_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
