/* Snapshots of phases: kept, given to the next worker, let go.  A whole coordinator (rig.h). */
#include "tests/unit/coordinator/rig.h"

#include "coordinator/state/blobs.h"

struct saving {
    Skerry__V1__ReportRequest m;
    Skerry__V1__Snapshot saved;
    Skerry__V1__Contribution part, *parts[2];
    Skerry__V1__Blob blob;
    struct blob_ref ref;
};

static void begin_saving(struct rig *r, struct saving *s, const Skerry__V1__Task *t, uint32_t steps)
{
    char text[64];
    skerry__v1__report_request__init(&s->m);
    skerry__v1__snapshot__init(&s->saved);
    skerry__v1__contribution__init(&s->part);
    skerry__v1__blob__init(&s->blob);
    (void)snprintf(text, sizeof(text), "task %llu at step %u", (unsigned long long)t->id, steps);
    s->ref = put_text(r, text);
    s->blob.sha256.data = s->ref.sha256;
    s->blob.sha256.len = 32;
    s->blob.size = s->ref.size;
    s->part.module_id = MODULE;
    s->part.base_version = t->train->round;
    s->part.blob = &s->blob;
    s->parts[0] = s->parts[1] = &s->part;
    s->saved.modules = s->parts;
    s->saved.n_modules = 1;
    s->saved.steps = steps;
    s->saved.samples = s->saved.position = 4 * steps;
    s->saved.loss_sum = 0.25 * steps;
    s->saved.skipped = s->saved.skipped_row = steps / 2;
    s->saved.seconds = 3;
    s->m.task_id = t->id;
    s->m.attempt = t->attempt;
    s->m.snapshot = true;
    s->m.saved = &s->saved;
}

static bool save(struct rig *r, struct fake *w, const struct saving *s)
{
    const struct result x = {.m = s->m};
    return report(r, w, &x);
}

static const struct snapshot *snapshot_of(struct rig *r, uint64_t task)
{
    return state_task(&r->co->state, task)->train.snapshot;
}

static void count_snapshots(void *arg, enum blob_role role, const struct blob_ref *b,
                            enum blob_need need)
{
    *(unsigned *)arg += role == BLOB_SNAPSHOT && need == BLOB_NEEDED;
}

static unsigned needed_blobs(struct rig *r)
{
    unsigned n = 0;
    each_blob(&r->co->state, 0, 0, count_snapshots, &n);
    return n;
}

/* Two workers, a task of the first. */
static Skerry__V1__Task *begun(struct rig *r, const char *spec)
{
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    (void)submit_spec(r, spec);
    do_init(r, &r->workers[0]);
    return assign(r, &r->workers[0], TASK_TRAIN);
}

static void leave(struct rig *r, struct fake *w)
{
    Skerry__V1__LeaveRequest m = SKERRY__V1__LEAVE_REQUEST__INIT;
    assert_int_equal(CALL(r, w, LEAVE, leave, &m), 0);
}

/* The task comes to w with all that was saved. */
static void check_resume(struct rig *r, struct fake *w, uint64_t id, const struct saving *s)
{
    const Skerry__V1__Task *t = assign(r, w, TASK_TRAIN);
    assert_int_equal(t->id, id);
    const Skerry__V1__Snapshot *got = t->train->resume;
    assert_non_null(got);
    assert_int_equal(got->steps, s->saved.steps);
    assert_int_equal(got->samples, s->saved.samples);
    assert_int_equal(got->position, s->saved.position);
    assert_int_equal(got->skipped, s->saved.skipped);
    assert_int_equal(got->skipped_row, s->saved.skipped_row);
    assert_true(got->loss_sum == s->saved.loss_sum && got->seconds == 3);
    assert_int_equal(got->n_modules, 1);
    assert_int_equal(got->modules[0]->module_id, MODULE);
    assert_int_equal(got->modules[0]->base_version, t->modules[0]->version);
    assert_memory_equal(got->modules[0]->blob->sha256.data, s->ref.sha256, 32);
    assert_true(got->modules[0]->blob->url[0] != '\0');
}

