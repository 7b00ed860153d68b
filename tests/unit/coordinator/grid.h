/* Fake workers that do tasks of every kind, for jobs of several paths and partitions. */
#ifndef TESTS_UNIT_COORDINATOR_GRID_H
#define TESTS_UNIT_COORDINATOR_GRID_H

#include "tests/unit/blobs.h"
#include "tests/unit/coordinator/grid.h"

#include "tests/unit/assignment.h"
#include "tests/unit/coordinator/rig.h"

#define GRID_BLOBS_MAX 64

enum grid_mode {
    GRID_CALM,
    GRID_LEAVE,   /* the first lease of each kind is lost */
    GRID_RESTART, /* the coordinator is replaced in the first lease of each kind */
};

struct grid {
    struct rig *r;
    struct fake *w;
    uint64_t job;
    enum grid_mode mode;
    unsigned seen[TASK_KINDS]; /* tasks done, by kind */
    unsigned disturbed[TASK_KINDS];
    /* Held-out loss of a path at a round; NULL: 0.5. */
    float (*loss)(uint32_t path, uint32_t round);
    /* Looks at every task before it is done. */
    void (*look)(struct grid *g, const Skerry__V1__Task *t);
    uint32_t top;
};

static inline struct job *grid_job(struct grid *g)
{
    return state_job(&g->r->co->state, g->job);
}

static inline enum task_kind grid_kind(const Skerry__V1__Task *t)
{
    return (enum task_kind)t->kind;
}

/* A result under construction: everything it points to. */
struct grid_result {
    Skerry__V1__ReportRequest m;
    Skerry__V1__Blob blobs[GRID_BLOBS_MAX];
    struct blob_ref refs[GRID_BLOBS_MAX];
    size_t n_blobs;
    Skerry__V1__Contribution contributions[GRID_BLOBS_MAX], *contribution_list[GRID_BLOBS_MAX];
    Skerry__V1__ShardInfo shards[GRID_BLOBS_MAX], *shard_list[GRID_BLOBS_MAX];
    Skerry__V1__Row row, *rows[1];
    uint64_t sizes[16];
};

static inline Skerry__V1__Blob *grid_blob(struct grid_result *x, struct blob_ref ref)
{
    assert_true(x->n_blobs < GRID_BLOBS_MAX);
    Skerry__V1__Blob *b = &x->blobs[x->n_blobs];
    x->refs[x->n_blobs] = ref;
    skerry__v1__blob__init(b);
    b->sha256.data = x->refs[x->n_blobs].sha256;
    b->sha256.len = 32;
    b->size = ref.size;
    x->n_blobs++;
    return b;
}

static inline Skerry__V1__Blob *grid_text(struct grid *g, struct grid_result *x, const char *what,
                                          unsigned a, unsigned b, unsigned c)
{
    char text[128];
    (void)snprintf(text, sizeof(text), "%s %u %u %u", what, a, b, c);
    return grid_blob(x, put_text(g->r, text));
}

static inline void grid_contribution(struct grid_result *x, uint64_t module, uint64_t base,
                                     struct blob_ref ref)
{
    size_t n = x->m.n_contributions++;
    skerry__v1__contribution__init(&x->contributions[n]);
    x->contributions[n].module_id = module;
    x->contributions[n].base_version = base;
    x->contributions[n].blob = grid_blob(x, ref);
    x->contribution_list[n] = &x->contributions[n];
    x->m.contributions = x->contribution_list;
}

/* ---- what each kind brings ----------------------------------------------- */

static inline void grid_init(struct grid *g, const Skerry__V1__Task *t, struct grid_result *x)
{
    for (size_t i = 0; i < t->n_modules; i++) {
        assert_int_equal(t->modules[i]->index, 0);
        grid_contribution(x, t->modules[i]->module_id, 0, put_file(g->r, g->r->f.full));
    }
}

static inline struct blob_ref grid_noise(struct grid *g, const Skerry__V1__Task *t,
                                         const Skerry__V1__ModuleRef *ref)
{
    char full[4096], *path = fx_path(&g->r->f, "contribution");
    struct contribution_result result;
    struct err err = {0};
    float *theta = fx_array(), *end = fx_array();
    struct job *j = NULL;
    const struct module_rec *m = state_module(&g->r->co->state, ref->module_id, &j);
    const struct version_rec *v = module_version(m, ref->version);
    struct blob_id id;
    memcpy(id.sha256, v->full.sha256, 32);
    assert_int_equal(blob_file(g->r->co->blobs, &id, full, sizeof(full)), 0);
    fx_read_flat(full, theta);
    fx_normal(t->train->path * 1000 + t->train->round * 10 + ref->level, 0.01f, end);
    for (size_t i = 0; i < PARAMS; i++)
        end[i] += theta[i];
    struct contribution_job job = fx_job(full, ref->version, end, CODEC_E3M0, 8, path);
    job.module_id = ref->module_id;
    if (contribution_write(&job, &result, &err) < 0)
        fail_msg("%s", err.msg);
    struct blob_ref blob = put_file(g->r, path);
    free(theta);
    free(end);
    mem_free(path);
    return blob;
}

