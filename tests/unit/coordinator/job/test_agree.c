/* Partitions that one worker made are made again by another one from elsewhere, and two that agree
 * decide; a lone one goes on.  Whole coordinators (grid.h). */
#include "coordinator/job/agree.h"
#include "coordinator/work/query.h"
#include "tests/unit/coordinator/grid.h"

#define SPEC(outer)                                                                                \
    "name: ddm\nseed: 3\ndata: {path: x, image_size: 16, holdout: 0.2}\n"                          \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"                                  \
    "router: {patch: 4, dim: 32, depth: 1, heads: 2, batch: 3}\n"                                  \
    "train: {batch: 4, lr: 0.1}\nrecipe: {name: ddm, experts: 2}\n"                                \
    "outer: {rounds: 2, steps: 2" outer "}\neval: {every: 0}\nsample: {every: 0}\n"

enum { FIRST, SECOND, THIRD };

static const struct worker *worker(struct rig *r, int i)
{
    return state_worker(&r->co->state, r->workers[i].id);
}

static void join_from(struct rig *r, int i, const char *address)
{
    if (r->workers[i].id == 0)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    (void)str_copy(edit_worker(r, r->workers[i].id)->address, 64, address);
}

/* The job's first worker alone does all until the state, then the others come. */
static void begin_at(struct grid *g, struct rig *r, const char *spec, enum job_state s, int others)
{
    static const char *const from[] = {"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"};
    grid_begin(g, r, spec, strstr(spec, "llama") != NULL);
    join_from(r, FIRST, from[FIRST]);
    settle(r);
    while (grid_job(g)->state != s)
        (void)grid_step(g);
    for (int i = 1; i <= others; i++)
        join_from(r, i, from[i]);
}

static void put_all_in_one(struct grid *g, struct grid_result *x)
{
    if (grid_kind(g->w->task) == TASK_CLUSTER) {
        x->m.sizes[0] += x->m.sizes[1];
        x->m.sizes[1] = 0;
        x->m.assignment = grid_blob(x, grid_assignment(g, g->w->task, x->m.sizes));
        x->m.output = x->m.assignment; /* other bytes, too */
    } else {
        x->m.shards[0]->samples += x->m.shards[1]->samples;
        x->m.n_shards = 1;
    }
}

static struct grid_result *does(struct grid *g, int i, enum task_kind kind, bool lies)
{
    static struct grid_result x;
    g->w = &g->r->workers[i];
    assert_int_equal(grid_kind(grid_next(g)), kind);
    grid_result(g, g->w->task, &x);
    if (lies)
        put_all_in_one(g, &x);
    return &x;
}

static void make(struct grid *g, int i, enum task_kind kind, bool lies)
{
    struct grid_result *x = does(g, i, kind, lies);
    assert_int_equal(call_report(g->r, g->w, &x->m), 0);
    Skerry__V1__ReportReply *reply =
        skerry__v1__report_reply__unpack(NULL, g->w->reply_len, g->w->reply);
    assert_true(reply->accepted);
    skerry__v1__report_reply__free_unpacked(reply, NULL);
}

static void gets_nothing(struct rig *r, int i)
{
    ask(r, &r->workers[i], 1);
    assert_null(got(r, &r->workers[i]));
}

static void find_comparison(void *arg, const struct view_waiting *w)
{
    *(bool *)arg |= strstr(w->why, "; made once more, to compare") != NULL;
}

static bool says_so(struct grid *g)
{
    bool found = false;
    view_each_waiting(g->r->co, grid_job(g)->id, find_comparison, &found);
    return found;
}