static void another_worker_goes_on(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    const Skerry__V1__Task *t = begun(r, yaml);
    const uint64_t id = t->id;
    struct saving first, second;
    assert_int_equal(t->train->snapshot_ms, 60000);
    assert_null(t->train->resume);
    begin_saving(r, &first, t, 1);
    assert_true(save(r, a, &first));
    begin_saving(r, &second, t, 2);
    assert_true(save(r, a, &second));
    assert_true(save(r, a, &first)); /* late: what is known is further */
    assert_int_equal(snapshot_of(r, id)->steps, 2);
    assert_int_equal(needed_blobs(r), 1);
    const struct job *j = state_job(&r->co->state, state_task(&r->co->state, id)->job_id);
    assert_int_equal(j->bytes_up, first.ref.size + second.ref.size);
    assert_int_equal(j->paths[0].bytes_up, 0); /* a round's are of its contributions */
    const struct ledger_range held = state_task(&r->co->state, id)->ranges[0];
    leave(r, a);
    edit_task(r, id)->ready_ms = 0; /* nobody is waited for */
    check_resume(r, b, id, &second);
    assert_memory_equal(&held, &state_task(&r->co->state, id)->ranges[0], sizeof(held));
    finish_train(r, b);
    const struct task *done = state_task(&r->co->state, id);
    assert_int_equal(done->state, TASK_DONE);
    assert_null(done->train.snapshot);
    assert_true(done->train.contributions[0].resumed);
    assert_int_equal(needed_blobs(r), 0);
}

static void it_is_on_record(void **state)
{
    struct rig *r = *state;
    const Skerry__V1__Task *t = begun(r, yaml);
    const uint64_t id = t->id;
    struct saving s;
    begin_saving(r, &s, t, 2);
    assert_true(save(r, &r->workers[0], &s));
    stop(r);
    start(r);
    const struct snapshot *p = snapshot_of(r, id);
    assert_true(p != NULL && p->n == 1 && p->steps == 2 && p->samples == 8 && p->position == 8);
    assert_true(p->loss_sum == 0.5 && p->seconds == 3 && p->worker_id == r->workers[0].id);
    assert_int_equal(join(r, &r->workers[1], SKERRY_VERSION), 0);
    task_memory(state_task(&r->co->state, id))->worker_id = r->workers[0].id;
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    leave(r, &r->workers[0]);
    edit_task(r, id)->ready_ms = 0;
    check_resume(r, &r->workers[1], id, &s);
}

/* Who knows whose fault it is: the next worker begins anew. */
static void a_failure_drops_it(void **state)
{
    struct rig *r = *state;
    const Skerry__V1__Task *t = begun(r, yaml);
    const uint64_t id = t->id;
    struct saving s;
    struct result x;
    begin_saving(r, &s, t, 1);
    assert_true(save(r, &r->workers[0], &s));
    begin_result(&x, t, NULL);
    x.m.failed = x.m.retryable = true;
    x.m.reason = (char *)(uintptr_t) "it is broken";
    assert_true(report(r, &r->workers[0], &x));
    assert_null(snapshot_of(r, id));
    assert_int_equal(needed_blobs(r), 0);
}

static void diverge(struct rig *r, struct fake *w)
{
    struct result x;
    begin_result(&x, w->task, NULL);
    x.m.failed = x.m.retryable = true;
    x.m.failure = SKERRY__V1__FAILURE__FAILURE_DIVERGED;
    x.m.reason = (char *)(uintptr_t) "step 2: loss nan";
    assert_true(report(r, w, &x));
}

