#include "tests/sim/result.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/rng.h"
#include "common/outer/contribution.h"
#include "common/outer/fold.h"
#include "common/outer/fold_check.h"
#include "common/outer/layout.h"
#include "common/st/st.h"
#include "coordinator/state/task.h"
#include "tests/sim/disk.h"
#include "tests/sim/oracle.h"
#include "tests/sim/sim.h"
#include "tests/unit/assignment.h"

/* A module is one matrix. */
#define ROWS 5
#define COLUMNS 8
#define PARAMS (ROWS * COLUMNS)
#define SHARDS_MAX 16

/* Under construction: what the report points to. */
struct making {
    struct result *r;
    const Skerry__V1__Task *t;
    Skerry__V1__ReportRequest m;
    Skerry__V1__Blob blobs[RESULT_BLOBS_MAX];
    Skerry__V1__Contribution contributions[RESULT_MODULES_MAX],
        *contribution_list[RESULT_MODULES_MAX];
    Skerry__V1__ShardInfo shards[SHARDS_MAX], *shard_list[SHARDS_MAX];
    Skerry__V1__Row row, *rows[1];
    Skerry__V1__Snapshot saved;
    uint64_t sizes[SHARDS_MAX];
};

static void check(int rc, const struct err *err)
{
    if (rc < 0)
        sim_fail("%s", err->msg);
}

/* Takes data. */
static Skerry__V1__Blob *add_blob(struct making *x, void *data, size_t len)
{
    struct result_blob *b = &x->r->blobs[x->r->n_blobs];
    Skerry__V1__Blob *m = &x->blobs[x->r->n_blobs++];
    if (x->r->n_blobs > RESULT_BLOBS_MAX)
        sim_fail("a result has too many blobs");
    b->data = data;
    b->len = len;
    hash_sha256(data, len, b->id.sha256);
    skerry__v1__blob__init(m);
    m->sha256.data = b->id.sha256;
    m->sha256.len = 32;
    m->size = len;
    return m;
}

/* Some attempts give the same bytes, some do not: both happen. */
static Skerry__V1__Blob *add_text(struct making *x, const char *what, uint64_t n)
{
    char *text = str_printf("%s of task %llu of job %llu, %llu", what, (unsigned long long)x->t->id,
                            (unsigned long long)x->t->job_id, (unsigned long long)n);
    return add_blob(x, text, strlen(text));
}

/* The same, or something else in its place. */
static Skerry__V1__Blob *add_claim(struct making *x, const char *what, uint64_t n, bool lie)
{
    Skerry__V1__Blob *b = add_text(x, lie ? "a lie" : what, lie ? sim_below(1000) : n);
    x->r->blobs[x->r->n_blobs - 1].lie = lie;
    return b;
}

/* Does it change what is in a result of these kinds, which others can make again? */
static bool is_twisted(enum lie lie)
{
    return lie == LIE_HUGE || lie == LIE_BASE;
}

static Skerry__V1__Blob *add_file(struct making *x, const char *path)
{
    struct buf b;
    struct err err = {0};
    check(file_read(path, 1 << 20, &b, &err), &err);
    void *data = memcpy(mem_alloc(b.len), b.data, b.len);
    const size_t len = b.len;
    buf_release(&b);
    return add_blob(x, data, len);
}

/* The end of the newest blob becomes what is no number: scales, or values. */
static void spoil(struct making *x)
{
    struct result_blob *b = &x->r->blobs[x->r->n_blobs - 1];
    memset((uint8_t *)b->data + b->len - 4, 0xff, 4);
    hash_sha256(b->data, b->len, b->id.sha256);
}

static void contribute(struct making *x, uint64_t module, uint64_t base, Skerry__V1__Blob *blob)
{
    const size_t n = x->m.n_contributions++;
    skerry__v1__contribution__init(&x->contributions[n]);
    x->contributions[n].module_id = module;
    x->contributions[n].base_version = base;
    x->contributions[n].blob = blob;
    x->contribution_list[n] = &x->contributions[n];
    x->m.contributions = x->contribution_list;
}

/* ---- weights --------------------------------------------------------------- */

#define TENSOR "blocks.0.weight"