/* Both make the same: it counts, and what they make of this kind from then on counts at once. */
static void test_honest(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, SPEC(""), JOB_CLUSTERING, 1);
    struct grid_result *x = does(&g, FIRST, TASK_CLUSTER, false);
    assert_false(says_so(&g));
    assert_int_equal(call_report(r, g.w, &x->m), 0);
    assert_int_equal(grid_job(&g)->state, JOB_CLUSTERING);
    gets_nothing(r, FIRST);
    x = does(&g, SECOND, TASK_CLUSTER, false);
    assert_true(says_so(&g));
    assert_int_equal(call_report(r, g.w, &x->m), 0);
    assert_int_equal(grid_job(&g)->state, JOB_SPLITTING);
    assert_true(worker(r, FIRST)->confirmed && worker(r, SECOND)->confirmed);
    size_t n = grid_job(&g)->n_shards;
    make(&g, FIRST, TASK_SPLIT, false);
    assert_int_equal(grid_job(&g)->n_shards, n);
    make(&g, SECOND, TASK_SPLIT, false);
    assert_true(grid_job(&g)->n_shards > n);
    n = grid_job(&g)->n_shards;
    make(&g, FIRST, TASK_SPLIT, false);
    assert_true(grid_job(&g)->n_shards > n);
}

/* The partitions of the job's samples: of those that are trained on the first `others` are swapped
 * with as many of the last. */
static struct blob_ref assignment(struct grid *g, const uint64_t *sizes, unsigned others)
{
    const Skerry__V1__ClusterTask *c = g->w->task->cluster;
    const struct fake_assignment a = {.counts = c->counts,
                                      .holdout = c->holdout,
                                      .n_shards = c->n_counts,
                                      .top = 1,
                                      .sizes = sizes,
                                      .n_sizes = 2};
    char *path = fx_path(&g->r->f, "assignment");
    struct err err = {0};
    uint64_t n;
    int32_t *x = fake_assignment_fill(&a, &n);
    for (unsigned i = 0; i < others; i++) {
        x[i] = 1;
        x[sizes[0] + sizes[1] - 1 - i] = 0;
    }
    assert_int_equal(fake_assignment_save(path, x, n, 1, 0, &err), 0);
    mem_free(x);
    const struct blob_ref ref = put_file(g->r, path);
    mem_free(path);
    return ref;
}

static void fits(struct grid *g, int i, unsigned others, int more)
{
    struct grid_result *x = does(g, i, TASK_CLUSTER, false);
    x->m.sizes[0] -= (uint64_t)more;
    x->m.sizes[1] += (uint64_t)more;
    x->m.assignment = grid_blob(x, assignment(g, x->m.sizes, others));
    assert_int_equal(call_report(g->r, g->w, &x->m), 0);
}

/* On another device a fit differs a little. */
static void test_other_devices(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, SPEC(""), JOB_CLUSTERING, 2);
    fits(&g, FIRST, 0, 0);
    fits(&g, SECOND, 3, 1);
    assert_int_equal(grid_job(&g)->state, JOB_SPLITTING);
    assert_int_equal(grid_job(&g)->sizes[0], 39);
}

static const struct blobstore_ops *store;
static struct blobstore_ops far_ops;
static atomic_bool away;
static atomic_uint wanted;

/* Files are far away, and one time in three that a thread wants one the store gives no answer. */
static int far_local(struct blobstore *s, const struct blob_id *id, bool wait, char **ret_path,
                     struct err *err)
{
    if (!atomic_load(&away))
        return store->local(s, id, wait, ret_path, err);
    if (!wait)
        return err_set(err, -EAGAIN, "elsewhere");
    if (atomic_fetch_add(&wanted, 1) % 3 == 0)
        return err_set(err, -ETIMEDOUT, "the store gives no answer");
    return store->local(s, id, wait, ret_path, err);
}

/* A store that is out of reach tells nothing of who made a file. */
static void test_outage(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    store = r->co->blobs->ops;
    far_ops = *store;
    far_ops.local = far_local;
    r->co->blobs->ops = &far_ops; /* for good: later other threads read it */
    begin_at(&g, r, SPEC(""), JOB_CLUSTERING, 2);
    atomic_store(&away, true);
    fits(&g, FIRST, 0, 0); /* no answer, then one */
    assert_int_equal(worker(r, FIRST)->failures_row, 0);
    fits(&g, SECOND, 3, 1); /* an answer, then none for the two that are compared, then two */
    atomic_store(&away, false);
    assert_int_equal(atomic_load(&wanted), 6);
    assert_int_equal(grid_job(&g)->state, JOB_SPLITTING);
    assert_true(worker(r, FIRST)->confirmed && worker(r, SECOND)->confirmed);
}