/* One worker's word takes nothing of another's: a second one must fail with it as well. */
static void anothers_is_dropped_by_two(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1], *c = &r->workers[2];
    const Skerry__V1__Task *t = begun(r, yaml);
    const uint64_t id = t->id;
    struct saving s;
    assert_int_equal(join(r, c, SKERRY_VERSION), 0);
    begin_saving(r, &s, t, 1);
    assert_true(save(r, a, &s));
    leave(r, a);
    edit_task(r, id)->ready_ms = 0;
    check_resume(r, b, id, &s);
    diverge(r, b);
    assert_non_null(snapshot_of(r, id));
    check_resume(r, c, id, &s);
    diverge(r, c);
    assert_null(snapshot_of(r, id));
    assert_int_equal(needed_blobs(r), 0);
    assert_int_equal(state_task(&r->co->state, id)->train.n_diverged, 0);
}

/* Who is alone must be believed, or would fail for ever. */
static void anothers_is_dropped_by_the_only_one(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    const Skerry__V1__Task *t = begun(r, yaml);
    const uint64_t id = t->id;
    struct saving s;
    begin_saving(r, &s, t, 1);
    assert_true(save(r, a, &s));
    leave(r, a);
    for (int i = 0; i < 2; i++) {
        assert_non_null(snapshot_of(r, id));
        edit_task(r, id)->ready_ms = 0;
        memset(&edit_task(r, id)->failed, 0, sizeof(struct failure_list));
        check_resume(r, b, id, &s);
        diverge(r, b);
    }
    assert_null(snapshot_of(r, id));
}

static void a_lost_blob_drops_it(void **state)
{
    struct rig *r = *state;
    const Skerry__V1__Task *t = begun(r, yaml);
    const uint64_t id = t->id;
    struct saving s;
    struct result x;
    struct blob_id blob;
    begin_saving(r, &s, t, 1);
    assert_true(save(r, &r->workers[0], &s));
    memcpy(blob.sha256, s.ref.sha256, 32);
    assert_int_equal(r->co->blobs->ops->hide(r->co->blobs, &blob, NULL), 0);
    begin_result(&x, t, NULL);
    x.m.failed = x.m.retryable = true;
    x.m.failure = SKERRY__V1__FAILURE__FAILURE_NETWORK;
    x.m.reason = (char *)(uintptr_t) "HTTP 404";
    assert_true(report(r, &r->workers[0], &x));
    assert_null(snapshot_of(r, id));
    assert_int_equal(state_task(&r->co->state, id)->failures, 0);
}

static void nonsense_is_refused(void **state)
{
    struct rig *r = *state;
    struct fake *w = &r->workers[0];
    const Skerry__V1__Task *t = begun(r, yaml);
    const uint64_t id = t->id;
    struct saving s;
    static uint8_t unknown[32] = {9};
    for (int i = 0; i < 9; i++) {
        begin_saving(r, &s, t, 1);
        s.saved.steps = i == 0 ? 0 : i == 1 ? 3 : 1;
        s.saved.n_modules = i == 2 ? 0 : i == 3 ? 2 : 1;
        s.part.module_id += i == 4;
        s.part.base_version += i == 5;
        s.blob.sha256.data = i == 6 ? unknown : s.blob.sha256.data;
        s.saved.loss_sum = i == 7 ? (double)NAN : 0;
        s.saved.seconds = i == 8 ? -1.0f : 1.0f;
        assert_false(save(r, w, &s));
        assert_null(snapshot_of(r, id));
        assert_int_equal(state_task(&r->co->state, id)->state, TASK_LEASED); /* no failure */
    }
    s.m.attempt++;
    assert_false(save(r, w, &s));
}

static const char async[] = "name: fake\nseed: 3\n"
                            "data: {path: x, image_size: 16}\n"
                            "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                            "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"
                            "outer: {rounds: 2, steps: 2, async: true}\nsample: {count: 4}\n";

/* The job went on meanwhile: 2 of its 4 phases are over and half of this one, and with that the
 * rest of it begins. */
