/* OUTER at workers: what is believed, what is made again, and who is to blame. */
#include "tests/unit/coordinator/rig.h"

#include "common/outer/fold.h"
#include "common/outer/fold_check.h"
#include "coordinator/work/member.h"

#include <fcntl.h>
#include <unistd.h>

#define FILES 6

static const char spec[] = "name: fake\nseed: 3\n"
                           "data: {path: x, image_size: 16}\n"
                           "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                           "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"
                           "outer: {where: worker, rounds: 2, steps: 2}\n"
                           "sample: {count: 4}\n";

static char *path_of(struct rig *r, const Skerry__V1__Blob *b)
{
    char path[4096];
    struct blob_id id;
    if (b == NULL)
        return NULL;
    memcpy(id.sha256, b->sha256.data, 32);
    assert_int_equal(blob_file(r->co->blobs, &id, path, sizeof(path)), 0);
    assert_non_null(strstr(b->url, "/v1/blobs/"));
    return str_dup(path);
}

/* What a worker tells of a step. */
struct told {
    struct result x;
    Skerry__V1__Contribution c[FILES], *list[FILES];
    Skerry__V1__Blob blobs[FILES];
    struct blob_ref refs[FILES];
};

static void tell(struct told *d, const Skerry__V1__Task *t)
{
    begin_result(&d->x, t, NULL);
    for (size_t i = 0; i < FILES; i++) {
        skerry__v1__contribution__init(&d->c[i]);
        skerry__v1__blob__init(&d->blobs[i]);
        d->blobs[i].sha256.data = d->refs[i].sha256;
        d->blobs[i].sha256.len = 32;
        d->blobs[i].size = d->refs[i].size;
        d->c[i].blob = &d->blobs[i];
        d->list[i] = &d->c[i];
    }
    d->x.m.contributions = d->list;
    d->x.m.n_contributions = FILES;
}

/* Turns the last bit of each byte behind the header. */
static void falsify(const char *path, bool header)
{
    struct buf b;
    size_t from = 0;
    assert_int_equal(file_read(path, 64 << 20, &b, NULL), 0);
    if (header) {
        uint64_t n;
        memcpy(&n, b.data, sizeof(n));
        from = (size_t)n + sizeof(n);
    }
    for (size_t k = from; k < b.len; k++)
        b.data[k] ^= 1;
    assert_int_equal(file_write_atomic(path, b.data, b.len, 0600, NULL), 0);
    buf_release(&b);
}

