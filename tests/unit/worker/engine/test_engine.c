/* Every kind of task on the compute thread, without a network: what a phase
 * leaves behind, and that a cut phase ends as if it had not been cut. */
#include "tests/unit/components.h"
#include "tests/unit/worker/host.h"
#include "tests/unit/worker/shards.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/pieces.h"
#include "common/base/rng.h"
#include "common/outer/fold.h"
#include "common/st/st.h"
#include "worker/engine/encoders.h"
#include "worker/engine/residual.h"
#include "worker/frozen/frozen.h"
#include "worker/kinds/work_train.h"

#define SPEC_OF(schedule)                                                                          \
    "name: tiny\nseed: 3\n"                                                                        \
    "data: {path: x, image_size: 8, flip: true, shard_samples: 16}\n"                              \
    "model: {type: dit, patch: 2, dim: 16, depth: 1, heads: 2}\n"                                  \
    "train: {batch: 4, lr: 1e-3, precision: f32" schedule "}\n"                                    \
    "outer: {rounds: 3, steps: 24}\nwire: {up: e3m0, down: e3m0}\n"
#define SPEC SPEC_OF("")
#define STEPS 24
#define RARE 20

/* A task under construction: one module, one range over each shard. */
struct order {
    Skerry__V1__Task task;
    Skerry__V1__ModuleRef module, *modules[1];
    Skerry__V1__Blob full, delta_blob, shard_blob[2];
    Skerry__V1__Delta delta, *deltas[1];
    Skerry__V1__Range range[2], *ranges[2];
    Skerry__V1__TrainTask train;
    Skerry__V1__EvalTask eval;
    Skerry__V1__SampleTask sample;
    Skerry__V1__IngestTask ingest;
    uint32_t labels[6];
    char *classes[RARE];
};

static char *top;
static struct test_shard shards[2], rare; /* rare: one sample of each of RARE classes */
static char *overflow_path; /* a version that overflows at the last two; NULL: none yet */
static uint8_t overflow[32];
static uint8_t version0[32];
static struct buf version0_file;

static void host_new(struct host *h, const char *name)
{
    host_open(h, top, name, 2);
    for (int i = 0; i < 2; i++)
        host_put(h, shards[i].path, shards[i].sha256);
    host_put(h, rare.path, rare.sha256);
    if (overflow_path)
        host_put(h, overflow_path, overflow);
    if (version0_file.len > 0) {
        char path[CACHE_PATH_MAX];
        cache_path(h->cache, version0, path);
        OK(file_write_atomic(path, version0_file.data, version0_file.len, 0600, err));
        OK(cache_added(h->cache, version0, err));
    }
}

static void order_init(struct order *o, int kind)
{
    memset(o, 0, sizeof(*o));
    skerry__v1__task__init(&o->task);
    skerry__v1__module_ref__init(&o->module);
    skerry__v1__train_task__init(&o->train);
    skerry__v1__eval_task__init(&o->eval);
    skerry__v1__sample_task__init(&o->sample);
    skerry__v1__ingest_task__init(&o->ingest);
    skerry__v1__delta__init(&o->delta);
    for (int i = 0; i < 2; i++) {
        blob_of(&o->shard_blob[i], shards[i].sha256, size_of(shards[i].path));
        skerry__v1__range__init(&o->range[i]);
        o->range[i].shard = &o->shard_blob[i];
        o->range[i].count = 20;
        o->ranges[i] = &o->range[i];
    }
    blob_of(&o->full, version0, version0_file.len);
    o->module.module_id = 7;
    o->module.full = &o->full;
    o->module.sha256 = o->full.sha256;
    o->modules[0] = &o->module;
    for (int i = 0; i < RARE; i++)
        o->classes[i] = (char *)"c";
    for (uint32_t i = 0; i < 6; i++)
        o->labels[i] = i % 5;
    o->train.steps = STEPS;
    o->train.total_steps = 3 * STEPS;
    o->train.ranges = o->eval.ranges = o->ranges;
    o->train.n_ranges = o->eval.n_ranges = 2;
    o->sample.labels = o->labels;
    o->sample.n_labels = 6;
    o->sample.steps = 3;
    o->sample.guidance = 2;
    o->sample.columns = 3;
    o->task.id = 11;
    o->task.job_id = 1;
    o->task.kind = (Skerry__V1__TaskKind)kind;
    o->task.spec = (char *)SPEC;
    o->task.modules = o->modules;
    o->task.n_modules = 1;
    o->task.classes = o->classes;
    o->task.n_classes = 5;
    o->task.train = &o->train;
    o->task.eval = &o->eval;
    o->task.sample = &o->sample;
    o->task.ingest = &o->ingest;
}

