/* Losses and bytes as they add up.  A whole coordinator (rig.h), on whose state the figures come in
 * without workers. */
#include "coordinator/turn.h"
#include "tests/unit/coordinator/kinds/by_hand.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/metrics.h"
#include "coordinator/work/query.h"

static const char experts[] = "name: m\ndata: {path: x, image_size: 16}\n"
                              "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                              "train: {batch: 4, lr: 0.1}\nrecipe: {name: ddm, experts: 2}\n"
                              "outer: {rounds: 2, steps: 2}\n";

static const char own[] = "name: own\ndata: {kind: images, path: x}\n"
                          "model: {type: external}\n"
                          "trainer: {command: ./t}\ntrain: {batch: 4}\n"
                          "outer: {rounds: 2, steps: 2}\n";

/* A job that no turn has looked at. */
static struct job *put(struct rig *r, const char *spec)
{
    return state_job(&r->co->state, submit_spec(r, spec));
}

static void points(struct rig *r, struct job *j, uint32_t path, uint32_t replica,
                   const float *losses, size_t n)
{
    Skerry__V1__LossPoint p[4], *list[4];
    struct task t = {.kind = TASK_TRAIN, .path = path, .train = {.replica = replica}};
    for (size_t i = 0; i < n; i++) {
        skerry__v1__loss_point__init(&p[i]);
        p[i].loss = losses[i];
        list[i] = &p[i];
    }
    metrics_points(r->co, j, &t, &(struct metrics_heard){list, n, NULL, 0});
}

/* A point with these numbers. */
static void numbers(struct rig *r, struct job *j, const char *const *names, size_t n_names,
                    double *values, size_t n)
{
    Skerry__V1__LossPoint p = SKERRY__V1__LOSS_POINT__INIT, *list[] = {&p};
    struct task t = {.kind = TASK_TRAIN};
    p.numbers = values;
    p.n_numbers = n;
    metrics_points(r->co, j, &t,
                   &(struct metrics_heard){list, 1, (char *const *)(uintptr_t)names, n_names});
}

/* What trainers name is kept by name, up to a bound; what is no name, no number or one too many is
 * left out, and a worker's lists need not be of one length. */
static void test_numbers(void **state)
{
    struct rig *r = *state;
    struct job *j = put(r, own), *without = put(r, yaml);
    static const char *const names[] = {"accuracy", "two words", "top-5"};
    numbers(r, without, names, 3, (double[]){0.5, 1, NAN}, 3);
    assert_int_equal(without->n_numbers, 0); /* it has no trainer that could name one */
    assert_int_equal(without->metric_points, 1);
    assert_false(without->numbers_refused);
    numbers(r, j, names, 3, (double[]){0.5, 1, NAN}, 3);
    assert_int_equal(j->n_numbers, 2);
    assert_true(j->numbers[0].value == 0.5 && isnan(j->numbers[1].value));
    assert_true(j->numbers_refused);
    numbers(r, j, names, 3, (double[]){0.25}, 1);
    numbers(r, j, names, 1, (double[]){0.125, 9, 9}, 3);
    assert_true(j->numbers[0].value == 0.125 && isnan(j->numbers[1].value));
    const struct task t = {.kind = TASK_EVAL, .draw = {.version = 1}, .loss_mean = 1};
    metrics_eval(r->co, j, &t,
                 &(struct metrics_heard){.names = (char *const *)(uintptr_t)names,
                                         .n_names = 3,
                                         .numbers = (double[]){0.75, 1, NAN, 5},
                                         .n_numbers = 4});
    assert_true(j->numbers[0].value == 0.125 && j->numbers[0].held_out == 0.75);
    assert_true(isnan(j->numbers[1].held_out));
    for (int i = 0; i < JOB_NUMBERS_MAX + 3; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "n%d", i);
        numbers(r, j, (const char *const[]){name}, 1, (double[]){i}, 1);
    }
    assert_int_equal(j->n_numbers, JOB_NUMBERS_MAX);
    assert_string_equal(j->numbers[JOB_NUMBERS_MAX - 1].name, "n61");
    assert_true(j->numbers[JOB_NUMBERS_MAX - 1].value == 61);
}

/* An evaluation that ends after that of a newer version is recorded, but its numbers are not the
 * newest. */
