/* Early steps: begun when all contributions are here or announced, stopped when that changes. */
#include "coordinator/job/early.h"
#include "coordinator/job/folds.h"
#include "coordinator/outer/outer_early.h"
#include "coordinator/outer/outer_exec.h"
#include "coordinator/work/tasks.h"
#include "tests/unit/blobs.h"
#include "tests/unit/common/outer/fixture.h"
#include "tests/unit/coordinator/bare.h"

#include "common/base/list.h"
#include "common/net/growing.h"
#include "tests/unit/wait.h"

#define LARGE (1u << 20)

struct rig {
    struct coordinator *co;
    struct fixture f;
    struct job *j;
    struct module_rec *m;
    struct worker *w[2];
    struct task *t[2];
    struct blob_id name; /* of the delta */
};

/* A job in its first round, both of whose phases are being worked on. */
static void rig_begin(struct rig *r, struct coordinator *co, const char *yaml)
{
    struct buf b;
    struct blob_id id;
    struct version_rec v = {.version = 0};
    memset(r, 0, sizeof(*r));
    fx_begin(&r->f);
    r->co = co;
    co->opt.data_dir = r->f.dir;
    list_init(&co->earlies);
    list_init(&co->next.durables);
    char *dir = fx_path(&r->f, "blobs");
    assert_int_equal(blob_dir_open(dir, 0, &co->blobs, NULL), 0);
    assert_int_equal(outer_exec_new(co->loop, co->blobs, 1, &co->outer, NULL), 0);
    assert_int_equal(file_read(r->f.full, 64 << 20, &b, NULL), 0);
    assert_int_equal(blob_put(co->blobs, b.data, b.len, &id, NULL), 0);
    memcpy(v.full.sha256, id.sha256, 32);
    v.full.size = b.len;
    buf_release(&b);
    mem_free(dir);
    r->j = add(&co->state, yaml);
    r->m = module_memory(&r->j->modules[0]);
    module_add_version(r->m, &v);
    for (uint32_t i = 0; i < 2; i++) {
        r->w[i] = state_add_worker(&co->state, 0);
        r->t[i] = state_add_task(&co->state, 0, r->j->id, TASK_TRAIN);
        const bool one = r->j->comp.paths[0].replicas == 1; /* then each has its path */
        r->t[i]->path = one ? i : 0;
        r->t[i]->train.replica = one ? 0 : i;
        job_edit_replica(r->j, r->t[i]->path, r->t[i]->train.replica)->task_id = r->t[i]->id;
        task_lease(co, r->t[i], r->w[i]);
    }
}

static void rig_end(struct rig *r)
{
    r->co->closing = true;
    early_end(r->co);
    assert_true(list_empty(&r->co->earlies));
    outer_exec_free(r->co->outer);
    r->co->blobs->ops->close(r->co->blobs);
    fx_end(&r->f);
}

static struct contribution made(const struct rig *r, unsigned i, uint64_t size)
{
    return (struct contribution){.module_id = r->m->id,
                                 .base_version = r->m->version,
                                 .samples = 12,
                                 .worker_id = r->w[i]->id,
                                 .blob = {.sha256 = {(uint8_t)(i + 1), 9}, .size = size}};
}

static bool announce(struct rig *r, unsigned i, uint64_t size)
{
    const struct contribution c = made(r, i, size);
    return early_announce(r->co, r->t[i], &c, &r->name);
}

/* As the executor sees it: it waits for the first bytes of the first contribution, or is not there.
 */
static bool is_begun(struct rig *r)
{
    struct growing *g = NULL;
    char *dir = outer_state_dir(r->j->id, r->m->id), *path = file_join(r->co->opt.data_dir, dir);
    early_turn(r->co);
    const int rc = outer_early_delta(r->co->outer, path, &g);
    assert_true(rc == -EAGAIN || rc == -ERR_NOTFOUND);
    mem_free(dir);
    mem_free(path);
    return rc == -EAGAIN;
}

static bool begins(struct rig *r)
{
    WAIT_DOING(is_begun(r), loop_turn(r->co->loop, false)); /* the one before it must end first */
    return is_begun(r);
}

static int named(const struct rig *r)
{
    struct growing *g = NULL;
    uint64_t of = 0;
    return early_delta(r->co, &r->name, &g, &of);
}

