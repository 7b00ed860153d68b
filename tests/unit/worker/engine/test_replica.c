/* Replicas on devices with little memory. */
#include "tests/unit/common/base/util.h"
#include "tests/unit/worker/small_memory.h"

#include <malloc.h>

#include "common/job/job.h"
#include "common/base/log.h"
#include "kernels/kernels.h"
#include "worker/net/experts.h"
#include "worker/train/island.h"
#include "worker/engine/encoders.h"
#include "worker/engine/replica.h"

#define JOB_OF(model, train)                                                                       \
    "name: x\nseed: 1\ndata: {path: x, image_size: 32}\n"                                          \
    "model: {patch: 4, " model "}\n"                                                               \
    "train: {" train ", precision: f32}\nouter: {rounds: 2, steps: 2}\n"
#define JOB(train) JOB_OF("dim: 64, depth: 3, heads: 4", train)

#define MIB (UINT64_C(1) << 20)
#define PLENTY (UINT64_C(1) << 40)

/* ---- tasks ---- */

struct rig {
    char *dir;
    struct island *is;
    struct replicas *rs;
    struct kernel_ops ops;
    Skerry__V1__Task task;
    Skerry__V1__TrainTask train;
    char *classes[3];
    struct work work;
};

static void begin_on(struct rig *r, const char *devices, const char *job, uint64_t memory)
{
    *r = (struct rig){.dir = scratch_new()};
    OK(island_open(devices, 0, &r->is, err));
    small_begin(island_device(r->is, 0), &r->ops, memory);
    r->rs = replicas_new(r->is, r->dir, PLENTY, NULL, NULL);
    skerry__v1__task__init(&r->task);
    skerry__v1__train_task__init(&r->train);
    for (size_t i = 0; i < COUNT(r->classes); i++)
        r->classes[i] = (char *)"c";
    r->task.kind = SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN;
    r->task.job_id = 3;
    r->task.spec = (char *)(uintptr_t)job;
    r->task.classes = r->classes;
    r->task.n_classes = COUNT(r->classes);
    r->task.train = &r->train;
    r->train.steps = r->train.total_steps = 2;
    r->work.task = &r->task;
    OK(job_parse(job, strlen(job), "job.yaml", &r->work.spec, err));
}

static void begin(struct rig *r, const char *job, uint64_t memory)
{
    begin_on(r, "cpu", job, memory);
}

static void end(struct rig *r)
{
    replicas_free(r->rs);
    assert_int_equal(given, 0);
    island_device(r->is, 0)->ops = cpu;
    island_close(r->is);
    job_release(&r->work.spec);
    scratch_free(r->dir);
}

static int get(struct rig *r, uint32_t path, struct replica **ret, struct err *err)
{
    bool resumed;
    struct replica_cursor at;
    r->train.path = path;
    int rc = replica_plan(r->rs, &r->work, err);
    return rc < 0 ? rc : replica_get(r->rs, &r->work, NULL, ret, &resumed, &at, err);
}

static int parts(struct rig *r, uint32_t path)
{
    struct replica *replica = NULL;
    OK(get(r, path, &replica, err));
    return island_trainer_options(replica->ranks)->accumulate;
}

/* Bytes on the device of a replica in so many parts. */
static uint64_t bytes_in(const char *job)
{
    struct rig r;
    struct replica *replica = NULL;
    begin(&r, job, PLENTY);
    OK(get(&r, 0, &replica, err));
    const uint64_t bytes = given;
    end(&r);
    return bytes;
}

/* What the planner adds for the host: panels and the flat copy, and its reserve. */
static uint64_t room_for(uint64_t bytes)
{
    return (bytes + 33 * MIB) * 16 / 15 + MIB;
}

/* ---- tests ---- */

static const char whole[] = JOB("batch: 16");

static void plenty_is_one_part(void **state)
{
    struct rig r;
    begin(&r, whole, PLENTY);
    assert_int_equal(parts(&r, 0), 1);
    assert_int_equal(refusals, 0);
    end(&r);
}