static void test_late_numbers(void **state)
{
    struct rig *r = *state;
    struct job *j = put(r, own);
    static const char *const names[] = {"accuracy"};
    for (uint32_t version = 2; version > 0; version--) {
        const struct task t = {.kind = TASK_EVAL, .draw = {.version = version}, .loss_mean = 1};
        if (version == 2)
            job_edit_path(j, 0)->eval = (struct eval_rec){.loss = 1, .round = 2};
        metrics_eval(r->co, j, &t,
                     &(struct metrics_heard){.names = (char *const *)(uintptr_t)names,
                                             .n_names = 1,
                                             .numbers = (double[]){version},
                                             .n_numbers = 1});
    }
    assert_int_equal(j->metric_n, 2);
    assert_true(j->numbers[0].held_out == 2);
}

/* A number of the trainer at this worker. */
static void number_of(struct rig *r, struct job *j, const struct fake *w, const char *name)
{
    double value = 1;
    Skerry__V1__LossPoint p = SKERRY__V1__LOSS_POINT__INIT, *list[] = {&p};
    struct task t = {.kind = TASK_TRAIN, .worker_id = w->id};
    p.numbers = &value;
    p.n_numbers = 1;
    worker_memory(state_worker(&r->co->state, w->id))->points_ms = 0;
    metrics_points(r->co, j, &t,
                   &(struct metrics_heard){list, 1, (char *const *)(uintptr_t)&name, 1});
}

static bool has_number(const struct job *j, const char *name)
{
    for (size_t i = 0; i < j->n_numbers; i++)
        if (strcmp(j->numbers[i].name, name) == 0)
            return true;
    return false;
}

/* Who fills all places with names leaves a part of them to workers from elsewhere. */
static void test_numbers_of_two(void **state)
{
    struct rig *r = *state;
    char name[16];
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    (void)str_copy(edit_worker(r, r->workers[1].id)->address, 64, "10.0.0.2:1");
    struct job *j = put(r, own);
    for (int i = 0; i < 2 * JOB_NUMBERS_MAX; i++) {
        (void)snprintf(name, sizeof(name), "junk%d", i);
        number_of(r, j, &r->workers[0], name);
    }
    assert_true(has_number(j, "junk63") && !has_number(j, "junk64") && j->numbers_refused);
    for (int i = 0; i < JOB_NUMBERS_MAX; i++) {
        (void)snprintf(name, sizeof(name), "good%d", i);
        number_of(r, j, &r->workers[1], name);
    }
    assert_int_equal(j->n_numbers, JOB_NUMBERS_MAX);
    number_of(r, j, &r->workers[0], "junk");
    assert_true(has_number(j, "good31") && !has_number(j, "good32") && !has_number(j, "junk"));
}

static bool put_row(struct job *j, uint64_t by, const char *name)
{
    struct row_rec row = {.kind = TASK_EVAL, .by = by, .value = 1};
    (void)str_copy(row.name, sizeof(row.name), name);
    return job_put_row(j, &row);
}

/* The same of figures. */
static void test_rows_of_two(void **state)
{
    struct rig *r = *state;
    struct job *j = put(r, yaml);
    char name[16];
    for (int i = 0; i < JOB_ROWS_MAX; i++) {
        (void)snprintf(name, sizeof(name), "junk%d", i);
        assert_true(put_row(j, 1, name));
    }
    assert_false(put_row(j, 1, "more"));
    assert_false(put_row(j, 0, "more")); /* from nowhere */
    for (int i = 0; i < JOB_ROWS_MAX / 2; i++) {
        (void)snprintf(name, sizeof(name), "good%d", i);
        assert_true(put_row(j, 2, name));
    }
    assert_false(put_row(j, 2, "more"));
    assert_false(put_row(j, 1, "more"));
    assert_true(put_row(j, 2, "good0")); /* again */
    assert_int_equal(j->n_rows, JOB_ROWS_MAX);
}

/* The mean of the replicas' newest; what is not a number is not taken. */
static void test_points(void **state)
{
    struct rig *r = *state;
    struct job *j = put(r, yaml);
    points(r, j, 0, 0, (const float[]){NAN, INFINITY}, 2);
    assert_true(isnan(j->loss));
    assert_int_equal(j->metric_points, 0);
    points(r, j, 0, 0, (const float[]){9, 2, NAN}, 3);
    metrics_turn(r->co);
    assert_true(j->loss == 2.0f);
    points(r, j, 0, 1, (const float[]){4}, 1);
    metrics_turn(r->co);
    assert_true(j->loss == 3.0f);
    assert_int_equal(j->metric_points, 3);
    assert_int_equal(j->metric_n, 3);
}

/* A worker whose answer was lost tells its points again, with newer ones.  Another worker makes the
 * steps anew. */
