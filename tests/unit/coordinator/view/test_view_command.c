/* What people may ask for: drawings, other quotas, a cancelled task, a worker that goes, room for
 * an upload.  A whole coordinator (rig.h). */
#include "coordinator/work/query.h"
#include "tests/unit/coordinator/rig.h"

static const struct draw_request nothing = {.guidance = NAN, .temperature = NAN, .ema = -1};

static void refused(struct rig *r, uint64_t job, const struct draw_request *d, int code,
                    const char *why)
{
    struct err err = {0};
    uint64_t task = 0;
    const int rc = view_sample_request(r->co, job, d, &task, &err);
    if (rc != code || !strstr(err.msg, why))
        fail_msg("%d '%s', expected %d '%s'", rc, err.msg, code, why);
    assert_int_equal(task, 0);
}

static void drawings_that_make_no_sense(void **state)
{
    static const uint32_t labels[] = {0, 1, 2};
#define D(...)                                                                                     \
    {                                                                                              \
        .guidance = NAN, .temperature = NAN, .ema = -1, __VA_ARGS__                                \
    }
    static const struct {
        struct draw_request d;
        const char *why; /* NULL: it is drawn */
    } cases[] = {
        {D(.count = VIEW_LABELS_MAX), NULL},
        {D(.count = VIEW_LABELS_MAX + 1), "at most 1024 samples"},
        {D(.n_labels = VIEW_LABELS_MAX + 1, .labels = labels), "at most 1024 samples"},
        {D(.steps = 1000), NULL},
        {D(.steps = 1001), "steps is 1001"},
        {D(.columns = VIEW_LABELS_MAX + 1), "columns 1025"},
        {D(.sampler = "euler"), NULL},
        {D(.sampler = "heun"), NULL},
        {D(.sampler = "ddim"), "sampler is 'ddim'"},
        {D(.has_path = true, .path = 0), NULL},
        {D(.has_path = true, .path = 1), "path 1 cannot be drawn from, the job has paths 0 to 0"},
        {D(.strategy = "best"), "strategy is 'best'"},
        {D(.strategy = "full"), "are for the mixture of a ddm job"},
        {D(.remote = true), "are for the mixture of a ddm job"},
        {D(.top = 1), "are for the mixture of a ddm job"},
        {D(.prompt = "a cat"), "draws images of classes: prompt"},
        {D(.tokens = 5), "are for texts"},
        {D(.top_p = 0.5), "are for texts"},
        {D(.labels = labels, .n_labels = 2), NULL},
        {D(.labels = labels, .n_labels = 3),
         "label 2 does not exist: the job has 2 classes, numbered from 0"},
    };
    struct rig *r = *state;
    struct err err = {0};
    struct draw_request hot = nothing, guided = nothing;
    refused(r, 1, &nothing, -ERR_NOTFOUND, "job 1 does not exist");
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    const uint64_t job = submit(r);
    refused(r, job, &nothing, -ERR_STALE, "has no model yet");
    do_init(r, &r->workers[0]);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint64_t task = 0;
        if (cases[i].why != NULL)
            refused(r, job, &cases[i].d, -EINVAL, cases[i].why);
        else if (view_sample_request(r->co, job, &cases[i].d, &task, &err) < 0 || task == 0)
            fail_msg("case %zu: %s", i, err.msg);
    }
    hot.temperature = 1;
    refused(r, job, &hot, -EINVAL, "are for texts");
    guided.guidance = 101;
    refused(r, job, &guided, -EINVAL, "guidance is 101");
    assert_int_equal(view_job_pause(r->co, job, true, &err), 0);
    refused(r, job, &nothing, -ERR_STALE, "is paused, and no worker draws for it");
}

/* What is not given stays, and what has ended does. */
static void quotas_are_adjusted(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    struct job_swarm q;
    const struct view_adjust share = {.priority = NAN, .share = 2.5, .budget = NAN},
                             others = {.priority = -3, .share = NAN, .budget = 0.5};
    assert_int_equal(view_job_adjust(r->co, 1, &share, &q, &err), -ERR_NOTFOUND);
    const uint64_t job = submit(r);
    const struct job_swarm was = state_job(&r->co->state, job)->quota;
    assert_int_equal(view_job_adjust(r->co, job, &share, &q, &err), 0);
    assert_true(q.share == 2.5 && q.priority == was.priority && q.budget == was.budget);
    assert_int_equal(view_job_adjust(r->co, job, &others, &q, &err), 0);
    assert_true(q.share == 2.5 && q.priority == -3 && q.budget == 0.5);
    assert_true(state_job(&r->co->state, job)->quota.budget == 0.5);
    assert_int_equal(view_job_cancel(r->co, job, &err), 0);
    assert_int_equal(view_job_adjust(r->co, job, &share, &q, &err), -ERR_STALE);
    assert_non_null(strstr(err.msg, "has ended, it is cancelled"));
    assert_int_equal(view_job_cancel(r->co, job, &err), -ERR_STALE);
}

