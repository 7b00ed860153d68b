/* Fragments of several replicas, each on a thread of its own, against a coordinator made
 * of a few arrays that folds with common/outer.  What the threads end with is compared,
 * bit for bit, with a plain loop that knows no files, no wire and no threads. */
#include "tests/unit/worker/fake_uplink.h"

#include "common/base/clock.h"
#include "worker/kinds/kinds.h"
#include "worker/order/work.h"

/* ---- a replica: its disk, its weights, its tasks ---- */

struct replica {
    struct uplink uplink;
    char *dir, *state, *tmp;
    struct cache *cache;
    struct modules *modules;
    float *weights, *flat;
    struct fragment_net net;
    uint64_t met[LEVELS];
    uint32_t delay;
    float mix;
    uint32_t steps[LEVELS]; /* at which each level contributes */
    bool done[LEVELS];      /* the task says so */
    uint64_t waited_ms;
    unsigned rounds;
    size_t n_outputs; /* of the last phase */
};

static void pull(struct replica *r, unsigned level, unsigned version)
{
    struct uplink_job *j = uplink_get(&r->uplink, NULL, co.versions[level][version].full,
                                      co.versions[level][version].full_bytes, "", "version", true);
    uplink_free(j);
}

static void replica_begin(struct replica *r, const char *top, unsigned index, uint32_t delay,
                          float mix)
{
    char name[32];
    (void)snprintf(name, sizeof(name), "replica-%u", index);
    memset(r, 0, sizeof(*r));
    r->dir = in(top, name);
    r->state = in(r->dir, "state");
    r->tmp = in(r->dir, "tmp");
    char *blobs = in(r->dir, "blobs"), *held = in(r->state, "held");
    OK(file_mkdirs(r->state, 0700, err));
    OK(file_mkdirs(r->tmp, 0700, err));
    OK(cache_open(blobs, 0, &r->cache, err));
    r->modules = modules_open(held, r->cache);
    mem_free(blobs);
    mem_free(held);
    r->uplink = (struct uplink){index, r->cache};
    r->weights = model_flat_new(co.model);
    r->flat = model_flat_new(co.model);
    r->delay = delay;
    r->mix = mix;
    r->rounds = ROUNDS;
    for (unsigned l = 0; l < LEVELS; l++)
        r->steps[l] = ((l + 1) * (STEPS - delay) + LEVELS - 1) / LEVELS;
}

static void replica_end(struct replica *r)
{
    modules_close(r->modules);
    cache_close(r->cache);
    OK(file_remove_tree(r->dir, err));
    mem_free(r->dir);
    mem_free(r->state);
    mem_free(r->tmp);
    mem_free(r->weights);
    mem_free(r->flat);
}

static int copy_level(const float *from, float *to, int level)
{
    for (size_t i = 0; i < co.model->n; i++) {
        const struct model_tensor *t = &co.model->tensors[i];
        if (t->level == level)
            memcpy(to + t->offset, from + t->offset, t->count * sizeof(*to));
    }
    return 0;
}

static int get_level(void *arg, int level, float *flat, struct err *err)
{
    const struct replica *r = arg;
    (void)err;
    return copy_level(r->weights, flat, level);
}

static int set_level(void *arg, int level, const float *flat, struct err *err)
{
    struct replica *r = arg;
    (void)err;
    return copy_level(flat, r->weights, level);
}

/* What stands for training: a function of the weights, so that merges matter. */
static void train_step(float *w, unsigned replica, unsigned step)
{
    struct rng rng;
    rng_init(&rng, replica, step);
    for (size_t i = 0; i < co.model->n; i++) {
        const struct model_tensor *t = &co.model->tensors[i];
        for (uint64_t j = 0; j < t->count; j++) {
            float *x = &w[t->offset + j];
            float noise = (float)(int)(rng_u64(&rng) % 2001) * 1e-5f - 1e-2f;
            *x -= 0.05f * *x + noise;
        }
    }
}

struct message {
    Skerry__V1__Task task;
    Skerry__V1__TrainTask train;
    Skerry__V1__ModuleRef refs[LEVELS], *modules[LEVELS];
    Skerry__V1__Blob full[LEVELS], shard;
    Skerry__V1__Level cut[LEVELS], *levels[LEVELS];
    uint32_t blocks[LEVELS];
    Skerry__V1__Fragment parts[LEVELS], *fragments[LEVELS];
    Skerry__V1__Range range, *ranges[1];
    char *classes[1];
    uint8_t hash[32];
};

