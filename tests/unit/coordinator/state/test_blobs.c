/* Which blobs the state names, and until when each is needed. */
#include "coordinator/state/blobs.h"
#include "tests/unit/coordinator/plain.h"

#define HOUR_MS (3600ll * 1000)
#define ENDED_MS (100 * HOUR_MS)

static const struct blob_ref one = {.size = 1};

/* Names heard of each role, and how many of them are needed. */
struct heard {
    unsigned named[BLOB_ROLES], needed[BLOB_ROLES], spared[BLOB_ROLES];
};

static void hear(void *arg, enum blob_role role, const struct blob_ref *b, enum blob_need need)
{
    struct heard *h = arg;
    assert_true(b->size > 0);
    h->named[role]++;
    h->needed[role] += need == BLOB_NEEDED;
    h->spared[role] += need == BLOB_SPARED;
}

static struct heard walk(const struct state *s, uint64_t job, int64_t now_unix_ms)
{
    struct heard h = {0};
    each_blob(s, job, now_unix_ms, hear, &h);
    return h;
}

/* A job's records with a blob in every place of each role. */
static void fill(struct state *s, struct job *j)
{
    cut(j, "th");
    job_edit_shard(j, 0)->features = one;
    job_add_score(j, &(struct score_rec){.blob = one});
    j->warm_start = j->assignment = j->tokenizer = one;
    j->partitioner = j->partitioner_before = one;
    job_add_encoder(j, &(struct encoder_file){.name = "config.json", .blob = one});
    module_add_version(job_edit_module(j, &j->modules[0]),
                       &(struct version_rec){.full = one, .delta = one, .ema = one, .target = one});
    job_edit_replica(j, 0, 0)->moments = one;
    struct path_rec *p = job_edit_path(j, 0);
    p->best = mem_alloc_array(composition_levels(&j->comp, 0), sizeof(*p->best));
    p->best[0].full = one;
    (void)job_add_grid(j, &(struct grid_rec){.blob = one});
    struct task *t = state_add_task(s, 0, j->id, TASK_TRAIN);
    t->output = t->train.moments = one;
    task_set_snapshot(t, snapshot_new(1));
    ((struct snapshot *)t->train.snapshot)->modules[0].blob = one;
    task_add_contribution(
        t, &(struct contribution){.module_id = j->modules[0].id, .blob = one, .version = 1});
    state_add_task(s, 0, j->id, TASK_VELOCITY)->velocity.input = one;
}

/* What a CHECK has brought is needed until it is dropped, or the job ends, and so is what it is
 * compared with, though newer versions have come. */
static void test_check(void **state)
{
    struct job *j = add(*state, diloco);
    struct module_rec *m = job_edit_module(j, &j->modules[0]);
    struct task *phase = state_add_task(*state, 0, j->id, TASK_TRAIN);
    struct task *check = state_add_task(*state, 0, j->id, TASK_CHECK);
    m->version = 2;
    task_add_contribution(phase,
                          &(struct contribution){.module_id = m->id, .blob = one, .version = 1});
    struct heard h = walk(*state, 0, 0);
    assert_int_equal(h.needed[BLOB_CONTRIBUTION] + h.spared[BLOB_CONTRIBUTION], 0);
    check->train.checks = phase->id;
    assert_int_equal(walk(*state, 0, 0).spared[BLOB_CONTRIBUTION], 1); /* it is open */
    task_add_contribution(check, &(struct contribution){.module_id = m->id, .blob = one});
    state_set_task_state(*state, check, TASK_DONE);
    h = walk(*state, 0, 0);
    assert_int_equal(h.needed[BLOB_CONTRIBUTION], 1);
    assert_int_equal(h.spared[BLOB_CONTRIBUTION], 1);
    j->state = JOB_DONE;
    h = walk(*state, 0, 0);
    assert_int_equal(h.needed[BLOB_CONTRIBUTION] + h.spared[BLOB_CONTRIBUTION], 0);
    j->state = JOB_RUNNING;
    task_drop_contribution(check, &check->train.contributions[0]); /* it is decided */
    h = walk(*state, 0, 0);
    assert_int_equal(h.needed[BLOB_CONTRIBUTION] + h.spared[BLOB_CONTRIBUTION], 0);
}

static void test_running(void **state)
{
    struct job *j = add(*state, diloco);
    fill(*state, j);
    struct heard h = walk(*state, 0, 0);
    for (int role = 0; role < BLOB_ROLES; role++) {
        assert_int_equal(h.named[role], role == BLOB_SHARD ? 2 : 1);
        assert_int_equal(h.needed[role], h.named[role]);
    }
}

