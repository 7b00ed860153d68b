/* FEATURE, CLUSTER, SPLIT and SCORE: what their workers are told, and which results are taken. */
#include "tests/unit/assignment.h"
#include "tests/unit/coordinator/kinds/by_hand.h"

/* Two levels of two modules: four paths and partitions. */
static const char dipaco[] = "name: q\ndata: {path: x}\n"
                             "model: {type: llama, dim: 32, depth: 4, heads: 2, context: 64}\n"
                             "train: {batch: 6}\n"
                             "partition: {chunk: 33}\n"
                             "recipe: {name: dipaco, levels: [2, 2], top: 2, reshard: [1, 2]}\n"
                             "outer: {rounds: 3, steps: 2}\n";
static const char ddm[] = "name: q\ndata: {path: x, image_size: 16}\n"
                          "model: {type: dit, patch: 4, dim: 32, depth: 4, heads: 2}\n"
                          "train: {batch: 6}\nrecipe: {name: ddm, experts: 3}\n"
                          "outer: {rounds: 3, steps: 2}\n";
static const char trainer[] = "name: q\ndata: {kind: images, path: x}\n"
                              "model: {type: external, warm_start: y}\n"
                              "trainer: {command: z}\ntrain: {batch: 6}\n"
                              "recipe: {name: ddm, experts: 3}\nouter: {rounds: 3, steps: 2}\n";

static const char cascade[] = "name: q\ndata: {path: x, image_size: 16}\n"
                              "model: {patch: 4, dim: 32, depth: 4, heads: 2, warm_start: y}\n"
                              "upscaler: {low_side: 8}\ntrain: {batch: 6}\n"
                              "recipe: {name: dipaco, levels: [2, 2]}\n"
                              "outer: {rounds: 3, steps: 2}\n";

static const uint32_t one[] = {0, 1, 2, 3};

/* As they were cut: kept for routers, two to train on, held out; 10 to 13 samples. */
static struct job *add_cut(struct rig *r, const char *spec)
{
    struct job *j = add_job(r, spec);
    for (uint8_t i = 0; i < 4; i++) {
        struct shard_rec *s = add_shard(j, (uint8_t)(100 + i), 10u + i);
        s->features = ref_of((uint8_t)(110 + i));
        s->router = i == 0;
        s->holdout = i == 3;
    }
    add_versions(j, 0, 0);
    return j;
}

/* A task of all samples of n shards from `first` on. */
static struct task *of_shards(struct rig *r, const struct job *j, enum task_kind kind,
                              uint32_t first, size_t n)
{
    struct task *t = add_task(r, j, kind);
    give(t, &one[first], n, 1);
    for (size_t i = 0; i < n; i++)
        t->ranges[i].count = j->shards[first + i].samples;
    return t;
}

/* ---- results ---- */

struct brought {
    Skerry__V1__ReportRequest m;
    Skerry__V1__Blob blobs[8];
    struct blob_ref refs[8];
    Skerry__V1__ShardInfo shards[8], *list[8];
    Skerry__V1__Row row, *rows[1];
    uint64_t sizes[8];
    size_t n_blobs;
};

static void nothing(struct brought *x)
{
    memset(x, 0, sizeof(*x));
    skerry__v1__report_request__init(&x->m);
    x->m.shards = x->list;
    x->m.sizes = x->sizes;
    x->m.rows = x->rows;
}

/* A blob that was uploaded, with this text. */
static Skerry__V1__Blob *uploaded(struct rig *r, struct brought *x, const char *text)
{
    Skerry__V1__Blob *b = &x->blobs[x->n_blobs];
    struct blob_ref *ref = &x->refs[x->n_blobs++];
    *ref = put_text(r, text);
    skerry__v1__blob__init(b);
    b->sha256 = (ProtobufCBinaryData){32, ref->sha256};
    b->size = ref->size;
    return b;
}