static void begin_from(const char *path, uint64_t seed, const char *tensor)
{
    static const uint64_t shape[2] = {ROWS, COLUMNS};
    struct err err = {0};
    float theta[PARAMS];
    struct st_writer *w = st_writer_new();
    rng_fill_normal(1, seed, 0, theta, PARAMS, 0.0f, 0.02f);
    check(st_writer_add(w, tensor, ST_F32, 2, shape, &err), &err);
    check(st_writer_open(w, path, &err), &err);
    check(st_writer_write(w, theta, sizeof(theta), &err), &err);
    check(st_writer_commit(w, NULL, NULL, &err), &err);
    st_writer_free(w);
}

void result_begin(const char *path)
{
    begin_from(path, 99, TENSOR);
}

bool result_fits(const Skerry__V1__Task *t, char *const *bases)
{
    struct err err = {0};
    bool fits = true;
    for (size_t i = 0; i < t->n_modules && fits; i++) {
        struct st st = {0};
        if (bases[i] == NULL)
            continue;
        check(st_open(bases[i], &st, &err), &err);
        fits = st_find(&st, TENSOR) != NULL;
        st_release(&st);
    }
    return fits;
}

static int read_end(void *arg, const struct layout *layout, size_t t, uint64_t first, size_t n,
                    float *out, struct err *err)
{
    const float *end = arg;
    memcpy(out, end + layout_first(layout, t) + first, n * sizeof(*out));
    return 0;
}

static void read_weights(const char *path, float theta[PARAMS])
{
    struct err err = {0};
    struct st st = {0};
    struct buf b;
    check(st_open(path, &st, &err), &err);
    check(file_read(path, 1 << 20, &b, &err), &err);
    if (b.len != st.payload + PARAMS * sizeof(*theta))
        sim_fail("a version has %zu bytes", b.len);
    memcpy(theta, b.data + st.payload, PARAMS * sizeof(*theta));
    buf_release(&b);
    st_release(&st);
}

static void add_step(struct making *x, const Skerry__V1__ModuleRef *ref, const char *base,
                     enum codec codec, const char *scratch, enum lie lie)
{
    float theta[PARAMS], noise[PARAMS];
    struct contribution_result done;
    struct err err = {0};
    read_weights(base, theta);
    /* A phase that is done once more comes to the same. */
    const Skerry__V1__TrainTask *t = x->t->train;
    const uint64_t phase =
        rng_mix(rng_mix(x->t->job_id, t->first_step), rng_mix(t->path, t->replica));
    rng_fill_normal(phase, ref->module_id, 0, noise, PARAMS, 0.0f, 0.01f);
    for (size_t i = 0; i < PARAMS; i++)
        theta[i] += lie == LIE_HUGE ? 1e6f * noise[i] : noise[i];
    const struct contribution_job job = {.base_path = base,
                                         .read = read_end,
                                         .read_arg = theta,
                                         .codec = codec,
                                         .module_id = ref->module_id,
                                         .base = ref->version,
                                         .samples = x->m.samples,
                                         .out_path = scratch};
    check(contribution_write(&job, &done, &err), &err);
    Skerry__V1__Blob *b = add_file(x, scratch);
    if (lie == LIE_NAN)
        spoil(x);
    contribute(x, ref->module_id, ref->version + (lie == LIE_BASE), b);
}

/* ---- outer steps ----------------------------------------------------------- */

enum { FULL, DELTA, AVERAGE, TARGET, MOMENTUM, SQUARES, FILES }; /* as the report has them */

static size_t outer_needs(const Skerry__V1__OuterTask *t, const Skerry__V1__Blob **ret)
{
    const Skerry__V1__Blob *const state[] = {t->full, t->average, t->target, t->momentum};
    size_t n = 0;
    for (size_t i = 0; i < sizeof(state) / sizeof(state[0]); i++)
        if (state[i] != NULL)
            ret[n++] = state[i];
    if (n + 2 * t->n_inputs > RESULT_NEEDS_MAX)
        sim_fail("an outer step has %zu contributions", t->n_inputs);
    for (size_t i = 0; i < t->n_inputs; i++) {
        ret[n++] = t->inputs[i]->blob;
        if (t->inputs[i]->from_full != NULL)
            ret[n++] = t->inputs[i]->from_full;
    }
    return n;
}

