/* Networks, cuts and objectives as tasks of a worker that has all blobs: versions 0, phases and
 * evaluations of levels, routers, warm starts and texts; moments that travel. */
#include "tests/unit/worker/host.h"
#include "tests/unit/worker/shards.h"

#include <errno.h>
#include <math.h>

#include "common/st/st.h"
#include "common/base/str.h"
#include "kernels/kernels.h"
#include "worker/model/model.h"
#include "worker/kinds/work_train.h"
#include "worker/engine/replica.h"
#include "worker/engine/residual.h"
#include "worker/order/task_model.h"

#define HEAD                                                                                       \
    "name: tiny\nseed: 3\n"                                                                        \
    "outer: {rounds: 3, steps: 12}\nwire: {up: f32, down: f32}\n"
#define IMAGES_REST                                                                                \
    "data: {path: x, image_size: 8, shard_samples: 16}\n"                                          \
    "model: {type: dit, patch: 2, dim: 16, depth: 3, heads: 2}\n"                                  \
    "router: {patch: 4, dim: 8, depth: 1, heads: 1}\n"                                             \
    "recipe: {name: ddm, experts: 2}\n"                                                            \
    "train: {batch: 8, lr: 1e-3, precision: f32}\n"
#define IMAGES HEAD IMAGES_REST
#define TEXTS                                                                                      \
    HEAD "data: {path: x, shard_samples: 100}\n"                                                   \
         "model: {type: llama, dim: 16, depth: 2, heads: 2, context: 32}\n"                        \
         "train: {batch: 2, lr: 3e-3, precision: f32}\n"

enum { STEPS = 12, SAMPLES = 20, SHARDS = 2, LEVELS = 3, TEXT = 24 };

static char *top;
static struct test_shard images[SHARDS], texts[SHARDS];

/* ---- a worker ---- */

/* Puts a copy of the file into its cache, and its name and size into the message. */
static void host_take(struct host *h, const char *from, Skerry__V1__Blob *ret, uint8_t sha256[32])
{
    uint64_t size;
    OK(hash_file(from, sha256, &size, err));
    host_put(h, from, sha256);
    blob_of(ret, sha256, size);
}

static void host_new(struct host *h, const char *name)
{
    host_open(h, top, name, 2);
    for (int i = 0; i < SHARDS; i++) {
        host_put(h, images[i].path, images[i].sha256);
        host_put(h, texts[i].path, texts[i].sha256);
    }
}

/* ---- tasks ---- */

struct order {
    Skerry__V1__Task task;
    Skerry__V1__ModuleRef module[LEVELS], *modules[LEVELS];
    Skerry__V1__Blob full[LEVELS], shard[SHARDS], moments, warm, tokenizer;
    Skerry__V1__Level level[LEVELS], *levels[LEVELS];
    Skerry__V1__Range range[SHARDS], *ranges[SHARDS];
    Skerry__V1__TrainTask train;
    Skerry__V1__EvalTask eval;
    uint8_t hash[LEVELS][32], moments_hash[32], warm_hash[32], other_hash[32];
    uint32_t blocks[3];
    char *classes[5];
};

static void order_init(struct order *o, const char *spec)
{
    const bool text = strstr(spec, "llama") != NULL;
    memset(o, 0, sizeof(*o));
    skerry__v1__task__init(&o->task);
    skerry__v1__train_task__init(&o->train);
    skerry__v1__eval_task__init(&o->eval);
    for (uint32_t i = 0; i < LEVELS; i++) {
        skerry__v1__module_ref__init(&o->module[i]);
        skerry__v1__level__init(&o->level[i]);
        blob_of(&o->full[i], o->hash[i], 1);
        o->module[i].module_id = 7 + i;
        o->module[i].level = i;
        o->module[i].full = &o->full[i];
        o->module[i].sha256 = o->full[i].sha256;
        o->modules[i] = &o->module[i];
        o->levels[i] = &o->level[i];
    }
    for (uint32_t i = 0; i < SHARDS; i++) {
        const struct test_shard *s = text ? &texts[i] : &images[i];
        blob_of(&o->shard[i], s->sha256, size_of(s->path));
        skerry__v1__range__init(&o->range[i]);
        o->range[i].shard = &o->shard[i];
        o->range[i].count = SAMPLES;
        o->range[i].partition = i;
        o->ranges[i] = &o->range[i];
    }
    for (int i = 0; i < 5; i++)
        o->classes[i] = (char *)"c";
    o->train.steps = STEPS;
    o->train.total_steps = 3 * STEPS;
    o->train.ranges = o->eval.ranges = o->ranges;
    o->train.n_ranges = o->eval.n_ranges = SHARDS;
    o->task.id = 11;
    o->task.job_id = 1;
    o->task.spec = (char *)(uintptr_t)spec;
    o->task.modules = o->modules;
    o->task.n_modules = 1;
    o->task.classes = o->classes;
    o->task.n_classes = text ? 0 : 5;
    o->task.vocab = text ? 257 : 0;
    o->task.partitions = 2;
    o->task.train = &o->train;
    o->task.eval = &o->eval;
}

