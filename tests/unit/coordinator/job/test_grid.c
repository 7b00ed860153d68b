/* Jobs of several paths, networks and partitions from submit to their end, through lost
 * leases and restarts in every kind of task (grid.h). */
#include "coordinator/job/draw.h"
#include "coordinator/work/shards.h"
#include "tests/unit/coordinator/grid.h"

static const char ddm[] = "name: ddm\nseed: 3\n"
                          "data: {path: x, image_size: 16, holdout: 0.2}\n"
                          "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                          "router: {patch: 4, dim: 32, depth: 1, heads: 2, batch: 3}\n"
                          "train: {batch: 4, lr: 0.1}\nrecipe: {name: ddm, experts: 2}\n"
                          "outer: {rounds: 2, steps: 2}\n"
                          "eval: {every: 1, samples: 8}\n"
                          "sample: {count: 4, every: 1, strategy: top1}\n";

static const char dipaco[] =
    "name: dipaco\nseed: 3\n"
    "data: {path: x, holdout: 0.2}\n"
    "model: {type: llama, dim: 32, depth: 4, heads: 2, context: 32}\n"
    "train: {batch: 1, lr: 0.1}\n"
    "recipe: {name: dipaco, levels: [2, 2], private_blocks: [3], reshard: [1],\n"
    "         early_stop: true, moments: travel}\n"
    "partition: {chunk: 16, router_fraction: 0.25}\n"
    "outer: {rounds: 3, steps: 2}\n"
    "eval: {every: 1, samples: 100}\n"
    "sample: {tokens: 8, prompt: once}\n";

/* ---- ddm ----------------------------------------------------------------- */

/* What the last look saw. */
static struct {
    unsigned mixtures, single, router_batch, mixture_evals;
    uint64_t eval_samples;
} saw;

static void look_ddm(struct grid *g, const Skerry__V1__Task *t)
{
    const struct job *j = grid_job(g);
    bool router = t->network == SKERRY__V1__NETWORK__NETWORK_ROUTER;
    assert_int_equal(t->partitions, 2);
    assert_int_equal(t->n_levels, 1);
    assert_true(t->levels[0]->head && t->levels[0]->embedders);
    if (grid_kind(t) == TASK_TRAIN) {
        /* Nobody is left behind, and each trains on its own partition. */
        assert_int_equal(router, t->train->path == 2);
        assert_int_equal(t->train->batch, router ? 3 : 2);
        assert_true(t->train->n_ranges > 0);
        saw.router_batch += router;
        for (uint32_t p = 0; p < 3; p++)
            assert_true(j->paths[p].round + 1 >= t->train->round);
        for (size_t i = 0; !router && i < t->train->n_ranges; i++)
            assert_int_equal(t->train->ranges[i]->partition, t->train->path);
    }
    if (grid_kind(t) == TASK_EVAL && t->mixture == NULL) {
        assert_true(t->eval->n_ranges > 0);
        for (size_t i = 0; !router && i < t->eval->n_ranges; i++)
            assert_int_equal(t->eval->ranges[i]->partition, t->eval->path);
        assert_int_equal(t->eval->samples, router ? 8 : 4);
    }
    if (t->mixture == NULL) {
        saw.single += grid_kind(t) == TASK_SAMPLE;
        return;
    }
    saw.mixtures += grid_kind(t) == TASK_SAMPLE;
    saw.mixture_evals += grid_kind(t) == TASK_EVAL;
    assert_int_equal(t->mixture->experts->n_expert, 2);
    assert_int_equal(t->mixture->experts->expert[1]->path, 1);
    assert_int_equal(t->mixture->experts->expert[1]->partition, 1);
    assert_non_null(t->mixture->experts->expert[1]->modules[0]->sha256.data);
    assert_int_equal(t->mixture->n_router, 1);
    assert_int_equal(t->mixture->n_router_levels, 1);
    assert_int_equal(t->n_modules, 0);
}

static void count_paths(void *arg, const struct view_path *p)
{
    assert_string_equal(p->state, "done");
    assert_string_equal(p->network, p->path == 2 ? "router" : "main");
    assert_int_equal(p->n_modules, 1);
    assert_int_equal(p->versions[0], 2);
    assert_int_equal(p->samples, p->path == 2 ? 80 : 40);
    assert_true(p->eval_loss > 0);
    ++*(unsigned *)arg;
}