/* Partitions of the same sizes with other samples in them are others. */
static void test_same_sizes(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, SPEC(""), JOB_CLUSTERING, 2);
    fits(&g, FIRST, 20, 0);
    fits(&g, SECOND, 0, 0);
    assert_int_equal(grid_job(&g)->state, JOB_CLUSTERING);
    fits(&g, THIRD, 0, 0);
    assert_int_equal(grid_job(&g)->state, JOB_SPLITTING);
    assert_int_equal(worker(r, FIRST)->failures_row, 1);
}

static void test_liar_fits(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, SPEC(""), JOB_CLUSTERING, 2);
    make(&g, FIRST, TASK_CLUSTER, true);
    make(&g, SECOND, TASK_CLUSTER, false);
    assert_int_equal(grid_job(&g)->state, JOB_CLUSTERING);
    gets_nothing(r, FIRST);
    gets_nothing(r, SECOND);
    make(&g, THIRD, TASK_CLUSTER, false);
    assert_int_equal(grid_job(&g)->state, JOB_SPLITTING);
    assert_int_equal(grid_job(&g)->sizes[0], grid_job(&g)->sizes[1]);
    assert_int_equal(worker(r, FIRST)->failures_row, 1);
    assert_false(worker(r, FIRST)->confirmed);
    assert_true(worker(r, SECOND)->confirmed && worker(r, THIRD)->confirmed);
}

/* Does whatever the worker gets; false: nothing. */
static bool does_any(struct grid *g, int i)
{
    ask(g->r, &g->r->workers[i], 1);
    const Skerry__V1__Task *t = got(g->r, &g->r->workers[i]);
    if (t != NULL) {
        static struct grid_result x;
        g->w = &g->r->workers[i];
        grid_result(g, t, &x);
        assert_int_equal(call_report(g->r, g->w, &x.m), 0);
    }
    return t != NULL;
}

/* Bytes that are copied are the same everywhere: a lie about them is no matter of rounding. */
static void test_liar_copies(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, SPEC(""), JOB_SPLITTING, 2);
    make(&g, FIRST, TASK_SPLIT, true);
    const size_t n = grid_job(&g)->n_shards;
    while (grid_job(&g)->state == JOB_SPLITTING)
        if (!does_any(&g, SECOND) && !does_any(&g, THIRD))
            fail_msg("nobody gets a task");
    assert_int_equal(grid_job(&g)->state, JOB_RUNNING);
    assert_int_equal(grid_job(&g)->n_shards - n, 6); /* of three groups, two each */
    assert_true(worker(r, FIRST)->quarantined_until_ms > 0);
    assert_int_equal(worker(r, SECOND)->quarantined_until_ms, 0);
    assert_int_equal(worker(r, THIRD)->quarantined_until_ms, 0);
}

/* Who is not here is not waited for. */
static void test_the_other_leaves(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, SPEC(""), JOB_CLUSTERING, 1);
    make(&g, FIRST, TASK_CLUSTER, false);
    gets_nothing(r, FIRST);
    Skerry__V1__LeaveRequest m = SKERRY__V1__LEAVE_REQUEST__INIT;
    assert_int_equal(CALL(r, &r->workers[SECOND], LEAVE, leave, &m), 0);
    make(&g, FIRST, TASK_CLUSTER, false);
    assert_int_equal(grid_job(&g)->state, JOB_SPLITTING);
    assert_false(worker(r, FIRST)->confirmed);
}

/* Nor is it waited for ever for one that never stays long enough. */
static void test_the_other_comes_and_goes(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, SPEC(""), JOB_CLUSTERING, 1);
    make(&g, FIRST, TASK_CLUSTER, false);
    for (unsigned i = 0; i < AGREE_TRIES; i++) {
        gets_nothing(r, FIRST);
        (void)does(&g, SECOND, TASK_CLUSTER, false);
        Skerry__V1__LeaveRequest m = SKERRY__V1__LEAVE_REQUEST__INIT;
        assert_int_equal(CALL(r, &r->workers[SECOND], LEAVE, leave, &m), 0);
        r->workers[SECOND].id = 0;
        join_from(r, SECOND, "10.0.0.2:1");
    }
    make(&g, FIRST, TASK_CLUSTER, false);
    assert_int_equal(grid_job(&g)->state, JOB_SPLITTING);
}