/* Level 0: blocks 0 and 2 with the embedders; 1: block 1; 2: the head alone. */
static void cut_in_three(struct order *o)
{
    o->blocks[0] = 0;
    o->blocks[1] = 2;
    o->blocks[2] = 1;
    o->level[0].blocks = o->blocks;
    o->level[0].n_blocks = 2;
    o->level[0].embedders = true;
    o->level[1].blocks = o->blocks + 2;
    o->level[1].n_blocks = 1;
    o->level[2].head = true;
    o->task.levels = o->levels;
    o->task.n_levels = LEVELS;
    o->task.n_modules = LEVELS;
}

/* Runs the task; work_free. */
static struct work *run(struct host *h, struct order *o, int kind)
{
    o->task.kind = (Skerry__V1__TaskKind)kind;
    struct work *w = host_run(h, &o->task);
    engine_after(h->engine, w);
    return w;
}

static int run_fails(struct host *h, struct order *o, int kind, const char *sentence)
{
    o->task.kind = (Skerry__V1__TaskKind)kind;
    return host_fails(h, &o->task, sentence);
}

#define INIT SKERRY__V1__TASK_KIND__TASK_KIND_INIT
#define TRAIN SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN
#define EVAL SKERRY__V1__TASK_KIND__TASK_KIND_EVAL
#define CHECK SKERRY__V1__TASK_KIND__TASK_KIND_CHECK

/* Version 0 of the order's modules, into its refs and the cache. */
static void init_modules(struct host *h, struct order *o)
{
    for (size_t i = 0; i < o->task.n_modules; i++) /* as the coordinator sends them */
        o->module[i].sha256 = (ProtobufCBinaryData){0};
    o->task.train = NULL;
    struct work *w = run(h, o, INIT);
    o->task.train = &o->train;
    assert_int_equal(w->result.n_outputs, o->task.n_modules);
    for (size_t i = 0; i < w->result.n_outputs; i++) {
        assert_int_equal(w->result.outputs[i].module_id, 7 + i);
        host_take(h, w->result.outputs[i].path, &o->full[i], o->hash[i]);
        o->module[i].sha256 = o->full[i].sha256;
    }
    work_free(w);
}

/* A plan of the order on a host of its own, that has never seen its modules: how many of them
 * have to be fetched. */
static size_t to_fetch(const char *name, struct order *o)
{
    struct host h;
    size_t n = 0;
    host_new(&h, name);
    o->task.kind = TRAIN;
    struct work *w = host_look(&h, &o->task);
    for (size_t i = 0; i < w->n_needs; i++)
        n += w->needs[i].missing;
    work_free(w);
    host_free(&h);
    return n;
}

/* Values that follow from the seed need not travel; others do. */
static void version_0_is_drawn(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    host_new(&h, "drawn-first");
    order_init(&o, IMAGES);
    cut_in_three(&o);
    init_modules(&h, &o);
    host_free(&h);
    assert_int_equal(to_fetch("drawn", &o), 0);
    o.module[1].version = 1;
    assert_int_equal(to_fetch("drawn-trained", &o), 1);
    o.module[1].version = 0;
    o.hash[1][0] ^= 1;
    assert_int_equal(to_fetch("drawn-other", &o), 1);
    o.hash[1][0] ^= 1;
    char *spec = str_dup(IMAGES);
    *(strstr(spec, "seed: 3") + 6) = '4';
    o.task.spec = spec;
    assert_int_equal(to_fetch("drawn-seed", &o), LEVELS - 1); /* a head begins with zeros */
    mem_free(spec);
}