static void test_begins(void **state)
{
    struct rig r;
    const struct blob_id other = {{1}};
    struct growing *g;
    uint64_t of;
    rig_begin(&r, *state, diloco);
    assert_false(is_begun(&r));
    assert_true(announce(&r, 0, LARGE));
    const struct blob_id first = r.name;
    assert_false(is_begun(&r));
    assert_int_equal(named(&r), -EAGAIN);
    assert_true(announce(&r, 1, LARGE));
    assert_true(blob_id_equal(&first, &r.name));
    assert_true(is_begun(&r));
    assert_int_equal(named(&r), -EAGAIN);
    assert_int_equal(early_delta(r.co, &other, &g, &of), -ERR_NOTFOUND);
    assert_true(announce(&r, 1, LARGE)); /* it asks again, as for another ticket */
    assert_true(is_begun(&r));
    r.j->state = JOB_CANCELLED;
    early_turn(r.co);
    assert_int_equal(named(&r), -ERR_NOTFOUND);
    assert_false(is_begun(&r));
    rig_end(&r);
}

/* Its thread may write after the files of an ended job were removed, so they are removed again. */
static void test_job_ends(void **state)
{
    struct rig r;
    rig_begin(&r, *state, diloco);
    assert_true(announce(&r, 0, LARGE) && announce(&r, 1, LARGE));
    assert_true(is_begun(&r));
    r.j->state = JOB_CANCELLED;
    early_turn(r.co);
    WAIT_DOING(!list_empty(&r.co->next.durables), loop_turn(r.co->loop, false));
    struct durable *d = list_entry(list_pop(&r.co->next.durables), struct durable, link);
    d->fn(d->arg, -ERR_CANCELLED);
    mem_free(d);
    rig_end(&r);
}

/* One that has been reported counts as well as one that is coming. */
static void test_reported(void **state)
{
    struct rig r;
    rig_begin(&r, *state, diloco);
    assert_true(announce(&r, 0, LARGE));
    const struct contribution c = made(&r, 1, LARGE);
    task_add_contribution(r.t[1], &c);
    assert_true(is_begun(&r));
    task_edit_contribution(r.t[1], &r.t[1]->train.contributions[0])->refused = true;
    assert_false(is_begun(&r));
    rig_end(&r);
}

/* A lost worker's contribution is not waited for, and its next attempt's is. */
static void test_lost(void **state)
{
    struct rig r;
    rig_begin(&r, *state, diloco);
    assert_true(announce(&r, 0, LARGE));
    assert_true(announce(&r, 1, LARGE));
    assert_true(is_begun(&r));
    task_requeue(r.co, r.t[1], "its worker is lost");
    assert_false(is_begun(&r));
    assert_int_equal(named(&r), -EAGAIN); /* it may be begun again */
    task_lease(r.co, r.t[1], r.w[0]);
    assert_false(is_begun(&r));
    r.w[1] = r.w[0];
    assert_true(announce(&r, 1, LARGE + 1));
    assert_true(begins(&r));
    rig_end(&r);
}

/* What a decided step takes is not touched, and what belongs to a past version goes. */
static void test_decided(void **state)
{
    struct rig r;
    rig_begin(&r, *state, diloco);
    assert_true(announce(&r, 0, LARGE));
    assert_true(announce(&r, 1, LARGE));
    assert_true(is_begun(&r));
    r.m->outer_task = 7;
    task_requeue(r.co, r.t[1], "its worker is lost");
    assert_true(is_begun(&r));
    assert_false(announce(&r, 0, LARGE)); /* it came late */
    r.m->outer_task = 0;
    r.m->version++;
    assert_false(is_begun(&r));
    assert_int_equal(named(&r), -ERR_NOTFOUND);
    r.m->version--;
    rig_end(&r);
}

/* Uploads a contribution, and announces it. */
static void upload(struct rig *r, unsigned i)
{
    struct err err = {0};
    struct blob_id id;
    struct buf b;
    char *path = fx_path(&r->f, "c");
    float *theta = fx_array(), *end = fx_array();
    fx_read_flat(r->f.full, theta);
    fx_normal(i, 1e-3f, end);
    for (size_t k = 0; k < PARAMS; k++)
        end[k] += theta[k];
    fx_contribute(r->f.full, r->m->version, end, CODEC_F32, 12, path);
    assert_int_equal(file_read(path, 64 << 20, &b, &err), 0);
    assert_int_equal(blob_put(r->co->blobs, b.data, b.len, &id, &err), 0);
    struct contribution c = made(r, i, b.len);
    memcpy(c.blob.sha256, id.sha256, 32);
    assert_true(early_announce(r->co, r->t[i], &c, &r->name));
    task_add_contribution(r->t[i], &c);
    buf_release(&b);
    free(theta);
    free(end);
    mem_free(path);
}

static void on_made(struct outer_step *step)
{
    *(bool *)step->arg = true;
}

/* Decides the step as it stands, and waits for its version. */
static void decide(struct rig *r, bool want)
{
    bool done = false;
    struct err err = {0};
    struct outer_step *s = folds_step(r->co, r->j, r->m, NULL);
    s->arg = &done;
    s->lr += want ? 0 : 0.1;
    assert_int_equal(outer_submit(r->co->outer, s, on_made, &err), 0);
    while (!done)
        loop_turn(r->co->loop, true);
    assert_int_equal(s->rc, 0);
    assert_true(s->early == want);
    r->m->version++;
    outer_step_release(s);
    mem_free(s);
}