static void message_init(struct message *m, const struct replica *r, unsigned round)
{
    memset(m, 0, sizeof(*m));
    skerry__v1__task__init(&m->task);
    skerry__v1__train_task__init(&m->train);
    skerry__v1__range__init(&m->range);
    skerry__v1__blob__init(&m->shard);
    set_blob(&m->shard, m->hash, 100);
    m->range.shard = &m->shard;
    m->range.count = STEPS * SAMPLES;
    m->ranges[0] = &m->range;
    for (unsigned l = 0; l < LEVELS; l++) {
        unsigned v = r->done[l] ? co.n[l] : round;
        skerry__v1__module_ref__init(&m->refs[l]);
        skerry__v1__blob__init(&m->full[l]);
        skerry__v1__fragment__init(&m->parts[l]);
        set_blob(&m->full[l], co.versions[l][v].full, co.versions[l][v].full_bytes);
        m->refs[l].module_id = MODULE + l;
        m->refs[l].level = l;
        m->refs[l].version = v;
        m->refs[l].sha256 = m->full[l].sha256;
        m->refs[l].full = &m->full[l];
        m->modules[l] = &m->refs[l];
        m->parts[l].level = l;
        m->parts[l].step = r->steps[l];
        m->parts[l].done = r->done[l];
        m->fragments[l] = &m->parts[l];
        skerry__v1__level__init(&m->cut[l]);
        m->blocks[l] = l;
        m->cut[l].blocks = &m->blocks[l];
        m->cut[l].n_blocks = 1;
        m->cut[l].embedders = l == 0;
        m->cut[l].head = l == LEVELS - 1;
        m->levels[l] = &m->cut[l];
    }
    m->train.round = round;
    m->train.replica = r->uplink.replica;
    m->train.steps = STEPS;
    m->train.first_step = round * STEPS;
    m->train.ranges = m->ranges;
    m->train.n_ranges = 1;
    m->train.fragments = m->fragments;
    m->train.n_fragments = LEVELS;
    m->train.delay = r->delay;
    m->train.mix = r->mix;
    m->task.id = 100 + round * K + r->uplink.replica;
    m->task.attempt = 1;
    m->task.kind = SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN;
    m->task.job_id = 1;
    m->task.spec = (char *)SPEC;
    m->task.modules = m->modules;
    m->task.n_modules = LEVELS;
    m->task.levels = m->levels;
    m->task.n_levels = LEVELS;
    m->task.train = &m->train;
    m->classes[0] = (char *)"a";
    m->task.classes = m->classes;
    m->task.n_classes = 1;
}

/* As a phase does it. */
static void load(struct replica *r, struct work *w, struct fragments *f, bool own)
{
    for (unsigned l = 0; l < LEVELS && !own; l++) {
        char path[CACHE_PATH_MAX];
        work_blob_path(w, w->task->modules[l]->sha256.data, path);
        OK(model_load(co.model, (int)l, &(const char *){path}, 1, r->weights, err));
    }
    OK(fragments_load(f, own, err));
}

static struct work *phase_open(struct replica *r, unsigned round, struct fragments **ret)
{
    struct message m;
    struct work *w;
    pthread_mutex_lock(&co.lock);
    message_init(&m, r, round);
    OK(work_new(kinds_all, &m.task, r->cache, r->tmp, &w, err));
    pthread_mutex_unlock(&co.lock);
    w->uplink = &r->uplink;
    for (unsigned l = 0; l < LEVELS; l++)
        pull(r, l, (unsigned)w->task->modules[l]->version);
    OK(modules_plan(r->modules, w, err));
    OK(modules_rebuild(r->modules, w, err));
    r->net = (struct fragment_net){.w = w,
                                   .state_dir = r->state,
                                   .model = co.model,
                                   .flat = r->flat,
                                   .get = get_level,
                                   .set = set_level,
                                   .arg = r};
    struct fragments_options opt = {.w = w,
                                    .modules = r->modules,
                                    .met = r->met,
                                    .state_dir = r->state,
                                    .contribute = fragment_net_contribute,
                                    .merge = fragment_net_merge,
                                    .arg = &r->net};
    *ret = fragments_open(&opt);
    return w;
}