static size_t tensors_in(const char *path)
{
    struct st st = {0};
    OK(st_open(path, &st, err));
    size_t n = st.n_tensors;
    st_release(&st);
    return n;
}

/* ---- shards ---- */

static uint32_t some_text(int number, uint32_t i, uint32_t *ids, const void *arg)
{
    const uint32_t n = TEXT - i % 7;
    ids[0] = ids[n - 1] = 256;
    for (uint32_t k = 1; k + 1 < n; k++)
        ids[k] = 'a' + (i + k) % 5;
    return n;
}

static int setup(void **state)
{
    (void)state;
    OK(image_init(err));
    top = scratch_new();
    for (int i = 0; i < SHARDS; i++) {
        images[i] = shard_make(top, i, SAMPLES, 5, -1);
        texts[i] = shard_of_texts(top, i, SAMPLES, 0, some_text, NULL);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < SHARDS; i++) {
        free(images[i].path);
        free(texts[i].path);
    }
    scratch_free(top);
    return 0;
}

/* ---- tests ---- */

/* However a network is cut, it is the same network. */
static void levels_change_nothing(void **state)
{
    (void)state;
    struct host h;
    struct order one, three;
    host_new(&h, "levels");
    order_init(&one, IMAGES);
    order_init(&three, IMAGES);
    cut_in_three(&three);
    init_modules(&h, &one);
    init_modules(&h, &three);
    three.task.job_id = 2; /* another replica */
    struct work *a = run(&h, &one, TRAIN), *b;
    three.task.id = 12;
    b = run(&h, &three, TRAIN);
    assert_true(a->result.loss_mean == b->result.loss_mean);
    assert_true(a->result.loss_last == b->result.loss_last);
    assert_int_equal(a->result.n_outputs, 1);
    assert_int_equal(b->result.n_outputs, LEVELS);
    size_t parts = 0;
    for (size_t i = 0; i < LEVELS; i++)
        parts += tensors_in(b->result.outputs[i].path);
    assert_int_equal(parts, tensors_in(a->result.outputs[0].path));
    work_free(a);
    work_free(b);
    a = run(&h, &one, EVAL);
    b = run(&h, &three, EVAL);
    assert_true(a->result.loss_sum == b->result.loss_sum);
    assert_int_equal(a->result.units, SHARDS * SAMPLES);
    assert_true(fabs(a->result.loss_sum / SHARDS / SAMPLES - (double)a->result.loss_mean) < 1e-6);
    work_free(a);
    work_free(b);
    host_free(&h);
}

static void cuts_are_checked(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    host_new(&h, "cuts");
    order_init(&o, IMAGES);
    cut_in_three(&o);
    o.level[1].n_blocks = 0;
    assert_int_equal(run_fails(&h, &o, INIT, "block 1 is in no level"), -ERR_FORMAT);
    cut_in_three(&o);
    o.blocks[2] = 2;
    run_fails(&h, &o, INIT, "block 2 is in two levels");
    cut_in_three(&o);
    o.blocks[2] = 3;
    run_fails(&h, &o, INIT, "has block 3, but the network has 3 blocks");
    cut_in_three(&o);
    o.level[1].head = true;
    run_fails(&h, &o, INIT, "the head in 2");
    host_free(&h);
}

