/* Replicas behind frozen encoders on devices that say how little memory they have. */
#include "tests/unit/worker/train/real_encoders.h"

#include "common/base/log.h"
#include "common/job/job.h"
#include "worker/engine/encoders.h"
#include "worker/engine/replica.h"

#define MIB (UINT64_C(1) << 20)
#define JOB(train)                                                                                 \
    "name: x\nseed: 1\ndata: {path: x, image_size: 12}\nencoders: {path: x}\n"                     \
    "model: {patch: 2, dim: 192, depth: 2, heads: 2}\n"                                            \
    "train: {" train ", batch: 8, accumulate: 8, precision: f32, parallel: pipeline, stages: 2}\n" \
    "outer: {rounds: 2, steps: 2}\n"

enum { DEVICES = 2 };

static uint64_t says;              /* free where no replica is, on both devices together */
static uint64_t takes;             /* a replica, of that */
static const struct real_rank *of; /* a replica is kept that has its networks open */

static int small_memory(struct device *dev, uint64_t *ret_free, uint64_t *ret_total)
{
    bool kept = false;
    (void)dev;
    (void)ret_total;
    for (int k = 0; k < DEVICES; k++)
        kept |= of[k].opened > 0;
    *ret_free = !kept ? says : says > takes ? says - takes : 0;
    return 0;
}

/* Of a replica that was asked for, and another one while it was kept. */
struct tried {
    int rc, other;
    struct err err;
    unsigned opened[DEVICES]; /* networks, on each device */
};

static void fill_task(struct work *w, Skerry__V1__Task *task, Skerry__V1__TrainTask *train,
                      Skerry__V1__NetworkInput *input, const char *job)
{
    input->channels = 4;
    input->side = 6;
    input->caption = 10;
    input->caption_tokens = 5;
    train->steps = train->total_steps = 2;
    task->kind = SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN;
    task->job_id = 3;
    task->spec = (char *)(uintptr_t)job;
    task->train = train;
    task->input = input;
    w->task = task;
    OK(job_parse(job, strlen(job), "job.yaml", &w->spec, err));
}

/* bytes: said to be those of the encoders on a device. */
static struct encoders *encoders_of(const struct real_encoders *real, uint64_t bytes)
{
    struct encoders *enc = mem_alloc(sizeof *enc);
    enc->users = 1;
    enc->ranks_n = DEVICES;
    for (int k = 0; k < DEVICES; k++) {
        enc->tables[k] = real->tables[k];
        enc->tables[k].bytes = bytes;
    }
    return enc;
}

static struct tried try_replica(const char *job, uint64_t memory, uint64_t bytes)
{
    struct tried t = {0};
    struct work w = {0};
    Skerry__V1__Task task = SKERRY__V1__TASK__INIT;
    Skerry__V1__TrainTask train = SKERRY__V1__TRAIN_TASK__INIT;
    Skerry__V1__NetworkInput input = SKERRY__V1__NETWORK_INPUT__INIT;
    struct real_encoders *real = mem_alloc(sizeof *real);
    struct replica *replica = NULL;
    struct replica_cursor at;
    struct island *is;
    struct kernel_ops ops;
    const struct kernel_ops *cpu;
    bool resumed;
    char *dir = scratch_new();
    says = memory;
    takes = 0;
    of = real->ranks;
    fill_task(&w, &task, &train, &input, job);
    OK(island_open("cpu,cpu", DEVICES, &is, err));
    ops = *(cpu = island_device(is, 0)->ops);
    ops.memory = small_memory;
    island_device(is, 0)->ops = &ops;
    real_encoders_open(real, is);
    struct encoders *enc = encoders_of(real, bytes);
    struct replicas *rs = replicas_new(is, dir, UINT64_C(1) << 40, NULL, NULL);
    t.rc = replica_get(rs, &w, enc, &replica, &resumed, &at, &t.err);
    for (int k = 0; k < DEVICES; k++)
        t.opened[k] = real->ranks[k].opened;
    if (t.rc == 0) {
        takes = replica->bytes;
        train.replica = 1;
        t.other = replica_get(rs, &w, enc, &replica, &resumed, &at, &t.err);
    }
    replicas_free(rs);
    for (int k = 0; k < DEVICES; k++)
        assert_int_equal(real->ranks[k].opened, 0);
    real_encoders_close(real);
    encoders_drop(enc);
    island_device(is, 0)->ops = cpu;
    island_close(is);
    job_release(&w.spec);
    mem_free(real);
    scratch_free(dir);
    return t;
}

/* With plenty of memory both devices have the encoders, with little one of them, which encodes for
 * both, also where the first stage has no room for them; with less the job is refused.  Who
 * is kept goes where another one needs its memory. */
static void test_little(void **state)
{
    const uint64_t bytes = 96 * MIB;
    uint64_t memory = 600 * MIB;
    bool one = false, second = false;
    (void)state;
    struct tried t = try_replica(JOB("pipeline: 1f1b"), memory, bytes);
    assert_int_equal(t.rc, 0);
    assert_true(t.opened[0] == 1 && t.opened[1] == 1);
    for (memory = 320 * MIB; t.rc == 0; memory -= 8 * MIB) {
        t = try_replica(JOB("pipeline: 1f1b"), memory, bytes);
        one |= t.opened[0] + t.opened[1] == 1;
        second |= t.opened[0] == 0 && t.opened[1] == 1;
        assert_int_equal(t.other, 0);
    }
    assert_true(one && second);
    assert_int_equal(t.rc, -ENOMEM);
    assert_non_null(strstr(t.err.msg, "in 2 stages the model needs "));
}