static struct work *run(struct host *h, const struct order *o)
{
    struct work *w = host_run(h, &o->task);
    engine_after(h->engine, w);
    return w;
}

static int setup(void **state)
{
    (void)state;
    OK(image_init(err));
    top = scratch_new();
    for (int i = 0; i < 2; i++)
        shards[i] = shard_make(top, i, 20, 5, i == 1 ? 3 : -1);
    rare = shard_make(top, 2, RARE, RARE, -1);
    /* Version 0 by an INIT task. */
    struct host h;
    struct order o;
    host_new(&h, "init");
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_INIT);
    struct work *w = run(&h, &o);
    assert_int_equal(w->result.n_outputs, 1);
    assert_int_equal(w->result.outputs[0].module_id, 7);
    memcpy(version0, w->result.outputs[0].sha256, 32);
    OK(file_read(w->result.outputs[0].path, 1 << 24, &version0_file, err));
    assert_int_equal(version0_file.len, w->result.outputs[0].size);
    work_free(w);
    host_free(&h);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        free(shards[i].path);
    free(rare.path);
    free(overflow_path);
    buf_release(&version0_file);
    scratch_free(top);
    return 0;
}

/* Stops the work once a few steps are done. */
static void *cutter(void *arg)
{
    struct work *w = arg;
    struct progress_view view;
    do
        progress_take(&w->progress, &view);
    while (view.told.steps_done < 5 && atomic_load(&w->stop) == WORK_GO);
    atomic_store(&w->stop, WORK_LEAVING);
    return NULL;
}

/* Makes a host whose phase was stopped in the middle.  A phase may be over before the
 * cutter gets a turn; then another host tries. */
static void cut_a_phase(struct host *h, const struct order *o)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < 50; i++) {
        char name[16];
        snprintf(name, sizeof(name), "cut-%d", i);
        if (i > 0)
            host_free(h);
        host_new(h, name);
        struct work *w = host_plan(h, &o->task);
        pthread_t t;
        assert_int_equal(pthread_create(&t, NULL, cutter, w), 0);
        rc = engine_run(h->engine, w, NULL);
        atomic_store(&w->stop, WORK_LEAVING); /* so that the cutter ends in any case */
        pthread_join(t, NULL);
        work_free(w);
    }
    assert_int_equal(rc, -ERR_CANCELLED);
}

static void cut_phase_ends_the_same(void **state)
{
    (void)state;
    struct host whole, cut;
    struct order o;
    host_new(&whole, "whole");
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN);
    struct work *a = run(&whole, &o);
    assert_int_equal(a->result.steps, STEPS);
    assert_int_equal(a->result.samples, 40); /* what it was given: the rest was used twice */
    assert_int_equal(a->result.bad_count, 1);
    assert_string_equal(a->result.bad[0].key, "s1-0003");
    assert_int_equal(a->result.outputs[0].base_version, 0);

    cut_a_phase(&cut, &o);
    host_restart(&cut);
    o.task.attempt = 2; /* leased again */
    struct work *b = run(&cut, &o);
    assert_memory_equal(a->result.outputs[0].sha256, b->result.outputs[0].sha256, 32);
    assert_int_equal(b->result.steps, STEPS);
    assert_true(a->result.loss_mean == b->result.loss_mean);
    work_free(a);
    work_free(b);

    /* The next phase goes on with the same moments, restarted or not. */
    OK(residual_hear(whole.state, &(struct residual_word){11, 0, RESIDUAL_APPLIED, false}, err));
    OK(residual_hear(cut.state, &(struct residual_word){11, 0, RESIDUAL_APPLIED, false}, err));
    host_restart(&cut);
    o.task.id = 12;
    o.train.first_step = STEPS;
    a = run(&whole, &o);
    b = run(&cut, &o);
    assert_memory_equal(a->result.outputs[0].sha256, b->result.outputs[0].sha256, 32);
    work_free(a);
    work_free(b);
    host_free(&whole);
    host_free(&cut);
}