/* The coordinator takes what came with the report at the end, and the next phase begins
 * when every level has its version. */
static void phase_close(struct replica *r, struct work *w, unsigned round)
{
    r->n_outputs = w->result.n_outputs;
    for (size_t i = 0; i < w->result.n_outputs; i++) {
        const struct work_output *o = &w->result.outputs[i];
        uplink_free(uplink_put(&r->uplink, w, o->path, o->sha256, o->size, true));
        pthread_mutex_lock(&co.lock);
        give(r->uplink.replica, o->module_id, o->base_version, o->sha256);
        pthread_mutex_unlock(&co.lock);
    }
    pthread_mutex_lock(&co.lock);
    for (unsigned l = 0; l < LEVELS; l++)
        while (co.n[l] <= round)
            pthread_cond_wait(&co.changed, &co.lock);
    pthread_mutex_unlock(&co.lock);
    work_free(w);
}

static void *replica_run(void *arg)
{
    struct replica *r = arg;
    for (unsigned round = 0; round < r->rounds; round++) {
        struct fragments *f;
        struct work *w = phase_open(r, round, &f);
        load(r, w, f, round > 0);
        for (unsigned s = 1; s <= STEPS; s++) {
            train_step(r->weights, r->uplink.replica, round * STEPS + s);
            OK(fragments_step(f, s, (uint64_t)s * SAMPLES, err));
        }
        OK(fragments_finish(f, STEPS * SAMPLES, err));
        r->waited_ms += fragments_waited_ms(f);
        fragments_close(f);
        phase_close(r, w, round);
    }
    return NULL;
}

/* ---- the plain loop ---- */

struct plain {
    float *w[K], *theta, *mom; /* theta: the outer weights, also the target (f32 down) */
};

static void plain_fold(struct plain *p, const struct model_tensor *t, float *const *given)
{
    for (uint64_t i = t->offset; i < t->offset + t->count; i++) {
        double d = 0;
        for (unsigned k = 0; k < K; k++)
            d += SAMPLES * ((double)p->theta[i] - (double)given[k][i]);
        d /= K * SAMPLES;
        p->mom[i] = (float)(0.9 * (double)p->mom[i] + d);
        p->theta[i] = (float)((double)p->theta[i] - 0.7 * (d + 0.9 * (double)p->mom[i]));
    }
}

static void plain_merge(struct plain *p, int level, float mix)
{
    for (size_t i = 0; i < co.model->n; i++) {
        const struct model_tensor *t = &co.model->tensors[i];
        for (uint64_t j = t->offset; t->level == level && j < t->offset + t->count; j++)
            for (unsigned k = 0; k < K; k++)
                p->w[k][j] = mix > 0 ? (float)((double)mix * (double)p->w[k][j] +
                                               (1 - (double)mix) * (double)p->theta[j])
                                     : p->theta[j];
    }
}

/* A level is folded at its step and merged `delay` steps later; what is due at the end
 * of a phase is merged when the next one begins, so not after the last. */
static void plain_run(struct plain *p, const struct replica *r)
{
    float *given[K];
    for (unsigned k = 0; k < K; k++)
        given[k] = model_flat_new(co.model);
    for (unsigned s = 1; s <= ROUNDS * STEPS; s++) {
        unsigned at = (s - 1) % STEPS + 1;
        for (unsigned k = 0; k < K; k++)
            train_step(p->w[k], k, s);
        for (int l = 0; l < LEVELS; l++) {
            if (r->steps[l] == at) {
                for (unsigned k = 0; k < K; k++)
                    copy_level(p->w[k], given[k], l);
                for (size_t i = 0; i < co.model->n; i++)
                    if (co.model->tensors[i].level == l)
                        plain_fold(p, &co.model->tensors[i], given);
            }
            if (r->steps[l] + r->delay == at && s < ROUNDS * STEPS)
                plain_merge(p, l, r->mix);
        }
    }
    for (unsigned k = 0; k < K; k++)
        mem_free(given[k]);
}

/* ---- tests ---- */

static char *top;

static void world_begin(const float *theta)
{
    co.dir = in(top, "coordinator");
    OK(file_mkdirs(co.dir, 0700, err));
    memset(co.n, 0, sizeof(co.n));
    memset(co.has, 0, sizeof(co.has));
    co.puts = co.snapshots = co.whole = 0;
    co.nobody = co.refuse = co.broken_delta = co.lost_delta = co.slow_puts = false;
    for (unsigned l = 0; l < LEVELS; l++) {
        char *path = state_path(l, "full", 0);
        OK(model_save(co.model, (int)l, theta, path, NULL, NULL, err));
        store(path, co.versions[l][0].full, &co.versions[l][0].full_bytes);
        mem_free(path);
    }
}