/* A second network, whose labels are the partitions of the ranges. */
static void router_is_a_path(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    host_new(&h, "router");
    order_init(&o, IMAGES);
    o.task.network = SKERRY__V1__NETWORK__NETWORK_ROUTER;
    init_modules(&h, &o);
    char path[CACHE_PATH_MAX];
    struct st st = {0};
    cache_path(h.cache, o.hash[0], path);
    OK(st_open(path, &st, err));
    assert_non_null(st_find(&st, "cls_token"));
    assert_int_equal(st_find(&st, "head.weight")->shape[0], 2);
    st_release(&st);

    struct work *w = run(&h, &o, EVAL);
    assert_true(fabs(w->result.loss_sum / SHARDS / SAMPLES - log(2)) < 0.1);
    assert_int_equal(w->result.n_rows, 1);
    assert_string_equal(w->result.rows[0].name, "accuracy");
    assert_true(w->result.rows[0].value >= 0 && w->result.rows[0].value <= 1);
    work_free(w);

    o.train.batch = 5;
    w = run(&h, &o, TRAIN);
    assert_int_equal(w->result.steps, STEPS);
    assert_true(w->result.loss_last < w->result.loss_first);
    work_free(w);
    o.range[1].partition = 2;
    run_fails(&h, &o, EVAL, "of partition 2, the router knows 2");
    host_free(&h);
}

static void batch_of_the_task(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    host_new(&h, "batch");
    order_init(&o, IMAGES);
    init_modules(&h, &o);
    o.train.batch = 2;
    struct work *w = run(&h, &o, TRAIN);
    assert_int_equal(w->result.samples, 2 * STEPS);
    work_free(w);
    host_free(&h);
}

static void warm_start(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    char *file = in(top, "weights");
    host_new(&h, "warm");
    order_init(&o, TEXTS);
    /* Weights of another seed, as somebody may bring them. */
    struct work *w;
    struct model *m;
    o.task.kind = INIT;
    OK(work_new(kinds_all, &o.task, h.cache, h.tmp, &w, err));
    OK(task_model(w, SKERRY__V1__NETWORK__NETWORK_MAIN, &m, err));
    work_free(w);
    float *flat = model_flat_new(m), *back = model_flat_new(m);
    model_init(m, 99, flat);
    OK(model_save(m, -1, flat, file, NULL, NULL, err));
    host_take(&h, file, &o.warm, o.warm_hash);
    o.task.warm_start = &o.warm;
    init_modules(&h, &o);
    char path[CACHE_PATH_MAX];
    cache_path(h.cache, o.hash[0], path);
    OK(model_load(m, -1, &(const char *){path}, 1, back, err));
    assert_memory_equal(flat, back, m->flat * sizeof *flat);

    /* One row of the vocabulary more than the file has. */
    o.task.vocab++;
    assert_int_equal(run_fails(&h, &o, INIT, "model.embed_tokens.weight is (257, 16)"),
                     -ERR_CONFIG);
    mem_free(flat);
    mem_free(back);
    model_free(m);
    mem_free(file);
    host_free(&h);
}

/* The next phase of a replica on another machine: with its moments it goes on nearly as at
 * home; without, it starts anew and slowly. */
static void moments_travel(void **state)
{
    (void)state;
    struct host home, with, without;
    struct order o;
    host_new(&home, "home");
    host_new(&with, "with");
    host_new(&without, "without");
    order_init(&o, IMAGES);
    init_modules(&home, &o);
    init_modules(&with, &o);
    init_modules(&without, &o);
    o.train.send_moments = true;
    struct work *w = run(&home, &o, TRAIN);
    assert_int_equal(w->result.n_outputs, 2);
    assert_int_equal(w->result.outputs[1].role, WORK_MOMENTS);
    host_take(&with, w->result.outputs[1].path, &o.moments, o.moments_hash);
    assert_memory_equal(o.moments_hash, w->result.outputs[1].sha256, 32);
    work_free(w);

    /* On the same version, so that the moments alone make the difference. */
    o.train.first_step = STEPS;
    o.train.send_moments = false;
    o.task.id = 12;
    struct work *a = run(&home, &o, TRAIN), *c = run(&without, &o, TRAIN);
    o.train.moments = &o.moments;
    struct work *b = run(&with, &o, TRAIN);
    const double at_home = (double)a->result.loss_mean;
    assert_true(fabs((double)b->result.loss_mean - at_home) <
                0.2 * fabs((double)c->result.loss_mean - at_home));
    work_free(a);
    work_free(b);
    work_free(c);

    /* A blob that is none: told in the log, and the phase starts with fresh ones. */
    struct host broken;
    char *file = in(top, "no-moments");
    host_new(&broken, "broken");
    init_modules(&broken, &o);
    OK(file_write_atomic(file, "nothing", 7, 0600, err));
    host_take(&broken, file, &o.moments, o.moments_hash);
    b = run(&broken, &o, TRAIN);
    assert_int_equal(b->result.steps, STEPS);
    work_free(b);
    mem_free(file);
    host_free(&broken);
    host_free(&home);
    host_free(&with);
    host_free(&without);
}

