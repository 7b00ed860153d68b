/* Which jobs are taken, and the sentence that refuses the others.  A whole coordinator (rig.h). */
#include "coordinator/job/submit.h"
#include "coordinator/work/query.h"
#include "tests/unit/coordinator/rig.h"

#define IMAGES                                                                                     \
    "name: s\ndata: {path: x, image_size: 16}\n"                                                   \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\ntrain: {batch: 4}\n"               \
    "outer: {rounds: 2, steps: 2}\n"

static const char images[] = IMAGES "recipe: {name: diloco, replicas: 2}\n";
static const char experts[] = IMAGES "recipe: {name: ddm, experts: 2}\n";
static const char texts[] = "name: s\ndata: {path: x}\n"
                            "model: {type: llama, dim: 32, depth: 1, heads: 2, context: 64}\n"
                            "train: {batch: 4}\nrecipe: {name: diloco, replicas: 2}\n"
                            "outer: {rounds: 2, steps: 2}\n";

static const char *const classes[] = {"cat", "dog"};

/* Two shards that were uploaded, the second held out. */
struct given {
    struct submit_shard shards[2];
    struct submit s;
};

static void give(struct rig *r, const char *spec, struct given *g)
{
    *g = (struct given){0};
    for (int i = 0; i < 2; i++) {
        struct blob_ref b = put_text(r, i ? "held out" : "train");
        memcpy(g->shards[i].sha256, b.sha256, 32);
        g->shards[i].size = b.size;
        g->shards[i].samples = g->shards[i].tokens = i ? 4 : 40;
        g->shards[i].holdout = i == 1;
    }
    g->s = (struct submit){.spec = spec, .classes = classes, .n_classes = 2};
    g->s.shards = g->shards;
    g->s.n_shards = 2;
}

static struct job *taken(struct rig *r, const struct given *g)
{
    struct err err = {0};
    uint64_t id = 0;
    if (submit_job(r->co, &g->s, &id, &err) < 0)
        fail_msg("%s", err.msg);
    return state_job(&r->co->state, id);
}

/* Refused with this, and nothing of it is left. */
static void refused(struct rig *r, const struct given *g, const char *why)
{
    struct err err = {0};
    uint64_t id = 0, next_job = r->co->state.next_job, next_module = r->co->state.next_module;
    size_t jobs = r->co->state.n_jobs;
    assert_true(submit_job(r->co, &g->s, &id, &err) < 0);
    if (strstr(err.msg, why) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, why);
    assert_int_equal(r->co->state.n_jobs, jobs);
    assert_int_equal(r->co->state.next_job, next_job);
    assert_int_equal(r->co->state.next_module, next_module);
}

static void test_taken(void **state)
{
    struct rig *r = *state;
    struct given g;
    static const struct bad_sample bad = {"aa", "cat/1", "it is no image"};
    give(r, images, &g);
    g.s.bad = &bad;
    g.s.n_bad = 1;
    const struct job *j = taken(r, &g);
    assert_int_equal(j->state, JOB_PENDING);
    assert_non_null(strstr(j->yaml, "train: {lr: 0.015625, schedule: decay, batch: 4}"));
    assert_non_null(strstr(j->yaml, "outer: {warmup: 10, momentum: 0.8, rounds: 2"));
    assert_int_equal(j->n_classes, 2);
    assert_int_equal(j->counts[1], 0); /* none were given */
    assert_int_equal(j->n_shards, 2);
    assert_int_equal(j->shards[0].samples, 40);
    assert_true(!j->shards[0].holdout && j->shards[1].holdout);
    assert_int_equal(j->bad_count, 1);
    assert_string_equal(j->bad[0].key, "cat/1");
    assert_int_equal(j->vocab, 0);
}

static void test_shards(void **state)
{
    struct rig *r = *state;
    struct given g;
    give(r, images, &g);
    g.shards[1].size++;
    refused(r, &g, "has 8 bytes, 9 were announced");
    g.shards[1].sha256[0]++;
    refused(r, &g, "shard 1 (");
    refused(r, &g, "was not uploaded");
    give(r, images, &g);
    g.shards[0].samples = 0;
    refused(r, &g, "shard 0 has no samples");
    give(r, images, &g);
    g.s.n_classes = 0;
    refused(r, &g, "no shards or no classes");
    give(r, images, &g);
    g.s.n_shards = JOB_SHARDS_MAX + 1;
    refused(r, &g, "at most 65536 and 4096 fit; raise data.shard_samples");
    give(r, images, &g);
    g.shards[0].holdout = true; /* found by the check of the job as a whole */
    refused(r, &g, "no samples to train on, all are held out");
}