static void world_end(void)
{
    OK(file_remove_tree(co.dir, err));
    mem_free(co.dir);
}

static int setup(void **state)
{
    struct model_spec spec = {
        .channels = 3,
        .image = 6,
        .patch = 2,
        .dim = 12,
        .depth = 3,
        .heads = 3,
        .mlp = 48,
        .classes = 3,
        .cut = {.n_levels = LEVELS, .block_level = {0, 1, 2}, .head_level = 2}};
    (void)state;
    top = scratch_new();
    OK(model_new(&spec, &co.model, err));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_free(co.model);
    scratch_free(top);
    return 0;
}

static void run_all(struct replica *r)
{
    pthread_t threads[K];
    for (unsigned k = 0; k < K; k++)
        assert_int_equal(pthread_create(&threads[k], NULL, replica_run, &r[k]), 0);
    for (unsigned k = 0; k < K; k++)
        assert_int_equal(pthread_join(threads[k], NULL), 0);
}

static void case_run(uint32_t delay, float mix)
{
    struct replica r[K];
    struct plain p = {.theta = model_flat_new(co.model), .mom = model_flat_new(co.model)};
    model_init(co.model, 5, p.theta);
    world_begin(p.theta);
    for (unsigned k = 0; k < K; k++) {
        replica_begin(&r[k], top, k, delay, mix);
        p.w[k] = model_flat_new(co.model);
        memcpy(p.w[k], p.theta, co.model->flat * sizeof(float));
    }
    run_all(r);
    plain_run(&p, &r[0]);
    size_t bytes = co.model->flat * sizeof(float);
    float *outer = model_flat_new(co.model);
    for (unsigned l = 0; l < LEVELS; l++) {
        char *path = blob_path(co.versions[l][ROUNDS].full);
        OK(model_load(co.model, (int)l, &(const char *){path}, 1, outer, err));
        mem_free(path);
    }
    assert_memory_equal(outer, p.theta, bytes);
    for (unsigned k = 0; k < K; k++)
        for (int l = 0; l < LEVELS; l++) {
            /* What was due at the very end may be merged already or not. */
            bool open = r[k].steps[l] + delay == STEPS;
            copy_level(p.w[k], r[k].flat, l);
            if (!open)
                copy_level(r[k].weights, r[k].flat, l);
            assert_true(open || r[k].met[l] == ROUNDS);
        }
    for (unsigned k = 0; k < K; k++) {
        assert_memory_equal(r[k].flat, p.w[k], bytes);
        /* Without a delay the last level goes with the report at the end. */
        assert_int_equal(r[k].n_outputs, delay == 0);
    }
    assert_int_equal(co.puts, K * LEVELS * ROUNDS);
    assert_int_equal(co.snapshots, K * ROUNDS * (LEVELS - (delay == 0)));
    assert_int_equal(co.whole, 0); /* deltas were enough */
    for (unsigned k = 0; k < K; k++) {
        replica_end(&r[k]);
        mem_free(p.w[k]);
    }
    mem_free(p.theta);
    mem_free(p.mom);
    mem_free(outer);
    world_end();
}

static void test_no_delay(void **state)
{
    (void)state;
    case_run(0, 0);
}

static void test_mix(void **state)
{
    (void)state;
    case_run(0, 0.5f);
}

static void test_delay(void **state)
{
    (void)state;
    case_run(2, 0);
    case_run(5, 0.25f);
}

/* The other replica has no worker: nobody waits, the phase ends, and the next one takes
 * the versions up. */