/* ---- weights in the host's memory ---- */

static int card_memory(struct device *dev, uint64_t *ret_free, uint64_t *ret_total)
{
    (void)dev;
    (void)ret_total;
    *ret_free = says;
    return 0;
}

static uint64_t trainer_has; /* of the device's memory: what another job's trainer gives back */

static bool end_trainer(void *arg)
{
    const bool has = trainer_has > 0;
    (void)arg;
    says += trainer_has;
    trainer_has = 0;
    return has;
}

/* Of a replica that was asked for on one device. */
struct choice {
    int rc;
    bool streamed, pieces;
    uint64_t bytes; /* of encoders, that plans count */
    struct err err;
};

/* apart: the device's memory is not the host's; host: bytes that the weights take there. */
static struct choice choose(uint64_t memory, bool apart, uint64_t host)
{
    struct choice got = {0};
    struct work w = {0};
    Skerry__V1__Task task = SKERRY__V1__TASK__INIT;
    Skerry__V1__TrainTask train = SKERRY__V1__TRAIN_TASK__INIT;
    Skerry__V1__NetworkInput input = SKERRY__V1__NETWORK_INPUT__INIT;
    struct real_encoders *real = mem_alloc(sizeof *real);
    struct replica *replica = NULL;
    struct replica_cursor at;
    struct island *is;
    bool resumed;
    char *dir = scratch_new();
    says = memory;
    fill_task(&w, &task, &train, &input, JOB("pipeline: auto"));
    OK(island_open("cpu", 1, &is, err));
    struct device *dev = island_device(is, 0);
    const struct kernel_ops *cpu = dev->ops;
    struct kernel_ops ops = *cpu;
    ops.memory = card_memory;
    dev->ops = &ops;
    dev->unified = !apart;
    real_encoders_open(real, is);
    struct encoders *enc = encoders_of(real, 96 * MIB);
    enc->ranks_n = 1;
    enc->ranks[0] = (struct encoder_rank){.set = enc, .dev = dev};
    enc->sizes[false][NET_CAPTIONS] = (struct encoder_sizes){.device = 96 * MIB};
    enc->sizes[true][NET_CAPTIONS] =
        (struct encoder_sizes){.device = 8 * MIB, .host = host, .streamed = host, .pass = 4};
    struct replicas *rs = replicas_new(is, dir, UINT64_C(1) << 40, end_trainer, NULL);
    got.rc = replica_get(rs, &w, enc, &replica, &resumed, &at, &got.err);
    got.streamed = enc->streamed;
    got.pieces = enc->tables[0].open != NULL;
    got.bytes = enc->tables[0].bytes;
    replicas_free(rs);
    real_encoders_close(real);
    encoders_drop(enc);
    dev->unified = true;
    dev->ops = cpu;
    island_close(is);
    job_release(&w.spec);
    mem_free(real);
    scratch_free(dir);
    return got;
}

/* With plenty of memory the weights are on the device, with less in the host's memory, if that is
 * another one and has room; with still less the job is refused, and the sentence says so. */
static void test_streamed(void **state)
{
    bool streamed = false;
    uint64_t memory = 1024 * MIB;
    (void)state;
    struct choice c = choose(memory, true, 90 * MIB);
    assert_true(c.rc == 0 && !c.streamed && c.pieces && c.bytes == 96 * MIB);
    for (; c.rc == 0; memory -= 32 * MIB) {
        c = choose(memory, true, 90 * MIB);
        assert_false(c.rc == 0 && streamed && !c.streamed); /* not again with less memory */
        if (c.rc < 0 || !c.streamed)
            continue;
        streamed = true;
        assert_true(!c.pieces && c.bytes == 8 * MIB);
    }
    assert_true(streamed);
    assert_int_equal(c.rc, -ENOMEM);
    assert_false(c.streamed);
    assert_non_null(
        strstr(c.err.msg, "with the frozen encoders' weights in the host's memory: training "));
    memory += 64 * MIB; /* the least with which they were streamed */
    assert_true(choose(memory, true, 90 * MIB).streamed);
    trainer_has = 96 * MIB; /* it goes first */
    c = choose(memory, true, 90 * MIB);
    assert_true(c.rc == 0 && !c.streamed && c.pieces && trainer_has == 0);
    c = choose(memory, true, UINT64_C(1) << 50);
    assert_int_equal(c.rc, -ENOMEM);
    assert_null(strstr(c.err.msg, "host's memory"));
    for (memory = 512 * MIB, c.rc = 0; c.rc == 0; memory -= 32 * MIB) {
        c = choose(memory, false, 90 * MIB);
        assert_false(c.streamed);
    }
    assert_int_equal(c.rc, -ENOMEM);
    assert_null(strstr(c.err.msg, "host's memory"));
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_little),
                                       cmocka_unit_test(test_streamed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