size_t result_needs(const Skerry__V1__Task *t, const Skerry__V1__Blob *ret[RESULT_NEEDS_MAX])
{
    return t->outer != NULL ? outer_needs(t->outer, ret) : 0;
}

/* The file of a blob that the step needs, if it does. */
static const char *next_of(char *const **bases, const Skerry__V1__Blob *b)
{
    return b != NULL ? *(*bases)++ : NULL;
}

static enum codec codec_of(const char *name)
{
    enum codec codec;
    if (codec_parse(name, &codec) < 0)
        sim_fail("a task speaks of codec '%s'", name);
    return codec;
}

/* in: room for its contributions; the names under which its files go are the caller's. */
static struct fold_step step_of(const Skerry__V1__OuterTask *t, char *const *bases,
                                struct fold_input *in)
{
    struct fold_step s = {.module_id = t->module_id,
                          .base = t->version,
                          .inputs = in,
                          .n_inputs = t->n_inputs,
                          .down = codec_of(t->down),
                          .lr = t->lr,
                          .momentum = t->outer_momentum,
                          .scale = t->keep_norm > 0 ? t->keep_norm : 1,
                          .keep_norm = t->keep_norm > 0,
                          .ema_decay = t->ema_decay};
    s.full = next_of(&bases, t->full);
    s.ema = next_of(&bases, t->average);
    s.target = next_of(&bases, t->target);
    s.mom = next_of(&bases, t->momentum);
    for (size_t i = 0; i < t->n_inputs; i++) {
        const Skerry__V1__OuterInput *o = t->inputs[i];
        in[i] = (struct fold_input){.path = next_of(&bases, o->blob), .weight = o->weight};
        in[i].origin = (struct fold_origin){codec_of(o->codec), o->from, s.full};
        if (o->from_full != NULL)
            in[i].origin.from_full = next_of(&bases, o->from_full);
    }
    return s;
}

/* Fills the norms.  False: a contribution is not as it should be, which is for the coordinator to
 * see. */
static bool measure(const struct fold_step *s, struct fold_input *in, struct fold_cells *to)
{
    struct fold_norm norm = {0};
    int rc = 0;
    for (size_t i = 0; i < s->n_inputs && rc == 0; i++) {
        rc = fold_check_cells(in[i].path, &in[i].origin, s->module_id, to->fd, to->at, &norm, NULL);
        in[i].norm = norm.norm;
        to->at += norm.cells * sizeof(double);
    }
    return rc == 0;
}

/* What a liar brings is known: no version may be of it. */
static void bring_files(struct making *x, char *const *out, const struct fold_result *made,
                        enum lie lie)
{
    static const enum lie spoilt[FILES] = {
        [DELTA] = LIE_BASE, [MOMENTUM] = LIE_SAMPLES, [SQUARES] = LIE_NAN};
    const uint8_t *const right[SQUARES] = {made->full.sha256, made->delta.sha256, made->ema.sha256,
                                           made->target.sha256, made->mom.sha256};
    for (size_t i = 0; i < FILES; i++) {
        Skerry__V1__Blob *b = add_file(x, out[i]);
        if (lie != LIE_NONE && lie == spoilt[i])
            spoil(x);
        if (i < SQUARES && memcmp(b->sha256.data, right[i], HASH_BYTES) != 0)
            oracle_false(b->sha256.data);
        contribute(x, x->t->outer->module_id, 0, b);
    }
}