/* A drawing that a person asked for, while it is open; no part of a job. */
static void tasks_are_cancelled(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    uint64_t task = 0;
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    const uint64_t job = submit(r);
    assert_int_equal(view_task_cancel(r->co, 77, &err), -ERR_NOTFOUND);
    const struct task *init = state_task(&r->co->state, assign(r, &r->workers[0], TASK_INIT)->id);
    assert_int_equal(view_task_cancel(r->co, init->id, &err), -EINVAL);
    assert_int_equal(init->state, TASK_LEASED);
    finish_init(r, &r->workers[0]);
    assert_int_equal(view_sample_request(r->co, job, &nothing, &task, &err), 0);
    assert_int_equal(view_task_cancel(r->co, task, &err), 0);
    assert_int_equal(state_task(&r->co->state, task)->state, TASK_CANCELLED);
    assert_int_equal(view_task_cancel(r->co, task, &err), -ERR_STALE);
    struct task *own = state_add_task(&r->co->state, 0, job, TASK_SAMPLE); /* sample.every */
    assert_int_equal(view_task_cancel(r->co, own->id, &err), -EINVAL);
}

static void kept(struct rig *r, uint64_t job, int code, const char *why)
{
    struct view_removal was;
    struct err err = {0};
    assert_int_equal(view_job_remove(r->co, job, 0, false, &was, &err), code);
    if (!strstr(err.msg, why))
        fail_msg("'%s' does not say '%s'", err.msg, why);
}

static void note_said(void *arg, const struct event *e)
{
    if (e->kind == EVENT_LOG && strstr(e->text, "was removed"))
        (void)snprintf(arg, 200, "%s", e->text);
}

/* An ended job, unless another learns from it or its last step is not over; a drawing from it
 * ends. */
static void jobs_are_removed(void **state)
{
    struct rig *r = *state;
    struct fake *w = &r->workers[0];
    struct state *s = &r->co->state;
    struct view_removal was;
    struct err err = {0};
    char said[200] = "";
    uint64_t task = 0;
    kept(r, 1, -ERR_NOTFOUND, "job 1 does not exist");
    assert_int_equal(join(r, w, SKERRY_VERSION), 0);
    const uint64_t job = submit(r), other = submit(r);
    do_init(r, w);
    kept(r, job, -ERR_STALE,
         "job 1 (fake) has not ended, it is running: stop it with `skerry cancel 1` first");
    assert_int_equal(view_job_pause(r->co, job, true, &err), 0);
    kept(r, job, -ERR_STALE, "it is paused");
    assert_int_equal(view_job_cancel(r->co, job, &err), 0);
    state_job(s, other)->comp.teacher_job = (uint32_t)job;
    kept(r, job, -EBUSY,
         "job 1 (fake) teaches job 2 (fake), which has not ended: wait for its end, or stop it "
         "with `skerry cancel 2` first");
    state_job(s, other)->comp.teacher_job = 0;
    struct module_rec *m = module_memory(&state_job(s, job)->modules[0]);
    m->outer_task = 77;
    kept(r, job, -EAGAIN, "has not stopped yet");
    m->outer_task = 0;
    r->co->store_ok = false;
    kept(r, job, -EIO, "cannot write its state");
    r->co->store_ok = true;

    state_job(s, job)->state = JOB_DONE; /* it can be drawn from */
    state_job(s, job)->paused = false;
    assert_int_equal(view_job_pause(r->co, other, true, &err), 0);
    assert_int_equal(view_sample_request(r->co, job, &nothing, &task, &err), 0);
    assert_int_equal(assign(r, w, TASK_SAMPLE)->id, task);
    const size_t tasks = s->n_tasks;
    assert_int_equal(view_job_remove(r->co, job, 0, true, &was, &err), 0);
    assert_string_equal(was.name, "fake");
    assert_string_equal(was.state, "done");
    assert_true(was.bytes > 0);
    settle(r);
    assert_true(state_job(s, job) != NULL && s->n_tasks == tasks && r->co->n_garbage == 0);

    const uint64_t holder = access_holder_token(s->tokens[0].id);
    assert_true(view_subscribe(r->co, note_said, said) > 0);
    assert_int_equal(view_job_remove(r->co, job, holder, false, &was, &err), 0);
    char *line = str_printf("job 1 (fake) was removed with the token '%s'", s->tokens[0].name);
    assert_string_equal(said, line);
    mem_free(line);
    kept(r, job, -ERR_NOTFOUND, "does not exist");
    for (size_t i = 0; i < s->n_tasks; i++)
        assert_true(s->tasks[i]->job_id == other);
    assert_int_equal(state_worker(s, w->id)->task_id, 0);
    settle(r);
    assert_int_equal(view_job_pause(r->co, other, false, &err), 0);
    assign(r, w, TASK_INIT); /* the other one goes on */
    stop(r);
    start(r);
    assert_null(state_job(&r->co->state, job));
    assert_non_null(state_job(&r->co->state, other));
}