static inline void grid_train(struct grid *g, const Skerry__V1__Task *t, struct grid_result *x)
{
    uint64_t held = 0;
    for (size_t i = 0; i < t->train->n_ranges; i++)
        held += t->train->ranges[i]->count;
    x->m.samples = held;
    x->m.steps = t->train->steps;
    for (size_t i = 0; i < t->n_modules; i++) {
        assert_int_equal(t->modules[i]->level, i);
        grid_contribution(x, t->modules[i]->module_id, t->train->round,
                          grid_noise(g, t, t->modules[i]));
    }
    if (t->train->send_moments)
        x->m.moments = grid_text(g, x, "moments", t->train->path, t->train->round, 0);
}

static inline void grid_eval(struct grid *g, const Skerry__V1__Task *t, struct grid_result *x)
{
    float loss = g->loss ? g->loss(t->eval->path, (uint32_t)t->eval->version_round) : 0.5f;
    x->m.loss_mean = loss;
    for (size_t i = 0; i < t->eval->n_ranges; i++)
        x->m.units += t->eval->ranges[i]->count;
    assert_int_equal(x->m.units, t->eval->samples);
    x->m.loss_sum = (double)loss * (double)x->m.units;
    x->m.bytes = t->vocab ? x->m.units : 0;
    if (t->mixture == NULL)
        return;
    skerry__v1__row__init(&x->row);
    x->row.name = (char *)"loss top1";
    x->row.value = 0.25;
    x->rows[0] = &x->row;
    x->m.rows = x->rows;
    x->m.n_rows = 1;
}

static inline struct blob_ref grid_assignment(struct grid *g, const Skerry__V1__Task *t,
                                              const uint64_t *sizes)
{
    const Skerry__V1__ClusterTask *c = t->cluster;
    char *path = fx_path(&g->r->f, "assignment");
    const struct fake_assignment a = {.counts = c->counts,
                                      .holdout = c->holdout,
                                      .n_shards = c->n_counts,
                                      .top = c->top,
                                      .sizes = sizes,
                                      .n_sizes = t->partitions,
                                      .pass = c->n_scores};
    struct err err = {0};
    if (fake_assignment_write(path, &a, &err) < 0)
        fail_msg("%s", err.msg);
    const struct blob_ref ref = put_file(g->r, path);
    mem_free(path);
    return ref;
}

static inline void grid_cluster(struct grid *g, const Skerry__V1__Task *t, struct grid_result *x)
{
    const Skerry__V1__ClusterTask *c = t->cluster;
    uint64_t samples = 0;
    for (size_t i = 0; i < c->n_counts; i++)
        samples += c->holdout[i] ? 0 : c->counts[i];
    skerry__v1__row__init(&x->row);
    x->row.name = (char *)(c->evaluate ? "bits per byte" : "balance");
    x->row.value = 1.5;
    x->row.unit = (char *)"x";
    x->rows[0] = &x->row;
    x->m.rows = x->rows;
    x->m.n_rows = 1;
    if (c->evaluate)
        return;
    x->m.output = grid_text(g, x, "partitioner", (unsigned)c->n_scores, t->partitions, 0);
    for (uint32_t k = 0; k < t->partitions; k++)
        x->sizes[k] =
            samples * c->top / t->partitions + (k == 0 ? samples * c->top % t->partitions : 0);
    x->m.sizes = x->sizes;
    x->m.n_sizes = t->partitions;
    x->m.assignment = grid_blob(x, grid_assignment(g, t, x->sizes));
}

/* Evenly: the rest to the first partition. */
static inline void grid_split(struct grid *g, const Skerry__V1__Task *t, struct grid_result *x)
{
    const Skerry__V1__SplitTask *s = t->split;
    uint32_t in = 0, k = t->partitions;
    for (size_t i = 0; i < s->n_ranges; i++)
        in += s->ranges[i]->count;
    in *= s->holdout ? 1 : g->top;
    for (uint32_t p = 0; p < k; p++) {
        Skerry__V1__ShardInfo *info = &x->shards[p];
        skerry__v1__shard_info__init(info);
        info->samples = in / k + (p == 0 ? in % k : 0);
        info->partition = p;
        info->tokens = info->samples * 10u;
        info->blob = grid_text(g, x, "shard, place, generation", p, (unsigned)s->first,
                               grid_job(g)->generation + 1);
        x->shard_list[p] = info;
    }
    x->m.shards = x->shard_list;
    x->m.n_shards = k;
}