static size_t state_files(const struct host *h)
{
    struct file_names names;
    OK(file_list(h->state, 1000, &names, err));
    const size_t n = names.n;
    file_names_release(&names);
    return n;
}

/* Runs it; the hash of its one contribution. */
static void contribution_of(struct host *h, struct order *o, int kind, uint8_t sha256[32])
{
    struct work *w = run(h, o, kind);
    assert_int_equal(w->result.n_outputs, 1);
    assert_int_equal(w->result.steps, STEPS);
    memcpy(sha256, w->result.outputs[0].sha256, 32);
    work_free(w);
}

/* A phase that begins with nothing but its version comes to the same bits wherever it is done, and
 * whatever its worker had of the replica; and a CHECK takes none of that away. */
static void a_phase_is_done_again(void **state)
{
    (void)state;
    static const char spec[] = "name: tiny\nseed: 3\nouter: {rounds: 3, steps: 12}\n"
                               "wire: {up: e3m0, down: f32}\n" IMAGES_REST;
    struct host home, away, plain;
    struct order o;
    uint8_t first[32], again[32], next[32], expected[32];
    host_new(&home, "check-home");
    host_new(&away, "check-away");
    host_new(&plain, "check-plain");
    order_init(&o, spec);
    init_modules(&home, &o);
    init_modules(&away, &o);
    init_modules(&plain, &o);
    for (int i = 0; i < 2; i++) { /* what a phase leaves: moments, a residual */
        o.task.id = 11;
        contribution_of(i ? &plain : &home, &o, TRAIN, first);
        OK(residual_hear(i ? plain.state : home.state,
                         &(struct residual_word){11, 0, RESIDUAL_APPLIED, false}, err));
    }
    o.train.first_step = STEPS;
    o.task.id = 12;
    contribution_of(&away, &o, TRAIN, first);
    const size_t files = state_files(&home);
    o.task.id = 13;
    contribution_of(&home, &o, CHECK, again);
    assert_memory_equal(first, again, 32);
    assert_int_equal(state_files(&home), files);
    o.task.id = 14;
    contribution_of(&home, &o, TRAIN, next);
    contribution_of(&plain, &o, TRAIN, expected);
    assert_memory_equal(next, expected, 32);
    assert_memory_not_equal(next, first, 32); /* it had something to go on with */
    o.train.fresh = true;
    o.task.id = 15;
    contribution_of(&plain, &o, TRAIN, again);
    assert_memory_equal(first, again, 32);
    host_free(&home);
    host_free(&away);
    host_free(&plain);
}

/* Who makes the job's outer steps has its own contributions when it makes the next one. */
static void contributions_to_own_steps_are_kept(void **state)
{
    struct host h;
    struct order o;
    host_new(&h, "keeps");
    order_init(&o, IMAGES);
    init_modules(&h, &o);
    for (int folds = 0; folds < 2; folds++) {
        h.engine->folds = folds ? o.task.job_id : o.task.job_id + 1;
        struct work *w = run(&h, &o, TRAIN);
        uint8_t sha256[32];
        memcpy(sha256, w->result.outputs[0].sha256, 32);
        const uint64_t size = w->result.outputs[0].size;
        work_free(w);
        assert_int_equal(cache_check(h.cache, sha256, size, NULL), folds ? 0 : -ERR_NOTFOUND);
    }
    host_free(&h);
}

/* What was made while the version was on its way, out of nothing that it lacks, trains to the same
 * bits. */