static void test_texts(void **state)
{
    struct rig *r = *state;
    struct given g;
    give(r, images, &g);
    g.s.vocab = 257;
    refused(r, &g, "the dataset is text (vocab 257), but model.type dit is for images");
    give(r, texts, &g);
    g.s.n_classes = 0;
    refused(r, &g, "the dataset has no vocab");
    g.s.vocab = 16777217;
    refused(r, &g, "at most 16777216 is possible");
    g.s.vocab = 257;
    g.shards[0].tokens = 39;
    refused(r, &g, "shard 0 has 40 pieces of text, but 39 tokens");
    g.shards[0].tokens = 4000;
    assert_int_equal(taken(r, &g)->vocab, 257);
}

/* Files come with the job if it names them, and only then. */
static void test_files(void **state)
{
    struct rig *r = *state;
    struct given g;
    struct blob_ref file = put_text(r, "a file");
    give(r, images, &g);
    g.s.warm_start = &file;
    refused(r, &g, "the warm start was uploaded, but the job file has no model.warm_start");
    g.s.warm_start = NULL;
    g.s.tokenizer = &file;
    refused(r, &g, "the tokenizer was uploaded, but the job file has no data.tokenizer");
}

static void test_teacher(void **state)
{
    struct rig *r = *state;
    struct given g;
    give(r, images, &g);
    struct job *plain = taken(r, &g);
    give(r, experts, &g);
    struct job *t = taken(r, &g);
    char spec[512];
    (void)snprintf(spec, sizeof(spec), IMAGES "recipe: {name: distill, teacher: %u}\n", 99u);
    give(r, spec, &g);
    g.s.n_shards = g.s.n_classes = 0;
    refused(r, &g, "recipe.teacher is 99, but there is no such job");
    (void)snprintf(spec, sizeof(spec), IMAGES "recipe: {name: distill, teacher: %u}\n",
                   (unsigned)plain->id);
    refused(r, &g, "a diloco: expected a ddm job, whose experts teach");
    (void)snprintf(spec, sizeof(spec), IMAGES "recipe: {name: distill, teacher: %u}\n",
                   (unsigned)t->id);
    refused(r, &g, "which is pending: wait until it is done");
    t->state = JOB_DONE;
    t->unread = true;
    (void)str_copy(t->reason, sizeof(t->reason), "its rows contradict each other");
    refused(r, &g, "is job 2, which cannot be read: its rows contradict each other");
    t->unread = false;
    t->spec.data.image_size = 32;
    refused(r, &g, "know images of 32");
    t->spec.data.image_size = 16;
    t->spec.data.path[0] = 'y';
    refused(r, &g, "whose shards are used again");
    t->spec.data.path[0] = 'x';
    t->spec.model.depth = 2;
    refused(r, &g, "have another model (patch 4, dim 32, depth 2, heads 2)");
    t->spec.model.depth = 1;
    t->spec.upscaler = (struct job_upscaler){8, 2, 16, 3, 2, 0.25};
    refused(r, &g,
            "have another upscaler (low_side 8, patch 2, dim 16, depth 3, heads 2, noise 0.25)");
    t->spec.upscaler.low_side = 0;
    t->spec.model.label_dropout = 0;
    refused(r, &g, "model.label_dropout is 0.1, but the experts of job 2 were trained with 0");
    t->spec.model.label_dropout = 0.2;
    job_edit_shard(t, 1)->blob.sha256[0]++;
    refused(r, &g, "are not kept any more");
    job_edit_shard(t, 1)->generation = 1; /* of another generation: it is not asked for */
    const struct job *j = taken(r, &g);
    assert_int_equal(j->n_shards, 1);
    assert_int_equal(j->n_classes, 2);
    assert_int_equal(j->shards[0].samples, 40);
    char why[REASON_MAX];
    assert_null(query_withheld(&r->co->state, j));
    t->unread = true; /* after a restart */
    assert_string_equal(query_withheld(&r->co->state, j),
                        "is of a job whose teacher cannot be read");
    assert_true(query_stalled(&r->co->state, j, why));
    assert_string_equal(why, "its teacher, job 2, cannot be read: its rows contradict each other");
}