static void test_told_again(void **state)
{
    struct rig *r = *state;
    struct job *j = put(r, yaml);
    Skerry__V1__LossPoint p[8], *list[8];
    struct task t = {.kind = TASK_TRAIN};
    static const struct {
        uint64_t worker;
        size_t first, n;
        uint64_t all; /* points by then */
    } told[] = {{1, 0, 3, 3}, {1, 0, 3, 3}, {1, 1, 5, 6}, {2, 2, 2, 8}, {2, 2, 6, 12}};
    for (size_t i = 0; i < 8; i++) {
        skerry__v1__loss_point__init(&p[i]);
        p[i].step = 10 + i;
        p[i].loss = 1;
        list[i] = &p[i];
    }
    for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
        t.worker_id = told[i].worker;
        metrics_points(r->co, j, &t,
                       &(struct metrics_heard){list + told[i].first, told[i].n, NULL, 0});
        assert_int_equal(j->metric_points, told[i].all);
    }
}

/* A router's losses are of another kind. */
static void test_router(void **state)
{
    struct rig *r = *state;
    struct job *j = put(r, experts);
    uint32_t router = (uint32_t)j->comp.router_path;
    points(r, j, 0, 0, (const float[]){2}, 1);
    points(r, j, router, 0, (const float[]){50}, 1);
    metrics_turn(r->co);
    assert_true(j->loss == 2.0f);
    for (uint32_t p = 0; p < 3; p++) {
        struct eval_rec *e = &job_edit_path(j, p)->eval;
        *e = (struct eval_rec){.loss = 1, .loss_sum = p == router ? 900 : 10 * (p + 1)};
        e->units = 10 + 20 * p;
    }
    const struct task t = {.kind = TASK_EVAL, .draw = {.version = 1}, .loss_mean = 1};
    metrics_eval(r->co, j, &t, &(struct metrics_heard){0});
    assert_true(j->eval_loss == 30.0f / 40.0f); /* weighed by what was looked at */
    job_edit_path(j, 1)->eval.loss = NAN;       /* never evaluated */
    metrics_eval(r->co, j, &t, &(struct metrics_heard){0});
    assert_true(j->eval_loss == 1.0f);
}

/* An evaluation of version r + 1 belongs to round r of its path. */
static void test_rounds(void **state)
{
    struct rig *r = *state;
    struct job *j = put(r, experts);
    for (uint32_t i = 0; i < 4; i++)
        metrics_round(r->co, j,
                      &(struct round_rec){.path = i % 2, .round = i / 2, .eval_loss = NAN});
    struct task t = {.kind = TASK_EVAL, .path = 1, .draw = {.version = 1}, .loss_mean = 0.5f};
    metrics_eval(r->co, j, &t, &(struct metrics_heard){0});
    for (size_t i = 0; i < 4; i++)
        assert_true(i == 1 ? j->rounds[i].eval_loss == 0.5f : isnan(j->rounds[i].eval_loss));
    t.draw.version = 0; /* no round made it */
    metrics_eval(r->co, j, &t, &(struct metrics_heard){0});
    assert_true(isnan(j->rounds[0].eval_loss));
    assert_int_equal(j->metric_n, 6);
}

struct told {
    struct metric_rec records[2];
    size_t n;
};

static void tell(void *arg, const struct metric_rec *m)
{
    struct told *t = arg;
    assert_true(t->n < 2);
    t->records[t->n++] = *m;
}

/* Where a round ended stays known when most rounds before it are not on record any more. */
static void test_steps(void **state)
{
    struct rig *r = *state;
    struct job *j = put(r, yaml);
    struct told told = {0};
    const uint32_t n = j->comp.paths[0].replicas, rounds = (uint32_t)job_rounds_max(j) + 6;
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t i = 0; i < n; i++)
            job_edit_replica(j, 0, i)->step += 10;
        metrics_round(r->co, j,
                      &(struct round_rec){
                          .round = round, .contributions = n, .steps = 10 * n, .eval_loss = NAN});
    }
    const struct task t = {.kind = TASK_EVAL, .draw = {.version = rounds - 1}, .loss_mean = 1};
    metrics_eval(r->co, j, &t, &(struct metrics_heard){0});
    settle(r);
    assert_int_equal(view_metrics(r->co, j->id, j->metric_n - 2, 9, tell, &told, NULL), 0);
    assert_int_equal(told.n, 2);
    assert_int_equal(told.records[0].kind, METRIC_ROUND);
    assert_int_equal(told.records[0].step, 10 * rounds);
    assert_int_equal(told.records[1].step, 10 * (rounds - 1)); /* of what was looked at */
}

