/* A made-up coordinator: the functions of coordinator/view/view.h without one behind
 * them.  Included by one test each; the linker then leaves the real ones out. */
#ifndef TESTS_UNIT_COORDINATOR_FAKE_VIEW_H
#define TESTS_UNIT_COORDINATOR_FAKE_VIEW_H

#include <math.h>
#include <stddef.h>

#include "common/base/err.h"
#include "coordinator/view/view.h"

static const uint8_t hash[VIEW_SHA256_BYTES] = {0xab, 0xcd};
static unsigned n_tasks = 3;

/* What the code under test did. */
static struct {
    durable_fn durable; /* the callback that waits, with its argument */
    void *durable_arg;
    bool behind; /* what is shown is not durable: the callback that waits for that */
    durable_fn shown;
    struct {
        durable_fn fn;
        void *arg;
    } shown_before[128]; /* others that wait for the same */
    size_t n_shown_before;
    void *shown_arg;
    uint64_t next, done; /* commits */
    uint64_t writing_ms;
    event_fn subscriber;
    void *subscriber_arg;
    unsigned submits, cancels, removes;
    bool dry_run;
    size_t n_classes, n_shards, n_bad, n_labels;
    uint32_t last_label;
    double guidance;
    int ema;
    struct token_order order; /* its name is gone by now */
    struct token_bounds bounds;
    uint64_t revoked, holder, rolled_back_to;
    uint32_t rolled_back_path;
    struct view_adjust adjust;
    int fail; /* commands return this, if negative */
} fake;

static char *job_classes[] = {(char *)"cat"};
static uint64_t job_counts[] = {4};
static struct metric_number job_numbers[] = {{"top-1", 0.75, 0.5}, {"not.known", NAN, NAN}};
static const struct row_rec job_rows[] = {
    {.kind = TASK_EVAL, .path = UINT32_MAX, .name = "loss top1", .unit = "", .value = 0.75}};
static const struct grid_rec job_grids[] = {{.task_id = 9, .round = 2, .path = UINT32_MAX}};
static struct round_rec job_rounds[2100];
static struct bad_rec job_bad[100];
static struct job job_rec = {.yaml = (char *)"name: x\n",
                             .spec.recipe.name = (char *)"diloco",
                             .classes = job_classes,
                             .counts = job_counts,
                             .n_classes = 1,
                             .bad = job_bad,
                             .n_bad = 100,
                             .rows = job_rows,
                             .n_rows = 1,
                             .rounds = job_rounds,
                             .n_rounds = 2100,
                             .grids = job_grids,
                             .n_grids = 1,
                             .numbers = job_numbers,
                             .n_numbers = 2};
static struct view_job job = {
    .job = &job_rec,
    .id = 7,
    .name = "a\"b\\c\nd",
    .state = "running",
    .reason = "caf\xe9",
    .round = 2,
    .rounds = 9,
    .step = 40,
    .total_steps = 0,
    .loss = 0.5,
    .eval_loss = NAN,
    .images_per_s = INFINITY,
    .eta_ms = -1,
    .paths = 1,
    .replicas = 2,
    .per_param_up = NAN,
    .per_param_down = 0.5,
    .ratio = NAN,
    .bytes_up = 11,
    .bytes_down = 22,
};
static struct device_state worker_devices[] = {
    {.name = "cuda:0",
     .model = "NVIDIA \"H200\"",
     .memory_used = 30,
     .memory_total = 120,
     .utilization = 0,
     .temperature = 61,
     .power = 512.5f,
     .ecc_errors = 2,
     .throttled = "power cap"},
    {.name = "cuda:1", .utilization = -1, .ecc_errors = -1, .trouble = "GPU is lost"},
};
static const struct task worker_task = {.id = 5, .kind = TASK_TRAIN};
static const struct worker worker_rec = {
    .id = 3,
    .name = "isle \xff",
    .device = "cpu",
    .version = "1",
    .task_id = 5,
    .activity = "training",
    .grad_norm = NAN,
    .strikes = 1,
    .devices = {worker_devices,
                2,
                3e12,
                4e12,
                {.schedule = "1f1b",
                 .devices = 4,
                 .copies = 2,
                 .stages = 2,
                 .micro_batches = 8,
                 .predicted_s = 0.25,
                 .idle_before = 0.125,
                 .idle = 0.0625,
                 .inside = NAN,
                 .filled_with = "images"}},
};
static struct view_worker worker = {
    .worker = &worker_rec,
    .state = "busy",
    .reason = "",
    .task = &worker_task,
    .images_per_s = 12.5,
    .loss = NAN,
    .heartbeat_age_ms = 1500,
};