static void prepared_is_the_same(void **state)
{
    (void)state;
    struct host h, late;
    struct order o;
    struct work *w;
    char path[CACHE_PATH_MAX];
    host_new(&h, "in-time");
    host_new(&late, "late");
    order_init(&o, IMAGES);
    init_modules(&h, &o);
    o.module[0].version = 1; /* it is not drawn */
    struct work *a = run(&h, &o, TRAIN);
    w = host_look(&late, &o.task);
    atomic_store(&w->stop, WORK_REVOKED);
    engine_prepare(late.engine, w);
    assert_null(replica_peek(late.engine->replicas, w));
    atomic_store(&w->stop, WORK_GO);
    engine_prepare(late.engine, w);
    assert_non_null(replica_peek(late.engine->replicas, w));
    assert_true(late.engine->peak[DT_F32] > 1);
    late.engine->peak[DT_F32] = 1; /* measured beside other work: training shows more */
    cache_path(h.cache, o.hash[0], path);
    host_take(&late, path, &o.full[0], o.hash[0]);
    OK(engine_run(late.engine, w, err));
    assert_true(late.engine->peak[DT_F32] > 1);
    assert_true(a->result.loss_mean == w->result.loss_mean);
    assert_memory_equal(a->result.outputs[0].sha256, w->result.outputs[0].sha256, HASH_BYTES);
    work_free(a);
    work_free(w);
    host_free(&late);
    host_free(&h);
}

/* The samples of images[0] from the last to the first, as a shard of the host. */
static void put_reversed(struct host *h, struct order *o)
{
    struct shard from;
    struct shard_info info;
    struct shard_writer *to;
    char *file = in(top, "reversed.tar");
    OK(shard_open(images[0].path, &from, err));
    to = shard_writer_new(file);
    for (size_t i = from.n; i-- > 0;)
        OK(shard_writer_add(to, &from.samples[i], 0, err));
    OK(shard_writer_finish(to, &info, err));
    shard_writer_free(to);
    shard_close(&from);
    host_take(h, file, &o->shard[0], o->other_hash);
    mem_free(file);
}

/* What an evaluation draws for an image does not depend on the shard that it lies in: data
 * that are split are compared with data that are not. */
static void draws_follow_the_image(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    host_new(&h, "draws");
    order_init(&o, IMAGES);
    init_modules(&h, &o);
    struct work *a = run(&h, &o, EVAL);
    put_reversed(&h, &o);
    struct work *b = run(&h, &o, EVAL);
    assert_int_equal(a->result.units, b->result.units);
    assert_true(fabs(a->result.loss_sum - b->result.loss_sum) < 1e-6 * a->result.loss_sum);
    work_free(a);
    work_free(b);
    host_free(&h);
}

/* A tokenizer.json with a token for each byte, and an end that has a text. */
static const struct kernel_ops *whole_cpu;
static int64_t most_samples;

static int small_adaln(struct device *dev, const struct adaln_fwd *p, struct stream *s)
{
    return p->B > most_samples ? -ENOMEM : whole_cpu->adaln_fwd(dev, p, s);
}

/* A device that finds no memory for the first step until it is cut into small parts. */
static void a_step_without_memory(void **state)
{
    struct host h;
    struct order o;
    host_new(&h, "small");
    order_init(&o, IMAGES);
    init_modules(&h, &o);
    struct device *dev = h.engine->dev;
    whole_cpu = dev->ops;
    struct kernel_ops ops = *whole_cpu;
    ops.adaln_fwd = small_adaln;
    dev->ops = &ops;
    most_samples = 1;
    struct work *w = run(&h, &o, TRAIN);
    assert_int_equal(w->result.steps, STEPS);
    struct replica *r = replica_peek(h.engine->replicas, w);
    assert_non_null(r);
    assert_int_equal(island_trainer_options(r->ranks)->accumulate,
                     island_trainer_options(r->ranks)->batch);
    work_free(w);
    most_samples = 0;
    o.train.first_step = STEPS; /* the next phase: this one is made */
    assert_int_equal(run_fails(&h, &o, TRAIN, "adaln"), -ENOMEM);
    dev->ops = whole_cpu;
    host_free(&h);
}