/* What is planned is what is allocated, but for the workspace that only the device knows. */
static void plan_is_allocated(void **state)
{
    static const char *const jobs[] = {whole, JOB("batch: 16, accumulate: 4"),
                                       JOB("batch: 16, recompute: true")};
    for (size_t i = 0; i < COUNT(jobs); i++) {
        struct rig r;
        struct replica *replica = NULL;
        begin(&r, jobs[i], PLENTY);
        OK(get(&r, 0, &replica, err));
        struct train_options share;
        island_share_options(island_trainer_options(replica->ranks), island_size(r.is), &share);
        const uint64_t planned = trainer_bytes(replica->model, &share, DT_F32);
        if (given > planned || given < planned - planned / 100)
            fail_msg("%llu bytes planned, %llu allocated", (unsigned long long)planned,
                     (unsigned long long)given);
        end(&r);
    }
}

/* The device says how little there is: the plan finds the parts, nothing is refused. */
static void parts_are_planned(void **state)
{
    struct rig r;
    const uint64_t quarter = bytes_in(JOB("batch: 32, accumulate: 4"));
    assert_true(quarter + 4 * MIB < bytes_in(JOB("batch: 32, accumulate: 2")));
    begin(&r, JOB("batch: 32"), room_for(quarter));
    const int n = parts(&r, 0);
    assert_true(n > 2 && n <= 4);
    assert_int_equal(refusals, 0);
    end(&r);
}

/* It says too much: allocation finds them. */
static void parts_are_found(void **state)
{
    struct rig r;
    const uint64_t quarter = bytes_in(JOB("batch: 16, accumulate: 4"));
    begin(&r, whole, PLENTY);
    gives = quarter + MIB;
    assert_int_equal(parts(&r, 0), 4);
    assert_true(refusals > 0);
    end(&r);
}

/* What was asked for is refused, before anything is allocated, with what would fit. */
static void asked_is_refused(void **state)
{
    struct rig r;
    struct replica *replica = NULL;
    const uint64_t quarter = bytes_in(JOB("batch: 16, accumulate: 4"));
    begin(&r, JOB("batch: 16, accumulate: 1"), room_for(quarter));
    FAILS(get(&r, 0, &replica, err), "train.accumulate: auto (");
    assert_int_equal(get(&r, 0, &replica, &(struct err){0}), -ENOMEM);
    assert_int_equal(given, 0);
    says = PLENTY; /* and where it is only found out then */
    gives = quarter + MIB;
    FAILS(get(&r, 0, &replica, err), "no device memory for");
    end(&r);
}

/* A replica that is kept goes before another is cut into parts; one that is in memory stays. */
static void kept_replicas_go(void **state)
{
    struct rig r;
    const uint64_t one = bytes_in(whole);
    begin(&r, whole, room_for(one) + one / 2);
    assert_int_equal(parts(&r, 0), 1);
    assert_int_equal(parts(&r, 1), 1);
    assert_int_equal(given, one);
    r.train.path = 0;
    assert_null(replica_peek(r.rs, &r.work));
    r.train.path = 1;
    assert_non_null(replica_peek(r.rs, &r.work));
    says = 0; /* others took it all: what is here goes on */
    assert_int_equal(parts(&r, 1), 1);
    says = one + 64 * MIB;
    replicas_yield(r.rs, 32 * MIB); /* an evaluation has room beside it */
    assert_non_null(replica_peek(r.rs, &r.work));
    replicas_yield(r.rs, 64 * MIB);
    assert_null(replica_peek(r.rs, &r.work));
    replicas_yield(r.rs, PLENTY);
    end(&r);
}

/* The host's copy of the weights is one for all, whichever of them trains. */
static void one_host_copy(void **state)
{
    struct rig r;
    struct replica *a, *b;
    begin(&r, whole, PLENTY);
    OK(get(&r, 0, &a, err));
    const uint64_t n = a->model->flat;
    float *flat = a->flat;
    for (uint64_t i = 0; i < n; i++)
        flat[i] = 1;
    OK(get(&r, 1, &b, err));
    assert_true(a != b && b->flat == flat);
    for (uint64_t i = 0; i < n; i++)
        assert_true(flat[i] == 0);
    OK(get(&r, 0, &a, err));
    assert_ptr_equal(a->flat, flat);
    says = 0;
    replicas_yield(r.rs, UINT64_MAX); /* all go, and it with them */
    says = PLENTY;
    OK(get(&r, 1, &b, err));
    assert_non_null(b->flat);
    end(&r);
}