static struct blob_ref named(uint8_t name)
{
    return (struct blob_ref){.sha256 = {name}, .size = 9};
}

static void serve(struct rig *r, uint8_t name, uint64_t bytes)
{
    struct blob_id id = {.sha256 = {name}};
    metrics_served(r->co, NULL, &id, bytes, false);
}

static void test_served(void **state)
{
    struct rig *r = *state;
    struct job *j = put(r, yaml);
    struct version_rec v = {.full = named(1), .delta = named(2), .ema = named(3)};
    module_add_version(job_edit_module(j, &j->modules[0]), &v);
    job_edit_shard(j, 0)->blob = named(4);
    r->co->opt.egress_price = 1e9;
    serve(r, 1, 100);
    assert_int_equal(j->peak_bytes, 0); /* whole ones go to workers that join */
    serve(r, 2, 10);
    assert_int_equal(j->peak_bytes, 10);
    serve(r, 3, 1000); /* not asked for by replicas, so of the job but of no round */
    serve(r, 4, 5);
    assert_int_equal(j->bytes_down, 1110);
    assert_int_equal(j->paths[0].bytes_down, 110);
    assert_int_equal(j->shard_bytes_down, 5);
    metrics_served(r->co, NULL, &(struct blob_id){.sha256 = {4}}, 70, true);
    assert_int_equal(j->shard_bytes_down, 75);
    struct view_cost cost;
    assert_int_equal(view_job_cost(r->co, j->id, &cost, NULL), 0);
    assert_true(cost.egress > 1114.9 &&
                cost.egress < 1115.1); /* what neighbours sent costs nothing */
    j->state = JOB_CANCELLED;
    serve(r, 1, 100);
    assert_int_equal(j->bytes_down, 1110);
    j->state = JOB_PENDING;
}

/* A worker's job pays for all that it gets, whichever figures count it, and for a shard that an
 * earlier job has, too. */
static void test_payer(void **state)
{
    struct rig *r = *state;
    struct job *j = put(r, yaml), *other = put(r, yaml);
    struct worker *w = state_add_worker(&r->co->state, 0);
    const struct blob_id contribution = {.sha256 = {9}}, shard = {.sha256 = {4}};
    job_edit_shard(j, 0)->blob = job_edit_shard(other, 0)->blob = named(4);
    r->co->opt.egress_price = 1e9;
    metrics_served(r->co, w, &contribution, 7, false); /* no job has caused it */
    w->served = j->id;
    metrics_served(r->co, w, &contribution, 100, false);
    metrics_served(r->co, w, &contribution, 1000, true);
    assert_true(j->cost.egress == 100 && j->bytes_down + j->shard_bytes_down == 0);
    metrics_served(r->co, w, &shard, 20, false);
    assert_true(j->cost.egress == 120 && j->shard_bytes_down == 20);
    assert_true(other->cost.egress == 0 && other->shard_bytes_down == 0);
    j->state = JOB_CANCELLED; /* what it cost, it cost; a shard is what the other needs */
    metrics_served(r->co, w, &contribution, 3, false);
    metrics_served(r->co, w, &shard, 5, false);
    assert_true(j->cost.egress == 123 && other->cost.egress == 5);
    j->state = JOB_PENDING;
}

/* Of a module that several paths cross each counts a part. */
static void test_served_to_several(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, "name: q\ndata: {path: x}\n"
                               "model: {type: llama, dim: 32, depth: 4, heads: 2, context: 64}\n"
                               "train: {batch: 6}\nrecipe: {name: dipaco, levels: [2, 2]}\n"
                               "outer: {rounds: 3, steps: 2}\n");
    struct version_rec v = {.full = named(1)};
    const struct module_rec *m = &j->modules[0];
    uint32_t crossing = 0;
    module_add_version(job_edit_module(j, m), &v);
    serve(r, 1, 101);
    assert_int_equal(j->bytes_down, 101);
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        if (query_crosses(j, p, m))
            assert_int_equal(j->paths[p].bytes_down, crossing++ == 0 ? 50 : 51);
        else
            assert_int_equal(j->paths[p].bytes_down, 0);
    assert_int_equal(crossing, 2);
}