static unsigned steps_made(struct work *w)
{
    struct progress_view view;
    progress_take(&w->progress, &view);
    return view.told.steps_done;
}

/* A worker is killed while its contribution is sent, and has the same phase again: it makes no step
 * twice, and what it sends has the bits that it had.  If the coordinator has refused those, the
 * phase begins anew. */
static void killed_while_it_sends(void **state)
{
    (void)state;
    struct host whole, killed;
    struct order o;
    uint8_t sent[32], next[32];
    host_new(&whole, "sends");
    host_new(&killed, "killed");
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN);
    for (int phase = 0; phase < 2; phase++) {
        o.task.id = 11 + (uint64_t)phase;
        o.train.first_step = (uint64_t)phase * STEPS;
        work_free(run(&whole, &o));
        struct work *w = run(&killed, &o);
        memcpy(sent, w->result.outputs[0].sha256, 32);
        work_free(w);
        const struct residual_word word = {o.task.id, 0, RESIDUAL_APPLIED, false};
        OK(residual_hear(whole.state, &word, err));
        if (phase == 0)
            OK(residual_hear(killed.state, &word, err));
    }
    host_restart(&killed);
    o.task.attempt = 2;
    struct work *b = run(&killed, &o);
    assert_memory_equal(b->result.outputs[0].sha256, sent, 32);
    assert_int_equal(steps_made(b), 0);
    assert_int_equal(b->result.steps, STEPS);
    assert_int_equal(b->result.samples, 40);
    work_free(b);
    OK(residual_hear(killed.state, &(struct residual_word){12, 0, RESIDUAL_APPLIED, false}, err));

    o.task.id = 13;
    o.task.attempt = 1;
    o.train.first_step = 2 * STEPS;
    struct work *a = run(&whole, &o);
    b = run(&killed, &o);
    memcpy(next, a->result.outputs[0].sha256, 32);
    assert_memory_equal(b->result.outputs[0].sha256, next, 32);
    work_free(a);
    work_free(b);

    a = host_plan(&killed, &o.task);
    a->anew = true;
    OK(engine_run(killed.engine, a, err));
    assert_int_equal(steps_made(a), STEPS);
    work_free(a);
    host_free(&whole);
    host_free(&killed);
}

static char *mid_of(const struct host *h)
{
    return file_join(h->state, "replica-1-0-0.mid");
}

/* The weights of its checkpoint are finite, and no more than that. */
static void spoil_checkpoint(const struct host *h)
{
    char *path = mid_of(h);
    struct st st = {0};
    OK(st_open(path, &st, err));
    const int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    for (size_t i = 0; i < st.n_tensors; i++)
        for (uint64_t k = 0; k < st.tensors[i].count && str_starts(st.tensors[i].name, "weights.");
             k++) {
            const float huge = 1e30f;
            const uint64_t at = st.tensors[i].offset + k * sizeof(huge);
            assert_int_equal(pwrite(fd, &huge, sizeof(huge), (off_t)at), sizeof(huge));
        }
    (void)close(fd);
    st_release(&st);
    mem_free(path);
}

/* A device has computed nonsense, and the phase diverges: it is not gone on with where that was
 * saved, or it would diverge each time. */