static void make_outer(struct making *x, char *const *bases, const char *scratch, enum lie lie)
{
    struct fold_input in[RESULT_NEEDS_MAX];
    struct fold_result made, lied;
    struct err err = {0};
    struct fold_step s = step_of(x->t->outer, bases, in);
    char *out[FILES];
    for (size_t i = 0; i < FILES; i++)
        out[i] = str_printf("%s.%zu", scratch, i);
    s.full_out = out[FULL];
    s.delta_out = out[DELTA];
    s.ema_out = out[AVERAGE];
    s.target_out = out[TARGET];
    s.mom_out = out[MOMENTUM];
    struct fold_cells cells = {
        .fd = open(out[SQUARES], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
    s.mean = &cells;
    if (lie == LIE_EMPTY || !measure(&s, in, &cells) || fold_run(&s, &made, NULL) < 0) {
        x->m.text = (char *)(uintptr_t) "it cannot be made";
    } else {
        s.lr *= 2;
        if (lie == LIE_HUGE)
            check(fold_run(&s, &lied, &err), &err);
        bring_files(x, out, &made, lie);
    }
    (void)close(cells.fd);
    for (size_t i = 0; i < FILES; i++)
        mem_free(out[i]);
}

/* ---- by kind --------------------------------------------------------------- */

static enum codec codec_up(const Skerry__V1__Task *t)
{
    return strstr(t->spec, "up: f32") != NULL ? CODEC_F32 : CODEC_E3M0;
}

static uint64_t samples_of(Skerry__V1__Range *const *ranges, size_t n)
{
    uint64_t samples = 0;
    for (size_t i = 0; i < n; i++)
        samples += ranges[i]->count;
    return samples;
}

/* Without ranges the trainer reads data of its own. */
static uint64_t samples_in(const Skerry__V1__TrainTask *t, uint32_t steps, uint32_t total)
{
    return t->n_ranges == 0 ? (uint64_t)steps * t->batch
                            : samples_of(t->ranges, t->n_ranges) * steps / total;
}

/* A user's program draws what it likes: nobody compares it. */
static void make_init(struct making *x, const char *scratch, enum lie lie)
{
    if (strstr(x->t->spec, "type: external") != NULL)
        lie = LIE_NONE;
    for (size_t i = 0; i < x->t->n_modules; i++) {
        begin_from(scratch, is_twisted(lie) ? sim_between(100, 200) : 99,
                   lie == LIE_NAN ? "of no network" : TENSOR);
        contribute(x, x->t->modules[i]->module_id, 0, add_file(x, scratch));
        x->r->blobs[x->r->n_blobs - 1].lie = is_twisted(lie) || lie == LIE_NAN;
    }
}

/* Has an attempt before given it, or is its module's next version there without it? */
static bool is_given(const Skerry__V1__TrainTask *t, uint32_t level)
{
    for (size_t i = 0; i < t->n_fragments; i++)
        if (t->fragments[i]->level == level)
            return t->fragments[i]->done;
    return false;
}

static void make_train(struct making *x, char *const *bases, const char *scratch, enum lie lie)
{
    const Skerry__V1__TrainTask *t = x->t->train;
    x->m.steps = t->steps ? t->steps : 2;
    x->m.samples = samples_in(t, x->m.steps, x->m.steps);
    x->m.seconds = 1;
    if (lie == LIE_SAMPLES)
        x->m.samples += 1000;
    for (size_t i = 0; i < x->t->n_modules && lie != LIE_EMPTY; i++)
        if (!is_given(t, x->t->modules[i]->level))
            add_step(x, x->t->modules[i], bases[i], codec_up(x->t), scratch, lie);
    if (t->send_moments)
        x->m.moments = add_text(x, "moments", t->round);
}

static void one_row(struct making *x, const char *name)
{
    skerry__v1__row__init(&x->row);
    x->row.name = (char *)(uintptr_t)name;
    x->row.value = 1.5;
    x->rows[0] = &x->row;
    x->m.rows = x->rows;
    x->m.n_rows = 1;
}

float result_loss(const uint8_t sha256[32])
{
    return sha256[0] < 20 ? 1.0f : 0.5f;
}

static void make_eval(struct making *x, enum lie lie)
{
    if (x->t->n_modules > 0)
        x->m.loss_mean = result_loss(x->t->modules[0]->sha256.data);
    if (lie == LIE_HUGE || lie == LIE_NAN)
        x->m.loss_mean = lie == LIE_NAN ? NAN : 100;
    x->m.units = samples_of(x->t->eval->ranges, x->t->eval->n_ranges);
    x->m.loss_sum = (double)x->m.loss_mean * (double)x->m.units;
    x->m.bytes = x->t->vocab ? x->m.units : 0;
    if (x->t->mixture != NULL)
        one_row(x, "loss top1");
}

/* Of x->sizes. */
static void add_assignment(struct making *x, const char *scratch, enum lie lie)
{
    const Skerry__V1__ClusterTask *c = x->t->cluster;
    const struct fake_assignment a = {.counts = c->counts,
                                      .holdout = c->holdout,
                                      .n_shards = c->n_counts,
                                      .top = c->top,
                                      .sizes = x->sizes,
                                      .n_sizes = x->t->partitions,
                                      .pass =
                                          is_twisted(lie) ? sim_between(100, 200) : c->n_scores};
    struct err err = {0};
    check(fake_assignment_write(scratch, &a, &err), &err);
    x->m.assignment = add_file(x, scratch);
    x->r->blobs[x->r->n_blobs - 1].lie = is_twisted(lie);
}

static void make_cluster(struct making *x, const char *scratch, enum lie lie)
{
    const Skerry__V1__ClusterTask *c = x->t->cluster;
    uint64_t samples = 0;
    one_row(x, c->evaluate ? "bits per byte" : "balance");
    if (c->evaluate)
        return;
    for (size_t i = 0; i < c->n_counts; i++)
        samples += c->holdout[i] ? 0 : c->counts[i];
    x->m.output = add_claim(x, "partitioner", c->n_scores, is_twisted(lie));
    const uint32_t used = is_twisted(lie) ? c->top : x->t->partitions; /* the others are empty */
    for (uint32_t k = 0; k < used; k++)
        x->sizes[k] = samples * c->top / used + (k == 0 ? samples * c->top % used : 0);
    x->m.sizes = x->sizes;
    x->m.n_sizes = x->t->partitions;
    if (lie == LIE_NAN)
        x->m.assignment = add_claim(x, "assignment", c->n_scores, true); /* nobody can read it */
    else
        add_assignment(x, scratch, lie);
}

static Skerry__V1__ShardInfo *add_shard(struct making *x, const char *what, uint64_t samples,
                                        enum lie lie)
{
    const size_t n = x->m.n_shards++;
    Skerry__V1__ShardInfo *info = x->shard_list[n] = &x->shards[n];
    skerry__v1__shard_info__init(info);
    info->samples = (uint32_t)samples;
    info->blob = add_claim(x, what, n, is_twisted(lie));
    x->m.shards = x->shard_list;
    return info;
}

static void make_ingest(struct making *x, enum lie lie)
{
    static char *classes[] = {(char *)(uintptr_t) "cat", (char *)(uintptr_t) "dog"};
    x->m.classes = classes;
    x->m.n_classes = 2;
    for (int i = 0; i < 3; i++)
        add_shard(x, "archive", i == 2 ? 6 : 20, lie)->holdout = i == 2;
}

/* A liar puts all in one. */
static void make_split(struct making *x, enum lie lie)
{
    const uint32_t k = is_twisted(lie) ? 1 : x->t->partitions;
    const uint64_t in = samples_of(x->t->split->ranges, x->t->split->n_ranges);
    for (uint32_t p = 0; p < k; p++) {
        Skerry__V1__ShardInfo *info = add_shard(x, "shard", in / k + (p == 0 ? in % k : 0), lie);
        info->partition = p;
        info->tokens = info->samples * 10u;
    }
}

static void make_kind(struct making *x, char *const *bases, const char *scratch, enum lie lie)
{
    x->m.loss_mean = 0.5f;
    switch ((int)x->t->kind) {
    case TASK_INIT:
        make_init(x, scratch, lie);
        break;
    case TASK_TRAIN:
    case TASK_CHECK:
        make_train(x, bases, scratch, lie);
        break;
    case TASK_OUTER:
        make_outer(x, bases, scratch, lie);
        break;
    case TASK_EVAL:
        make_eval(x, lie);
        break;
    case TASK_CLUSTER:
        make_cluster(x, scratch, lie);
        break;
    case TASK_SPLIT:
        make_split(x, lie);
        break;
    case TASK_INGEST:
        make_ingest(x, lie);
        break;
    case TASK_ENCODE:
        (void)add_shard(x, "latents", x->t->encode->range->count, lie);
        break;
    case TASK_SAMPLE:
        if (x->t->sample->tokens > 0)
            x->m.text = (char *)(uintptr_t) "once upon a time";
        else
            x->m.output = add_text(x, "picture", 0);
        break;
    case TASK_FEATURE:
        x->m.output = add_claim(x, "features", 0, is_twisted(lie));
        break;
    case TASK_SCORE:
        x->m.output = add_claim(x, "scores", 0, is_twisted(lie));
        break;
    default: /* VELOCITY */
        x->m.output = add_text(x, "output", 0);
        break;
    }
}

static void fail(struct making *x, enum lie lie)
{
    x->m.failed = true;
    x->m.retryable = lie != LIE_LASTING;
    x->m.failure =
        lie == LIE_MEMORY ? SKERRY__V1__FAILURE__FAILURE_MEMORY : SKERRY__V1__FAILURE__FAILURE_TASK;
    x->m.reason = (char *)(uintptr_t) "the worker says so";
}

static void begin(struct making *x, const Skerry__V1__Task *t, struct result *r)
{
    disk_elsewhere(true);
    memset(r, 0, sizeof(*r));
    memset(x, 0, sizeof(*x));
    x->r = r;
    x->t = t;
    skerry__v1__report_request__init(&x->m);
    x->m.task_id = t->id;
    x->m.attempt = t->attempt;
}

static void end(struct making *x)
{
    x->r->steps = x->m.steps;
    x->r->report_len = skerry__v1__report_request__get_packed_size(&x->m);
    x->r->report = mem_alloc(x->r->report_len);
    (void)skerry__v1__report_request__pack(&x->m, x->r->report);
    disk_elsewhere(false);
}

void result_make(const Skerry__V1__Task *t, char *const *bases, const char *scratch, enum lie lie,
                 struct result *ret)
{
    static struct making x;
    begin(&x, t, ret);
    if (lie == LIE_FAILED || lie == LIE_LASTING || lie == LIE_MEMORY)
        fail(&x, lie);
    else
        make_kind(&x, bases, scratch, lie);
    if (lie == LIE_BAD)
        x.m.bad_count = 100000;
    end(&x);
    if (lie == LIE_MISSING)
        ret->n_sent = ret->n_blobs; /* none is */
}

void result_part(const Skerry__V1__Task *t, uint32_t level, char *const *bases, const char *scratch,
                 struct result *ret)
{
    static struct making x;
    begin(&x, t, ret);
    x.m.steps = t->train->steps;
    x.m.samples = samples_in(t->train, x.m.steps, x.m.steps);
    x.m.snapshot = ret->snapshot = true;
    add_step(&x, t->modules[level], bases[level], codec_up(t), scratch, LIE_NONE);
    end(&x);
}

void result_snapshot(const Skerry__V1__Task *t, uint32_t steps, uint32_t total, char *const *bases,
                     const char *scratch, struct result *ret)
{
    static struct making x;
    begin(&x, t, ret);
    skerry__v1__snapshot__init(&x.saved);
    for (size_t i = 0; i < t->n_modules; i++)
        if (t->train->seconds > 0)
            add_step(&x, t->modules[i], bases[i], codec_of_part(codec_up(t)), scratch, LIE_NONE);
        else
            contribute(&x, t->modules[i]->module_id, t->modules[i]->version,
                       add_text(&x, "snapshot", steps * 100 + i));
    x.saved.modules = x.contribution_list;
    x.saved.n_modules = x.m.n_contributions;
    x.m.contributions = NULL;
    x.m.n_contributions = 0;
    x.saved.steps = steps;
    x.saved.samples = samples_in(t->train, steps, total);
    x.saved.samples += x.saved.samples == 0;
    x.saved.position = x.saved.samples;
    x.saved.used = t->train->seconds > 0 && t->train->n_ranges > 0 ? x.saved.samples : 0;
    x.saved.seconds = 1;
    x.m.saved = &x.saved;
    x.m.snapshot = true;
    end(&x);
    ret->snapshot = true;
    ret->steps = steps;
}

void result_input(const Skerry__V1__Task *t, uint32_t n, struct result *ret)
{
    static struct making x;
    begin(&x, t, ret);
    (void)add_text(&x, "input", n);
    end(&x);
    ret->asks = true;
}

void result_release(struct result *r)
{
    for (size_t i = 0; i < r->n_blobs; i++)
        mem_free(r->blobs[i].data);
    mem_free(r->report);
    memset(r, 0, sizeof(*r));
}