static inline void grid_result(struct grid *g, const Skerry__V1__Task *t, struct grid_result *x)
{
    memset(x, 0, sizeof(*x));
    skerry__v1__report_request__init(&x->m);
    x->m.task_id = t->id;
    x->m.attempt = t->attempt;
    x->m.loss_mean = 0.5f;
    switch (grid_kind(t)) {
    case TASK_INIT:
        grid_init(g, t, x);
        break;
    case TASK_TRAIN:
        grid_train(g, t, x);
        break;
    case TASK_EVAL:
        grid_eval(g, t, x);
        break;
    case TASK_CLUSTER:
        grid_cluster(g, t, x);
        break;
    case TASK_SPLIT:
        grid_split(g, t, x);
        break;
    case TASK_SAMPLE:
        if (t->sample->tokens > 0)
            x->m.text = (char *)"once upon a time";
        else
            x->m.output =
                grid_text(g, x, "picture", t->sample->path, t->mixture != NULL, (unsigned)t->id);
        break;
    case TASK_FEATURE:
        x->m.output = grid_text(g, x, "features", (unsigned)t->id, 0, 0);
        break;
    default:
        x->m.output = grid_text(g, x, "output", (unsigned)t->id, 0, 0);
        break;
    }
}

/* ---- the job's life ------------------------------------------------------ */

static inline Skerry__V1__Task *grid_next(struct grid *g)
{
    ask(g->r, g->w, 15000);
    Skerry__V1__Task *t = got(g->r, g->w);
    if (t == NULL)
        fail_msg("no task in state %s: %s", job_state_name(grid_job(g)->state),
                 g->w->assigned->waiting_for);
    return t;
}

static inline void grid_disturb(struct grid *g)
{
    uint64_t id = g->w->task->id;
    uint32_t attempt = g->w->task->attempt;
    const enum task_kind kind = grid_kind(g->w->task);
    bool leave = g->mode == GRID_LEAVE;
    Skerry__V1__LeaveRequest m = SKERRY__V1__LEAVE_REQUEST__INIT;
    if (leave)
        assert_int_equal(CALL(g->r, g->w, LEAVE, leave, &m), 0);
    if (g->mode == GRID_RESTART) {
        stop(g->r);
        start(g->r);
    }
    assert_int_equal(join(g->r, g->w, SKERRY_VERSION), 0);
    const Skerry__V1__Task *t = grid_next(g);
    if (t->id != id && (kind == TASK_EVAL || kind == TASK_SAMPLE))
        return; /* a phase that is ready meanwhile goes first (turns.h) */
    assert_int_equal(t->id, id);
    assert_int_equal(t->attempt, attempt + leave);
}

/* Does the next task, whatever it is. */
static inline enum task_kind grid_step(struct grid *g)
{
    static struct grid_result x;
    enum task_kind kind = grid_kind(grid_next(g));
    if (g->mode != GRID_CALM && g->disturbed[kind]++ == 0)
        grid_disturb(g);
    kind = grid_kind(g->w->task);
    if (g->look)
        g->look(g, g->w->task);
    grid_result(g, g->w->task, &x);
    if (call_report(g->r, g->w, &x.m) != 0)
        fail_msg("REPORT: %s", g->w->detail);
    Skerry__V1__ReportReply *reply =
        skerry__v1__report_reply__unpack(NULL, g->w->reply_len, g->w->reply);
    if (!reply->accepted)
        fail_msg("%s: %s", task_kind_name(kind), reply->reason);
    skerry__v1__report_reply__free_unpacked(reply, NULL);
    g->seen[kind]++;
    return kind;
}

static inline void grid_run(struct grid *g)
{
    while (!job_is_ended(grid_job(g)))
        (void)grid_step(g);
    if (grid_job(g)->state != JOB_DONE)
        fail_msg("the job is %s: %s", job_state_name(grid_job(g)->state), grid_job(g)->reason);
}

/* Train shards of `samples`, then held-out ones of 6. */
static inline int grid_try(struct rig *r, const char *spec, uint32_t train, uint32_t samples,
                           uint32_t held, bool text, uint64_t *ret_id, struct err *err)
{
    static const char *const classes[] = {"cat", "dog"};
    static const uint64_t counts[] = {20, 20};
    struct submit_shard shards[32];
    memset(shards, 0, sizeof(shards));
    for (uint32_t i = 0; i < train + held; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "cut shard %u", i);
        struct blob_ref ref = put_text(r, name);
        memcpy(shards[i].sha256, ref.sha256, 32);
        shards[i].size = ref.size;
        shards[i].holdout = i >= train;
        shards[i].samples = shards[i].holdout ? 6 : samples;
        shards[i].tokens = text ? shards[i].samples * 10u : 0;
    }
    const struct submit s = {.spec = spec,
                             .classes = classes,
                             .counts = counts,
                             .n_classes = text ? 0 : 2,
                             .shards = shards,
                             .n_shards = train + held,
                             .vocab = text ? 257 : 0};
    return view_job_submit(r->co, &s, ret_id, err);
}

static inline void grid_begin(struct grid *g, struct rig *r, const char *spec, bool text)
{
    struct err err = {0};
    *g = (struct grid){.r = r, .w = &r->workers[0], .top = 1, .mode = g->mode};
    assert_int_equal(join(r, g->w, SKERRY_VERSION), 0);
    if (grid_try(r, spec, 4, 20, 2, text, &g->job, &err) < 0)
        fail_msg("%s", err.msg);
}

#endif