static void diverged_phase_begins_anew(void **state)
{
    (void)state;
    struct host whole, cut;
    struct order o;
    struct err why = {0};
    host_new(&whole, "sound");
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN);
    struct work *a = run(&whole, &o);
    cut_a_phase(&cut, &o);
    host_restart(&cut);
    spoil_checkpoint(&cut);
    struct work *b = host_plan(&cut, &o.task);
    assert_int_equal(engine_run(cut.engine, b, &why), -EDOM);
    assert_non_null(strstr(why.msg, "diverged"));
    work_free(b);
    char *mid = mid_of(&cut);
    assert_false(file_exists(mid));
    mem_free(mid);
    b = run(&cut, &o);
    assert_memory_equal(a->result.outputs[0].sha256, b->result.outputs[0].sha256, 32);
    work_free(a);
    work_free(b);
    host_free(&whole);
    host_free(&cut);
}

/* Weights of chance, and of two classes so large ones that attention overflows. */
static void make_overflow(const char *from)
{
    struct buf file;
    struct st st = {0};
    buf_init(&file, 1 << 24);
    OK(file_read(from, 1 << 24, &file, err));
    overflow_path = in(top, "overflow");
    OK(file_write_atomic(overflow_path, file.data, file.len, 0600, err));
    OK(st_open(overflow_path, &st, err));
    const int fd = open(overflow_path, O_WRONLY);
    assert_true(fd >= 0);
    for (size_t i = 0; i < st.n_tensors; i++) {
        const bool table = strstr(st.tensors[i].name, "embedding_table") != NULL;
        const uint64_t row = st.tensors[i].count / (RARE + 1);
        for (uint64_t k = 0; k < st.tensors[i].count; k++) {
            const bool last = table && k / row >= RARE - 2 && k / row < RARE;
            const float x = last ? 1e30f : rng_at_uniform(5, i, k) - 0.5f;
            const uint64_t at = st.tensors[i].offset + k * sizeof(x);
            assert_int_equal(pwrite(fd, &x, sizeof(x), (off_t)at), sizeof(x));
        }
    }
    (void)close(fd);
    st_release(&st);
    buf_release(&file);
    uint64_t size;
    OK(hash_file(overflow_path, overflow, &size, err));
}

/* A phase over 40 samples, of which two overflow. */
static void order_overflowing(struct order *o, int kind)
{
    order_init(o, kind);
    blob_of(&o->shard_blob[0], rare.sha256, size_of(rare.path));
    o->task.n_classes = RARE;
    if (!overflow_path) {
        struct host h;
        o->task.kind = SKERRY__V1__TASK_KIND__TASK_KIND_INIT;
        host_new(&h, "classes");
        struct work *w = run(&h, o);
        make_overflow(w->result.outputs[0].path);
        work_free(w);
        host_free(&h);
        o->task.kind = (Skerry__V1__TaskKind)kind;
    }
    blob_of(&o->full, overflow, size_of(overflow_path));
    o->module.sha256 = o->full.sha256;
}

/* Steps with those samples are skipped, and the others are what they are: so it is in a phase that
 * was cut, and in one that another worker repeats. */
static void steps_are_skipped(void **state)
{
    (void)state;
    struct host whole, cut, other;
    struct order o;
    order_overflowing(&o, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN);
    host_new(&whole, "skips");
    struct work *a = run(&whole, &o);
    assert_int_equal(a->result.steps, STEPS);
    assert_int_equal(a->result.samples, 40);
    assert_in_range(a->result.skipped, 2, PHASE_SKIPS_MAX);
    assert_true(isfinite(a->result.loss_mean));
    struct progress_view view;
    progress_take(&a->progress, &view);
    assert_int_equal(view.told.skipped, a->result.skipped);
    assert_int_equal(view.told.n_points, STEPS - a->result.skipped);

    cut_a_phase(&cut, &o);
    host_restart(&cut);
    o.task.attempt = 2;
    struct work *b = run(&cut, &o);
    assert_memory_equal(a->result.outputs[0].sha256, b->result.outputs[0].sha256, 32);
    assert_int_equal(b->result.skipped, a->result.skipped);
    assert_true(b->result.loss_mean == a->result.loss_mean);
    work_free(b);

    order_overflowing(&o, SKERRY__V1__TASK_KIND__TASK_KIND_CHECK);
    host_new(&other, "checks");
    b = run(&other, &o);
    assert_memory_equal(a->result.outputs[0].sha256, b->result.outputs[0].sha256, 32);
    work_free(a);
    work_free(b);
    host_free(&whole);
    host_free(&cut);
    host_free(&other);
}