/* One word against another, and nobody else: the job goes on, and nobody is blamed. */
static void test_undecided(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, SPEC(""), JOB_CLUSTERING, 2);
    join_from(r, THIRD, "10.0.0.2:7"); /* as the second */
    make(&g, FIRST, TASK_CLUSTER, true);
    make(&g, SECOND, TASK_CLUSTER, false);
    assert_int_equal(grid_job(&g)->state, JOB_SPLITTING);
    assert_int_equal(grid_job(&g)->sizes[0], grid_job(&g)->sizes[1]);
    for (int i = FIRST; i <= THIRD; i++)
        assert_true(worker(r, i)->failures_row == 0 && !worker(r, i)->confirmed);
}

static void test_switched_off(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, SPEC(", spot_check: false"), JOB_CLUSTERING, 1);
    make(&g, FIRST, TASK_CLUSTER, true);
    assert_int_equal(grid_job(&g)->state, JOB_SPLITTING);
}

/* Also a worker with a record has to be confirmed where its result is not what was to be expected:
 * a partition without samples, or with more than it was given. */
static void test_odd(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, SPEC(""), JOB_CLUSTERING, 1);
    edit_worker(r, r->workers[FIRST].id)->checked = true;
    edit_worker(r, r->workers[SECOND].id)->checked = true;
    make(&g, FIRST, TASK_CLUSTER, true);
    assert_int_equal(grid_job(&g)->state, JOB_CLUSTERING);
    make(&g, SECOND, TASK_CLUSTER, true); /* the data are like that */
    assert_int_equal(grid_job(&g)->state, JOB_SPLITTING);
    const size_t n = grid_job(&g)->n_shards;
    make(&g, FIRST, TASK_SPLIT, false); /* but these samples have others */
    assert_int_equal(grid_job(&g)->n_shards, n);
    make(&g, FIRST, TASK_SPLIT, true);
    assert_true(grid_job(&g)->n_shards > n);
}

#define DILOCO                                                                                     \
    "name: diloco\nseed: 3\ndata: {path: x, image_size: 16}\n"                                     \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"                                  \
    "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"                            \
    "outer: {rounds: 2, steps: 2}\neval: {every: 0}\nsample: {every: 0}\n"

/* Other weights than those of the seed. */
static struct blob_ref other_weights(struct rig *r)
{
    char *path = fx_path(&r->f, "others");
    float *x = fx_array();
    fx_normal(9, 1.0f, x);
    fx_write_full(path, x);
    const struct blob_ref ref = put_file(r, path);
    free(x);
    mem_free(path);
    return ref;
}

/* With a version 0 that fits no network nobody could begin a phase. */
static void test_version_0(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, DILOCO, JOB_INITIALISING, 2);
    struct grid_result *x = does(&g, FIRST, TASK_INIT, false);
    const struct blob_ref right = x->refs[0];
    x->m.contributions[0]->blob = grid_blob(x, other_weights(r));
    assert_int_equal(call_report(r, g.w, &x->m), 0);
    assert_int_equal(grid_job(&g)->modules[0].n_versions, 0);
    gets_nothing(r, FIRST);
    make(&g, SECOND, TASK_INIT, false);
    make(&g, THIRD, TASK_INIT, false);
    assert_int_equal(grid_job(&g)->state, JOB_RUNNING);
    assert_memory_equal(grid_job(&g)->modules[0].versions[0].full.sha256, right.sha256, 32);
    assert_int_equal(worker(r, FIRST)->failures_row, 1);
}