/* A student is told what its experts were told: by the same networks, on the same latents. */
static void test_teacher_on_latents(void **state)
{
    struct rig *r = *state;
    struct given g;
    char spec[512];
    struct encoder_file file = {.name = "config.json", .blob = put_text(r, "a config")};
    const struct blob_ref its = file.blob;
    const struct network_input input = {.channels = 4, .side = 8};
    static const char *const ways[][2] = {
        {"flip: true", "data.flip is true, but the latents of job"},
        {"buckets: [16x16]", "data.buckets differ from those of job"},
        {"flip: false", NULL},
    };
    give(r, IMAGES "recipe: {name: ddm, experts: 2}\nencoders: {vae: v}\n", &g);
    g.s.encoders = &file;
    g.s.n_encoders = 1;
    g.s.input = &input;
    struct job *t = taken(r, &g);
    t->state = JOB_DONE;
    g.s.n_shards = g.s.n_classes = 0;
    g.s.spec = spec;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        (void)snprintf(spec, sizeof spec,
                       "name: s\ndata: {path: x, image_size: 16, %s}\n"
                       "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                       "train: {batch: 4}\nouter: {rounds: 2, steps: 2}\nencoders: {vae: v}\n"
                       "recipe: {name: distill, teacher: %u}\n",
                       ways[i][0], (unsigned)t->id);
        if (ways[i][1])
            refused(r, &g, ways[i][1]);
    }
    t->spec.encoders.layer++;
    refused(r, &g, "but the experts of job");
    t->spec.encoders.layer--;
    file.blob = put_text(r, "another");
    refused(r, &g, "config.json is another file");
    file.blob = its;
    (void)taken(r, &g);
    t->spec.encoders.run = JOB_ENCODE_FLY; /* its shards are pictures */
    memcpy(strstr(spec, "false"), "true ", 5);
    (void)taken(r, &g);
}

static void test_active(void **state)
{
    struct rig *r = *state;
    struct given g;
    give(r, images, &g);
    for (int i = 1; i < JOBS_ACTIVE_MAX; i++)
        (void)taken(r, &g);
    struct job *last = taken(r, &g);
    refused(r, &g, "64 jobs are active, no more are taken");
    last->state = JOB_CANCELLED;
    (void)taken(r, &g);
    r->co->store_ok = false;
    refused(r, &g, "cannot write its state");
    r->co->store_ok = true;
}

/* The places for jobs are used up: an ended job without a model makes room, but for a job that is
 * taken only, and no model goes. */
static void test_places(void **state)
{
    struct rig *r = *state;
    struct given g, experts_too_many;
    give(r, images, &g);
    give(r, IMAGES "recipe: {name: ddm, experts: 64}\n", &experts_too_many);
    while (r->co->state.n_jobs < JOBS_MAX) {
        struct job *j = taken(r, &g);
        job_edit_module(j, &j->modules[0])->n_versions = 1;
        j->state = JOB_DONE;
    }
    struct job *oldest = r->co->state.jobs[0], *second = r->co->state.jobs[1];
    const uint64_t id = second->id;
    job_edit_module(oldest, &oldest->modules[0])->n_versions = 0;
    oldest->unread = true; /* its rows stay for the release that wrote them */
    refused(r, &g,
            "1024 places for jobs are taken, and each has a model, runs or waits: make room with "
            "`skerry remove JOB`, for one that has ended");
    job_edit_module(second, &second->modules[0])->n_versions = 0;
    refused(r, &experts_too_many, "");
    assert_ptr_equal(state_job(&r->co->state, id), second);
    (void)taken(r, &g);
    assert_null(state_job(&r->co->state, id));
    assert_int_equal(r->co->state.n_jobs, JOBS_MAX);
    assert_ptr_equal(r->co->state.jobs[0], oldest);
}

#define LIVE(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LIVE(test_taken),  LIVE(test_shards),  LIVE(test_texts),
        LIVE(test_files),  LIVE(test_teacher), LIVE(test_teacher_on_latents),
        LIVE(test_active), LIVE(test_places),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