/* The same task a second time at the same worker starts from the same state. */
static void repeated_phase_is_the_same(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    host_new(&h, "repeat");
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN);
    struct work *a = run(&h, &o);
    OK(residual_hear(h.state, &(struct residual_word){11, 0, RESIDUAL_REFUSED, false}, err));
    struct work *b = run(&h, &o);
    assert_memory_equal(a->result.outputs[0].sha256, b->result.outputs[0].sha256, 32);
    work_free(a);
    work_free(b);
    host_free(&h);
}

static void time_bounds_a_phase(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    host_new(&h, "seconds");
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN);
    o.train.steps = 0;
    o.train.seconds = 3600; /* the samples are used up long before */
    struct work *w = run(&h, &o);
    assert_int_equal(w->result.samples, 40); /* the bad one is accounted for too */
    assert_int_equal(w->result.steps, 10);   /* 39 samples in batches of 4 */
    work_free(w);
    host_free(&h);
}

/* Version 1 of the module and its delta, folded from one phase. */
struct version1 {
    char *delta;
    uint8_t sha256[32], delta_sha256[32];
};

static void fold_version1(struct host *h, struct version1 *ret)
{
    static const char *const names[] = {"v0", "v1", "d1", "target", "mom"};
    struct order o;
    char *at[5];
    for (int i = 0; i < 5; i++)
        at[i] = in(top, names[i]);
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN);
    struct work *w = run(h, &o);
    OK(file_write_atomic(at[0], version0_file.data, version0_file.len, 0600, err));
    struct fold_input input = {
        .path = w->result.outputs[0].path, .weight = 1, .origin = {CODEC_E3M0, 0, at[0]}};
    struct fold_step step = {.module_id = 7,
                             .base = 0,
                             .full = at[0],
                             .inputs = &input,
                             .n_inputs = 1,
                             .down = CODEC_E3M0,
                             .lr = 0.7,
                             .momentum = 0.9,
                             .scale = 1,
                             .full_out = at[1],
                             .delta_out = at[2],
                             .target_out = at[3],
                             .mom_out = at[4]};
    struct fold_result folded;
    OK(fold_run(&step, &folded, err));
    work_free(w);
    memcpy(ret->sha256, folded.full.sha256, 32);
    memcpy(ret->delta_sha256, folded.delta.sha256, 32);
    ret->delta = at[2];
    for (int i = 0; i < 5; i++)
        if (i != 2)
            mem_free(at[i]);
}

/* The next phase, from version 1 as a delta to version 0. */
static void order_next(struct host *h, struct order *o, struct version1 *v)
{
    order_init(o, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN);
    host_put(h, v->delta, v->delta_sha256);
    skerry__v1__delta__init(&o->delta);
    blob_of(&o->delta_blob, v->delta_sha256, size_of(v->delta));
    o->delta.to = 1;
    o->delta.blob = &o->delta_blob;
    o->deltas[0] = &o->delta;
    o->module.full = NULL;
    o->module.deltas = o->deltas;
    o->module.n_deltas = 1;
    o->module.version = 1;
    o->module.sha256 = (ProtobufCBinaryData){32, v->sha256};
    o->task.id = 12;
    o->train.first_step = STEPS;
}

static void version_is_rebuilt_from_a_delta(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    struct version1 v;
    struct modules_version held[MODULES_MAX];
    host_new(&h, "delta");
    fold_version1(&h, &v);
    order_next(&h, &o, &v);
    host_restart(&h); /* what is held is remembered */
    assert_int_equal(modules_held(h.modules, held), 1);
    assert_int_equal(held[0].version, 0);
    struct work *w = run(&h, &o);
    assert_int_equal(w->result.outputs[0].base_version, 1);
    assert_int_equal(modules_held(h.modules, held), 1);
    assert_int_equal(held[0].version, 1);
    work_free(w);
    mem_free(v.delta);
    host_free(&h);
}