/* It has the size of the phase that uses it: what a larger model had is room for others. */
static void host_copy_of_its_size(void **state)
{
    struct rig r;
    struct replica *large, *small;
    begin(&r, whole, PLENTY);
    OK(get(&r, 0, &large, err));
    const uint64_t n = large->model->flat;
    job_release(&r.work.spec);
    r.task.spec = (char *)(uintptr_t)JOB_OF("dim: 32, depth: 1, heads: 2", "batch: 16");
    OK(job_parse(r.task.spec, strlen(r.task.spec), "job.yaml", &r.work.spec, err));
    OK(get(&r, 0, &small, err));
    assert_true(large != small && small->model->flat < n / 2);
    assert_true(malloc_usable_size(small->flat) < n * sizeof(float));
    end(&r);
}

/* After a step without memory: made again in twice as many parts, and so are its like. */
static void smaller_steps(void **state)
{
    struct rig r;
    begin(&r, whole, PLENTY);
    assert_false(replica_smaller(r.rs, &r.work)); /* there is none yet */
    assert_int_equal(parts(&r, 0), 1);
    for (int n = 2; n <= 16; n *= 2) {
        assert_true(replica_smaller(r.rs, &r.work));
        assert_null(replica_peek(r.rs, &r.work));
        assert_int_equal(parts(&r, 0), n);
    }
    assert_false(replica_smaller(r.rs, &r.work));
    assert_int_equal(parts(&r, 1), 16);
    r.task.job_id = 4;
    assert_int_equal(parts(&r, 0), 1);
    end(&r);
}

/* Nor does a plan whose stages have several devices go back to fewer. */
static void smaller_steps_of_wide_stages(void **state)
{
    struct rig r;
    begin_on(&r, "cpu,cpu,cpu", JOB("batch: 6, stages: 2"), PLENTY);
    assert_int_equal(parts(&r, 0), 3);
    assert_true(replica_smaller(r.rs, &r.work));
    assert_int_equal(parts(&r, 0), 6);
    end(&r);
}

/* Three devices, none of which holds the whole of two blocks: two stages do, which do not divide
 * them. */
static void stages_that_do_not_divide(void **state)
{
    static const char head[] = "name: x\nseed: 1\ndata: {path: x, image_size: 32}\n"
                               "model: {patch: 4, dim: 256, depth: 2, heads: 4}\n"
                               "outer: {rounds: 2, steps: 2}\ntrain: {batch: 6";
    char asked[sizeof head + 32], data[sizeof head + 32], any[sizeof head + 32];
    struct rig r;
    uint64_t memory = 64 * MIB;
    (void)snprintf(asked, sizeof asked, "%s, stages: 2}\n", head);
    (void)snprintf(data, sizeof data, "%s, parallel: data}\n", head);
    (void)snprintf(any, sizeof any, "%s}\n", head);
    begin_on(&r, "cpu,cpu,cpu", asked, memory);
    while (replica_plan(r.rs, &r.work, &(struct err){0}) == -ENOMEM)
        says = memory += MIB;
    end(&r);
    begin_on(&r, "cpu,cpu,cpu", data, memory);
    assert_int_equal(replica_plan(r.rs, &r.work, &(struct err){0}), -ENOMEM);
    end(&r);
    begin_on(&r, "cpu,cpu,cpu", any, memory);
    OK(replica_plan(r.rs, &r.work, err));
    end(&r);
}

#define DEEP(train)                                                                                \
    "name: x\nseed: 1\ndata: {path: x, image_size: 32}\n"                                          \
    "model: {patch: 4, dim: 256, depth: 6, heads: 4}\n"                                            \
    "outer: {rounds: 2, steps: 2}\ntrain: {batch: 8" train "}\n"