/* What samples are partitioned by. */
static void test_features(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, SPEC(""), JOB_FEATURES, 2);
    struct grid_result *x = does(&g, FIRST, TASK_FEATURE, false);
    const struct blob_ref right = x->refs[0];
    const uint32_t shard = state_task(&r->co->state, g.w->task->id)->ranges[0].shard;
    x->m.output = grid_text(&g, x, "a lie", 0, 0, 0);
    assert_int_equal(call_report(r, g.w, &x->m), 0);
    while (grid_job(&g)->state == JOB_FEATURES)
        if (!does_any(&g, SECOND) && !does_any(&g, THIRD))
            fail_msg("nobody gets a task");
    assert_memory_equal(grid_job(&g)->shards[shard].features.sha256, right.sha256, 32);
    assert_true(worker(r, SECOND)->confirmed && worker(r, THIRD)->confirmed);
    assert_false(worker(r, FIRST)->confirmed);
}

#define DIPACO                                                                                     \
    "name: dipaco\nseed: 3\ndata: {path: x, holdout: 0.2}\n"                                       \
    "model: {type: llama, dim: 32, depth: 4, heads: 2, context: 32}\n"                             \
    "train: {batch: 1, lr: 0.1}\nrecipe: {name: dipaco, levels: [2, 2], reshard: [1]}\n"           \
    "partition: {router_fraction: 0.25}\nouter: {rounds: 2, steps: 2}\n"                           \
    "eval: {every: 0}\nsample: {every: 0}\n"

/* What a worker makes of scores of -30, so far off. */
static struct blob_ref scores(struct rig *r, float off)
{
    enum { N = 100 };
    float x[N];
    const uint64_t shape[1] = {N};
    char *path = fx_path(&r->f, "scores");
    struct err err = {0};
    struct st_writer *w = st_writer_new();
    for (int i = 0; i < N; i++)
        x[i] = -30 + (i % 2 ? off : -off);
    assert_int_equal(st_writer_add(w, "logp", ST_F32, 1, shape, &err), 0);
    assert_int_equal(st_writer_open(w, path, &err), 0);
    assert_int_equal(st_writer_write(w, x, sizeof(x), &err), 0);
    assert_int_equal(st_writer_commit(w, NULL, NULL, &err), 0);
    st_writer_free(w);
    const struct blob_ref ref = put_file(r, path);
    mem_free(path);
    return ref;
}

static uint64_t makes_scores(struct grid *g, int i, float off)
{
    struct grid_result *x = does(g, i, TASK_SCORE, false);
    x->m.output = grid_blob(x, scores(g->r, off));
    assert_int_equal(call_report(g->r, g->w, &x->m), 0);
    return g->w->task->id;
}

/* Two devices make nearly the same numbers, and a liar others. */
static void test_numbers(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, DIPACO, JOB_SCORING, 2);
    const size_t n = grid_job(&g)->n_scores; /* made when nobody else was here */
    const uint64_t task = makes_scores(&g, FIRST, 10);
    assert_int_equal(grid_job(&g)->n_scores, n);
    assert_int_equal(makes_scores(&g, SECOND, 0), task);
    assert_int_equal(grid_job(&g)->n_scores, n);
    assert_int_equal(makes_scores(&g, THIRD, 0.1f), task);
    assert_int_equal(grid_job(&g)->n_scores, n + 1);
    const struct blob_ref near = scores(r, 0.1f), far = scores(r, 10);
    assert_memory_equal(grid_job(&g)->scores[n].blob.sha256, near.sha256, 32);
    assert_memory_not_equal(grid_job(&g)->scores[n].blob.sha256, far.sha256, 32);
    assert_int_equal(worker(r, FIRST)->failures_row, 1);
    assert_int_equal(worker(r, SECOND)->failures_row, 0);
    (void)makes_scores(&g, SECOND, 0); /* whom THIRD has confirmed */
    assert_int_equal(grid_job(&g)->n_scores, n + 2);
}

/* What a third device makes is near both of what is a little too far apart: nobody is wrong. */
static void test_between(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, DIPACO, JOB_SCORING, 2);
    const size_t n = grid_job(&g)->n_scores;
    (void)makes_scores(&g, FIRST, 0);
    (void)makes_scores(&g, SECOND, 2);
    assert_int_equal(grid_job(&g)->n_scores, n);
    (void)makes_scores(&g, THIRD, 1);
    assert_int_equal(grid_job(&g)->n_scores, n + 1);
    for (int i = FIRST; i <= THIRD; i++)
        assert_int_equal(worker(r, i)->failures_row, 0);
}