/* A worker that waits for a task hears at once that it shall go. */
static void workers_are_drained(void **state)
{
    struct rig *r = *state;
    struct fake *w = &r->workers[0];
    struct err err = {0};
    assert_int_equal(view_worker_drain(r->co, 1, &err), -ERR_NOTFOUND);
    assert_int_equal(join(r, w, SKERRY_VERSION), 0);
    ask(r, w, 15000);
    settle(r);
    assert_false(w->done);
    assert_int_equal(view_worker_drain(r->co, w->id, &err), 0);
    assert_null(got(r, w));
    assert_true(w->assigned->drain);
    state_set_worker_state(&r->co->state, edit_worker(r, w->id), WORKER_LEFT);
    assert_int_equal(view_worker_drain(r->co, w->id, &err), -ERR_STALE);
}

#define CACHED ((uint64_t)1 << 50)
static uint64_t evictable = CACHED;

static void full_health(struct blobstore *s, struct blob_health *ret)
{
    *ret = (struct blob_health){.cache_bytes = CACHED, .evictable_bytes = evictable};
}

/* What is here needs no room, and a cache makes some. */
static void uploads_need_room(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    const uint8_t unknown[32] = {1};
    const struct blob_ref have = put_text(r, "a blob");
    assert_int_equal(view_upload_expect(r->co, unknown, 1000, &err), 0);
    assert_int_equal(view_upload_expect(r->co, unknown, UINT64_MAX / 2, &err), -ENOSPC);
    assert_non_null(strstr(err.msg, "make room there"));
    assert_int_equal(view_upload_expect(r->co, have.sha256, UINT64_MAX / 2, &err), 0);
    const struct blobstore_ops *near = r->co->blobs->ops;
    struct blobstore_ops far = *near;
    far.health = full_health;
    r->co->blobs->ops = &far;
    assert_int_equal(view_upload_expect(r->co, unknown, CACHED, &err), 0);
    evictable = CACHED / 2; /* the other half is used, not sent yet, or of uploads */
    assert_int_equal(view_upload_expect(r->co, unknown, CACHED, &err), -ENOSPC);
    r->co->blobs->ops = near;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

/* The model never learnt to do without a label. */
static void guidance_that_cannot_be(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    struct draw_request guided = nothing;
    uint64_t task = 0;
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    const uint64_t job = submit(r);
    state_job(&r->co->state, job)->spec.model.label_dropout = 0;
    do_init(r, &r->workers[0]);
    guided.guidance = 3;
    refused(r, job, &guided, -EINVAL, "guidance is 3, but with model.label_dropout 0 the model");
    guided.guidance = 0;
    refused(r, job, &guided, -EINVAL, "guidance is 0, but with model.label_dropout 0 the model");
    guided.guidance = 1;
    assert_int_equal(view_sample_request(r->co, job, &guided, &task, &err), 0);
    assert_int_equal(view_sample_request(r->co, job, &nothing, &task, &err), 0);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(drawings_that_make_no_sense), TEST(guidance_that_cannot_be), TEST(quotas_are_adjusted),
        TEST(tasks_are_cancelled),         TEST(jobs_are_removed),        TEST(workers_are_drained),
        TEST(uploads_need_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
