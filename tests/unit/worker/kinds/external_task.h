/* Tasks of a job with a user's trainer, which is a puppet (puppet.h): what the tests of their kinds
 * share.  Its model has one tensor "w" of four values. */
#ifndef TESTS_UNIT_WORKER_EXTERNAL_TASK_H
#define TESTS_UNIT_WORKER_EXTERNAL_TASK_H

#include "common/st/st.h"
#include "common/trainer/channel.h"
#include "tests/unit/worker/external/puppet.h"
#include "tests/unit/worker/shards.h"
#include "worker/engine/engine.h"
#include "worker/engine/trainers.h"
#include "worker/kinds/kinds.h"
#include "worker/order/work.h"

typedef Skerry__Trainer__V1__FromTrainer from_trainer;
typedef Skerry__Trainer__V1__FromWorker from_worker;

#define TRAINER                                                                                    \
    "model: {type: external}\ntrainer: {command: ./train}\n"                                       \
    "train: {batch: 4}\nouter: {rounds: 3, steps: 6}\n"
#define PICTURES "name: x\ndata: {kind: images, path: d, image_size: 8}\n" TRAINER
#define NO_DATA "name: x\ndata: {kind: none}\n" TRAINER

static char *top;
static struct cache *cache;
static struct engine engine;
static const float version0[] = {1, 2, 3, 4};
static uint8_t version0_sha256[32];

/* ---- the trainer's words ---- */

static inline void say(int fd, int what, void *part, int passed)
{
    from_trainer m = SKERRY__TRAINER__V1__FROM_TRAINER__INIT;
    m.what_case = what;
    m.hello = part; /* the members of the union are all pointers */
    OK(channel_send(fd, &m.base, passed, 0, err));
}

static inline void say_hello(int fd, bool able)
{
    from_trainer *m = puppet_hello();
    m->hello->evaluates = m->hello->draws = m->hello->keeps_state = able;
    OK(channel_send(fd, &m->base, -1, 0, err));
}

/* The next message that the trainer was sent, but for samples: of this case (free it by
 * skerry__trainer__v1__from_worker__free_unpacked); ret_passed: the descriptor with it, or -1. */
static inline from_worker *heard_with(int what, int *ret_passed)
{
    for (;;) {
        struct channel_frame f = {.passed = -1};
        struct err e = {0};
        if (channel_receive(puppet_fd, 0, 1000, &f, &e) != 1)
            fail_msg("the trainer has not heard %d: %s", what, e.msg);
        from_worker *m = skerry__trainer__v1__from_worker__unpack(NULL, f.len, f.data);
        assert_non_null(m);
        mem_free(f.data);
        if ((int)m->what_case == what) {
            *ret_passed = f.passed;
            return m;
        }
        if (f.passed >= 0)
            (void)close(f.passed);
        skerry__trainer__v1__from_worker__free_unpacked(m, NULL);
    }
}

static inline from_worker *heard(int what)
{
    int passed = -1;
    from_worker *m = heard_with(what, &passed);
    if (passed >= 0)
        (void)close(passed);
    return m;
}

/* ---- tasks ---- */

struct order {
    Skerry__V1__Task task;
    Skerry__V1__Blob blob, shard;
    Skerry__V1__ModuleRef module, *modules[1];
    Skerry__V1__Range range, *ranges[1];
};

static inline void order_init(struct order *o, int kind, const char *spec)
{
    memset(o, 0, sizeof(*o));
    skerry__v1__task__init(&o->task);
    skerry__v1__blob__init(&o->blob);
    skerry__v1__blob__init(&o->shard);
    skerry__v1__module_ref__init(&o->module);
    skerry__v1__range__init(&o->range);
    o->blob.sha256 = (ProtobufCBinaryData){32, version0_sha256};
    o->blob.size = 1;
    o->blob.url = o->shard.url = (char *)(uintptr_t) "/v1/blobs/x";
    o->module.module_id = 7;
    o->module.full = &o->blob;
    o->module.sha256 = o->blob.sha256;
    o->modules[0] = &o->module;
    o->ranges[0] = &o->range;
    o->range.shard = &o->shard;
    o->task.id = 5;
    o->task.job_id = 1;
    o->task.kind = (Skerry__V1__TaskKind)kind;
    o->task.spec = (char *)(uintptr_t)spec;
    o->task.modules = o->modules;
    o->task.n_modules = 1;
}

static inline struct work *begin(const struct order *o, void (*speaks)(int fd))
{
    struct work *w = NULL;
    puppet_speaks = speaks;
    puppet_stays = true;
    OK(work_new(kinds_all, &o->task, cache, top, &w, err));
    assert_true(w->kind->external);
    return w;
}

static inline void end(struct work *w)
{
    trainers_drop(&engine);
    work_free(w);
}

/* ---- fixture ---- */

static inline int setup(void **state)
{
    const uint64_t n = COUNT(version0);
    char path[CACHE_PATH_MAX];
    OK(image_init(err));
    top = scratch_new();
    char *blobs = in(top, "blobs"), *file = in(top, "version0");
    OK(cache_open(blobs, 0, &cache, err));
    struct st_writer *w = st_writer_new();
    OK(st_writer_add(w, "w", ST_F32, 1, &n, err));
    OK(st_writer_open(w, file, err));
    OK(st_writer_write(w, version0, sizeof(version0), err));
    OK(st_writer_commit(w, version0_sha256, NULL, err));
    st_writer_free(w);
    cache_path(cache, version0_sha256, path);
    assert_int_equal(rename(file, path), 0);
    OK(cache_added(cache, version0_sha256, err));
    engine = (struct engine){.state_dir = top,
                             .opt = {.allow_trainers = true, .threads = 1, .cache = cache}};
    mem_free(blobs);
    mem_free(file);
    return 0;
}

/* A shard of pictures in the cache, and nowhere else. */
static inline struct test_shard cached_shard(int samples)
{
    char path[CACHE_PATH_MAX];
    struct test_shard s = shard_make(top, 0, samples, 5, -1);
    cache_path(cache, s.sha256, path);
    assert_int_equal(rename(s.path, path), 0);
    OK(cache_added(cache, s.sha256, err));
    mem_free(s.path);
    return s;
}

static inline int teardown(void **state)
{
    trainers_free(engine.trainers);
    cache_close(cache);
    scratch_free(top);
    return 0;
}

#endif