/* Another hash than the one announced: told, and the base is forgotten. */
static void misbuilt_version_is_told(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    struct version1 v;
    struct modules_version held[MODULES_MAX];
    struct work *w;
    host_new(&h, "delta-other");
    fold_version1(&h, &v);
    order_next(&h, &o, &v);
    v.sha256[0] ^= 1;
    OK(work_new(kinds_all, &o.task, h.cache, h.tmp, &w, err));
    OK(engine_plan(h.engine, w, err));
    struct err e = {0};
    assert_int_equal(engine_run(h.engine, w, &e), -ERR_HASH);
    assert_int_equal(modules_held(h.modules, held), 0);
    assert_int_equal(engine_plan(h.engine, w, &e), -ERR_NOTFOUND);
    work_free(w);
    mem_free(v.delta);
    host_free(&h);
}

static void eval_and_sample(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    host_new(&h, "look");
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_EVAL);
    struct work *a = run(&h, &o);
    assert_int_equal(a->result.samples, 39);
    assert_true(a->result.loss_mean > 0.1f && a->result.loss_mean < 10.0f);
    struct work *b = run(&h, &o);
    assert_true(a->result.loss_mean == b->result.loss_mean);
    work_free(a);
    work_free(b);
    o.eval.samples = 10;
    a = run(&h, &o);
    assert_int_equal(a->result.samples, 10);
    work_free(a);

    o.task.kind = SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE;
    a = run(&h, &o);
    struct buf png;
    int width, height;
    OK(file_read(a->result.outputs[0].path, 1 << 20, &png, err));
    OK(image_info(png.data, png.len, &width, &height, err));
    assert_in_range(width, 3 * 8, 3 * 8 + 4);
    assert_in_range(height, 2 * 8, 2 * 8 + 3);
    buf_release(&png);
    work_free(a);
    host_free(&h);
}

static void ingest_cuts_shards(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    host_new(&h, "ingest");
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_INGEST);
    o.ingest.url = (char *)"http://example.org/x.tar";
    struct work *w = host_plan(&h, &o.task);
    struct buf b;
    OK(file_read(shards[0].path, 1 << 24, &b, err));
    OK(file_write_atomic(w->source_path, b.data, b.len, 0600, err));
    OK(engine_run(h.engine, w, err));
    uint32_t samples = 0;
    for (size_t i = 0; i < w->result.n_outputs; i++) {
        samples += w->result.outputs[i].samples;
        assert_true(file_exists(w->result.outputs[i].path));
    }
    assert_int_equal(samples, 20);
    assert_int_equal(w->result.n_classes, 5);
    work_free(w);
    /* An archive that was cut short is named. */
    w = host_plan(&h, &o.task);
    OK(file_write_atomic(w->source_path, b.data, b.len / 2 + 100, 0600, err));
    FAILS(engine_run(h.engine, w, err), "http://example.org/x.tar");
    work_free(w);
    buf_release(&b);
    host_free(&h);
}

static struct frozen *text_network(struct device *dev)
{
    static const char config[] =
        "{\"architectures\": [\"CLIPTextModel\"], \"vocab_size\": 100, \"hidden_size\": 10,"
        " \"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"intermediate_size\": 40,"
        " \"max_position_embeddings\": 9}";
    const struct frozen_options opt = {
        .part = FROZEN_TEXT, .dt = DT_F32, .group = 1, .tokens = 5, .layer = -1};
    char *folder = in(top, "clip");
    struct component *c;
    struct frozen *f;
    OK(file_mkdirs(folder, 0700, err));
    component_write_text(folder, "config.json", config);
    component_write_weights(folder, config, "model.safetensors", (struct made){0});
    OK(component_open(folder, COMPONENT_ANY, &c, err));
    OK(frozen_open(dev, c, &opt, &f, err));
    component_close(c);
    mem_free(folder);
    return f;
}