/* What only a running job needs is let go at its end.  The shards are spared for an hour: a backup
 * made after that lacks them, and a clock that is set back finds the job young once more. */
static void test_ended(void **state)
{
    struct job *j = add(*state, diloco);
    fill(*state, j);
    j->ended_unix_ms = ENDED_MS;
    for (int to = JOB_DONE; to <= JOB_CANCELLED; to++) {
        j->state = (enum job_state)to;
        struct heard young = walk(*state, 0, ENDED_MS + HOUR_MS - 1);
        struct heard old = walk(*state, 0, ENDED_MS + HOUR_MS);
        for (int role = 0; role < BLOB_ROLES; role++) {
            bool stays = blob_role_stays((enum blob_role)role);
            assert_int_equal(old.named[role], role == BLOB_SHARD ? 2 : 1);
            assert_int_equal(old.needed[role], stays ? 1 : 0);
            if (role != BLOB_SHARD)
                assert_int_equal(young.needed[role], stays ? 1 : 0);
        }
        assert_int_equal(young.needed[BLOB_SHARD], 0);
        assert_int_equal(young.spared[BLOB_SHARD], 2);
        assert_int_equal(old.spared[BLOB_SHARD], 0);
    }
}

/* The optimiser's state in the blob store: of the newest version, and what that came of. */
static void test_outer_state(void **state)
{
    struct job *j = add(*state, diloco);
    struct blob_ref target, momentum;
    static const char record[] = "{\"state\":{\"target\":{\"sha256\":\"%064d\",\"size\":7},"
                                 "\"momentum\":{\"sha256\":\"%064d\",\"size\":8}%s}}";
    for (uint64_t v = 0; v < 4; v++)
        module_add_version(job_edit_module(j, &j->modules[0]),
                           &(struct version_rec){.version = v, .target = one, .momentum = one});
    struct heard h = walk(*state, 0, 0);
    assert_int_equal(h.named[BLOB_OUTER_STATE], 8);
    assert_int_equal(h.needed[BLOB_OUTER_STATE], 4);
    j->state = JOB_DONE;
    assert_int_equal(walk(*state, 0, 0).needed[BLOB_OUTER_STATE], 0);
    for (int stored = 0; stored < 2; stored++) {
        char *text = str_printf(record, 1, 2, stored ? ",\"stored\":true" : "");
        assert_int_equal(blob_outer_state(text, &target, &momentum), stored);
        assert_int_equal(target.size, stored ? 7 : 0);
        assert_int_equal(momentum.size, stored ? 8 : 0);
        mem_free(text);
    }
    assert_false(blob_outer_state(NULL, &target, &momentum));
}

/* Another job may learn from the experts of one that is done: with the shards they know. */
static void test_teacher(void **state)
{
    struct job *j = add(*state, ddm);
    cut(j, "tth");
    j->generation = 1;
    job_edit_shard(j, 1)->generation = 1;
    assert_int_equal(walk(*state, 0, HOUR_MS).needed[BLOB_SHARD], 3);
    j->state = JOB_DONE;
    assert_int_equal(walk(*state, 0, HOUR_MS).needed[BLOB_SHARD], 1);
    j->state = JOB_FAILED;
    assert_int_equal(walk(*state, 0, HOUR_MS).needed[BLOB_SHARD], 0);
}

/* While the job goes on: those not yet folded, and those of the newest version. */
static void test_contributions(void **state)
{
    struct job *j = add(*state, diloco);
    struct module_rec *m = job_edit_module(j, &j->modules[0]);
    struct task *t = state_add_task(*state, 0, j->id, TASK_TRAIN);
    m->version = 2 * VERSIONS_KEPT;
    task_add_contribution(t, &(struct contribution){.module_id = m->id, .blob = one});
    struct contribution *c = task_edit_contribution(t, &t->train.contributions[0]);
    assert_int_equal(walk(*state, 0, 0).needed[BLOB_CONTRIBUTION], 1);
    j->state = JOB_DONE;
    assert_int_equal(walk(*state, 0, 0).needed[BLOB_CONTRIBUTION], 0);
    c->version = m->version;
    assert_int_equal(walk(*state, 0, 0).needed[BLOB_CONTRIBUTION], 0);
    j->state = JOB_RUNNING;
    assert_int_equal(walk(*state, 0, 0).needed[BLOB_CONTRIBUTION], 1);
    c->version--;
    assert_int_equal(walk(*state, 0, 0).needed[BLOB_CONTRIBUTION], 0);
    c->version = m->version;
    c->module_id = m->id + 1000; /* no such module */
    struct heard h = walk(*state, 0, 0);
    assert_int_equal(h.named[BLOB_CONTRIBUTION], 1);
    assert_int_equal(h.needed[BLOB_CONTRIBUTION], 0);
}