static void put_tokenizer(struct host *h, struct order *o)
{
    struct buf b;
    char *file = in(top, "tokenizer.json");
    unsigned shifted = 256;
    buf_init(&b, 1 << 16);
    OK(buf_printf(&b, "{\"added_tokens\":[{\"id\":256,\"content\":\"<|endoftext|>\","
                      "\"special\":true,\"single_word\":false}],\"normalizer\":null,"
                      "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                      "\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{"));
    for (unsigned byte = 0; byte < 256; byte++) {
        bool plain = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
        OK(buf_printf(&b, "%s\"\\u%04x\":%u", byte ? "," : "", plain ? byte : shifted, byte));
        shifted += !plain;
    }
    OK(buf_append_str(&b, "}}}"));
    OK(file_write_atomic(file, b.data, b.len, 0600, err));
    host_take(h, file, &o->tokenizer, o->other_hash);
    o->task.tokenizer = &o->tokenizer;
    buf_release(&b);
    mem_free(file);
}

/* Tokens and bytes of the pieces, from the second token on. */
static void count_targets(unsigned skip, uint64_t *ret_tokens, uint64_t *ret_bytes)
{
    *ret_tokens = *ret_bytes = 0;
    for (unsigned i = 0; i < SAMPLES; i++) {
        const unsigned n = TEXT - i % 7, first = skip > 1 ? skip : 1;
        *ret_tokens += SHARDS * (n - first);
        *ret_bytes += SHARDS * (n - first - 1); /* the end stands for none */
    }
}

/* Than the report counts: samples that were used twice are counted once, and the coordinator
 * refuses a contribution of more. */
static void weighs_no_more(const struct work *w)
{
    assert_true(w->result.n_outputs > 0);
    for (size_t i = 0; i < w->result.n_outputs; i++)
        assert_true(w->result.outputs[i].samples <= w->result.samples);
}

static void texts_are_learned(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    uint64_t tokens, bytes;
    host_new(&h, "texts");
    order_init(&o, TEXTS);
    init_modules(&h, &o);
    struct work *w = run(&h, &o, EVAL);
    count_targets(0, &tokens, &bytes);
    assert_int_equal(w->result.units, tokens);
    assert_int_equal(w->result.bytes, bytes);
    assert_int_equal(w->result.samples, SHARDS * SAMPLES);
    assert_true(fabs(w->result.loss_sum / (double)tokens - log(257)) < 0.1);
    work_free(w);
    o.eval.skip = 8;
    w = run(&h, &o, EVAL);
    count_targets(8, &tokens, &bytes);
    assert_int_equal(w->result.units, tokens);
    assert_int_equal(w->result.bytes, bytes);
    work_free(w);
    o.eval.skip = 1000; /* nothing is judged: no fault of this worker */
    w = run(&h, &o, EVAL);
    assert_int_equal(w->result.samples, SHARDS * SAMPLES);
    assert_int_equal(w->result.units, 0);
    assert_true(isnan(w->result.loss_mean));
    work_free(w);
    o.eval.skip = 8;
    put_tokenizer(&h, &o);
    w = run(&h, &o, EVAL);
    assert_int_equal(w->result.bytes, bytes);
    work_free(w);

    o.train.steps = 40; /* more than the pieces are enough for: they are used again */
    w = run(&h, &o, TRAIN);
    assert_int_equal(w->result.steps, 40);
    assert_int_equal(w->result.samples, SHARDS * SAMPLES);
    assert_true(w->result.loss_last < w->result.loss_first - 1);
    weighs_no_more(w);
    work_free(w);

    /* Bounded by time: at most what there is, and the end of a window. */
    o.task.id = 13;
    o.train.steps = 0;
    o.train.seconds = 3600;
    w = run(&h, &o, TRAIN);
    assert_int_equal(w->result.samples, SHARDS * SAMPLES);
    weighs_no_more(w);
    work_free(w);
    host_free(&h);
}

/* However slow the worker, a phase of so many seconds is over at the next step. */
/* What was waited is told beside it. */
static void seconds_are_of_computing(void **state)
{
    (void)state;
    assert_true(phase_computed(10, 0) == 10.0F);
    assert_true(phase_computed(10, 9500) == 0.5F);
    assert_true(phase_computed(10, 10001) == 0.0F); /* clocks differ a little */
}

static void bounded_by_time(void **state)
{
    (void)state;
    assert_int_equal(phase_window(6400, 8), 32);
    assert_int_equal(phase_window(8 * 16 * 2, 8), 16);
    assert_int_equal(phase_window(30, 8), 8); /* a slow one's next phase */
    assert_int_equal(phase_window(3, 8), 8);
    assert_int_equal(phase_used(31, 640, 0), 31);
    assert_int_equal(phase_used(700, 640, 0), 640); /* some were read again */
    assert_int_equal(phase_used(31, 640, 16), 16);
    assert_int_equal(phase_used(32, 640, 16), 32);
    assert_int_equal(phase_used(640, 640, 16), 640);
    assert_int_equal(phase_used(639, 639, 16), 639);   /* the last window is shorter */
    assert_int_equal(phase_used(5, 640, 16), 5);       /* less than one */
    assert_false(phase_time_over(8, 640, 16, 25, 24)); /* nothing would count as used */
    assert_true(phase_time_over(16, 640, 16, 24, 24));
    assert_true(phase_time_over(24, 640, 16, 24.5, 24)); /* within a window */
    assert_false(phase_time_over(24, 640, 16, 23.9, 24));
    assert_true(phase_time_over(640, 640, 16, 1, 24));
    Skerry__V1__TrainTask t = SKERRY__V1__TRAIN_TASK__INIT;
    t.seconds = 20;
    assert_true(phase_done(&t, 3, 10) == 0); /* of a coordinator that does not say */
    t.done_from = 0.5;
    t.done_to = 1;
    assert_true(phase_done(&t, 3, 10) == 0.75 && phase_done(&t, 3, 21) == 1);
    t.seconds = 0;
    t.steps = 4; /* of an async job */
    assert_true(phase_done(&t, 0, 10) == 0.5 && phase_done(&t, 3, 10) == 0.875);
    t.done_from = (double)NAN;
    assert_true(phase_done(&t, 3, 10) == 0);
    const uint64_t s = CLOCK_NS_PER_S;
    struct engine_saved last = {980 * s, 8 * s}; /* what a checkpoint took in the phase before */
    assert_false(phase_save_due(1011 * s, 1000 * s, &last));
    assert_true(phase_save_due(1381 * s, 1000 * s, &last));
    last.cost_ns = 0;
    assert_false(phase_save_due(1009 * s, 1000 * s, &last));
    assert_true(phase_save_due(1011 * s, 1000 * s, &last));
}

static void too_many_skips(void **state)
{
    (void)state;
    struct replica_cursor at = {.steps = 4, .skipped = 4, .skipped_row = 4};
    assert_false(phase_diverged(&at, false));
    assert_true(phase_diverged(&at, true)); /* a phase of four steps has learned nothing */
    at = (struct replica_cursor){.steps = 1000, .skipped = 5, .skipped_row = 5};
    assert_true(phase_diverged(&at, false)); /* in a row */
    at = (struct replica_cursor){.steps = 6, .skipped = 5, .skipped_row = 4};
    assert_false(phase_diverged(&at, true));
    at = (struct replica_cursor){.steps = 59, .skipped = 6, .skipped_row = 1};
    assert_true(phase_diverged(&at, false)); /* more than a tenth */
    at.steps = 60;
    assert_false(phase_diverged(&at, true));
    at.skipped = 7;
    assert_true(phase_diverged(&at, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seconds_are_of_computing),
        cmocka_unit_test(levels_change_nothing),
        cmocka_unit_test(version_0_is_drawn),
        cmocka_unit_test(cuts_are_checked),
        cmocka_unit_test(router_is_a_path),
        cmocka_unit_test(batch_of_the_task),
        cmocka_unit_test(warm_start),
        cmocka_unit_test(moments_travel),
        cmocka_unit_test(a_phase_is_done_again),
        cmocka_unit_test(contributions_to_own_steps_are_kept),
        cmocka_unit_test(prepared_is_the_same),
        cmocka_unit_test(draws_follow_the_image),
        cmocka_unit_test(a_step_without_memory),
        cmocka_unit_test(texts_are_learned),
        cmocka_unit_test(bounded_by_time),
        cmocka_unit_test(too_many_skips),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