/* An assignment of the job's samples to partitions of x's sizes. */
static Skerry__V1__Blob *assigned(struct rig *r, struct brought *x, const struct job *j)
{
    uint32_t counts[4];
    protobuf_c_boolean holdout[4];
    for (size_t i = 0; i < 4; i++) {
        counts[i] = j->shards[i].samples;
        holdout[i] = j->shards[i].holdout;
    }
    const struct fake_assignment a = {counts, holdout, 4, 2, x->sizes, x->m.n_sizes, 0};
    char *path = fx_path(&r->f, "assignment");
    struct err err = {0};
    if (fake_assignment_write(path, &a, &err) < 0)
        fail_msg("%s", err.msg);
    Skerry__V1__Blob *b = &x->blobs[x->n_blobs];
    struct blob_ref *ref = &x->refs[x->n_blobs++];
    *ref = put_file(r, path);
    skerry__v1__blob__init(b);
    b->sha256 = (ProtobufCBinaryData){32, ref->sha256};
    b->size = ref->size;
    mem_free(path);
    return b;
}

static void bring_row(struct brought *x, const char *name, double value)
{
    skerry__v1__row__init(&x->row);
    x->row.name = (char *)(uintptr_t)name;
    x->row.value = value;
    x->rows[0] = &x->row;
    x->m.n_rows = 1;
}

static void bring_shard(struct rig *r, struct brought *x, uint32_t samples, uint32_t partition)
{
    char text[32];
    Skerry__V1__ShardInfo *s = &x->shards[x->m.n_shards];
    (void)snprintf(text, sizeof(text), "shard %zu of %u", x->m.n_shards, samples);
    skerry__v1__shard_info__init(s);
    s->blob = uploaded(r, x, text);
    s->samples = samples;
    s->tokens = samples * 2u;
    s->partition = partition;
    x->list[x->m.n_shards++] = s;
}

static void taken(struct rig *r, struct job *j, struct task *t, const struct brought *x)
{
    struct err err = {0};
    if (kinds_apply(r->co, j, t, &x->m, &err) != 0)
        fail_msg("%s", err.msg);
}

static void refused(struct rig *r, struct job *j, struct task *t, const struct brought *x, int code,
                    const char *why)
{
    struct err err = {0};
    const int rc = kinds_apply(r->co, j, t, &x->m, &err);
    if (rc != code || !strstr(err.msg, why))
        fail_msg("%d '%s', expected %d '%s'", rc, err.msg, code, why);
}

static bool same(const struct blob_ref *a, const struct blob_ref *b)
{
    return a->size == b->size && memcmp(a->sha256, b->sha256, 32) == 0;
}

/* ---- FEATURE ---- */

/* Chunks are of texts that are scored; networks are for features that a model makes. */
static void test_feature_message(void **state)
{
    static const uint32_t chunks[] = {33, 0, 0, 33};
    struct rig *r = *state;
    struct job *j = add_cut(r, dipaco), *images = add_cut(r, ddm);
    const struct worker *w = add_worker(r);
    images->spec.partition.chunk = 33;
    for (uint32_t i = 0; i < 4; i++) {
        const Skerry__V1__Task *m = message_of(r, j, of_shards(r, j, TASK_FEATURE, i, 1), w);
        assert_int_equal(m->feature->chunk, chunks[i]);
        assert_int_equal(m->feature->n_ranges, 1);
        assert_true(is_ref(m->feature->ranges[0]->shard, (uint8_t)(100 + i)));
        assert_int_equal(m->n_modules, 0);
        m = message_of(r, images, of_shards(r, images, TASK_FEATURE, i, 1), w);
        assert_int_equal(m->feature->chunk, 0);
        assert_int_equal(m->n_modules, 0);
    }
    struct task *t = of_shards(r, j, TASK_FEATURE, 1, 1);
    j->spec.partition.features = JOB_FEATURES_MODEL;
    assert_int_equal(message_of(r, j, t, w)->n_modules, composition_levels(&j->comp, 0));
    j->spec.partition.features = JOB_FEATURES_AUTO;
    assert_int_equal(message_of(r, j, t, w)->n_modules, 0);
    j->spec.model.warm_start = str_dup("y");
    j->warm_start = ref_of(200);
    assert_int_equal(message_of(r, j, t, w)->n_modules, composition_levels(&j->comp, 0));
    j->spec.partition.features = JOB_FEATURES_NGRAMS;
    assert_int_equal(message_of(r, j, t, w)->n_modules, 0);
    const char *const none[] = {trainer, cascade}; /* their models make no features */
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        struct job *own = add_cut(r, none[i]);
        own->warm_start = ref_of(200);
        t = of_shards(r, own, TASK_FEATURE, 1, 1);
        assert_int_equal(message_of(r, own, t, w)->n_modules, 0);
    }
}