void view_status(struct coordinator *co, struct view_status *ret)
{
    *ret = (struct view_status){.version = "1.2",
                                .cluster = "c0",
                                .ratio = NAN,
                                .store_error = "",
                                .store_ok = true,
                                .store_writing_ms = fake.writing_ms,
                                .uptime_ms = 2500};
}

void view_each_waiting(struct coordinator *co, uint64_t job_id, view_waiting_fn fn, void *arg)
{
    struct view_waiting w = {.job_id = job_id, .what = "worker 3", .why = "slow", .until_ms = -1};
    fn(arg, &w);
    w.until_ms = 900;
    w.worker_id = 3;
    fn(arg, &w);
}

void view_each_job(struct coordinator *co, view_job_fn fn, void *arg)
{
    fn(arg, &job);
}

const struct job *view_job_record(struct coordinator *co, uint64_t job_id)
{
    for (uint32_t i = 0; i < 2100; i++)
        job_rounds[i] = (struct round_rec){
            .round = i, .loss = 1, .eval_loss = NAN, .seconds = 2, .steps = 20, .contributions = 2};
    for (size_t i = 0; i < 100; i++)
        job_bad[i] = (struct bad_rec){.key = (char *)"k", .reason = (char *)"cut short"};
    return job_id == job.id ? &job_rec : NULL;
}

int view_job(struct coordinator *co, uint64_t job_id, struct view_job *ret, struct err *err)
{
    (void)view_job_record(co, job_id);
    if (job_id != job.id)
        return err_set(err, -ERR_NOTFOUND, "there is no such job");
    *ret = job;
    return 0;
}

void view_each_replica(struct coordinator *co, uint64_t job_id, view_replica_fn fn, void *arg)
{
    struct view_replica r = {
        .round = 2, .state = "leased", .worker_name = "x", .loss = NAN, .images_per_s = NAN};
    fn(arg, &r);
}

void view_each_epoch(struct coordinator *co, uint64_t job_id, view_epoch_fn fn, void *arg)
{
    struct view_epoch e = {.total = 10, .done = 5, .leased = 2, .pending = 3};
    fn(arg, &e);
}

void view_each_path(struct coordinator *co, uint64_t job_id, view_path_fn fn, void *arg)
{
    static const uint64_t modules[] = {1, 4}, versions[] = {2, 3};
    static const struct best_module best[2];
    struct view_path p = {.network = "main",
                          .state = "waiting",
                          .partition = UINT32_MAX,
                          .n_modules = 2,
                          .modules = modules,
                          .versions = versions,
                          .loss = 0.5,
                          .eval_loss = NAN,
                          .bits_per_byte = NAN,
                          .best_loss = 0.25,
                          .best_round = 3,
                          .best = best};
    fn(arg, &p);
}

void view_each_partition(struct coordinator *co, uint64_t job_id, view_partition_fn fn, void *arg)
{
    struct view_partition p = {.partition = 1, .samples = 9, .holdout = 2, .share = NAN};
    fn(arg, &p);
}

void view_each_module(struct coordinator *co, uint64_t job_id, view_module_fn fn, void *arg)
{
    struct view_module m = {.id = 1,
                            .job_id = 7,
                            .outer_state = "idle",
                            .outer_reason = "",
                            .network = "main",
                            .paths = 1};
    fn(arg, &m);
}

void view_each_version(struct coordinator *co, uint64_t module_id, view_version_fn fn, void *arg)
{
    struct version_rec v = {.full = {.sha256 = {0xab, 0xcd}, .size = 8}};
    fn(arg, &v);
    v.version = 1;
    v.delta = v.full;
    v.provenance = (char *)"{\"lr\":0.7}";
    fn(arg, &v);
}

static void fill_task(struct view_task *v, uint64_t id)
{
    static struct task t;
    t = (struct task){
        .id = id, .job_id = 7, .kind = id % 2 ? TASK_TRAIN : TASK_EVAL, .state = TASK_PENDING};
    task_set_round(&t, 4);
    *v = (struct view_task){.task = &t, .worker_name = "", .text = "", .loss = NAN};
}