/* Of this job or another, they would be in the plan's way; those of a replica stay. */
static void idle_encoders_leave_before_a_plan(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    struct encoders *enc = mem_alloc(sizeof *enc);
    host_new(&h, "idle");
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN);
    enc->users = 2; /* the engine, a replica */
    enc->ranks_n = 1;
    enc->bytes[NET_CAPTIONS] = 100;
    enc->ranks[0] = (struct encoder_rank){
        .set = enc, .dev = h.engine->dev, .text = text_network(h.engine->dev)};
    h.engine->encoders[1] = enc;
    work_free(host_plan(&h, &o.task));
    assert_int_equal(encoders_there(enc), 100);
    enc->users = 1;
    work_free(host_plan(&h, &o.task));
    assert_null(enc->ranks[0].text);
    assert_int_equal(encoders_there(enc), 0);
    /* With the replica in memory nothing is planned. */
    work_free(run(&h, &o));
    enc->ranks[0].text = text_network(h.engine->dev);
    o.train.first_step = STEPS;
    work_free(host_plan(&h, &o.task));
    assert_non_null(enc->ranks[0].text);
    host_free(&h);
}

/* In a phase bounded by time the rate goes by the share of the job's time that is over, however
 * many steps were expected. */
static void schedule_by_the_clock(void **state)
{
    (void)state;
    static const uint64_t expected[] = {0, 1000}; /* steps of the job */
    struct host h;
    struct order o;
    struct progress_view v;
    host_new(&h, "clock");
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN);
    o.task.spec = (char *)SPEC_OF(", schedule: decay");
    o.train.steps = 0;
    o.train.seconds = 3600; /* there are far fewer samples */
    o.train.done_from = 0.95;
    o.train.done_to = 1;
    for (size_t i = 0; i < 2; i++) {
        o.train.epoch = (uint32_t)i; /* another phase, which does not go on with the last */
        o.train.total_steps = expected[i];
        struct work *w = run(&h, &o);
        progress_take(&w->progress, &v);
        assert_true(v.told.n_points > 0);
        for (size_t k = 0; k < v.told.n_points; k++)
            assert_true(fabs((double)v.points[k].lr / 1e-3 - 0.25) < 0.01);
        work_free(w);
    }
    host_free(&h);
}

/* A large checkpoint takes longer than a worker waits for a thread that hangs. */
static void saving_is_a_sign(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    host_new(&h, "signs");
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN);
    o.train.steps = o.train.total_steps = 2;
    struct work *w = host_run(&h, &o.task);
    const uint64_t signs = progress_signs(&w->progress);
    engine_after(h.engine, w);
    assert_true(progress_signs(&w->progress) > signs);
    assert_false(pieces_heard());
    work_free(w);
    host_free(&h);
}

/* How long a large model's took says nothing of a small one's. */
static void snapshots_are_of_their_job(void **state)
{
    (void)state;
    struct engine e = {0};
    atomic_store(engine_snapshots(&e, 1), 5);
    assert_int_equal(atomic_load(engine_snapshots(&e, 1)), 5);
    assert_int_equal(atomic_load(engine_snapshots(&e, 2)), 0);
    assert_int_equal(atomic_load(&e.snapshot_ns), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_phase_ends_the_same),
        cmocka_unit_test(killed_while_it_sends),
        cmocka_unit_test(diverged_phase_begins_anew),
        cmocka_unit_test(steps_are_skipped),
        cmocka_unit_test(repeated_phase_is_the_same),
        cmocka_unit_test(time_bounds_a_phase),
        cmocka_unit_test(version_is_rebuilt_from_a_delta),
        cmocka_unit_test(misbuilt_version_is_told),
        cmocka_unit_test(eval_and_sample),
        cmocka_unit_test(ingest_cuts_shards),
        cmocka_unit_test(idle_encoders_leave_before_a_plan),
        cmocka_unit_test(schedule_by_the_clock),
        cmocka_unit_test(snapshots_are_of_their_job),
        cmocka_unit_test(saving_is_a_sign),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