static void does_not_fit(const char *job, uint64_t memory, const char *numbers, const char *would)
{
    struct rig r;
    struct err err = {0};
    begin_on(&r, "cpu,cpu,cpu,cpu", job, memory);
    assert_int_equal(replica_plan(r.rs, &r.work, &err), -ENOMEM);
    if (!strstr(err.msg, numbers) || !strstr(err.msg, would))
        fail_msg("'%s' does not say '%s' and '%s'", err.msg, numbers, would);
    end(&r);
}

/* What each stage needs, what there is, and what would do: another number of stages, any at all,
 * smaller micro-batches, all of it; and where nothing would. */
static void stages_that_do_not_fit(void **state)
{
    struct rig r;
    uint64_t memory = 200 * MIB; /* of all four */
    begin_on(&r, "cpu,cpu,cpu,cpu", DEEP(", stages: 4, accumulate: 8"), memory);
    while (replica_plan(r.rs, &r.work, &(struct err){0}) == -ENOMEM)
        says = memory += 8 * MIB;
    end(&r);
    does_not_fit(DEEP(", stages: 2, accumulate: 8"), memory, "in 2 stages the model needs ",
                 " where it is most), but cpu has ");
    does_not_fit(DEEP(", stages: 2, accumulate: 8"), memory, " and ", "; train.stages: 4 needs ");
    does_not_fit(DEEP(", parallel: data, accumulate: 8"), memory,
                 " are free; train.parallel: auto (4 stages) needs ", " on each device");
    does_not_fit(DEEP(", stages: 4, accumulate: 1"), memory, "in 4 stages the model needs ",
                 "; train.accumulate: auto needs ");
    does_not_fit(DEEP(", stages: 2, accumulate: 1"), memory, "in 2 stages the model needs ",
                 "; train.stages: 4, train.accumulate: auto, train.recompute: true needs ");
    does_not_fit(DEEP(", stages: 2"), memory / 4, "in 2 stages the model needs ",
                 "; no key of train helps: take a smaller model or larger devices");
    does_not_fit(DEEP(", stages: 5, accumulate: 8"), memory,
                 "train.stages is 5, but this worker has 4 devices; ", "; train.stages: 4 needs ");
    does_not_fit(DEEP(", stages: 5, accumulate: 8"), PLENTY,
                 "train.stages is 5, but this worker has 4 devices; ",
                 "; leaving out train.stages needs ");
}

/* An upscaler of few blocks: with more stages than it has each chain has devices of its own, and a
 * model fits that does not in as many stages as the upscaler has blocks. */
static void two_chains_that_do_not_fit(void **state)
{
#define WIDE(train)                                                                                \
    "name: x\nseed: 1\ndata: {path: x, image_size: 32}\n"                                          \
    "model: {patch: 4, dim: 256, depth: 6, heads: 4}\n"                                            \
    "upscaler: {low_side: 16, patch: 8, depth: 2}\n"                                               \
    "outer: {rounds: 2, steps: 2}\ntrain: {batch: 8, accumulate: 8" train "}\n"
    struct rig r;
    uint64_t memory = 200 * MIB;
    begin_on(&r, "cpu,cpu,cpu,cpu", WIDE(", stages: 4"), memory);
    while (replica_plan(r.rs, &r.work, &(struct err){0}) == -ENOMEM)
        says = memory += 8 * MIB;
    end(&r);
    does_not_fit(WIDE(", stages: 2"), memory, "in 2 stages the model needs ",
                 "; train.stages: 4 needs ");
    does_not_fit(WIDE(", pipeline: 1f1b"), memory, "", "");
    begin_on(&r, "cpu,cpu,cpu,cpu", WIDE(""), memory);
    OK(replica_plan(r.rs, &r.work, err));
    end(&r);
}

#define CASCADE(train) CASCADE_OF("2", train)
#define CASCADE_OF(depth, train)                                                                   \
    "name: x\nseed: 1\ndata: {path: x, image_size: 32}\n"                                          \
    "model: {patch: 4, dim: 32, depth: 3, heads: 2}\n"                                             \
    "upscaler: {low_side: 8, patch: 8, dim: 32, depth: " depth "}\n"                               \
    "train: {batch: 12, accumulate: 4, parallel: pipeline" train "}\n"                             \
    "outer: {rounds: 2, steps: 2}\n"