static struct growing *fetch(struct rig *r)
{
    struct growing *g = NULL;
    uint64_t of;
    early_turn(r->co);
    for (const uint64_t until = clock_now_ms() + WAIT_MS;
         early_delta(r->co, &r->name, &g, &of) == -EAGAIN;) {
        assert_true(clock_now_ms() < until);
        loop_turn(r->co->loop, false);
    }
    assert_non_null(g);
    return g;
}

static const char wide[] = HEAD "recipe: {name: diloco, replicas: 2}\n"
                                "outer: {rounds: 3, steps: 2}\nwire: {up: f32, down: f32}\n";

/* A transfer of the delta that was cut may go on while its version is the newest. */
static void test_goes_on(void **state)
{
    struct rig r;
    struct growing *again = NULL;
    uint64_t of;
    rig_begin(&r, *state, wide);
    r.m->id = MODULE; /* as in the files */
    for (unsigned i = 0; i < 2; i++)
        upload(&r, i);
    struct growing *g = fetch(&r);
    const struct blob_id name = r.name;
    decide(&r, true);
    for (int i = 0; i < 2; i++) { /* also beside the next step */
        early_turn(r.co);
        assert_int_equal(early_delta(r.co, &name, &again, &of), 0);
        assert_string_equal(growing_tag(again), growing_tag(g));
        assert_int_equal(of, r.m->id);
        growing_drop(again);
        assert_true(i == 1 || announce(&r, 0, LARGE));
    }
    assert_false(blob_id_equal(&name, &r.name));
    growing_drop(g);
    r.m->version++;
    early_turn(r.co);
    assert_int_equal(early_delta(r.co, &name, &again, &of), -ERR_NOTFOUND);
    r.m->version = 0;
    rig_end(&r);
}

/* It may not if the step was decided otherwise. */
static void test_goes_otherwise(void **state)
{
    struct rig r;
    rig_begin(&r, *state, wide);
    r.m->id = MODULE; /* as in the files */
    for (unsigned i = 0; i < 2; i++)
        upload(&r, i);
    growing_drop(fetch(&r));
    decide(&r, false);
    early_turn(r.co);
    assert_int_equal(named(&r), -ERR_NOTFOUND);
    r.m->version = 0;
    rig_end(&r);
}

static bool may_announce(void **state, const char *yaml, uint64_t size)
{
    struct rig r;
    rig_begin(&r, *state, yaml);
    const bool may = announce(&r, 0, size);
    rig_end(&r);
    return may;
}

static void test_not_for(void **state)
{
    static const char base[] = HEAD "recipe: {name: diloco, replicas: 2}\nouter: {rounds: 3, ";
    static const char *const not [] = {"steps: 20, fragments: 2, delay: 1}\n",
                                       "seconds: 100, async: true}\n",
                                       "steps: 2, where: worker}\n"};
    assert_true(may_announce(state, diloco, LARGE));
    assert_false(may_announce(state, diloco, 1000)); /* not worth it */
    for (size_t i = 0; i < sizeof(not ) / sizeof(not [0]); i++) {
        char *yaml = str_printf("%s%s", base, not [i]);
        assert_false(may_announce(state, yaml, LARGE));
        mem_free(yaml);
    }
    assert_false(may_announce(state, dipaco, LARGE)); /* a factor lengthens the mean */
}

static void test_odd(void **state)
{
    struct rig r;
    rig_begin(&r, *state, diloco);
    struct contribution c = made(&r, 0, LARGE);
    c.base_version = 1;
    assert_false(early_announce(r.co, r.t[0], &c, &r.name));
    c = made(&r, 0, LARGE);
    c.samples = 0;
    assert_false(early_announce(r.co, r.t[0], &c, &r.name));
    c = made(&r, 0, LARGE);
    c.module_id = 77;
    assert_false(early_announce(r.co, r.t[0], &c, &r.name));
    c = made(&r, 0, LARGE);
    struct task *other = state_add_task(&r.co->state, 0, r.j->id, TASK_CHECK);
    assert_false(early_announce(r.co, other, &c, &r.name));
    assert_true(list_empty(&r.co->earlies));
    rig_end(&r);
}

int main(void)
{
    log_set_level(LOG_LEVEL_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_begins, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(test_job_ends, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(test_reported, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(test_lost, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(test_decided, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(test_goes_on, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(test_goes_otherwise, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(test_not_for, bare_begin, bare_end),
        cmocka_unit_test_setup_teardown(test_odd, bare_begin, bare_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