/* All samples are in one partition, and the other one has nothing to train on. */
static void cluster_uselessly(struct grid *g, int i)
{
    while (grid_job(g)->state == JOB_FEATURES)
        make(g, i, TASK_FEATURE, false);
    make(g, i, TASK_CLUSTER, true);
}

static void split_uselessly(struct grid *g, int i)
{
    while (grid_job(g)->state == JOB_SPLITTING) {
        struct grid_result *x = does(g, i, TASK_SPLIT, true);
        assert_int_equal(call_report(g->r, g->w, &x->m), 0);
    }
}

static void make_useless(struct grid *g, int i)
{
    cluster_uselessly(g, i);
    split_uselessly(g, i);
}

/* Partitions of no use end no job while one worker alone has made them: another one makes them. */
static void test_useless(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    char what[REASON_MAX];
    begin_at(&g, r, SPEC(""), JOB_CLUSTERING, 0);
    const size_t n = grid_job(&g)->n_shards;
    make_useless(&g, FIRST);
    assert_int_equal(grid_job(&g)->state, JOB_FEATURES);
    assert_int_equal(grid_job(&g)->n_shards, n);
    gets_nothing(r, FIRST);
    assert_true(query_stalled(&r->co->state, grid_job(&g), what));
    assert_non_null(strstr(what, "partition 1 of 2 with 0 samples"));
    assert_non_null(strstr(what, "start a worker with another token or address"));
    join_from(r, SECOND, "10.0.0.2:1");
    while (grid_job(&g)->state == JOB_FEATURES)
        make(&g, SECOND, TASK_FEATURE, false);
    make(&g, SECOND, TASK_CLUSTER, false);
    while (grid_job(&g)->state == JOB_SPLITTING) {
        gets_nothing(r, FIRST);
        make(&g, SECOND, TASK_SPLIT, false);
    }
    assert_int_equal(grid_job(&g)->state, JOB_RUNNING);
    assert_int_equal(grid_job(&g)->generation, 1);
    stop(r);
    start(r);
    assert_int_equal(grid_job(&g)->n_shards - n, 6);
    assert_int_equal(grid_job(&g)->sizes[0], grid_job(&g)->sizes[1]);
}

/* Nor where a restart has forgotten who made the first part of them: then they are made once more,
 * by whoever is here. */
static void test_useless_after_a_restart(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, SPEC(""), JOB_CLUSTERING, 0);
    cluster_uselessly(&g, FIRST);
    stop(r);
    start(r);
    edit_worker(r, r->workers[FIRST].id)->state = WORKER_LEFT;
    join_from(r, SECOND, "10.0.0.2:1");
    split_uselessly(&g, SECOND);
    assert_int_equal(grid_job(&g)->state, JOB_FEATURES);
    edit_worker(r, r->workers[SECOND].id)->state = WORKER_LEFT;
    assert_int_equal(join(r, &r->workers[FIRST], SKERRY_VERSION), 0);
    join_from(r, FIRST, "10.0.0.1:1");
    make_useless(&g, FIRST);
    assert_int_equal(grid_job(&g)->state, JOB_FEATURES);
    gets_nothing(r, FIRST);
}

/* When two say so, the data are like that. */
static void test_useless_twice(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, SPEC(""), JOB_CLUSTERING, 0);
    make_useless(&g, FIRST);
    edit_worker(r, r->workers[FIRST].id)->state = WORKER_LEFT;
    join_from(r, SECOND, "10.0.0.2:1");
    make_useless(&g, SECOND);
    assert_int_equal(grid_job(&g)->state, JOB_FAILED);
    assert_non_null(strstr(grid_job(&g)->reason, "the data cannot be partitioned like this"));
}

#define LOSS(data, model)                                                                          \
    "name: loss\nseed: 3\ndata: {path: x, holdout: 0.2" data "}\nmodel: {" model "}\n"             \
    "train: {batch: 1, lr: 0.1}\nrecipe: {name: diloco, replicas: 1}\n"                            \
    "outer: {rounds: 1, steps: 2}\neval: {every: 1}\nsample: {every: 0}\n"