bool view_tasks(struct coordinator *co, uint64_t job_id, const char *state, uint64_t before,
                size_t max, view_task_fn fn, void *arg)
{
    uint64_t id = before != 0 && before <= n_tasks ? before - 1 : n_tasks;
    for (; id > 0; id--) {
        struct view_task t;
        if (max-- == 0)
            return true;
        fill_task(&t, id);
        fn(arg, &t);
    }
    return false;
}

int view_task(struct coordinator *co, uint64_t task_id, struct view_task *ret, struct err *err)
{
    fill_task(ret, task_id);
    return 0;
}

void view_each_worker(struct coordinator *co, view_worker_fn fn, void *arg)
{
    fn(arg, &worker);
}

bool view_workers(struct coordinator *co, uint64_t after, size_t gone, size_t max,
                  view_worker_fn fn, void *arg)
{
    fn(arg, &worker);
    return false;
}

void view_some_workers(struct coordinator *co, size_t max, view_worker_fn fn, void *arg)
{
    fn(arg, &worker);
}

int view_metrics(struct coordinator *co, uint64_t job_id, uint64_t after, size_t limit,
                 metric_fn fn, void *arg, struct err *err)
{
    if (job_id != job.id)
        return err_set(err, -ERR_NOTFOUND, "there is no such job");
    for (uint64_t n = after + 1; n <= 5; n++) {
        struct metric_rec m = {.n = n, .kind = METRIC_LOSS, .loss = 1, .step = n};
        fn(arg, &m);
    }
    static const struct metric_rec old[] = {
        /* of a release that did not note steps: known from the rounds, and of another path not */
        {.n = 6, .kind = METRIC_ROUND, .round = 2},
        {.n = 7, .kind = METRIC_EVAL, .round = 3},
        {.n = 8, .kind = METRIC_ROUND, .path = 1},
        {.n = 9, .kind = METRIC_EVAL}, /* of version 0 */
    };
    for (size_t i = 0; i < sizeof old / sizeof *old; i++)
        if (old[i].n > after)
            fn(arg, &old[i]);
    return 0;
}

int view_worker(struct coordinator *co, uint64_t worker_id, struct view_worker *ret,
                struct err *err)
{
    if (worker_id != worker_rec.id)
        return err_set(err, -ERR_NOTFOUND, "there is no such worker");
    *ret = worker;
    return 0;
}

static int command(struct err *err)
{
    return fake.fail < 0 ? err_set(err, fake.fail, "the fake refuses") : 0;
}

int view_job_submit(struct coordinator *co, const struct submit *s, uint64_t *ret_id,
                    struct err *err)
{
    fake.submits++;
    fake.n_classes = s->n_classes;
    fake.n_shards = s->n_shards;
    fake.n_bad = s->n_bad;
    *ret_id = 8;
    return command(err);
}

int view_job_cancel(struct coordinator *co, uint64_t job_id, struct err *err)
{
    fake.cancels++;
    return command(err);
}

int view_job_adjust(struct coordinator *co, uint64_t job_id, const struct view_adjust *a,
                    struct job_swarm *ret, struct err *err)
{
    fake.adjust = *a;
    *ret = (struct job_swarm){.priority = 3, .share = 0.5, .budget = 20};
    return command(err);
}

int view_job_remove(struct coordinator *co, uint64_t job_id, uint64_t holder, bool dry_run,
                    struct view_removal *ret, struct err *err)
{
    fake.removes++;
    fake.dry_run = dry_run;
    fake.holder = holder;
    *ret = (struct view_removal){.name = "s", .state = "done", .bytes = 1234};
    return command(err);
}

int view_job_pause(struct coordinator *co, uint64_t job_id, bool paused, struct err *err)
{
    return command(err);
}

int view_job_rollback(struct coordinator *co, uint64_t job_id, uint32_t path, uint64_t to,
                      struct err *err)
{
    fake.rolled_back_to = to;
    fake.rolled_back_path = path;
    return command(err);
}

int view_job_cost(struct coordinator *co, uint64_t job_id, struct view_cost *ret, struct err *err)
{
    static const struct job_swarm quota = {.share = 1};
    *ret = (struct view_cost){.time = {.work = 1.5, .waiting = 0.25, .workers = 2, .unpriced = 1},
                              .egress = 0.5,
                              .total = 2.25,
                              .per_million = NAN,
                              .per_million_tokens = NAN,
                              .until_end = 3,
                              .quota = &quota};
    return 0;
}

int view_task_cancel(struct coordinator *co, uint64_t task_id, struct err *err)
{
    fake.cancels++;
    return command(err);
}