static void test_feature_result(void **state)
{
    struct rig *r = *state;
    struct job *j = add_cut(r, dipaco);
    struct task *t = of_shards(r, j, TASK_FEATURE, 2, 1);
    struct brought x;
    nothing(&x);
    refused(r, j, t, &x, -EINVAL, "the file of features is missing");
    const struct blob_ref before = ref_of(112);
    assert_true(same(&j->shards[2].features, &before));
    x.m.output = uploaded(r, &x, "features");
    taken(r, j, t, &x);
    assert_true(same(&j->shards[2].features, &x.refs[0]) && same(&t->output, &x.refs[0]));
}

/* Of many who made a part of the partitions, the confirmed ones make room; if nobody is, it is not
 * known any more who all of them are. */
static void test_many_makers(void **state)
{
    struct rig *r = *state;
    struct job *j = add_cut(r, dipaco);
    struct worker *w[JOB_MAKERS_MAX + 2];
    struct brought x;
    j->makers.since_features = true;
    for (unsigned i = 0; i < JOB_MAKERS_MAX + 2; i++) {
        struct task *t = of_shards(r, j, TASK_FEATURE, 2, 1);
        w[i] = add_worker(r);
        (void)snprintf(w[i]->address, sizeof(w[i]->address), "10.0.0.%u:1", i);
        t->worker_id = w[i]->id;
        if (i == JOB_MAKERS_MAX)
            w[3]->checked = true;
        nothing(&x);
        x.m.output = uploaded(r, &x, "features");
        taken(r, j, t, &x);
        assert_int_equal(j->makers.since_features, i <= JOB_MAKERS_MAX);
        assert_int_equal(j->makers.n, i < JOB_MAKERS_MAX ? i + 1 : JOB_MAKERS_MAX);
    }
    for (unsigned i = 0; i < j->makers.n; i++)
        assert_true(j->makers.origin[i] != worker_origin(w[3]));
}

/* ---- CLUSTER ---- */

static void test_cluster_message(void **state)
{
    struct rig *r = *state;
    struct job *j = add_cut(r, dipaco);
    const struct worker *w = add_worker(r);
    struct task *t = add_task(r, j, TASK_CLUSTER);
    *job_add_shard(j) = (struct shard_rec){.generation = 1, .blob = ref_of(150), .samples = 9};
    const Skerry__V1__ClusterTask *m = message_of(r, j, t, w)->cluster;
    assert_true(m->n_features == 4 && m->n_counts == 4 && m->n_holdout == 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(is_ref(m->features[i], (uint8_t)(110 + i)));
        assert_int_equal(m->counts[i], 10 + i);
        assert_int_equal(m->holdout[i], i == 3);
    }
    assert_true(m->n_levels == 2 && m->levels[0] == 2 && m->levels[1] == 2);
    assert_true(m->top == 2 && m->chunk == 33 && !m->evaluate);
    assert_true(m->n_scores == 0 && m->n_scored == 0 && m->previous == NULL);
    for (uint32_t i = 0; i < 8; i++) /* of each path, on shards 0 and 3, in any order */
        job_add_score(j, &(struct score_rec){i * 3 % 4, i < 4 ? 3 : 0, ref_of((uint8_t)(160 + i))});
    t->cluster.evaluate = true;
    j->partitioner = ref_of(201);
    m = message_of(r, j, t, w)->cluster;
    assert_true(m->evaluate && is_ref(m->previous, 201));
    assert_true(m->n_scored == 2 && m->scored[0] == 0 && m->scored[1] == 3);
    assert_int_equal(m->n_scores, 8);
    for (uint32_t i = 0; i < 8; i++)
        assert_true(is_ref(m->scores[(i * 3 % 4) * 2 + (i < 4)], (uint8_t)(160 + i)));
}