/* How the job's step runs on such devices, in words. */
static void run_on(const char *devices, bool cards, const char *job, char ret_way[128])
{
    struct rig r;
    struct replica *replica = NULL;
    begin_on(&r, devices, job, PLENTY);
    for (int i = 0; i < island_size(r.is); i++)
        island_device(r.is, i)->unified = !cards;
    OK(get(&r, 0, &replica, err));
    memcpy(ret_way, replica->way, sizeof(replica->way));
    end(&r);
}

static void shared(const char *devices, bool cards, const char *job, const char *way)
{
    char is[128];
    run_on(devices, cards, job, is);
    if (!strstr(is, way))
        fail_msg("'%s' does not say '%s'", is, way);
}

/* Cards, of which these have the memory, run them as they are asked to. */
static void two_chains_on_cards(void **state)
{
    static const char both[] = CASCADE(", pipeline: bidirectional");
    shared("cpu,cpu", false, both, " in 2 stages (bidirectional)");
    shared("cpu,cpu", true, both, " in 2 stages (bidirectional)");
}

/* With three devices and an upscaler of two blocks, or two devices and one of one block, not every
 * device has a stage of both chains: each chain has devices of its own, if that is allowed. */
static void two_chains_that_do_not_divide(void **state)
{
    shared("cpu,cpu,cpu", false, CASCADE(""), " in 3 stages (");
    shared("cpu,cpu,cpu", false, CASCADE(", pipeline: 1f1b"), " on 3 devices");
    shared("cpu,cpu", false, CASCADE_OF("1", ""), " in 2 stages (divided, 1 + 1)");
    shared("cpu,cpu", false, CASCADE_OF("1", ", pipeline: bidirectional"), " on 2 devices");
}

/* Asked for, with more stages than either chain has blocks; where they are divided is measured. */
static void two_chains_divided(void **state)
{
    char way[128];
    int base = 0, upscaler = 0;
    run_on("cpu,cpu,cpu,cpu", false, CASCADE(", pipeline: divided, stages: 4"), way);
    if (sscanf(way, " in 4 stages (divided, %d + %d)", &base, &upscaler) != 2 || base < 1 ||
        upscaler < 1 || base + upscaler != 4)
        fail_msg("'%s' does not divide 4 devices", way);
    shared("cpu,cpu", true, CASCADE(", pipeline: divided"), " in 2 stages (divided, 1 + 1)");
}

static int no_weights(void *arg, int expert, float *flat, struct err *e)
{
    (void)arg;
    return err_set(e, -ENOENT, "expert %d", expert);
}

/* Loads as many of 50 teachers as the replica leaves room for: how many. */
static int load_teachers(struct rig *r, const struct replica *replica, uint64_t *ret_least)
{
    struct device *dev = island_device(r->is, 0);
    const int batch = (int)trainer_net(replica->trainer)->opt.batch;
    const struct experts_options opt = {.count = 50,
                                        .batch = batch,
                                        .precision = NET_F32,
                                        .memory_bytes = replica->room_for_teachers,
                                        .load = no_weights};
    struct experts *x = NULL;
    const uint64_t before = given;
    OK(experts_new(dev, replica->model, &opt, &x, err));
    const int room = experts_room(x);
    *ret_least =
        given - before - (uint64_t)(room - 1) * weights_bytes(replica->model, DT_F32, false);
    experts_free(x);
    return room;
}