#define TEXT_LOSS LOSS("", "type: llama, dim: 32, depth: 4, heads: 2, context: 32")

/* The worker evaluates, and says that nothing of it is judged. */
static bool has_no_loss(struct grid *g, int i)
{
    struct grid_result *x = does(g, i, TASK_EVAL, false);
    x->m.samples = x->m.units;
    x->m.units = 0;
    x->m.loss_sum = 0;
    x->m.loss_mean = NAN;
    assert_int_equal(call_report(g->r, g->w, &x->m), 0);
    Skerry__V1__ReportReply *reply =
        skerry__v1__report_reply__unpack(NULL, g->w->reply_len, g->w->reply);
    const bool accepted = reply->accepted;
    skerry__v1__report_reply__free_unpacked(reply, NULL);
    return accepted;
}

/* One worker's word that there is no loss keeps none from being measured. */
static void test_no_loss(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, TEXT_LOSS, JOB_RUNNING, 2);
    make(&g, FIRST, TASK_TRAIN, false);
    assert_true(has_no_loss(&g, FIRST));
    gets_nothing(r, FIRST);
    make(&g, SECOND, TASK_EVAL, false);
    assert_true(isnan(grid_job(&g)->paths[0].eval.loss));
    make(&g, THIRD, TASK_EVAL, false);
    assert_true(grid_job(&g)->paths[0].eval.loss == 0.5f);
    assert_int_equal(worker(r, FIRST)->failures_row, 1);
}

/* When two say so, the texts are like that, and nobody measures once more. */
static void test_no_loss_twice(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, TEXT_LOSS, JOB_RUNNING, 1);
    make(&g, FIRST, TASK_TRAIN, false);
    assert_true(has_no_loss(&g, FIRST));
    assert_true(has_no_loss(&g, SECOND));
    assert_int_equal(worker(r, FIRST)->failures_row, 0);
    assert_int_equal(state_task(&r->co->state, g.w->task->id)->state, TASK_DONE);
}

/* Images have one. */
static void test_no_loss_of_images(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_at(&g, r, LOSS(", image_size: 16", "type: dit, patch: 4, dim: 32, depth: 1, heads: 2"),
             JOB_RUNNING, 1);
    make(&g, FIRST, TASK_TRAIN, false);
    assert_false(has_no_loss(&g, FIRST));
    assert_int_equal(worker(r, FIRST)->failures_row, 1);
    make(&g, SECOND, TASK_EVAL, false);
    assert_true(grid_job(&g)->paths[0].eval.loss == 0.5f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_honest, begin, end),
        cmocka_unit_test_setup_teardown(test_other_devices, begin, end),
        cmocka_unit_test_setup_teardown(test_outage, begin, end),
        cmocka_unit_test_setup_teardown(test_same_sizes, begin, end),
        cmocka_unit_test_setup_teardown(test_liar_fits, begin, end),
        cmocka_unit_test_setup_teardown(test_liar_copies, begin, end),
        cmocka_unit_test_setup_teardown(test_the_other_leaves, begin, end),
        cmocka_unit_test_setup_teardown(test_the_other_comes_and_goes, begin, end),
        cmocka_unit_test_setup_teardown(test_undecided, begin, end),
        cmocka_unit_test_setup_teardown(test_switched_off, begin, end),
        cmocka_unit_test_setup_teardown(test_odd, begin, end),
        cmocka_unit_test_setup_teardown(test_version_0, begin, end),
        cmocka_unit_test_setup_teardown(test_features, begin, end),
        cmocka_unit_test_setup_teardown(test_numbers, begin, end),
        cmocka_unit_test_setup_teardown(test_between, begin, end),
        cmocka_unit_test_setup_teardown(test_useless, begin, end),
        cmocka_unit_test_setup_teardown(test_useless_after_a_restart, begin, end),
        cmocka_unit_test_setup_teardown(test_useless_twice, begin, end),
        cmocka_unit_test_setup_teardown(test_no_loss, begin, end),
        cmocka_unit_test_setup_teardown(test_no_loss_twice, begin, end),
        cmocka_unit_test_setup_teardown(test_no_loss_of_images, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