/* Does the step as a worker would; lie: the file that is then made wrong, -1: none. */
static void make(struct rig *r, const Skerry__V1__Task *t, int lie, struct told *ret)
{
    static const char *const names[FILES] = {"full",   "delta",    "average",
                                             "target", "momentum", "squares"};
    const Skerry__V1__OuterTask *o = t->outer;
    struct fold_input in[2] = {{0}};
    struct fold_result made;
    struct fold_norm norm;
    struct err err = {0};
    char *out[FILES], *full = path_of(r, o->full), *ema = path_of(r, o->average);
    char *target = path_of(r, o->target), *mom = path_of(r, o->momentum);
    for (size_t i = 0; i < FILES; i++)
        out[i] = fx_path(&r->f, names[i]);
    assert_int_equal(o->n_inputs, 2);
    const int fd = open(out[5], O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (size_t i = 0; i < 2; i++) {
        in[i] = (struct fold_input){.path = path_of(r, o->inputs[i]->blob),
                                    .weight = o->inputs[i]->weight,
                                    .origin = {.from = o->inputs[i]->from, .from_full = full}};
        assert_int_equal(codec_parse(o->inputs[i]->codec, &in[i].origin.codec), 0);
        const uint64_t at = i == 0 ? 0 : norm.cells * sizeof(double);
        if (fold_check_cells(in[i].path, &in[i].origin, MODULE, fd, at, &norm, &err) < 0)
            fail_msg("%s", err.msg);
    }
    struct fold_step step = {.module_id = o->module_id,
                             .base = o->version,
                             .full = full,
                             .ema = ema,
                             .target = target,
                             .mom = mom,
                             .inputs = in,
                             .n_inputs = 2,
                             .lr = o->lr,
                             .momentum = o->outer_momentum,
                             .scale = 1,
                             .ema_decay = o->ema_decay,
                             .full_out = out[0],
                             .delta_out = out[1],
                             .ema_out = out[2],
                             .target_out = out[3],
                             .mom_out = out[4]};
    assert_int_equal(codec_parse(o->down, &step.down), 0);
    if (fold_run(&step, &made, &err) < 0)
        fail_msg("%s", err.msg);
    (void)close(fd);
    for (int i = 0; i < FILES; i++) {
        if (i == lie)
            falsify(out[i], i != 5);
        ret->refs[i] = put_file(r, out[i]);
        mem_free(out[i]);
    }
    for (size_t i = 0; i < 2; i++)
        mem_free((char *)(uintptr_t)in[i].path);
    mem_free(full);
    mem_free(ema);
    mem_free(target);
    mem_free(mom);
    tell(ret, t);
}

/* Two workers train a round; the first to ask then gets its outer step. */
static struct fake *train_round(struct rig *r, struct fake **ret_other)
{
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    assign(r, a, TASK_TRAIN);
    assign(r, b, TASK_TRAIN);
    finish_train(r, a);
    finish_train(r, b);
    assign(r, a, TASK_OUTER);
    *ret_other = b;
    return a;
}

/* Its connection ends, and it has been silent for longer than a lease. */
static void lose(struct rig *r, struct fake *w)
{
    struct worker *rec = edit_worker(r, w->id);
    hang_up(w);
    while (rec->state == WORKER_HERE) {
        loop_turn(r->loop, false);
        rec->heard_ms = core_now(r->co) - r->co->opt.lease_ms - 1000;
        member_check(r->co);
    }
}

static uint64_t begin_job(struct rig *r, const char *text)
{
    const uint64_t job = submit_spec(r, text);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    do_init(r, &r->workers[0]);
    return job;
}

static const struct module_rec *module_of(struct rig *r, uint64_t job)
{
    return &state_job(&r->co->state, job)->modules[0];
}

static void wait_version(struct rig *r, uint64_t job, uint64_t version)
{
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    while (module_of(r, job)->version < version) {
        if (clock_now_ms() > until)
            fail_msg("version %llu: %s", (unsigned long long)module_of(r, job)->version,
                     module_of(r, job)->outer_reason);
        loop_turn(r->loop, true);
    }
    settle(r);
}

static const struct worker *who(struct rig *r, const struct fake *w)
{
    return state_worker(&r->co->state, w->id);
}

/* The bits of the versions that a coordinator makes by itself, of the same contributions. */
static void expected(struct rig *r, uint8_t ret[2][32])
{
    char *text = str_dup(spec);
    memcpy(strstr(text, "where: worker"), "where: auto  ", 13);
    const uint64_t job = begin_job(r, text);
    for (uint64_t v = 1; v <= 2; v++) {
        for (size_t i = 0; i < 2; i++)
            assign(r, &r->workers[i], TASK_TRAIN);
        for (size_t i = 0; i < 2; i++)
            finish_train(r, &r->workers[i]);
        wait_version(r, job, v);
        memcpy(ret[v - 1], module_version(module_of(r, job), v)->full.sha256, 32);
    }
    mem_free(text);
}

static void is_stored(const struct version_rec *v, bool stored)
{
    assert_int_equal(v->target.size > 0, stored);
    assert_int_equal(v->momentum.size > 0, stored);
    assert_int_equal(strstr(v->provenance, "\"stored\":true") != NULL, stored);
}

/* Both rounds at workers: the coordinator's bits, and nothing is made here. */
static void test_believed(void **state)
{
    uint8_t want[2][32];
    expected(*state, want);
    assert_int_equal(end(state), 0);
    assert_int_equal(begin(state), 0);
    struct rig *r = *state;
    const uint64_t job = begin_job(r, spec);
    for (uint64_t v = 1; v <= 2; v++) {
        struct fake *b, *a = train_round(r, &b);
        struct told told;
        make(r, a->task, -1, &told);
        assert_int_equal(a->task->outer->version, v - 1);
        assert_true(report(r, a, &told.x));
        wait_version(r, job, v);
        const struct version_rec *made = module_version(module_of(r, job), v);
        assert_memory_equal(made->full.sha256, want[v - 1], 32);
        assert_memory_equal(made->momentum.sha256, told.refs[4].sha256, 32);
        is_stored(made, true);
        assert_int_equal(who(r, a)->doubted_folds, 0);
        assert_int_equal(who(r, a)->failures_row, 0);
        struct blob_id squares;
        memcpy(squares.sha256, told.refs[5].sha256, 32);
        assert_false(blobstore_has(r->co->blobs, &squares, NULL)); /* nobody needs them any more */
    }
    char *here = str_printf("%s/outer/%llu/%u/momentum.2.safetensors", r->f.dir,
                            (unsigned long long)job, MODULE);
    assert_false(file_exists(here));
    mem_free(here);
}

/* Trains a round; its outer step is for b and not for a, who asks first. */
static void step_for(struct rig *r, struct fake *a, struct fake *b)
{
    assign(r, a, TASK_TRAIN);
    assign(r, b, TASK_TRAIN);
    finish_train(r, b);
    finish_train(r, a);
    ask(r, a, 1);
    assert_null(got(r, a));
    assign(r, b, TASK_OUTER);
}

/* The next outer step is for b alone, and made by it. */
static void not_for(struct rig *r, uint64_t job, struct fake *a, struct fake *b)
{
    struct told told;
    step_for(r, a, b);
    make(r, b->task, -1, &told);
    assert_true(report(r, b, &told.x));
    wait_version(r, job, 2);
    assert_memory_equal(module_version(module_of(r, job), 2)->full.sha256, told.refs[0].sha256, 32);
}

/* A file that is wrong: the step is made here, and its worker is to blame, and makes no other.  The
 * norms of contributions are in no version: their liar is doubted. */
static void test_lies(void **state)
{
    for (int lie = 0; lie < FILES; lie++) {
        struct rig *r = *state;
        const uint64_t job = begin_job(r, spec);
        struct fake *b, *a = train_round(r, &b);
        struct told told, right;
        make(r, a->task, -1, &right);
        make(r, a->task, lie, &told);
        assert_true(report(r, a, &told.x));
        wait_version(r, job, 1);
        const struct version_rec *made = module_version(module_of(r, job), 1);
        assert_memory_equal(made->full.sha256, right.refs[0].sha256, 32);
        assert_memory_equal(made->delta.sha256, right.refs[1].sha256, 32);
        assert_memory_equal(made->ema.sha256, right.refs[2].sha256, 32);
        assert_memory_equal(made->target.sha256, right.refs[3].sha256, 32);
        assert_memory_equal(made->momentum.sha256, right.refs[4].sha256, 32);
        is_stored(made, true);
        assert_int_equal(who(r, a)->failures_row, lie < 5);
        assert_int_equal(who(r, a)->doubted_folds, lie < 5 ? 3 : 1);
        for (int i = 0; i < FILES; i++) {
            struct blob_id id;
            memcpy(id.sha256, told.refs[i].sha256, 32);
            assert_int_equal(blobstore_has(r->co->blobs, &id, NULL), i != lie && i != 5);
        }
        if (lie == 0)
            not_for(r, job, a, b);
        assert_int_equal(end(state), 0);
        assert_int_equal(begin(state), 0);
    }
}

/* What cannot be what was asked for is refused as any result.  Files that are not here may be lost
 * without anybody's fault: they are sent again. */
static void test_refused(void **state)
{
    struct rig *r = *state;
    begin_job(r, spec);
    struct fake *b, *a = train_round(r, &b);
    struct told told;
    make(r, a->task, -1, &told);
    told.x.m.n_contributions = FILES - 1;
    assert_false(report(r, a, &told.x));
    assert_non_null(strstr(a->detail, "the result of OUTER has 5 files, expected 6"));
    assert_int_equal(who(r, a)->failures_row, 1);
    assign(r, b, TASK_OUTER);
    make(r, b->task, -1, &told);
    uint8_t right[32];
    memcpy(right, told.refs[2].sha256, sizeof(right));
    memset(told.refs[2].sha256, 9, 32);
    assert_int_equal(CALL(r, b, REPORT, report, &told.x.m), -ERR_NOTFOUND);
    assert_true(b->retryable);
    assert_non_null(strstr(b->detail, "a file of the version has not been uploaded"));
    assert_int_equal(who(r, b)->failures_row, 0);
    memcpy(told.refs[2].sha256, right, sizeof(right));
    assert_true(report(r, b, &told.x));
}

/* Who says that it gets on, and never ends, loses the step although nobody else idles: it is made
 * here, whoever asks.  Three times, and it is given none. */
static void test_pretending(void **state)
{
    struct rig *r = *state;
    const uint64_t job = begin_job(r, spec);
    struct fake *b, *a = train_round(r, &b);
    struct task *t = task_memory(state_task(&r->co->state, a->task->id));
    t->begun = true;
    t->reached.samples = 1000;
    t->leased_ms = core_now(r->co) - task_traits[TASK_OUTER].most_min * 60000 + 1000;
    member_check(r->co);
    assert_int_equal(t->worker_id, a->id);
    t->leased_ms -= 60000; /* which its bytes cannot take */
    member_check(r->co);
    assert_int_equal(t->state, TASK_PENDING);
    assert_int_equal(who(r, a)->doubted_folds, 1);
    assert_int_equal(who(r, a)->failures_row, 1);
    ask(r, b, 15000); /* which might take as long */
    wait_version(r, job, 1);
}

/* A step that workers are lost with again and again is made here. */
static void test_lost_again(void **state)
{
    struct rig *r = *state;
    const uint64_t job = begin_job(r, spec);
    struct fake *b, *a = train_round(r, &b);
    struct told told;
    for (int n = 0; n < 3; n++) {
        make(r, a->task, -1, &told);
        ask(r, b, 15000);
        lose(r, a);
        if (n < 2)
            assert_non_null(got(r, b));
        assert_int_equal(join(r, a, SKERRY_VERSION), 0);
        struct fake *other = a;
        a = b;
        b = other;
    }
    wait_version(r, job, 1);
    assert_memory_equal(module_version(module_of(r, job), 1)->full.sha256, told.refs[0].sha256, 32);
}

/* The same bits are of one release: a worker of the one before makes none, and is blamed for
 * nothing. */
static void test_another_release(void **state)
{
    struct rig *r = *state;
    const uint64_t job = begin_job(r, spec);
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    for (size_t i = 0; i < 2; i++)
        assign(r, &r->workers[i], TASK_TRAIN);
    for (size_t i = 0; i < 2; i++)
        (void)str_copy(edit_worker(r, r->workers[i].id)->version, NAME_MAX_BYTES, "0.0.9");
    finish_train(r, a);
    finish_train(r, b);
    settle(r);
    assert_null(module_of(r, job)->at_worker);
    wait_version(r, job, 1);
    is_stored(module_version(module_of(r, job), 1), true);
}

/* A worker that says that it cannot is believed: the coordinator looks, and blames nobody. */
static void test_cannot(void **state)
{
    struct rig *r = *state;
    const uint64_t job = begin_job(r, spec);
    struct fake *b, *a = train_round(r, &b);
    struct result x;
    begin_result(&x, a->task, NULL);
    x.m.text = (char *)"tensor t holds a value that is not finite";
    assert_true(report(r, a, &x));
    wait_version(r, job, 1);
    is_stored(module_version(module_of(r, job), 1), true);
    assert_true(member_may_fold(who(r, a)));
    assert_int_equal(who(r, a)->failures_row, 0);
}

/* How fast a's files came, who told a step's result a second after it began to send them. */
static void sends_in_a_second(struct rig *r, struct fake *a, struct told *told)
{
    uint8_t sha256[32] = {7};
    uint64_t bytes = 0;
    Skerry__V1__TicketRequest req = SKERRY__V1__TICKET_REQUEST__INIT;
    req.task_id = a->task->id;
    req.attempt = a->task->attempt;
    req.sha256 = (ProtobufCBinaryData){32, sha256};
    req.size = 1000;
    for (size_t i = 0; i < FILES; i++)
        bytes += told->refs[i].size;
    assert_int_equal(CALL(r, a, TICKET, ticket, &req), 0);
    edit_worker(r, a->id)->sends_ms = core_now(r->co) - 1000;
    assert_true(report(r, a, &told->x));
    const double rate = who(r, a)->sends_bytes_per_s;
    assert_true(rate < (double)bytes && rate > (double)bytes / 10);
}

/* What a report says of a file that is not so in the store makes no link fast. */
static void test_claimed_rate(void **state)
{
    struct rig *r = *state;
    (void)begin_job(r, spec);
    struct fake *b, *a = train_round(r, &b);
    struct told told;
    make(r, a->task, -1, &told);
    told.blobs[0].size *= 1000000;
    edit_worker(r, a->id)->sends_ms = core_now(r->co) - 1000;
    assert_false(report(r, a, &told.x));
    assert_true(who(r, a)->sends_bytes_per_s == 0);
}

/* Who made a version has what the next step begins with, so a link must be twice as fast to be
 * through with it sooner. */
static void test_first_through(void **state)
{
    static const double rates[] = {1.9, 2.1};
    for (size_t i = 0; i < 2; i++) {
        struct rig *r = *state;
        const uint64_t job = begin_job(r, spec);
        struct fake *b, *a = train_round(r, &b);
        struct told told;
        make(r, a->task, -1, &told);
        sends_in_a_second(r, a, &told);
        wait_version(r, job, 1);
        edit_worker(r, b->id)->sends_bytes_per_s = rates[i] * who(r, a)->sends_bytes_per_s;
        if (i == 0)
            step_for(r, b, a);
        else
            step_for(r, a, b);
        assert_int_equal(end(state), 0);
        assert_int_equal(begin(state), 0);
    }
}

/* A contribution that is too long is for the coordinator to judge, whoever folds it. */
static void test_poisoned(void **state)
{
    struct rig *r = *state;
    const uint64_t job = begin_job(r, spec);
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct told told;
    struct result x;
    assign(r, a, TASK_TRAIN);
    assign(r, b, TASK_TRAIN);
    struct blob_ref blob = contribute(r, b->task, 7, 1e3f);
    begin_result(&x, b->task, &blob);
    assert_true(report(r, b, &x));
    finish_train(r, a);
    assign(r, a, TASK_OUTER);
    make(r, a->task, -1, &told);
    assert_true(report(r, a, &told.x));
    wait_version(r, job, 1);
    assert_memory_not_equal(module_version(module_of(r, job), 1)->full.sha256, told.refs[0].sha256,
                            32);
    assert_int_equal(who(r, a)->doubted_folds, 0);
    assert_int_equal(who(r, b)->failures_row, 1);
}

/* A worker that is lost with the step: another one has it, and the first one's word counts no more.
 */
static void test_lost(void **state)
{
    struct rig *r = *state;
    const uint64_t job = begin_job(r, spec);
    struct fake *b, *a = train_round(r, &b);
    struct told old, told;
    make(r, a->task, -1, &old);
    ask(r, b, 15000);
    lose(r, a);
    assert_non_null(got(r, b));
    assert_int_equal(b->task->kind, TASK_OUTER);
    assert_int_equal(b->task->id, a->task->id);
    assert_int_equal(b->task->attempt, a->task->attempt + 1);
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_false(report(r, a, &old.x));
    assert_non_null(strstr(a->detail, "has lost its lease"));
    make(r, b->task, -1, &told);
    assert_true(report(r, b, &told.x));
    wait_version(r, job, 1);
    assert_memory_equal(module_version(module_of(r, job), 1)->full.sha256, old.refs[0].sha256, 32);
}

/* With nobody left who may, it is made here; so it is when the job's coordinator begins anew, and
 * what was under way is nobody's. */
static void test_nobody(void **state)
{
    struct rig *r = *state;
    const uint64_t job = begin_job(r, spec);
    struct fake *b;
    (void)train_round(r, &b);
    edit_worker(r, b->id)->strikes = 1;
    lose(r, &r->workers[0]);
    wait_version(r, job, 1);
    is_stored(module_version(module_of(r, job), 1), true);
}

static void test_restart(void **state)
{
    struct rig *r = *state;
    const uint64_t job = begin_job(r, spec);
    struct fake *b, *a = train_round(r, &b);
    struct told old, told;
    make(r, a->task, -1, &old);
    edit_worker(r, b->id)->doubted_folds = 2;
    core_touch(r->co);
    settle(r);
    stop(r);
    start(r);
    assert_int_equal(who(r, b)->doubted_folds, 2);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    assert_false(report(r, a, &old.x));
    assign(r, b, TASK_OUTER);
    make(r, b->task, -1, &told);
    assert_true(report(r, b, &told.x));
    wait_version(r, job, 1);
    settle(r);
    stop(r);
    start(r);
    is_stored(module_version(module_of(r, job), 1), true); /* as the record says */
}

/* A job that goes over to workers leaves nothing of its state on our disk. */
static void test_goes_over(void **state)
{
    struct rig *r = *state;
    char *text = str_dup(spec);
    memcpy(strstr(text, "rounds: 2"), "rounds: 5", 9);
    const uint64_t job = begin_job(r, text);
    struct fake *b, *a;
    struct told told;
    state_job(&r->co->state, job)->spec.outer.where = JOB_WHERE_COORDINATOR;
    for (uint64_t v = 1; v <= 3; v++) {
        for (size_t i = 0; i < 2; i++)
            assign(r, &r->workers[i], TASK_TRAIN);
        for (size_t i = 0; i < 2; i++)
            finish_train(r, &r->workers[i]);
        wait_version(r, job, v);
        if (v == 2)
            state_job(&r->co->state, job)->spec.outer.where = JOB_WHERE_WORKER;
    }
    is_stored(module_version(module_of(r, job), 3), true);
    char *had = str_printf("%s/outer/%llu/%u/momentum.2.safetensors", r->f.dir,
                           (unsigned long long)job, MODULE);
    assert_true(file_exists(had)); /* the step can be made again */
    a = train_round(r, &b);
    make(r, a->task, -1, &told);
    assert_true(report(r, a, &told.x));
    wait_version(r, job, 4);
    WAIT_FOR(r, !file_exists(had));
    assert_false(file_exists(had));
    mem_free(had);
    mem_free(text);
}

static struct {
    struct blobstore_ops ops;
    const struct blobstore_ops *of;
    _Atomic bool stands;
} slow_store;

static int slow_read(struct blobstore *s, const struct blob_id *id, uint64_t from, void *data,
                     size_t len, struct err *err)
{
    while (slow_store.stands)
        (void)usleep(1000);
    return slow_store.of->read(s, id, from, data, len, err);
}

/* Between a worker's word and the version no record names the files: one that goes meanwhile, as
 * the same bytes of somebody else's do, is in no version, and nobody is to blame. */
static void test_gone_meanwhile(void **state)
{
    struct rig *r = *state;
    const uint64_t job = begin_job(r, spec);
    struct fake *b, *a = train_round(r, &b);
    struct told told;
    struct blob_id momentum;
    slow_store.of = r->co->blobs->ops;
    slow_store.ops = *slow_store.of;
    slow_store.ops.read = slow_read;
    slow_store.stands = true;
    r->co->blobs->ops = &slow_store.ops;
    make(r, a->task, -1, &told);
    assert_true(report(r, a, &told.x));
    char *look = str_printf("%s/outer/%llu/%u/look", r->f.dir, (unsigned long long)job, MODULE);
    WAIT_DOING(file_is_dir(look), (void)usleep(1000));
    slow_store.stands = false;
    /* All was looked at, and the loop has not heard of it. */
    WAIT_DOING(!file_is_dir(look), (void)usleep(1000));
    assert_false(file_is_dir(look));
    memcpy(momentum.sha256, told.refs[4].sha256, 32);
    assert_int_equal(r->co->blobs->ops->hide(r->co->blobs, &momentum, NULL), 0);
    while (module_of(r, job)->outer_failures == 0 && module_of(r, job)->version == 0)
        loop_turn(r->loop, true);
    assert_int_equal(module_of(r, job)->version, 0);
    assert_non_null(strstr(module_of(r, job)->outer_error, "the momentum"));
    assert_int_equal(who(r, a)->failures_row, 0);
    assert_int_equal(who(r, a)->doubted_folds, 0);
    assign(r, b, TASK_OUTER);
    make(r, b->task, -1, &told);
    assert_true(report(r, b, &told.x));
    wait_version(r, job, 1);
    assert_true(blobstore_has(r->co->blobs, &momentum, NULL));
    mem_free(look);
}

/* The job ends while a worker is at it. */
static void test_cancelled(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    const uint64_t job = begin_job(r, spec);
    struct fake *b, *a = train_round(r, &b);
    struct told told;
    make(r, a->task, -1, &told);
    assert_int_equal(view_job_cancel(r->co, job, &err), 0);
    settle(r);
    assert_null(module_of(r, job)->at_worker);
    assert_false(report(r, a, &told.x));
}

/* The job goes back to an older version while a worker is at the next one. */
static void test_rolled_back(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    const uint64_t job = begin_job(r, spec);
    struct fake *b, *a = train_round(r, &b);
    struct told told;
    make(r, a->task, -1, &told);
    assert_true(report(r, a, &told.x));
    wait_version(r, job, 1);
    a = train_round(r, &b);
    assert_int_equal(view_job_rollback(r->co, job, UINT32_MAX, 0, &err), 0);
    assert_null(module_of(r, job)->at_worker);
    assert_int_equal(module_of(r, job)->outer_task, 0);
    assert_int_equal(state_task(&r->co->state, a->task->id)->state, TASK_CANCELLED);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {CASE(test_believed),       CASE(test_lies),
                                       CASE(test_refused),        CASE(test_cannot),
                                       CASE(test_pretending),     CASE(test_first_through),
                                       CASE(test_poisoned),       CASE(test_lost),
                                       CASE(test_nobody),         CASE(test_restart),
                                       CASE(test_goes_over),      CASE(test_cancelled),
                                       CASE(test_lost_again),     CASE(test_another_release),
                                       CASE(test_gone_meanwhile), CASE(test_claimed_rate),
                                       CASE(test_rolled_back)};
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