static void schedule_without_rounds(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    const Skerry__V1__Task *t = begun(r, async);
    const uint64_t id = t->id;
    struct saving s;
    assert_true(t->train->done_from == 0 && t->train->done_to == 0.5);
    begin_saving(r, &s, t, 1); /* of 2 */
    assert_true(save(r, a, &s));
    job_edit_path(state_job(&r->co->state, state_task(&r->co->state, id)->job_id), 0)->phases = 2;
    leave(r, a);
    edit_task(r, id)->ready_ms = 0;
    check_resume(r, b, id, &s);
    assert_true(b->task->train->done_from == 0.375 && b->task->train->done_to == 0.875);
}

static const char timed[] = "name: fake\nseed: 3\n"
                            "data: {path: x, image_size: 16}\n"
                            "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                            "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"
                            "outer: {rounds: 2, seconds: 60}\n"
                            "sample: {count: 4}\n";

/* A phase bounded by time has so many samples: who goes on with it could not begin behind them. */
static void samples_are_bounded(void **state)
{
    struct rig *r = *state;
    const Skerry__V1__Task *t = begun(r, timed);
    const uint64_t id = t->id;
    uint64_t held = 0;
    struct saving s;
    for (size_t i = 0; i < t->train->n_ranges; i++)
        held += t->train->ranges[i]->count;
    for (int i = 0; i < 2; i++) {
        begin_saving(r, &s, t, 1);
        s.saved.samples = held + (i == 0);
        s.saved.position = held + (i == 1);
        assert_false(save(r, &r->workers[0], &s));
        assert_non_null(strstr(r->workers[0].detail, "in the phase"));
        assert_null(snapshot_of(r, id));
    }
    begin_saving(r, &s, t, 1);
    s.saved.samples = s.saved.position = held;
    assert_true(save(r, &r->workers[0], &s));
}

/* Of a phase without a number of steps as well: the schedule goes on from them, where the snapshot
 * is folded and where another worker goes on. */
static void a_step_takes_a_sample(void **state)
{
    struct rig *r = *state;
    struct fake *w = &r->workers[0];
    const Skerry__V1__Task *t = begun(r, timed);
    const uint64_t id = t->id;
    struct saving s;
    begin_saving(r, &s, t, 4000000000u);
    s.saved.samples = s.saved.position = s.saved.used = 5;
    assert_false(save(r, w, &s));
    assert_non_null(strstr(w->detail, "4000000000 steps, 5 samples"));
    assert_null(snapshot_of(r, id));
    begin_saving(r, &s, t, 5);
    s.saved.samples = s.saved.position = s.saved.used = 5;
    assert_true(save(r, w, &s));
    assert_int_equal(snapshot_of(r, id)->steps, 5);
}

static void some_jobs_want_none(void **state)
{
    struct rig *r = *state;
    char *spec = str_printf("%s", yaml), *at = strstr(spec, "steps: 2}");
    memcpy(at, "steps: 2,", 9);
    char *none = str_printf("%.*s snapshot: 0}\nsample: {count: 4}\n", (int)(at + 9 - spec), spec);
    const Skerry__V1__Task *t = begun(r, none);
    struct saving s;
    assert_int_equal(t->train->snapshot_ms, 0);
    begin_saving(r, &s, t, 1);
    assert_false(save(r, &r->workers[0], &s));
    mem_free(spec);
    mem_free(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(another_worker_goes_on, begin, end),
        cmocka_unit_test_setup_teardown(it_is_on_record, begin, end),
        cmocka_unit_test_setup_teardown(a_failure_drops_it, begin, end),
        cmocka_unit_test_setup_teardown(anothers_is_dropped_by_two, begin, end),
        cmocka_unit_test_setup_teardown(anothers_is_dropped_by_the_only_one, begin, end),
        cmocka_unit_test_setup_teardown(a_lost_blob_drops_it, begin, end),
        cmocka_unit_test_setup_teardown(nonsense_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(samples_are_bounded, begin, end),
        cmocka_unit_test_setup_teardown(schedule_without_rounds, begin, end),
        cmocka_unit_test_setup_teardown(a_step_takes_a_sample, begin, end),
        cmocka_unit_test_setup_teardown(some_jobs_want_none, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