/* Its sizes are of all samples that are trained on, each in its two nearest partitions. */
static void test_cluster_sizes(void **state)
{
    static const struct {
        uint64_t sizes[4];
        size_t n;
        const char *why; /* NULL: they are taken */
    } cases[] = {
        {{33, 33, 0, 0}, 3, "sizes of 3 partitions were reported, expected 4"},
        {{33, 33, 0, 0}, 5, "sizes of 5 partitions were reported, expected 4"},
        {{34, 0, 16, 16}, 4, "a partition has 34 of 33 samples"},
        {{UINT64_MAX, 1, 0, 0}, 4, "a partition has 18446744073709551615 of 33 samples"},
        {{33, 33, 1, 0}, 4, "together have 67 samples, expected 66"},
        {{33, 32, 0, 0}, 4, "together have 65 samples, expected 66"},
        {{0, 0, 0, 0}, 4, "together have 0 samples, expected 66"},
        {{10, 20, 30, 6}, 4, NULL},
        {{33, 33, 0, 0}, 4, NULL},
    };
    struct rig *r = *state;
    struct job *j = add_cut(r, dipaco);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct brought x;
        nothing(&x);
        x.m.output = uploaded(r, &x, "partitioner");
        memcpy(x.sizes, cases[i].sizes, sizeof(cases[i].sizes));
        x.m.n_sizes = cases[i].n;
        x.m.assignment = assigned(r, &x, j);
        struct task *t = add_task(r, j, TASK_CLUSTER);
        if (cases[i].why != NULL) {
            refused(r, j, t, &x, -EINVAL, cases[i].why);
            assert_false(blob_ref_is_set(&j->partitioner) || blob_ref_is_set(&j->assignment));
            assert_int_equal(j->sizes[0], 0);
            continue;
        }
        taken(r, j, t, &x);
        assert_memory_equal(j->sizes, cases[i].sizes, 4 * sizeof(uint64_t));
    }
}

/* The partitioner before stays while the resharding may still be dropped; what is older goes. */
static void test_cluster_result(void **state)
{
    struct rig *r = *state;
    struct job *j = add_cut(r, dipaco);
    struct task *t = add_task(r, j, TASK_CLUSTER);
    struct brought x;
    const struct blob_ref oldest = ref_of(1), old = ref_of(2), assignment = ref_of(3);
    j->partitioner_before = oldest;
    j->partitioner = old;
    j->assignment = assignment;
    nothing(&x);
    bring_row(&x, "balance", 1.5);
    x.m.n_sizes = 4;
    x.sizes[1] = x.sizes[2] = 33;
    x.m.output = uploaded(r, &x, "partitioner");
    refused(r, j, t, &x, -EINVAL, "the assignment is missing");
    x.m.assignment = assigned(r, &x, j);
    x.m.output = NULL;
    refused(r, j, t, &x, -EINVAL, "the partitioner is missing");
    assert_true(same(&j->partitioner, &old) && j->n_rows == 0 && r->co->n_garbage == 0);
    x.m.output = &x.blobs[0];
    taken(r, j, t, &x);
    assert_true(same(&j->partitioner, &x.refs[0]) && same(&t->output, &x.refs[0]));
    assert_true(same(&j->assignment, &x.refs[1]));
    assert_true(same(&j->partitioner_before, &old));
    assert_int_equal(r->co->n_garbage, 2);
    assert_true(same(&r->co->garbage[0], &oldest) && same(&r->co->garbage[1], &assignment));
    assert_int_equal(j->n_rows, 1);
    assert_true(j->rows[0].kind == TASK_CLUSTER && j->rows[0].path == UINT32_MAX);
    assert_true(j->rows[0].value == 1.5);
}