int view_sample_request(struct coordinator *co, uint64_t job_id, const struct draw_request *r,
                        uint64_t *ret_task, struct err *err)
{
    fake.n_labels = r->n_labels;
    fake.last_label = r->n_labels ? r->labels[r->n_labels - 1] : 0;
    fake.guidance = r->guidance;
    fake.ema = r->ema;
    *ret_task = 4;
    return command(err);
}

static char trace_text[] = "{\"traceEvents\": [{\"name\": \"F 0\", \"ph\": \"X\", \"tid\": 0,"
                           " \"ts\": 0, \"dur\": 5}]}";
static struct job_trace trace = {trace_text, sizeof trace_text - 1, 5, 3, 0, 1, 4};

int view_trace(struct coordinator *co, uint64_t job_id, struct view_trace *ret, struct err *err)
{
    if (trace.text == NULL)
        return err_set(err, -ERR_NOTFOUND, "no trace");
    *ret = (struct view_trace){&trace, "isle"};
    return 0;
}

static const struct token_rec tokens[] = {
    {.id = 1, .name = "worker.token", .role = TOKEN_ROLE_WORKER, .uses = 3},
    {.id = 2, .name = "spot", .role = TOKEN_ROLE_WORKER, .uses_max = 9, .workers_max = 4},
};

void view_each_token(struct coordinator *co, view_token_fn fn, void *arg)
{
    struct view_token v = {&tokens[0], "live", -1, 2, 0};
    fn(arg, &v);
    v = (struct view_token){&tokens[1], "ended", 0, 0, 1.5};
    fn(arg, &v);
}

int tokens_make(struct coordinator *co, const struct token_order *o, uint64_t *ret_id,
                char ret_text[TOKEN_STRING_MAX], struct err *err)
{
    fake.order = *o;
    *ret_id = 3;
    (void)str_copy(ret_text, TOKEN_STRING_MAX, "skerry1.new");
    return fake.fail < 0 ? err_set(err, fake.fail, "the token was refused") : 0;
}

int tokens_adjust(struct coordinator *co, uint64_t id, uint64_t holder,
                  const struct token_bounds *b, const struct token_rec **ret, struct err *err)
{
    fake.bounds = *b;
    fake.holder = holder;
    *ret = &tokens[1];
    return id > 2 ? err_set(err, -ERR_NOTFOUND, "no such token") : 0;
}

int tokens_revoke(struct coordinator *co, uint64_t id, uint64_t holder, struct err *err)
{
    fake.revoked = id;
    fake.holder = holder;
    return id > 2 ? err_set(err, -ERR_NOTFOUND, "no such token") : 0;
}

int view_worker_revoke(struct coordinator *co, uint64_t worker_id, struct err *err)
{
    return worker_id != 3 ? err_set(err, -ERR_NOTFOUND, "no such worker") : 0;
}

int view_worker_drain(struct coordinator *co, uint64_t worker_id, struct err *err)
{
    return command(err);
}

int view_upload_expect(struct coordinator *co, const uint8_t sha256[VIEW_SHA256_BYTES],
                       uint64_t size, struct err *err)
{
    return command(err);
}

void view_when_durable(struct coordinator *co, durable_fn fn, void *arg)
{
    fake.durable = fn;
    fake.durable_arg = arg;
}

bool view_is_shown(struct coordinator *co, uint64_t job_id)
{
    return !fake.behind;
}

bool view_when_shown(struct coordinator *co, uint64_t job_id, durable_fn fn, void *arg)
{
    if (!fake.behind)
        return false;
    if (fake.shown != NULL) {
        fake.shown_before[fake.n_shown_before].fn = fake.shown;
        fake.shown_before[fake.n_shown_before++].arg = fake.shown_arg;
    }
    fake.shown = fn;
    fake.shown_arg = arg;
    return true;
}

uint64_t view_next_commit(const struct coordinator *co)
{
    return fake.next;
}

bool view_has_commit(const struct coordinator *co, uint64_t commit)
{
    return commit <= fake.done;
}

uint64_t view_writing_ms(const struct coordinator *co)
{
    return fake.writing_ms;
}

bool view_is_slow(const struct coordinator *co)
{
    return fake.writing_ms >= 1000;
}

int view_subscribe(struct coordinator *co, event_fn fn, void *arg)
{
    fake.subscriber = fn;
    fake.subscriber_arg = arg;
    return 1;
}

void view_unsubscribe(struct coordinator *co, int handle)
{
    fake.subscriber = NULL;
}

#endif