static void test_later(void **state)
{
    (void)state;
    struct replica r[K];
    float *theta = model_flat_new(co.model);
    model_init(co.model, 5, theta);
    world_begin(theta);
    co.nobody = true;
    for (unsigned k = 0; k < K; k++)
        replica_begin(&r[k], top, k, 2, 0);
    struct fragments *f;
    for (unsigned k = 0; k < K; k++) { /* one worker does both */
        struct work *w = phase_open(&r[k], 0, &f);
        load(&r[k], w, f, false);
        for (unsigned s = 1; s <= STEPS; s++) {
            train_step(r[k].weights, k, s);
            OK(fragments_step(f, s, (uint64_t)s * SAMPLES, err));
        }
        OK(fragments_finish(f, STEPS * SAMPLES, err));
        assert_int_equal(w->result.n_outputs, 0);
        for (unsigned l = 0; l + 1 < LEVELS; l++)
            assert_int_equal(r[k].met[l], k); /* the second one completed them */
        fragments_close(f);
        work_free(w);
    }
    struct work *w = phase_open(&r[0], 1, &f);
    load(&r[0], w, f, true);
    float *want = model_flat_new(co.model);
    for (unsigned l = 0; l < LEVELS; l++) {
        char *path = blob_path(co.versions[l][1].full);
        OK(model_load(co.model, (int)l, &(const char *){path}, 1, want, err));
        mem_free(path);
        assert_int_equal(r[0].met[l], 1);
    }
    assert_memory_equal(r[0].weights, want, co.model->flat * sizeof(float));
    fragments_close(f);
    work_free(w);
    mem_free(want);
    mem_free(theta);
    for (unsigned k = 0; k < K; k++)
        replica_end(&r[k]);
    world_end();
}

static void steps_of(struct replica *r, struct fragments *f, unsigned first, unsigned last)
{
    for (unsigned s = first; s <= last; s++) {
        train_step(r->weights, r->uplink.replica, s);
        OK(fragments_step(f, s, (uint64_t)s * SAMPLES, err));
    }
}

/* Another worker takes the phase over: what was contributed is not made again, and the
 * version that came of it is what its level begins with. */
static void test_new_attempt(void **state)
{
    (void)state;
    struct replica r[3]; /* the third takes over from the second */
    struct fragments *f[3];
    struct work *w[3];
    float *theta = model_flat_new(co.model);
    model_init(co.model, 5, theta);
    world_begin(theta);
    for (unsigned k = 0; k < 3; k++)
        replica_begin(&r[k], top, k, 2, 0);
    for (unsigned k = 0; k < K; k++) {
        w[k] = phase_open(&r[k], 0, &f[k]);
        load(&r[k], w[k], f[k], false);
    }
    unsigned stop = r[0].steps[1] - 1;
    for (unsigned s = 1; s <= stop; s++) /* in turns: nobody has to wait */
        for (unsigned k = 0; k < K; k++)
            steps_of(&r[k], f[k], s, s);
    assert_int_equal(co.n[0], 1);
    assert_int_equal(r[1].met[0], 1);
    fragments_close(f[1]);
    work_free(w[1]);
    r[2].uplink.replica = 1;
    r[2].done[0] = true;
    co.nobody = true; /* the first one stands still */
    w[2] = phase_open(&r[2], 0, &f[2]);
    load(&r[2], w[2], f[2], false);
    assert_int_equal(r[2].met[0], 1);
    steps_of(&r[2], f[2], 1, STEPS);
    OK(fragments_finish(f[2], STEPS * SAMPLES, err));
    assert_int_equal(w[2]->result.n_outputs, 0);
    assert_true(!co.has[0][1] && co.has[1][1] && co.has[2][1]);
    steps_of(&r[0], f[0], stop + 1, STEPS);
    for (unsigned l = 0; l < LEVELS; l++)
        assert_int_equal(co.n[l], 1);
    for (unsigned k = 0; k < 3; k += 2) {
        fragments_close(f[k]);
        work_free(w[k]);
    }
    for (unsigned k = 0; k < 3; k++)
        replica_end(&r[k]);
    mem_free(theta);
    world_end();
}

/* A delta that arrives with other bits than it was made with: the whole version. */
static void test_broken_delta(void **state)
{
    (void)state;
    struct replica r[K];
    struct fragments *f[K];
    struct work *w[K];
    float *theta = model_flat_new(co.model);
    model_init(co.model, 5, theta);
    world_begin(theta);
    co.broken_delta = true;
    for (unsigned k = 0; k < K; k++) {
        replica_begin(&r[k], top, k, 2, 0);
        w[k] = phase_open(&r[k], 0, &f[k]);
        load(&r[k], w[k], f[k], false);
    }
    for (unsigned s = 1; s < STEPS; s++)
        for (unsigned k = 0; k < K; k++)
            steps_of(&r[k], f[k], s, s);
    assert_int_equal(co.whole, K * (LEVELS - 1));
    for (unsigned k = 0; k < K; k++) {
        for (unsigned l = 0; l + 1 < LEVELS; l++)
            assert_int_equal(r[k].met[l], 1);
        fragments_close(f[k]);
        work_free(w[k]);
        replica_end(&r[k]);
    }
    mem_free(theta);
    world_end();
}