static void sum_partitions(void *arg, const struct view_partition *p)
{
    assert_true(p->share > 0.4 && p->share < 0.6);
    *(uint64_t *)arg += p->samples;
}

static void run_ddm(struct rig *r, enum grid_mode mode, uint8_t ret_versions[3][32])
{
    struct grid g = {.mode = mode};
    struct view_job v;
    unsigned rows = 0, paths = 0;
    uint64_t samples = 0;
    memset(&saw, 0, sizeof(saw));
    grid_begin(&g, r, ddm, false);
    g.look = look_ddm;
    grid_run(&g);
    const struct job *j = grid_job(&g);
    assert_int_equal(g.seen[TASK_INIT], 2); /* one per network */
    assert_int_equal(g.seen[TASK_FEATURE], 6);
    assert_int_equal(g.seen[TASK_CLUSTER], 1);
    assert_int_equal(g.seen[TASK_SPLIT], 3); /* pairs of shards */
    assert_int_equal(g.seen[TASK_TRAIN], 3 * 2);
    assert_int_equal(g.seen[TASK_SCORE], 0);
    assert_int_equal(saw.mixture_evals, 2);
    assert_int_equal(saw.mixtures, 2);
    assert_int_equal(saw.single, 2); /* a grid of each expert at the end */
    assert_int_equal(saw.router_batch, 2);
    assert_int_equal(j->generation, 1);
    assert_int_equal(j->comp.n_partitions, 2);
    assert_int_equal(j->n_grids, 4);
    assert_int_equal(view_job(r->co, g.job, &v, NULL), 0);
    assert_int_equal(v.samples_total, 92);
    assert_true(v.mixture && v.stage_total == 0);
    assert_true(fabs(v.eval_loss - 0.5) < 1e-6);
    for (size_t i = 0; i < j->n_rows; i++)
        rows += j->rows[i].path == UINT32_MAX && j->rows[i].name[0] != '\0';
    assert_int_equal(rows, 2); /* balance; loss top1, the newer in place of the older */
    view_each_path(r->co, g.job, count_paths, &paths);
    assert_int_equal(paths, 3);
    view_each_partition(r->co, g.job, sum_partitions, &samples);
    assert_int_equal(samples, 80);
    for (int m = 0; m < 3; m++) {
        assert_int_equal(j->modules[m].bytes_from_others, 0); /* each for itself */
        memcpy(ret_versions[m], module_version(&j->modules[m], 2)->full.sha256, 32);
    }
}

static uint8_t calm[3][32];

static void test_ddm(void **state)
{
    run_ddm(*state, GRID_CALM, calm);
    assert_memory_not_equal(calm[0], calm[1], 32);
}

static void test_ddm_lost_leases(void **state)
{
    uint8_t other[3][32];
    run_ddm(*state, GRID_LEAVE, other);
    assert_memory_equal(calm, other, sizeof(calm));
}

static void test_ddm_restarts(void **state)
{
    uint8_t other[3][32];
    run_ddm(*state, GRID_RESTART, other);
    assert_memory_equal(calm, other, sizeof(calm));
}

/* ---- dipaco -------------------------------------------------------------- */

static struct {
    unsigned clusters, discriminative, evaluations, scores, moments, best_draws;
    uint32_t generation_trained[4];
    uint64_t first[16];
    unsigned splits;
} dp;

static void look_cluster(struct grid *g, const Skerry__V1__ClusterTask *c)
{
    assert_int_equal(c->n_features, 6);
    assert_int_equal(c->n_levels, 2);
    assert_true(c->levels[0] == 2 && c->levels[1] == 2);
    assert_true(c->holdout[4] && !c->holdout[0]);
    dp.clusters++;
    if (c->n_scores == 0)
        return;
    assert_non_null(c->previous);
    assert_int_equal(c->n_scores, 4 * c->n_scored);
    assert_int_equal(c->scored[0], 0); /* the first training shard is kept for routers */
    for (size_t i = 0; i < c->n_scores; i++)
        assert_int_equal(c->scores[i]->sha256.len, 32);
    dp.discriminative += !c->evaluate;
    dp.evaluations += c->evaluate;
    assert_int_equal(c->n_scored, c->evaluate ? 3 : 1);
}