/* An assignment that no SPLIT could follow is refused, whoever made it: nobody would end it. */
static void test_cluster_unsound(void **state)
{
    struct rig *r = *state;
    struct job *j = add_cut(r, dipaco);
    struct task *t = add_task(r, j, TASK_CLUSTER);
    struct brought x;
    nothing(&x);
    x.m.n_sizes = 4;
    x.sizes[1] = x.sizes[2] = 33;
    x.m.output = uploaded(r, &x, "partitioner");
    x.m.assignment = uploaded(r, &x, "no assignment");
    refused(r, j, t, &x, -EINVAL, "the assignment cannot be read");
    x.m.assignment = assigned(r, &x, j);
    x.sizes[0]++; /* it has others */
    x.sizes[2]--;
    refused(r, j, t, &x, -EINVAL, "or has other sizes than were reported");
    assert_false(blob_ref_is_set(&j->assignment));
    x.sizes[0]--;
    x.sizes[2]++;
    taken(r, j, t, &x);
}

/* What routing is worth is a row, and nothing else changes. */
static void test_cluster_evaluates(void **state)
{
    struct rig *r = *state;
    struct job *j = add_cut(r, dipaco);
    struct task *t = add_task(r, j, TASK_CLUSTER);
    struct brought x;
    nothing(&x);
    t->cluster.evaluate = true;
    x.m.output = uploaded(r, &x, "partitioner");
    bring_row(&x, "bits per byte", 1.25);
    taken(r, j, t, &x);
    assert_false(blob_ref_is_set(&j->partitioner));
    assert_string_equal(j->rows[0].name, "bits per byte");
}

/* ---- SPLIT ---- */

/* It begins in the assignment behind the samples of all shards before its own. */
static void test_split_message(void **state)
{
    struct rig *r = *state;
    struct job *j = add_cut(r, dipaco);
    const struct worker *w = add_worker(r);
    j->assignment = ref_of(202);
    const Skerry__V1__SplitTask *m = message_of(r, j, of_shards(r, j, TASK_SPLIT, 1, 2), w)->split;
    assert_true(m->first == 10 && !m->holdout && m->n_ranges == 2);
    assert_true(is_ref(m->assignment, 202) && is_ref(m->ranges[1]->shard, 102));
    m = message_of(r, j, of_shards(r, j, TASK_SPLIT, 3, 1), w)->split;
    assert_true(m->first == 33 && m->holdout);
}

static void test_split_result(void **state)
{
    struct rig *r = *state;
    struct job *j = add_cut(r, dipaco);
    struct task *t = of_shards(r, j, TASK_SPLIT, 1, 2), *held = of_shards(r, j, TASK_SPLIT, 3, 1);
    struct brought x;
    t->split.group = 5;
    held->split.group = 6;
    nothing(&x);
    refused(r, j, t, &x, -EINVAL, "a split gave 0 shards, expected 1 to 4");
    bring_shard(r, &x, 40, 0);
    refused(r, j, t, &x, -EINVAL, "40 samples were written, expected 46");
    bring_shard(r, &x, 6, 4);
    refused(r, j, t, &x, -EINVAL, "a shard of partition 4; there are 4 partitions");
    x.shards[1].partition = 3;
    x.shards[1].tokens = 5;
    refused(r, j, t, &x, -EINVAL, "6 pieces of text with 5 tokens");
    x.shards[1].tokens = 60;
    x.m.n_shards = 5; /* they would all be full but one of each partition */
    refused(r, j, t, &x, -EINVAL, "a split gave 5 shards");
    x.m.n_shards = 2;
    assert_int_equal(j->n_shards, 4);
    j->generation = 2;
    x.shards[0].holdout = true; /* what is held out is not its to say */
    taken(r, j, t, &x);
    nothing(&x);
    bring_shard(r, &x, 13, 1); /* held-out samples are in the nearest partition alone */
    taken(r, j, held, &x);
    assert_int_equal(j->n_shards, 7);
    for (size_t i = 4; i < 7; i++) {
        assert_int_equal(j->shards[i].generation, 3);
        assert_int_equal(j->shards[i].source, i < 6 ? 5 : 6);
        assert_int_equal(j->shards[i].holdout, i == 6);
    }
    assert_true(j->shards[5].samples == 6 && j->shards[5].partition == 3);
    assert_true(j->shards[5].tokens == 60);
}