/* A student's plan has room for one teacher; more of them are loaded where there is more. */
static void teachers_are_planned(void **state)
{
    static const char job[] = JOB("batch: 16, accumulate: 1");
    struct rig r;
    struct replica *replica = NULL;
    uint64_t least;
    begin(&r, job, PLENTY);
    r.train.n_teachers = 50;
    OK(get(&r, 0, &replica, err));
    const uint64_t student = given, planned = experts_bytes(replica->model, 16, DT_F32);
    const uint64_t one = weights_bytes(replica->model, DT_F32, false);
    assert_int_equal(load_teachers(&r, replica, &least), 50);
    if (least > planned || least < planned - planned / 100)
        fail_msg("%llu bytes planned, %llu allocated", (unsigned long long)planned,
                 (unsigned long long)least);
    end(&r);

    begin(&r, job, room_for(student + planned + 3 * one));
    r.train.n_teachers = 50;
    OK(get(&r, 0, &replica, err));
    const int n = load_teachers(&r, replica, &least);
    assert_in_range(n, 3, 10);
    assert_int_equal(refusals, 0);
    end(&r);

    begin(&r, job, room_for(student));
    r.train.n_teachers = 50;
    FAILS(get(&r, 0, &replica, err), " of a teacher), ");
    assert_int_equal(given, 0);
    r.train.n_teachers = 0;
    OK(get(&r, 0, &replica, err));
    end(&r);
}

/* One whose encoders were let go is made anew: what it was does not go on in it. */
static void other_encoders(void **state)
{
    struct rig r;
    struct replica *replica = NULL;
    bool resumed;
    struct replica_cursor at;
    struct encoders *first = mem_alloc(sizeof *first), *second = mem_alloc(sizeof *second);
    first->users = second->users = 1;
    begin(&r, JOB("batch: 16"), PLENTY);
    OK(replica_get(r.rs, &r.work, first, &replica, &resumed, &at, err));
    replica->whole = true;
    OK(replica_get(r.rs, &r.work, first, &replica, &resumed, &at, err));
    assert_true(replica->own);
    replica->whole = true;
    OK(replica_get(r.rs, &r.work, second, &replica, &resumed, &at, err));
    assert_false(replica->own);
    assert_int_equal(first->users, 1);
    end(&r);
    encoders_drop(first);
    encoders_drop(second);
}

/* After the coordinator's state was restored, another job may have the number of one that was
 * trained here. */
static void another_job_of_the_number(void **state)
{
    struct rig r;
    struct replica *replica = NULL;
    static const char other[] = JOB("batch: 8, lr: 2e-3");
    begin(&r, JOB("batch: 16, lr: 1e-3"), PLENTY);
    OK(get(&r, 0, &replica, err));
    assert_int_equal(island_trainer_options(replica->ranks)->batch, 16);
    replica->whole = true;
    job_release(&r.work.spec);
    r.task.spec = (char *)(uintptr_t)other;
    OK(job_parse(other, strlen(other), "job.yaml", &r.work.spec, err));
    assert_false(replica_stands(r.rs, &r.work));
    OK(get(&r, 0, &replica, err));
    assert_int_equal(island_trainer_options(replica->ranks)->batch, 8);
    assert_true(island_trainer_options(replica->ranks)->lr == 2e-3);
    end(&r);
}

/* Ends a phase of the path at step n + 2 in the given round, and lets go of the replica. */
static void phase_ends(struct rig *r, uint32_t path, uint32_t round)
{
    struct replica *replica = NULL;
    r->train.round = round;
    r->train.first_step = 2 * round;
    OK(get(r, path, &replica, err));
    trainer_position(replica->trainer, 2 * round + 2, 100);
    replica->met[0] = round;
    OK(replica_save_end(r->rs, replica, &r->work, err));
    replicas_yield(r->rs, PLENTY);
}

/* Does the path's phase of this round go on from a phase's end?  Then from that of the round before
 * it. */
static bool goes_on(struct rig *r, uint32_t path, uint32_t round)
{
    struct replica *replica = NULL;
    r->train.round = round;
    r->train.first_step = 2 * round;
    OK(get(r, path, &replica, err));
    const bool own = replica->own;
    assert_int_equal(trainer_next_step(replica->trainer), 2 * round);
    if (own)
        assert_int_equal(replica->met[0], round - 1);
    replicas_yield(r->rs, PLENTY);
    return own;
}

/* A phase that is done again, since its result was not taken, begins where the one before it ended:
 * that file is kept beside its own. */