static void look_dipaco(struct grid *g, const Skerry__V1__Task *t)
{
    const struct job *j = grid_job(g);
    assert_int_equal(t->vocab, 257);
    assert_int_equal(t->n_levels, 3); /* two shared, one private */
    if (grid_kind(t) == TASK_CLUSTER)
        look_cluster(g, t->cluster);
    if (grid_kind(t) == TASK_FEATURE) { /* chunks of what is scored alone */
        uint32_t shard = state_task(&g->r->co->state, t->id)->ranges[0].shard;
        assert_int_equal(t->feature->chunk, shard == 0 || shard >= 4 ? 16 : 0);
    }
    if (grid_kind(t) == TASK_SPLIT)
        dp.first[dp.splits++] = t->split->first;
    if (grid_kind(t) == TASK_SCORE) {
        dp.scores++;
        assert_int_equal(t->n_modules, 3);
        assert_int_equal(t->score->skip, 32);
        assert_int_equal(t->score->chunk, j->state == JOB_SCORING ? 0 : 16);
    }
    if (grid_kind(t) == TASK_EVAL)
        assert_int_equal(t->eval->skip, 32);
    if (grid_kind(t) == TASK_TRAIN) {
        /* 2 steps of 1 row of 33 tokens, 10 tokens a piece: 7, and twice their root more. */
        uint64_t n = 0;
        for (size_t i = 0; i < t->train->n_ranges; i++) {
            n += t->train->ranges[i]->count;
            assert_int_equal(t->train->ranges[i]->partition, t->train->path);
        }
        assert_int_equal(n, 12);
        assert_int_equal(t->train->steps, 2);
        assert_true(t->train->send_moments);
        dp.moments += t->train->moments != NULL;
        dp.generation_trained[t->train->round] = j->generation;
    }
    if (grid_kind(t) == TASK_SAMPLE && j->state == JOB_FINISHING) {
        assert_string_equal(t->sample->prompt, "once");
        assert_int_equal(t->sample->tokens, 8);
        /* Path 1 was best after its second round. */
        dp.best_draws += t->sample->path == 1 && t->modules[0]->version == 2;
        assert_int_equal(t->modules[2]->version, t->sample->path == 1 ? 2 : 3);
    }
}

static float loss_dipaco(uint32_t path, uint32_t round)
{
    /* Path 1 is best on the data before the resharding, but those do not count. */
    static const float one[4] = {0, 0.5f, 1.0f, 1.3f};
    return path == 1 ? one[round] : 2.0f - 0.1f * (float)round;
}

static void check_shards(struct rig *r, const struct job *j)
{
    unsigned old = 0, now = 0;
    for (size_t i = 0; i < j->n_shards; i++) {
        const struct shard_rec *s = &j->shards[i];
        old += s->generation == 1 && !blob_ref_is_set(&s->blob);
        now += s->generation == 2 && blob_ref_is_set(&s->blob);
        assert_true(s->router == (i == 0));
        assert_false(s->generation == 1 && blob_ref_is_set(&s->blob));
    }
    assert_int_equal(old, 8); /* 3 + 2 shards in two groups, 4 partitions */
    assert_int_equal(now, 8);
    for (uint32_t k = 0; k < 4; k++)
        assert_int_equal(shards_sum(j, k, false).samples, 15);
    struct ledger_epoch e;
    ledger_figures(j->ledgers[0], 0, &e);
    assert_int_equal(e.total, 15);
    assert_int_equal(e.done, 15); /* two rounds since the data were cut anew: all of them */
}