static void test_uploaded(void **state)
{
    struct rig *r = *state;
    struct job *j = put(r, experts);
    struct contribution c = {.module_id = j->modules[1].id, .blob = {.size = 30}};
    const struct task t = {.kind = TASK_TRAIN, .path = 1};
    metrics_uploaded(r->co, j, &t, &c);
    metrics_uploaded(r->co, j, &t, &c);
    assert_int_equal(j->bytes_up, 60);
    assert_int_equal(j->paths[1].bytes_up, 60);
    assert_int_equal(j->paths[0].bytes_up, 0);
    assert_int_equal(j->peak_bytes, 60); /* in one second */
    assert_int_equal(j->modules[1].bytes_from_others, 0);
    c.module_id = j->modules[0].id; /* another path is the first that crosses it */
    metrics_uploaded(r->co, j, &t, &c);
    assert_int_equal(j->modules[0].bytes_from_others, 30);
}

/* What phases add up to outlives the coordinator, also where no round has ended since. */
static void test_totals(void **state)
{
    struct rig *r = *state;
    static const char async[] = "name: m\ndata: {path: x, image_size: 16}\n"
                                "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                                "train: {batch: 4, lr: 0.1}\nrecipe: {replicas: 2}\n"
                                "outer: {rounds: 3, steps: 2, async: true}\n";
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const struct job *j = put(r, async);
    do_init(r, &r->workers[0]);
    for (int i = 0; i < 2; i++)
        (void)assign(r, &r->workers[i], TASK_TRAIN);
    for (int i = 0; i < 2; i++)
        finish_train(r, &r->workers[i]);
    (void)assign(r, &r->workers[0], TASK_TRAIN);
    finish_train(r, &r->workers[0]);
    (void)assign(r, &r->workers[0], TASK_TRAIN); /* so that is in a version */
    (void)assign(r, &r->workers[1], TASK_TRAIN);
    assert_true(j->paths[0].phases == 3 && j->paths[0].round == 1);
    settle(r);
    stop(r);
    start(r);
    j = state_job(&r->co->state, 1);
    assert_true(j->paths[0].phases == 3 && j->phases_done == 3);
    assert_true(j->samples_done == 24 && j->steps_done == 6);
}

static void count_points(void *arg, const struct metric_rec *m)
{
    unsigned *n = arg;
    assert_int_equal(m->n, ++*n);
}

/* Turns once, as a tick does; is there a commit? */
static bool commits(struct rig *r)
{
    struct coordinator *co = r->co;
    core_touch(co);
    turn(co);
    const bool writes = co->writing;
    while (co->writing)
        loop_turn(co->loop, true);
    return writes;
}

/* Where each commit is a paid write to the store, points of curves wait for others, or for seconds;
 * then the job's row has their number, too, or the next ones would take their places. */
static void test_points_wait(void **state)
{
    struct rig *r = *state;
    struct coordinator *co = r->co;
    struct job *j = put(r, yaml);
    const struct blob_ref gone = {.size = 1, .sha256 = {1}};
    unsigned n = 0;
    settle(r);
    loop_timer_stop(co->tick); /* it would look at the ship */
    while (commits(r))         /* the job begins */
        ;
    points(r, j, 0, 0, (float[]){3}, 1);
    assert_true(loop_timer_active(co->gather));
    assert_true(commits(r)); /* it costs nothing */
    co->ship = (struct ship *)r;
    for (int i = 0; i < 60; i++) { /* six seconds, in which points come ten times a second */
        points(r, j, 0, 0, (float[]){3}, 1);
        assert_false(loop_timer_active(co->gather));
        n += commits(r);
        co->points_ms -= co->points_ms ? 100 : 0;
    }
    assert_in_range(n, 1, 2);
    points(r, j, 0, 0, (float[]){3}, 1);
    gc_drop(co, &gone); /* a change of another kind */
    assert_true(commits(r));
    assert_int_equal(co->points_ms, 0);
    points(r, j, 0, 0, (float[]){3}, 1);
    co->ship = NULL;
    const uint64_t id = j->id;
    stop(r);
    start(r);
    j = state_job(&r->co->state, id);
    assert_int_equal(j->metric_n, 63);
    assert_int_equal(j->metric_points, 63);
    unsigned told = 0;
    assert_int_equal(persist_metrics(r->co->store, id, 0, 100, count_points, &told, NULL), 0);
    assert_int_equal(told, 63);
}

#define LIVE(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LIVE(test_points_wait),  LIVE(test_points),         LIVE(test_numbers),
        LIVE(test_late_numbers), LIVE(test_router),         LIVE(test_rounds),
        LIVE(test_steps),        LIVE(test_served),         LIVE(test_served_to_several),
        LIVE(test_payer),        LIVE(test_uploaded),       LIVE(test_totals),
        LIVE(test_told_again),   LIVE(test_numbers_of_two), LIVE(test_rows_of_two),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