/* A contribution counts for the steps that it is of, however long its upload takes. */
static void test_slow_upload(void **state)
{
    (void)state;
    struct replica r;
    struct fragments *f;
    float *theta = model_flat_new(co.model);
    model_init(co.model, 5, theta);
    world_begin(theta);
    co.slow_puts = co.nobody = true;
    replica_begin(&r, top, 0, 2, 0);
    struct work *w = phase_open(&r, 0, &f);
    load(&r, w, f, false);
    steps_of(&r, f, 1, STEPS - 1);
    assert_int_equal(co.snapshots, LEVELS);
    for (unsigned l = 0; l < LEVELS; l++)
        assert_int_equal(co.reported[l], r.steps[l]);
    fragments_close(f);
    work_free(w);
    replica_end(&r);
    mem_free(theta);
    world_end();
}

/* A delta that cannot be had: the whole version, when it is asked for again.  The last
 * level asks too, though it is merged with the last step only. */
static void test_lost_delta(void **state)
{
    (void)state;
    struct replica r[K];
    struct fragments *f[K];
    struct work *w[K];
    float *theta = model_flat_new(co.model);
    model_init(co.model, 5, theta);
    world_begin(theta);
    co.lost_delta = true;
    for (unsigned k = 0; k < K; k++) {
        replica_begin(&r[k], top, k, 2, 0);
        w[k] = phase_open(&r[k], 0, &f[k]);
        load(&r[k], w[k], f[k], false);
    }
    for (unsigned s = 1; s < STEPS; s++)
        for (unsigned k = 0; k < K; k++)
            steps_of(&r[k], f[k], s, s);
    const uint64_t until = clock_now_ns() + 60 * CLOCK_NS_PER_S;
    while (co.whole < K * LEVELS && clock_now_ns() < until)
        for (unsigned k = 0; k < K; k++)
            OK(fragments_step(f[k], STEPS - 1, (STEPS - 1) * SAMPLES, err));
    assert_int_equal(co.whole, K * LEVELS);
    for (unsigned k = 0; k < K; k++) { /* what came with the last question, too */
        OK(fragments_step(f[k], STEPS - 1, (STEPS - 1) * SAMPLES, err));
        for (unsigned l = 0; l + 1 < LEVELS; l++)
            assert_int_equal(r[k].met[l], 1);
        fragments_close(f[k]);
        work_free(w[k]);
        replica_end(&r[k]);
    }
    mem_free(theta);
    world_end();
}

/* Snapshots are not taken: everything goes with the report at the end. */
static void test_refused(void **state)
{
    (void)state;
    struct replica r;
    struct fragments *f;
    float *theta = model_flat_new(co.model);
    model_init(co.model, 5, theta);
    world_begin(theta);
    co.refuse = true;
    replica_begin(&r, top, 0, 2, 0);
    struct work *w = phase_open(&r, 0, &f);
    load(&r, w, f, false);
    for (unsigned s = 1; s <= STEPS; s++) {
        train_step(r.weights, 0, s);
        OK(fragments_step(f, s, (uint64_t)s * SAMPLES, err));
    }
    OK(fragments_finish(f, STEPS * SAMPLES, err));
    assert_int_equal(w->result.n_outputs, LEVELS);
    for (unsigned l = 0; l < LEVELS; l++)
        assert_true(file_exists(w->result.outputs[l].path));
    for (unsigned l = 0; l < LEVELS; l++) /* weighed as if it had left when it was made */
        assert_int_equal(w->result.outputs[l].samples, r.steps[l] * SAMPLES);
    fragments_close(f);
    work_free(w);
    replica_end(&r);
    mem_free(theta);
    world_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_delay),    cmocka_unit_test(test_mix),
        cmocka_unit_test(test_delay),       cmocka_unit_test(test_later),
        cmocka_unit_test(test_new_attempt), cmocka_unit_test(test_broken_delta),
        cmocka_unit_test(test_slow_upload), cmocka_unit_test(test_lost_delta),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