static void run_dipaco(struct rig *r, enum grid_mode mode, uint8_t ret_versions[8][32])
{
    struct grid g = {.mode = mode};
    struct view_job v;
    memset(&dp, 0, sizeof(dp));
    grid_begin(&g, r, dipaco, true);
    g.look = look_dipaco;
    g.loss = loss_dipaco;
    grid_run(&g);
    const struct job *j = grid_job(&g);
    assert_int_equal(j->comp.n_modules, 8); /* 2 + 2 + 4 private */
    assert_int_equal(dp.clusters, 3);
    assert_int_equal(dp.discriminative, 1);
    assert_int_equal(dp.evaluations, 1);
    assert_int_equal(dp.scores, 4 * 1 + 4 * 3);
    assert_int_equal(g.seen[TASK_TRAIN], 4 * 3);
    assert_int_equal(dp.generation_trained[0], 1);
    assert_int_equal(dp.generation_trained[1], 2);
    assert_int_equal(dp.best_draws, 1);
    assert_int_equal(dp.splits, 4);
    assert_int_equal(dp.first[0], 20); /* after the shard kept for routers */
    assert_int_equal(dp.first[1], 80);
    assert_int_equal(j->resharded, 1);
    assert_int_equal(j->generation, 2);
    assert_int_equal(j->paths[1].best_round, 2);
    assert_int_equal(j->paths[0].best_round, 3);
    assert_string_equal(j->grids[0].text, "once upon a time");
    check_shards(r, j);
    assert_int_equal(view_job(r->co, g.job, &v, NULL), 0);
    assert_true(v.text && v.reshards == 1 && v.job->resharded == 1);
    /* Nats per token over ln 2 and the bytes, of all paths. */
    assert_true(fabs(v.eval_bits_per_byte - (3 * 1.7 + 1.3) / 4 / log(2)) < 1e-3);
    for (int m = 0; m < 8; m++) { /* the last four are private */
        assert_true((m < 4) == (j->modules[m].bytes_from_others > 0));
        memcpy(ret_versions[m], module_version(&j->modules[m], 3)->full.sha256, 32);
    }
}

static uint8_t calm_dipaco[8][32];

static void test_dipaco(void **state)
{
    run_dipaco(*state, GRID_CALM, calm_dipaco);
}

static void test_dipaco_lost_leases(void **state)
{
    uint8_t other[8][32];
    run_dipaco(*state, GRID_LEAVE, other);
    assert_memory_equal(calm_dipaco, other, sizeof(other));
}

static void test_dipaco_restarts(void **state)
{
    uint8_t other[8][32];
    run_dipaco(*state, GRID_RESTART, other);
    assert_memory_equal(calm_dipaco, other, sizeof(other));
}

/* ---- within a run -------------------------------------------------------- */

static void run_until(struct grid *g, enum job_state s)
{
    while (grid_job(g)->state != s)
        (void)grid_step(g);
}