/* The whole file of each version on record, the averages of the newest ones; of a job that has
 * ended the files of the newest ones, and the averages of the newest and of that at which a path
 * has stopped. */
static void test_versions(void **state)
{
    struct job *j = add(*state, diloco);
    struct module_rec *m = job_edit_module(j, &j->modules[0]);
    m->kept = 2 * VERSIONS_KEPT;
    for (uint64_t v = 0; v <= 10; v++)
        module_add_version(
            m, &(struct version_rec){.version = v, .full = one, .delta = one, .ema = one});
    struct heard h = walk(*state, 0, 0);
    assert_int_equal(h.needed[BLOB_FULL], 2 * VERSIONS_KEPT);
    assert_int_equal(h.needed[BLOB_DELTA], 2 * VERSIONS_KEPT);
    assert_int_equal(h.needed[BLOB_EMA], VERSIONS_KEPT);
    assert_true(blob_ema_stays(j, m, 7) && !blob_ema_stays(j, m, 6));
    j->state = JOB_DONE;
    for (uint32_t round = 9; round <= 10; round++) {
        job_edit_path(j, 0)->round = round;
        h = walk(*state, 0, 0);
        assert_int_equal(h.needed[BLOB_FULL], VERSIONS_KEPT);
        assert_int_equal(h.needed[BLOB_EMA], 11 - round);
        assert_int_equal(h.needed[BLOB_DELTA], 2 * VERSIONS_KEPT);
    }
}

/* A check may compare with a refused one, but what our disk has damaged is gone. */
static void test_refused(void **state)
{
    struct job *j = add(*state, diloco);
    struct task *t = state_add_task(*state, 0, j->id, TASK_TRAIN);
    task_add_contribution(t, &(struct contribution){.module_id = j->modules[0].id, .blob = one});
    task_edit_contribution(t, &t->train.contributions[0])->refused = true;
    struct heard h = walk(*state, 0, 0);
    assert_int_equal(h.needed[BLOB_CONTRIBUTION], 0);
    assert_int_equal(h.spared[BLOB_CONTRIBUTION], 1);
    j->state = JOB_DONE;
    h = walk(*state, 0, 0);
    assert_int_equal(h.named[BLOB_CONTRIBUTION], 1);
    assert_int_equal(h.needed[BLOB_CONTRIBUTION] + h.spared[BLOB_CONTRIBUTION], 0);
}

/* Of a job that is not read nobody knows what is still there. */
static void test_unread(void **state)
{
    struct job *j = add(*state, diloco);
    j->unread_blobs = mem_alloc(sizeof(*j->unread_blobs));
    j->unread_blobs[j->n_unread_blobs++] = (struct unread_blob){BLOB_CONTRIBUTION, one};
    const struct heard h = walk(*state, 0, 0);
    assert_int_equal(h.needed[BLOB_CONTRIBUTION], 0);
    assert_int_equal(h.spared[BLOB_CONTRIBUTION], 1);
}

/* What these kinds have found is in the job's record; of the others nobody else has it. */
static void test_outputs(void **state)
{
    struct job *j = add(*state, diloco);
    for (int k = TASK_INIT; k < TASK_KINDS; k++) {
        struct task *t = state_add_task(*state, 0, j->id, (enum task_kind)k);
        t->output = one;
        bool passed = k == TASK_FEATURE || k == TASK_CLUSTER || k == TASK_SCORE;
        struct heard h = walk(*state, 0, 0);
        assert_int_equal(h.named[BLOB_OUTPUT], 1);
        assert_int_equal(h.needed[BLOB_OUTPUT], !passed);
        t->output.size = 0; /* there is none: it is not named */
        assert_int_equal(walk(*state, 0, 0).named[BLOB_OUTPUT], 0);
    }
}

static void test_one_job(void **state)
{
    struct job *a = add(*state, diloco), *b = add(*state, diloco);
    fill(*state, a);
    b->tokenizer = one;
    struct heard h = walk(*state, b->id, 0);
    for (int role = 0; role < BLOB_ROLES; role++)
        assert_int_equal(h.named[role], role == BLOB_TOKENIZER);
    assert_int_equal(walk(*state, 0, 0).named[BLOB_TOKENIZER], 2);
    assert_int_equal(walk(*state, a->id, 0).named[BLOB_CONTRIBUTION], 1);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        CASE(test_running), CASE(test_ended),   CASE(test_teacher),     CASE(test_contributions),
        CASE(test_outputs), CASE(test_one_job), CASE(test_outer_state), CASE(test_check),
        CASE(test_refused), CASE(test_unread),  CASE(test_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