/* A job's shards have a limit, and that they are more ends it when a second worker says so, too. */
static void test_split_of_many(void **state)
{
    struct rig *r = *state;
    struct job *j = add_cut(r, dipaco);
    struct brought x;
    while (j->n_shards < JOB_SHARDS_MAX - 1)
        *job_add_shard(j) = (struct shard_rec){.generation = 1};
    struct task *t = of_shards(r, j, TASK_SPLIT, 1, 2);
    nothing(&x);
    bring_shard(r, &x, 46, 1);
    taken(r, j, t, &x);
    assert_int_equal(j->n_shards, JOB_SHARDS_MAX);
    refused(r, j, t, &x, -ERR_CONFIG, "the partitions make more than 65536 shards");
    assert_int_equal(j->n_shards, JOB_SHARDS_MAX);
    assert_null(j->doom);
}

/* ---- SCORE ---- */

static void test_score(void **state)
{
    struct rig *r = *state;
    struct job *j = add_cut(r, dipaco);
    const struct worker *w = add_worker(r);
    struct task *t = of_shards(r, j, TASK_SCORE, 3, 1);
    struct path_rec *p = job_edit_path(j, 2);
    const uint32_t n = composition_levels(&j->comp, 2);
    struct brought x;
    t->path = 2;
    p->best = mem_alloc_array(n, sizeof(*p->best));
    for (uint32_t l = 0; l < n; l++)
        p->best[l].full = ref_of(250);
    const Skerry__V1__Task *m = message_of(r, j, t, w);
    assert_true(m->score->path == 2 && m->score->chunk == 0 && m->score->skip == TEXT_SKIP);
    assert_int_equal(m->n_modules, n);
    assert_false(is_ref(m->modules[0]->full, 250)); /* as they are, until the end */
    t->score.evaluate = true;
    m = message_of(r, j, t, w);
    assert_int_equal(m->score->chunk, 33);
    assert_true(is_ref(m->modules[0]->full, 250));
    nothing(&x);
    refused(r, j, t, &x, -EINVAL, "the file of scores is missing");
    assert_int_equal(j->n_scores, 0);
    x.m.output = uploaded(r, &x, "scores");
    taken(r, j, t, &x);
    assert_int_equal(j->n_scores, 1);
    assert_true(j->scores[0].path == 2 && j->scores[0].shard == 3);
    assert_true(same(&j->scores[0].blob, &x.refs[0]) && same(&t->output, &x.refs[0]));
}

int main(void)
{
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin_by_hand, end_by_hand)
    const struct CMUnitTest tests[] = {
        LIVE(test_feature_message),   LIVE(test_feature_result),  LIVE(test_many_makers),
        LIVE(test_cluster_message),   LIVE(test_cluster_sizes),   LIVE(test_cluster_result),
        LIVE(test_cluster_evaluates), LIVE(test_cluster_unsound), LIVE(test_split_message),
        LIVE(test_split_result),      LIVE(test_split_of_many),   LIVE(test_score),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