/* The moments go to whom the replica goes, not to whom it stays with. */
static void test_moments_travel(void **state)
{
    struct rig *r = *state;
    struct grid g = {.mode = GRID_CALM};
    struct fake *b = &r->workers[1];
    grid_begin(&g, r, dipaco, true);
    run_until(&g, JOB_RUNNING);
    while (grid_job(&g)->paths[3].round == 0)
        (void)grid_step(&g);
    run_until(&g, JOB_RUNNING); /* through the resharding */
    Skerry__V1__Task *t = grid_next(&g);
    while (grid_kind(t) != TASK_TRAIN) {
        (void)grid_step(&g);
        t = grid_next(&g);
    }
    assert_null(t->train->moments);
    assert_true(blob_ref_is_set(&grid_job(&g)->paths[t->train->path].replicas[0].moments));
    uint64_t id = t->id;
    Skerry__V1__LeaveRequest m = SKERRY__V1__LEAVE_REQUEST__INIT;
    assert_int_equal(CALL(r, g.w, LEAVE, leave, &m), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    g.w = b;
    while ((t = grid_next(&g))->id != id)
        (void)grid_step(&g);
    assert_non_null(t->train->moments);
}

static void find_progress(void *arg, const struct view_waiting *w)
{
    *(bool *)arg |= strstr(w->what, "features of job") && strstr(w->why, "2 of 6 tasks done");
}

static bool kept(struct rig *r, const struct blob_ref *b)
{
    struct blob_id id;
    memcpy(id.sha256, b->sha256, 32);
    return blobstore_has(r->co->blobs, &id, NULL);
}

/* How far a stage is; its files go when nothing needs them, the model's stay. */
static void test_progress_and_garbage(void **state)
{
    struct rig *r = *state;
    struct grid g = {.mode = GRID_CALM};
    struct view_job v;
    bool told = false;
    grid_begin(&g, r, ddm, false);
    run_until(&g, JOB_FEATURES);
    (void)grid_step(&g);
    (void)grid_step(&g);
    assert_int_equal(view_job(r->co, g.job, &v, NULL), 0);
    assert_int_equal(v.stage_done, 2);
    assert_int_equal(v.stage_total, 6);
    view_each_waiting(r->co, g.job, find_progress, &told);
    assert_true(told);
    run_until(&g, JOB_RUNNING);
    struct blob_ref features = grid_job(&g)->shards[1].features;
    struct blob_ref assignment = grid_job(&g)->assignment;
    assert_true(kept(r, &features) && kept(r, &assignment));
    grid_run(&g);
    const struct job *j = grid_job(&g);
    WAIT_DOING(!kept(r, &features) && !kept(r, &assignment), loop_turn(r->loop, false));
    assert_true(kept(r, &j->partitioner) && kept(r, &j->shards[7].blob));
    const struct module_rec *m = &j->modules[0];
    assert_true(kept(r, &m->versions[m->n_versions - 1].full));
}

/* A split that loses samples is refused; partitions that cannot fill a phase end the job
 * with their number, where nobody else can come. */
static void test_bad_partitions(void **state)
{
    struct rig *r = *state;
    struct grid g = {.mode = GRID_CALM};
    static struct grid_result x;
    r->co->opt.local = true;
    grid_begin(&g, r, ddm, false);
    run_until(&g, JOB_SPLITTING);
    const Skerry__V1__Task *t = grid_next(&g);
    grid_result(&g, t, &x);
    x.m.shards[0]->samples--;
    CALL(r, g.w, REPORT, report, &x.m);
    Skerry__V1__ReportReply *reply =
        skerry__v1__report_reply__unpack(NULL, g.w->reply_len, g.w->reply);
    assert_false(reply->accepted);
    assert_non_null(strstr(reply->reason, "samples were written"));
    skerry__v1__report_reply__free_unpacked(reply, NULL);
    assert_int_equal(shards_cut(grid_job(&g)), grid_job(&g)->n_shards);
    /* All samples to partition 0: the other one has none. */
    while (!job_is_ended(grid_job(&g))) {
        t = grid_next(&g);
        grid_result(&g, t, &x);
        x.m.shards[0]->samples += x.m.shards[1]->samples;
        x.m.n_shards = 1;
        assert_int_equal(CALL(r, g.w, REPORT, report, &x.m), 0);
    }
    assert_int_equal(grid_job(&g)->state, JOB_FAILED);
    assert_non_null(strstr(grid_job(&g)->reason, "partition 1 of 2 with 0 samples"));
}

static unsigned paths_with_best(const struct job *j)
{
    unsigned n = 0;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        n += j->paths[p].best != NULL;
    return n;
}

/* A re-sharding that leaves a partition without samples is dropped: the job goes on with the
 * routing and the best versions that it had, over a restart, too. */
static void test_bad_resharding(void **state)
{
    struct rig *r = *state;
    struct grid g = {.mode = GRID_CALM};
    static struct grid_result x;
    grid_begin(&g, r, dipaco, true);
    run_until(&g, JOB_SCORING);
    struct blob_ref before = grid_job(&g)->partitioner;
    size_t n = grid_job(&g)->n_shards;
    run_until(&g, JOB_SPLITTING);
    assert_memory_not_equal(&before.sha256, grid_job(&g)->partitioner.sha256, 32);
    stop(r);
    start(r);
    assert_int_equal(join(r, g.w, SKERRY_VERSION), 0);
    assert_int_equal(paths_with_best(grid_job(&g)), 4);
    while (grid_job(&g)->state == JOB_SPLITTING) {
        grid_result(&g, grid_next(&g), &x);
        for (size_t i = 1; i < x.m.n_shards; i++)
            x.m.shards[0]->samples += x.m.shards[i]->samples;
        x.m.n_shards = 1;
        assert_int_equal(CALL(r, g.w, REPORT, report, &x.m), 0);
    }
    const struct job *j = grid_job(&g);
    assert_int_equal(j->state, JOB_RUNNING);
    assert_int_equal(j->resharded, 1);
    assert_int_equal(paths_with_best(j), 4);
    assert_memory_equal(before.sha256, j->partitioner.sha256, 32);
    for (size_t i = shards_cut(j); i < j->n_shards; i++) {
        assert_int_equal(j->shards[i].generation, i < n ? 2 : 1);
        assert_true(blob_ref_is_set(&j->shards[i].blob) == (i < n));
    }
    stop(r);
    start(r);
    assert_int_equal(join(r, g.w, SKERRY_VERSION), 0);
    grid_run(&g);
    assert_int_equal(grid_job(&g)->state, JOB_DONE);
}

/* ---- a sampler whose experts stay elsewhere ------------------------------ */

static void ask_velocity(struct rig *r, struct fake *w, const Skerry__V1__Task *t,
                         struct grid_result *x, const char *input, uint32_t wait_ms)
{
    Skerry__V1__EvaluateRequest m = SKERRY__V1__EVALUATE_REQUEST__INIT;
    m.task_id = t->id;
    m.attempt = t->attempt;
    m.path = 1;
    m.input = grid_blob(x, put_text(r, input));
    m.wait_ms = wait_ms;
    begin_call(r, w, SKERRY__V1__METHOD__METHOD_EVALUATE, &m,
               &skerry__v1__evaluate_reply__descriptor);
}

/* Asks, and says whether the sampler was seen to get on by that. */
static bool gets_on(struct rig *r, struct fake *w, const Skerry__V1__Task *t, const char *input)
{
    struct grid_result x = {0};
    const struct task *sample = state_task(&r->co->state, t->id);
    const uint64_t before = core_now(r->co) - 1; /* not so old that its lease is taken meanwhile */
    task_memory(sample)->progress_ms = before;
    ask_velocity(r, w, t, &x, input, 0);
    wait_for(r, &w->done);
    assert_int_equal(w->code, 0);
    return sample->progress_ms > before;
}

static void test_remote(void **state)
{
    struct rig *r = *state;
    struct grid g = {.mode = GRID_CALM};
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    static struct grid_result x, y;
    struct err err = {0};
    struct draw_request ask_for = {.ema = -1, .remote = true, .temperature = NAN};
    const struct draw_request tall = {.ema = -1, .count = 1000, .columns = 1, .temperature = NAN};
    uint64_t sample = 0;
    grid_begin(&g, r, ddm, false);
    grid_run(&g);
    assert_int_equal(view_sample_request(r->co, g.job, &tall, &sample, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "18 x 17001 pixels, but a side has at most 16384: take 2"));
    assert_int_equal(view_sample_request(r->co, g.job, &ask_for, &sample, &err), 0);
    /* Alone nobody would evaluate its experts. */
    ask(r, a, 300);
    assert_null(got(r, a));
    assert_non_null(strstr(a->assigned->waiting_for, "needs another worker"));
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    const Skerry__V1__Task *t = assign(r, a, TASK_SAMPLE);
    assert_true(t->mixture->remote);
    assert_int_equal(t->mixture->experts->expert[0]->n_modules, 0);
    memset(&x, 0, sizeof(x));
    ask_velocity(r, a, t, &x, "x_t of a step", 20000);
    const Skerry__V1__Task *v = assign(r, b, TASK_VELOCITY);
    assert_int_equal(v->velocity->path, 1);
    assert_int_equal(v->n_modules, 1);
    grid_result(&g, v, &y);
    struct result none;
    begin_result(&none, v, NULL);
    none.m.output = y.m.output;
    assert_true(report(r, b, &none));
    wait_for(r, &a->done);
    assert_int_equal(a->code, 0);
    Skerry__V1__EvaluateReply *reply =
        skerry__v1__evaluate_reply__unpack(NULL, a->reply_len, a->reply);
    assert_non_null(reply->output);
    assert_memory_equal(reply->output->sha256.data, y.refs[0].sha256, 32);
    skerry__v1__evaluate_reply__free_unpacked(reply, NULL);
    /* The same question has the same answer, without another task. */
    uint64_t tasks = r->co->state.next_task;
    ask_velocity(r, a, t, &x, "x_t of a step", 20000);
    wait_for(r, &a->done);
    assert_int_equal(a->code, 0);
    assert_int_equal(r->co->state.next_task, tasks);
    assert_false(gets_on(r, a, t, "x_t of a step")); /* it is no progress, either */
    /* With the sampler its velocities go. */
    uint64_t velocity = v->id;
    grid_result(&g, t, &x);
    begin_result(&none, t, NULL);
    none.m.output = x.m.output;
    assert_true(report(r, a, &none));
    assert_null(state_task(&r->co->state, velocity));
}

/* A sampler that asks for ever new points has one task of each path, not all workers. */
static void test_remote_flood(void **state)
{
    struct rig *r = *state;
    struct grid g = {.mode = GRID_CALM};
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct draw_request ask_for = {.ema = -1, .remote = true, .temperature = NAN};
    static struct grid_result x;
    struct err err = {0};
    uint64_t sample = 0;
    grid_begin(&g, r, ddm, false);
    grid_run(&g);
    assert_int_equal(view_sample_request(r->co, g.job, &ask_for, &sample, &err), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    const Skerry__V1__Task *t = assign(r, a, TASK_SAMPLE);
    for (int i = 0; i < 5; i++) {
        char input[32];
        (void)snprintf(input, sizeof(input), "x_t of step %d", i);
        memset(&x, 0, sizeof(x));
        ask_velocity(r, a, t, &x, input, 0);
        wait_for(r, &a->done);
        assert_int_equal(a->code, 0);
        if (i == 2)
            assign(r, b, TASK_VELOCITY); /* also one that somebody has */
    }
    assert_int_equal(r->co->state.n_open, 2); /* with the sampler's own */
    assert_int_equal(state_worker(&r->co->state, b->id)->task_id, 0);
    /* Nor does it get on for ever: no picture takes so many questions. */
    assert_true(gets_on(r, a, t, "x_t of step 5"));
    assert_true(gets_on(r, a, t, "x_t of step 5")); /* it waits for others */
    task_memory(state_task(&r->co->state, t->id))->draw.questions = 1u << 20;
    assert_false(gets_on(r, a, t, "x_t of step 5"));
    assert_false(gets_on(r, a, t, "x_t of step 6"));
}

/* ---- texts --------------------------------------------------------------- */

static int stream(struct rig *r, struct fake *w, uint64_t offset, const char *text)
{
    Skerry__V1__StreamRequest m = SKERRY__V1__STREAM_REQUEST__INIT;
    m.task_id = w->task->id;
    m.attempt = w->task->attempt;
    m.offset = offset;
    m.text = (char *)text;
    return CALL(r, w, STREAM, stream, &m);
}

static void test_text_streams(void **state)
{
    struct rig *r = *state;
    struct grid g = {.mode = GRID_CALM};
    struct view_task v;
    struct err err = {0};
    uint64_t task = 0;
    const struct draw_request bad = {.ema = -1, .remote = true, .temperature = NAN};
    const struct draw_request good = {
        .ema = -1, .has_path = true, .path = 2, .prompt = "Call me", .tokens = 5, .guidance = NAN};
    const struct draw_request images = {.ema = -1, .count = 4, .guidance = NAN, .temperature = NAN};
    grid_begin(&g, r, dipaco, true);
    g.loss = loss_dipaco;
    grid_run(&g);
    assert_int_equal(view_sample_request(r->co, g.job, &bad, &task, &err), -EINVAL);
    assert_int_equal(view_sample_request(r->co, g.job, &images, &task, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "count, labels"));
    struct draw_request much = good; /* a worker would fail at it again and again */
    much.tokens = VIEW_TOKENS_MAX + 1;
    assert_int_equal(view_sample_request(r->co, g.job, &much, &task, &err), -EINVAL);
    much = good;
    much.temperature = VIEW_TEMPERATURE_MAX + 1;
    assert_int_equal(view_sample_request(r->co, g.job, &much, &task, &err), -EINVAL);
    /* Ids beyond the bytes, of a tokenizer that the job does not name, make no text. */
    struct job *j = grid_job(&g);
    j->vocab = 50257;
    assert_null(draw_sample(r->co, j, 0, 1, NULL));
    assert_int_equal(view_sample_request(r->co, g.job, &good, &task, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "data.tokenizer"));
    j->vocab = 257;
    assert_int_equal(view_sample_request(r->co, g.job, &good, &task, &err), 0);
    const Skerry__V1__Task *t = assign(r, g.w, TASK_SAMPLE);
    assert_int_equal(t->sample->path, 2);
    assert_string_equal(t->sample->prompt, "Call me");
    assert_int_equal(t->sample->tokens, 5);
    assert_true(t->sample->temperature == 0.0f);
    assert_int_equal(stream(r, g.w, 0, " Ish"), 0);
    assert_int_equal(stream(r, g.w, 9, "gap"), -EINVAL);
    assert_int_equal(stream(r, g.w, 0, " Ish"), 0); /* again */
    assert_int_equal(stream(r, g.w, 4, "mael."), 0);
    assert_int_equal(view_task(r->co, task, &v, &err), 0);
    assert_string_equal(v.text, " Ishmael.");
    struct result x;
    begin_result(&x, t, NULL);
    x.m.text = (char *)" Ishmael. Some";
    assert_true(report(r, g.w, &x));
    stop(r);
    start(r);
    assert_int_equal(view_task(r->co, task, &v, &err), 0);
    assert_string_equal(v.text, " Ishmael. Some");
}

/* ---- refusals ------------------------------------------------------------ */

static void refused(struct rig *r, const char *spec, uint32_t train, uint32_t samples,
                    uint32_t held, bool text, const char *why)
{
    struct err err = {0};
    uint64_t id;
    size_t jobs = r->co->state.n_jobs;
    assert_true(grid_try(r, spec, train, samples, held, text, &id, &err) < 0);
    if (strstr(err.msg, why) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, why);
    assert_int_equal(r->co->state.n_jobs, jobs);
}

static void test_refusals(void **state)
{
    struct rig *r = *state;
    char async[1024];
    (void)snprintf(async, sizeof(async),
                   "%.*souter: {rounds: 3, steps: 2, async: true}\neval: {every: 1}\n",
                   (int)(strstr(dipaco, "outer:") - dipaco), dipaco);
    refused(r, async, 4, 20, 2, true, "recipe.early_stop keeps the best of the rounds");
    memcpy(strstr(async, "true, moments"), "false,", 6);
    refused(r, async, 4, 20, 2, true, "outer.async has none");
    refused(r, ddm, 1, 1, 1, false, "2 partitions, but the dataset has only 1 sample");
    refused(r, dipaco, 4, 20, 2, false, "has no vocab");
    refused(r, ddm, 4, 20, 2, true, "is for images");
    refused(r, dipaco, 4, 20, 0, true, "nothing is held out");
    refused(r, dipaco, 1, 20, 2, true, "lower data.shard_samples");
    static const char distill[] =
        "name: d\ndata: {path: x, image_size: 16}\n"
        "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
        "train: {batch: 4, lr: 0.1}\nrecipe: {name: distill, teacher: 1}\n"
        "outer: {rounds: 1, steps: 2}\n";
    refused(r, distill, 0, 0, 0, false, "there is no such job");
    uint64_t job = submit(r); /* plain DiLoCo */
    refused(r, distill, 0, 0, 0, false, "expected a ddm job");
    assert_int_equal(view_job_cancel(r->co, job, NULL), 0);
}

/* ---- learning from another job's experts --------------------------------- */

static void look_distill(struct grid *g, const Skerry__V1__Task *t)
{
    bool seen[2] = {false, false};
    if (grid_kind(t) != TASK_TRAIN)
        return;
    assert_int_equal(t->partitions, 2);
    assert_int_equal(t->train->n_teachers, 2);
    assert_int_equal(t->train->teachers[1]->partition, 1);
    assert_int_equal(t->train->teachers[1]->modules[0]->version, 2);
    for (size_t i = 0; i < t->train->n_ranges; i++)
        seen[t->train->ranges[i]->partition] = true;
    assert_true(seen[0] || seen[1]);
}

static void test_distill(void **state)
{
    struct rig *r = *state;
    struct grid g = {.mode = GRID_CALM}, d;
    struct err err = {0};
    static const char spec[] = "name: d\nseed: 1\ndata: {path: x, image_size: 16}\n"
                               "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                               "train: {batch: 4, lr: 0.1}\nrecipe: {name: distill, teacher: 1}\n"
                               "outer: {rounds: 2, steps: 2}\nsample: {count: 4}\n";
    grid_begin(&g, r, ddm, false);
    run_until(&g, JOB_RUNNING);
    refused(r, spec, 0, 0, 0, false, "wait until it is done");
    grid_run(&g);
    d = g;
    d.look = look_distill;
    d.mode = GRID_RESTART;
    if (grid_try(r, spec, 0, 0, 0, false, &d.job, &err) < 0)
        fail_msg("%s", err.msg);
    grid_run(&d);
    const struct job *j = grid_job(&d);
    assert_int_equal(j->n_classes, 2);
    assert_int_equal(shards_sum(j, PARTITION_ALL, false).samples, 80);
    assert_int_equal(j->modules[0].version, 2);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        LIVE(test_ddm),
        LIVE(test_ddm_lost_leases),
        LIVE(test_ddm_restarts),
        LIVE(test_dipaco),
        LIVE(test_dipaco_lost_leases),
        LIVE(test_dipaco_restarts),
        LIVE(test_moments_travel),
        LIVE(test_progress_and_garbage),
        LIVE(test_bad_partitions),
        LIVE(test_bad_resharding),
        LIVE(test_remote),
        LIVE(test_remote_flood),
        LIVE(test_text_streams),
        LIVE(test_refusals),
        LIVE(test_distill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