static void ends_and_their_spares(void **state)
{
    static const char job[] = JOB("batch: 4"), other[] = JOB("batch: 4") "# another\n";
    struct rig r;
    begin(&r, job, PLENTY);
    phase_ends(&r, 0, 0);
    phase_ends(&r, 0, 1);
    r.work.anew = true;
    assert_true(goes_on(&r, 0, 1));
    phase_ends(&r, 0, 1); /* and once more */
    assert_true(goes_on(&r, 0, 1));
    assert_true(goes_on(&r, 0, 2));
    assert_false(goes_on(&r, 0, 3));        /* the phase between was elsewhere */
    r.task.spec = (char *)(uintptr_t)other; /* as after a restore: another job of the number */
    assert_false(goes_on(&r, 0, 2));
    end(&r);
}

/* Where the schedule has gone on without the worker's last phase of the replica, its moments go on
 * from there, in memory or from a file. */
static void moments_of_a_late_phase(void **state)
{
    static const char job[] = JOB("batch: 4");
    struct rig r;
    struct replica *replica = NULL;
    begin(&r, job, PLENTY);
    phase_ends(&r, 0, 0);
    r.train.round = 3;
    r.train.first_step = 6;
    OK(get(&r, 0, &replica, err));
    assert_false(replica->own);
    r.train.moments_step = 2;
    OK(get(&r, 0, &replica, err));
    assert_true(replica->own && trainer_next_step(replica->trainer) == 6);
    trainer_position(replica->trainer, 2, 100);
    replica->whole = true;
    assert_true(replica_stands(r.rs, &r.work));
    r.train.moments_step = 4;
    assert_false(replica_stands(r.rs, &r.work));
    r.train.moments_step = 2;
    r.train.fresh = true;
    assert_false(replica_stands(r.rs, &r.work));
    end(&r);
}

static unsigned files_of(const struct rig *r, const char *prefix)
{
    struct file_names names;
    unsigned n = 0;
    OK(file_list(r->dir, 100, &names, err));
    for (size_t i = 0; i < names.n; i++)
        n += str_starts(names.items[i], prefix);
    file_names_release(&names);
    return n;
}

/* Where there are more paths than workers, each worker comes to train them all. */
static void left_behind(void **state)
{
    static const char job[] = JOB("batch: 4");
    struct rig r;
    begin(&r, job, PLENTY);
    phase_ends(&r, 0, 0);
    phase_ends(&r, 0, 1);
    phase_ends(&r, 1, 2);
    r.task.job_id = 4;
    phase_ends(&r, 2, 0);
    r.task.job_id = 3;
    phase_ends(&r, 1, 5);
    assert_int_equal(files_of(&r, "replica-3-0-"), 1); /* the spare went */
    phase_ends(&r, 1, 6);
    assert_int_equal(files_of(&r, "replica-3-0-"), 0);
    assert_int_equal(files_of(&r, "replica-3-1-"), 2);
    assert_int_equal(files_of(&r, "replica-4-2-"), 1);
    end(&r);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plenty_is_one_part),
        cmocka_unit_test(plan_is_allocated),
        cmocka_unit_test(parts_are_planned),
        cmocka_unit_test(parts_are_found),
        cmocka_unit_test(asked_is_refused),
        cmocka_unit_test(kept_replicas_go),
        cmocka_unit_test(one_host_copy),
        cmocka_unit_test(host_copy_of_its_size),
        cmocka_unit_test(smaller_steps),
        cmocka_unit_test(smaller_steps_of_wide_stages),
        cmocka_unit_test(stages_that_do_not_divide),
        cmocka_unit_test(stages_that_do_not_fit),
        cmocka_unit_test(two_chains_on_cards),
        cmocka_unit_test(two_chains_that_do_not_divide),
        cmocka_unit_test(two_chains_divided),
        cmocka_unit_test(two_chains_that_do_not_fit),
        cmocka_unit_test(teachers_are_planned),
        cmocka_unit_test(other_encoders),
        cmocka_unit_test(another_job_of_the_number),
        cmocka_unit_test(ends_and_their_spares),
        cmocka_unit_test(moments_of_a_late_phase),
        cmocka_unit_test(left_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
